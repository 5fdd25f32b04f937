"""Run the experiments of the chapter on emergence, and write what the chapter loads.

Each experiment pretrains Transformers, many seeds at once, and evaluates them on tasks unlike those
of the training. Runs are kept in `_experiments/` and go on where they stopped, after Ctrl+C or a
crash; finished ones are not run again. One small JSON file per experiment goes to
`src/ictd/data/emergence/`, with config, seed, versions and the command that made it, and the
weights to `src/ictd/pretraining/weights/`. What needs no training, `yardsticks`, is computed from
the weights there. Nothing of it is edited by hand.

    python tools/experiments.py                      # all of them: hours
    python tools/experiments.py boyan-structured     # one
    python tools/experiments.py yardsticks           # what one would use instead
    python tools/experiments.py --evaluate NAME      # evaluate again, without training
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
    layer_values,
    load_pretrained,
    multiply_adds,
    optimum,
    pretrain,
    save_pretrained,
    yardsticks,
)
from ictd.pretraining.checkpoint import NAME, as_json, versions

ROOT = Path(__file__).parents[1]
COMMON: dict[str, Any] = {"num_steps": 10_000, "log_every": 200, "checkpoint_every": 500}
BRIEF: dict[str, Any] = {"num_seeds": 5, "num_steps": 3_000}
ONE_HOT: dict[str, Any] = {"features": "one-hot", "feature_dim": 10}
FULL: dict[str, Any] = {"parametrization": "full", "initial_scale": 0.02}
# A layer of linear attention takes 1/14 of the multiplications of a softmax layer.
EQUAL_COMPUTE: dict[str, Any] = {"attention": "linear", "num_layers": 140}
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "boyan-structured": {"num_seeds": 20},
    "boyan-full": {"num_seeds": 10, **FULL},
    "boyan-full-one-head": {"num_seeds": 10, "num_heads": 1, **FULL},
    "linear-structured": {**BRIEF, "num_seeds": 10, "attention": "linear"},
    "linear-equal-compute": BRIEF | EQUAL_COMPUTE,
    "one-hot": BRIEF | ONE_HOT,
    "linear-one-hot": {**BRIEF, **ONE_HOT, "attention": "linear"},
    "linear-one-hot-equal-compute": BRIEF | ONE_HOT | EQUAL_COMPUTE,
    "linear-full": {**BRIEF, "attention": "linear", "parametrization": "full"},
    "untied": {**BRIEF, "looped": False},
    "monte-carlo": {**BRIEF, "target": "monte-carlo"},
    "shallow": {**BRIEF, "num_layers": 3},
    "deep": {**BRIEF, "num_layers": 30},
    "short-contexts": {**BRIEF, "context_length": 10},
    "long-contexts": {**BRIEF, "context_length": 160},
    "discount-half": {**BRIEF, "discount": 0.5},
    "discount-high": {**BRIEF, "discount": 0.97},
    "loop": {**BRIEF, "family": "loop"},
    "garnet": {**BRIEF, "family": "garnet"},
    "uniform": {**BRIEF, "features": "uniform"},
    "boyan-full-large-start": {**BRIEF, "parametrization": "full", "num_heads": 1},
}
ANALYSES = ("yardsticks",)  # of what is there already
LAST_ONLY = {"conditions"}  # what a history would be long with
WATCHED = ("msve", "kernel_diagonality")


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
    parser.add_argument(
        "--evaluate", action="store_true", help="evaluate the weights again; the history stays"
    )
    given = parser.parse_args()
    known = (*EXPERIMENTS, *ANALYSES)
    unknown = [name for name in given.names if name not in known]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    for name in given.names or known:
        if name in ANALYSES:
            if not given.list:
                write(given.data / f"{name}.json", analysis(given.weights))
            continue
        config = PretrainConfig(**(COMMON | EXPERIMENTS[name]))
        if given.steps is not None:
            config = dataclasses.replace(config, num_steps=given.steps)
        folder: Path = given.runs / name
        if given.list:
            done = load_pretrained(folder).step if (folder / NAME).exists() else 0
            print(f"{name:28} {done:6} of {config.num_steps} steps, {EXPERIMENTS[name]}")
        elif given.evaluate:
            write(given.data / f"{name}.json", evaluated_again(name, given.weights, given.data))
        else:
            result = run(name, config, folder)
            if result.step < config.num_steps:
                print(f"{name}: stopped at step {result.step}; the same command goes on")
                return 130
            write(given.data / f"{name}.json", report(name, result))
            given.weights.mkdir(parents=True, exist_ok=True)
            save_pretrained(folder, given.weights / f"{name}.safetensors")
    return 0


def write(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, allow_nan=False, separators=(",", ":"))
    path.write_text(text + "\n", encoding="utf-8")


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
    result = dataclasses.replace(result, history=rounded([*history, result.history[-1]]))
    return {
        "name": name,
        "config": result.config.to_dict(),
        **made(),
        "history": result.history,
        **evaluations(result),
    }


def made() -> dict[str, Any]:
    """With what, and by which command."""
    command = f"python tools/experiments.py {' '.join(sys.argv[1:])}".strip()
    return {"versions": versions(), "command": command}


def evaluated_again(name: str, weights: Path, data: Path) -> dict[str, Any]:
    """The history of the file that is there, and what the weights do now."""
    found: dict[str, Any] = json.loads((data / f"{name}.json").read_text(encoding="utf-8"))
    result = load_pretrained(weights / f"{name}.safetensors")
    result = dataclasses.replace(result, history=found["history"])
    return found | evaluations(result) | {"evaluated": made()}


def evaluations(result: PretrainResult) -> dict[str, Any]:
    """Metrics on tasks of many kinds, values layer by layer, and whether the curves have settled.

    `settled` has, for each watched metric, its mean over the seeds at the end relative to that at
    4/5 of the run, minus 1.
    """
    last = result.history[-1]
    before = max(result.history, key=lambda r: (r["step"] <= 0.8 * last["step"], r["step"]))
    settled = {key: mean(last[key]) / mean(before[key]) - 1 for key in WATCHED if key in last}
    return {
        "settled": as_json(rounded(settled)),
        "evaluations": [
            {"changes": changes, "metrics": rounded(evaluate(result, Changes(**changes)))}
            for changes in sweeps(result.config)
        ],
        "layers": rounded(layer_values(result).summary()),
    }


def mean(values: list[float | None]) -> float:
    """Of the seeds that did not diverge."""
    finite = [value for value in values if value is not None]
    return sum(finite) / len(finite) if finite else math.nan


def analysis(weights: Path) -> dict[str, Any]:
    """What needs no training: what one would use instead, what a layer costs, the best weights."""
    configs = {n: PretrainConfig(**(COMMON | own)) for n, own in EXPERIMENTS.items()}
    first = next(iter(configs))
    return made() | {
        "yardsticks": {
            name: [
                {
                    "changes": changes,
                    "methods": as_json(rounded(yardsticks(config, Changes(**changes)))),
                }
                for changes in (sweeps(config) if name == first else [{}])
            ]
            for name, config in configs.items()
        },
        "multiply_adds": {
            name: multiply_adds(config, config.num_states) for name, config in configs.items()
        },
        "optimum": rounded(optimum(load_pretrained(weights / f"{first}.safetensors"))),
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
