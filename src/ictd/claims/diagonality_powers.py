"""The results of chapter 5 on diagonality, continued: real parts, and bounds of every power."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import ictd
from ictd.claims._diagonal import distance, drift, one, random_problems, worst_problems
from ictd.claims._draw import excess, gap, uniform, worst
from ictd.claims._registry import Outcome, claim

PAGE = "05-convergence"


@claim(
    "thm-real-part",
    page=PAGE,
    statement="With diagonality Re λ ≥ (1-γ)(2m_0-1); the conjecture holds up to a step α_0.",
    functions=("drift_matrix", "sharp_rate"),
    tolerance=1e-9,
    attained=0.999999,
)
def real_part(generator: torch.Generator) -> Outcome:
    """Two states that stay attain it; below α_0 the sharp rate is the conjectured one."""
    batch = 3000
    discount = uniform(generator, batch, low=0.05, high=0.99)
    least = (1 + discount) / 2
    least = least + (1 - least) * uniform(generator, batch, low=1e-3, high=0.999) ** 2
    attention, onward = random_problems(generator, batch, least, discount)
    smallest = torch.linalg.eigvals(drift(attention, onward)).real.amin(-1)
    bound = (1 - discount) * (2 * least - 1)
    deviation, _ = excess(bound, smallest)
    pair = torch.stack([least, 1 - least, 1 - least, least], -1).reshape(-1, 2, 2)
    stays = torch.eye(2, dtype=torch.float64).expand(batch, 2, 2)
    exact = torch.linalg.eigvals(ictd.drift_matrix(pair, stays, discount)).real.amin(-1)
    over, tightness = excess(bound, exact)
    deviation = worst(deviation, over, gap(exact, bound))
    m, g = least[:200, None], discount[:200, None]
    limit = _conjecture_limit(m, g)
    for share in (0.2, 0.999, 1.1):
        step = (share * limit).clamp(max=1)
        guess = 1 - step * (1 - g[:, 0]) * (2 * m[:, 0] - 1)
        rate = ictd.sharp_rate(m[:, 0], g[:, 0], step)
        beyond = step > 1.05 * limit
        within = step <= 0.9995 * limit
        deviation = worst(deviation, gap(rate[within], guess[within]))
        if share > 1 and not (int(beyond.sum()) > 20 and bool((rate > guess)[beyond].all())):
            deviation = math.inf
    printed = {(0.97, 0.9): 725, (0.96, 0.9): 616, (0.8, 0.5): 729, (0.9, 0.5): 957}
    for (m0, gamma), digits in printed.items():
        found = float(_conjecture_limit(*(x[:, None] for x in one(m0, gamma))))
        deviation = worst(deviation, 0.0 if round(1000 * found) == digits else math.inf)
    return Outcome(batch, deviation, tightness)


def _conjecture_limit(m: Tensor, g: Tensor) -> Tensor:
    """The step α_0 up to which the conjecture holds, on a grid that is fine near its left end."""
    q = (1 - m) / m
    least = (1 - g) * (1 - q)
    t = torch.linspace(0, 1, 8002, dtype=torch.float64)[1:] ** 2
    e = least + ((1 + g) * (1 + q) - least) * t
    top = 1 + e**2 - distance(e, g, q) ** 2 - 2 * least
    return (top / (m * (e**2 - least**2))).amin(-1)


@claim(
    "thm-power-bound",
    page=PAGE,
    statement="All powers are at most C_r r^L, whatever the states are.",
    functions=("power_bound", "certified_layers"),
    tolerance=1e-9,
    attained=0.2,
)
def power_bound(generator: torch.Generator) -> Outcome:
    """Every power up to 64, for several r; C_r on a grid; that the certified layers are enough.

    And that they are the fewest for which some C_r r^L is.
    """
    batch = 1000
    discount = uniform(generator, batch, low=0.05, high=0.95)
    least = ictd.diagonality_needed(discount, "every-step")
    least = least + (1 - least) * uniform(generator, batch, low=1e-2)
    step = uniform(generator, batch, low=0.2)
    attention, onward = random_problems(generator, batch, least, discount)
    problems = [(least, discount, step, drift(attention, onward))]
    problems += worst_problems((1.0,))
    deviation, tightness = -math.inf, 0.0
    for m, g, a, matrix in problems:
        eye = torch.eye(matrix.shape[-1], dtype=torch.float64)
        layer = eye - a[:, None, None] * matrix
        sharp = ictd.sharp_rate(m, g, a)
        layers = torch.full_like(m, math.inf)
        layers[:50] = ictd.certified_layers(m[:50], g[:50], a[:50], 0.1)
        rates = [sharp + share * (1 - sharp) for share in (0.1, 0.3, 0.6, 0.9)]
        constants = [ictd.power_bound(m, g, a, rate) for rate in rates]
        few = slice(100)
        for found, rate in zip(constants, rates, strict=True):
            known = _constant(m[few], g[few], a[few], rate[few])
            deviation = worst(deviation, excess(known, found[few])[0])
            if not bool((found[few] < 1.01 * known).all()):
                deviation = math.inf
        power = eye.expand_as(layer)
        for depth in range(1, 65):
            power = power @ layer
            size = power.abs().sum(-1).amax(-1)
            bound = torch.stack([c * r**depth for c, r in zip(constants, rates, strict=True)]).amin(
                0
            )
            over, ratio = excess(size, bound)
            deviation, tightness = worst(deviation, over), max(tightness, ratio)
            sure = layers <= depth
            if bool(sure.any()):
                deviation = worst(deviation, float(size[sure].max()) - 0.1)
    m, g, a = (x[:25] for x in problems[0][:3])
    least = ictd.sharp_rate(m, g, a)
    share = (torch.arange(1, 200, dtype=torch.float64) / 200)[:, None]
    grid = least + share * (1 - least)
    m, g, a = (x.expand_as(grid) for x in (m, g, a))
    bounds = ictd.power_bound(m, g, a, grid)
    layers = ictd.certified_layers(m[0], g[0], a[0], 0.1)
    enough, fewer = ((bounds.log() + depth * grid.log()).amin(0) for depth in (layers, layers - 1))
    goal = math.log(0.1)
    if not bool(((enough < goal + 1e-3) & (fewer > goal - 1e-3)).all()):
        deviation = math.inf
    return Outcome(batch, deviation, tightness)


def _constant(m: Tensor, g: Tensor, a: Tensor, rate: Tensor) -> Tensor:
    """C_r, from points on the half circle."""
    m, g, a, rate = (x.unsqueeze(-1) for x in (m, g, a, rate))
    angle = torch.linspace(0, math.pi, 1001, dtype=torch.float64)
    nu = (1 - torch.polar(rate.expand(-1, 1001), angle.expand(len(rate), -1))) / (a * m)
    q, delta = (1 - m) / m, (nu - 1).abs()
    gap = (delta - g) * (delta - q) - g * q * nu.abs()
    return (rate * delta / (a * m * gap)).amax(-1)
