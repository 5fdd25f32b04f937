"""Where the iterations end: LSTD, certainty equivalence, the fixed point of softmax TD."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ictd._checks import check_none, check_positive_int, values_checkable
from ictd._closure import bootstrap_discounts, visits
from ictd._linear import check_conditioned, solvable
from ictd._markov import reachable
from ictd._sources import same_sources
from ictd.attention import Score, key_weights
from ictd.prompt import Prompt
from ictd.td import shift
from ictd.trajectory import Trajectory

__all__ = ["EmpiricalModel", "certainty_equivalence", "empirical_model", "fixed_point", "lstd"]


def lstd(prompt: Prompt) -> Float[Tensor, "*batch feature"]:
    r"""Solve for the fixed point of linear TD on the context (least-squares TD).

    .. math::
        w = \Big(\sum_k \varphi(S_{k-1})
            (\varphi(S_{k-1}) - \gamma_k \varphi(S_k))^\top\Big)^{-1}
            \sum_k \varphi(S_{k-1}) R_k

    Args:
        prompt: The context.

    Returns:
        Weights ``[*B, d]``; the value of a state is :math:`\varphi(s)^\top w`.

    Raises:
        ValueError: If the matrix is singular: features that the transitions do not span, or a
            bootstrapped state that is no source.

    Note:
        Differentiable.

    Example:
        >>> import torch, ictd
        >>> prompt = ictd.Prompt(
        ...     torch.ones(2, 1), torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.0]),
        ...     torch.tensor([True, False]),
        ... )
        >>> ictd.lstd(prompt)
        tensor([2.])
    """
    source = torch.where(prompt.is_transition.unsqueeze(-1), prompt.features, 0.0)
    matrix = (source.mT @ (source - _discounted_successors(prompt))).to(solvable(prompt.dtype))
    target = (source.mT @ prompt.rewards.unsqueeze(-1)).squeeze(-1)
    # in units in which every feature has length 1, so that the rank does not depend on theirs
    length = source.square().sum(-2).sqrt()
    length = torch.where(length > 0, length, 1.0).to(solvable(prompt.dtype))
    matrix = matrix / (length.unsqueeze(-1) * length.unsqueeze(-2))
    if values_checkable(matrix):
        rank = torch.linalg.matrix_rank(matrix)
        expected = (
            f"LSTD to have a matrix of full rank {prompt.feature_dim} (features that the "
            "transitions span; .trim() the context), rank"
        )
        check_none("prompt", rank < prompt.feature_dim, expected, rank)
    weights: Tensor = torch.linalg.solve(matrix, target / length) / length
    return weights.to(prompt.dtype)


class EmpiricalModel(NamedTuple):
    r"""Hold what a context says about a process; see :func:`ictd.empirical_model`.

    Args:
        counts: :math:`N(s)`, ``[*B, m]``: how many transitions leave each state.
        reward: :math:`\hat r(s)`, ``[*B, m]``, in reward units; 0 where no transition leaves.
        transition: :math:`\hat P_\gamma(s, u)`, ``[*B, m, m]``, discounts inside; 0 likewise.

    Example:
        >>> import torch, ictd
        >>> ictd.EmpiricalModel(torch.ones(1), torch.ones(1), torch.zeros(1, 1)).counts
        tensor([1.])
    """

    counts: Float[Tensor, "*batch state"]
    reward: Float[Tensor, "*batch state"]
    transition: Float[Tensor, "*batch state next_state"]


def empirical_model(trajectory: Trajectory, num_states: int) -> EmpiricalModel:
    r"""Count what was seen: visits, mean rewards, and where the transitions went.

    .. math::
        \hat r(s) = \frac{1}{N(s)} \sum_{k:\,S_{k-1}=s} R_k, \qquad
        \hat P_\gamma(s, u) = \frac{1}{N(s)} \sum_{k:\,S_{k-1}=s,\,S_k=u} \gamma_k

    Book: :prf:ref:`def-closure`.

    Args:
        trajectory: The context in state form.
        num_states: ``m``, the number of states.

    Returns:
        ``counts [*B, m]``, ``reward [*B, m]`` and ``transition [*B, m, m]``, in the trajectory's
        dtype, on its device. Rows of states that no transition leaves are 0.

    Raises:
        ValueError: If a state has no place among ``num_states``.

    Note:
        Differentiable in the rewards and discounts. Cost O(N + m²). The discount is inside
        ``transition``, so its rows sum to at most the largest discount, not to 1.

    Example:
        >>> import torch, ictd
        >>> trajectory = ictd.Trajectory(
        ...     torch.tensor([0, 0, 1]), torch.tensor([1.0, 3.0, 0.0]), torch.full((3,), 0.5)
        ... )
        >>> model = ictd.empirical_model(trajectory, 2)
        >>> model.counts, model.reward, model.transition[0]
        (tensor([2., 0.]), tensor([2., 0.]), tensor([0.2500, 0.2500]))
    """
    check_positive_int("num_states", num_states)
    states, leaves = trajectory.states, trajectory.is_transition
    check_none("trajectory", states >= num_states, f"states < {num_states}", states)
    discounts = bootstrap_discounts(trajectory._tensors())
    pairs = states * num_states + F.pad(states[..., 1:], (0, 1))
    counts = visits(states, leaves, num_states)
    per_visit = 1 / counts.clamp(min=1).double()  # sums of many small numbers
    reward = per_visit.new_zeros(counts.shape)
    reward = reward.scatter_add(-1, states, torch.where(leaves, trajectory.rewards, 0.0).double())
    flow = per_visit.new_zeros((*counts.shape[:-1], num_states**2))
    flow = flow.scatter_add(-1, pairs, torch.where(leaves, discounts, 0.0).double())
    transition = flow.reshape(*counts.shape, num_states) * per_visit.unsqueeze(-1)
    dtype = trajectory.dtype
    return EmpiricalModel(counts.to(dtype), (reward * per_visit).to(dtype), transition.to(dtype))


def certainty_equivalence(trajectory: Trajectory, num_states: int) -> Float[Tensor, "*batch state"]:
    r"""Solve the empirical model: the values that would be exact if it were the true one.

    .. math:: \hat v = (I - \hat P_\gamma)^{-1} \hat r

    with the mean rewards and discounted transitions of :func:`ictd.empirical_model`.

    Book: :prf:ref:`thm-certainty-equivalence`.

    Args:
        trajectory: The context in state form.
        num_states: ``m``, the number of states.

    Returns:
        Values in reward units, ``[*B, m]``; 0 at states seen as terminal, NaN at states that no
        transition leaves.

    Raises:
        ValueError: If closure fails: a bootstrapped successor is no source; or if no value exists:
            rewards are paid in a closed set of states that no recorded transition ends or
            discounts. Without rewards the value of such a set is 0.

    Note:
        Differentiable in the rewards. Half precision is solved in float32.

    Example:
        >>> import torch, ictd
        >>> trajectory = ictd.Trajectory(
        ...     torch.tensor([0, 0]), torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.0])
        ... )
        >>> ictd.certainty_equivalence(trajectory, 2)
        tensor([2., nan])
    """
    return solve_model(trajectory, empirical_model(trajectory, num_states))


def solve_model(trajectory: Trajectory, model: EmpiricalModel) -> Float[Tensor, "*batch state"]:
    """Return :func:`certainty_equivalence` for a model that was counted already."""
    counts, reward, transition = model
    num_states = counts.shape[-1]
    visited = counts > 0
    used = (counts.unsqueeze(-1) * transition).sum(-2) > 0
    expected = "no bootstrapped successor that is not a source (closure; .trim() helps)"
    check_none("trajectory", used & ~visited, expected)
    endless = _endless(trajectory, transition, visited)
    expected = "an ending or a discount below 1 wherever rewards are paid (else no value exists)"
    check_none("trajectory", endless & (reward != 0), expected, reward)
    work = solvable(reward.dtype)
    identity = torch.eye(num_states, dtype=work, device=reward.device)
    onward = transition.to(work).masked_fill(endless.unsqueeze(-1), 0.0)
    values = torch.linalg.solve(identity - onward, reward.to(work)).to(reward.dtype)
    values = torch.where(visited, values, torch.nan)
    if trajectory.is_terminal is None:
        return values
    ended = visits(trajectory.states, trajectory.is_terminal, num_states) > 0
    return torch.where(ended & ~visited, 0.0, values)


def _endless(
    trajectory: Trajectory,
    transition: Float[Tensor, "*batch state next_state"],
    visited: Bool[Tensor, "*batch state"],
) -> Bool[Tensor, "*batch state"]:
    """Which visited states no path leads out of, to an ending or a discount below 1."""
    discounts = bootstrap_discounts(trajectory._tensors())
    shrinks = trajectory.is_transition & (discounts < 1)
    leaks = visits(trajectory.states, shrinks, transition.shape[-1]) > 0
    return visited & ~(reachable(transition > 0) & leaks.unsqueeze(-2)).any(-1)


def _discounted_successors(prompt: Prompt) -> Float[Tensor, "*batch token feature"]:
    """The features of each token's successor times the discount; 0 if terminal, worth nothing."""
    successors = F.pad(prompt.features[..., 1:, :], (0, 0, 0, 1))
    if prompt.is_terminal is not None:
        terminal = F.pad(prompt.is_terminal[..., 1:], (0, 1))
        successors = torch.where(terminal.unsqueeze(-1), 0.0, successors)
    return prompt.discounts.unsqueeze(-1) * successors


