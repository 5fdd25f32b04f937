"""The Transformer on an infinite context: tokens that say the same are one token with a weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ictd._checks import check_none, values_checkable
from ictd.attention import masked_softmax
from ictd.transformer import InContextTD


class Record(NamedTuple):
    """What a structured layer sees of a context, infinite or not; no batch axes."""

    visits: Tensor  # share or number of transitions that leave a state, [m]
    reward: Tensor  # mean, [m]
    onward: Tensor  # transitions, with the discounts inside, [m, m]


@dataclass(frozen=True)
class Task:
    """What an infinite context of one process holds; no batch axes (``torch.vmap`` adds them)."""

    features: Tensor  # [m, d]
    visits: Tensor  # the stationary distribution, [m]
    reward: Tensor  # of every pair of a state and its successor, [m, m]
    transition: Tensor  # [m, m]
    discount: Tensor  # []

    def record(self) -> Record:
        """What infinitely many transitions say."""
        mean = (self.transition * self.reward).sum(-1)
        return Record(self.visits, mean, self.discount * self.transition)

    def expected_td_errors(self, values: Tensor) -> Tensor:
        """Of every state, ``[m]``: the mean over the successor."""
        following = self.reward + self.discount * values - values.unsqueeze(-1)
        return (self.transition * following).sum(-1)


def answers(
    model: InContextTD, parameters: Mapping[str, Tensor], task: Task, record: Record | None = None
) -> Tensor:
    """The value that the model gives to a query of each state, ``[m]``.

    The context is infinite or, for structured layers only, what a record says.
    """
    layers = [0 if model.looped else index for index in range(model.num_layers)]
    names = ("attention", "value_weights", "query_key", "value_current", "value_target")
    weights = [
        {name: parameters[key] for name in names if (key := f"layers.{layer}.{name}") in parameters}
        for layer in layers
    ]
    if is_structured(model):
        return _on_states(weights, task.features, record or task.record())
    return _on_pairs(weights, task)


def is_structured(model: InContextTD) -> bool:
    """Whether the layers have a matrix of attention and three value weights."""
    return model.layers[0].parametrization == "structured"


def _on_states(layers: list[dict[str, Tensor]], features: Tensor, record: Record) -> Tensor:
    """The lumped recursion: one token a state, as the structured layer sees nothing else."""
    logits, counts = _log(record.visits), (record.visits > 0).unsqueeze(0)
    values = torch.zeros_like(record.reward)
    for layer in layers:
        scores = features @ layer["attention"].mT @ features.mT
        read = torch.stack([record.reward, record.onward @ values, values])
        weights = masked_softmax(scores + logits, counts)
        values = values + weights @ (layer["value_weights"] @ read)
    return values


def _on_pairs(layers: list[dict[str, Tensor]], task: Task) -> Tensor:
    """One token a transition ``(s, s')`` and one a query; the shift averages over what follows.

    In a column the full layer sees the state, the reward and, by the target memory, the successor.
    What lies further ahead enters the shifted column only, and where :func:`check_first_order`
    holds only linearly, in the values and in their first derivatives: there its mean is exact.
    """
    m, d = task.features.shape
    logits = _log(task.visits.unsqueeze(-1) * task.transition).flatten()
    here = task.features.unsqueeze(1).expand(m, m, d)
    pairs = F.pad(torch.cat([here, task.reward.unsqueeze(-1)], -1), (0, 2))
    queries = F.pad(task.features, (0, 3))

    def ahead(columns: Tensor) -> Tensor:
        """From pairs ``[m, m, …]`` to the discounted mean of what follows them, ``[1, m, …]``."""
        return task.discount * (task.transition.unsqueeze(-1) * columns).sum(1).unsqueeze(0)

    for layer in layers:
        keys = pairs.flatten(0, 1)
        tokens = torch.cat([keys, queries])
        scores = tokens @ layer["query_key"].mT @ keys.mT
        pooled = (scores + logits).softmax(-1) @ keys
        written = pooled @ layer["value_current"].mT
        pairs = pairs + written[: m * m].reshape(m, m, d + 3)
        queries = queries + written[m * m :]
        if "value_target" in layer:
            seen = pooled[: m * m].reshape(m, m, d + 3)
            pairs = pairs + ahead(seen @ layer["value_target"].mT)
        else:
            target = ahead(pairs[..., -1:]).expand(m, m, 1)
            pairs = torch.cat([pairs[..., :-2], target, pairs[..., -1:]], -1)
    return queries[:, -1]


def check_first_order(model: InContextTD) -> None:
    """Raise unless scores read features only and heads write their own memory row only.

    At such weights of the full parametrisation :func:`_on_pairs` is exact to first order.
    """
    if is_structured(model):
        return
    d = model.layers[0].feature_dim
    expected = "0 outside of the features' block (an infinite context is exact only there)"
    for name, parameter in model.named_parameters():
        if not values_checkable(parameter):
            return
        stray = parameter != 0
        kind = name.rpartition(".")[2]
        row = {"value_current": -1, "value_target": -2}.get(kind)
        stray[:d, :d] &= kind != "query_key"
        if row is not None:
            expected = f"0 outside of row {row} (an infinite context is exact only there)"
            stray[row] = False
        check_none(name, stray, expected, parameter)


def _log(weights: Tensor) -> Tensor:
    """The logarithm; −inf at 0, with gradient 0."""
    positive = weights > 0
    return torch.where(positive, torch.where(positive, weights, 1.0).log(), -torch.inf)
