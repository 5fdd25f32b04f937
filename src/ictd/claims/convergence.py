"""The results of chapter 5 on depth: the contraction, what attains it, what does without it."""

from __future__ import annotations

import torch
from torch import Tensor

import ictd
from ictd.claims._draw import excess, gap, geometric, normal, stochastic, uniform, worst
from ictd.claims._registry import Outcome, claim
from ictd.claims._report import given, report_of, row
from ictd.claims._stability import episodic, of_contexts, one_layer

PAGE = "05-convergence"


def norm(matrix: Tensor) -> Tensor:
    """The largest absolute row sum."""
    return matrix.abs().sum(-1).amax(-1)


def halves(diagonal: Tensor) -> tuple[Tensor, Tensor]:
    """Two blocks of two states that attend to themselves, and a chain that changes blocks."""
    block = torch.stack([diagonal, 1 - diagonal, 1 - diagonal, diagonal], -1).reshape(-1, 2, 2)
    zero, half = torch.zeros_like(block), torch.full_like(block, 0.5)
    attention = torch.cat([torch.cat([block, zero], -1), torch.cat([zero, block], -1)], -2)
    transition = torch.cat([torch.cat([zero, half], -1), torch.cat([half, zero], -1)], -2)
    return attention, transition


def diagonal_problems(
    generator: torch.Generator, batch: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Problems of four states with M(s,s) > (1+γ)/2 and 0 < α < 2/(1+γ); half near the worst."""
    discount = uniform(generator, batch, high=0.99)
    least = (1 + discount) / 2
    own = least + (1 - least) * uniform(generator, batch, low=1e-3)
    diagonal = own[:, None] + (1 - own[:, None]) * uniform(generator, batch, 4) ** 3
    diagonal[:, 0] = own
    attention, transition = halves(own)
    off, identity = stochastic(generator, batch, 4), torch.eye(4, dtype=torch.float64)
    off = off * (1 - identity)
    off = off / off.sum(-1, keepdim=True) * (1 - diagonal).unsqueeze(-1)
    mix = torch.where(uniform(generator, batch, 1, 1) < 0.5, 1.0, uniform(generator, batch, 1, 1))
    mix = torch.where(mix < 1, mix**4, mix)
    attention = mix * (off + identity * diagonal.unsqueeze(-1)) + (1 - mix) * attention
    transition = mix * stochastic(generator, batch, 4) + (1 - mix) * transition
    step = uniform(generator, batch, low=1e-3, high=0.999) * 2 / (1 + discount)
    return attention, transition, discount, step


@claim(
    "thm-depth",
    page=PAGE,
    statement="If M(s,s) > (1+γ)/2 and α < 2/(1+γ), a layer leaves at most ρ < 1 of the error.",
    functions=(
        "contraction_factor",
        "depth_bound",
        "iteration_matrix",
        "lumped_td",
        "population_attention",
        "stability",
    ),
    tolerance=1e-12,
    attained=0.99,
)
def depth(generator: torch.Generator) -> Outcome:
    """The matrix, the error after up to six layers, and that no step does better than 1/m_0.

    What the report says of attentions on both sides of the condition; and episodes that end.
    """
    attention, transition, discount, step = diagonal_problems(generator, 10_000)
    factor = ictd.contraction_factor(attention, discount, step)
    matrix = one_layer(attention, transition, discount, step)
    deviation = gap(ictd.iteration_matrix(attention, transition, discount, step), matrix)
    over, tightness = excess(norm(matrix), factor)
    deviation = worst(deviation, over, 0.0 if bool((factor < 1).all()) else torch.inf)

    widest = matrix.abs().sum(-1).argmax(-1)
    start = matrix[torch.arange(len(matrix)), widest].sign()  # it shrinks least
    value = normal(generator, 10_000, 4)
    reward = value - discount[:, None] * (transition @ value.unsqueeze(-1)).squeeze(-1)
    for layers in (1, 2, 6):
        found = ictd.lumped_td(
            attention,
            reward,
            transition,
            discount,
            num_steps=layers,
            step_size=step,
            initial_values=value + start,
        )
        bound = ictd.depth_bound(attention, discount, step, layers, 1.0)
        over, _ = excess((found - value).abs().amax(-1), bound)
        deviation = worst(deviation, over)

    least = attention.diagonal(dim1=-2, dim2=-1).amin(-1)
    best = ictd.contraction_factor(attention, discount, 1 / least)
    deviation = worst(deviation, gap(best, (1 + discount) / least - 1))
    deviation = worst(deviation, excess(best, factor)[0], episodic(generator))

    gamma, step = uniform(generator, 1000, high=0.99), uniform(generator, 1000, low=0.01, high=2.5)
    report = report_of(attention[:1000], transition[:1000], gamma, step)
    margin = 2 * least[:1000] - 1 - gamma
    rate = torch.maximum(1 - step * margin, step * (1 + gamma) - 1)
    deviation = worst(deviation, row(report, "diagonality", margin, 2 / (1 + gamma), rate))
    return Outcome(10_000, deviation, tightness)


@claim(
    "prop-depth-tight",
    page=PAGE,
    statement="Four states attain the factor ρ exactly; finite scores come as near as one likes.",
    functions=("contraction_factor", "lumped_attention"),
    tolerance=1e-9,
)
def depth_tight(generator: torch.Generator) -> Outcome:
    """Scores of -30 across the blocks are within e^-30 of the limit, and strictly inside."""
    discount = uniform(generator, 1000, high=0.99)
    least = (1 + discount) / 2
    own = least + (1 - least) * uniform(generator, 1000, low=1e-3, high=0.999)
    step = uniform(generator, 1000, low=1e-3) * 2 / (1 + discount)
    step[0], own[0], discount[0] = 1.0, 0.97, 0.9
    attention, transition = halves(own)
    matrix = one_layer(attention, transition, discount, step)
    first = 1 - step * (2 * own - 1 - discount)
    factor = torch.maximum(first, step * (1 + discount) - 1)
    sums = matrix.abs().sum(-1)
    deviation = worst(
        gap(sums, factor[:, None].expand_as(sums)),
        abs(float(norm(matrix[:1])) - 0.96),
        gap(ictd.contraction_factor(attention, discount, step), factor),
    )
    weights = torch.ones(1000, 4, dtype=torch.float64)
    features = torch.eye(4, dtype=torch.float64)
    for across in (3.0, 30.0):
        scores = torch.where(attention > 0, attention, 1.0).log()
        scores = torch.where(attention > 0, scores, scores.amin((-1, -2), keepdim=True) - across)
        softmax = ictd.lumped_attention(weights, features, given(scores))
        size = norm(one_layer(softmax, transition, discount, step))
        bound = ictd.contraction_factor(softmax, discount, step)
        if across < 10:
            deviation = worst(deviation, 0.0 if bool((size < bound).all()) else torch.inf)
        else:
            deviation = worst(deviation, gap(size, factor), gap(bound, factor))
    return Outcome(1000, deviation)


@claim(
    "prop-row-dominance",
    page=PAGE,
    statement="For small α a layer contracts iff the drift is strictly row-diagonally dominant.",
    functions=("drift_matrix", "iteration_matrix", "stability"),
    tolerance=1e-12,
)
def row_dominance(generator: torch.Generator) -> Outcome:
    """Attentions of every strength: about half of them contract. The report says which."""
    identity = torch.eye(4, dtype=torch.float64)
    share = uniform(generator, 3000, 1, 1, low=0.5)
    attention = share * identity + (1 - share) * stochastic(generator, 3000, 4)
    transition, discount = stochastic(generator, 3000, 4), uniform(generator, 3000, high=0.99)
    drift = ictd.drift_matrix(attention, transition, discount)
    diagonal = drift.diagonal(dim1=-2, dim2=-1)
    dominance = (2 * diagonal - drift.abs().sum(-1)).amin(-1)
    dominance = torch.where((diagonal > 0).all(-1), dominance, 1 - norm(identity - drift))
    step = uniform(generator, 3000, low=1e-2) / diagonal.amax(-1).clamp(min=1e-2)
    size = norm(one_layer(attention, transition, discount, step))
    deviation = gap(size, 1 - step * dominance)
    contracts = size < 1
    ahead = (attention @ transition).diagonal(dim1=-2, dim2=-1)
    needed = (1 - discount[:, None]) / 2 + discount[:, None] * ahead
    own = attention.diagonal(dim1=-2, dim2=-1)
    fine = bool((own > needed)[contracts].all()) and 500 < int(contracts.sum()) < 2500
    step, few = 3 * step[:1000], slice(1000)
    report = report_of(attention[few], transition[few], discount[few], step)
    own, size = diagonal[few], drift[few].abs().sum(-1)
    others = size - own.abs()
    rate = ((1 - step[:, None] * own).abs() + step[:, None] * others).amax(-1)
    margin = (own - others).amin(-1)
    found = row(report, "row dominance", margin, 2 / size.amax(-1), rate)
    return Outcome(3000, worst(deviation, found) if fine else torch.inf)


@claim(
    "thm-successor-attention",
    page=PAGE,
    statement="M = (1-γ)(I - γP)^-1 is a softmax, and with α = 1/(1-γ) one layer is exact.",
    functions=("successor_attention", "lumped_td", "lumped_attention"),
    tolerance=1e-11,
)
def successor(generator: torch.Generator) -> Outcome:
    """Against the sum of powers; from values far off."""
    transition, discount = stochastic(generator, 1000, 5), uniform(generator, 1000, high=0.99)
    attention = ictd.successor_attention(transition, discount)
    series = geometric(discount[:, None, None] * transition)
    reward, start = normal(generator, 1000, 5), 10 * normal(generator, 1000, 5)
    found = ictd.lumped_td(
        attention,
        reward,
        transition,
        discount,
        num_steps=1,
        step_size=1 / (1 - discount),
        initial_values=start,
    )
    step = uniform(generator, 1000) * 2 / (1 - discount)
    matrix = one_layer(attention, transition, discount, step)
    scalar = (1 - step * (1 - discount))[:, None, None] * torch.eye(5, dtype=torch.float64)
    mrp = ictd.MarkovRewardProcess(transition, reward, discount)
    weights = mrp.stationary_distribution()
    softmax = ictd.lumped_attention(
        weights, torch.eye(5).double(), given((attention / weights.unsqueeze(-2)).log())
    )
    deviation = worst(
        gap(attention, (1 - discount)[:, None, None] * series),
        gap(attention.sum(-1), torch.ones(1000, 5)),
        gap(found, (series @ reward.unsqueeze(-1)).squeeze(-1)),
        gap(matrix, scalar),
        gap(softmax, attention),
        float(-attention.amin()),
    )
    return Outcome(1000, deviation)


@claim(
    "prop-floor",
    page=PAGE,
    statement="With one discount 1 - α(1-γ) is always an eigenvalue: no attention is faster.",
    functions=("iteration_matrix", "spectral_radius"),
    tolerance=1e-9,
    attained=0.999999,
)
def floor(generator: torch.Generator) -> Outcome:
    """Attentions of every strength; those that leave T >= 0 have exactly this norm."""
    identity = torch.eye(4, dtype=torch.float64)
    share = uniform(generator, 2000, 1, 1) ** 0.3
    share[:500] = 1.0
    attention = share * identity + (1 - share) * stochastic(generator, 2000, 4)
    transition, discount = stochastic(generator, 2000, 4), uniform(generator, 2000, high=0.99)
    step = uniform(generator, 2000, low=1e-2)
    step[500:] *= 2
    matrix = ictd.iteration_matrix(attention, transition, discount, step)
    value = 1 - step * (1 - discount)
    deviation = gap(matrix.sum(-1), value[:, None].expand(-1, 4))
    positive = (matrix >= 0).all((-1, -2))
    deviation = worst(deviation, gap(norm(matrix)[positive], value[positive]))
    over, tightness = excess(value.abs(), ictd.spectral_radius(matrix))
    fine = 500 <= int(positive.sum()) < 2000
    return Outcome(2000, worst(deviation, over) if fine else torch.inf, tightness)


@claim(
    "prop-exact-step",
    page=PAGE,
    statement="The iteration converges iff every Re λ > 0 and α < min 2 Re λ / |λ|².",
    functions=("step_size_limit", "spectral_radius", "stability"),
    tolerance=1e-9,
)
def exact_step(generator: torch.Generator) -> Outcome:
    """Powers just inside the limit shrink, just outside they grow; the report of contexts."""
    identity = torch.eye(4, dtype=torch.float64)
    drift = normal(generator, 2000, 4, 4) / 2 + uniform(generator, 2000, 1, 1, high=2.0) * identity
    limit = ictd.step_size_limit(drift)
    stable = limit > 0
    radius = ictd.spectral_radius(identity - limit[:, None, None] * drift)
    deviation = gap(radius[stable], torch.ones(int(stable.sum()), dtype=torch.float64))
    clear = limit > 0.05  # closer to 0 the growth is too slow to see
    for share, shrinks in ((0.99, True), (1.01, False)):
        logs = _log_growth(identity - share * limit[clear][:, None, None] * drift[clear])
        if not bool(((logs < 0) == shrinks).all()):
            deviation = torch.inf
    for step in (1e-3, 1e-2, 0.1, 1.0):
        if bool((_log_growth(identity - step * drift[~stable]) < -1e-9).any()):
            deviation = torch.inf
    if not 500 < int(clear.sum()) < 1900:
        deviation = torch.inf
    return Outcome(2000, worst(deviation, of_contexts(generator)))


def _log_growth(matrix: Tensor) -> Tensor:
    """The logarithm of the growth of the powers of a matrix, from its 2^24-th."""
    log = torch.zeros(len(matrix), dtype=torch.float64)
    for _ in range(24):
        size = norm(matrix)
        log = 2 * (log + size.log())
        matrix = (matrix / size[:, None, None]) @ (matrix / size[:, None, None])
    return (log + norm(matrix).log()) / 2**24
