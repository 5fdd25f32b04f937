"""The conditions of :func:`ictd.stability`, from numbers that are safe from overflow."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ictd._energy import (
    block,
    log_row_mass,
    log_weights,
    numerical_abscissa,
    similar,
    spectral_norm,
    times,
    trial_factor,
)
from ictd._linear import eigenvalues, symmetric_eigenvalues
from ictd.attention import masked_softmax
from ictd.diagonality import asymptotic_rate, diagonality_step_limit, sharp_rate
from ictd.spectrum import step_limits
from ictd.stability_report import CONDITIONS

Scalar = Float[Tensor, "*batch"]
Vector = Float[Tensor, "*batch state"]
Matrix = Float[Tensor, "*batch state state"]


class Kernel(NamedTuple):
    """What the scores say of the states that count."""

    attention: Matrix  # M, 0 outside the visited states
    log_mass: Vector  # log z
    symmetric: Bool[Tensor, "*batch"]
    definite: Bool[Tensor, "*batch"]  # e^g, on the visited states, up to rounding
    semidefinite: Bool[Tensor, "*batch"]
    smallest: Scalar  # the smallest eigenvalue of M; NaN if not definite


class Certificates:
    """Collect what each condition certifies at a given step size."""

    def __init__(self, step_size: Scalar) -> None:
        self.step = step_size
        self._found: dict[str, tuple[Tensor, Tensor, Tensor]] = {}

    def add(self, name: str, holds: Tensor, limit: Tensor, rate: Tensor) -> None:
        """Enter a condition: every step below the limit converges, this one at the rate."""
        limit = torch.where(holds, limit, 0.0)
        rate = torch.where(self.step < limit, rate, torch.inf)
        self._found[name] = (holds, torch.where(rate < 1, rate, torch.inf), limit)

    def stacked(self) -> tuple[Tensor, Tensor, Tensor]:
        """Holds, rates and limits with an axis of conditions at the end."""
        holds, rate, limit = zip(*(self._found[name] for name in CONDITIONS), strict=True)
        return torch.stack(holds, -1), torch.stack(rate, -1), torch.stack(limit, -1)

    def diagonality(self, m: Scalar, g: Scalar) -> None:
        """C1 and H1: from the smallest diagonal entry and the largest discount."""
        a = self.step
        one_step = torch.maximum(1 - a * (2 * m - 1 - g), a * (1 + g) - 1)
        self.add("diagonality", 2 * m > 1 + g, 2 / (1 + g), one_step)
        usable = m.clamp(min=torch.finfo(m.dtype).tiny ** 0.25, max=1)
        limit, rate = diagonality_step_limit(usable, g), sharp_rate(usable, g, a)
        every = asymptotic_rate(usable, g) < 1
        self.add("weaker diagonality, every step", every, limit, rate)
        q = (1 - usable) / usable
        small = (1 + g**2) * (1 + q**2) < 2
        self.add("weaker diagonality, small steps", small, limit, rate)

    def rows(self, drift: Matrix, visited: Bool[Tensor, "*batch state"], iterations: int) -> None:
        """C3 and H3.2: absolute row sums, plain and weighted."""
        a = self.step.unsqueeze(-1)
        diagonal = drift.diagonal(dim1=-2, dim2=-1)
        others = drift.abs().sum(-1) - diagonal.abs()
        dominant = ((diagonal > others) | ~visited).all(-1)
        size = torch.where(visited, diagonal + others, 1.0)
        limit = torch.where(visited, 2 / size, torch.inf).amin(-1)
        norm = torch.where(visited, (1 - a * diagonal).abs() + a * others, 0.0).amax(-1)
        self.add("row dominance", dominant, limit, norm)
        full = torch.diag_embed(visited.to(drift.dtype)) - drift
        factor = trial_factor(times(full.abs()), torch.ones_like(diagonal), iterations)
        rate = (1 - self.step).abs() + self.step * factor
        self.add("weighted row sums", factor < 1, 2 / (1 + factor), rate)

    def norm(self, name: str, norm: Scalar, kernel: Kernel) -> None:
        """E1 with Λ = 1: a bound of the norm of the transition, below 1."""
        a, sound = self.step, kernel.definite & (norm < 1)
        loss = torch.where(a <= 1, a * (1 - norm**2), a * (1 + norm) * (2 - a * (1 + norm)))
        self.add(name, sound, 2 / (1 + norm), _energy_rate(loss, kernel))

    def abscissa(self, name: str, abscissa: Scalar, norm: Scalar, kernel: Kernel) -> None:
        """E1': a bound of the numerical range, below 1, and of the norm."""
        a, sound = self.step, kernel.definite & (abscissa < 1)
        square = (1 + norm) ** 2
        loss = 2 * a * (1 - abscissa) - a**2 * square
        self.add(name, sound, 2 * (1 - abscissa) / square, _energy_rate(loss, kernel))


def _energy_rate(loss: Scalar, kernel: Kernel) -> Scalar:
    """The factor in the M⁻¹ norm where a layer takes the share ``loss · λ`` of its square."""
    return (1 - loss * kernel.smallest).clamp(min=0).sqrt()


