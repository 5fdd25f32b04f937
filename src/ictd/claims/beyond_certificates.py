"""The results of chapter 7 on certificates: tests by vectors, layers, what is left to correct."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

import ictd
from ictd.claims._draw import count, excess, gap, geometric, normal, uniform, walks, worst
from ictd.claims._kernels import (
    Problem,
    energy_norm,
    eye_like,
    kernels,
    norm,
    off_policy,
    on_policy,
    orthonormal,
    same_diagonal,
)
from ictd.claims._registry import Outcome, claim
from ictd.claims._report import norm_row, row, step_sizes

PAGE = "07-beyond-the-condition"
BATCH = 1500


def contexts(generator: torch.Generator) -> tuple[ictd.Trajectory, Tensor, Tensor, Tensor]:
    """Closed walks over four states: records, features, visits' counts, and transitions."""
    record = walks(generator, BATCH, 16, 4, low=0.5, high=0.95, all_states=True)
    features = torch.nn.functional.normalize(normal(generator, BATCH, 4, 3), dim=-1)
    model = count(record, 4)
    return record, features, model.counts, model.transition


@claim(
    "thm-schur",
    page=PAGE,
    statement="Any vector p > 0 gives a test of ‖G‖_a² < 1; iterating it reaches the norm.",
    functions=("schur_factor", "stability"),
    tolerance=1e-9,
    attained=0.999,
)
def schur(generator: torch.Generator) -> Outcome:
    """Vectors at random, the first one as a sum over transitions, and iterations up to 300."""
    record, features, counts, onward = contexts(generator)
    scores = 3 * features @ features.mT
    density = (scores.exp() @ counts.unsqueeze(-1)).squeeze(-1)
    measure = counts * density
    measure = measure / measure.sum(-1, keepdim=True)
    square = norm(orthonormal(onward, measure)) ** 2
    adjoint = onward.mT * measure.unsqueeze(-2) / measure.unsqueeze(-1)
    vector = torch.exp(2 * normal(generator, BATCH, 4, 1))
    factor = ((adjoint @ (onward @ vector)) / vector).amax((-1, -2))
    deviation, _ = excess(square, factor)

    here, there = record.states[:, :-1], record.states[:, 1:]
    row = onward.sum(-1)
    arriving = record.discounts[:, :-1] * (row * density).gather(-1, here)
    left = torch.zeros_like(counts).scatter_add(-1, there, arriving)
    by_counts = (left / (counts * density)).amax(-1)
    factors = [ictd.schur_factor(onward, measure, num_iterations=k) for k in (0, 1, 2, 5, 20, 300)]
    deviation = worst(deviation, gap(factors[0], by_counts), excess(square, factors[-1])[0])
    for before, after in itertools.pairwise(factors):
        deviation = worst(deviation, excess(after, before)[0])
    _, tightness = excess(square, factors[-1])
    if not float((square / factors[-1]).quantile(0.05)) > 0.999:
        deviation = math.inf

    sure = factors[2] < 1
    attention = scores.exp() * counts.unsqueeze(-2) / density.unsqueeze(-1)
    drift = attention @ (eye_like(onward) - onward)
    exact = ictd.step_size_limit(drift)
    deviation = worst(deviation, excess((2 / (1 + factors[2].sqrt()))[sure], exact[sure])[0])
    symmetric = orthonormal(attention, measure)
    least = torch.linalg.eigvalsh((symmetric + symmetric.mT) / 2)[:, 0]
    step = uniform(generator, BATCH, low=0.01)
    layer = orthonormal(eye_like(onward) - step[:, None, None] * drift, measure)
    kept = sure & (least > 1e-6)
    size = energy_norm(layer, symmetric) ** 2
    loss = step * (1 - factors[2]) * least
    deviation = worst(deviation, excess(size[kept], (1 - loss)[kept])[0])
    score = ictd.BilinearScore(3 * torch.eye(3, dtype=torch.float64))
    problem = Problem(scores, counts, onward, record.discounts.amax(-1))
    report = ictd.stability(
        record.prompt(features),
        score=score,
        step_size=step_sizes(generator, problem),
        num_iterations=2,
    )
    deviation = worst(deviation, norm_row(report, "Schur test", problem, factors[2].sqrt()))
    return Outcome(BATCH, deviation if int(kept.sum()) > 200 else math.inf, tightness)


