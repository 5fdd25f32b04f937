"""How far certainty equivalence is from the value: bounds that hold, and intervals to show."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ictd._batched import per_item
from ictd._checks import (
    check_all_like,
    check_discount,
    check_floating,
    check_none,
    check_nonnegative,
    check_positive_int,
    check_shape,
)
from ictd._linear import check_conditioned, solvable

__all__ = ["context_bound", "target_spread"]


def target_spread(
    values: Float[Tensor, "*batch state"],
    discount: float | Float[Tensor, "*batch"],
    reward_bound: float | Float[Tensor, "*batch"] | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Bound how far apart two targets :math:`R + \gamma v(S')` of the same state can be.

    .. math::
        b = \gamma\,(\max_s v(s) - \min_s v(s)), \qquad\text{or}\qquad
        b = 2 R_{\max} + \gamma\,(\max_s v(s) - \min_s v(s))

    Book: :prf:ref:`thm-certainty-error`.

    Args:
        values: :math:`v_\pi`, ``[*B, m]``, in reward units. Where episodes end, 0 must be among
            them, as it is at the terminal states of :meth:`ictd.MarkovRewardProcess.value`.
        discount: :math:`\gamma \in [0, 1]`, a number or ``[*B]``, dimensionless.
        reward_bound: :math:`R_{\max} \ge |R|`, a number or ``[*B]``, in reward units. None: the
            reward of a state is always the same.

    Returns:
        :math:`b`, ``[*B]``, in reward units.

    Raises:
        ValueError: If a shape or device does not fit, or a number is out of range.
        TypeError: If a dtype does not fit.

    Note:
        Differentiable. Rewards :math:`R(s, s')` that depend on the successor need a
        ``reward_bound``.

    Example:
        >>> import torch, ictd
        >>> ictd.target_spread(torch.tensor([1.0, 3.0, 2.0]), 0.5, reward_bound=4.0)
        tensor(9.)
    """
    _check_states("values", values)
    batch = values.shape[:-1]
    check_discount("discount", discount, batch, "[*B]")
    noise = 0.0 if reward_bound is None else reward_bound
    check_nonnegative("reward_bound", noise, batch, "[*B]")
    check_all_like("values", values, discount=discount, reward_bound=noise)
    span = values.amax(-1) - values.amin(-1)
    return 2 * per_item(noise, values, 0) + per_item(discount, values, 0) * span


def context_bound(
    counts: Float[Tensor, "*batch state"],
    spread: float | Float[Tensor, "*batch"],
    discount: float | Float[Tensor, "*batch"],
    confidence: float,
    num_steps: int,
    *,
    transition: Float[Tensor, "*batch state next_state"] | None = None,
) -> Float[Tensor, "*batch"] | Float[Tensor, "*batch state"]:
    r"""Bound the error of certainty equivalence by the visits, with a given probability.

    .. math::
        \lVert \hat v - v_\pi \rVert_\infty \le \frac{1}{1 - \gamma} \max_s h(s), \qquad
        |\hat v - v_\pi| \le (I - \hat P_\gamma)^{-1} h, \qquad
        h(s) = b \sqrt{\frac{\log(2 m n / \delta)}{2 N(s)}}

    for all visited states at once, with probability at least :math:`1 - \delta`.

    Book: :prf:ref:`thm-certainty-error`.

    Args:
        counts: :math:`N(s)`, ``[*B, m]``, of :func:`ictd.empirical_model`.
        spread: :math:`b`, a number or ``[*B]``, in reward units, of :func:`ictd.target_spread`.
        discount: :math:`\gamma \in [0, 1)`, a number or ``[*B]``, dimensionless: the largest.
        confidence: :math:`1 - \delta`, in (0, 1).
        num_steps: :math:`n`, the number of transitions that were drawn, at least 1, before any were
            trimmed off.
        transition: :math:`\hat P_\gamma`, ``[*B, m, m]``, of :func:`ictd.empirical_model`, which
            holds the discounts. With it the bound is componentwise, and tighter.

    Returns:
        ``[*B]``, or ``[*B, m]`` with ``transition``, in reward units; NaN at states that were not
        visited.

    Raises:
        ValueError: If a shape or device does not fit, a number is out of range, no state was
            visited, or ``transition`` bootstraps from states that were not (closure).
        TypeError: If a dtype does not fit.

    Note:
        Differentiable in ``spread``, ``discount`` and ``transition``. Holds for contexts with
        closure; the spread contains the value, so it can only be computed where that is known:
        :func:`ictd.componentwise_bound` needs nothing but data.

    Example:
        >>> import torch, ictd
        >>> counts = torch.tensor([50.0, 50.0])
        >>> ictd.context_bound(counts, 1.0, 0.9, 0.9, 100)
        tensor(2.8799)
    """
    _check_states("counts", counts)
    check_nonnegative("counts", counts, counts.shape)
    batch = counts.shape[:-1]
    check_nonnegative("spread", spread, batch, "[*B]")
    check_discount("discount", discount, batch, "[*B]")
    check_confidence(confidence)
    check_positive_int("num_steps", num_steps)
    check_all_like("counts", counts, spread=spread, discount=discount, transition=transition)
    visited = counts > 0
    check_none("counts", visited.any(-1).logical_not(), "a state that was visited")
    term = math.log(2 * counts.shape[-1] * num_steps / (1 - confidence))
    width = per_item(spread, counts, 1) * (term / (2 * counts.clamp(min=1))).sqrt()
    width = torch.where(visited, width, 0.0)
    gamma = per_item(discount, counts, 0)
    if transition is None:
        check_none("discount", gamma == 1, "a number below 1", gamma)
        return width.amax(-1) / (1 - gamma)
    check_shape("transition", transition, (*counts.shape, counts.shape[-1]), "[*B, m, m]")
    used = torch.where(visited.unsqueeze(-1), transition, 0.0)
    open_ = (used.sum(-2) > 0) & ~visited
    check_none("transition", open_, "0 in the columns of states that were not visited (closure)")
    rows = used.sum(-1)
    tolerance = max(1e-6, 4 * rows.shape[-1] * torch.finfo(rows.dtype).eps)
    above = rows > per_item(discount, counts, 1) + tolerance
    check_none("transition", above, "rows that sum to at most the discount", rows)
    return torch.where(visited, (resolvent(used) @ width.unsqueeze(-1)).squeeze(-1), torch.nan)


def _check_states(name: str, value: Tensor) -> None:
    """Raise unless `value` is a floating tensor with an axis of states."""
    check_floating(name, value)
    if value.ndim < 1 or value.shape[-1] == 0:
        raise ValueError(f"{name}: expected shape [*B, m], m >= 1, got {tuple(value.shape)}")


def check_confidence(confidence: float) -> None:
    """Raise ValueError unless `confidence` is a number strictly between 0 and 1."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: expected a number in (0, 1), got {confidence}")


def resolvent(
    transition: Float[Tensor, "*batch state next_state"],
) -> Float[Tensor, "*batch state next_state"]:
    """Invert ``I - P_γ``: it turns errors of the targets into errors of the values."""
    work = solvable(transition.dtype)
    identity = torch.eye(transition.shape[-1], dtype=work, device=transition.device)
    system = identity - transition.to(work)
    check_conditioned("transition", system, "an error of the values")
    inverse: Tensor = torch.linalg.inv_ex(system)[0]
    return inverse.to(transition.dtype)
