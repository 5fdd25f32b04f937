"""Contexts of every kind that the package accepts, as the checks of the algorithms need them."""

from __future__ import annotations

import torch
from torch import Tensor

import ictd
from ictd.claims._draw import episodes, gap, normal, pick, uniform, unit
from ictd.prompt import Prompt
from ictd.trajectory import Trajectory


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


def along_records(generator: torch.Generator) -> float:
    """Online TD along episodes, with a step size of its own at each token, one at a time."""
    record, _, _ = context(generator)
    flags = record.is_transition, record.is_terminal
    discounts = 0.1 + 0.8 * record.discounts  # into terminal states too, whose value is 0
    prompt = Prompt(record.features, record.rewards, discounts, *flags)
    steps, weights = uniform(generator, len(prompt)), normal(generator, 1000, 3)
    history = [weights]
    for j in range(len(prompt) - 1):
        here, there = prompt.features[:, j], prompt.features[:, j + 1]
        ahead = prompt.discounts[:, j] * (weights * there).sum(-1) * ~pinned(prompt)[:, j + 1]
        error = prompt.rewards[:, j] + ahead - (weights * here).sum(-1)
        error = error * prompt.is_transition[:, j]
        weights = weights + steps[j] * error.unsqueeze(-1) * here
        history.append(weights)
    found = ictd.online_td(prompt, step_size=steps, initial_weights=history[0], return_history=True)
    return gap(found.transpose(0, 1), torch.stack(history, 1))


def longest_closed(record: Trajectory) -> int:
    """How many transitions are in the longest prefix with closure, by trying all."""
    places = record.is_transition.nonzero()[:, 0].tolist()
    states, discounts = record.states.tolist(), record.discounts.tolist()
    return max(
        number
        for number in range(len(places) + 1)
        if {states[j + 1] for j in places[:number] if discounts[j] > 0}
        <= {states[j] for j in places[:number]}
    )
