"""The layers: two heads that share their attention, or one head and a temporal shift."""

from __future__ import annotations

from typing import Literal, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ictd._checks import (
    check_bool,
    check_floating,
    check_like,
    check_positive_int,
    check_shape,
)
from ictd.attention import attend
from ictd.td import shift, temporal_shift

__all__ = ["DualHeadLayer", "SingleHeadLayer", "TemporalShift"]

Parametrization = Literal["structured", "full"]


class TemporalShift(nn.Module):
    r"""Write the discounted successor value into the target memory: no parameters.

    .. math:: Z_{d+1,\cdot} \leftarrow Z_{d+2,\cdot}\, \Pi \Gamma

    Note:
        ``shift(Z [*B, d + 3, N], discounts [*B, N], is_transition [*B, N])`` returns a new ``Z``.
        See :func:`ictd.temporal_shift` for the formula entry by entry.

    Example:
        >>> import torch, ictd
        >>> Z = torch.tensor([[1.0, 1.0], [3.0, 0.0], [0.0, 0.0], [1.0, 2.0]])
        >>> ictd.TemporalShift()(Z, torch.full((2,), 0.5), torch.tensor([True, False]))[2]
        tensor([1., 0.])
    """

    def forward(
        self,
        Z: Float[Tensor, "*batch row token"],
        discounts: Float[Tensor, "*batch token"],
        is_transition: Bool[Tensor, "*batch token"],
    ) -> Float[Tensor, "*batch row token"]:
        """Return ``Z`` with its row ``d + 1`` replaced."""
        return write_target(Z, discounts, is_transition)


def write_target(Z: Tensor, discounts: Tensor, is_transition: Tensor) -> Tensor:
    """The formula of :class:`TemporalShift`."""
    current = Z[..., -1, :]
    target = temporal_shift(current, discounts, is_transition)
    return torch.cat([Z[..., :-2, :], torch.stack([target, current], -2)], -2)


