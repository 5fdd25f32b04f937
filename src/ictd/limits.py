"""Where the iterations end: LSTD, certainty equivalence, the fixed point of softmax TD."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ictd._checks import check_none, values_checkable
from ictd.attention import Score, key_weights
from ictd.prompt import Prompt
from ictd.scores import same_features
from ictd.td import one_hot_prompt, shift
from ictd.trajectory import Trajectory

__all__ = ["certainty_equivalence", "fixed_point", "lstd"]


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
    following = F.pad(prompt.features[..., 1:, :], (0, 0, 0, 1))
    if prompt.is_terminal is not None:
        terminal = F.pad(prompt.is_terminal[..., 1:], (0, 1))
        following = torch.where(terminal.unsqueeze(-1), 0.0, following)
    matrix = source.mT @ (source - prompt.discounts.unsqueeze(-1) * following)
    target = (source.mT @ prompt.rewards.unsqueeze(-1)).squeeze(-1)
    if values_checkable(matrix):
        rank = torch.linalg.matrix_rank(matrix)
        expected = (
            f"LSTD to have a matrix of full rank {prompt.feature_dim} (features that the "
            "transitions span; .trim() the context), rank"
        )
        check_none("prompt", rank < prompt.feature_dim, expected, rank)
    weights: Tensor = torch.linalg.solve(matrix, target)
    return weights


def certainty_equivalence(trajectory: Trajectory, num_states: int) -> Float[Tensor, "*batch state"]:
    r"""Solve the empirical model: the values that would be exact if it were the true one.

    .. math:: \hat v = (I - \hat P_\gamma)^{-1} \hat r

    with :math:`\hat r(s)` the mean reward on leaving ``s`` and
    :math:`\hat P_\gamma(s, u) = N(s)^{-1} \sum_k \gamma_k 1\{S_{k-1} = s, S_k = u\}`.

    Args:
        trajectory: The context in state form.
        num_states: ``m``, the number of states.

    Returns:
        Values in reward units, ``[*B, m]``; 0 at states seen as terminal, NaN at states that no
        transition leaves.

    Raises:
        ValueError: If closure fails: a bootstrapped successor is no source.

    Note:
        Differentiable in the rewards.

    Example:
        >>> import torch, ictd
        >>> trajectory = ictd.Trajectory(
        ...     torch.tensor([0, 0]), torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.0])
        ... )
        >>> ictd.certainty_equivalence(trajectory, 2)
        tensor([2., nan])
    """
    prompt = one_hot_prompt(trajectory, num_states)
    source = torch.where(prompt.is_transition.unsqueeze(-1), prompt.features, 0.0)
    counts = source.sum(-2)
    visited = counts > 0
    following = prompt.discounts.unsqueeze(-1) * F.pad(prompt.features[..., 1:, :], (0, 0, 0, 1))
    flow = source.mT @ following
    expected = "no bootstrapped successor that is not a source (closure; .trim() helps)"
    check_none("trajectory", ~visited & (flow.sum(-2) > 0), expected)
    count = counts.clamp(min=1)
    reward = (source.mT @ prompt.rewards.unsqueeze(-1)).squeeze(-1) / count
    system = torch.eye(num_states, dtype=prompt.dtype, device=prompt.device)
    values = torch.linalg.solve(system - flow / count.unsqueeze(-1), reward)
    values = torch.where(visited, values, torch.nan)
    if prompt.is_terminal is None:
        return values
    ended = torch.where(prompt.is_terminal.unsqueeze(-1), prompt.features, 0.0).sum(-2) > 0
    return torch.where(ended & ~visited, 0.0, values)


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
        torch.linalg.LinAlgError: If the attention among the sources is singular, so that the fixed
            point is not unique.

    Note:
        Differentiable. One ``n × n`` solve: memory :math:`O(N n + n^2 d)`. That the iteration gets
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
    is_key = prompt.is_transition[..., :num_keys]
    keys = prompt.features[..., :num_keys, :]
    same = same_features(keys, keys) & is_key.unsqueeze(-1) & is_key.unsqueeze(-2)
    is_first = is_key & ~same.tril(-1).any(-1)
    group = torch.where(is_first.unsqueeze(-1), same, False).to(prompt.dtype)
    shifted = shift(weights.mT, prompt.discounts.unsqueeze(-2)).mT[..., :num_keys, :]
    operator = weights[..., :num_keys, :] - shifted
    identity = torch.eye(num_keys, dtype=prompt.dtype, device=prompt.device)
    chosen = is_first.unsqueeze(-1) & is_first.unsqueeze(-2)
    system = torch.where(chosen, group @ operator, identity)
    target = group @ prompt.rewards[..., :num_keys].unsqueeze(-1)
    coefficients = torch.linalg.solve(system, target)
    values: Tensor = (weights @ coefficients).squeeze(-1)
    return values
