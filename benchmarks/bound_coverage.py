"""Measure how wide the bounds of chapter 5 are, and how often they cover the true values.

Random Boyan's chains with 6 to 10 states, discount 0.9, contexts of growing length, rewards that
are certain or coins. For each context and each bound: the largest width over the visited states,
and whether the truth is covered in all of them. The result is the table of the book:

    python benchmarks/bound_coverage.py --output src/ictd/data/bound-coverage.json
"""

# ruff: noqa: T201 (a script that talks to a person)

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ictd

DISCOUNT, CONFIDENCE = 0.9, 0.9
SIZES = (6, 7, 8, 9, 10)
CHUNK = 20  # walks that are looked at together: memory


def chains(num_states: int, count: int, generator: torch.Generator) -> ictd.MarkovRewardProcess:
    """Random Boyan's chains in float64."""
    return ictd.boyan_chain(
        num_states,
        discount=DISCOUNT,
        generator=generator,
        batch_shape=(count,),
        dtype=torch.float64,
    )


def contexts(
    mrp: ictd.MarkovRewardProcess, length: int, generator: torch.Generator
) -> dict[str, ictd.Trajectory]:
    """The same walks, with the expected reward and with coins of that mean."""
    walk = mrp.sample(length, generator=generator)
    mean = mrp.expected_reward().gather(-1, walk.states)
    coin = torch.rand(mean.shape, generator=generator, dtype=mean.dtype) < (1 + mean) / 2
    fields = {"certain": mean, "coins": torch.where(coin, 1.0, -1.0).to(mean.dtype)}
    return {
        name: ictd.Trajectory(walk.states, rewards, walk.discounts)
        for name, rewards in fields.items()
    }


def first(trajectory: ictd.Trajectory, length: int) -> ictd.Trajectory:
    """The first transitions, as many as closure allows."""
    tokens = slice(length + 1)
    return ictd.Trajectory(
        trajectory.states[:, tokens], trajectory.rewards[:, tokens], trajectory.discounts[:, tokens]
    ).trim()


def oracle_bernstein(
    seen: ictd.Trajectory, model: ictd.EmpiricalModel, values: Tensor, spread: Tensor, length: int
) -> Tensor:
    """Part (i) of the theorem on the computable bound, which knows the values."""
    log_term = math.log(3 * values.shape[-1] * length / (1 - CONFIDENCE))
    ahead = values.gather(-1, seen.states.roll(-1, -1))
    targets = torch.where(seen.is_transition, seen.rewards + DISCOUNT * ahead, 0.0)
    counts = model.counts.clamp(min=1)
    states, zeros = seen.states, torch.zeros_like(counts)
    mean = zeros.scatter_add(-1, states, targets) / counts
    squares = torch.where(seen.is_transition, (targets - mean.gather(-1, states)).square(), 0.0)
    deviation = (zeros.scatter_add(-1, states, squares) / counts).sqrt()
    width = (2 * log_term / counts).sqrt() * deviation
    width = width + 3 * spread.unsqueeze(-1) * log_term / counts
    width = torch.where(model.counts > 0, width, 0.0)
    identity = torch.eye(values.shape[-1], dtype=values.dtype)
    return torch.linalg.solve(identity - model.transition, width)


def bounds(
    seen: ictd.Trajectory, values: Tensor, length: int, is_certain: bool
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The error of certainty equivalence, which states were visited, and every bound, [B, m]."""
    num_states = values.shape[-1]
    model = ictd.empirical_model(seen, num_states)
    visited = model.counts > 0
    spread = ictd.target_spread(values, DISCOUNT, None if is_certain else 1.0)
    numbers = (model.counts, spread, DISCOUNT, CONFIDENCE, length)
    estimate, single = ictd.plug_in_interval(seen, num_states, confidence=CONFIDENCE)
    _, together = ictd.plug_in_interval(seen, num_states, confidence=CONFIDENCE, simultaneous=True)
    widths = {
        "Hoeffding, norm": ictd.context_bound(*numbers).unsqueeze(-1).expand_as(values),
        "Hoeffding, by state": ictd.context_bound(*numbers, transition=model.transition),
        "Bernstein, oracle": oracle_bernstein(seen, model, values, spread, length),
        "Bernstein, computable": ictd.componentwise_bound(
            seen,
            num_states,
            discount=DISCOUNT,
            reward_bound=1.0,
            confidence=CONFIDENCE,
            num_steps=length,
        ),
        "plug-in, all states": together,
        "plug-in, one state": single,
    }
    return (estimate - values).abs(), visited, widths


def measure(lengths: list[int], count: int, seed: int) -> list[dict[str, Any]]:
    """One row for each kind of reward and length of the context."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[tuple[str, int, str], list[Tensor]] = defaultdict(list)
    for num_states in SIZES:
        mrp = chains(num_states, count, generator)
        values = mrp.value()
        records = contexts(mrp, max(lengths), generator)
        for kind, record in records.items():
            for length in lengths:
                for chunk in torch.arange(count).split(CHUNK):
                    seen = first(record[chunk], length)
                    error, visited, widths = bounds(seen, values[chunk], length, kind == "certain")
                    collect(found, (kind, length), error, visited, widths)
    return [row(found, kind, length) for kind in ("certain", "coins") for length in lengths]


def collect(
    found: dict[tuple[str, int, str], list[Tensor]],
    key: tuple[str, int],
    error: Tensor,
    visited: Tensor,
    widths: dict[str, Tensor],
) -> None:
    """Keep, for each context, the largest width and the share of the visited states covered."""
    found[*key, "error"].append(error.where(visited, 0.0).amax(-1))
    for name, width in widths.items():
        covered = (error <= width) & visited
        found[*key, f"width of {name}"].append(width.where(visited, 0.0).amax(-1))
        found[*key, f"covered by {name}"].append(covered.sum(-1) / visited.sum(-1))
        share = torch.where(visited & (width > 0), error / width, 0.0)
        found[*key, f"used of {name}"].append(share.amax(-1))


def row(found: dict[tuple[str, int, str], list[Tensor]], kind: str, length: int) -> dict[str, Any]:
    """Means over all contexts; an interval of infinite width is no failure, and is left out."""
    data = {
        name: torch.cat(parts) for (*key, name), parts in found.items() if key == [kind, length]
    }
    result: dict[str, Any] = {"rewards": kind, "n": length, "contexts": len(data["error"])}
    result["error"] = rounded(data.pop("error").mean())
    for name in [key.removeprefix("width of ") for key in data if key.startswith("width of ")]:
        width, covered = data[f"width of {name}"], data[f"covered by {name}"]
        is_single = name.endswith("one state")
        result[name] = {
            "width": rounded(width[width.isfinite()].mean()),
            "coverage": rounded((covered if is_single else (covered == 1).double()).mean()),
            "largest_share": rounded(data[f"used of {name}"].max()),
        }
    return result


def rounded(number: Tensor) -> float:
    """Four digits, so that the file does not depend on the last bits of a machine."""
    return float(f"{number.item():.4g}")


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Measure, print, and write the numbers as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[300, 1000, 3000, 10000, 30000])
    parser.add_argument("--chains", type=int, default=200, help="for each of five sizes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="write the numbers to this JSON file")
    options = parser.parse_args(arguments)
    rows = measure(options.lengths, options.chains, options.seed)
    for line in rows:
        print(json.dumps(line))
    if options.output is not None:
        command = "python benchmarks/bound_coverage.py --output src/ictd/data/bound-coverage.json"
        report = {"command": command, "seed": options.seed, "confidence": CONFIDENCE, "rows": rows}
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return rows


if __name__ == "__main__":
    main()
