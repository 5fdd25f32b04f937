"""Fresh tasks, all at once: processes, features, contexts, and query transitions beside them.

Whatever is drawn depends on the seed of the replica, the stream and the number of the step, and on
nothing else: a run that goes on from a checkpoint sees the tasks that it would have seen. Random
numbers come from the CPU, in float64, so that they are the same on every device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ictd import chains
from ictd import features as feature_tables
from ictd._sampling import invert, sample_states, thresholds
from ictd.limits import EmpiricalModel
from ictd.mrp import MarkovRewardProcess
from ictd.pretraining.config import PretrainConfig
from ictd.trajectory import Trajectory

__all__ = ["Queries", "Tasks", "draw_tasks", "seeded"]

Stream = Literal["training", "evaluation", "weights"]
STREAMS: tuple[Stream, ...] = ("training", "evaluation", "weights")
ANYWHERE = 0.01  # how often a Garnet chain goes to any state: then it is irreducible


class Queries(NamedTuple):
    """Hold transitions that are independent of the contexts, given the tasks.

    Args:
        states: Drawn from the stationary distribution, ``[replica, task, query]``.
        successors: Likewise shaped.
        rewards: In reward units.
        discounts: 0 where the successor is terminal.
        returns: Discounted sums of the rewards of a rollout; None unless targets are Monte-Carlo.
    """

    states: Int[Tensor, "replica task query"]
    successors: Int[Tensor, "replica task query"]
    rewards: Float[Tensor, "replica task query"]
    discounts: Float[Tensor, "replica task query"]
    returns: Float[Tensor, "replica task query"] | None


@dataclasses.dataclass(frozen=True)
class Tasks:
    """Hold a batch of tasks ``[replica, task]``, with a context and queries for each.

    Args:
        mrp: The processes.
        features: Of every state, ``[replica, task, m, d]``.
        visits: The stationary distribution, 0 at terminal states, ``[replica, task, m]``.
        context: One trajectory each.
        record: What the context says of its process, as :func:`ictd.empirical_model` tells it.
        queries: Transitions of the same processes.
    """

    mrp: MarkovRewardProcess
    features: Float[Tensor, "replica task state feature"]
    visits: Float[Tensor, "replica task state"]
    context: Trajectory
    record: EmpiricalModel
    queries: Queries


def seeded(seed: int, stream: Stream, step: int = 0) -> torch.Generator:
    """Return a generator for one purpose, independent of those for all others."""
    mixed = np.random.SeedSequence([seed, STREAMS.index(stream), step])
    # 63 bits: what every generator of torch takes.
    return torch.Generator("cpu").manual_seed(
        int(mixed.generate_state(1, np.uint64)[0] >> np.uint64(1))
    )


def draw_tasks(
    config: PretrainConfig,
    seeds: Sequence[int],
    step: int,
    *,
    stream: Stream = "training",
    num_tasks: int | None = None,
    part: slice = slice(None),
    device: torch.device | None = None,
) -> Tasks:
    """Draw the tasks of one step, for every replica.

    Args:
        config: What to draw.
        seeds: One per replica.
        step: The number of the step.
        stream: What the tasks are for.
        num_tasks: Per replica; None: that of the config.
        part: Which of these tasks to return, all of which are drawn.
        device: Where the tasks live; None: that of the config.

    Returns:
        Tasks ``[len(seeds), …]``, in the config's dtype.
    """
    device = torch.device(config.device) if device is None else device
    numbers = draw_numbers(config, seeds, step, stream, num_tasks or config.num_tasks, part)
    return assemble(config, [number.to(device) for number in numbers])


def draw_numbers(
    config: PretrainConfig,
    seeds: Sequence[int],
    step: int,
    stream: Stream,
    num_tasks: int,
    part: slice,
) -> list[Tensor]:
    """Draw all that is random, one replica after the other, in float64 on the CPU."""
    rolls = config.horizon if config.target == "monte-carlo" else 1
    drawn: list[tuple[Tensor, ...]] = []
    for seed in seeds:
        generator = seeded(seed, stream, step)
        mrp = draw_processes(config, num_tasks, generator)
        table = draw_features(config, num_tasks, generator)
        length = config.context_length + 1
        walk = _uniform((num_tasks, length), generator)
        ask = _uniform((num_tasks, rolls + 1, config.num_queries), generator)
        fields = (mrp.transition, mrp.reward, mrp.initial, mrp.terminal, table, walk, ask)
        drawn.append(tuple(field[part] for field in fields))
    return [torch.stack(fields) for fields in zip(*drawn, strict=True)]


def assemble(config: PretrainConfig, numbers: Sequence[Tensor]) -> Tasks:
    """Make the tasks out of what :func:`draw_numbers` drew, where that is."""
    transition, reward, initial, terminal, table, walk, ask = numbers
    dtype = config.torch_dtype
    mrp = MarkovRewardProcess(
        transition.to(dtype),
        reward.to(dtype),
        config.discount,
        initial=initial.to(dtype),
        terminal=terminal,
    )
    visits = mrp.stationary_distribution().masked_fill(terminal, 0.0)
    visits = visits / visits.sum(-1, keepdim=True)
    context = _walk(mrp, walk.permute(2, 0, 1))
    queries = _ask(mrp, visits, ask.permute(2, 0, 1, 3), config.target == "monte-carlo")
    return Tasks(mrp, table.to(dtype), visits, context, _count(context, config.num_states), queries)


def draw_processes(
    config: PretrainConfig, num_tasks: int, generator: torch.Generator
) -> MarkovRewardProcess:
    """Draw processes ``[num_tasks]`` of the config's family, in float64 on the CPU."""
    m, shape, exact = config.num_states, (num_tasks,), torch.float64
    if config.family == "random-walk":
        return chains.random_walk(
            m - 2, discount=config.discount, batch_shape=shape, device="cpu", dtype=exact
        )
    if config.family == "garnet":
        found = chains.garnet(
            m,
            config.branching_factor,
            generator=generator,
            batch_shape=shape,
            device="cpu",
            dtype=exact,
        )
        mixed = (1 - ANYWHERE) * found.transition + ANYWHERE / m
        return MarkovRewardProcess(mixed, found.reward, found.discount, initial=found.initial)
    draw = chains.boyan_chain if config.family == "boyan" else chains.loop_chain
    return draw(m, generator=generator, batch_shape=shape, device="cpu", dtype=exact)


