"""Conditions for stability as loops, straight from the equations, one problem at a time.

A problem is a list of states with weights (how often each is left), scores between them and
expected discounted transitions. Numbers are small enough here for plain exponentials.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reference.td import Context

Array = NDArray[np.float64]


# --- Numbers: m0 the diagonality, g the discount, a the step size ---------------------------------


def distance(e: float, g: float, q: float) -> float:
    """The larger root of (d - g)(d - q) = g q e."""
    return (g + q + math.sqrt((g + q) ** 2 - 4 * g * q * (1 - e))) / 2


def sharp_rate(m0: float, g: float, a: float, points: int = 4001) -> float:
    """The largest |1 - a m0 ν| on the curve |ν - 1| = d(|ν|), on a grid."""
    q = (1 - m0) / m0
    best = 0.0
    for e in np.linspace(max((1 - g) * (1 - q), 0.0), (1 + g) * (1 + q), points):
        real = (1 + e**2 - distance(e, g, q) ** 2) / 2
        best = max(best, 1 - 2 * a * m0 * real + (a * m0 * e) ** 2)
    return math.sqrt(best)


def power_bound(m0: float, g: float, a: float, r: float, least: float, points: int = 401) -> float:
    """C_r on a grid of the circle; infinite where a point on or off it may be an eigenvalue."""
    q = (1 - m0) / m0
    largest = 0.0
    for angle in np.linspace(0, math.pi, points):
        nu = (1 - cmath.rect(r, angle)) / (a * m0)
        delta = abs(nu - 1)
        gap = (delta - g) * (delta - q) - g * q * abs(nu)
        if delta <= max(g, q) or gap <= 0:
            return math.inf
        largest = max(largest, delta / (a * m0 * gap))
    return r * largest if r > least else math.inf


# --- Problems -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """States with weights N(s) > 0, scores g(s, u) and discounted transitions G(s, u)."""

    weights: Array
    scores: Array
    transition: Array

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def mass(self) -> Array:
        """z(s) = sum_u N(u) e^g(s, u)."""
        return np.array(
            [
                sum(self.weights[u] * math.exp(self.scores[s, u]) for u in range(len(self)))
                for s in range(len(self))
            ]
        )

    @property
    def attention(self) -> Array:
        """M(s, u) = N(u) e^g(s, u) / z(s)."""
        z = self.mass
        result = np.zeros_like(self.scores)
        for s in range(len(self)):
            for u in range(len(self)):
                result[s, u] = self.weights[u] * math.exp(self.scores[s, u]) / z[s]
        return result

    @property
    def drift(self) -> Array:
        """M (I - G)."""
        return np.asarray(self.attention @ (np.eye(len(self)) - self.transition))

    @property
    def measure(self) -> Array:
        """a(s) = N(s) z(s), summing to 1."""
        a = self.weights * self.mass
        return np.asarray(a / a.sum())

    @property
    def discount(self) -> float:
        """The largest row sum of G."""
        return max(sum(row) for row in self.transition)

    @property
    def inflow(self) -> float:
        """max_u sum_s N(s) G(s, u) / N(u)."""
        n = len(self)
        return max(
            sum(self.weights[s] * self.transition[s, u] for s in range(n)) / self.weights[u]
            for u in range(n)
        )

    def norm(self, a: Array) -> float:
        """The norm of G in L²(a): the root of the largest eigenvalue of D^-1 G^T D G."""
        adjoint = np.diag(1 / a) @ self.transition.T @ np.diag(a)
        return math.sqrt(max(np.linalg.eigvals(adjoint @ self.transition).real))

    def abscissa(self, a: Array) -> float:
        """The largest <x, G x> / <x, x> in L²(a): an eigenvalue of the symmetric part."""
        adjoint = np.diag(1 / a) @ self.transition.T @ np.diag(a)
        return float(max(np.linalg.eigvals((self.transition + adjoint) / 2).real))

    def schur(self, a: Array, iterations: int) -> float:
        """The smallest max (B p)(u) / p(u) for p = 1, B 1, B² 1, …, B = D^-1 G^T D G."""
        matrix = np.diag(1 / a) @ self.transition.T @ np.diag(a) @ self.transition
        return smallest_factor(matrix, iterations)

    def exact(self, step: float) -> tuple[float, float]:
        """Spectral radius of I - step · drift, and the step limit."""
        values = np.linalg.eigvals(self.drift)
        radius = max(abs(1 - step * value) for value in values)
        if min(values.real) <= 0:
            return radius, 0.0
        return radius, min(2 * value.real / abs(value) ** 2 for value in values)


def smallest_factor(matrix: Array, iterations: int) -> float:
    """Iterate p <- B p from 1; the smallest factor seen. Zeros of p stay out: 0/0 = 0."""
    p = np.ones(len(matrix))
    best = math.inf
    for _ in range(iterations + 1):
        image = matrix @ p
        factor = 0.0
        for old, new in zip(p, image, strict=True):
            if old > 0:
                factor = max(factor, new / old)
        best = min(best, factor)
        p = image / max(image.max(), 1e-300)
    return best


def certificates(
    problem: Problem, step: float, iterations: int
) -> dict[str, tuple[bool, float, float]]:
    """Each condition: whether it holds, its step limit, its rate at the step (inf: none)."""
    m, g = problem.attention, problem.discount
    m0 = min(m.diagonal())
    drift = problem.drift
    n = len(problem)
    found: dict[str, tuple[bool, float, float]] = {}

    one_step = max(1 - step * (2 * m0 - 1 - g), step * (1 + g) - 1)
    found["diagonality"] = (m0 > (1 + g) / 2, 2 / (1 + g), one_step)

    diagonal = [drift[s, s] for s in range(n)]
    others = [sum(abs(drift[s, u]) for u in range(n) if u != s) for s in range(n)]
    dominant = all(d > o for d, o in zip(diagonal, others, strict=True))
    limit = min(2 / (d + o) if d + o else math.inf for d, o in zip(diagonal, others, strict=True))
    norm = max(abs(1 - step * d) + step * o for d, o in zip(diagonal, others, strict=True))
    found["row dominance"] = (dominant, limit, norm)
    factor = smallest_factor(np.abs(np.eye(n) - drift), iterations)
    found["weighted row sums"] = (
        factor < 1,
        2 / (1 + factor),
        abs(1 - step) + step * factor,
    )

    kernel = np.exp(problem.scores)
    symmetric = np.allclose(kernel, kernel.T, rtol=1e-12)
    definite = symmetric and min(np.linalg.eigvalsh(kernel)) > 1e-12 * kernel.max()
    a, z = problem.measure, problem.mass
    ratio = max(z) / min(z)
    lam = min(np.linalg.eigvals(m).real)
    bound = math.sqrt(g * problem.inflow)

    def by_norm(norm: float) -> tuple[bool, float, float]:
        if step <= 1:
            square = 1 - step * (1 - norm**2) * lam
        else:
            square = 1 - step * (1 + norm) * (2 - step * (1 + norm)) * lam
        return definite and norm < 1, 2 / (1 + norm), math.sqrt(max(square, 0))

    def by_abscissa(eta: float) -> tuple[bool, float, float]:
        size = (1 + problem.norm(a)) ** 2
        square = 1 - (2 * step * (1 - eta) - step**2 * size) * lam
        return definite and eta < 1, 2 * (1 - eta) / size, math.sqrt(max(square, 0))

    found["density ratio"] = by_norm(bound * math.sqrt(ratio))
    found["density ratio, small steps"] = by_abscissa(
        bound * (math.sqrt(ratio) + 1 / math.sqrt(ratio)) / 2
    )
    found["Schur test"] = by_norm(math.sqrt(problem.schur(a, iterations)))
    found["norm of the transition"] = by_norm(problem.norm(a))
    found["numerical range"] = by_abscissa(problem.abscissa(a))
    return {
        name: (holds, limit if holds else 0.0, rate if holds and step < limit else math.inf)
        for name, (holds, limit, rate) in found.items()
    }


def kernel_td_step_limit(problem: Problem) -> float:
    """2 / ((1 + g) Λ) with the largest eigenvalue Λ of the kernel times the visits' shares."""
    norm = math.sqrt(problem.discount * problem.inflow)
    share = problem.weights / problem.weights.sum()
    largest = max(np.linalg.eigvals(np.exp(problem.scores) @ np.diag(share)).real)
    return 2 / ((1 + norm) * largest) if norm < 1 else 0.0


def problem_of(context: Context, score: object) -> Problem:
    """The distinct sources of a context, in the order in which they come, and what is known."""
    states: list[Sequence[float]] = []
    place = {}
    for j in context.sources:
        key = tuple(context.features[j])
        if key not in place:
            place[key] = len(states)
            states.append(context.features[j])
    count = np.zeros(len(states))
    transition = np.zeros((len(states), len(states)))
    for j in context.sources:
        source = place[tuple(context.features[j])]
        count[source] += 1
        if not context.is_terminal[j + 1] and context.discounts[j] != 0:
            transition[source, place[tuple(context.features[j + 1])]] += context.discounts[j]
    transition /= count[:, None]
    scores = np.array([[score(s, u) for u in states] for s in states])  # type: ignore[operator]
    return Problem(count, scores, transition)
