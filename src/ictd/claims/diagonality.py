"""The results of chapter 5 on diagonality: where eigenvalues lie, and how bad a problem can be."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import ictd
from ictd.claims._diagonal import (
    STATES,
    distance,
    drift,
    one,
    radius,
    random_problems,
    worst_problems,
)
from ictd.claims._draw import excess, gap, stochastic, uniform, worst
from ictd.claims._registry import Outcome, claim
from ictd.claims._report import report_of, row

PAGE = "05-convergence"


@claim(
    "prop-false-conjecture",
    page=PAGE,
    statement="Six states on a ring have spectral radius over 0.9167; the conjecture said 0.906.",
    functions=("iteration_matrix", "spectral_radius", "contraction_factor"),
    tolerance=1e-12,
    exact=True,
)
def false_conjecture(generator: torch.Generator) -> Outcome:
    """The six eigenvalues against their formula."""
    eye = torch.eye(6, dtype=torch.float64)
    shift = eye.roll(1, -1)
    attention = 0.97 * eye + 0.03 * shift
    matrix = ictd.iteration_matrix(attention, shift.mT, 0.9, 1.0)
    angle = torch.arange(6, dtype=torch.float64) * (math.pi / 3)
    turn = torch.polar(torch.ones_like(angle), angle)
    formula = 0.057 - 0.03 * turn + 0.873 * turn.conj()
    vectors = turn ** torch.arange(6).unsqueeze(-1)  # column k: the powers of ω^k
    deviation = worst(
        gap(
            torch.view_as_real(matrix.to(torch.complex128) @ vectors),
            torch.view_as_real(formula * vectors),
        ),
        abs(float(formula[1].abs() ** 2) - 0.840519),
        abs(float(ictd.spectral_radius(matrix) - formula.abs().max())),
        float(ictd.contraction_factor(attention, 0.9, 1.0)) - 0.96,
    )
    false = float(ictd.spectral_radius(matrix)) > 0.9167 > 1 - 0.1 * (2 * 0.97 - 1)
    return Outcome(1, deviation if false else math.inf)


@claim(
    "thm-eigenvalue-region",
    page=PAGE,
    statement="Eigenvalues λ = m_0 ν have |ν - 1| ≤ d(|ν|), whatever the states are.",
    functions=("drift_matrix", "worst_case"),
    tolerance=1e-7,
    attained=0.995,
)
def eigenvalue_region(generator: torch.Generator) -> Outcome:
    """Random problems and rings with any diagonality, and the constructed ones."""
    batch = 5000
    least = uniform(generator, batch, low=0.05)
    discount = uniform(generator, batch, high=0.99)
    attention, onward = random_problems(generator, batch, least, discount)
    problems = [(least, discount, drift(attention, onward))]
    for m, g, _, matrix in worst_problems((0.0, 1.0)):
        problems.append((m, g, matrix))
    deviation, tightness = -math.inf, 0.0
    for m, g, matrix in problems:
        nu = torch.linalg.eigvals(matrix) / m[:, None]
        q, g = ((1 - m) / m)[:, None], g[:, None]
        over, ratio = excess((nu - 1).abs(), distance(nu.abs(), g, q))
        parabola = (nu.abs() - g * q) ** 2 + 2 - (1 + g**2) * (1 + q**2)
        deviation = worst(deviation, over, excess(parabola, 2 * nu.real)[0])
        tightness = max(tightness, ratio)
    return Outcome(batch, deviation, tightness)


@claim(
    "cor-sharp-rate",
    page=PAGE,
    statement="The spectral radius is at most ρ_*, and at most 1 - α(1 - ρ_1) for α ≤ 1.",
    functions=("sharp_rate", "asymptotic_rate"),
    tolerance=1e-9,
    attained=0.995,
)
def sharp_rate(generator: torch.Generator) -> Outcome:
    """Random problems, rings and constructed ones; and that ρ_1 is below the factor of a step."""
    batch = 5000
    least, discount = uniform(generator, batch, low=0.3), uniform(generator, batch, high=0.99)
    step = uniform(generator, batch, low=0.01, high=1.5)
    attention, onward = random_problems(generator, batch, least, discount)
    size = radius(drift(attention, onward), step)
    sharp = ictd.sharp_rate(least, discount, step)
    small = step <= 1
    closed = ictd.asymptotic_rate(least[small], discount[small], step[small])
    q = (1 - least[small]) / least[small]
    square = discount[small] ** 2 + q + (discount[small] * q) ** 2 / (1 + q)
    over, tightness = excess(size, sharp)
    deviation = worst(
        over,
        excess(size[small], closed)[0],
        excess(sharp[small][q < 1], closed[q < 1])[0],
        excess(sharp[small] ** 2, 1 - step[small] * (1 - square))[0],  # below 1 if ρ_1 is
        gap(closed, 1 - step[small] * (1 - square.sqrt())),
    )
    for m, g, a, matrix in worst_problems((0.3, 1.0, 1.02)):
        over, ratio = excess(radius(matrix, a), ictd.sharp_rate(m, g, a))
        deviation, tightness = worst(deviation, over), max(tightness, ratio)
    discount = uniform(generator, batch, low=0.25, high=0.99)
    least = (1 + discount) / 2 * (1 - uniform(generator, batch)) + uniform(generator, batch)
    least = torch.minimum(torch.maximum(least, (1 + discount) / 2), torch.ones(1).double())
    rate = ictd.asymptotic_rate(least, discount)
    deviation = worst(deviation, excess(rate, 2 - 2 * least + discount)[0])
    return Outcome(batch, deviation, tightness)


@claim(
    "cor-weaker-diagonality",
    page=PAGE,
    statement="Less diagonality is enough: for every α ≤ 1, and less again for small α.",
    functions=("diagonality_needed", "diagonality_step_limit", "step_size_limit", "stability"),
    tolerance=1e-9,
    attained=0.99,
)
def weaker_diagonality(generator: torch.Generator) -> Outcome:
    """The step limits that are promised against the exact ones; the report; the thresholds."""
    batch = 3000
    few = uniform(generator, 30, low=0.01, high=0.99)
    discount = few.repeat(batch // 30)
    deviation, tightness = -math.inf, 0.0
    for condition in ("every-step", "small-step", "sharp-small-step"):
        least = ictd.diagonality_needed(few, condition).repeat(batch // 30)
        least = least + (1 - least) * uniform(generator, batch, low=1e-6) ** 3
        q = (1 - least) / least
        attention, onward = random_problems(generator, batch, least, discount)
        exact = ictd.step_size_limit(drift(attention, onward))
        promised = ictd.diagonality_step_limit(least, discount)
        over, ratio = excess(promised, exact)
        deviation, tightness = worst(deviation, over), max(tightness, ratio)
        if condition == "every-step":
            deviation = worst(deviation, excess(torch.ones(batch).double(), promised)[0])
        if condition == "small-step":
            loss = (discount * q) ** 2 / (1 - discount**2 - q**2)
            deviation = worst(deviation, excess((1 - loss) / least, promised)[0])
    for m0, gamma in ((0.9, 0.9), (0.8, 0.9), (0.7, 0.5), (0.95, 0.99)):
        promised = ictd.diagonality_step_limit(*one(m0, gamma))
        attention, transition = ictd.worst_case(m0, gamma, float(promised), 300)
        exact = ictd.step_size_limit(drift(attention, gamma * transition))[None]
        over, ratio = excess(promised, exact)
        deviation, tightness = worst(deviation, over), max(tightness, ratio)

    m, g = uniform(generator, 500, low=0.3), uniform(generator, 500, high=0.99)
    step = uniform(generator, 500, low=0.05, high=1.5)
    attention, _ = random_problems(generator, 500, m, g)
    m = attention.diagonal(dim1=-2, dim2=-1).amin(-1)  # `off` has a diagonal too
    report = report_of(attention, stochastic(generator, 500, STATES), g, step)
    limit, rate = ictd.diagonality_step_limit(m, g), ictd.sharp_rate(m, g, step)
    every, small = _slack(m, g)
    deviation = worst(
        deviation,
        row(report, "weaker diagonality, every step", every, limit, rate),
        row(report, "weaker diagonality, small steps", small, limit, rate),
        float(_slack(ictd.diagonality_needed(few, "every-step"), few)[0].abs().max()),
        float(_slack(ictd.diagonality_needed(few, "small-step"), few)[1].abs().max()),
        gap(ictd.diagonality_needed(few, "norm"), (1 + few) / 2),
    )
    m, g = uniform(generator, 100, low=0.5), uniform(generator, 100, high=0.99)
    found, known = ictd.diagonality_step_limit(m, g), _on_grid(m, g)
    deviation = worst(deviation, excess(found, known)[0])
    if not bool((found > known - 1e-4).all()):
        deviation = math.inf
    least = ictd.diagonality_needed(few, "sharp")  # the rate is 1 there, and the limit 1
    deviation = worst(
        deviation,
        gap(ictd.sharp_rate(least, few), torch.ones_like(few)),
        gap(ictd.diagonality_step_limit(least, few), torch.ones_like(few)),
    )
    least = ictd.diagonality_needed(few, "sharp-small-step")
    below = ictd.diagonality_step_limit(least * (1 - 1e-6), few)
    above = ictd.diagonality_step_limit(least * (1 + 1e-6), few)
    if not bool(((below == 0) & (above > 0)).all()):
        deviation = math.inf
    return Outcome(3 * batch, deviation, tightness)


def _on_grid(m: Tensor, g: Tensor) -> Tensor:
    """The limit of the steps in (iii), from a grid."""
    m, g = m[:, None], g[:, None]
    q = (1 - m) / m
    low, high = (1 - g) * (1 - q), (1 + g) * (1 + q)
    e = low + (high - low) * torch.linspace(0, 1, 4001, dtype=torch.float64)
    ratio = (1 + e**2 - distance(e, g, q) ** 2) / e**2
    least: Tensor = (ratio / m).amin(-1).clamp(min=0)
    return least


def _slack(m: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """By how much (i) and (ii) hold."""
    q = (1 - m) / m
    every = 1 - g**2 - q - (g * q) ** 2 / (1 + q)
    return every, 2 - (1 + g**2) * (1 + q**2)


def ring_mode(matrix: Tensor) -> Tensor:
    """What a matrix of two rings does to the vectors (x ζ^k, y ζ^k): two by two numbers."""
    n = len(matrix) // 2
    angle = torch.arange(n, dtype=torch.float64) * (2 * math.pi / n)
    turn = torch.polar(torch.ones_like(angle), angle)
    rows = matrix[[0, n]].to(torch.complex128)
    return torch.stack([rows[:, :n] @ turn, rows[:, n:] @ turn], -1)


@claim(
    "thm-worst-case",
    page=PAGE,
    statement="Explicit problems of 2n states come as near to the sharp rate as one likes.",
    functions=("worst_case", "sharp_rate"),
    tolerance=1e-3,
    exact=True,
)
def worst_case(generator: torch.Generator) -> Outcome:
    """Both extremes over the region, from a grid, against eigenvalues of 400 states."""
    deviation, cases = 0.0, 40
    for _ in range(cases):
        m, g = float(uniform(generator, low=0.55, high=0.98)), float(uniform(generator, low=0.1))
        alpha = float(uniform(generator, low=0.1))
        q = (1 - m) / m
        e = torch.linspace((1 - g) * (1 - q), (1 + g) * (1 + q), 20001, dtype=torch.float64)
        real = (1 + e**2 - distance(e, *one(g, q)) ** 2) / 2
        largest = (1 - 2 * alpha * m * real + (alpha * m * e) ** 2).max().sqrt()
        for step, expected in ((alpha, float(largest)), (0.0, m * float(real.min()))):
            attention, transition = ictd.worst_case(m, g, step, 400)
            deviation = worst(
                deviation,
                gap(torch.stack([attention, transition]).sum(-1), torch.ones(2, 400).double()),
                float(-torch.minimum(attention, transition).min()),
                m - float(attention.diagonal().min()),
            )
            eye = torch.eye(2, dtype=torch.complex128)
            values = torch.linalg.eigvals(ring_mode(attention) @ (eye - g * ring_mode(transition)))
            found = (1 - step * values).abs().max() if step else values.real.min()
            deviation = worst(deviation, abs(float(found) - expected))
    attention, transition = ictd.worst_case(0.85, 0.9, 1.0, 80)
    matrix = ictd.iteration_matrix(attention, transition, 0.9, 1.0)
    values = torch.linalg.eigvals(eye - _mode_drift(attention, transition, 0.9))
    deviation = worst(deviation, abs(float(ictd.spectral_radius(matrix) - values.abs().max())))
    diverges = float(ictd.spectral_radius(matrix)) > 1.001
    return Outcome(cases, deviation if diverges else math.inf)


def _mode_drift(attention: Tensor, transition: Tensor, discount: float) -> Tensor:
    onward = torch.eye(2, dtype=torch.complex128) - discount * ring_mode(transition)
    return ring_mode(attention) @ onward
