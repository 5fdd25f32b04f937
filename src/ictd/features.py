r"""Feature tables: row s holds the features :math:`\varphi(s)` of state s.

Random numbers are drawn in float64 on the device of the generator, then cast and moved: one seed
gives the same features in every dtype and on every device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ictd._checks import check_positive_int

__all__ = [
    "aggregation_features",
    "one_hot_features",
    "radial_features",
    "unit_sphere_features",
]


def one_hot_features(
    num_states: int,
    *,
    batch_shape: Sequence[int] = (),
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*batch state feature"]:
    r"""Give every state a feature of its own: :math:`\varphi(s) = e_s`.

    With them the linear algorithms are the tabular ones.

    Args:
        num_states: :math:`m \ge 1`; the number of features is :math:`d = m`.
        batch_shape: ``*B``, equal tables.
        device: Where the result lives; None: torch's default.
        dtype: Its floating-point dtype; None: torch's default.

    Returns:
        ``[*B, m, m]``.

    Raises:
        ValueError: If ``num_states`` is below 1.
        TypeError: If ``num_states`` is no integer.

    Note:
        Costs O(m²) memory per table.

    Example:
        >>> import ictd
        >>> ictd.one_hot_features(2)
        tensor([[1., 0.],
                [0., 1.]])
    """
    check_positive_int("num_states", num_states)
    return _batch(torch.eye(num_states, device=device, dtype=dtype), batch_shape)


def unit_sphere_features(
    num_states: int,
    feature_dim: int,
    *,
    generator: torch.Generator,
    batch_shape: Sequence[int] = (),
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*batch state feature"]:
    r"""Draw features uniformly from the unit sphere: :math:`\varphi(s) = x / \lVert x \rVert`.

    :math:`x \sim \mathcal N(0, I_d)`, independent over states.

    Args:
        num_states: :math:`m \ge 1`.
        feature_dim: :math:`d \ge 1`.
        generator: The source of randomness.
        batch_shape: ``*B``, independent tables.
        device: Where the result lives; None: torch's default.
        dtype: Its floating-point dtype; None: torch's default.

    Returns:
        ``[*B, m, d]``, rows of Euclidean norm 1 to the dtype's accuracy.

    Raises:
        ValueError: If a size is below 1.
        TypeError: If a size is no integer.

    Note:
        Two states may come arbitrarily close to each other.

    Example:
        >>> import torch, ictd
        >>> features = ictd.unit_sphere_features(3, 4, generator=torch.Generator().manual_seed(0))
        >>> features.square().sum(-1).round(decimals=3)
        tensor([1., 1., 1.])
    """
    check_positive_int("num_states", num_states)
    check_positive_int("feature_dim", feature_dim)
    shape = (*batch_shape, num_states, feature_dim)
    draw = torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float64)
    unit = draw / draw.square().sum(-1, keepdim=True).sqrt()
    device = torch.get_default_device() if device is None else device
    return unit.to(device, torch.get_default_dtype() if dtype is None else dtype)


def aggregation_features(
    num_states: int,
    num_groups: int,
    *,
    batch_shape: Sequence[int] = (),
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*batch state feature"]:
    r"""Aggregate neighbours: :math:`\varphi(s) = e_{g(s)}`, :math:`g(s) = \lfloor sd/m \rfloor`.

    States of one group cannot be told apart; the groups differ in size by one state at most.

    Args:
        num_states: :math:`m \ge 1`.
        num_groups: :math:`d`, in 1..m.
        batch_shape: ``*B``, equal tables.
        device: Where the result lives; None: torch's default.
        dtype: Its floating-point dtype; None: torch's default.

    Returns:
        ``[*B, m, d]``, one 1 in each row.

    Raises:
        ValueError: If a size is below 1, or there are more groups than states.
        TypeError: If a size is no integer.

    Note:
        With d = m these are one-hot features.

    Example:
        >>> import ictd
        >>> ictd.aggregation_features(3, 2)
        tensor([[1., 0.],
                [1., 0.],
                [0., 1.]])
    """
    check_positive_int("num_states", num_states)
    check_positive_int("num_groups", num_groups)
    if num_groups > num_states:
        raise ValueError(
            f"num_groups: expected at most num_states = {num_states}, got {num_groups}"
        )
    table = torch.eye(num_groups, device=device, dtype=dtype)
    group = torch.arange(num_states, device=device) * num_groups // num_states
    return _batch(table[group], batch_shape)


def radial_features(
    num_states: int,
    feature_dim: int,
    *,
    bandwidth: float | None = None,
    batch_shape: Sequence[int] = (),
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*batch state feature"]:
    r"""Put bumps on the line of states: :math:`\varphi_i(s) = \exp(-(s - c_i)^2 / (2h^2))`.

    The centres :math:`c_i` lie evenly from state 0 to state :math:`m - 1`; one alone lies in the
    middle.

    Args:
        num_states: :math:`m \ge 1`.
        feature_dim: :math:`d \ge 1`, the number of bumps.
        bandwidth: :math:`h > 0`, measured in states. None: the distance between two centres,
            :math:`(m - 1)/(d - 1)`, or 1 where there is none.
        batch_shape: ``*B``, equal tables.
        device: Where the result lives; None: torch's default.
        dtype: Its floating-point dtype; None: torch's default.

    Returns:
        ``[*B, m, d]``, entries in [0, 1].

    Raises:
        ValueError: If a size is below 1 or the bandwidth not a positive finite number.
        TypeError: If a size is no integer.

    Note:
        Rows are not normalised. A narrow bump far away rounds to 0.

    Example:
        >>> import ictd
        >>> ictd.radial_features(3, 2, bandwidth=2.0)
        tensor([[1.0000, 0.6065],
                [0.8825, 0.8825],
                [0.6065, 1.0000]])
    """
    check_positive_int("num_states", num_states)
    check_positive_int("feature_dim", feature_dim)
    length = num_states - 1
    if bandwidth is None:
        bandwidth = length / (feature_dim - 1) if length and feature_dim > 1 else 1.0
    if not 0 < bandwidth < float("inf"):
        raise ValueError(f"bandwidth: expected a finite number > 0, got {bandwidth}")
    first, last = (0.0, float(length)) if feature_dim > 1 else (length / 2, length / 2)
    state = torch.arange(num_states, device=device, dtype=torch.float64)
    centre = torch.linspace(first, last, feature_dim, device=device, dtype=torch.float64)
    table = (-(((state.unsqueeze(-1) - centre) / bandwidth) ** 2) / 2).exp()
    return _batch(table.to(torch.get_default_dtype() if dtype is None else dtype), batch_shape)


def _batch(table: Tensor, batch_shape: Sequence[int]) -> Float[Tensor, "*batch state feature"]:
    """Repeat a table along new batch axes, each with memory of its own."""
    return table.expand(*batch_shape, *table.shape).contiguous()
