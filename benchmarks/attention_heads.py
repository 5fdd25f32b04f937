"""Time one layer of softmax TD: stock attention with two heads and with one, and the package's.

All four contenders compute the same layer from the same prompt matrix, which is checked first.
They then take turns, round after round, in one process. A round gives each of them a ratio, its
time over that of the stock module with one head; printed are the median of these ratios and the
quartiles. Times in milliseconds are printed too, but belong to this machine alone. On a CPU the
time is processor time, which other programs disturb less than a clock on the wall.
"""

# ruff: noqa: T201 (a script that talks to a person)

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import ictd

Step = Callable[[Tensor], Tensor]
STEP_SIZE = 0.5
BASELINE = "stock one head + shift"


def stock_step(matrix: Tensor, num_heads: int, prompt: ictd.Prompt) -> Step:
    """One layer through the stock module; the rest of the layer is as cheap as it can be."""
    module = ictd.stock_attention(matrix, STEP_SIZE, num_heads=num_heads)
    rows = len(matrix) + 3
    masked = ~prompt.is_transition

    def step(Z: Tensor) -> Tensor:
        tokens = F.pad(Z.mT, (0, (num_heads - 1) * rows))
        update = module(tokens, tokens, tokens, key_padding_mask=masked, need_weights=False)[0]
        current = Z[..., -1, :] + update[..., rows - 1]
        if num_heads == 2:
            target = Z[..., -2, :] + shifted(update[..., -2], prompt)
        else:
            target = shifted(current, prompt)
        return torch.cat([Z[..., :-2, :], torch.stack([target, current], -2)], -2)

    return step


def shifted(values: Tensor, prompt: ictd.Prompt) -> Tensor:
    """The row vector v Pi Gamma."""
    return ictd.temporal_shift(values, prompt.discounts, prompt.is_transition)


def layer_step(
    layer: ictd.DualHeadLayer | ictd.SingleHeadLayer, matrix: Tensor, prompt: ictd.Prompt
) -> Step:
    """One layer of the package."""
    layer.to(matrix.device).construct(matrix, STEP_SIZE)
    return lambda Z: layer(Z, prompt.discounts, prompt.is_transition, num_keys=prompt.num_keys)


def contenders(matrix: Tensor, prompt: ictd.Prompt) -> dict[str, Step]:
    """Four ways to the same layer."""
    feature_dim = len(matrix)
    return {
        "stock two heads": stock_step(matrix, 2, prompt),
        BASELINE: stock_step(matrix, 1, prompt),
        "ictd dual head": layer_step(ictd.DualHeadLayer(feature_dim), matrix, prompt),
        "ictd single head": layer_step(ictd.SingleHeadLayer(feature_dim), matrix, prompt),
    }


def make_prompt(num_tokens: int, feature_dim: int, batch: int, device: str) -> ictd.Prompt:
    """Walks on random chains."""
    generator = torch.Generator().manual_seed(0)
    mrp = ictd.boyan_chain(10, discount=0.9, generator=generator, batch_shape=(batch,))
    features = ictd.unit_sphere_features(10, feature_dim, generator=generator, batch_shape=(batch,))
    prompt = mrp.sample(num_tokens - 1, generator=generator).prompt(features)
    return prompt.to(device)


def seconds(step: Step, Z: Tensor, backward: bool) -> float:
    """The time of one call, and of its backward pass if asked for."""
    clock = time.process_time if Z.device.type == "cpu" else time.perf_counter
    start = clock()
    result = step(Z)
    if backward:
        result.square().sum().backward()
    if Z.device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def measure(steps: dict[str, Step], Z: Tensor, repeats: int, backward: bool) -> dict[str, Any]:
    """Let the contenders take turns; ratios to the baseline, round by round."""
    Z = Z.requires_grad_(backward)
    rounds = []
    with torch.set_grad_enabled(backward):
        for _ in range(repeats + 3):
            rounds.append({name: seconds(step, Z, backward) for name, step in steps.items()})
    table = {}
    for name in steps:
        ratios = [times[name] / times[BASELINE] for times in rounds[3:]]
        low, middle, high = statistics.quantiles(ratios, n=4)
        median_time = statistics.median(times[name] for times in rounds[3:])
        table[name] = {
            "ratio": middle,
            "quartiles": [low, high],
            "milliseconds": 1e3 * median_time,
        }
    return table


def check_equal(steps: dict[str, Step], Z: Tensor) -> None:
    """Refuse to time contenders that do not compute the same."""
    with torch.no_grad():
        results = {name: step(Z) for name, step in steps.items()}
    for name, result in results.items():
        torch.testing.assert_close(
            result, results[BASELINE], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Measure, print, and write the numbers as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[257, 1025, 2049])
    parser.add_argument("--feature-dim", type=int, default=8)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=41)
    parser.add_argument("--backward", action="store_true", help="time the backward pass as well")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, help="write the numbers to this JSON file")
    options = parser.parse_args(arguments)
    print(
        f"torch {torch.__version__}, {options.device}, {torch.get_num_threads()} threads, "
        f"d = {options.feature_dim}, batch {options.batch}, float32"
    )
    rows = []
    for num_tokens in options.tokens:
        prompt = make_prompt(num_tokens, options.feature_dim, options.batch, options.device)
        matrix = 4 * torch.eye(options.feature_dim, device=options.device)
        steps = contenders(matrix, prompt)
        Z = prompt.matrix()
        check_equal(steps, Z)
        table = measure(steps, Z, options.repeats, options.backward)
        rows.append({"tokens": num_tokens, "contenders": table})
        print(f"\n{num_tokens} tokens")
        for name, row in table.items():
            low, high = row["quartiles"]
            print(
                f"  {name:24} {row['ratio']:6.2f} ({low:.2f} to {high:.2f})"
                f"   {row['milliseconds']:9.2f} ms"
            )
    if options.output:
        report = {
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "options": vars(options) | {"output": None},
            "rows": rows,
        }
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return rows


if __name__ == "__main__":
    main()
