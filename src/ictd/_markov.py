"""What a stochastic matrix alone decides: classes of states, and the stationary distribution."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ictd._checks import check_none, values_checkable


def reachable(
    edges: Bool[Tensor, "*batch state next_state"],
) -> Bool[Tensor, "*batch state next_state"]:
    """Return whether a path of any length (0 included) leads from state to next_state."""
    num_states = edges.shape[-1]
    reach = edges | torch.eye(num_states, dtype=torch.bool, device=edges.device)
    for _ in range((num_states - 1).bit_length()):  # each turn doubles the length of the paths
        reach = reach.float() @ reach.float() > 0
    return reach


def recurrent(
    reach: Bool[Tensor, "*batch state next_state"],
) -> Bool[Tensor, "*batch state"]:
    """Return which states are recurrent: reached again from wherever they lead to."""
    return (reach.logical_not() | reach.mT).all(-1)


def stationary_distribution(
    transition: Float[Tensor, "*batch state next_state"],
) -> Float[Tensor, "*batch state"]:
    """Return the stationary distribution of a chain with one recurrent class."""
    reach = reachable(transition > 0)
    is_recurrent = recurrent(reach)
    _check_unique(reach, is_recurrent)
    # Recurrent states first: elimination starts at the end, so transient states get exactly 0.
    order = is_recurrent.logical_not().to(torch.uint8).argsort(dim=-1, stable=True)
    work = transition.to(torch.promote_types(transition.dtype, torch.float32))
    rows = work.gather(-2, order.unsqueeze(-1).expand_as(work))
    weights = _gth(rows.gather(-1, order.unsqueeze(-2).expand_as(work)))
    found = (weights / weights.sum(-1, keepdim=True)).gather(-1, order.argsort(dim=-1))
    result = found.to(transition.dtype)
    lost = found.isfinite().logical_not() | (is_recurrent & (found < torch.finfo(found.dtype).tiny))
    lost = lost | (is_recurrent & (result == 0))
    wanted = f"a chain whose stationary distribution {result.dtype} can hold (take a wider dtype)"
    check_none("transition", lost, wanted, result)
    return result


def _gth(transition: Float[Tensor, "*batch state next_state"]) -> Float[Tensor, "*batch state"]:
    """Solve mu P = mu, up to a factor, by elimination without a subtraction.

    Grassmann, Taksar and Heyman (1985): leaving out the last state gives the chain watched only
    while it is elsewhere; 1 - P(n, n) is summed from the other entries of its row.
    """
    inflow: list[Tensor] = []  # [n - 1]: visits to n per visit to each i < n, without states > n
    for last in range(transition.shape[-1] - 1, 0, -1):
        columns, into_last = torch.split(transition, [last, 1], -1)
        others, leaving = torch.split(columns, [last, 1], -2)
        arriving, _ = torch.split(into_last, [last, 1], -2)
        per_visit = arriving / leaving.sum(-1, keepdim=True)
        inflow.insert(0, per_visit.squeeze(-1))
        transition = others + per_visit * leaving
    weights = torch.ones_like(transition).squeeze(-1)
    for visits in inflow:
        weights = torch.cat([weights, (weights * visits).sum(-1, keepdim=True)], -1)
    return weights


def _check_unique(
    reach: Bool[Tensor, "*batch state next_state"], is_recurrent: Bool[Tensor, "*batch state"]
) -> None:
    """Raise ValueError unless all recurrent states form one class."""
    if not values_checkable(reach):
        return
    mutual = reach & reach.mT
    first = mutual.to(torch.uint8).argmax(-1)  # the first state of one's class
    state = torch.arange(reach.shape[-1], device=reach.device)
    count = (is_recurrent & (first == state)).sum(-1)
    expected = "one recurrent class (with several the stationary distribution is not unique)"
    check_none("transition", count != 1, expected, count)
