"""The norm of the expected update by loops over states and finite differences.

One task at a time, NumPy float64; nothing here imports the package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import e, exp, hypot

import numpy as np

from .td import Array


@dataclass(frozen=True)
class Task:
    """A process with the shares of time that it spends in its states, and their features."""

    transition: Array  # [m, m]
    reward: Array  # [m, m], of a state and its successor
    discount: float
    visits: Array  # [m]
    features: Array  # [m, d]

    def __len__(self) -> int:
        return len(self.visits)

    def expected_td_error(self, values: Array, s: int) -> float:
        """E[R + gamma v(S') - v(S) | S = s]."""
        total = 0.0
        for u in range(len(self)):
            following = self.reward[s, u] + self.discount * values[u] - values[s]
            total += self.transition[s, u] * following
        return float(total)


def stationary(transition: Array, steps: int = 5000) -> Array:
    """The long-run shares of a chain, averaged so that periods do not matter."""
    shares = np.full(len(transition), 1 / len(transition))
    lazy = (np.eye(len(transition)) + transition) / 2
    for _ in range(steps):
        shares = shares @ lazy
    return shares


def attention(task: Task, matrix: Array) -> Array:
    """M(s, u) = mu(u) exp(phi_u^T A phi_s) / sum of the same."""
    m = len(task)
    result = np.zeros((m, m))
    for s in range(m):
        for u in range(m):
            score = float(task.features[u] @ matrix @ task.features[s])
            result[s, u] = task.visits[u] * exp(score)
        result[s] /= result[s].sum()
    return result


def population_values(task: Task, layers: Sequence[tuple[Array, Array]]) -> Array:
    """v <- v + M (w_R r + w_v' gamma P v + w_v v), for layers (A, w)."""
    m = len(task)
    values = np.zeros(m)
    for matrix, (w_reward, w_target, w_current) in layers:
        M = attention(task, matrix)
        read = np.zeros(m)
        for u in range(m):
            for successor in range(m):
                inside = w_reward * task.reward[u, successor] + w_current * values[u]
                inside += w_target * task.discount * values[successor]
                read[u] += task.transition[u, successor] * inside
        values = values + M @ read
    return values


def jacobian(function: Callable[[Array], Array], parameters: Array, step: float = 1e-5) -> Array:
    """Central differences, [outputs, parameters]."""
    columns = []
    for i in range(len(parameters)):
        change = np.zeros(len(parameters))
        change[i] = step
        difference = function(parameters + change) - function(parameters - change)
        columns.append(difference / (2 * step))
    return np.stack(columns, axis=1)


def update(task: Task, values: Array, derivative: Array) -> Array:
    """sum_s mu(s) E[delta | s] grad v(s): the target is held fixed."""
    total = np.zeros(derivative.shape[1])
    for s in range(len(task)):
        total += task.visits[s] * task.expected_td_error(values, s) * derivative[s]
    return total


def plain(updates: Array) -> float:
    """The squared norm of the mean."""
    mean = sum(updates) / len(updates)
    return float(mean @ mean)


def halves(updates: Array) -> float:
    """The inner product of the means of the two halves."""
    half = len(updates) // 2
    return float((sum(updates[:half]) / half) @ (sum(updates[half:]) / half))


def u_statistic(updates: Array) -> float:
    """The mean of u_i . u_j over all ordered pairs of distinct tasks."""
    total, pairs = 0.0, 0
    for i in range(len(updates)):
        for j in range(len(updates)):
            if i != j:
                total += float(updates[i] @ updates[j])
                pairs += 1
    return total / pairs


def full_gradient(
    rho: float,
    num_layers: int,
    discount: float,
    step: float,
    reward: float,
    length: float,
    value: float,
    matrix_norm: float,
) -> tuple[float, float]:
    """Bound the gradient's blocks of Q and of both V of full layers, by the proof's recursion.

    ``kept`` bounds what no layer contracts, ``state`` the part that is a function of the state.
    """
    squares = length**2 + reward**2 + (2 * value) ** 2 + (2 * discount * value) ** 2
    column = squares**0.5
    errors = reward + 2 * value + 2 * discount * value
    bounds = []
    for block in ("Q", "V"):
        kept = state = 0.0
        for layer in range(num_layers):
            if block == "Q":
                source, state_source = step * column**2 * errors, 0.0
            else:
                heads = hypot(1, discount)
                features = heads * column * matrix_norm * length
                rows = [1, discount, 1, discount, discount, discount**2]  # reward, target, current
                fading = (1 + discount) * value / (e * (1 - rho))
                source = discount * column + step * features * fading
                drift = hypot(*rows) * column + features * errors
                state_source = column + step * drift * layer
            state = rho * state + step * (1 + discount) * kept + state_source
            kept += source
        bounds.append(kept + state)
    return bounds[0], bounds[1]
