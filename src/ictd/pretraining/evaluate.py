"""Metrics of pretrained models on fresh tasks, like those of the training or unlike them."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from ictd.pretraining.checkpoint import as_json
from ictd.pretraining.config import Family, PretrainConfig, check_kind
from ictd.pretraining.distributed import find_device
from ictd.pretraining.metrics import measure
from ictd.pretraining.models import Model, stack_parameters, unstack_parameters
from ictd.pretraining.tasks import Tasks, draw_tasks
from ictd.pretraining.train import PretrainResult

__all__ = ["Changes", "evaluate"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Changes:
    """Say what the tasks of an evaluation have that those of the training had not.

    Args:
        seed: Of the tasks; every seed but those of the training gives tasks that are new.
        num_tasks: How many tasks, each a reward process of its own.
        context_length: Transitions of a context; None: as in the training.
        num_layers: Depth of a looped model; None: as in the training.
        num_states: States of a process; None: as in the training.
        discount: None: as in the training.
        family: Kind of process; None: as in the training.
    """

    seed: int = 1_000_000
    num_tasks: int = 256
    context_length: int | None = None
    num_layers: int | None = None
    num_states: int | None = None
    discount: float | None = None
    family: Family | None = None


def evaluate(
    result: PretrainResult, changes: Changes | None = None, *, device: torch.device | str = "cpu"
) -> dict[str, Any]:
    r"""Measure every model on fresh tasks, the same for all of them.

    Args:
        result: What was trained, or loaded.
        changes: How the tasks, or the depth, differ from the training; None: not at all.
        device: Where to compute; the models must be there.

    Returns:
        The metrics of the training by name, one entry per model, as JSON can hold them. None where
        a number is not finite.

    Raises:
        ValueError: If a number is out of range, untied models are to run at another depth, or
            torch does not find the device.
        TypeError: If ``result`` or ``changes`` is of another kind.

    Example:
        >>> from ictd.pretraining import PretrainConfig, evaluate, pretrain
        >>> result = pretrain(PretrainConfig(num_steps=0, num_layers=2))
        >>> evaluate(result)["msve"] == evaluate(result)["msve"]
        True
    """
    metrics: dict[str, Any] = as_json(measure(*prepared(result, changes, device)))
    return metrics


def prepared(
    result: PretrainResult, changes: Changes | None, device: torch.device | str
) -> tuple[PretrainConfig, Model, dict[str, nn.Parameter], Tasks]:
    """The settings, a template of the models, their stacked weights, and the tasks."""
    check_result(result)
    changes = checked(changes)
    if changes.num_layers not in (None, result.config.num_layers) and not result.config.looped:
        raise ValueError(
            f"num_layers: expected {result.config.num_layers}, as the layers are not looped, "
            f"got {changes.num_layers}"
        )
    config = changed(result.config, changes)
    parameters = stack_parameters(result.models)
    template = unstack_parameters(config, parameters)[0]
    tasks = evaluation_tasks(config, len(result.models), device)
    return config, template, parameters, tasks


def evaluation_tasks(
    config: PretrainConfig, replicas: int = 1, device: torch.device | str = "cpu"
) -> Tasks:
    """The tasks of an evaluation, once for each replica; the config is that of :func:`changed`."""
    return draw_tasks(
        config,
        [config.seed] * replicas,
        0,
        stream="evaluation",
        num_tasks=config.num_evaluation_tasks,
        device=find_device(device),
    )


def check_result(result: object) -> None:
    """Raise TypeError unless this is what a training returned."""
    check_kind("result", result, PretrainResult, "pretrain or load_pretrained returns one")


def checked(changes: Changes | None) -> Changes:
    """The changes, none for None; raises TypeError where they are something else."""
    if changes is None:
        return Changes()
    check_kind("changes", changes, Changes, "make one with Changes(...)")
    return changes


def changed(config: PretrainConfig, changes: Changes) -> PretrainConfig:
    """The config of the training with what has changed."""
    own = ("context_length", "num_layers", "num_states", "discount", "family")
    given = {name: getattr(changes, name) for name in own if getattr(changes, name) is not None}
    given["num_evaluation_tasks"] = changes.num_tasks
    return dataclasses.replace(config, seed=changes.seed, **given)
