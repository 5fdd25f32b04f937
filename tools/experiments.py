"""Run the experiments of the chapter on emergence, and write what the chapter loads.

Each experiment pretrains Transformers, many seeds at once, and evaluates them on tasks unlike those
of the training. Runs are kept in `_experiments/` and go on where they stopped, after Ctrl+C or a
crash; finished ones are not run again. One small JSON file per experiment goes to
`src/ictd/data/emergence/`, with config, seed, versions and the command that made it, and the
weights to `src/ictd/pretraining/weights/`. Nothing of it is edited by hand.

    python tools/experiments.py                      # all of them: hours
    python tools/experiments.py boyan-structured     # one
    python tools/experiments.py --list
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

from ictd.pretraining import (
    Changes,
    PretrainConfig,
    PretrainResult,
    evaluate,
    load_pretrained,
    pretrain,
    save_pretrained,
)
from ictd.pretraining.checkpoint import NAME, versions

ROOT = Path(__file__).parents[1]
COMMON: dict[str, Any] = {"num_steps": 10_000, "log_every": 200, "checkpoint_every": 500}
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "boyan-structured": {"num_seeds": 20},
    "boyan-full": {"num_seeds": 10, "parametrization": "full", "initial_scale": 0.02},
    "boyan-full-large-start": {"num_seeds": 10, "parametrization": "full"},
    "linear-structured": {"num_seeds": 10, "attention": "linear"},
    "linear-full": {"num_seeds": 10, "attention": "linear", "parametrization": "full"},
    "untied": {"num_seeds": 5, "looped": False},
    "monte-carlo": {"num_seeds": 5, "target": "monte-carlo"},
    "one-hot": {"num_seeds": 5, "features": "one-hot", "feature_dim": 10},
    "uniform": {"num_seeds": 5, "features": "uniform"},
    "short-contexts": {"num_seeds": 5, "context_length": 10},
    "long-contexts": {"num_seeds": 5, "context_length": 160},
    "shallow": {"num_seeds": 5, "num_layers": 3},
    "deep": {"num_seeds": 5, "num_layers": 30},
    "discount-half": {"num_seeds": 5, "discount": 0.5},
    "discount-high": {"num_seeds": 5, "discount": 0.97},
    "loop": {"num_seeds": 5, "family": "loop"},
    "garnet": {"num_seeds": 5, "family": "garnet"},
}
LAST_ONLY = {"conditions"}  # what a history would be long with


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="experiments; all if none is named"
    )
    parser.add_argument("--list", action="store_true", help="say what there is, and what is done")
    parser.add_argument("--steps", type=int, help="fewer steps, to try")
    parser.add_argument("--runs", type=Path, default=ROOT / "_experiments")
    parser.add_argument("--data", type=Path, default=ROOT / "src" / "ictd" / "data" / "emergence")
    parser.add_argument(
        "--weights", type=Path, default=ROOT / "src" / "ictd" / "pretraining" / "weights"
    )
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in EXPERIMENTS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(EXPERIMENTS)}")
    for name in given.names or EXPERIMENTS:
        config = PretrainConfig(**(COMMON | EXPERIMENTS[name]))
        if given.steps is not None:
            config = dataclasses.replace(config, num_steps=given.steps)
        folder: Path = given.runs / name
        if given.list:
            done = load_pretrained(folder).step if (folder / NAME).exists() else 0
            print(f"{name:18} {done:6} of {config.num_steps} steps, {EXPERIMENTS[name]}")
            continue
        result = run(name, config, folder)
        if result.step < config.num_steps:
            print(f"{name}: stopped at step {result.step}; the same command goes on")
            return 130
        given.data.mkdir(parents=True, exist_ok=True)
        given.weights.mkdir(parents=True, exist_ok=True)
        text = json.dumps(report(name, result), allow_nan=False, separators=(",", ":"))
        (given.data / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        save_pretrained(folder, given.weights / f"{name}.safetensors")
    return 0


def run(name: str, config: PretrainConfig, folder: Path) -> PretrainResult:
    def tell(step: int, record: dict[str, Any] | None) -> None:
        if record is not None and step % max(config.num_steps // 20, 1) == 0:
            losses = [f"{loss:.3f}" for loss in record["msve"][:3] if loss is not None]
            print(f"{name}: step {step} of {config.num_steps}, MSVE {' '.join(losses)}", flush=True)

    resume = folder if (folder / NAME).exists() else None
    return pretrain(config, out=folder, resume=resume, callback=tell)


def report(name: str, result: PretrainResult) -> dict[str, Any]:
    """What the chapter loads."""
    history = [
        {k: v for k, v in record.items() if k not in LAST_ONLY} for record in result.history[:-1]
    ]
    return {
        "name": name,
        "config": result.config.to_dict(),
        "versions": versions(),
        "command": f"python tools/experiments.py {' '.join(sys.argv[1:])}".strip(),
        "history": rounded([*history, result.history[-1]]),
        "evaluations": [
            {"changes": changes, "metrics": rounded(evaluate(result, Changes(**changes)))}
            for changes in sweeps(result.config)
        ],
    }


def sweeps(config: PretrainConfig) -> list[dict[str, Any]]:
    """Tasks and depths unlike the training's, one thing at a time."""
    found: list[dict[str, Any]] = [{}]
    if config.looped:
        depths = (max(config.num_layers // 2, 1), 2 * config.num_layers, 4 * config.num_layers)
        found += [{"num_layers": depth} for depth in depths]
    lengths = [max(round(config.context_length * factor), 1) for factor in (0.25, 0.5, 2, 4, 8)]
    found += [{"context_length": length} for length in lengths]
    families = ("boyan", "loop", "garnet", "random-walk")
    found += [{"family": family} for family in families if family != config.family]
    found += [
        {"discount": discount} for discount in (0.5, 0.8, 0.95) if discount != config.discount
    ]
    if config.features != "one-hot":
        found += [{"num_states": states} for states in (5, 20)]
    return found


def rounded(value: Any) -> Any:
    """The same with four significant digits."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.4g}")
    return value


if __name__ == "__main__":
    sys.exit(main())
