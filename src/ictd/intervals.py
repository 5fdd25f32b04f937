"""Error bars from the data alone: a bound that holds, and the interval that is worth showing."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ictd._batched import per_item
from ictd._checks import (
    check_all_like,
    check_discount,
    check_int,
    check_none,
    check_nonnegative,
    check_positive_int,
)
from ictd._closure import bootstrap_discounts
from ictd._linear import solvable
from ictd._markov import reachable
from ictd.finite_sample import check_confidence, resolvent
from ictd.limits import EmpiricalModel, empirical_model, solve_model
from ictd.trajectory import Trajectory

__all__ = ["componentwise_bound", "plug_in_interval"]


def componentwise_bound(
    trajectory: Trajectory,
    num_states: int,
    *,
    discount: float | Float[Tensor, "*batch"],
    reward_bound: float | Float[Tensor, "*batch"],
    confidence: float,
    num_steps: int | None = None,
    num_iterations: int = 100,
) -> Float[Tensor, "*batch state"]:
    r"""Bound the error of certainty equivalence from the data alone, with a given probability.

    From :math:`e_0 = 2 R_{\max}/(1 - \gamma)`, and as often as asked,

    .. math::
        e_{i+1} = \min\Big\{e_i,\ (I - \hat P_\gamma)^{-1} \Big[\sqrt{\tfrac{2x}{N}}
        \Big(\widehat{\mathrm{sd}}(R + \gamma \hat v(S'))
        + \gamma \sqrt{\hat P e_i^2}\Big) + \frac{3 b_i x}{N}\Big]\Big\}, \qquad
        x = \log\frac{3 m n}{\delta}

    where :math:`b_i` bounds the spread of the targets, given :math:`e_i`. With probability at least
    :math:`1 - \delta` every :math:`e_i` is at least :math:`|\hat v - v_\pi|`, in all visited states
    at once.

    Book: :prf:ref:`thm-computable-bound`.

    Args:
        trajectory: The context in state form.
        num_states: ``m``, the number of states.
        discount: :math:`\gamma \in [0, 1)`, a number or ``[*B]``: that of every transition that
            does not end in a terminal state.
        reward_bound: :math:`R_{\max} \ge |R|`, a number or ``[*B]``, in reward units.
        confidence: :math:`1 - \delta`, in (0, 1).
        num_steps: :math:`n`, how many steps were drawn, before any were trimmed off. None: as many
            as the trajectory has.
        num_iterations: How many times to improve the bound, at least 0.

    Returns:
        :math:`e`, in reward units, ``[*B, m]``; NaN at states that no transition leaves, but 0 at
        those seen as terminal.

    Raises:
        ValueError: If closure fails, a discount is another, a reward exceeds its bound, a shape or
            device does not fit, or a number is out of range.
        TypeError: If a dtype does not fit.

    Note:
        Valid and wide: without some ten thousand transitions it is often no better than
        :math:`e_0`. :func:`ictd.plug_in_interval` is what to show. That the context was drawn
        from a Markov chain, and that states ``0..m-1`` are all there are, is not checked.

    Example:
        >>> import torch, ictd
        >>> states = torch.arange(20_001) % 2
        >>> trajectory = ictd.Trajectory(
        ...     states, 1.0 - states, torch.full(states.shape, 0.5)
        ... )
        >>> ictd.componentwise_bound(
        ...     trajectory, 2, discount=0.5, reward_bound=1.0, confidence=0.9
        ... )
        tensor([0.0209, 0.0209])
    """
    check_discount("discount", discount, trajectory.batch_shape, "[*B]")
    check_nonnegative("reward_bound", reward_bound, trajectory.batch_shape, "[*B]")
    check_confidence(confidence)
    check_int("num_iterations", num_iterations, 0)
    check_all_like("rewards", trajectory.rewards, discount=discount, reward_bound=reward_bound)
    num_steps = max(len(trajectory) - 1, 1) if num_steps is None else num_steps
    check_positive_int("num_steps", num_steps)
    gamma, most = (per_item(x, trajectory.rewards, 1) for x in (discount, reward_bound))
    _check_transitions(trajectory, gamma, most)

    model, values, variance = _solve(trajectory, num_states)
    inverse = resolvent(model.transition)
    visited, known = model.counts > 0, values.isfinite()
    log_term = math.log(3 * num_states * num_steps / (1 - confidence))
    share = log_term / model.counts.clamp(min=1)
    limit = 2 * most / (1 - gamma)
    span = values.amax(-1, keepdim=True) - values.amin(-1, keepdim=True)  # NaN: a state not seen
    error = torch.where(visited, limit, 0.0)
    for _ in range(num_iterations):
        seen_span = torch.minimum(span + 2 * error.amax(-1, keepdim=True), limit)
        spread = 2 * most + gamma * torch.where(known.all(-1, keepdim=True), seen_span, limit)
        ahead = (gamma * (model.transition @ error.square().unsqueeze(-1)).squeeze(-1)).sqrt()
        width = (2 * share).sqrt() * (variance.sqrt() + ahead) + 3 * spread * share
        width = torch.where(visited, width, 0.0)
        error = torch.minimum(error, (inverse @ width.unsqueeze(-1)).squeeze(-1))
    return torch.where(known, error, torch.nan)


def _check_transitions(trajectory: Trajectory, gamma: Tensor, most: Tensor) -> None:
    """Raise ValueError unless discounts are γ where no episode ends, and rewards are bounded."""
    check_none("discount", (gamma == 1).squeeze(-1), "a number below 1", gamma.squeeze(-1))
    leaves = trajectory.is_transition
    too_large = leaves & (trajectory.rewards.abs() > most)
    check_none("reward_bound", too_large, "at least the largest reward", trajectory.rewards)
    onward = leaves
    if trajectory.is_terminal is not None:
        onward = leaves & ~F.pad(trajectory.is_terminal[..., 1:], (0, 1))
    other = onward & (
        (trajectory.discounts - gamma).abs() > max(1e-6, 4 * torch.finfo(gamma.dtype).eps)
    )
    expected = "the discount of every transition that does not end in a terminal state"
    check_none("discount", other, expected, trajectory.discounts)


def _solve(
    trajectory: Trajectory, num_states: int
) -> tuple[EmpiricalModel, Float[Tensor, "*batch state"], Float[Tensor, "*batch state"]]:
    """Return the model, certainty equivalence, and the variance of its targets at each state.

    At certainty equivalence the TD errors of a state have mean 0: their mean square is the
    variance of ``R + γ v(S')``.
    """
    model = empirical_model(trajectory, num_states)
    values = solve_model(trajectory, model)
    leaves = trajectory.is_transition
    discounts = bootstrap_discounts(trajectory._tensors())
    rewards, discounts = (torch.where(leaves, x, 0.0) for x in (trajectory.rewards, discounts))
    here = torch.where(values.isnan(), 0.0, values).gather(-1, trajectory.states)
    errors = rewards + discounts * F.pad(here[..., 1:], (0, 1)) - here
    squares = torch.where(leaves, errors, 0.0).square()
    total = torch.zeros_like(values, dtype=torch.float64)
    total = total.scatter_add(-1, trajectory.states, squares.double())
    return model, values, total.to(values.dtype) / model.counts.clamp(min=1)


def plug_in_interval(
    trajectory: Trajectory,
    num_states: int,
    *,
    confidence: float,
    simultaneous: bool = False,
) -> tuple[Float[Tensor, "*batch state"], Float[Tensor, "*batch state"]]:
    r"""Estimate the values with error bars that are right when every state was seen often.

    .. math::
        \hat v(s) \pm z\,\mathrm{se}(s), \qquad
        \mathrm{se}(s)^2 = \sum_u H(s, u)^2\,\frac{\hat\sigma^2(u)}{N(u)}, \qquad
        H = (I - \hat P_\gamma)^{-1}

    with the sample variance :math:`\hat\sigma^2(u)` of :math:`R + \gamma \hat v(S')` at :math:`u`.

    Book: :prf:ref:`prop-plug-in`.

    Args:
        trajectory: The context in state form.
        num_states: ``m``, the number of states.
        confidence: The probability that the interval of a state covers its value, in (0, 1).
        simultaneous: Whether the intervals of all visited states cover at once (Bonferroni).

    Returns:
        Values and half-widths in reward units, each ``[*B, m]``: NaN at states that no transition
        leaves, but 0 at those seen as terminal. A half-width is infinite where the value depends on
        a state seen only once.

    Raises:
        ValueError: If closure fails, or the confidence is not in (0, 1).

    Note:
        Asymptotic: for a state seen a few times it covers less often than it says. The values are
        differentiable, the half-widths where they are finite and positive.

    Example:
        >>> import torch, ictd
        >>> trajectory = ictd.Trajectory(
        ...     torch.zeros(101).long(), (torch.arange(101) % 2).float(), torch.full((101,), 0.5)
        ... )
        >>> ictd.plug_in_interval(trajectory, 1, confidence=0.95)
        (tensor([1.]), tensor([0.1970]))
    """
    check_confidence(confidence)
    model, values, variance = _solve(trajectory, num_states)
    counts = model.counts
    squares = torch.where(counts > 1, variance / (counts - 1).clamp(min=1), torch.inf)
    squares = torch.where(counts > 0, squares, 0.0).unsqueeze(-2)
    inverse = resolvent(model.transition)
    depends = reachable(model.transition > 0)
    error = torch.where(depends, inverse.square() * squares, 0.0).sum(-1).sqrt()
    number = (counts > 0).sum(-1, keepdim=True).clamp(min=1) if simultaneous else 1
    tail = counts.new_full((1,), (1 - confidence) / 2, dtype=solvable(counts.dtype)) / number
    half_width = -torch.special.ndtri(tail).to(error.dtype) * error
    return values, torch.where(values.isnan(), torch.nan, half_width)