class Layer(nn.Module):
    """Parameters and attention of both layers."""

    has_target_head: bool
    attention: Float[Tensor, "feature feature"]
    value_weights: Float[Tensor, "3"]
    query_key: Float[Tensor, "row row"]
    value_current: Float[Tensor, "row row"]
    value_target: Float[Tensor, "row row"]

    def __init__(
        self,
        feature_dim: int,
        *,
        parametrization: Parametrization = "structured",
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("feature_dim", feature_dim)
        if parametrization not in ("structured", "full"):
            raise ValueError(
                f"parametrization: expected 'structured' or 'full', got {parametrization!r}"
            )
        self.feature_dim = feature_dim
        self.parametrization = parametrization
        rows = feature_dim + 3
        shapes: dict[str, tuple[int, ...]]
        if parametrization == "structured":
            shapes = {"attention": (feature_dim, feature_dim), "value_weights": (3,)}
        else:
            names = ["query_key", "value_current", *["value_target"] * self.has_target_head]
            shapes = dict.fromkeys(names, (rows, rows))
        for name, shape in shapes.items():
            source = device if generator is None else generator.device
            initial = 0.1 * torch.randn(shape, generator=generator, device=source, dtype=dtype)
            target = torch.get_default_device() if device is None else device
            self.register_parameter(name, nn.Parameter(initial.to(target)))

    @torch.no_grad()
    def construct(self, matrix: Float[Tensor, "feature feature"], step_size: float) -> Self:
        """Set the weights that run softmax TD with this matrix and step; returns the layer."""
        check_shape("matrix", matrix, (self.feature_dim, self.feature_dim), "[d, d]")
        if isinstance(step_size, Tensor):
            check_shape("step_size", step_size, (), "[]")
        signs = torch.tensor([1.0, 1.0, -1.0], dtype=matrix.dtype, device=matrix.device)
        weights = step_size * signs
        if self.parametrization == "structured":
            self.attention.copy_(matrix)
            self.value_weights.copy_(weights)
            return self
        for name, parameter in self.named_parameters():
            parameter.zero_()
            if name == "query_key":
                parameter[: self.feature_dim, : self.feature_dim] = matrix
            else:
                row = self.feature_dim + (1 if name == "value_target" else 2)
                parameter[row, self.feature_dim :] = weights.to(parameter.device)
        return self

    def _updates(
        self,
        Z: Float[Tensor, "*batch row token"],
        is_transition: Bool[Tensor, "*batch token"],
        is_terminal: Bool[Tensor, "*batch token"] | None,
        num_keys: int | None,
    ) -> Tensor:
        r"""What the heads read: :math:`ZH`, or :math:`\bar w^\top ZH` alone where that is enough.

        ``[*B, rows or 1, N]``; columns of terminal tokens are 0.
        """
        d = self.feature_dim
        check_floating("Z", Z)
        check_shape("Z", Z, (*Z.shape[:-2], d + 3, Z.shape[-1]), "[*B, d + 3, N]")
        check_bool("is_transition", is_transition)
        check_shape("is_transition", is_transition, (*Z.shape[:-2], Z.shape[-1]), "[*B, N]")
        for name, parameter in self.named_parameters():
            check_like(f"parameter {name}", parameter, "Z", Z)
        num_keys = Z.shape[-1] if num_keys is None else num_keys
        is_key = is_transition[..., :num_keys]
        if self.parametrization == "structured":
            tokens = Z[..., :d, :].mT
            query = tokens @ self.attention.mT
            memory = torch.where(is_transition.unsqueeze(-2), Z[..., d:, :], 0.0)
            value = torch.einsum("i,...in->...n", self.value_weights, memory).unsqueeze(-1)
        else:
            tokens = Z.mT
            query, value = tokens @ self.query_key.mT, tokens
        pooled = attend(query, tokens[..., :num_keys, :], value[..., :num_keys, :], is_key).mT
        if is_terminal is None:
            return pooled
        check_bool("is_terminal", is_terminal)
        check_shape("is_terminal", is_terminal, is_transition.shape, "[*B, N]")
        return torch.where(is_terminal.unsqueeze(-2), 0.0, pooled)


class DualHeadLayer(Layer):
    r"""Run one step of softmax TD with two heads that share their attention.

    .. math:: Z_{l+1} = Z_l + V_{cur} Z_l H + V_{tgt} Z_l H\, \Pi \Gamma

    :math:`H` is the softmax over the keys of :math:`X = Z^\top Q Z`, :math:`\Pi` shifts every
    column to its predecessor and :math:`\Gamma` holds the discounts, 0 where no transition leaves.

    Book: :prf:ref:`thm-equivalence`.

    Args:
        feature_dim: ``d``, the number of features.
        parametrization: "structured": :math:`Q = \mathrm{diag}(A, 0)` and both heads write
            :math:`\bar w^\top Z H`; parameters ``attention`` (:math:`A`, ``[d, d]``) and
            ``value_weights`` (:math:`w` for reward, target, current; the step size is in them).
            "full": parameters ``query_key``, ``value_current``, ``value_target``, each
            ``[d + 3, d + 3]``.
        generator: Source of the initial weights; torch's global one if None.
        device: Of the parameters.
        dtype: Of the parameters.

    Raises:
        ValueError: If ``feature_dim`` is not positive or the parametrization is unknown.

    Note:
        ``layer(Z, discounts, is_transition, is_terminal=None)`` takes and returns
        ``Z [*B, d + 3, N]``. Columns without a transition are never attended to; terminal columns
        receive no update. ``num_keys=`` says that keys lie among the first so many columns.

    Example:
        >>> import torch, ictd
        >>> layer = ictd.DualHeadLayer(1).construct(torch.ones(1, 1), 1.0)
        >>> Z = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
        >>> with torch.no_grad():
        ...     layer(Z, torch.tensor([0.5, 0.0]), torch.tensor([True, False]))
        tensor([[1.0000, 1.0000],
                [1.0000, 0.0000],
                [0.5000, 0.0000],
                [1.0000, 1.0000]])
    """

    has_target_head = True

    def forward(
        self,
        Z: Float[Tensor, "*batch row token"],
        discounts: Float[Tensor, "*batch token"],
        is_transition: Bool[Tensor, "*batch token"],
        is_terminal: Bool[Tensor, "*batch token"] | None = None,
        *,
        num_keys: int | None = None,
    ) -> Float[Tensor, "*batch row token"]:
        """Return the next prompt matrix."""
        pooled = self._updates(Z, is_transition, is_terminal, num_keys)
        check_shape("discounts", discounts, is_transition.shape, "[*B, N]")
        check_like("Z", Z, "discounts", discounts)
        gamma = torch.where(is_transition, discounts, 0.0).unsqueeze(-2)
        if self.parametrization == "full":
            return Z + self.value_current @ pooled + shift(self.value_target @ pooled, gamma)
        memory = Z[..., -2:, :] + torch.cat([shift(pooled, gamma), pooled], -2)
        return torch.cat([Z[..., :-2, :], memory], -2)


class SingleHeadLayer(Layer):
    r"""Run one step of softmax TD with one head and the parameter-free temporal shift.

    .. math:: Z_{l+1} = \mathrm{Shift}(Z_l + V_{cur} Z_l H)

    where the shift overwrites the target memory by the discounted current memory of the successor.
    Equal to :class:`ictd.DualHeadLayer` with tied heads when the memory is consistent.

    Args:
        feature_dim: ``d``, the number of features.
        parametrization: "structured": parameters ``attention`` and ``value_weights``; "full":
            ``query_key`` and ``value_current``, each ``[d + 3, d + 3]``.
        generator: Source of the initial weights; torch's global one if None.
        device: Of the parameters.
        dtype: Of the parameters.

    Raises:
        ValueError: If ``feature_dim`` is not positive or the parametrization is unknown.

    Note:
        Called as :class:`ictd.DualHeadLayer` is.

    Example:
        >>> import torch, ictd
        >>> layer = ictd.SingleHeadLayer(1).construct(torch.ones(1, 1), 1.0)
        >>> sum(parameter.numel() for parameter in layer.parameters())
        4
    """

    has_target_head = False

    def forward(
        self,
        Z: Float[Tensor, "*batch row token"],
        discounts: Float[Tensor, "*batch token"],
        is_transition: Bool[Tensor, "*batch token"],
        is_terminal: Bool[Tensor, "*batch token"] | None = None,
        *,
        num_keys: int | None = None,
    ) -> Float[Tensor, "*batch row token"]:
        """Return the next prompt matrix."""
        pooled = self._updates(Z, is_transition, is_terminal, num_keys)
        if self.parametrization == "full":
            moved = Z + self.value_current @ pooled
        else:
            moved = torch.cat([Z[..., :-1, :], Z[..., -1:, :] + pooled], -2)
        return write_target(moved, discounts, is_transition)
