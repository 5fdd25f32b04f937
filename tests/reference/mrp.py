"""Markov reward processes, straight from the definitions: loops, NumPy float64, fractions.

One process at a time, no batch axes. Nothing here imports the package.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def expected_reward(transition: Array, reward: Array, terminal: Mask) -> Array:
    """r(s) = sum_u P(s, u) R(s, u), or r itself; nothing is earned in terminal states."""
    m = len(transition)
    result = np.zeros(m)
    for s in range(m):
        if terminal[s]:
            continue
        if reward.ndim == 1:
            result[s] = reward[s]
        else:
            result[s] = sum(transition[s, u] * reward[s, u] for u in range(m))
    return result


def bellman(
    transition: Array, reward: Array, discount: float, terminal: Mask, values: Array
) -> Array:
    """(T v)(s) = r(s) + gamma sum_u P(s, u) v(u), v = 0 at terminal states."""
    m = len(transition)
    mean = expected_reward(transition, reward, terminal)
    result = np.zeros(m)
    for s in range(m):
        if terminal[s]:
            continue
        following = 0.0
        for u in range(m):
            if not terminal[u]:
                following += transition[s, u] * values[u]
        result[s] = mean[s] + discount * following
    return result


def value(
    transition: Array, reward: Array, discount: float, terminal: Mask, sweeps: int = 20_000
) -> Array:
    """Apply T again and again, from v = 0: the partial sums of the discounted rewards."""
    m = len(transition)
    onward = discount * transition.copy()
    onward[terminal] = 0.0
    onward[:, terminal] = 0.0
    mean = expected_reward(transition, reward, terminal)
    values = np.zeros(m)
    for _ in range(sweeps):
        values = mean + onward @ values
    return values


def reachable(transition: Array) -> list[set[int]]:
    """The states that can follow each state, itself included: depth-first search."""
    found = []
    for s in range(len(transition)):
        seen, todo = {s}, [s]
        while todo:
            current = todo.pop()
            for u in range(len(transition)):
                if transition[current, u] > 0 and u not in seen:
                    seen.add(u)
                    todo.append(u)
        found.append(seen)
    return found


def recurrent_classes(transition: Array) -> list[set[int]]:
    """The closed communicating classes."""
    reach = reachable(transition)
    classes: list[set[int]] = []
    for s in range(len(transition)):
        if all(s in reach[u] for u in reach[s]) and reach[s] not in classes:
            classes.append(reach[s])
    return classes


def stationary_distribution(transition: Array) -> list[Fraction]:
    """Solve mu (P - I) = 0, sum mu = 1 by Gauss-Jordan elimination on fractions: exactly.

    Diagonal entries are read as 1 minus the rest of the row, so that rows sum to 1 exactly.
    """
    m = len(transition)
    rows: list[list[Any]] = [[Fraction(0)] * (m + 1) for _ in range(m)]
    for s in range(m):
        for u in range(m):
            if u != s:
                rows[u][s] += Fraction(float(transition[s, u]))
                rows[s][s] -= Fraction(float(transition[s, u]))
    rows[m - 1] = [Fraction(1)] * (m + 1)
    for column in range(m):
        pivot = next(i for i in range(column, m) if rows[i][column] != 0)
        rows[column], rows[pivot] = rows[pivot], rows[column]
        lead = rows[column][column]
        rows[column] = [entry / lead for entry in rows[column]]
        for i in range(m):
            if i != column and rows[i][column] != 0:
                factor = rows[i][column]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[column], strict=True)]
    return [row[m] for row in rows]


def closed_prefix(states: list[int], is_transition: list[bool], discounts: list[float]) -> int:
    """The largest n' for which the transitions of the first n' tokens are closed."""
    for length in range(len(states), -1, -1):
        kept = [k for k in range(length) if is_transition[k]]
        sources = {states[k] for k in kept}
        if all(discounts[k] == 0 or states[k + 1] in sources for k in kept):
            return length
    raise AssertionError("the empty prefix is closed")


def kept_tokens(is_transition: list[bool], prefix: int) -> list[int]:
    """The tokens of one context that stay: 0, those of kept transitions, those of none at all."""
    stay = []
    for j in range(len(is_transition)):
        had = is_transition[j] or (j > 0 and is_transition[j - 1])
        has = (is_transition[j] and j < prefix) or (
            j > 0 and is_transition[j - 1] and j - 1 < prefix
        )
        if j == 0 or has or not had:
            stay.append(j)
    return stay
