"""Value weights that do not depend on the coordinates in which a layer keeps its memory."""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from ictd.layers import Layer
from ictd.transformer import InContextTD

__all__ = ["effective_weights"]


def effective_weights(model: InContextTD) -> Float[Tensor, "layer 3"]:
    r"""Read off each layer what two such layers make of a reward.

    .. math::
        \omega_R = e_{d+2}^\top V_{cur} e_d, \quad
        \omega_{v'} = e_{d+2}^\top V_{cur} V_{tgt} e_d / \omega_R, \quad
        \omega_v = e_{d+2}^\top V_{cur} V_{cur} e_d / \omega_R

    straight, by way of the successor, and by way of the state itself. For the construction they are
    :math:`\alpha (1, 1, -1)`, and they stay so in all coordinates of the memory that leave the
    values alone; the row of :math:`V_{cur}` that writes values does not.

    Book: :prf:ref:`prop-gauge`.

    Args:
        model: The Transformer. Of structured layers these are the value weights themselves; with
            one head the shift puts :math:`e_{d+1} \omega_R` in the place of
            :math:`V_{tgt} e_d`, and row :math:`d + 1` of :math:`V_{cur}`, which it overwrites,
            counts as zero.

    Returns:
        Dimensionless, ``[1, 3]`` if the layers are looped, ``[L, 3]`` if not.

    Raises:
        TypeError: If the model is no :class:`ictd.InContextTD`.

    Note:
        Differentiable. Infinite or NaN where :math:`\omega_R = 0`. Each layer is read by itself:
        untied layers may keep their memory in ways that this does not see.

    Example:
        >>> import torch, ictd
        >>> from ictd.pretraining import effective_weights
        >>> options = {"parametrization": "full", "num_heads": 2}
        >>> model = ictd.InContextTD.from_construction(torch.eye(2), 5, 0.5, **options)
        >>> effective_weights(model).detach()
        tensor([[ 0.5000,  0.5000, -0.5000]])
    """
    if not isinstance(model, InContextTD):
        raise TypeError(f"model: expected an ictd.InContextTD, got {type(model).__name__}")
    return torch.stack([_of_layer(cast(Layer, layer)) for layer in model.layers])


def _of_layer(layer: Layer) -> Tensor:
    if layer.parametrization == "structured":
        return layer.value_weights
    V, d = layer.value_current, layer.feature_dim
    by_reward, values = V[:, d], V[-1]
    straight = values[d]
    own = values @ by_reward
    if layer.has_target_head:
        onward = values @ layer.value_target[:, d]
    else:  # the shift overwrites the target row
        onward, own = values[-2] * straight, own - values[-2] * by_reward[-2]
    return torch.stack([straight, onward / straight, own / straight])
