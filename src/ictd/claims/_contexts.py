"""Contexts of every kind that the package accepts, as the checks of the algorithms need them."""

from __future__ import annotations

import torch
from torch import Tensor

from ictd.claims._draw import episodes, normal, pick, unit
from ictd.prompt import Prompt


def context(generator: torch.Generator, dim: int = 3) -> tuple[Prompt, Tensor, Tensor]:
    """Episodes with queries, values to start from (a function of the state), and the states."""
    record = episodes(generator, 1000, 14, 5)
    features = unit(normal(generator, 1000, 8, dim))
    prompt = record.prompt(features[:, :6]).with_queries(features[:, 6:])
    extra = torch.tensor([6, 7]).expand(1000, 2)
    states = torch.cat([record.states, extra], -1)
    start = pick(normal(generator, 1000, 8), states)
    return prompt, start.masked_fill(states == 5, 0.0), states


def errors_at(prompt: Prompt, values: Tensor) -> Tensor:
    """TD errors at transitions, 0 elsewhere, written out."""
    following = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], -1)
    return torch.where(
        prompt.is_transition, prompt.rewards + prompt.discounts * following - values, 0.0
    )


def pinned(prompt: Prompt) -> Tensor:
    """Which tokens are terminal."""
    assert prompt.is_terminal is not None
    return prompt.is_terminal
