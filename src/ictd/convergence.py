"""How fast softmax TD converges in depth, as far as the diagonal of the attention says."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ictd._batched import per_item
from ictd._checks import (
    check_all_like,
    check_bool,
    check_discount,
    check_int,
    check_like,
    check_nonnegative,
    check_probabilities,
    check_shape,
    check_square,
)

__all__ = [
    "contraction_factor",
    "depth_bound",
    "drift_matrix",
    "iteration_matrix",
    "kernel_diagonality",
]


def kernel_diagonality(
    attention: Float[Tensor, "*batch state state"],
) -> Float[Tensor, "*batch state"]:
    r"""Read off how much each state attends to itself, :math:`M(s, s)`.

    Book: :prf:ref:`def-diagonality`.

    Args:
        attention: :math:`M`, ``[*B, m, m]``.

    Returns:
        ``[*B, m]``, dimensionless; 0 at states that nobody attends to.

    Raises:
        ValueError: If the matrices are not square.

    Example:
        >>> import torch, ictd
        >>> ictd.kernel_diagonality(torch.tensor([[0.75, 0.25], [0.5, 0.5]]))
        tensor([0.7500, 0.5000])
    """
    check_square("attention", attention)
    return attention.diagonal(dim1=-2, dim2=-1)


def drift_matrix(
    attention: Float[Tensor, "*batch state state"],
    transition: Float[Tensor, "*batch state next_state"],
    discount: float | Float[Tensor, "*batch"],
) -> Float[Tensor, "*batch state state"]:
    r"""Multiply out :math:`M(I - \gamma P)`: minus the mean change of the error per unit of step.

    Book: :prf:ref:`thm-depth`.

    Args:
        attention: :math:`M`, ``[*B, m, m]``.
        transition: :math:`P`, ``[*B, m, m]``; of a context the :math:`\hat P_\gamma` of
            :func:`ictd.empirical_model`, with ``discount=1.0``, since it holds the discounts.
        discount: :math:`\gamma \in [0, 1]`, a number or ``[*B]``, dimensionless.

    Returns:
        ``[*B, m, m]``, dimensionless.

    Raises:
        ValueError: If a shape or device does not fit, or a discount is not in [0, 1].
        TypeError: If a dtype does not fit.

    Note:
        Differentiable.

    Example:
        >>> import torch, ictd
        >>> swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> ictd.drift_matrix(torch.eye(2), swap, 0.5)
        tensor([[ 1.0000, -0.5000],
                [-0.5000,  1.0000]])
    """
    check_square("attention", attention)
    check_shape("transition", transition, attention.shape, "[*B, m, m]")
    check_discount("discount", discount, attention.shape[:-2], "[*B]")
    check_all_like("attention", attention, transition=transition, discount=discount)
    return attention - attention @ (per_item(discount, attention, 2) * transition)


def iteration_matrix(
    attention: Float[Tensor, "*batch state state"],
    transition: Float[Tensor, "*batch state next_state"],
    discount: float | Float[Tensor, "*batch"],
    step_size: float | Float[Tensor, "*batch"],
) -> Float[Tensor, "*batch state state"]:
    r"""Build the matrix that one layer multiplies the error by, :math:`I - \alpha M(I - \gamma P)`.

    Book: :prf:ref:`thm-depth`.

    Args:
        attention: :math:`M`, ``[*B, m, m]``.
        transition: :math:`P` or :math:`\hat P_\gamma`, as in :func:`ictd.drift_matrix`.
        discount: :math:`\gamma \in [0, 1]`, a number or ``[*B]``; 1 with :math:`\hat P_\gamma`.
        step_size: :math:`\alpha \ge 0`, a number or ``[*B]``, dimensionless.

    Returns:
        ``[*B, m, m]``, dimensionless.

    Raises:
        ValueError: If a shape or device does not fit, or a number is out of range.
        TypeError: If a dtype does not fit.

    Note:
        Differentiable.

    Example:
        >>> import torch, ictd
        >>> swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> ictd.iteration_matrix(torch.eye(2), swap, 0.5, 0.5)
        tensor([[0.5000, 0.2500],
                [0.2500, 0.5000]])
    """
    drift = drift_matrix(attention, transition, discount)
    check_nonnegative("step_size", step_size, drift.shape[:-2], "[*B]")
    check_all_like("attention", attention, step_size=step_size)
    identity = torch.eye(drift.shape[-1], dtype=drift.dtype, device=drift.device)
    return identity - per_item(step_size, drift, 2) * drift


def contraction_factor(
    attention: Float[Tensor, "*batch state state"],
    discount: float | Float[Tensor, "*batch"],
    step_size: float | Float[Tensor, "*batch"],
    *,
    visited: Bool[Tensor, "*batch state"] | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Bound how much of the largest error a layer leaves, from the diagonal of the attention.

    .. math::
        \lVert I - \alpha M(I - \gamma P) \rVert_\infty \le
        \max\{1 - \alpha(2 m_0 - 1 - \gamma),\ \alpha(1 + \gamma) - 1\}, \qquad
        m_0 = \min_s M(s, s)

    for every stochastic :math:`P`. It is below 1 if :math:`m_0 > (1 + \gamma)/2` and
    :math:`0 < \alpha < 2/(1 + \gamma)`.

    Book: :prf:ref:`thm-depth`.

    Args:
        attention: :math:`M`, ``[*B, m, m]``; rows sum to 1.
        discount: :math:`\gamma \in [0, 1]`, a number or ``[*B]``: the largest discount, of a
            context too.
        step_size: :math:`\alpha \ge 0`, a number or ``[*B]``, dimensionless.
        visited: ``[*B, m]`` of bool: the states that the bound is about, those that transitions
            leave. None: all of them.

    Returns:
        ``[*B]``, dimensionless. At 1 or more nothing is certified.

    Raises:
        ValueError: If a shape or device does not fit, a number is out of range, or the row of a
            visited state does not sum to 1.
        TypeError: If a dtype does not fit.

    Note:
        Differentiable. Cost O(m²), all of it for the checks.

    Example:
        >>> import torch, ictd
        >>> attention = torch.tensor([[0.875, 0.125], [0.125, 0.875]])
        >>> ictd.contraction_factor(attention, 0.5, 1.0)  # 1 - (1.75 - 1.5)
        tensor(0.7500)
    """
    check_square("attention", attention)
    batch, num_states = attention.shape[:-2], attention.shape[-1]
    diagonal, rows = kernel_diagonality(attention), attention
    if visited is not None:
        check_bool("visited", visited)
        check_shape("visited", visited, diagonal.shape, "[*B, m]")
        check_like("attention", attention, "visited", visited)
        identity = torch.eye(num_states, dtype=attention.dtype, device=attention.device)
        rows = torch.where(visited.unsqueeze(-1), attention, identity)
        diagonal = torch.where(visited, diagonal, 1.0)
    check_probabilities("attention", rows)
    check_discount("discount", discount, batch, "[*B]")
    check_nonnegative("step_size", step_size, batch, "[*B]")
    check_all_like("attention", attention, discount=discount, step_size=step_size)
    gamma, step = per_item(discount, attention, 0), per_item(step_size, attention, 0)
    below = 1 - step * (2 * diagonal.amin(-1) - 1 - gamma)
    return torch.maximum(below, step * (1 + gamma) - 1)