def read(scores: Matrix, weights: Vector) -> Kernel:
    """Look at the kernel e^g: the attention, the row masses, symmetry and eigenvalues."""
    visited = weights > 0
    log = log_weights(weights)
    attention = masked_softmax(scores + log.unsqueeze(-2), visited.unsqueeze(-2))
    attention = torch.where(visited.unsqueeze(-1), attention, 0.0)
    inside = visited.unsqueeze(-1) & visited.unsqueeze(-2)
    finite = scores.isfinite()
    eps = torch.finfo(scores.dtype).eps
    size = torch.where(inside & finite, scores, 0.0).abs().amax((-2, -1), keepdim=True)
    close = (scores == scores.mT) | ((scores - scores.mT).abs() <= 64 * eps * (1 + size))
    own = scores.diagonal(dim1=-2, dim2=-1)
    symmetric = (close | ~inside).all((-2, -1)) & (own.isfinite() | ~visited).all(-1)
    usable = inside & symmetric.unsqueeze(-1).unsqueeze(-1)
    mean = (scores + scores.mT) / 2
    own = torch.where(usable.any(-1), own, 0.0)
    cosine = _exponential(mean - (own.unsqueeze(-1) + own.unsqueeze(-2)) / 2, usable)
    least = symmetric_eigenvalues(cosine).amin(-1)
    rounding = 8 * scores.shape[-1] * eps
    definite = symmetric & (least > rounding)
    log_mass = torch.where(visited, log_row_mass(log, scores), 0.0)
    half = (torch.where(visited, log, 0.0) - log_mass) / 2
    own_attention = _exponential(mean + half.unsqueeze(-1) + half.unsqueeze(-2), usable)
    smallest = symmetric_eigenvalues(own_attention).amin(-1)
    smallest = torch.where(smallest > rounding, smallest.clamp(max=1), 0.0)  # else it is noise
    smallest = torch.where(definite, smallest, torch.nan)
    semidefinite = symmetric & (least > -rounding)
    return Kernel(attention, log_mass, symmetric, definite, semidefinite, smallest)


def _exponential(exponent: Matrix, usable: Bool[Tensor, "*batch state state"]) -> Matrix:
    """Exponentials that are at most 1 if all is well, with ones on the diagonal elsewhere."""
    values = torch.where(usable, exponent.clamp(max=1).exp(), 0.0)
    return values + torch.diag_embed((~usable.diagonal(dim1=-2, dim2=-1)).to(values.dtype))


def exact(
    drift: Matrix, visited: Bool[Tensor, "*batch state"], step: Scalar
) -> tuple[Scalar, Scalar]:
    """The spectral radius among the visited states, and the step size at which it is 1."""
    left_out = torch.diag_embed((~visited).to(drift.dtype))
    found = eigenvalues(block(drift, visited) + left_out)
    # each state left out added an eigenvalue 1; those nearest to 1 are as good as any
    place = (found - 1).abs().argsort(-1).argsort(-1)
    counts = place >= (~visited).sum(-1, keepdim=True)
    radius = (1 - step.unsqueeze(-1) * found).abs()
    return (
        torch.where(counts, radius, 0.0).amax(-1),
        torch.where(counts, step_limits(found), torch.inf).amin(-1),
    )


def kernel_td_limit(
    scores: Matrix, weights: Vector, inflow: Scalar, gamma: Scalar, semidefinite: Tensor
) -> Scalar:
    """E3 and E4: the step sizes below which kernel TD with the kernel e^g converges."""
    log = log_weights(weights / weights.sum(-1, keepdim=True))
    both = (log.unsqueeze(-1) + log.unsqueeze(-2)) / 2 + (scores + scores.mT) / 2
    counts = (both > -torch.inf) & semidefinite.unsqueeze(-1).unsqueeze(-1)
    top = torch.where(counts, both, -torch.inf).amax((-2, -1), keepdim=True)
    top = torch.where(top > -torch.inf, top, 0.0)
    matrix = torch.where(counts, (both - top).exp(), 0.0)
    largest = symmetric_eigenvalues(matrix).amax(-1)
    norm = (gamma * inflow).sqrt()
    limit = 2 / ((1 + norm) * torch.where(largest > 0, largest, 1.0)) * (-top[..., 0, 0]).exp()
    return torch.where(semidefinite & (norm < 1), limit, 0.0)


def norms(
    transition: Matrix, weights: Vector, log_mass: Vector, iterations: int
) -> tuple[Scalar, Scalar, Scalar, Scalar, Vector]:
    """Schur's factor, the norm and the numerical range in the measure a, and log a's entries."""
    log = log_weights(weights) + log_mass
    log = log - log.logsumexp(-1, keepdim=True)
    matrix = similar(transition, log)
    start = torch.where(weights > 0, (log - log.amax(-1, keepdim=True)) / 2, 0.0).exp()
    schur = trial_factor(times(matrix.mT, matrix), start, iterations)
    inflow = (weights.unsqueeze(-1) * transition).sum(-2) / torch.where(weights > 0, weights, 1.0)
    return schur, spectral_norm(matrix), numerical_abscissa(matrix), inflow.amax(-1), log
