"""Convergence in depth and context, straight from the formulas: loops, NumPy float64.

One problem at a time, no batch axes. Inverses are Neumann series, spectral radii are the growth of
powers. Nothing here imports the package.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def attention(weights: Array, scores: Array) -> Array:
    """M(s, u) = a(u) exp g(s, u) / sum_x a(x) exp g(s, x)."""
    m = len(weights)
    result = np.zeros((m, m))
    for s in range(m):
        total = sum(weights[x] * math.exp(scores[s, x]) for x in range(m))
        for u in range(m):
            result[s, u] = weights[u] * math.exp(scores[s, u]) / total
    return result


def lumped_td(
    attention: Array,
    reward: Array,
    transition: Array,
    discount: float,
    num_steps: int,
    step_size: float,
    initial_values: Array,
) -> Array:
    """v(s) += alpha sum_u M(s, u) (r(u) + gamma sum_x P(u, x) v(x) - v(u))."""
    m = len(reward)
    history = [initial_values]
    for _ in range(num_steps):
        v = history[-1]
        errors = []
        for u in range(m):
            ahead = sum(transition[u, x] * v[x] for x in range(m))
            errors.append(reward[u] + discount * ahead - v[u])
        new = v.copy()
        for s in range(m):
            new[s] += step_size * sum(attention[s, u] * errors[u] for u in range(m))
        history.append(new)
    return np.stack(history)


def iteration_matrix(
    attention: Array, transition: Array, discount: float, step_size: float
) -> Array:
    """T(s, u) = 1{s = u} - alpha M(s, u) + alpha gamma sum_x M(s, x) P(x, u)."""
    m = len(attention)
    result = np.zeros((m, m))
    for s in range(m):
        for u in range(m):
            ahead = sum(attention[s, x] * transition[x, u] for x in range(m))
            own = 1.0 if s == u else 0.0
            result[s, u] = own - step_size * attention[s, u] + step_size * discount * ahead
    return result


def norm(matrix: Array) -> float:
    """The largest absolute row sum."""
    return max(sum(abs(entry) for entry in row) for row in matrix)


def contraction_factor(diagonal: Array, discount: float, step_size: float) -> float:
    """Row by row: |1 - alpha M(s,s)| + alpha (1 - M(s,s)) + alpha gamma, or the other branch."""
    least = min(diagonal)
    first = 1 - step_size * (2 * least - 1 - discount)
    second = step_size * (1 + discount) - 1
    return max(first, second)


def spectral_radius(matrix: Array, squarings: int = 40) -> float:
    """The growth of the powers, lim |T^k|^(1/k), with k = 2^squarings."""
    log_size = 0.0
    power = matrix.copy()
    for _ in range(squarings):
        size = norm(power)
        if size == 0:
            return 0.0
        power = power / size
        log_size = 2 * (log_size + math.log(size))
        power = power @ power
    return math.exp((log_size + math.log(norm(power))) / 2**squarings)


def resolvent(transition: Array, terms: int = 3_000) -> Array:
    """The sum of the powers of a matrix."""
    total = term = np.eye(len(transition))
    for _ in range(terms):
        term = term @ transition
        total = total + term
    return total


def targets(
    states: NDArray[np.int64],
    rewards: Array,
    discounts: Array,
    is_transition: Mask,
    is_terminal: Mask,
    values: Array,
    num_states: int,
) -> list[list[float]]:
    """The targets R + gamma v(S') of each state, in the order in which they came."""
    found: list[list[float]] = [[] for _ in range(num_states)]
    for j in range(len(states) - 1):
        if is_transition[j]:
            ahead = 0.0 if is_terminal[j + 1] else values[states[j + 1]]
            bootstrap = 0.0 if discounts[j] == 0 else discounts[j] * ahead
            found[states[j]].append(float(rewards[j] + bootstrap))
    return found


def context_bound(
    counts: Array, spread: float, discount: float, confidence: float, num_steps: int
) -> float:
    """max_s b sqrt(log(2 m n / delta) / (2 N(s))) / (1 - gamma)."""
    return max(widths(counts, spread, confidence, num_steps)) / (1 - discount)


def widths(counts: Array, spread: float, confidence: float, num_steps: int) -> list[float]:
    """The Hoeffding width of the mean target of each state; 0 where it was not visited."""
    delta = 1 - confidence
    m = len(counts)
    found = []
    for n in counts:
        width = spread * math.sqrt(math.log(2 * m * num_steps / delta) / (2 * n)) if n else 0.0
        found.append(width)
    return found


def componentwise_bound(
    cards: list[list[float]],
    transition: Array,
    values: Array,
    terminal: Mask,
    discount: float,
    reward_bound: float,
    confidence: float,
    num_steps: int,
    num_iterations: int,
) -> Array:
    """The empirical Bernstein bound, improved step by step; NaN where not visited."""
    m = len(values)
    visited = [len(c) > 0 for c in cards]
    x = math.log(3 * m * num_steps / (1 - confidence))
    inverse = resolvent(transition)
    limit = 2 * reward_bound / (1 - discount)
    error = [limit if v else 0.0 for v in visited]
    everything = all(visited[s] or terminal[s] for s in range(m))
    for _ in range(num_iterations):
        spread = limit
        if everything:
            known = [0.0 if terminal[s] and not visited[s] else values[s] for s in range(m)]
            span = max(known) - min(known) + 2 * max(error)
            spread = 2 * reward_bound + discount * min(limit, span)
        width = []
        for s in range(m):
            if not visited[s]:
                width.append(0.0)
                continue
            n = len(cards[s])
            mean = sum(cards[s]) / n
            deviation = math.sqrt(sum((y - mean) ** 2 for y in cards[s]) / n)
            ahead = sum(discount * transition[s, u] * error[u] ** 2 for u in range(m))
            radius = math.sqrt(2 * x / n) * (deviation + math.sqrt(ahead)) + 3 * spread * x / n
            width.append(radius)
        new = [sum(inverse[s, u] * width[u] for u in range(m)) for s in range(m)]
        error = [min(error[s], new[s]) for s in range(m)]
    return np.array([error[s] if visited[s] or terminal[s] else math.nan for s in range(m)])


def plug_in_width(cards: list[list[float]], transition: Array, tail: float) -> list[float]:
    """z sqrt(sum_u H(s, u)^2 sigma^2(u) / N(u)), z the normal quantile of 1 - tail."""
    m = len(cards)
    inverse = resolvent(transition)
    z = NormalDist().inv_cdf(1 - tail)
    found = []
    for s in range(m):
        total = 0.0
        for u in range(m):
            if not cards[u] or inverse[s, u] == 0:
                continue
            n = len(cards[u])
            if n == 1:
                total = math.inf
                continue
            mean = sum(cards[u]) / n
            variance = sum((y - mean) ** 2 for y in cards[u]) / (n - 1)
            total += inverse[s, u] ** 2 * variance / n
        found.append(z * math.sqrt(total))
    return found