def fixed_point(prompt: Prompt, score: Score) -> Float[Tensor, "*batch token"]:
    r"""Solve for the limit of softmax TD from zero, at infinite depth.

    With closure this is certainty equivalence at the states that transitions leave, and the kernel
    interpolant :math:`\hat M(q, V) \hat M_{VV}^{-1} \hat v` at every other token.

    Book: :prf:ref:`thm-fixed-point`, :prf:ref:`thm-no-closure`.

    Args:
        prompt: The context, ``N`` tokens, ``n`` transitions.
        score: The score :math:`g`, as in :func:`ictd.softmax_td`.

    Returns:
        Values in reward units at every token, ``[*B, N]``. At a token whose state is no source
        they are an extrapolation.

    Raises:
        ValueError: If the attention among the sources is singular, or nothing is ever discounted,
            to the accuracy of the dtype: then the fixed point is not unique.

    Note:
        Differentiable. Accuracy is lost with the condition number: use float64 for sources that
        attend alike. One ``n × n`` inverse: memory :math:`O(N n + n^2 d)`. That the iteration gets
        there is not checked. Values lie in the span of the attention's columns, as every iterate
        does, so the answer also holds without closure.

    Example:
        >>> import torch, ictd
        >>> prompt = ictd.Prompt(
        ...     torch.ones(2, 1), torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.0]),
        ...     torch.tensor([True, False]),
        ... )
        >>> ictd.fixed_point(prompt, ictd.BilinearScore(torch.ones(1, 1)))
        tensor([2., 2.])
    """
    # v = H c with one coefficient per distinct source, the first key of its features; the TD
    # errors of each source must sum to 0. Rows of all other keys say that their coefficient is 0.
    weights = key_weights(prompt, score)
    num_keys = prompt.num_keys
    same, is_first = same_sources(prompt)
    group = torch.where(is_first.unsqueeze(-1), same, False).to(prompt.dtype)
    shifted = shift(weights.mT, prompt.discounts.unsqueeze(-2)).mT[..., :num_keys, :]
    operator = weights[..., :num_keys, :] - shifted
    identity = torch.eye(num_keys, dtype=prompt.dtype, device=prompt.device)
    chosen = is_first.unsqueeze(-1) & is_first.unsqueeze(-2)
    system = torch.where(chosen, group @ operator, identity)
    target = group @ prompt.rewards[..., :num_keys].unsqueeze(-1)
    work = solvable(prompt.dtype)
    system = system.to(work)
    check_conditioned("prompt", system, "a fixed point")
    coefficients = torch.linalg.solve_ex(system, target.to(work))[0].to(prompt.dtype)
    values: Tensor = (weights @ coefficients).squeeze(-1)
    return values
