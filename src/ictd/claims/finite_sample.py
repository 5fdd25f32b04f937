"""The results of chapter 5 on the context: how far certainty equivalence is from the value.

A bound that fails with probability at most δ is tried on many contexts: the deviation is the share
of those where it failed, minus δ, and the tightness the largest error in units of its bound where
it held.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

import ictd
from ictd.claims._draw import count, episodes, excess, gap, geometric, stochastic, uniform, worst
from ictd.claims._registry import Outcome, claim
from ictd.trajectory import Trajectory

PAGE = "05-convergence"
GAMMA, DELTA = 0.9, 0.1


def chains(
    generator: torch.Generator, batch: int, num_steps: int, num_states: int, discount: float = GAMMA
) -> tuple[ictd.MarkovRewardProcess, Trajectory]:
    """Random chains with rewards of ±1 of the right mean, and a closed context of each."""
    transition = (stochastic(generator, batch, num_states) + 0.02) / (1 + 0.02 * num_states)
    mean = uniform(generator, batch, num_states, low=-1.0)
    mrp = ictd.MarkovRewardProcess(transition, mean, discount)
    drawn = mrp.sample(num_steps, generator=generator)
    rewards = signs(generator, drawn.rewards)
    return mrp, Trajectory(drawn.states, rewards, drawn.discounts, drawn.is_transition).trim()


def signs(generator: torch.Generator, mean: Tensor) -> Tensor:
    """Random ±1 with these means."""
    return torch.where(uniform(generator, *mean.shape) < (1 + mean) / 2, 1.0, -1.0).double()


def coins(generator: torch.Generator, batch: int, num_steps: int, mean: float) -> Trajectory:
    """One state and rewards of ±1, without discount's future: its value is the mean."""
    rewards = signs(generator, torch.full((batch, num_steps + 1), mean, dtype=torch.float64))
    return Trajectory(torch.zeros_like(rewards).long(), rewards, torch.zeros_like(rewards))


def square_errors(context: Trajectory, values: Tensor) -> Tensor:
    """The sum over the visits of each state of the squared TD error."""
    here, there = context.states[:, :-1], context.states[:, 1:]
    ahead = context.discounts[:, :-1] * values.gather(-1, there)
    errors = context.rewards[:, :-1] + ahead - values.gather(-1, here)
    errors = torch.where(context.is_transition[:, :-1], errors, 0.0)
    return torch.zeros_like(values).scatter_add(-1, here, errors.square())


def missed(error: Tensor, width: Tensor) -> tuple[float, float]:
    """In which share of the contexts an error exceeds its width; the largest ratio elsewhere."""
    ratio = (error / width).nan_to_num(posinf=torch.inf).amax(-1)
    return float((ratio > 1).double().mean()), float(ratio[ratio <= 1].max())


@claim(
    "thm-certainty-error",
    page=PAGE,
    statement="With probability 1 - δ: |v̂ - v_π| ≤ (I - P̂)^-1 h, and its norm ≤ max h/(1-γ).",
    functions=("context_bound", "target_spread", "certainty_equivalence"),
    tolerance=1e-9,
    attained=0.7,
)
def certainty_error(generator: torch.Generator) -> Outcome:
    """Chains, and ten fair coins, which come near the bound."""
    mrp, context = chains(generator, 1000, 200, 3)
    value, seen = mrp.value(), count(context, 3)
    difference = torch.where(seen.visited, ictd.certainty_equivalence(context, 3) - value, 0.0)
    inverse = geometric(seen.transition)
    means = (inverse @ seen.bellman_error(value).unsqueeze(-1)).squeeze(-1)
    deviation = gap(difference, means)

    spread = ictd.target_spread(value, GAMMA, 1.0)
    dense = 2 + GAMMA * (value.max(-1).values - value.min(-1).values)
    width = dense[:, None] * (math.log(2 * 3 * 200 / DELTA) / 2 / seen.counts.clamp(min=1)).sqrt()
    width = torch.where(seen.visited, width, 0.0)
    each = ictd.context_bound(
        seen.counts, spread, GAMMA, 1 - DELTA, 200, transition=seen.transition
    )
    one = ictd.context_bound(seen.counts, spread, GAMMA, 1 - DELTA, 200)
    unseen = torch.nn.functional.pad(seen.counts, (0, 1))  # a fourth state, never left
    more = ictd.context_bound(unseen, spread, GAMMA, 1 - DELTA, 200)
    fewest = torch.where(seen.visited, seen.counts, torch.inf).amin(-1, keepdim=True)
    wider = dense[:, None] * (math.log(2 * 4 * 200 / DELTA) / 2 / fewest).sqrt()
    expected = (inverse @ width.unsqueeze(-1)).squeeze(-1)
    deviation = worst(
        deviation,
        gap(torch.where(seen.visited, each, 0.0), torch.where(seen.visited, expected, 0.0)),
        gap(one, width.amax(-1) / (1 - GAMMA)),
        gap(more, wider.amin(-1) / (1 - GAMMA)),
        excess(expected.amax(-1), one)[0],
    )

    flips = coins(generator, 2000, 10, 0.0)
    counts, spread = count(flips, 1).counts, torch.full((2000,), 2.0, dtype=torch.float64)
    narrow = ictd.context_bound(counts, spread, 0.0, 1 - DELTA, 10)
    error = ictd.certainty_equivalence(flips, 1).abs()
    rates, ratios = zip(
        missed(difference.abs(), each), missed(error, narrow.unsqueeze(-1)), strict=True
    )
    return Outcome(3000, worst(deviation, *(r - DELTA for r in rates)), max(ratios))


