"""What is measured of the replicas: weights, accuracy, and how near they are to softmax TD."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from ictd.certificates import stability
from ictd.convergence import kernel_diagonality
from ictd.neu import norm_of_expected_update
from ictd.pretraining.config import PretrainConfig
from ictd.pretraining.models import (
    Model,
    attention_on,
    layer_parameters,
    state_values,
    unstack_parameters,
)
from ictd.pretraining.reading import Reading, follow, read_layers
from ictd.pretraining.tasks import Tasks
from ictd.spectrum import spectral_radius
from ictd.stability_report import CONDITIONS
from ictd.transformer import InContextTD

__all__ = ["measure"]

Metrics = dict[str, Any]


@torch.no_grad()
def measure(
    config: PretrainConfig, template: Model, parameters: Mapping[str, Tensor], tasks: Tasks
) -> Metrics:
    r"""Measure every replica on its own tasks.

    Args:
        config: The settings.
        template: A model of the replicas' kind.
        parameters: Their stacked weights.
        tasks: Tasks ``[replica, task]``.

    Returns:
        Metrics by name, each with one entry per replica; NaN where weights are not finite, None
        where a metric has no meaning for this kind of model.

        - ``value_weights``: :math:`w`, ``[3]`` (linear attention: ``[2]``), or per layer.
        - ``msve``: :math:`\sum_s \mu(s)(v_\theta(s) - v_\pi(s))^2`, mean over the tasks.
        - ``attention_cosine``: of the query-key weights with those of the construction with
          :math:`A = I`.
        - ``kernel_diagonality``: mean of :math:`M(s, s)` over states, tasks and layers, with the
          chain's own :math:`\mu`; ``kernel_diagonality_uniform``: with equal weights.
        - ``step_size``: :math:`\alpha` fitted to :math:`w`.
        - ``spectral_radius``: of the error's factor per layer, mean; ``stable``: share below 1.
        - ``certified``: share of tasks that :func:`ictd.stability` certifies at ``step_size``;
          ``conditions``: shares for which each condition holds.
        - ``td_distance``: root mean square distance to softmax TD with ``step_size``, over that of
          the values.
        - ``neu``: :func:`ictd.norm_of_expected_update` on these contexts, U-statistic.
    """
    finite = torch.stack([p.isfinite().flatten(1).all(-1) for p in parameters.values()]).all(0)
    usable = {
        name: torch.where(finite.reshape(-1, *(1,) * (value.ndim - 1)), value, 0.0)
        for name, value in parameters.items()
    }
    metrics = _measure(config, template, usable, tasks)
    return _mask(metrics, finite)


def _measure(
    config: PretrainConfig, template: Model, parameters: Mapping[str, Tensor], tasks: Tasks
) -> Metrics:
    values = state_values(template, parameters, tasks)
    errors = (values - tasks.mrp.value()).square()
    metrics: Metrics = {
        "value_weights": _value_weights(template, parameters),
        "msve": (tasks.visits * errors).sum(-1).mean(-1),
        "attention_cosine": _cosine(template, parameters),
    }
    if not isinstance(template, InContextTD):
        return metrics
    layers = read_layers(template, parameters)
    steps = torch.stack([layer.step_size for layer in layers])
    metrics["step_size"] = steps[0] if template.looped else steps.mT
    metrics |= _attention(template, layers, tasks)
    metrics["td_distance"] = _td_distance(values, layers, tasks)
    if template.looped:
        metrics |= _conditions(layers[0], tasks)
    if not bool(tasks.mrp.terminal.any()):
        metrics["neu"] = _neu(config, parameters, tasks)
    return metrics


def _value_weights(template: Model, parameters: Mapping[str, Tensor]) -> Tensor | None:
    layers = layer_parameters(template, parameters)
    if isinstance(template, InContextTD):
        found = [reading.weights for reading in read_layers(template, parameters)]
    elif "value_weights" in layers[0]:
        found = [layer["value_weights"] for layer in layers]
    else:
        return None
    return found[0] if template.looped else torch.stack(found, 1)


def _cosine(template: Model, parameters: Mapping[str, Tensor]) -> Tensor:
    """Cosine of the query-key weights with those of the construction, mean over layers."""
    found = []
    d = cast(Any, template.layers[0]).feature_dim
    for layer in layer_parameters(template, parameters):
        learned = layer["attention"] if "attention" in layer else layer["query_key"]
        wanted = torch.zeros_like(learned[0])
        wanted[:d, :d] = torch.eye(d, dtype=wanted.dtype, device=wanted.device)
        if "projection" in layer:  # linear attention, full: the first d rows are (−C, C, 0)
            wanted[:d, d : 2 * d] = wanted[:d, :d]
            wanted[:d, :d] *= -1
        size = learned.flatten(1).norm(dim=-1) * wanted.norm()
        found.append((learned * wanted).flatten(1).sum(-1) / size)
    return torch.stack(found).mean(0)


def _attention(template: InContextTD, layers: list[Reading], tasks: Tasks) -> Metrics:
    """Diagonals of the attention of infinite contexts, and the spectral radius of what it does."""
    terminal = tasks.mrp.terminal
    alive = (~terminal).to(tasks.visits.dtype)
    square = alive.unsqueeze(-1) * alive.unsqueeze(-2)
    onward = square * tasks.mrp.discount[..., None, None] * tasks.mrp.transition
    identity = torch.diag_embed(alive)
    product, own, uniform = identity, [], []
    distinct = layers[:1] if template.looped else layers
    for layer in distinct:
        attention = square * attention_on(tasks.visits, tasks, layer.matrix)
        even = attention_on(alive, tasks, layer.matrix)
        counted = (tasks.visits > 0).to(alive.dtype)
        own.append((kernel_diagonality(attention) * counted).sum((-1, -2)) / counted.sum((-1, -2)))
        uniform.append((kernel_diagonality(even) * alive).sum((-1, -2)) / alive.sum((-1, -2)))
        _, target, current = (w[:, None, None, None] for w in layer.weights.unbind(-1))
        product = (identity + attention @ (current * identity + target * onward)) @ product
    radius = spectral_radius(product) ** (1 / len(distinct))
    return {
        "kernel_diagonality": torch.stack(own).mean(0),
        "kernel_diagonality_uniform": torch.stack(uniform).mean(0),
        "spectral_radius": radius.mean(-1),
        "stable": (radius < 1).to(radius.dtype).mean(-1),
    }


def _td_distance(values: Tensor, layers: list[Reading], tasks: Tasks) -> Tensor:
    """Distance of the values from those of softmax TD with the layers' scores and fitted steps."""
    expected = follow([layer.fitted() for layer in layers], tasks)[-1]
    distance: Tensor = (values - expected).flatten(1).norm(dim=-1)
    share: Tensor = distance / values.flatten(1).norm(dim=-1)
    return share


