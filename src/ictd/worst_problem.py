"""The problem on which softmax TD is slowest, given the diagonality of its attention."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ictd._checks import check_int
from ictd._eigenvalue_region import boundary_point, largest_distance
from ictd._extremum import check_range, common

__all__ = ["worst_case"]


def worst_case(
    diagonality: float,
    discount: float,
    step_size: float,
    num_states: int,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[Float[Tensor, "state state"], Float[Tensor, "state state"]]:
    r"""Construct an attention and a process whose spectral radius nearly is the sharp rate.

    There are two rings of :math:`n` states each, :math:`2n` in all. Every state is followed by
    states of the first ring and, apart from itself, attends to states of the second, in such a way
    that :math:`x = (\zeta^k, c\,\zeta^k)`, :math:`\zeta = e^{2\pi i / n}`, is an eigenvector of
    :math:`M(I - \gamma P)`. Its eigenvalue is the worst one that :math:`m_0` allows, up to
    :math:`O(n^{-2})`.

    Book: :prf:ref:`thm-worst-case`.

    Args:
        diagonality: :math:`m_0 \in (0, 1)`: every :math:`M(s, s)` is at least this.
        discount: :math:`\gamma \in (0, 1)`. Dimensionless.
        step_size: :math:`\alpha \ge 0`, dimensionless: the spectral radius of
            :math:`I - \alpha M(I - \gamma P)` is to be large. 0: the smallest real part of the
            eigenvalues of :math:`M(I - \gamma P)` is to be small, the case of tiny steps.
        num_states: :math:`2n`, even and at least 6.
        device: Where the result lives; None: torch's default.
        dtype: Its floating-point dtype.

    Returns:
        The attention :math:`M` and the transition :math:`P`, ``[m, m]``, with rows that sum to 1.

    Raises:
        ValueError: If an argument lies outside its range, or the diagonality is so small that no
            eigenvalue attains the bound.
        TypeError: If ``num_states`` is no integer.

    Note:
        Computed in float64. The second ring is left at once and never entered, so the stationary
        distribution is 0 there; mixing a little of any irreducible process into :math:`P` moves
        the eigenvalues as little. Attention 0 between states stands for scores of
        :math:`-\infty`.

    Example:
        >>> import torch, ictd
        >>> attention, transition = ictd.worst_case(0.85, 0.9, 1.0, 80)  # (1 + γ)/2 = 0.95 > 0.85
        >>> drift = attention @ (torch.eye(80) - 0.9 * transition)
        >>> torch.linalg.eigvals(torch.eye(80) - drift).abs().max()  # over 1: it diverges
        tensor(1.0013, dtype=torch.float64)
    """
    check_int("num_states", num_states, 6)
    if num_states % 2:
        raise ValueError(f"num_states: expected an even number, got {num_states}")
    m, g, alpha = common(diagonality=diagonality, discount=discount, step_size=step_size)
    check_range("diagonality", m, 0.0, 1.0, closed="()")
    check_range("discount", g, 0.0, 1.0, closed="()")
    check_range("step_size", alpha, 0.0, closed="[)")
    n = num_states // 2
    # the boundary of the region for a little less than γ and q: as much as the polygons hold
    shrunk = torch.linspace(1, math.cos(math.pi / n), 101, dtype=m.dtype)
    nu, points = _two_rings(shrunk * g, shrunk * (1 - m) / m, (alpha * m).expand_as(shrunk))
    points = shrunk.unsqueeze(-1) * points
    fits = (points.abs() * _stretch(points, n)[0] <= 1).all(-1)
    fits[-1] = True
    chosen = int(fits.to(torch.uint8).argmax())
    if nu[chosen] == 0:
        raise ValueError(
            "diagonality: expected one whose bound an eigenvalue attains, "
            f"got {diagonality} with discount {discount}"
        )
    turns = torch.arange(n, dtype=m.dtype) * (2 * math.pi / n)
    ring = torch.polar(torch.ones_like(turns), turns)
    rows = _combinations((points[chosen].unsqueeze(-1) * ring).reshape(2, num_states), n)
    nothing = torch.zeros_like(rows[0])
    eye = torch.eye(num_states, dtype=m.dtype)
    attention = m * eye + (1 - m) * torch.cat([nothing, rows[1]], -1)
    transition = torch.cat([rows[0], nothing], -1)
    return attention.to(device, dtype), transition.to(device, dtype)


def _two_rings(g: Tensor, q: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """The worst ν for these γ, q and a, and where P and N send the states of the eigenvector.

    State A has x = 1 and y = x - γPx, state B another x and y. P sends A and B to multiples of A's
    x, and N to multiples of B's y. The four factors, all of modulus 1, come in the order P to A,
    P to B, N to A, N to B; ν = 0 says that the bound is not attained.
    """
    modulus = boundary_point(g, q, a)
    delta = largest_distance(modulus, g, q)
    real = (1 + modulus**2 - delta**2) / 2
    nu = torch.complex(real, (modulus**2 - real**2).clamp(min=0).sqrt())
    nu = torch.where(delta <= 1 + modulus, nu, 0)
    direction = (nu - 1) / delta
    size = (delta - g) / q  # of B's y; its x is size (1 + q direction) / ν
    other = size * ((1 + q * direction) / nu - 1) / g
    return nu, torch.stack([-direction, other, direction, direction], -1)


def _stretch(points: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """One over the distance of the polygon's edge in the direction of each point.

    With it the number of the corner to the right and the angle from the middle of the edge.
    """
    turns = points.angle() * (n / (2 * math.pi))
    right = turns.floor()
    offset = (turns - right - 0.5) * (2 * math.pi / n)
    return offset.cos() / math.cos(math.pi / n), right.long().remainder(n), offset


def _combinations(points: Tensor, n: int) -> Tensor:
    """Convex combinations of the n-th roots of unity that give these points, ``[..., points, n]``.

    A point is moved out along its ray to an edge, split between the ends of that edge, and then
    pulled back by spreading the rest over all corners, whose mean is 0.
    """
    stretch, right, offset = _stretch(points, n)
    share = (points.abs() * stretch).clamp(max=1)
    slope = offset.tan() / (2 * math.tan(math.pi / n))
    weights = ((1 - share) / n).unsqueeze(-1).repeat_interleave(n, -1)
    right = right.unsqueeze(-1)
    weights.scatter_add_(-1, right, (share * (0.5 - slope)).unsqueeze(-1))
    weights.scatter_add_(-1, (right + 1).remainder(n), (share * (0.5 + slope)).unsqueeze(-1))
    return weights
