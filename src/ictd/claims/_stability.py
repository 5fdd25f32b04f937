"""What stability reports say of episodes that end, and of contexts that miss states."""

from __future__ import annotations

import torch
from torch import Tensor

import ictd
from ictd.claims._draw import (
    count,
    excess,
    gap,
    geometric,
    normal,
    stochastic,
    uniform,
    walks,
    worst,
)
from ictd.claims._report import given


def one_layer(attention: Tensor, transition: Tensor, discount: Tensor, step: Tensor) -> Tensor:
    """The iteration matrix, one column at a time: what a layer makes of a unit error."""
    columns = []
    for error in torch.eye(attention.shape[-1], dtype=torch.float64):
        ahead = discount[:, None] * (transition * error).sum(-1)
        columns.append(error - step[:, None] * (attention * (error - ahead)[:, None, :]).sum(-1))
    return torch.stack(columns, -1)


def episodic(generator: torch.Generator) -> float:
    """Processes with a terminal state, which attention leaves out and whose value is 0."""
    transition, reward = stochastic(generator, 500, 4), normal(generator, 500, 4)
    going = torch.arange(4) < 3
    gamma, scores = uniform(generator, 500, high=0.9), normal(generator, 500, 4, 4)
    scores = scores + 8 * torch.eye(4)
    mrp = ictd.MarkovRewardProcess(transition, reward, gamma, terminal=(~going).expand(500, 4))
    features = torch.eye(4, dtype=torch.float64)
    attention = ictd.population_attention(mrp, features, given(scores))
    weight = mrp.stationary_distribution().unsqueeze(-2) * scores.exp() * going
    share = weight / weight.sum(-1, keepdim=True) * going.unsqueeze(-1)
    onward = gamma[:, None, None] * transition * going * going.unsqueeze(-1)
    value = (geometric(onward) @ (reward * going).unsqueeze(-1)).squeeze(-1)
    matrix = one_layer(share, onward / gamma[:, None, None], gamma, torch.ones_like(gamma))
    inside = matrix[:, :3, :3]
    report = ictd.stability(mrp, features, score=given(scores))
    seen = going.expand(500, 4)
    size = (value * going).abs().amax(-1)
    deviation = worst(
        gap(attention, share),
        gap(report.spectral_radius, torch.linalg.eigvals(inside).abs().amax(-1)),
        gap(report.discount, onward.sum(-1).amax(-1)),
        gap(report.diagonality, share[:, :3, :3].diagonal(dim1=-2, dim2=-1).amin(-1)),
    )
    for layers in (1, 6):
        found = ictd.lumped_td(
            attention, mrp.expected_reward(), transition, gamma, num_steps=layers, step_size=1.0
        )
        bound = ictd.depth_bound(attention, gamma, 1.0, layers, size, visited=seen)
        deviation = worst(deviation, excess((found - value).abs().amax(-1), bound)[0])
    return deviation


def of_contexts(generator: torch.Generator) -> float:
    """Contexts in which some states are not visited: the matrix of those that are."""
    walk, step = walks(generator, 500, 6, 4), uniform(generator, 500, low=0.05, high=2.0)
    ended = (torch.arange(7) == 6).expand(500, 7)  # half of them in a terminal state
    ended = ended & (torch.arange(500) < 250).unsqueeze(-1)
    states = torch.where(ended, 4, walk.states)
    record = ictd.Trajectory(states, walk.rewards, 0.1 + 0.8 * walk.discounts, is_terminal=ended)
    model, identity = count(record, 5), torch.eye(5, dtype=torch.float64)
    onward = model.transition.index_fill(-1, torch.tensor(4), 0.0)
    report = ictd.stability(
        record.prompt(identity), score=ictd.BilinearScore(identity), step_size=step
    )
    attention, seen = model.attention(identity.expand(500, 5, 5)), model.visited
    drift = (attention - attention @ onward) * seen.unsqueeze(-1) * seen.unsqueeze(-2)
    radius, limit = [], []
    for matrix, inside, alpha in zip(drift, seen, step, strict=True):
        values = torch.linalg.eigvals(matrix[inside][:, inside])
        radius.append((1 - alpha * values).abs().max())
        ratio = 2 * values.real / values.abs().square()
        limit.append(torch.where(values.real > 0, ratio, 0.0).min())
    return worst(
        gap(report.discount, onward.sum(-1).amax(-1)),
        gap(report.spectral_radius, torch.stack(radius)),
        gap(report.exact_step_limit, torch.stack(limit)),
    )
