"""TD with two heads of opposite temperature, and with mirrored keys, as loops."""

from __future__ import annotations

import numpy as np

from reference.td import Array, Context, Pairwise, linear_kernel, softmax, td_errors


def opposite_heads_td(
    context: Context,
    *,
    num_steps: int,
    step_size: float,
    scale: float,
    score: Pairwise = linear_kernel,
    initial_values: Array | None = None,
) -> Array:
    """v += alpha / (2 eps) sum_k (softmax(eps x)_k - softmax(-eps x)_k) delta_k."""

    def update(x: list[float], errors: list[float]) -> float:
        hot = softmax([scale * a for a in x])
        cold = softmax([-scale * a for a in x])
        total = 0.0
        for p, q, error in zip(hot, cold, errors, strict=True):
            total += (p - q) / (2 * scale) * error
        return total

    return _iterate(context, update, score, num_steps, step_size, initial_values)


def mirrored_keys_td(
    context: Context,
    *,
    num_steps: int,
    step_size: float,
    scale: float,
    score: Pairwise = linear_kernel,
    initial_values: Array | None = None,
) -> Array:
    """v += alpha / eps sum of softmax over the keys x, -x with the values delta, -delta."""

    def update(x: list[float], errors: list[float]) -> float:
        shares = softmax([scale * a for a in [*x, *(-a for a in x)]])
        values = [*errors, *(-error for error in errors)]
        return sum(p * value for p, value in zip(shares, values, strict=True)) / scale

    return _iterate(context, update, score, num_steps, step_size, initial_values)


def _iterate(context, update, score, num_steps, step_size, initial_values):  # type: ignore[no-untyped-def]
    start = np.zeros(len(context)) if initial_values is None else initial_values.copy()
    start[context.is_terminal] = 0.0
    history = [start]
    for _ in range(num_steps):
        errors = td_errors(context, history[-1])
        updated = history[-1].copy()
        for j in range(len(context)):
            if context.is_terminal[j] or not errors:
                continue
            x = [score(context.features[j], context.features[k]) for k in errors]
            updated[j] += step_size * update(x, list(errors.values()))
        history.append(updated)
    return np.stack(history)
