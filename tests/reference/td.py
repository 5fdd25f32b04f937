"""Temporal-difference algorithms as loops over transitions, straight from the equations.

Every function takes one context (no batch axes) in float64 and knows nothing of the package.
A context is a list of tokens: token ``j`` holds the features of a state, the reward and the
discount of the transition that leaves it, whether a transition leaves it (to token ``j + 1``),
and whether it is terminal. Entries of tokens that no transition leaves are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Pairwise = Callable[[Array, Array], float]  # (features of the query, features of the key)


@dataclass(frozen=True)
class Context:
    """One context, token by token."""

    features: Array  # [tokens, feature]
    rewards: Array
    discounts: Array
    is_transition: Mask
    is_terminal: Mask

    def __len__(self) -> int:
        return len(self.features)

    @property
    def sources(self) -> list[int]:
        """Tokens that a transition leaves, in order."""
        return [j for j in range(len(self)) if self.is_transition[j]]


# Scores and kernels ----------------------------------------------------------------------------


def bilinear(matrix: Array) -> Pairwise:
    """g(s, s') = sum_ij phi_i(s') A_ij phi_j(s)."""

    def score(query: Array, key: Array) -> float:
        total = 0.0
        for i in range(len(key)):
            for j in range(len(query)):
                total += key[i] * matrix[i, j] * query[j]
        return total

    return score


def gaussian_score(bandwidth: float) -> Pairwise:
    """g(s, s') = -|phi - phi'|^2 / (2 h^2)."""

    def score(query: Array, key: Array) -> float:
        return -sum((a - b) ** 2 for a, b in zip(query, key, strict=True)) / (2 * bandwidth**2)

    return score


def linear_kernel(query: Array, key: Array) -> float:
    """The inner product of two feature vectors."""
    return float(sum(a * b for a, b in zip(query, key, strict=True)))


def gaussian_kernel(bandwidth: float) -> Pairwise:
    """exp of the Gaussian score."""
    score = gaussian_score(bandwidth)
    return lambda query, key: float(np.exp(score(query, key)))


def identity_kernel(query: Array, key: Array) -> float:
    """1 where the two feature vectors are equal, else 0."""
    return float(all(a == b for a, b in zip(query, key, strict=True)))


# The algorithms --------------------------------------------------------------------------------


def td_errors(context: Context, values: Array) -> dict[int, float]:
    """delta_k = R_k + gamma_k v(S_k) - v(S_{k-1}), by the token of S_{k-1}."""
    errors = {}
    for j in context.sources:
        successor = 0.0 if context.is_terminal[j + 1] else values[j + 1]
        bootstrap = context.discounts[j] * successor
        errors[j] = float(context.rewards[j] + bootstrap - values[j])
    return errors


def softmax(scores: Sequence[float]) -> list[float]:
    """Weights proportional to the exponentials of the scores."""
    largest = max(scores)
    exponentials = [float(np.exp(x - largest)) for x in scores]
    return [x / sum(exponentials) for x in exponentials]


def _initial(context: Context, initial_values: Array | None) -> Array:
    values = np.zeros(len(context)) if initial_values is None else initial_values.copy()
    values[context.is_terminal] = 0.0
    return values


def softmax_td(
    context: Context,
    score: Pairwise,
    *,
    num_steps: int,
    step_size: float,
    weight: Array | None = None,
    initial_values: Array | None = None,
) -> Array:
    """v(s) += alpha omega(s) sum_k K(S_{k-1}, s) delta_k, K the softmax of the scores over k."""
    history = [_initial(context, initial_values)]
    for _ in range(num_steps):
        values = history[-1]
        errors = td_errors(context, values)
        updated = values.copy()
        for j in range(len(context)):
            if context.is_terminal[j] or not errors:
                continue
            scores = [score(context.features[j], context.features[k]) for k in errors]
            if max(scores) == -np.inf:  # a row of zeros of the kernel: no update
                continue
            omega = 1.0 if weight is None else weight[j]
            for share, error in zip(softmax(scores), errors.values(), strict=True):
                updated[j] += step_size * omega * share * error
        history.append(updated)
    return np.stack(history)


def kernel_td(
    context: Context,
    kernel: Pairwise,
    *,
    num_steps: int,
    step_size: float,
    initial_values: Array | None = None,
) -> Array:
    """v(s) += (alpha / n) sum_k kappa(s, S_{k-1}) delta_k."""
    history = [_initial(context, initial_values)]
    for _ in range(num_steps):
        values = history[-1]
        errors = td_errors(context, values)
        updated = values.copy()
        for j in range(len(context)):
            if context.is_terminal[j]:
                continue
            for k, error in errors.items():
                similarity = kernel(context.features[j], context.features[k])
                updated[j] += step_size / len(errors) * similarity * error
        history.append(updated)
    return np.stack(history)


def linear_td(context: Context, *, num_steps: int, step_size: float) -> Array:
    """w += (alpha / n) sum_k delta_k phi(S_{k-1}) and v = phi . w, from w = 0."""
    weights = np.zeros(context.features.shape[1])
    history = [np.zeros(len(context))]
    for _ in range(num_steps):
        errors = td_errors(context, history[-1])
        for k, error in errors.items():
            weights = weights + step_size / len(errors) * error * context.features[k]
        values = np.array([phi @ weights for phi in context.features])
        values[context.is_terminal] = 0.0
        history.append(values)
    return np.stack(history)


def tabular_td(
    states: NDArray[np.int64],
    rewards: Array,
    discounts: Array,
    is_transition: Mask,
    is_terminal: Mask,
    num_states: int,
    *,
    num_steps: int,
    step_size: float,
) -> Array:
    """A table of one value a state; the mean over all transitions of 1{s = S_{k-1}} delta_k."""
    table = np.zeros(num_states)
    sources = [j for j in range(len(states)) if is_transition[j]]

    def at_tokens() -> Array:
        return np.array([0.0 if is_terminal[j] else table[s] for j, s in enumerate(states)])

    history = [at_tokens()]
    for _ in range(num_steps):
        update = np.zeros(num_states)
        for j in sources:
            successor = 0.0 if is_terminal[j + 1] else table[states[j + 1]]
            error = rewards[j] + discounts[j] * successor - table[states[j]]
            update[states[j]] += step_size / len(sources) * error
        table = table + update
        history.append(at_tokens())
    return np.stack(history)


def online_td(context: Context, step_sizes: Sequence[float]) -> Array:
    """w += alpha_j delta_j phi(S_j), in the order of time; the weights on arrival at each token."""
    weights = np.zeros(context.features.shape[1])
    history = [weights]
    for j in range(len(context) - 1):
        if context.is_transition[j]:
            value = context.features[j] @ weights
            successor = 0.0 if context.is_terminal[j + 1] else context.features[j + 1] @ weights
            error = context.rewards[j] + context.discounts[j] * successor - value
            weights = weights + step_sizes[j] * error * context.features[j]
        history.append(weights)
    return np.stack(history)


# Where they converge ---------------------------------------------------------------------------


def lstd(context: Context) -> Array:
    """Solve sum_k phi_k (phi_k - gamma_k phi'_k)^T w = sum_k R_k phi_k."""
    dim = context.features.shape[1]
    matrix, vector = np.zeros((dim, dim)), np.zeros(dim)
    for j in context.sources:
        successor = np.zeros(dim) if context.is_terminal[j + 1] else context.features[j + 1]
        difference = context.features[j] - context.discounts[j] * successor
        matrix += np.outer(context.features[j], difference)
        vector += context.rewards[j] * context.features[j]
    return np.linalg.solve(matrix, vector)


def empirical_model(
    states: NDArray[np.int64],
    rewards: Array,
    discounts: Array,
    is_transition: Mask,
    is_terminal: Mask,
    num_states: int,
) -> tuple[Array, Array, Array]:
    """N(s), the mean reward on leaving s, and P_gamma(s, u); zeros where no transition leaves."""
    counts, reward = np.zeros(num_states), np.zeros(num_states)
    transition = np.zeros((num_states, num_states))
    for j in range(len(states)):
        if is_transition[j]:
            counts[states[j]] += 1
            reward[states[j]] += rewards[j]
            if not is_terminal[j + 1]:
                transition[states[j], states[j + 1]] += discounts[j]
    for s in range(num_states):
        if counts[s]:
            reward[s] /= counts[s]
            transition[s] /= counts[s]
    return counts, reward, transition


def certainty_equivalence(
    states: NDArray[np.int64],
    rewards: Array,
    discounts: Array,
    is_transition: Mask,
    is_terminal: Mask,
    num_states: int,
) -> Array:
    """(I - P_gamma)^{-1} r of the empirical model; NaN at states that are never a source."""
    counts, reward, transition = empirical_model(
        states, rewards, discounts, is_transition, is_terminal, num_states
    )
    visited = np.flatnonzero(counts)
    assert not np.delete(transition, visited, axis=1).any(), "closure fails"
    values = np.full(num_states, np.nan)
    system = np.eye(len(visited)) - transition[np.ix_(visited, visited)]
    values[visited] = np.linalg.solve(system, reward[visited])
    return values


def fixed_point(context: Context, score: Pairwise, *, step_size: float, tolerance: float) -> Array:
    """Iterate softmax TD from zero until the values move by less than the tolerance."""
    values = np.zeros(len(context))
    for _ in range(1_000):
        last = softmax_td(context, score, num_steps=20, step_size=step_size, initial_values=values)
        if np.abs(last[-1] - values).max() < tolerance:
            return last[-1]
        values = last[-1]
    raise AssertionError("the iteration did not converge")


# Contexts --------------------------------------------------------------------------------------


def episode_tokens(
    observations: Sequence[Array],
    rewards: Sequence[Array],
    terminated: Sequence[bool],
    truncated: Sequence[bool],
    discount: float,
) -> Context:
    """Lay episodes one after the other; only a terminated episode ends with a terminal token."""
    features, token_rewards, token_discounts, transitions, terminals = [], [], [], [], []
    for i, episode in enumerate(observations):
        last = len(episode) - 1
        assert truncated[i] in (True, False)
        for t, observation in enumerate(episode):
            features.append(observation)
            transitions.append(t < last)
            terminals.append(bool(t == last and terminated[i]))
            token_rewards.append(rewards[i][t] if t < last else 0.0)
            ends = t == last - 1 and terminated[i]
            token_discounts.append(0.0 if t == last or ends else discount)
    return Context(
        np.array(features, dtype=np.float64),
        np.array(token_rewards, dtype=np.float64),
        np.array(token_discounts, dtype=np.float64),
        np.array(transitions),
        np.array(terminals),
    )


def is_closed(context: Context, sources: Sequence[int]) -> bool:
    """Whether every bootstrapped successor of these transitions is also the source of one."""
    visited = [context.features[j] for j in sources]
    for j in sources:
        if context.discounts[j] == 0.0:
            continue
        if not any(np.array_equal(context.features[j + 1], phi) for phi in visited):
            return False
    return True


def trimmed_sources(context: Context) -> list[int]:
    """The longest prefix of the transitions that is closed, by trying every length."""
    sources = context.sources
    for length in range(len(sources), -1, -1):
        if is_closed(context, sources[:length]):
            return sources[:length]
    raise AssertionError("the empty prefix is closed")
