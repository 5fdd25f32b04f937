"""What the experiments of the book measured, as it comes with the package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ictd.pretraining.config import PretrainConfig

__all__ = ["Experiment", "experiment_names", "load_experiment"]

FOLDER = Path(str(files("ictd"))) / "data" / "emergence"
Metrics = dict[str, Any]  # tensors [replica, …], and one dict of such: the conditions


@dataclass(frozen=True)
class Experiment:
    """Hold what one experiment measured.

    Args:
        name: Its name.
        config: The settings of the training.
        command: What made the file.
        versions: Of the package, of torch, of Python, and the platform.
        steps: Of the records of the training, ``[record]``.
        history: Metrics by name, ``[record, replica, …]``, as :func:`ictd.pretraining.pretrain`
            records them; NaN where there is no number.
        conditions: Shares of the tasks for which each condition of :func:`ictd.stability` holds
            after the last step, ``[replica]``.
        evaluations: Pairs of what is unlike the training, fields of
            :class:`ictd.pretraining.Changes`, and metrics ``[replica, …]``.
        layers: What :meth:`ictd.pretraining.LayerValues.summary` says of the models,
            ``[replica, L + 1]``.
    """

    name: str
    config: PretrainConfig
    command: str
    versions: dict[str, str]
    steps: Tensor
    history: dict[str, Tensor]
    conditions: dict[str, Tensor]
    evaluations: tuple[tuple[dict[str, Any], Metrics], ...]
    layers: dict[str, Tensor]

    def evaluation(self, **changes: Any) -> Metrics:
        """Look up the metrics on tasks, or at a depth, unlike those of the training.

        Args:
            **changes: What is unlike, as in :class:`ictd.pretraining.Changes`; nothing: fresh
                tasks of the same kind. What is as in the training may be said or not.

        Returns:
            Metrics ``[replica, …]`` by name, and ``conditions``, a dict of such.

        Raises:
            KeyError: If this was not evaluated.
        """
        wanted = {k: v for k, v in changes.items() if getattr(self.config, k, None) != v}
        for found, metrics in self.evaluations:
            if found == wanted:
                return metrics
        known = [found for found, _ in self.evaluations]
        raise KeyError(f"changes: expected one of {known}, got {wanted}")


def experiment_names(folder: str | Path | None = None) -> list[str]:
    """List the experiments that come with the package.

    Args:
        folder: Where to look; None: in the package.

    Returns:
        Names for :func:`load_experiment`.

    Example:
        >>> from ictd.pretraining import experiment_names
        >>> "boyan-structured" in experiment_names()
        True
    """
    paths = sorted((FOLDER if folder is None else Path(folder)).glob("*.json"))
    return [path.stem for path in paths if _is_experiment(path)]


def load_experiment(name: str, *, folder: str | Path | None = None) -> Experiment:
    """Load what an experiment measured.

    Args:
        name: One of :func:`experiment_names`.
        folder: Where to look, a folder that ``tools/experiments.py --data`` wrote; None: in the
            package.

    Returns:
        The record, in float64 on the CPU.

    Raises:
        FileNotFoundError: If there is no such experiment.

    Note:
        Numbers have four significant digits.

    Example:
        >>> from ictd.pretraining import load_experiment
        >>> found = load_experiment("boyan-structured")
        >>> found.config.num_seeds, found.history["value_weights"][-1].mean(0).sign().tolist()
        (20, [1.0, 1.0, -1.0])
    """
    path = (FOLDER if folder is None else Path(folder)) / f"{name}.json"
    if not path.is_file() or not _is_experiment(path):
        known = ", ".join(experiment_names(folder))
        raise FileNotFoundError(f"{name}: expected one of [{known}], got no such experiment")
    saved = json.loads(path.read_text(encoding="utf-8"))
    records = saved["history"]
    config = PretrainConfig.from_dict(saved["config"])
    names = [key for key in records[-1] if key not in ("step", "off_schedule", "conditions")]
    columns = {key: [record.get(key) for record in records] for key in names}
    return Experiment(
        name=saved["name"],
        config=config,
        command=saved["command"],
        versions=saved["versions"],
        steps=torch.tensor([record["step"] for record in records]),
        history={key: _tensor(column) for key, column in columns.items() if column[-1] is not None},
        conditions=_metrics(records[-1].get("conditions") or {}),
        evaluations=tuple((e["changes"], _metrics(e["metrics"])) for e in saved["evaluations"]),
        layers=_metrics(saved.get("layers", {})),
    )


def _is_experiment(path: Path) -> bool:
    """Whether the file begins as that of an experiment: others lie there, too."""
    with path.open(encoding="utf-8") as file:
        return file.read(8) == '{"name":'


def _metrics(found: Mapping[str, Any]) -> Metrics:
    return {
        key: _metrics(value) if isinstance(value, dict) else _tensor(value)
        for key, value in found.items()
        if value is not None
    }


def _tensor(nested: list[Any]) -> Tensor:
    """A tensor of nested lists, NaN where they hold None in the place of a number or a list."""
    shape = _shape(nested)
    return torch.tensor(_fill(nested, shape), dtype=torch.float64).reshape(shape)


def _shape(nested: Any) -> tuple[int, ...]:
    if not isinstance(nested, list):
        return ()
    inner = max((_shape(item) for item in nested), key=len, default=())
    return (len(nested), *inner)


def _fill(nested: Any, shape: tuple[int, ...]) -> Any:
    if not shape:
        return float("nan") if nested is None else nested
    items = nested if isinstance(nested, list) else [None] * shape[0]
    return [_fill(item, shape[1:]) for item in items]
