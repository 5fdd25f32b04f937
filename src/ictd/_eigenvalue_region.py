"""Where the eigenvalues of the drift can lie, given the diagonality of the attention.

Notation: :math:`q = (1 - m_0) / m_0`, eigenvalues :math:`λ = m_0 ν`, :math:`e = |ν|` and
:math:`a = α m_0`; g is the discount. The region is :math:`|ν - 1| ≤ d(|ν|)`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ictd._extremum import argmax


def largest_distance(e: Tensor, g: Tensor, q: Tensor) -> Tensor:
    """The bound d(e) of :math:`|ν - 1|` where :math:`|ν| = e`."""
    return (g + q + ((g - q) ** 2 + 4 * g * q * e).sqrt()) / 2


def squared_rate(e: Tensor, g: Tensor, q: Tensor, a: Tensor) -> Tensor:
    """The bound of :math:`|1 - a ν|²` where :math:`|ν| = e`."""
    return 1 - a + a * largest_distance(e, g, q) ** 2 - a * (1 - a) * e**2


def boundary_point(g: Tensor, q: Tensor, a: Tensor) -> Tensor:
    """The modulus at which ``squared_rate`` is largest, up to its scale: a = 0 is allowed."""
    low, high = ((1 - g) * (1 - q)).clamp(min=0), (1 + g) * (1 + q)

    def height(t: Tensor) -> Tensor:
        e = low.unsqueeze(-1) + (high - low).unsqueeze(-1) * t
        bound: Tensor = largest_distance(e, g.unsqueeze(-1), q.unsqueeze(-1))
        return bound**2 - (1 - a.unsqueeze(-1)) * e**2

    return low + (high - low) * argmax(height, g)


def least_ratio(g: Tensor, q: Tensor) -> Tensor:
    """The smallest ``(1 + e² - d(e)²) / e²``: ``squared_rate`` is below 1 exactly for smaller a.

    As the rate is a quasi-concave function of e for every a, the ratio is quasi-convex.
    """
    tiny = torch.finfo(g.dtype).eps
    low, high = ((1 - g) * (1 - q)).clamp(min=tiny), (1 + g) * (1 + q)

    def height(e: Tensor, g: Tensor, q: Tensor) -> Tensor:
        return (1 - largest_distance(e, g, q) ** 2) / e**2

    def negative(t: Tensor) -> Tensor:
        e = low.unsqueeze(-1) + (high - low).unsqueeze(-1) * t
        return -height(e, g.unsqueeze(-1), q.unsqueeze(-1))

    return 1 + height(low + (high - low) * argmax(negative, g), g, q)


def slack(m: Tensor, g: Tensor, step_size: Tensor) -> Tensor:
    """How far ``squared_rate`` stays below 1, divided by a: its limit where a = 0."""
    q, a = (1 - m) / m, step_size * m
    e = boundary_point(g, q, a)
    return 1 + (1 - a) * e**2 - largest_distance(e, g, q) ** 2


def resolvent_bound(m: Tensor, g: Tensor, a: Tensor, r: Tensor, least: Tensor) -> Tensor:
    """C_r for rates r above the least; the angle of θ is π t."""
    q = (1 - m) / m

    def inverse(t: Tensor) -> Tensor:
        """One over the bound of the resolvent, −∞ where there is none."""
        square = 1 - 2 * r.unsqueeze(-1) * (math.pi * t).cos() + r.unsqueeze(-1) ** 2
        scale, gg, qq = (x.unsqueeze(-1) for x in (a * m, g, q))
        e = square.clamp(min=0).sqrt() / scale
        gap = (1 - scale) ** 2 - 2 * (1 - scale) * r.unsqueeze(-1) * (math.pi * t).cos()
        delta = (gap + r.unsqueeze(-1) ** 2).clamp(min=0).sqrt() / scale
        size = delta - gg - qq + gg * qq * (1 - e) / delta
        return torch.where(delta > torch.maximum(gg, qq), scale * size, -torch.inf)

    angle = argmax(lambda t: -inverse(t), r, points=65, rounds=5)
    least_inverse = inverse(angle.unsqueeze(-1)).squeeze(-1)
    certified = (r > least) & (least_inverse > 0)
    return torch.where(certified, r / torch.where(certified, least_inverse, 1.0), torch.inf)
