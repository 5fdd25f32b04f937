"""What the layers of a pretrained Transformer compute, beside what an algorithm would."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ictd.pretraining.checkpoint import as_json
from ictd.pretraining.evaluate import Changes, prepared
from ictd.pretraining.models import state_values
from ictd.pretraining.reading import follow, read_layers
from ictd.pretraining.train import PretrainResult
from ictd.transformer import InContextTD

__all__ = ["LayerValues", "layer_values"]


class LayerValues(NamedTuple):
    r"""Hold the values of every state after every layer, and what they are compared with.

    Args:
        learned: Of the models, in reward units; the first row is 0.
        as_read: Of structured layers with the :math:`A` and :math:`w` that are read off the
            weights: for structured models the same numbers. None for linear attention.
        softmax_td: Of weighted softmax TD with that :math:`A`, and as step size the
            :math:`\alpha` whose :math:`\alpha\,(1, 1, -1)` is nearest to :math:`w`. None likewise.
        value: The true ones, :math:`v_\pi`.
        visits: The stationary distribution :math:`\mu`, 0 at terminal states.

    Example:
        >>> import torch
        >>> from ictd.pretraining import LayerValues
        >>> v = torch.tensor([[[[0.0, 0.0]]], [[[1.0, 3.0]]]])
        >>> found = LayerValues(v, None, v / 2, v[-1], torch.full((1, 1, 2), 0.5))
        >>> found.summary()["msve"], found.summary()["distance"]
        ([[5.0, 0.0]], [[0.0, 0.5]])
    """

    learned: Float[Tensor, "layer replica task state"]
    as_read: Float[Tensor, "layer replica task state"] | None
    softmax_td: Float[Tensor, "layer replica task state"] | None
    value: Float[Tensor, "replica task state"]
    visits: Float[Tensor, "replica task state"]

    def summary(self) -> dict[str, Any]:
        r"""Average over states and tasks.

        Returns:
            One list per model, with one number per layer and one for the values before the first.

            - ``msve``, ``msve_as_read``, ``msve_softmax_td``:
              :math:`\sum_s \mu(s)(v_l(s) - v_\pi(s))^2`, mean over the tasks.
            - ``distance_as_read``, ``distance``: of the learned values from those of softmax TD:
              root mean square over states and tasks, over that of the learned values of the last
              layer.

            None where there is nothing to compare with, or a number is not finite.
        """
        size = self.learned[-1].flatten(1).norm(dim=-1)

        def errors(values: Tensor | None) -> Tensor | None:
            if values is None:
                return None
            return (self.visits * (values - self.value).square()).sum(-1).mean(-1).mT

        def distance(values: Tensor | None) -> Tensor | None:
            if values is None:
                return None
            found: Tensor = (self.learned - values).flatten(2).norm(dim=-1) / size
            return found.mT

        found: dict[str, Any] = as_json(
            {
                "msve": errors(self.learned),
                "msve_as_read": errors(self.as_read),
                "msve_softmax_td": errors(self.softmax_td),
                "distance_as_read": distance(self.as_read),
                "distance": distance(self.softmax_td),
            }
        )
        return found


@torch.no_grad()
def layer_values(
    result: PretrainResult, changes: Changes | None = None, *, device: torch.device | str = "cpu"
) -> LayerValues:
    r"""Follow the values through the layers, beside those of softmax TD with the learned weights.

    .. math:: v_{l+1} = v_l + \alpha\,\hat M\,(\hat r + \hat P_\gamma v_l - v_l), \qquad
        \alpha = \tfrac13\,(w_R + w_{v'} - w_v)

    Book: :prf:ref:`def-softmax-td`, :prf:ref:`prop-lumped`.

    Args:
        result: What was trained, or loaded.
        changes: How tasks and depth differ from the training; None: not at all.
        device: Where to compute; the models must be there.

    Returns:
        Values ``[L + 1, replica, task, m]`` on the tasks of :func:`ictd.pretraining.evaluate`; the
        tasks are the same for all replicas.

    Raises:
        ValueError, TypeError: As :func:`ictd.pretraining.evaluate`.

    Note:
        No gradient is kept. Full layers may use entries of their matrices that no :math:`A` and
        :math:`w` hold: ``as_read`` says how much that matters.

    Example:
        >>> from ictd.pretraining import PretrainConfig, layer_values, pretrain
        >>> result = pretrain(PretrainConfig(num_steps=0, num_layers=2))
        >>> layer_values(result).learned.shape
        torch.Size([3, 1, 256, 10])
    """
    _, template, parameters, tasks = prepared(result, changes, device)
    learned = state_values(template, parameters, tasks, return_history=True)
    value, visits = tasks.mrp.value(), tasks.visits
    if not isinstance(template, InContextTD):
        return LayerValues(learned, None, None, value, visits)
    layers = read_layers(template, parameters)
    as_read, softmax_td = follow(layers, tasks), follow([one.fitted() for one in layers], tasks)
    return LayerValues(learned, as_read, softmax_td, value, visits)
