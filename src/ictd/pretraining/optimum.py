"""The best weights of the construction's shape at finite depth and context, without training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from ictd.pretraining.checkpoint import as_json
from ictd.pretraining.config import PretrainConfig
from ictd.pretraining.evaluate import Changes, changed, check_result, checked, evaluation_tasks
from ictd.pretraining.reading import SIGNS, Reading, follow
from ictd.pretraining.tasks import Tasks
from ictd.pretraining.train import PretrainResult

__all__ = ["optimum"]

SAMPLE = 1024  # tasks on which the weights are sought
SCALES = (50.0, 20.0, 10.0, 5.0, 2.0, 1.0)  # κ of A = κI


@torch.inference_mode(False)
@torch.enable_grad()
def optimum(result: PretrainResult, changes: Changes | None = None) -> dict[str, Any]:
    r"""Seek the best w of a looped layer with :math:`A = \kappa I`, beside what was trained.

    At each of several :math:`\kappa`, and at that of the trained models:

    .. math::
        \min_w\ \mathbb E \sum_s \mu(s)\,(v - v_\pi)(s)^2, \qquad
        \min_\alpha\ \text{the same, at } w = \alpha\,(1, 1, -1), \qquad
        \mathbb E \sum_s \mu(s)\,(r + \gamma P v - v)(s)\,\nabla_w\,v(s) = 0

    Book: :prf:ref:`def-neu`.

    Args:
        result: Looped structured models with softmax attention.
        changes: How tasks and depth differ from the training; None: not at all.

    Returns:
        Under ``trained`` the mean over the models, :math:`\kappa = \operatorname{tr} A / d`; under
        ``sought``, one entry per ``scale`` :math:`\kappa`, that of ``trained`` first, with the
        points ``msve``, ``softmax-td`` and ``semi-gradient``, in the order of the formulas; and
        ``fixed-point``, where the third equation holds for :math:`\kappa` too, if
        the push changes its sign between two of the scales.
        Of each point:

        - ``scale`` and ``value_weights``;
        - ``msve``: on the tasks of :func:`ictd.pretraining.evaluate`;
        - ``update``: the norm of the left-hand side of the third equation, on the tasks that the
          points were sought on;
        - ``push``: the like for :math:`\kappa`: positive where semi-gradient TD makes it larger.

    Raises:
        ValueError: If the models are of another kind.
        TypeError: If ``result`` or ``changes`` is of another kind.

    Note:
        Sought on 1,024 tasks of the seed after that of the evaluation, the same all the way, in
        float64: a descent (L-BFGS) for the minima, Newton's method from the first of them for the
        zero. They are local solutions; where ``update`` is not small, no zero was found.

    Example:
        >>> from ictd.pretraining import Changes, PretrainConfig, optimum, pretrain
        >>> result = pretrain(PretrainConfig(num_steps=0, num_layers=1, context_length=10))
        >>> found = optimum(result, Changes(num_tasks=16))
        >>> found["sought"][1]["msve"]["msve"] < found["trained"]["msve"]
        True
    """
    check_result(result)
    config, changes = result.config, checked(changes)
    if config.attention != "softmax" or config.parametrization != "structured" or not config.looped:
        raise ValueError(
            "result: expected looped structured models with softmax attention, got "
            f"{config.parametrization} {config.attention} ones, looped = {config.looped}"
        )
    config = changed(config, changes)
    config = dataclasses.replace(config, dtype="float64")
    tasks = evaluation_tasks(config)
    config = dataclasses.replace(config, seed=config.seed + 1, num_evaluation_tasks=SAMPLE)
    sample = evaluation_tasks(config)

    def told(point: Tensor) -> dict[str, Any]:
        update = _update(point, config, sample)
        return {
            "scale": point[0],
            "value_weights": point[1:],
            "msve": _msve(point, config, tasks),
            "update": update[1:].norm(),
            "push": update[0],
        }

    trained = _trained(result)
    signs = trained.new_tensor(SIGNS)
    entries: list[dict[str, Any]] = []
    for scale in (trained[:1], *(trained.new_tensor([number]) for number in SCALES)):

        def at(weights: Tensor, scale: Tensor = scale) -> Tensor:
            return torch.cat([scale, weights])

        step = _descend(lambda a: _msve(at(a * signs), config, sample), signs[:1])
        best = _descend(lambda w: _msve(at(w), config, sample), step * signs)
        still = _zero(lambda w: _update(at(w), config, sample)[1:], best)
        points = {"msve": best, "softmax-td": step * signs, "semi-gradient": still}
        entries.append({"scale": scale[0]} | {name: told(at(w)) for name, w in points.items()})
    found: dict[str, Any] = {"trained": told(trained), "sought": entries}
    starts = [entry["semi-gradient"] for entry in entries[1:]]  # the largest scale first
    grows = [start for start in starts if start["push"] > 0]
    if grows and grows[0] is not starts[0]:  # else training makes it larger without end
        start = torch.cat([grows[0]["scale"].reshape(1), grows[0]["value_weights"]])
        found["fixed-point"] = told(_zero(lambda p: _update(p, config, sample), start))
    as_numbers: dict[str, Any] = as_json(found)
    return as_numbers


def _values(point: Tensor, config: PretrainConfig, tasks: Tasks) -> Tensor:
    identity = torch.eye(config.feature_dim, dtype=point.dtype)
    layer = Reading((point[0] * identity).unsqueeze(0), point[1:].unsqueeze(0))
    return follow([layer] * config.num_layers, tasks)[-1]


def _msve(point: Tensor, config: PretrainConfig, tasks: Tasks) -> Tensor:
    errors = (_values(point, config, tasks) - tasks.mrp.value()).square()
    return (tasks.visits * errors).sum(-1).mean()


def _update(point: Tensor, config: PretrainConfig, tasks: Tasks) -> Tensor:
    """The expected semi-gradient update of the four numbers; differentiable."""
    point = point if point.requires_grad else point.detach().requires_grad_()
    values = _values(point, config, tasks)
    weights = tasks.visits * (tasks.mrp.bellman(values) - values) / values[..., 0].numel()
    (update,) = torch.autograd.grad(values, point, weights, create_graph=True)
    return update


def _trained(result: PretrainResult) -> Tensor:
    layers = [dict(model.layers[0].named_parameters()) for model in result.models]
    rows = [
        torch.cat([layer["attention"].diagonal().mean().reshape(1), layer["value_weights"]])
        for layer in layers
    ]
    return torch.stack(rows).mean(0).detach().cpu().double()


def _descend(error: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    point = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [point], max_iter=100, tolerance_grad=1e-8, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        optimizer.zero_grad()
        found = error(point)
        torch.autograd.backward(found)
        return float(found.detach())

    cast(Any, optimizer).step(closure)  # untyped
    return point.detach()


def _zero(update: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Newton's method, each step halved until the update becomes shorter."""
    point = start.clone()
    for _ in range(30):
        point.requires_grad_()
        found = update(point)
        slope = torch.stack(
            [torch.autograd.grad(entry, point, retain_graph=True)[0] for entry in found]
        )
        point, here = point.detach(), found.detach()
        step, share = torch.linalg.pinv(slope) @ here, 1.0  # one layer reads rewards alone
        while share > 1e-3 and not update(point - share * step).norm() < here.norm():
            share /= 2
        if share <= 1e-3 or here.norm() < 1e-12:
            break
        point = point - share * step
    return point
