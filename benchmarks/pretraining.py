"""Measure how fast Transformers are pretrained: value predictions per second, on one core.

A prediction is the value of one query transition in one task; a step makes tasks × queries of them,
and counts everything: drawing the tasks, forward, backward, optimizer. With many queries to one
context a step costs hardly more than with one, so the number for one query is printed beside it.
Printed are medians over the repeats; on a CPU the time is processor time, which other programs
disturb less than a clock on the wall.
"""

# ruff: noqa: T201 (a script that talks to a person)

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from ictd.pretraining import PretrainConfig
from ictd.pretraining.models import is_lumped
from ictd.pretraining.train import Trainer

CONTENDERS: dict[str, dict[str, Any]] = {
    "softmax, structured": {},
    "softmax, full": {"parametrization": "full"},
    "softmax, full, one head": {"parametrization": "full", "num_heads": 1},
    "linear, structured": {"attention": "linear"},
    "linear, full": {"attention": "linear", "parametrization": "full"},
}


def seconds_per_step(config: PretrainConfig, steps: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of the processor and on the clock, per step; one entry per repeat."""
    trainer = Trainer(config)
    found: dict[str, list[float]] = {"processor": [], "clock": []}

    def synchronize() -> None:
        if config.device.startswith("cuda"):
            torch.cuda.synchronize()

    for repeat in range(repeats + 1):
        synchronize()
        processor, clock = time.process_time(), time.perf_counter()
        for _ in range(steps):
            trainer.advance()
        synchronize()
        if repeat:  # the first one warms up
            found["processor"].append((time.process_time() - processor) / steps)
            found["clock"].append((time.perf_counter() - clock) / steps)
    return found


def main() -> None:
    """Measure, print, and write a file if one is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=256)
    parser.add_argument("--queries", type=int, nargs="+", default=[16, 1])
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--context-length", type=int, default=30)
    parser.add_argument("--num-layers", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print(f"load of the machine, by the minute: {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    for name, options in CONTENDERS.items():
        for queries in given.queries:
            config = PretrainConfig(
                num_seeds=given.replicas,
                num_tasks=given.tasks,
                num_queries=queries,
                context_length=given.context_length,
                num_layers=given.num_layers,
                device=given.device,
                **options,
            )
            seconds = seconds_per_step(config, given.steps, given.repeats)
            kind = "processor" if given.device == "cpu" else "clock"
            predictions = given.replicas * given.tasks * queries
            median = statistics.median(seconds[kind])
            row = {
                "model": name,
                "queries": queries,
                "on_states": is_lumped(Trainer(config).template),
                "milliseconds": {k: 1e3 * statistics.median(v) for k, v in seconds.items()},
                "predictions_per_second": predictions / median,
            }
            rows.append(row)
            print(
                f"{name:24} {given.tasks} × {queries:2}: {1e3 * median:7.1f} ms a step, "
                f"{predictions / median:9,.0f} predictions/s"
            )
    if given.output:
        about = {"torch": torch.__version__, "load": os.getloadavg()[0], "given": vars(given)}
        about["given"] = {k: str(v) if isinstance(v, Path) else v for k, v in vars(given).items()}
        given.output.write_text(json.dumps(about | {"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
