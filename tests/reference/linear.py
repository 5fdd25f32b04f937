"""Linear TD with all its variants by loops over transitions, NumPy float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .td import Array


def linear_values(
    features: Array,
    successors: Array,
    rewards: Array,
    runs: Sequence[int],
    queries: Array,
    preconditioners: Array,
    step_size: float,
    *,
    algorithm: str = "td",
    trace_decay: float = 0.0,
) -> Array:
    """Values of the queries before the first step and after each.

    `successors` holds discounted features; traces start anew where the number in `runs` changes.
    """
    n, d = features.shape
    weights = np.zeros(d)
    history = [queries @ weights]
    for matrix in preconditioners:
        total, trace = np.zeros(d), np.zeros(d)
        earned = 0.0
        for k in range(n):
            earned += rewards[k]
            reward = rewards[k]
            if algorithm == "average-reward":
                reward = reward - earned / (k + 1)
            error = reward + successors[k] @ weights - features[k] @ weights
            direction = features[k]
            if algorithm == "residual-gradient":
                direction = features[k] - successors[k]
            if k and runs[k] != runs[k - 1]:
                trace = np.zeros(d)
            trace = trace_decay * trace + direction
            total = total + error * trace
        weights = weights + step_size / max(n, 1) * matrix @ total
        history.append(queries @ weights)
    return np.array(history)
