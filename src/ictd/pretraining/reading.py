"""What the weights of a softmax Transformer say, read as those of the construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ictd.pretraining.models import attention_on, is_lumped, layer_parameters, reads
from ictd.pretraining.tasks import Tasks
from ictd.transformer import InContextTD

__all__ = ["Reading", "follow", "read_layers"]

SIGNS = (1.0, 1.0, -1.0)


class Reading(NamedTuple):
    """Hold a layer's weights as the construction has them."""

    matrix: Tensor  # A, [replica, d, d]
    weights: Tensor  # w of the current memory, [replica, 3]

    @property
    def step_size(self) -> Tensor:
        """The multiple of (1, 1, -1) that is nearest to w, ``[replica]``."""
        return self.weights @ self.weights.new_tensor(SIGNS) / 3

    def fitted(self) -> Reading:
        """The same with that multiple as the weights: softmax TD."""
        weights = self.step_size.unsqueeze(-1) * self.weights.new_tensor(SIGNS)
        return Reading(self.matrix, weights)


def read_layers(template: InContextTD, parameters: Mapping[str, Tensor]) -> list[Reading]:
    """Read A and w off each layer; of the full parametrisation, off the entries that have them."""
    layers = layer_parameters(template, parameters)
    if is_lumped(template):
        return [Reading(layer["attention"], layer["value_weights"]) for layer in layers]
    d = cast(Any, template.layers[0]).feature_dim
    return [
        Reading(layer["query_key"][:, :d, :d], layer["value_current"][:, -1, d:])
        for layer in layers
    ]


def follow(layers: Sequence[Reading], tasks: Tasks) -> Tensor:
    r"""Run structured layers with these weights, ``[L + 1, replica, task, m]``.

    .. math:: v_{l+1} = v_l + \hat M_l\,(w_R \hat r + w_{v'} \hat P_\gamma v_l + w_v v_l)
    """
    history = [torch.zeros_like(tasks.record.reward)]
    matrix, attention = None, history[0]
    for layer in layers:
        if layer.matrix is not matrix:  # of a loop all layers attend alike
            matrix = layer.matrix
            attention = attention_on(tasks.record.counts, tasks, matrix)
            attention = attention.masked_fill(tasks.mrp.terminal.unsqueeze(-1), 0.0)
        read = reads(tasks.record, history[-1])
        weighed = (read * layer.weights[:, None, :, None]).sum(-2)
        history.append(history[-1] + (attention @ weighed.unsqueeze(-1)).squeeze(-1))
    return torch.stack(history)