@claim(
    "prop-weighted-norm",
    page=PAGE,
    statement="|T|w ≤ βw with β < 1 certifies every α < 2/(1+β), for any attention.",
    functions=("weighted_norm_factor", "step_size_limit", "stability"),
    tolerance=1e-10,
    attained=0.999999,
)
def weighted_norm(generator: torch.Generator) -> Outcome:
    """Weights at random and iterated, off-policy; the report, on-policy."""
    stationary = on_policy(generator, kernels(generator, BATCH))
    problem = off_policy(generator, stationary)
    drift, eye = problem.drift, eye_like(problem.onward)
    layer = (eye - drift).abs()
    weights = torch.exp(normal(generator, BATCH, 4, 1) / 2)
    deviation, tightness, best = -math.inf, 0.0, None
    step = uniform(generator, BATCH, low=0.01, high=1.9)[:, None, None]
    first = torch.ones_like(weights)
    for iteration in range(12):
        for vector in (weights, first):
            factor = (layer @ vector / vector).amax((-1, -2))
            size = ((eye - step * drift).abs() @ vector / vector).amax((-1, -2))
            bound = (1 - step[:, 0, 0]).abs() + step[:, 0, 0] * factor
            over, ratio = excess(size, bound)
            deviation, tightness = worst(deviation, over), max(tightness, ratio)
            sure = factor < 1
            limit, exact = 2 / (1 + factor[sure]), ictd.step_size_limit(drift[sure])
            deviation = worst(deviation, excess(limit, exact)[0])
        best = factor if best is None else best  # those of `first`
        deviation = worst(deviation, excess(factor, best)[0])
        best = torch.minimum(best, factor)
        found = ictd.weighted_norm_factor(eye - drift, num_iterations=iteration)
        deviation = worst(deviation, gap(found, best))
        weights, first = layer @ weights, layer @ first
        first = first / first.amax((-1, -2), keepdim=True)
    report = ictd.stability(
        stationary.process(),
        torch.eye(4, dtype=torch.float64),
        score=stationary.score(),
        step_size=step_sizes(generator, stationary),
        num_iterations=5,
    )
    beta = ictd.weighted_norm_factor(eye - stationary.drift, num_iterations=5)
    rate = (1 - report.step_size).abs() + report.step_size * beta
    off = row(report, "weighted row sums", 1 - beta, 2 / (1 + beta), rate)
    deviation = worst(deviation, off)
    return Outcome(BATCH, deviation if int(sure.sum()) > 100 else math.inf, tightness)


