"""Softmax attention over the transitions of a prompt, with everything else masked."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ictd._checks import check_shape
from ictd.prompt import Prompt

__all__ = ["attention_weights"]

Score = Callable[[Tensor, Tensor], Tensor]


def attention_weights(prompt: Prompt, score: Score) -> Float[Tensor, "*batch token token"]:
    r"""Compute how much each token of a prompt attends to each transition.

    .. math:: K(S_{k-1}, s) = \frac{\exp g(s, S_{k-1})}{\sum_i \exp g(s, S_{i-1})}

    Row ``j`` belongs to the attending token, column ``k`` to the transition that leaves token
    ``k``: the transpose of the paper's :math:`H`. Columns of tokens that no transition leaves are
    exactly 0, and so are the rows of terminal tokens and rows in which every score is
    :math:`-\infty`.

    Book: :prf:ref:`def-softmax-td`.

    Args:
        prompt: The context, ``N`` tokens.
        score: The score :math:`g`, a map from queries ``[*B, Q, d]`` and keys ``[*B, K, d]`` to
            ``[*B, Q, K]``; :class:`ictd.BilinearScore`, say.

    Returns:
        Weights ``[*B, N, N]``, dimensionless, in the prompt's dtype and on its device.

    Raises:
        ValueError: If the score returns another shape.

    Note:
        Differentiable. Takes :math:`O(N^2)` memory, the returned matrix included; the algorithms
        and the layers only keep the ``[*B, N, n]`` block of the transitions, or nothing at all.

    Example:
        >>> import torch, ictd
        >>> prompt = ictd.Prompt.from_episodes(
        ...     [[[0.0], [1.0], [0.0]]], [[1.0, 1.0]], [False], [True], discount=0.9
        ... )
        >>> ictd.attention_weights(prompt, ictd.BilinearScore(torch.zeros(1, 1)))
        tensor([[0.5000, 0.5000, 0.0000],
                [0.5000, 0.5000, 0.0000],
                [0.5000, 0.5000, 0.0000]])
    """
    weights = key_weights(prompt, score)
    return F.pad(weights, (0, len(prompt) - weights.shape[-1]))


def key_weights(prompt: Prompt, score: Score) -> Float[Tensor, "*batch token key"]:
    """The block of :func:`attention_weights` where keys can lie, the first ``num_keys`` tokens."""
    keys = prompt.features[..., : prompt.num_keys, :]
    scores = score(prompt.features, keys)
    expected = (*prompt.batch_shape, len(prompt), prompt.num_keys)
    check_shape("score(query, key)", scores, expected, "[*B, Q, K]")
    weights = masked_softmax(scores, prompt.is_transition[..., None, : prompt.num_keys])
    if prompt.is_terminal is not None:
        weights = torch.where(prompt.is_terminal[..., None], 0.0, weights)
    return weights


def masked_softmax(
    scores: Float[Tensor, "*batch query key"], is_key: Bool[Tensor, "*batch #query key"]
) -> Float[Tensor, "*batch query key"]:
    """Softmax over the keys that count; a row without any is 0, and gradients stay finite.

    A score of NaN counts: it is an error of whoever made it, and shows.
    """
    counts = is_key & (scores != -torch.inf)
    scores = torch.where(counts, scores, -torch.inf)
    scores = torch.where(counts.any(-1, keepdim=True), scores, 0.0)
    return torch.where(counts, scores.softmax(-1), 0.0)


def attend(
    query: Float[Tensor, "*batch query row"],
    key: Float[Tensor, "*batch key row"],
    value: Float[Tensor, "*batch key feature"],
    is_key: Bool[Tensor, "*batch key"],
) -> Float[Tensor, "*batch query feature"]:
    """``softmax(query keyᵀ) value`` by :func:`torch.nn.functional.scaled_dot_product_attention`.

    No scale factor. Keys that do not count have weight 0 and their values are zeroed too, since
    0·NaN is NaN; with no key at all the result is 0. No ``[query, key]`` matrix is kept where a
    fused kernel exists: those want four axes, rows that lie together in memory, and on CPUs values
    at least as wide as the keys (a value of width one took eleven times as long).
    """
    batch, width = query.shape[:-2], value.shape[-1]
    value = torch.where(is_key[..., None], value, 0.0)
    key = torch.where(is_key[..., None], key, 0.0)
    value = F.pad(value, (0, max(key.shape[-1] - width, 0)))
    allowed = is_key | ~is_key.any(-1, keepdim=True)  # all of them where none counts: values are 0
    query, key, value = (x.reshape(-1, 1, *x.shape[-2:]).contiguous() for x in (query, key, value))
    mask = allowed.reshape(-1, 1, 1, allowed.shape[-1])
    pooled = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)
    return pooled.reshape(*batch, *pooled.shape[-2:])[..., :width]
