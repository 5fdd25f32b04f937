"""A context as a model of its own states: distinct sources, counts, transitions among them."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ictd._checks import check_none, values_checkable
from ictd._closure import bootstrap_discounts
from ictd.mrp import MarkovRewardProcess
from ictd.prompt import Prompt
from ictd.scores import same_features


class Model(NamedTuple):
    """States with features, weights (0: left out) and discounted transitions."""

    features: Float[Tensor, "*batch state feature"]
    weights: Float[Tensor, "*batch state"]
    transition: Float[Tensor, "*batch state next_state"]


def same_sources(
    prompt: Prompt,
) -> tuple[Bool[Tensor, "*batch key key"], Bool[Tensor, "*batch key"]]:
    """Which keys are the same state, having the same features, and which are the first of it."""
    keys = prompt.features[..., : prompt.num_keys, :]
    is_key = prompt.is_transition[..., : prompt.num_keys]
    same = same_features(keys, keys) & is_key.unsqueeze(-1) & is_key.unsqueeze(-2)
    return same, is_key & ~same.tril(-1).any(-1)


def sources(prompt: Prompt) -> Model:
    """The states that transitions leave: tokens with equal features are one state.

    States stand in the order in which they come first. Batch items with fewer states than others
    have some of weight 0 at the end.
    """
    keys = prompt.num_keys
    is_key = prompt.is_transition[..., :keys]
    tokens = prompt.features[..., :keys, :]
    _, is_first = same_sources(prompt)
    order = is_first.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
    number = is_first.sum(-1)
    if values_checkable(number):
        order = order[..., : max(int(number.max()) if number.numel() else 0, 1)]
    there = torch.arange(order.shape[-1], device=order.device) < number.unsqueeze(-1)
    features = tokens.gather(-2, order.unsqueeze(-1).expand(*order.shape, tokens.shape[-1]))
    member = same_features(tokens, features) & is_key.unsqueeze(-1) & there.unsqueeze(-2)
    source = member.to(prompt.dtype)
    following = F.pad(prompt.features[..., 1:, :], (0, 0, 0, 1))[..., :keys, :]
    onto = same_features(following, features) & there.unsqueeze(-2)
    discounts = bootstrap_discounts(prompt._tensors())[..., :keys]
    expected = "no bootstrapped successor that is not a source (closure; .trim() helps)"
    check_none("prompt", (discounts != 0) & ~onto.any(-1), expected)
    counts = source.sum(-2)
    share = source / counts.clamp(min=1).unsqueeze(-2)
    transition = share.mT @ (discounts.unsqueeze(-1) * onto.to(prompt.dtype))
    return Model(features, counts, transition)


def stationary(mrp: MarkovRewardProcess, features: Float[Tensor, "*batch state feature"]) -> Model:
    """The states of a process, weighted by the stationary distribution; terminal ones weigh 0."""
    going = ~mrp.terminal
    weights = torch.where(going, mrp.stationary_distribution(), 0.0)
    both = going.unsqueeze(-1) & going.unsqueeze(-2)
    onward = mrp.discount.unsqueeze(-1).unsqueeze(-1) * mrp.transition
    return Model(features, weights, torch.where(both, onward, 0.0))