@claim(
    "cor-depth-context",
    page=PAGE,
    statement="The error after L layers is at most ρ^L |v_0 - v̂| + |v̂ - v_π|.",
    functions=("depth_bound", "context_bound", "empirical_attention", "lumped_td", "softmax_td"),
    tolerance=1e-12,
    attained=0.9,
)
def depth_context(generator: torch.Generator) -> Outcome:
    """One-hot features; the attention of the context, counted apart."""
    mrp, context = chains(generator, 1000, 150, 3)
    value, seen = mrp.value(), count(context, 3)
    identity = torch.eye(3, dtype=torch.float64)
    strength = uniform(generator, 1000, 1, 1, low=9.0, high=15.0)

    def score(query: Tensor, key: Tensor) -> Tensor:
        return strength * (query @ key.mT)

    attention = ictd.empirical_attention(context, identity, score)
    expected = seen.attention((strength * identity).expand(1000, 3, 3))
    deviation = gap(attention, expected)
    factor = ictd.contraction_factor(attention, GAMMA, 1.0, visited=seen.visited)
    deviation = worst(deviation, 0.0 if bool((factor < 1).all()) else torch.inf)
    v_hat = ictd.certainty_equivalence(context, 3)
    apart = torch.where(seen.visited, v_hat - value, 0.0).abs().amax(-1)
    far = torch.where(seen.visited, v_hat, 0.0).abs().amax(-1)
    widest = ictd.context_bound(
        seen.counts, ictd.target_spread(value, GAMMA, 1.0), GAMMA, 1 - DELTA, 150
    )
    few = context[:100].prompt(identity)
    tokens = ictd.softmax_td(
        few, lambda q, k: strength[:100] * (q @ k.mT), num_steps=30, step_size=1.0
    )
    tightness = 0.0
    for layers in (1, 5, 30):
        bound = ictd.depth_bound(attention, GAMMA, 1.0, layers, far, visited=seen.visited)
        found = ictd.lumped_td(
            attention, seen.reward, seen.transition, 1.0, num_steps=layers, step_size=1.0
        )
        error = torch.where(seen.visited, found - value, 0.0).abs().amax(-1)
        over, ratio = excess(error, bound + apart)
        failed = float((error > bound + widest).double().mean())
        deviation, tightness = worst(deviation, over, failed - DELTA), max(tightness, ratio)
    deviation = worst(deviation, gap(found.gather(-1, context.states)[:100], tokens))

    record = episodes(generator, 1000, 14, 5)  # state 5 is terminal: it attends to nothing
    one_hot = torch.eye(6, dtype=torch.float64)
    found = ictd.empirical_attention(record, one_hot, ictd.BilinearScore(one_hot))
    expected = count(record, 6).attention(one_hot.expand(1000, 6, 6)).nan_to_num(0.0)
    assert record.is_terminal is not None
    ended = record.is_terminal.any(-1)
    expected[:, 5] = torch.where(ended[:, None], 0.0, expected[:, 5])
    return Outcome(1000, worst(deviation, gap(found, expected)), tightness)


@claim(
    "lem-empirical-bernstein",
    page=PAGE,
    statement="A mean of N is off by at most √(2 V̂ x/N) + 3bx/N, except with probability 3 e^-x.",
    functions=("componentwise_bound",),
    tolerance=1e-12,
    attained=0.5,
)
def empirical_bernstein(generator: torch.Generator) -> Outcome:
    """Coins of every bias, a state of its own each; rare tails come near the bound."""
    cases, deviation, tightness = 0, 0.0, 0.0
    for delta in (0.05, 0.2, 0.5):
        for mean in (-0.84, -0.5, 0.0):
            context = coins(generator, 1000, 60, mean)
            width = ictd.componentwise_bound(
                context,
                1,
                discount=0.0,
                reward_bound=1.0,
                confidence=1 - delta,
                num_steps=1,
            )
            rewards, x = context.rewards[:, :60], math.log(3 / delta)
            variance = rewards.var(-1, correction=0)
            expected = (2 * variance * x / 60).sqrt() + 3 * 2 * x / 60
            error = (rewards.mean(-1) - mean).abs()
            rate, ratio = missed(error[:, None], width)
            deviation = worst(deviation, gap(width[:, 0], expected.clamp(max=2.0)), rate - delta)
            cases, tightness = cases + 1000, max(tightness, ratio)
    return Outcome(cases, deviation, tightness)