def _conditions(layer: Reading, tasks: Tasks) -> Metrics:
    forwards = layer.step_size > 0  # weights of other signs are certified at no step
    step = torch.where(forwards, layer.step_size, 1.0).unsqueeze(-1).expand(tasks.mrp.batch_shape)
    wide = layer.matrix.unsqueeze(1)
    report = stability(
        tasks.mrp, tasks.features, score=lambda q, k: q @ wide.mT @ k.mT, step_size=step
    )
    shares = report.holds.to(tasks.visits.dtype).mean(1)
    return {
        "certified": forwards * report.certified.to(shares.dtype).mean(-1),
        "conditions": dict(zip(CONDITIONS, shares.unbind(-1), strict=True)),
    }


def _neu(config: PretrainConfig, parameters: Mapping[str, Tensor], tasks: Tasks) -> Tensor:
    found = []
    for replica, model in enumerate(unstack_parameters(config, parameters)):
        assert isinstance(model, InContextTD)
        with torch.enable_grad():
            neu = norm_of_expected_update(
                model,
                tasks.mrp[replica],
                tasks.features[replica],
                tasks.context[replica],
                estimator="u",
            )
        found.append(neu.detach())
    return torch.stack(found)


def _mask(metrics: Metrics, finite: Tensor) -> Metrics:
    """NaN for the replicas whose weights are not finite."""

    def mask(value: Any) -> Any:
        if isinstance(value, dict):
            return _mask(value, finite)
        if not isinstance(value, Tensor):
            return value
        shape = (-1, *(1,) * (value.ndim - 1))
        return torch.where(finite.reshape(shape), value, torch.nan)

    return {name: mask(value) for name, value in metrics.items()}
