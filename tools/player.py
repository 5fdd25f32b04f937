"""Pretrain the few Transformers that the explorer of emergence plays back, and write its data.

Two runs of three seeds. The first is the start of three of the twenty runs of the experiment
`boyan-structured`; the second begins with weights ten times as large. Every fifty steps the weights
are kept, with a few metrics, and beside them one task that no run was trained on, whose attention
and values the explorer computes from the weights. Three minutes on one core:

    python tools/player.py

writes `src/ictd/data/emergence/player.json`; nothing in it is edited by hand.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch

from experiments import rounded
from ictd.pretraining import PretrainConfig
from ictd.pretraining.checkpoint import versions
from ictd.pretraining.tasks import draw_tasks
from ictd.pretraining.train import Trainer

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "src" / "ictd" / "data" / "emergence" / "player.json"
COMMON: dict[str, Any] = {"seed": 2, "num_seeds": 3, "num_steps": 3_000, "log_every": 50}
RUNS: dict[str, dict[str, Any]] = {"small start": {}, "large start": {"initial_scale": 1.0}}
METRICS = ("kernel_diagonality", "kernel_diagonality_uniform", "spectral_radius", "msve")
# Of the task that is shown; nothing is trained with it. The context of this one leaves every state,
# tells the values well, and they differ enough to be seen.
TASK = 1_000_024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, help="fewer steps, to try")
    parser.add_argument("--out", type=Path, default=TARGET)
    given = parser.parse_args()
    changes = COMMON | ({} if given.steps is None else {"num_steps": given.steps})
    configs = {name: PretrainConfig(**(changes | own)) for name, own in RUNS.items()}
    data = {
        "versions": versions(),
        "command": "python tools/player.py"
        + ("" if given.steps is None else f" --steps {given.steps}"),
        "task": task(next(iter(configs.values()))),
        "runs": {name: rounded(train(name, config)) for name, config in configs.items()},
    }
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    given.out.write_text(text + "\n", encoding="utf-8")
    return 0


def train(name: str, config: PretrainConfig) -> dict[str, Any]:
    """Train one run, and give its weights and metrics: lists by seed, then by record."""
    run = Trainer(config)
    kept = [run.parameters["layers.0.attention"].tolist()]

    def keep(step: int, record: dict[str, Any] | None) -> None:
        if record is not None:
            kept.append(run.parameters["layers.0.attention"].tolist())
            if step % 500 == 0:
                print(f"{name}: step {step} of {config.num_steps}", flush=True)

    run.go(keep)
    records = [
        {"attention": matrices, **{key: record[key] for key in ("value_weights", *METRICS)}}
        for matrices, record in zip(kept, run.history, strict=True)
    ]
    return {
        "config": config.to_dict(),
        "steps": [record["step"] for record in run.history],
        "seeds": {
            str(seed): {key: [r[key][replica] for r in records] for key in records[0]}
            for replica, seed in enumerate(run.seeds)
        },
    }


def task(config: PretrainConfig) -> dict[str, Any]:
    """Draw the task that is shown; its context by token, and as a structured layer sees it."""
    exact = dataclasses.replace(config, dtype="float64")
    drawn = draw_tasks(exact, [TASK], 0, stream="evaluation", num_tasks=1)
    fields = {
        "states": drawn.context.states,
        "rewards": drawn.context.rewards,
        "discounts": drawn.context.discounts,
        "features": drawn.features,
        "counts": drawn.record.counts,
        "reward": drawn.record.reward,
        "transition": drawn.record.transition,
        "visits": drawn.visits,
        "true_values": drawn.mrp.value(),
    }
    return {"seed": TASK} | {name: tensor[0, 0].tolist() for name, tensor in fields.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
