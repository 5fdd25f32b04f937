"""Draw the states of Markov chains from uniform numbers, the same on every device."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def sample_states(
    transition: Float[Tensor, "*batch state next_state"],
    initial: Float[Tensor, "*batch state"],
    terminal: Bool[Tensor, "*batch state"],
    start: Int[Tensor, "*batch"] | None,
    uniforms: Float[Tensor, "token *batch"],
) -> Int[Tensor, "*batch token"]:
    """Follow each chain for one token per uniform number; terminal states lead to `initial`.

    With a `start` the first number goes unused, so both ways use the same numbers afterwards.
    """
    batch, num_states = initial.shape[:-1], initial.shape[-1]
    first = thresholds(initial)
    rows = torch.where(terminal.unsqueeze(-1), first.unsqueeze(-2), thresholds(transition))
    rows = rows.reshape(-1, num_states, num_states)
    uniforms = uniforms.reshape(len(uniforms), -1)
    if start is None:
        start = invert(first.reshape(-1, num_states), uniforms[0])
    visited = [start.reshape(-1)]
    item = torch.arange(len(rows), device=rows.device)
    for uniform in uniforms[1:]:
        visited.append(invert(rows[item, visited[-1]], uniform))
    return torch.stack(visited, -1).reshape(*batch, len(uniforms))


def thresholds(probabilities: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch state"]:
    """Return the distribution function: -inf where it does not rise, inf where it is complete.

    The first threshold above a number in [0, 1) then belongs to a state of positive probability,
    however the sums were rounded (a GPU adds in another order, and may even let them fall).
    """
    sums = probabilities.detach().to(torch.float64).cumsum(-1)
    possible = probabilities > 0
    is_last = possible & (possible.flip(-1).cumsum(-1).flip(-1) == 1)
    return sums.masked_fill(~possible, -torch.inf).masked_fill(is_last, torch.inf)


def invert(
    table: Float[Tensor, "*batch state"], uniforms: Float[Tensor, "*batch"]
) -> Int[Tensor, "*batch"]:
    """Return the first state whose threshold lies above the uniform number."""
    return (table > uniforms.unsqueeze(-1)).to(torch.uint8).argmax(-1)