def draw_features(config: PretrainConfig, num_tasks: int, generator: torch.Generator) -> Tensor:
    """Draw feature tables ``[num_tasks, m, d]``, in float64 on the CPU."""
    m, d, shape = config.num_states, config.feature_dim, (num_tasks,)
    if config.features == "one-hot":
        return feature_tables.one_hot_features(
            m, batch_shape=shape, device="cpu", dtype=torch.float64
        )
    if config.features == "uniform":
        return 2 * _uniform((num_tasks, m, d), generator) - 1
    return feature_tables.unit_sphere_features(
        m, d, generator=generator, batch_shape=shape, device="cpu", dtype=torch.float64
    )


def _uniform(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.rand(tuple(shape), generator=generator, device="cpu", dtype=torch.float64)


def _walk(mrp: MarkovRewardProcess, uniforms: Tensor) -> Trajectory:
    """Follow every process for one token per uniform number ``[token, replica, task]``."""
    states = sample_states(mrp.transition, mrp.initial, mrp.terminal, None, uniforms)
    is_terminal = mrp.terminal.gather(-1, states)
    is_transition = is_terminal.logical_not()
    is_transition[..., -1] = False
    successors = states.roll(-1, -1)
    rewards = _rewards(mrp, states, successors).masked_fill(~is_transition, 0.0)
    bootstraps = is_transition & mrp.terminal.gather(-1, successors).logical_not()
    discounts = torch.where(bootstraps, mrp.discount.unsqueeze(-1), 0.0)
    return Trajectory(states, rewards, discounts, is_transition, is_terminal)


def _count(context: Trajectory, num_states: int) -> EmpiricalModel:
    """What :func:`ictd.empirical_model` says, by counting: contexts are many, states few."""
    source, counted = context.states, context.is_transition.to(context.dtype)
    pair = source * num_states + source.roll(-1, -1)
    zeros = counted.new_zeros((*source.shape[:-1], num_states**2))
    counts = zeros[..., :num_states].scatter_add(-1, source, counted)
    reward = zeros[..., :num_states].scatter_add(-1, source, context.rewards)
    onward = zeros.scatter_add(-1, pair, context.discounts)
    times = counts.clamp(min=1)
    onward = onward.reshape(*counts.shape, num_states) / times.unsqueeze(-1)
    return EmpiricalModel(counts, reward / times, onward)


def _ask(mrp: MarkovRewardProcess, visits: Tensor, uniforms: Tensor, returns: bool) -> Queries:
    """Draw transitions from the stationary distribution, and roll out what follows if asked to."""
    start = thresholds(visits).unsqueeze(-2)
    states = invert(start.expand(*uniforms.shape[1:], -1), uniforms[0])
    rows = thresholds(mrp.transition)

    def onward(states: Tensor, uniform: Tensor) -> Tensor:
        index = states.unsqueeze(-1).expand(*states.shape, rows.shape[-1])
        return invert(rows.gather(-2, index), uniform)

    def discounted(successors: Tensor) -> Tensor:
        ends = mrp.terminal.gather(-1, successors)
        return mrp.discount.unsqueeze(-1).expand(ends.shape).masked_fill(ends, 0.0)

    successors = onward(states, uniforms[1])
    rewards, discounts = _rewards(mrp, states, successors), discounted(successors)
    if not returns:
        return Queries(states, successors, rewards, discounts, None)
    total, weight, here = rewards, discounts, successors
    for uniform in uniforms[2:]:
        following = onward(here, uniform)
        total = total + weight * _rewards(mrp, here, following)
        weight, here = weight * discounted(following), following
    return Queries(states, successors, rewards, discounts, total)


def _rewards(mrp: MarkovRewardProcess, states: Tensor, successors: Tensor) -> Tensor:
    if mrp.reward.ndim != mrp.transition.ndim:
        return mrp.reward.gather(-1, states)
    return mrp.reward.flatten(-2).gather(-1, states * mrp.num_states + successors)
