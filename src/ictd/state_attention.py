"""How much states attend to states: in an infinite context, in a finite one, and at best."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ictd._batched import per_item
from ictd._checks import (
    check_all_like,
    check_discount,
    check_floating,
    check_like,
    check_none,
    check_nonnegative,
    check_probabilities,
    check_shape,
    check_square,
)
from ictd._closure import visits
from ictd._linear import solvable
from ictd.attention import Score, masked_softmax
from ictd.mrp import MarkovRewardProcess
from ictd.trajectory import Trajectory

__all__ = [
    "empirical_attention",
    "lumped_attention",
    "population_attention",
    "successor_attention",
]


def lumped_attention(
    weights: Float[Tensor, "*batch state"],
    features: Float[Tensor, "*features_batch state feature"],
    score: Score,
) -> Float[Tensor, "*batch state state"]:
    r"""Compute how much each state attends to each other, where every state is there ``a`` times.

    .. math:: M(s, u) = \frac{a(u)\,\exp g(s, u)}{\sum_x a(x)\,\exp g(s, x)}

    Book: :prf:ref:`def-population-attention`, :prf:ref:`prop-lumped`.

    Args:
        weights: :math:`a(u) \ge 0`, ``[*B, m]``: visits, or probabilities; only their ratios count.
        features: :math:`\varphi`, ``[m, d]`` for all batch items, or ``[*B, m, d]``.
        score: The score :math:`g`, as in :func:`ictd.softmax_td`.

    Returns:
        ``[*B, m, m]``, dimensionless: row :math:`s` attends, column :math:`u` is attended to. Rows
        sum to 1; columns of weight 0 are exactly 0.

    Raises:
        ValueError: If a shape or a device does not fit, or a weight is negative or not finite.
        TypeError: If the dtypes differ.

    Note:
        Differentiable; no gradient reaches a weight that is 0. A row in which no state of positive
        weight has a score above :math:`-\infty` is 0. Cost O(m² d).

    Example:
        >>> import torch, ictd
        >>> score = ictd.BilinearScore(torch.zeros(1, 1))
        >>> ictd.lumped_attention(torch.tensor([3.0, 1.0]), torch.ones(2, 1), score)
        tensor([[0.7500, 0.2500],
                [0.7500, 0.2500]])
    """
    check_floating("weights", weights)
    if weights.ndim < 1:
        raise ValueError(f"weights: expected shape [*B, m], got {tuple(weights.shape)}")
    check_nonnegative("weights", weights, weights.shape)
    features = _features(weights, features)
    scores = score(features, features)
    check_shape("score(query, key)", scores, (*weights.shape, weights.shape[-1]), "[*B, m, m]")
    positive = weights > 0
    bias = torch.where(positive, weights, 1.0).log()
    return masked_softmax(scores + bias.unsqueeze(-2), positive.unsqueeze(-2))


def _features(like: Tensor, features: Tensor) -> Float[Tensor, "*batch state feature"]:
    """Check features beside a tensor ``[*B, m]``, and give each batch item its own."""
    check_floating("features", features)
    batch = like.shape[:-1] if features.ndim != 2 else ()
    expected = (*batch, like.shape[-1], *features.shape[-1:])
    check_shape("features", features, expected, "[m, d] or [*B, m, d]")
    check_like("the weights", like, "features", features)
    return features.expand(*like.shape, features.shape[-1])


def population_attention(
    mrp: MarkovRewardProcess,
    features: Float[Tensor, "*features_batch state feature"],
    score: Score,
) -> Float[Tensor, "*batch state state"]:
    r"""Compute the attention of an infinite context: states weigh as often as they are visited.

    .. math:: M(s, u) = \frac{\mu(u)\,\exp g(s, u)}{\sum_x \mu(x)\,\exp g(s, x)}

    with the stationary distribution :math:`\mu`.

    Book: :prf:ref:`def-population-attention`.

    Args:
        mrp: The process.
        features: :math:`\varphi`, ``[m, d]`` for all batch items, or ``[*B, m, d]``.
        score: The score :math:`g`, as in :func:`ictd.softmax_td`.

    Returns:
        ``[*B, m, m]``, as :func:`ictd.lumped_attention`. Terminal states are neither attended to
        nor attend: their rows and columns are 0.

    Raises:
        ValueError: If a shape does not fit, or the stationary distribution is not unique.
        TypeError: If the dtypes differ.

    Note:
        Differentiable in the features, the score and the transition probabilities.

    Example:
        >>> import torch, ictd
        >>> mrp = ictd.MarkovRewardProcess(torch.full((2, 2), 0.5), torch.zeros(2), 0.9)
        >>> score = ictd.BilinearScore(torch.zeros(1, 1))
        >>> ictd.population_attention(mrp, torch.ones(2, 1), score)
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
    """
    weights = mrp.stationary_distribution().masked_fill(mrp.terminal, 0.0)
    attention = lumped_attention(weights, features, score)
    return attention.masked_fill(mrp.terminal.unsqueeze(-1), 0.0)


def empirical_attention(
    trajectory: Trajectory,
    features: Float[Tensor, "*features_batch state feature"],
    score: Score,
) -> Float[Tensor, "*batch state state"]:
    r"""Compute the attention of a context: states weigh as often as a transition leaves them.

    .. math:: \hat M(s, u) = \frac{N(u)\,\exp g(s, u)}{\sum_x N(x)\,\exp g(s, x)}

    Book: :prf:ref:`prop-lumped`.

    Args:
        trajectory: The context in state form.
        features: :math:`\varphi`, ``[m, d]`` for all batch items, or ``[*B, m, d]``.
        score: The score :math:`g`, as in :func:`ictd.softmax_td`.

    Returns:
        ``[*B, m, m]``, as :func:`ictd.lumped_attention`. Columns of states that no transition
        leaves are 0, and so are the rows of those among them that were seen as terminal.

    Raises:
        ValueError: If a shape does not fit, or a state has no row in ``features``.
        TypeError: If the dtypes differ.

    Note:
        Differentiable in the features and the score.

    Example:
        >>> import torch, ictd
        >>> trajectory = ictd.Trajectory(
        ...     torch.tensor([0, 0, 1, 0, 0]), torch.ones(5), torch.full((5,), 0.9)
        ... )
        >>> score = ictd.BilinearScore(torch.zeros(1, 1))
        >>> ictd.empirical_attention(trajectory, torch.ones(2, 1), score)
        tensor([[0.7500, 0.2500],
                [0.7500, 0.2500]])
    """
    check_floating("features", features)
    if features.ndim < 2:
        raise ValueError(f"features: expected [m, d] or [*B, m, d], got {tuple(features.shape)}")
    num_states = features.shape[-2]
    states = trajectory.states
    missing = states >= num_states
    check_none("trajectory", missing, f"states < {num_states} (rows of features)", states)
    counts = visits(states, trajectory.is_transition, num_states)
    attention = lumped_attention(counts.to(trajectory.dtype), features, score)
    if trajectory.is_terminal is None:
        return attention
    ended = (visits(states, trajectory.is_terminal, num_states) > 0) & (counts == 0)
    return attention.masked_fill(ended.unsqueeze(-1), 0.0)


def successor_attention(
    transition: Float[Tensor, "*batch state next_state"], discount: float | Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch state state"]:
    r"""Compute the attention that evaluates in one layer: the normalised successor representation.

    .. math:: M^\star = (1 - \gamma)(I - \gamma P)^{-1}

    With :math:`\alpha = 1/(1 - \gamma)` one step from any values is exact.

    Book: :prf:ref:`thm-successor-attention`.

    Args:
        transition: :math:`P`, ``[*B, m, m]``; rows sum to 1.
        discount: :math:`\gamma \in [0, 1)`, a number or ``[*B]``, dimensionless.

    Returns:
        ``[*B, m, m]``; entries at least 0, rows sum to 1.

    Raises:
        ValueError: If a row does not sum to 1, a shape does not fit, or a discount is not below 1.
        TypeError: If a dtype does not fit.

    Note:
        Differentiable. For an irreducible chain and :math:`\gamma > 0` every entry is positive, so
        it is a softmax, of the score :math:`g = \log(M^\star / \mu)`. Half precision is solved in
        float32.

    Example:
        >>> import torch, ictd
        >>> ictd.successor_attention(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), 0.5)
        tensor([[0.6667, 0.3333],
                [0.3333, 0.6667]])
    """
    check_square("transition", transition)
    check_probabilities("transition", transition)
    check_discount("discount", discount, transition.shape[:-2], "[*B]")
    check_all_like("transition", transition, discount=discount)
    gamma = per_item(discount, transition, 0)
    check_none("discount", gamma == 1, "a number below 1", gamma)
    gamma = gamma[..., None, None]
    work = solvable(transition.dtype)
    identity = torch.eye(transition.shape[-1], dtype=work, device=transition.device)
    system = identity - (gamma * transition).to(work)
    inverse: Tensor = torch.linalg.solve(system, identity.expand_as(system))
    return (1 - gamma) * inverse.to(transition.dtype)