@claim(
    "prop-layers",
    page=PAGE,
    statement="So many layers bring the largest error below ε times the first.",
    functions=("layers_needed", "stability"),
    tolerance=1e-9,
    attained=0.99,
)
def layers(generator: torch.Generator) -> Outcome:
    """The error after the layers counted, from the worst start, and the two simpler formulas."""
    problem = on_policy(generator, same_diagonal(kernels(generator, BATCH)))
    features = torch.eye(4, dtype=torch.float64)
    step = uniform(generator, BATCH, low=0.2)
    report = ictd.stability(
        problem.process(), features, score=problem.score(), step_size=step, num_iterations=3
    )
    least, smallest = report.smallest_eigenvalue, report.smallest_weight
    deviation, tightness, tried = gap(smallest, problem.measure.amin(-1)), 0.0, 0
    layer = eye_like(problem.onward) - step[:, None, None] * problem.drift
    for name in ("Schur test", "numerical range"):
        rate = report.rate[:, report.conditions.index(name)]
        kept = (rate < 1) & (least > 1e-2)
        tried += int(kept.sum())
        needed = ictd.layers_needed(rate[kept], 1e-3, least[kept], smallest[kept])
        share = 1e-3 * (least * smallest)[kept].sqrt()
        expected = (share.log() / rate[kept].log()).ceil()
        deviation = worst(deviation, float((needed - expected).abs().max()))
        error = _power(layer[kept], needed).abs().sum(-1).amax(-1)
        over, ratio = excess(error, torch.full_like(error, 1e-3))
        deviation, tightness = worst(deviation, over), max(tightness, ratio)
        if name == "Schur test":
            beta = (2 / report.step_limit[kept, report.conditions.index(name)] - 1) ** 2
            simple = 2 / (step[kept] * (1 - beta) * least[kept]) * -share.log()
            deviation = worst(deviation, excess(needed, simple.ceil())[0])
    eta, size = report.numerical_range, report.transition_norm
    kept = (eta < 0.95) & (least > 1e-2)
    best = (1 - eta) / (1 + size) ** 2
    again = ictd.stability(
        problem.process(), features, score=problem.score(), step_size=best.clamp(min=1e-6)
    )
    rate = again.rate[kept, again.conditions.index("numerical range")]
    needed = ictd.layers_needed(rate, 1e-3, least[kept], smallest[kept])
    share = 1e-3 * (least * smallest)[kept].sqrt()
    simple = 2 * (1 + size[kept]) ** 2 / ((1 - eta[kept]) ** 2 * least[kept]) * -share.log()
    deviation = worst(deviation, excess(needed, simple.ceil())[0])
    bound = 2 * report.diagonality - 1
    deviation = worst(deviation, excess(bound[least > 1e-9], least[least > 1e-9])[0])

    gamma = uniform(generator, BATCH, low=0.1, high=0.99)  # one state: the count is exact
    number = ictd.layers_needed(gamma, 1e-3)
    over, ratio = excess(gamma**number, torch.full_like(gamma, 1e-3))
    deviation, tightness = worst(deviation, over), max(tightness, ratio)
    return Outcome(BATCH, deviation if tried > 400 else math.inf, tightness)


def _power(matrix: Tensor, exponents: Tensor) -> Tensor:
    """Each matrix to its own power, by squaring."""
    result, power, left = eye_like(matrix), matrix, exponents.long()
    while bool((left > 0).any()):
        odd = (left % 2 == 1)[:, None, None]
        result = torch.where(odd, result @ power, result)
        power, left = power @ power, left // 2
    return result


@claim(
    "prop-residual",
    page=PAGE,
    statement="Values are at most max |TD error| / (1-γ) from certainty equivalence.",
    functions=("residual_bound", "certainty_equivalence", "empirical_model"),
    tolerance=1e-10,
    attained=0.999999,
)
def residual(generator: torch.Generator) -> Outcome:
    """Any values; a constant error attains it where there is one discount."""
    deviation, tightness = -math.inf, 0.0
    for endings, low in ((0.1, 0.3), (0.0, 0.9)):
        record = walks(generator, BATCH, 16, 4, low=low, high=0.9, endings=endings, all_states=True)
        model = count(record, 4)
        value = model.value()
        found = ictd.certainty_equivalence(record, 4)
        deviation = worst(deviation, gap(found, value))
        off = normal(generator, BATCH, 4)
        off[: BATCH // 2] = off[: BATCH // 2, :1]
        errors = model.bellman_error(value + off)
        over, ratio = excess(off.abs().amax(-1), ictd.residual_bound(errors, 0.9))
        each = (geometric(model.transition) @ errors.abs().unsqueeze(-1)).squeeze(-1)
        deviation = worst(deviation, over, excess(off.abs(), each)[0])
        tightness = max(tightness, ratio)
    return Outcome(2 * BATCH, deviation, tightness)