def depth_bound(
    attention: Float[Tensor, "*batch state state"],
    discount: float | Float[Tensor, "*batch"],
    step_size: float | Float[Tensor, "*batch"],
    num_layers: int,
    initial_error: float | Float[Tensor, "*batch"],
    *,
    visited: Bool[Tensor, "*batch state"] | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Bound the error after so many layers: :func:`ictd.contraction_factor` once per layer.

    .. math:: \lVert v_L - v_\pi \rVert_\infty \le \rho^L\,\lVert v_0 - v_\pi \rVert_\infty

    Book: :prf:ref:`thm-depth`.

    Args:
        attention: :math:`M`, ``[*B, m, m]``; rows sum to 1.
        discount: :math:`\gamma \in [0, 1]`, a number or ``[*B]``, dimensionless.
        step_size: :math:`\alpha \ge 0`, a number or ``[*B]``, dimensionless.
        num_layers: :math:`L`, at least 0.
        initial_error: :math:`\lVert v_0 - v_\pi \rVert_\infty \ge 0`, a number or ``[*B]``, in
            reward units; in a context the distance from certainty equivalence.
        visited: As in :func:`ictd.contraction_factor`.

    Returns:
        ``[*B]``, in reward units. It grows with the depth where the factor is above 1.

    Raises:
        ValueError: If a shape or device does not fit, or a number is out of range.
        TypeError: If a dtype does not fit.

    Note:
        Differentiable.

    Example:
        >>> import torch, ictd
        >>> attention = torch.tensor([[0.875, 0.125], [0.125, 0.875]])
        >>> ictd.depth_bound(attention, 0.5, 1.0, 2, 16.0)
        tensor(9.)
    """
    check_int("num_layers", num_layers, 0)
    factor = contraction_factor(attention, discount, step_size, visited=visited)
    check_nonnegative("initial_error", initial_error, factor.shape, "[*B]")
    check_all_like("attention", attention, initial_error=initial_error)
    return factor**num_layers * per_item(initial_error, factor, 0)
