"""The results of chapter 7 on two and three states."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

import ictd
from ictd.claims._draw import excess, gap, normal, uniform, unit, worst
from ictd.claims._kernels import (
    Problem,
    kernels,
    off_policy,
    on_policy,
    same_diagonal,
    smallest_real,
    swap,
)
from ictd.claims._registry import Outcome, claim

PAGE = "07-beyond-the-condition"
BATCH = 3000


def trace(matrix: Tensor) -> Tensor:
    """The sum of the diagonal."""
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


@claim(
    "prop-two-states",
    page=PAGE,
    statement="Two states are always stable; with one discount every α < 2/(1+γ) converges.",
    functions=("step_size_limit",),
    tolerance=1e-9,
    attained=0.999,
)
def two_states(generator: torch.Generator) -> Outcome:
    """On- and off-policy, rows that sum to less; a swap that attains the limit."""
    problem = on_policy(generator, kernels(generator, BATCH, 2))
    loose = off_policy(generator, problem)
    visits = loose.visits / 10 ** (4 * uniform(generator, BATCH, 2))
    tilted = problem._replace(visits=visits / visits.sum(-1, keepdim=True))
    apart = 40 * (torch.eye(2, dtype=torch.float64) - 1).repeat(100, 1, 1)
    swaps = swap(apart, uniform(generator, 100, high=0.99))
    deviation, tightness = worst(-float(smallest_real(loose.drift).min())), 0.0
    for case in (problem, tilted, swaps):
        eigenvalues = torch.linalg.eigvals(case.drift)
        over, ratio = excess(2 / (1 + case.discount), ictd.step_size_limit(case.drift))
        deviation = worst(deviation, over, float(eigenvalues.imag.abs().max()))
        tightness = max(tightness, ratio)
        deviation = worst(deviation, -float(eigenvalues.real.min()))
    return Outcome(3 * BATCH, deviation, tightness)


@claim(
    "prop-three-state-failure",
    page=PAGE,
    statement="Raw inner products on a cycle of three states diverge for 0.2624 ≤ γ < 1.",
    functions=("population_attention", "stability", "step_size_limit"),
    tolerance=1e-12,
    exact=True,
)
def three_state_failure(generator: torch.Generator) -> Outcome:
    """The attention in fractions, the threshold, and every γ on a grid on both sides of it."""
    powers = [[2 ** (f * h) for h in (1, 4, 5)] for f in (1, 4, 5)]
    rows = [[Fraction(x, sum(row)) for x in row] for row in powers]
    cycle = torch.tensor([[0, 0, 1], [1, 0, 0], [0, 1, 0]], dtype=torch.float64)
    stay = sum(rows[s][s] for s in range(3))
    cross = rows[0][1] + rows[1][2] + rows[2][0]
    threshold = (stay - 1) / (cross - 1)
    features = torch.tensor([[1.0], [4.0], [5.0]], dtype=torch.float64) * math.sqrt(math.log(2))
    score = ictd.BilinearScore(torch.eye(1, dtype=torch.float64))

    def process(discount: float) -> ictd.MarkovRewardProcess:
        return ictd.MarkovRewardProcess(cycle, torch.zeros(3, dtype=torch.float64), discount)

    attention = ictd.population_attention(process(0.9), features, score)
    expected = torch.tensor([[float(x) for x in row] for row in rows], dtype=torch.float64)
    deviation = gap(attention, expected)
    drift = ictd.drift_matrix(attention, cycle, 0.9)
    deviation = worst(deviation, abs(float(trace(drift)) - float(stay - Fraction(9, 10) * cross)))
    printed = [round(float(x), 5) for x in (stay, cross, threshold)]
    found = sorted(round(x, 4) for x in torch.linalg.eigvals(drift).real.tolist())
    if printed != [1.06852, 1.26116, 0.26236] or found != [-0.1453, -0.0212, 0.1]:
        deviation = math.inf
    grid = torch.linspace(0, 0.999, 2000, dtype=torch.float64)
    limits = ictd.step_size_limit(
        expected @ (torch.eye(3, dtype=torch.float64) - grid[:, None, None] * cycle)
    )
    if not torch.equal(limits > 0, grid < float(threshold)):
        deviation = math.inf
    report = ictd.stability(process(0.9), features, score=score)
    if bool(report.holds.any()) or not float(report.kernel_td_step_limit) > 0:
        deviation = math.inf
    return Outcome(len(grid), deviation)


def near_flat(generator: torch.Generator, num_states: int) -> Problem:
    """On-policy problems with κ(s, u) <= κ(s, s); a third have a kernel that is nearly flat."""
    scores = same_diagonal(kernels(generator, BATCH, num_states))
    flat = torch.where(uniform(generator, BATCH, 1, 1) < 0.3, 1e-3, 1.0)
    return on_policy(generator, flat * scores)


@claim(
    "prop-diagonal-entries",
    page=PAGE,
    statement="On-policy with κ(s,u) ≤ κ(s,s) the drift has a diagonal of at least (1-γ)M(s,s).",
    functions=("drift_matrix", "population_attention"),
    tolerance=1e-12,
    attained=0.99,
)
def diagonal_entries(generator: torch.Generator) -> Outcome:
    """Six states; kernels that are nearly flat attain it. Longer features break it."""
    problem = near_flat(generator, 6)
    attention = ictd.population_attention(
        problem.process(), torch.eye(6, dtype=torch.float64), problem.score()
    )
    transition = problem.onward / problem.discount[:, None, None]
    drift = ictd.drift_matrix(attention, transition, problem.discount)
    deviation = gap(drift, problem.drift)
    own = problem.attention.diagonal(dim1=-2, dim2=-1)
    least = (1 - problem.discount[:, None]) * own
    over, tightness = excess(least, problem.drift.diagonal(dim1=-2, dim2=-1))
    deviation = worst(deviation, over, excess(1 - problem.discount, trace(problem.drift))[0])
    raw = on_policy(generator, kernels(generator, BATCH, 6))
    breaks = bool((raw.drift.diagonal(dim1=-2, dim2=-1) < 0).any())
    return Outcome(BATCH, deviation if breaks else math.inf, tightness)


def three_states(generator: torch.Generator) -> Problem:
    """Three states with κ(s, s) = 1, many of them with a hub or on a cycle, up to γ = .999."""
    scores = same_diagonal(kernels(generator, BATCH, 3))
    scores[::3] *= 10
    return on_policy(generator, scores, high=0.999)


@claim(
    "thm-three-states",
    page=PAGE,
    statement="Three states are stable on-policy if κ(s,u) ≤ κ(s,s).",
    functions=("stability", "step_size_limit"),
    tolerance=1e-12,
    attained=0.99,
)
def three_state_stability(generator: torch.Generator) -> Outcome:
    """The inequality of the proof, 1-γ < trace; real parts; walks that end where they began."""
    problem = three_states(generator)
    lift = uniform(generator, BATCH, 3, 1) * (uniform(generator, BATCH, 1, 1) < 0.5).double()
    unequal = problem._replace(scores=problem.scores + torch.diag_embed(lift.squeeze(-1)))
    deviation, tightness = -math.inf, 0.0
    for case in (problem, unequal, near_flat(generator, 3)):
        over, ratio = excess(1 - case.discount, trace(case.drift))
        deviation, tightness = worst(deviation, over), max(tightness, ratio)
        size = torch.linalg.eigvals(case.attention).abs().amin(-1)
        clear = size > 1e-8  # where rounding does not decide the sign
        deviation = worst(deviation, -float(smallest_real(case.drift)[clear].min()))
    walk = torch.randint(3, (BATCH, 13), generator=generator)
    walk[:, :3], walk[:, -1] = torch.arange(3), 0
    zero = torch.zeros(BATCH, 13, dtype=torch.float64)
    record = ictd.Trajectory(walk, zero, zero + 0.99)
    features = unit(normal(generator, BATCH, 3, 2))
    prompt = record.prompt(features)
    report = ictd.stability(prompt, score=ictd.BilinearScore(4 * torch.eye(2, dtype=torch.float64)))
    clear = report.smallest_eigenvalue > 1e-8
    if not bool((report.exact_step_limit > 0)[clear].all()):
        deviation = math.inf
    return Outcome(3 * BATCH, deviation, tightness)


@claim(
    "thm-three-states-steps",
    page=PAGE,
    statement="Three states with a constant diagonal converge for every α ≤ 1.",
    functions=("step_size_limit",),
    tolerance=1e-10,
    attained=0.999,
)
def three_state_steps(generator: torch.Generator) -> Outcome:
    """The inequality of the proof, λ2 λ3 < λ2 + λ3, which cycles and γ → 1 nearly attain."""
    problem = three_states(generator)
    cycle = torch.eye(3, dtype=torch.float64).roll(1, -1).repeat(200, 1, 1)
    gamma = uniform(generator, 200, low=0.5, high=0.9999)
    third = torch.full((200, 3), 1 / 3, dtype=torch.float64)
    gamma[0] = 0.9999
    size = 10 ** uniform(generator, 200, 1, 1, high=1.6)
    size[0] = 40.0
    apart = size * (torch.eye(3).double() - 1)
    cycles = Problem(apart, third, gamma[:, None, None] * cycle, gamma)
    deviation, tightness = -math.inf, 0.0
    for case in (problem, cycles):
        total = trace(case.drift) - (1 - case.discount)
        product = torch.linalg.det(case.drift) / (1 - case.discount)
        over, ratio = excess(product, total)
        deviation, tightness = worst(deviation, over), max(tightness, ratio)
        clear = torch.linalg.eigvals(case.attention).abs().amin(-1) > 1e-8
        limit = ictd.step_size_limit(case.drift[clear])
        deviation = worst(deviation, excess(torch.ones_like(limit), limit)[0])
    return Outcome(BATCH, deviation, tightness)
