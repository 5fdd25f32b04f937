"""Softmax TD on states instead of tokens, and what it makes of states that were never left."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ictd._batched import per_item
from ictd._checks import (
    check_all_like,
    check_bool,
    check_discount,
    check_finite,
    check_int,
    check_like,
    check_nonnegative,
    check_shape,
    check_square,
)
from ictd._linear import check_conditioned, solvable

__all__ = ["kernel_interpolant", "lumped_td"]


def lumped_td(
    attention: Float[Tensor, "*batch state state"],
    reward: Float[Tensor, "*batch state"],
    transition: Float[Tensor, "*batch state next_state"],
    discount: float | Float[Tensor, "*batch"],
    *,
    num_steps: int,
    step_size: float | Float[Tensor, "*batch"],
    initial_values: Float[Tensor, "*batch state"] | None = None,
    return_history: bool = False,
) -> Float[Tensor, "*batch state"] | Float[Tensor, "step *batch state"]:
    r"""Run softmax TD on states: the numbers of :func:`ictd.softmax_td`, at O(m²) a step.

    .. math:: v_{t+1} = v_t + \alpha M\,(r + \gamma P v_t - v_t)

    Book: :prf:ref:`prop-lumped`.

    Args:
        attention: :math:`M`, ``[*B, m, m]``.
        reward: :math:`r(s)`, ``[*B, m]``, in reward units.
        transition: :math:`P`, ``[*B, m, m]``; of a context the :math:`\hat P_\gamma` of
            :func:`ictd.empirical_model`, with ``discount=1.0``, since it holds the discounts.
        discount: :math:`\gamma \in [0, 1]`, a number or ``[*B]``, dimensionless.
        num_steps: Number of steps, at least 0.
        step_size: :math:`\alpha \ge 0`, a number or ``[*B]``, dimensionless.
        initial_values: :math:`v_0`, ``[*B, m]``; 0 if None.
        return_history: Whether to return the values after every step.

    Returns:
        Values in reward units, ``[*B, m]``, or ``[num_steps + 1, *B, m]``; the first row is
        :math:`v_0`.

    Raises:
        ValueError: If a shape or device does not fit, or a number is out of range.
        TypeError: If a dtype does not fit.

    Note:
        Differentiable. Convergence is not checked. ``reward`` must be finite at every state.

    Example:
        >>> import torch, ictd
        >>> one = torch.ones(1, 1)
        >>> ictd.lumped_td(one, torch.ones(1), one, 0.5, num_steps=3, step_size=1.0)
        tensor([1.7500])
    """
    check_square("attention", attention)
    check_shape("transition", transition, attention.shape, "[*B, m, m]")
    check_int("num_steps", num_steps, 0)
    batch = attention.shape[:-2]
    values = torch.zeros_like(attention).sum(-1) if initial_values is None else initial_values
    check_shape("initial_values", values, attention.shape[:-1], "[*B, m]")
    check_shape("reward", reward, attention.shape[:-1], "[*B, m]")
    check_discount("discount", discount, batch, "[*B]")
    check_nonnegative("step_size", step_size, batch, "[*B]")
    check_all_like(
        "attention",
        attention,
        reward=reward,
        transition=transition,
        initial_values=values,
        discount=discount,
        step_size=step_size,
    )
    onward = per_item(discount, attention, 2) * transition
    step = per_item(step_size, attention, 1)
    history = [values]
    for _ in range(num_steps):
        errors = reward + (onward @ values.unsqueeze(-1)).squeeze(-1) - values
        values = values + step * (attention @ errors.unsqueeze(-1)).squeeze(-1)
        if return_history:
            history.append(values)
    return torch.stack(history) if return_history else values


def kernel_interpolant(
    attention: Float[Tensor, "*batch state state"],
    values: Float[Tensor, "*batch state"],
    visited: Bool[Tensor, "*batch state"],
    initial_values: Float[Tensor, "*batch state"] | None = None,
) -> Float[Tensor, "*batch state"]:
    r"""Extend values of the visited states :math:`V` to all: the limit in depth at the others.

    .. math:: v_\infty(q) = v_0(q) + M(q, V)\,M_{VV}^{-1}\,(\hat v - v_0)(V)

    Book: :prf:ref:`thm-fixed-point`.

    Args:
        attention: :math:`M`, ``[*B, m, m]``; columns outside :math:`V` are not read.
        values: :math:`\hat v`, ``[*B, m]``, in reward units; not read outside :math:`V`.
        visited: :math:`V`, ``[*B, m]`` of bool: the states that transitions leave.
        initial_values: :math:`v_0`, ``[*B, m]``; 0 if None.

    Returns:
        ``[*B, m]``: ``values`` at visited states, the interpolant elsewhere.

    Raises:
        ValueError: If a shape or device does not fit, or :math:`M_{VV}` is singular to the accuracy
            of the dtype.
        TypeError: If a dtype does not fit.

    Note:
        Differentiable. An extrapolation: it says how the attention generalises, not what the value
        is. Half precision is solved in float32.

    Example:
        >>> import torch, ictd
        >>> attention = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
        >>> visited = torch.tensor([True, True, False])
        >>> ictd.kernel_interpolant(attention, torch.tensor([2.0, 4.0, torch.nan]), visited)
        tensor([2., 4., 3.])
    """
    check_square("attention", attention)
    start = torch.zeros_like(attention).sum(-1) if initial_values is None else initial_values
    check_bool("visited", visited)
    given = {"values": values, "visited": visited, "initial_values": start}
    for name, value in given.items():
        check_shape(name, value, attention.shape[:-1], "[*B, m]")
        check_like("attention", attention, name, value)
    known = torch.where(visited, values, 0.0)
    check_finite("values", known)
    work = solvable(attention.dtype)
    seen = torch.where(visited.unsqueeze(-2), attention, 0.0).to(work)
    identity = torch.eye(attention.shape[-1], dtype=work, device=attention.device)
    system = torch.where(visited.unsqueeze(-1), seen, identity)
    check_conditioned("attention", system, "coefficients of the visited states")
    difference = torch.where(visited, known - start, 0.0).to(work)
    coefficients = torch.linalg.solve_ex(system, difference.unsqueeze(-1))[0]
    extended = start + (seen @ coefficients).squeeze(-1).to(start.dtype)
    return torch.where(visited, known, extended)
