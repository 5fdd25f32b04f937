"""The Transformer's layers with every matrix written out: Z, Q, V_cur, V_tgt, Pi, Gamma, H.

One context at a time, in float64. The prompt matrix ``Z`` has a column for every token: the
features in rows ``0 .. d-1``, the reward in row ``d``, the discounted value of the successor in
row ``d + 1`` and the value in row ``d + 2``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .td import Array, Context, Mask, softmax


def prompt_matrix(context: Context, initial_values: Array | None = None) -> Array:
    """Z_0, with memory that is consistent: row d + 1 is the discounted shift of row d + 2."""
    tokens, dim = context.features.shape
    matrix = np.zeros((dim + 3, tokens))
    for j in range(tokens):
        matrix[:dim, j] = context.features[j]
        matrix[dim, j] = context.rewards[j] if context.is_transition[j] else 0.0
    if initial_values is not None:
        for j in range(tokens):
            matrix[dim + 2, j] = 0.0 if context.is_terminal[j] else initial_values[j]
        matrix[dim + 1] = (
            matrix[dim + 2]
            @ shift_matrix(tokens)
            @ discount_matrix(context.discounts, context.is_transition)
        )
    return matrix


def shift_matrix(tokens: int) -> Array:
    """Pi: (X Pi)[:, j] = X[:, j + 1], and zero in the last column."""
    matrix = np.zeros((tokens, tokens))
    for j in range(tokens - 1):
        matrix[j + 1, j] = 1.0
    return matrix


def discount_matrix(discounts: Array, is_transition: Mask) -> Array:
    """Gamma: the discounts of the transitions on the diagonal, zero elsewhere."""
    matrix = np.zeros((len(discounts), len(discounts)))
    for j, discount in enumerate(discounts):
        matrix[j, j] = discount if is_transition[j] else 0.0
    return matrix


def attention_matrix(Z: Array, Q: Array, is_transition: Mask, is_terminal: Mask) -> Array:
    """H: column j is the softmax of X[k, j] = z_k^T Q z_j over the keys k; zero where pinned."""
    X = Z.T @ Q @ Z
    H = np.zeros_like(X)
    keys = np.flatnonzero(is_transition)
    for j in range(Z.shape[1]):
        if len(keys) and not is_terminal[j]:
            H[keys, j] = softmax([float(X[k, j]) for k in keys])
    return H


def temporal_shift(values: Array, discounts: Array, is_transition: Mask) -> Array:
    """The row vector v Pi Gamma."""
    return values @ shift_matrix(len(values)) @ discount_matrix(discounts, is_transition)


def dual_head_layer(
    Z: Array,
    Q: Array,
    V_cur: Array,
    V_tgt: Array,
    discounts: Array,
    is_transition: Mask,
    is_terminal: Mask,
) -> Array:
    """Z + V_cur Z H + V_tgt Z H Pi Gamma."""
    H = attention_matrix(Z, Q, is_transition, is_terminal)
    shift = shift_matrix(Z.shape[1]) @ discount_matrix(discounts, is_transition)
    return Z + V_cur @ Z @ H + V_tgt @ Z @ H @ shift


def single_head_layer(
    Z: Array,
    Q: Array,
    V_cur: Array,
    discounts: Array,
    is_transition: Mask,
    is_terminal: Mask,
) -> Array:
    """Z + V_cur Z H, and then row d + 1 is overwritten by the discounted shift of row d + 2."""
    H = attention_matrix(Z, Q, is_transition, is_terminal)
    Z = Z + V_cur @ Z @ H
    Z[-2] = temporal_shift(Z[-1], discounts, is_transition)
    return Z


def structured_query_key(attention: Array) -> Array:
    """Q = diag(A, 0)."""
    dim = len(attention)
    matrix = np.zeros((dim + 3, dim + 3))
    matrix[:dim, :dim] = attention
    return matrix


def structured_value(feature_dim: int, value_weights: Sequence[float], row: int) -> Array:
    """The matrix e_row w^T, with (w_R, w_v', w_v) at the last three places of w."""
    matrix = np.zeros((feature_dim + 3, feature_dim + 3))
    matrix[row, feature_dim:] = value_weights
    return matrix


def in_context_td(
    context: Context,
    layers: Sequence[tuple[Array, Array, Array | None]],
) -> Array:
    """Row d + 2 before the first and after every layer; a layer is (Q, V_cur, V_tgt or None)."""
    Z = prompt_matrix(context)
    flags = (context.discounts, context.is_transition, context.is_terminal)
    history = [Z[-1]]
    for Q, V_cur, V_tgt in layers:
        if V_tgt is None:
            Z = single_head_layer(Z, Q, V_cur, *flags)
        else:
            Z = dual_head_layer(Z, Q, V_cur, V_tgt, *flags)
        history.append(Z[-1])
    return np.stack(history)
