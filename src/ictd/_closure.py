"""Closure: every state that is bootstrapped from must itself be a source in the context."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def trim(
    tensors: Mapping[str, Tensor], same: Bool[Tensor, "*batch token token"]
) -> dict[str, Tensor]:
    """Cut token-aligned `tensors` to the largest closed prefix of transitions.

    `same` says which tokens hold the same state. See `closure_prefix` and `cut`.
    """
    prefix = closure_prefix(same, tensors["is_transition"], bootstrap_discounts(tensors))
    return cut(tensors, prefix)


def bootstrap_discounts(tensors: Mapping[str, Tensor]) -> Float[Tensor, "*batch token"]:
    """Return the discounts, with 0 where the successor is terminal: its value is not used."""
    if "is_terminal" not in tensors:
        return tensors["discounts"]
    terminal = F.pad(tensors["is_terminal"][..., 1:], (0, 1))
    return torch.where(terminal, 0.0, tensors["discounts"])


def closure_prefix(
    same: Bool[Tensor, "*batch token token"],
    is_transition: Bool[Tensor, "*batch token"],
    discounts: Float[Tensor, "*batch token"],
) -> Int[Tensor, "*batch"]:
    """Return the largest closed prefix, where ``same[..., i, j]`` says that tokens i, j are equal.

    Costs O(N²) memory; `closed_prefix` says what a closed prefix is.
    """
    length = is_transition.shape[-1]
    sources = same & is_transition.unsqueeze(-1)
    first = torch.where(sources.any(-2), sources.to(torch.uint8).argmax(-2), length)
    return closed_prefix(first, is_transition, discounts)


def closed_prefix(
    first_source: Int[Tensor, "*batch token"],
    is_transition: Bool[Tensor, "*batch token"],
    discounts: Float[Tensor, "*batch token"],
) -> Int[Tensor, "*batch"]:
    """Return the largest n' in 0..N for which the transitions of the first n' tokens are closed.

    They are closed if each that has a nonzero discount leads to a token whose state one of them
    leaves. ``first_source[..., j]`` is the first token, of those that a transition leaves, that
    holds the state of token j; N where there is none.
    """
    length = is_transition.shape[-1]
    bootstraps = is_transition & (discounts != 0)
    needed = torch.where(bootstraps, first_source.roll(-1, -1), -1).cummax(-1).values
    ends = torch.arange(1, length + 1, device=is_transition.device)
    return torch.where(needed < ends, ends, 0).amax(-1)


def cut(tensors: Mapping[str, Tensor], prefix: Int[Tensor, "*batch"]) -> dict[str, Tensor]:
    """Keep the transitions that leave the first `prefix` tokens, and drop tokens left over.

    A dropped transition has is_transition False, reward 0 and discount 0. A token goes if, in
    every batch item, it belonged to transitions (as source or successor) and now belongs to none:
    queries and padding stay, and so does token 0.
    """
    before = tensors["is_transition"]
    token = torch.arange(before.shape[-1], device=before.device)
    after = before & (token < prefix.unsqueeze(-1))
    orphans = _touched(before) & ~_touched(after) & (token > 0)
    kept = (~orphans).reshape(-1, before.shape[-1]).any(0)
    new = {**tensors, "is_transition": after}
    for name in ("rewards", "discounts"):
        new[name] = torch.where(before & ~after, 0.0, tensors[name])
    return {
        name: value[..., kept, :] if name == "features" else value[..., kept]
        for name, value in new.items()
    }


def _touched(is_transition: Bool[Tensor, "*batch token"]) -> Bool[Tensor, "*batch token"]:
    """Return which tokens are the source or the successor of a transition."""
    return is_transition | F.pad(is_transition, (1, 0))[..., :-1]


def visits(
    states: Int[Tensor, "*batch token"], counted: Bool[Tensor, "*batch token"], num_states: int
) -> Int[Tensor, "*batch state"]:
    """Return how many of the tokens that are counted hold each state."""
    none = states.new_zeros((*states.shape[:-1], num_states))
    return none.scatter_add(-1, states, counted.to(states.dtype))
