"""The commands ``ictd pretrain`` and ``ictd evaluate``."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from ictd._json_output import check_json, to_stdout, write_json
from ictd.pretraining.checkpoint import NAME, folder_of
from ictd.pretraining.config import PretrainConfig
from ictd.pretraining.evaluate import Changes, evaluate
from ictd.pretraining.pretrained import load_pretrained
from ictd.pretraining.train import PretrainResult, pretrain

__all__ = ["evaluate_command", "pretrain_command"]


class _Flags(PretrainConfig):
    """The settings as they were typed: checked by the command, which tells faults in a line."""

    def __post_init__(self) -> None:
        pass


_Flags.__doc__ = PretrainConfig.__doc__


def pretrain_command(
    flags: Annotated[_Flags, tyro.conf.arg(name="")],
    out: Path | None = None,
    resume: Path | None = None,
) -> int:
    """Pretrain Transformers on random tasks; Ctrl+C saves and stops, --resume goes on.

    The exit code is 130 if the run was stopped before its last step.

    Args:
        flags: The settings.
        out: The directory to write checkpoint, metrics and settings to; without --resume it may
            hold no checkpoint yet. None: that of --resume, or nothing is written.
        resume: A checkpoint, or the directory of a run, to go on from. The other flags must be
            those of that run, but for --num-steps, --log-every, --checkpoint-every and --device.
    """
    first = _is_first()
    console = Console(stderr=True, quiet=not first)
    try:
        config = PretrainConfig.from_dict(flags.to_dict())
        with _Bar(config, console) as bar:
            result = pretrain(config, resume=resume, out=out, callback=bar.advance)
    except (ValueError, OSError) as error:
        return _complain(error)
    if first:
        _report(result, folder_of(resume, out))
    return 0 if result.step == config.num_steps else 130


NO_CHANGES = Changes()


def evaluate_command(
    checkpoint: Annotated[str, tyro.conf.Positional],
    changes: Annotated[Changes, tyro.conf.arg(name="")] = NO_CHANGES,
    device: str = "cpu",
    json: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None,
) -> int:
    """Measure pretrained Transformers on fresh tasks, of their kind or of another one.

    Args:
        checkpoint: A checkpoint, the directory of a run, or a name of shipped weights.
        changes: What is unlike the training.
        device: A torch device.
        json: Write the metrics to this file too; with - they go to standard output, as JSON and
            without the table.
    """
    try:
        check_json(json)
        result = load_pretrained(checkpoint, device=device)
        metrics = evaluate(result, changes, device=device)
    except (ValueError, OSError) as error:
        return _complain(error)
    found = {
        "checkpoint": checkpoint,
        "step": result.step,
        "config": result.config.to_dict(),
        "changes": dataclasses.asdict(changes),
        "metrics": metrics,
    }
    if not to_stdout(json):
        _show(metrics, f"{checkpoint}, step {result.step}")
    try:
        write_json(json, found)
    except ValueError as error:
        return _complain(error)
    return 0


class _Bar:
    """A progress bar with rate and time left; on a pipe, a line per fifth of the run at most."""

    def __init__(self, config: PretrainConfig, console: Console) -> None:
        self.config, self.console = config, console
        self.columns = Progress(
            TextColumn("pretraining"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[told]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.columns.add_task("", total=config.num_steps, rate="", told="")
        self.start: tuple[int, float] | None = None
        self.told = ""
        self.fifth = self.due = math.ceil(config.num_steps / 5)

    def __enter__(self) -> _Bar:
        self.columns.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.columns.stop()

    def advance(self, step: int, record: dict[str, Any] | None) -> None:
        now = time.perf_counter()
        self.start = (step - 1, now) if self.start is None else self.start
        taken = step - self.start[0]
        rate = f"{taken / (now - self.start[1]):.1f} steps/s" if taken > 1 else ""
        if record is not None:
            self.told = _in_short(record)
        self.columns.update(self.task, completed=step, rate=rate, told=self.told)
        if record is None or self.console.is_terminal or step < self.due:
            return
        self.due = step - step % self.fifth + self.fifth
        self.console.print(f"{step}/{self.config.num_steps} {rate} {self.told}", highlight=False)


def _in_short(record: dict[str, Any]) -> str:
    """Means over the replicas."""
    parts = []
    for name, sign in (("loss", "loss"), ("msve", "MSVE"), ("kernel_diagonality", "KDM")):
        values = [value for value in record.get(name) or [] if value is not None]
        if values:
            parts.append(f"{sign} {sum(values) / len(values):.3g}")
    return ", ".join(parts)


def _report(result: PretrainResult, folder: Path | None) -> None:
    last = {
        k: v
        for k, v in result.history[-1].items()
        if k not in ("step", "off_schedule", "conditions")
    }
    _show(last, f"step {result.step} of {result.config.num_steps}")
    if folder is not None:
        Console().print(f"saved: {folder / NAME}", markup=False, highlight=False, soft_wrap=True)


def _show(metrics: dict[str, Any], title: str) -> None:
    """A table with a column per replica, five at most."""
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, dict):
            flat |= {f"share: {key}": item for key, item in value.items()}
        elif value is not None:
            flat[name] = value
    replicas = max((len(value) for value in flat.values()), default=0)
    shown = min(replicas, 5)
    if shown < replicas:
        title += f": {shown} of {replicas} replicas, all of them with --json"
    table = Table(title=title, header_style="bold")
    table.add_column("metric")
    for replica in range(shown):
        table.add_column(f"replica {replica}", justify="right")
    for name, value in flat.items():
        table.add_row(name, *(_number(item) for item in value[:shown]))
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def _number(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_number(item) for item in value)
    return "–" if value is None else f"{value:.4g}"


def _is_first() -> bool:
    import os

    return os.environ.get("RANK", "0") == "0"


def _complain(error: Exception) -> int:
    print(f"ictd: {error}", file=sys.stderr)  # noqa: T201
    return 2
