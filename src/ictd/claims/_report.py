"""Rows of a stability report against the conditions that they stand for, written out."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

import ictd
from ictd.claims._draw import gap, normal, uniform, worst
from ictd.claims._kernels import Problem, orthonormal, same_diagonal


def row(
    report: ictd.StabilityReport,
    name: str,
    margin: Tensor,
    limit: Tensor,
    rate: Tensor,
    *,
    kept: Tensor | None = None,
) -> float:
    """How far a row is from a condition that holds where ``margin > 0``.

    It should hold exactly there, certify the steps below ``limit``, and ``rate`` at the report's
    step where that is one of them. Left out are problems on the edge of one of the three.
    """
    column, step = report.conditions.index(name), report.step_size
    limit = torch.where(margin > 0, limit, 0.0)
    sure = (step < limit) & (rate < 1)
    edges = torch.stack([margin, step - limit, torch.where(step < limit, rate - 1, 1.0)])
    kept = (edges.abs() > 1e-8).all(0) & (torch.ones_like(sure) if kept is None else kept)
    found = report.rate[:, column]
    same = (report.holds[:, column] == (margin > 0)) & ((found < 1) == sure)
    if not bool(same[kept].all()) or int(kept.sum()) < 100:
        return math.inf
    apart = torch.where(sure, found - rate, 0.0)[kept].abs().max()
    return worst(gap(report.step_limit[kept, column], limit[kept]), float(apart))


def any_scores(generator: torch.Generator, problem: Problem) -> Problem:
    """The problem with scores that are not symmetric, or symmetric and not definite, in a half."""
    few = len(problem.scores) // 4
    noise = normal(generator, 2 * few, *problem.scores.shape[1:]) / 4
    noise[few:] = noise[few:] + noise[few:].mT
    scores = problem.scores.clone()
    scores[few:] *= 1e-2  # nearly flat, so that the noise decides
    scores[: 2 * few] = scores[: 2 * few] / 4 + noise
    return problem._replace(scores=scores)


def step_sizes(generator: torch.Generator, problem: Problem) -> Tensor:
    """Steps, some of which are too long for any condition."""
    return uniform(generator, len(problem.scores), low=0.05, high=2.2)


def definite(problem: Problem) -> tuple[Tensor, Tensor]:
    """Whether the kernel is symmetric and positive definite (1 or -1), and where that is clear."""
    scores = problem.scores
    symmetric = ((scores - scores.mT).abs() < 1e-9).all(-1).all(-1)
    cosine = same_diagonal((scores + scores.mT) / 2).exp()
    least = torch.linalg.eigvalsh(cosine)[:, 0]
    return torch.where(symmetric & (least > 0), 1.0, -1.0).double(), least.abs() > 1e-9


def smallest(problem: Problem) -> Tensor:
    """The smallest eigenvalue of the attention, where it is self-adjoint."""
    matrix = orthonormal(problem.attention, problem.measure)
    found: Tensor = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)[:, 0]
    return found


def norm_row(report: ictd.StabilityReport, name: str, problem: Problem, norm: Tensor) -> float:
    """A row that bounds the norm of the transition: the two factors of the master theorem."""
    sign, clear = definite(problem)
    step, square = report.step_size, 1 - norm**2
    long = (1 + norm) * (2 - step * (1 + norm))
    loss = step * torch.where(step > 1, long, square) * smallest(problem)
    margin = torch.minimum(sign, 1 - norm)
    return row(report, name, margin, 2 / (1 + norm), (1 - loss).clamp(min=0).sqrt(), kept=clear)


def range_row(
    report: ictd.StabilityReport, name: str, problem: Problem, eta: Tensor, norm: Tensor
) -> float:
    """A row that bounds the numerical range: the factor and the steps of its proposition."""
    sign, clear = definite(problem)
    step, size = report.step_size, (1 + norm).square()
    loss = step * (2 * (1 - eta) - step * size) * smallest(problem)
    margin, limit = torch.minimum(sign, 1 - eta), 2 * (1 - eta) / size
    return row(report, name, margin, limit, (1 - loss).clamp(min=0).sqrt(), kept=clear)


def report_of(
    attention: Tensor, transition: Tensor, discount: Tensor, step: Tensor
) -> ictd.StabilityReport:
    """The report of processes whose population attention is this one."""
    mrp = ictd.MarkovRewardProcess(transition, torch.zeros_like(attention[..., 0]), discount)
    scores = (attention / mrp.stationary_distribution().unsqueeze(-2)).log()
    features = torch.eye(attention.shape[-1], dtype=torch.float64)
    return ictd.stability(mrp, features, score=given(scores), step_size=step)


def given(scores: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The score that looks at no features."""
    return lambda query, key: scores