@claim(
    "thm-computable-bound",
    page=PAGE,
    statement="With probability 1 - δ every e_i computed from the data bounds |v̂ - v_π|.",
    functions=("componentwise_bound",),
    tolerance=1e-9,
    attained=0.1,
)
def computable_bound(generator: torch.Generator) -> Outcome:
    """Chains, and two states of rare rewards; the first steps against the formula."""
    mrp, context = chains(generator, 1000, 300, 2, discount=0.3)
    value, seen = mrp.value(), count(context, 2)
    v_hat, inverse = seen.value(), geometric(seen.transition)
    known = torch.where(seen.visited, v_hat, 0.0)
    share = math.log(3 * 2 * 300 / DELTA) / seen.counts.clamp(min=1)
    spread_at = (square_errors(context, known) / seen.counts.clamp(min=1)).sqrt()

    common: dict[str, Any] = {
        "discount": 0.3,
        "reward_bound": 1.0,
        "confidence": 1 - DELTA,
        "num_steps": 300,
    }
    limit = 2 / 0.7
    bound = torch.where(seen.visited, limit, 0.0 * value)
    whole = seen.visited.all(-1, keepdim=True)
    deviation, tightness = 0.0, 0.0
    for iterations in range(3):
        found = ictd.componentwise_bound(context, 2, num_iterations=iterations, **common)
        deviation = worst(deviation, gap(torch.where(seen.visited, found, 0.0), bound))
        rate, ratio = missed((v_hat - value).abs(), torch.where(seen.visited, found, torch.inf))
        deviation, tightness = worst(deviation, rate - DELTA), max(tightness, ratio)
        span = v_hat.amax(-1, keepdim=True) - v_hat.amin(-1, keepdim=True)
        span = (span + 2 * bound.amax(-1, keepdim=True)).clamp(max=limit)
        spread = 2 + 0.3 * torch.where(whole, span, limit)
        ahead = 0.3 * (seen.transition / 0.3 @ bound.square().unsqueeze(-1)).squeeze(-1).sqrt()
        width = (2 * share).sqrt() * (spread_at + ahead) + 3 * spread * share
        new = (inverse @ torch.where(seen.visited, width, 0.0).unsqueeze(-1)).squeeze(-1)
        bound = torch.minimum(bound, new)
    states = (torch.arange(401) % 2).expand(1000, 401)
    rewards = signs(generator, torch.full((1000, 401), -0.97, dtype=torch.float64))
    rare = Trajectory(states, rewards, torch.full_like(rewards, 0.3))
    common |= {"confidence": 0.5, "num_steps": 400}
    error = (count(rare, 2).value() + 0.97 / 0.7).abs()
    rate, ratio = missed(error, ictd.componentwise_bound(rare, 2, **common))
    return Outcome(2000, worst(deviation, rate - 0.5), max(tightness, ratio))


@claim(
    "prop-plug-in",
    page=PAGE,
    statement="As the context grows, v̂ ± z se covers each value as often as it says.",
    functions=("plug_in_interval",),
    tolerance=1e-9,
)
def plug_in(generator: torch.Generator) -> Outcome:
    """Contexts of 800 transitions: .9 and .8, to four standard errors of the measured share.

    And the widths: of three values at once too, and where states are seldom left.
    """
    mrp, context = chains(generator, 3000, 800, 3)
    value, seen = mrp.value(), count(context, 3)
    often = seen.counts.amin(-1) >= 30
    deviation = 0.0
    inverse = geometric(seen.transition)
    known = seen.value()
    per_mean = square_errors(context, known) / (seen.counts * (seen.counts - 1)).clamp(min=1)
    error = (inverse.square() @ per_mean.unsqueeze(-1)).squeeze(-1).sqrt()
    normal = NormalDist()
    for confidence in (0.9, 0.8):
        quantile = normal.inv_cdf((1 + confidence) / 2)
        values, width = ictd.plug_in_interval(context, 3, confidence=confidence)
        deviation = worst(deviation, gap(values[often], known[often]))
        deviation = worst(deviation, gap(width[often], quantile * error[often]))
        covered = ((values - value).abs() <= width)[often].double().mean()
        deviation = worst(deviation, abs(float(covered) - confidence) - 0.03)
    of_three = normal.inv_cdf(1 - 0.1 / 3 / 2)
    _, width = ictd.plug_in_interval(context, 3, confidence=0.9, simultaneous=True)
    deviation = worst(deviation, gap(width[often], of_three * error[often]))
    # a fourth state is never left, two of the others once: no variance
    rewards = signs(generator, torch.zeros(1000, 6, dtype=torch.float64))
    states = torch.tensor([0, 0, 1, 2, 0, 0]).expand(1000, 6)
    short = Trajectory(states, rewards, torch.zeros_like(rewards))
    _, width = ictd.plug_in_interval(short, 4, confidence=0.9, simultaneous=True)
    own = rewards[:, torch.tensor([0, 1, 4])].std(-1) / math.sqrt(3)
    deviation = worst(deviation, gap(width[:, 0], of_three * own))
    if not bool(width[:, 1:3].isinf().all()):
        deviation = math.inf
    return Outcome(int(often.sum()), deviation)
