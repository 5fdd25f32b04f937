"""The results of chapter 7 on norms: the averager, the master theorem and what feeds it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import ictd
from ictd.claims._draw import excess, gap, normal, stochastic, uniform, worst
from ictd.claims._kernels import (
    abscissa,
    energy_norm,
    eye_like,
    kernels,
    norm,
    off_policy,
    on_policy,
    orthonormal,
    smallest_real,
)
from ictd.claims._registry import Outcome, claim
from ictd.claims._report import any_scores, norm_row, range_row, step_sizes

PAGE = "07-beyond-the-condition"
BATCH = 1500


@claim(
    "prop-averager",
    page=PAGE,
    statement="The averager contracts by 1 - α(1-γ) for every attention, to a smoothed value.",
    functions=("iteration_matrix", "lumped_td"),
    tolerance=1e-11,
    attained=0.999999,
)
def averager(generator: torch.Generator) -> Outcome:
    """The factor, the bias, and that it is 0 where M v = v; softmax TD has none at its limit."""
    attention, transition = (stochastic(generator, BATCH, 4) for _ in range(2))
    discount, step = uniform(generator, BATCH, high=0.99), uniform(generator, BATCH, low=0.01)
    onward, eye = discount[:, None, None] * transition, eye_like(transition)
    layer = (1 - step)[:, None, None] * eye + step[:, None, None] * attention @ onward
    size, factor = layer.abs().sum(-1).amax(-1), 1 - step * (1 - discount)
    over, tightness = excess(size, factor)
    value = normal(generator, BATCH, 4, 1)
    value[:100] = 1.0
    reward = value - onward @ value
    fixed = torch.linalg.solve(eye - attention @ onward, attention @ reward)
    apart = (fixed - value).abs().amax((-1, -2))
    smoothed = (attention @ value - value).abs().amax((-1, -2)) / (1 - discount)
    own = attention.diagonal(dim1=-2, dim2=-1).amin(-1)
    spread = (value.amax(-2) - value.amin(-2)).squeeze(-1)
    bias = (1 - own) / (1 - discount) * spread
    found = ictd.lumped_td(
        attention,
        reward.squeeze(-1),
        transition,
        discount,
        num_steps=1,
        step_size=step,
        initial_values=value.squeeze(-1),
    )
    deviation = worst(
        over,
        gap(layer @ fixed + step[:, None, None] * (attention @ reward), fixed),
        excess(apart, smoothed)[0],
        excess(smoothed, bias)[0],
        float(apart[:100].max()),
        gap(found, value.squeeze(-1)),
        0.0 if float(apart[100:].min()) > 1e-6 else math.inf,
    )
    return Outcome(BATCH, deviation, tightness)


def weighted_pair(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """M and G in orthonormal coordinates, λ, Λ and G's norm; the first fifth are extremal."""
    q, _ = torch.linalg.qr(normal(generator, BATCH, 4, 4))
    low = uniform(generator, BATCH, low=0.01)
    high = low * (1 + 5 * uniform(generator, BATCH))
    few = BATCH // 5
    high[:few] = low[:few]
    inner = low[:, None] + (high - low)[:, None] * uniform(generator, BATCH, 4)
    values = torch.cat([low[:, None], high[:, None], inner[:, :2]], -1)
    attention = q @ torch.diag_embed(values) @ q.mT
    other = normal(generator, BATCH, 4, 4)
    size = uniform(generator, BATCH, low=0.05, high=0.999)
    other = size[:, None, None] * other / norm(other)[:, None, None]
    turn, _ = torch.linalg.qr(normal(generator, BATCH, 4, 4))
    other[: few // 2] = size[: few // 2, None, None] * turn[: few // 2]
    other[few // 2 : few] = -size[few // 2 : few, None, None] * torch.eye(4).double()
    return attention, other, low, high, size


@claim(
    "thm-master",
    page=PAGE,
    statement="A self-adjoint positive M and ‖G‖_a ≤ g < 1 contract for every α < 2/((1+g)Λ).",
    functions=("weighted_norm", "stability"),
    tolerance=1e-10,
    attained=0.999999,
)
def master(generator: torch.Generator) -> Outcome:
    """The two factors, short steps and long, in weights of any size; what lies beyond fails.

    The report of processes, also where the scores are not symmetric or the kernel not definite.
    """
    attention, other, low, high, size = weighted_pair(generator)
    weights = 10 ** (4 * uniform(generator, BATCH, 4))
    plain = orthonormal(other, 1 / weights)  # G in the coordinates of the states
    deviation, tightness = gap(ictd.weighted_norm(plain, weights), size), 0.0
    eye = eye_like(other)
    for relative in (0.3, 1.0, 1.0001, 1.5, 1.999):
        long = relative > 1
        last = 2 / (1 + size)
        step = (torch.ones(BATCH) + (relative - 1) * (last - 1) if long else relative) / high
        square = energy_norm(eye - step[:, None, None] * (attention @ (eye - other)), attention)
        loss = step * (1 - size**2)
        if long:
            loss = step * (1 + size) * (2 - step * high * (1 + size))
        over, ratio = excess(square**2, 1 - loss * low)
        deviation, tightness = worst(deviation, over), max(tightness, ratio)
    few = slice(BATCH // 10, BATCH // 5)  # M = Λ, G = -g: the limit of the steps is exact
    drift = attention[few] @ (eye[few] - other[few])
    exact = ictd.step_size_limit(drift)
    deviation = worst(deviation, gap(exact, 2 / ((1 + size[few]) * high[few])))

    problem = any_scores(generator, on_policy(generator, kernels(generator, BATCH)))
    report = ictd.stability(
        problem.process(),
        torch.eye(4, dtype=torch.float64),
        score=problem.score(),
        step_size=step_sizes(generator, problem),
    )
    size = norm(orthonormal(problem.onward, problem.measure))
    deviation = worst(
        deviation,
        norm_row(report, "norm of the transition", problem, size),
        gap(report.transition_norm, size),
    )
    return Outcome(BATCH, deviation, tightness)


@claim(
    "prop-numerical-range",
    page=PAGE,
    statement="A numerical range left of 1 is enough for small steps, and beyond 1 it is not.",
    functions=("numerical_range", "stability"),
    tolerance=1e-10,
    attained=0.999999,
)
def numerical_range(generator: torch.Generator) -> Outcome:
    """The factor with its best step and others; and an attention that fails where η > 1.

    The report of processes, also where the scores are not symmetric or the kernel not definite.
    """
    attention, other, low, high, _ = weighted_pair(generator)
    middle = BATCH // 5
    other[middle:] *= 1 + 2 * uniform(generator, BATCH - middle, 1, 1)
    eta, size, eye = abscissa(other), norm(other), eye_like(other)
    fine = eta < 1
    deviation, tightness = 0.0 if int(fine.sum()) > 1000 else math.inf, 0.0
    for relative in (0.2, 0.5, 0.99):
        step = relative * 2 * (1 - eta) / (high * (1 + size) ** 2)
        layer = eye - step[:, None, None] * (attention @ (eye - other))
        loss = 2 * step * (1 - eta) - step**2 * high * (1 + size) ** 2
        over, ratio = excess(energy_norm(layer, attention)[fine] ** 2, (1 - loss * low)[fine])
        deviation, tightness = worst(deviation, over), max(tightness, ratio)
    deviation = worst(deviation, -float(smallest_real(attention @ (eye - other))[fine].min()))

    onward = stochastic(generator, BATCH, 4)
    weights = stochastic(generator, BATCH, 4)[:, 0]
    coordinates = orthonormal(onward, weights)
    values, vectors = torch.linalg.eigh((coordinates + coordinates.mT) / 2)
    deviation = worst(deviation, gap(ictd.numerical_range(onward, weights), values[:, -1]))
    beyond = values[:, -1] > 1 + 1e-3
    x = vectors[:, :, -1:]
    spike = x @ x.mT + 1e-7 * eye
    if not bool((smallest_real(spike @ (eye - coordinates))[beyond] < 0).all()):
        deviation = math.inf

    problem = any_scores(generator, on_policy(generator, kernels(generator, BATCH)))
    coordinates = orthonormal(problem.onward, problem.measure)
    eta, size = abscissa(coordinates), norm(coordinates)
    report = ictd.stability(
        problem.process(),
        torch.eye(4, dtype=torch.float64),
        score=problem.score(),
        step_size=step_sizes(generator, problem) / 3,
    )
    off = range_row(report, "numerical range", problem, eta, size)
    deviation = worst(deviation, off, gap(report.numerical_range, eta))
    return Outcome(BATCH, deviation, tightness)


@claim(
    "lem-row-mass",
    page=PAGE,
    statement="‖G‖_a² ≤ γ max (aᵀG)(u)/a(u): row sums and column masses bound the norm.",
    functions=("weighted_norm",),
    tolerance=1e-10,
    attained=0.999999,
)
def row_mass(generator: torch.Generator) -> Outcome:
    """Random weights, stationary ones, and permutations that attain it."""
    problem = on_policy(generator, kernels(generator, BATCH))
    loose = off_policy(generator, problem)
    gamma = problem.discount
    deviation, tightness = -math.inf, 0.0
    for onward, weights in ((problem.onward, problem.visits), (loose.onward, loose.visits)):
        square = norm(orthonormal(onward, weights)) ** 2
        mass = (weights.unsqueeze(-1) * onward).sum(-2) / weights
        over, ratio = excess(square, gamma * mass.amax(-1))
        deviation, tightness = worst(deviation, over), max(tightness, ratio)
        found = ictd.weighted_norm(onward, weights)
        deviation = worst(deviation, gap(found**2, square))
    size = norm(orthonormal(problem.onward, problem.visits))
    return Outcome(2 * BATCH, worst(deviation, excess(size, gamma)[0]), tightness)
