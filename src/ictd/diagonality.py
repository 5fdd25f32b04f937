"""What diagonality alone promises: the sharp rate, layers for an accuracy, the worst problem."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ictd._eigenvalue_region import (
    boundary_point,
    least_ratio,
    resolvent_bound,
    slack,
    squared_rate,
)
from ictd._extremum import argmax, check_range, common, first

__all__ = [
    "asymptotic_rate",
    "certified_layers",
    "diagonality_needed",
    "diagonality_step_limit",
    "power_bound",
    "sharp_rate",
]

Number = float | Float[Tensor, "*batch"]


def asymptotic_rate(
    diagonality: Number, discount: Number, step_size: Number = 1.0
) -> Float[Tensor, "*batch"]:
    r"""Bound the spectral radius for a given diagonality in closed form.

    .. math::
        \rho(I - \alpha M(I - P_\gamma)) \le 1 - \alpha(1 - \rho_1), \qquad
        \rho_1^2 = \gamma^2 + q + \frac{\gamma^2 q^2}{1 + q}, \qquad q = \frac{1 - m_0}{m_0}

    Book: :prf:ref:`cor-sharp-rate`.

    Args:
        diagonality: :math:`m_0 \in (0, 1]`, a lower bound of every :math:`M(s, s)`; a number or
            ``[*B]``.
        discount: :math:`\gamma \in [0, 1]`, a number or ``[*B]``. Dimensionless.
        step_size: :math:`\alpha \in (0, 1]`, a number or ``[*B]``. Dimensionless.

    Returns:
        ``[*B]``; 1 or more where nothing is promised. Plain numbers give a float64 tensor.

    Raises:
        ValueError: If an argument lies outside its range or the shapes differ.

    Note:
        Differentiable. For small :math:`\gamma` the factor of one step
        (:prf:ref:`thm-depth`) can be smaller; both hold. The rate is reached in the limit of many
        steps: see :func:`ictd.power_bound` for the factor in front. A value below 1 at
        :math:`\alpha = 1` makes :func:`ictd.sharp_rate` smaller than 1 at every
        :math:`\alpha \le 1` (:prf:ref:`cor-sharp-rate`, last part).

    Example:
        >>> import ictd
        >>> ictd.asymptotic_rate(0.97, 0.9)
        tensor(0.9174, dtype=torch.float64)
    """
    m, g, a = common(diagonality=diagonality, discount=discount, step_size=step_size)
    _check(m, g)
    check_range("step_size", a, 0.0, 1.0, closed="(]")
    q = (1 - m) / m
    rate: Tensor = (g**2 + q * (1 + g**2 * (1 - m))).sqrt()  # 1 - m is q / (1 + q)
    return 1 - a * (1 - rate)


def sharp_rate(
    diagonality: Number, discount: Number, step_size: Number = 1.0
) -> Float[Tensor, "*batch"]:
    r"""Compute the largest spectral radius that a given diagonality allows.

    With :math:`q = (1 - m_0) / m_0` and :math:`a = \alpha m_0`,

    .. math::
        \rho_*^2 = \max_{(1-\gamma)(1-q) \,\le\, e \,\le\, (1+\gamma)(1+q)}
            \{1 - a + a\, d(e)^2 - a(1 - a) e^2\}, \qquad
        d(e) = \tfrac12 \big[\gamma + q + \sqrt{(\gamma - q)^2 + 4 \gamma q e}\big]

    It bounds the spectral radius of every problem, and problems come as close as one likes if
    :math:`q < 1` and :math:`(\sqrt{1-\gamma} + \sqrt{1-q})^2 > \gamma q`: see
    :func:`ictd.worst_case`.

    Book: :prf:ref:`cor-sharp-rate`, :prf:ref:`thm-worst-case`.

    Args:
        diagonality: :math:`m_0 \in (0, 1]`, a lower bound of every :math:`M(s, s)`; a number or
            ``[*B]``.
        discount: :math:`\gamma \in [0, 1]`, a number or ``[*B]``. Dimensionless.
        step_size: :math:`\alpha > 0`, a number or ``[*B]``. Dimensionless.

    Returns:
        ``[*B]``; 1 or more where convergence is not promised, and infinite where squares of
        :math:`q` overflow.

    Raises:
        ValueError: If an argument lies outside its range or the shapes differ.

    Note:
        Differentiable. The maximum of a concave function (an increasing one for
        :math:`\alpha m_0 > 1`) is found by repeated grids, to rounding.

    Example:
        >>> import ictd
        >>> ictd.sharp_rate(0.97, 0.9).item(), ictd.sharp_rate(0.85, 0.9).item() > 1
        (0.91742..., True)
    """
    m, g, a = common(diagonality=diagonality, discount=discount, step_size=step_size)
    _check(m, g)
    check_range("step_size", a, 0.0, closed="()")
    q = (1 - m) / m
    square = squared_rate(boundary_point(g, q, a * m), g, q, a * m)
    return torch.where(square.isnan(), torch.inf, square.clamp(min=0).sqrt())


def power_bound(
    diagonality: Number, discount: Number, step_size: Number, rate: Number
) -> Float[Tensor, "*batch"]:
    r"""Bound every power of the iteration on every state space, given the diagonality.

    .. math::
        \lVert (I - \alpha M(I - P_\gamma))^L \rVert_\infty \le C_r r^L, \qquad
        C_r = r \max_{|\theta| = r} \frac{\delta}{\alpha m_0
            [(\delta - \gamma)(\delta - q) - \gamma q |\nu|]}, \qquad
        \nu = \frac{1 - \theta}{\alpha m_0}, \quad \delta = |\nu - 1|

    Book: :prf:ref:`thm-power-bound`.

    Args:
        diagonality: :math:`m_0 \in (0, 1]`, a lower bound of every :math:`M(s, s)`; a number or
            ``[*B]``.
        discount: :math:`\gamma \in [0, 1]`, a number or ``[*B]``. Dimensionless.
        step_size: :math:`\alpha > 0`, a number or ``[*B]``. Dimensionless.
        rate: :math:`r > 0`, a number or ``[*B]``. Dimensionless.

    Returns:
        :math:`C_r`, ``[*B]``; infinite unless :math:`r` exceeds :func:`ictd.sharp_rate`.

    Raises:
        ValueError: If an argument lies outside its range or the shapes differ.

    Note:
        The maximum over the circle is found by repeated grids. No gradient passes through its
        place, which is right at a maximum.

    Example:
        >>> import ictd
        >>> constant = ictd.power_bound(0.97, 0.9, 1.0, 0.95)
        >>> constant, ictd.power_bound(0.97, 0.9, 1.0, 0.91)
        (tensor(29.5965, dtype=torch.float64), tensor(inf, dtype=torch.float64))
    """
    m, g, a, r = common(diagonality=diagonality, discount=discount, step_size=step_size, rate=rate)
    _check(m, g)
    check_range("step_size", a, 0.0, closed="()")
    check_range("rate", r, 0.0, closed="()")
    return resolvent_bound(m, g, a, r, sharp_rate(m, g, a))


def certified_layers(
    diagonality: Number, discount: Number, step_size: Number, accuracy: Number
) -> Float[Tensor, "*batch"]:
    r"""Count the layers after which the error is small, whatever the problem.

    The smallest :math:`L` with :math:`C_r r^L \le \varepsilon` for some :math:`r < 1`, and so
    :math:`\lVert v_L - v_\pi \rVert_\infty \le \varepsilon \lVert v_0 - v_\pi \rVert_\infty`.

    Book: :prf:ref:`thm-power-bound`.

    Args:
        diagonality: :math:`m_0 \in (0, 1]`, a lower bound of every :math:`M(s, s)`; a number or
            ``[*B]``.
        discount: :math:`\gamma \in [0, 1]`, a number or ``[*B]``. Dimensionless.
        step_size: :math:`\alpha > 0`, a number or ``[*B]``. Dimensionless.
        accuracy: :math:`\varepsilon \in (0, 1]`, a number or ``[*B]``; relative to the first error.

    Returns:
        Whole numbers of layers in floating point, ``[*B]``; infinite where nothing is certified.

    Raises:
        ValueError: If an argument lies outside its range or the shapes differ.

    Note:
        No gradient. Where the factor of one step is small (:prf:ref:`thm-depth`) it may need fewer.

    Example:
        >>> import ictd
        >>> ictd.certified_layers(0.97, 0.9, 1.0, 1e-3)
        tensor(151., dtype=torch.float64)
    """
    m, g, a, accuracy = common(
        diagonality=diagonality, discount=discount, step_size=step_size, accuracy=accuracy
    )
    _check(m, g)
    check_range("step_size", a, 0.0, closed="()")
    check_range("accuracy", accuracy, 0.0, 1.0, closed="(]")
    least = sharp_rate(m, g, a).unsqueeze(-1)
    m, g, a, accuracy = (x.unsqueeze(-1) for x in (m, g, a, accuracy))

    def layers(t: Tensor) -> Tensor:
        r = least + (1 - least) * t
        constant = resolvent_bound(
            m.expand_as(t), g.expand_as(t), a.expand_as(t), r, least.expand_as(t)
        )
        return torch.where(r < 1, (constant / accuracy).log() / -r.log(), torch.inf)

    with torch.no_grad():
        best = argmax(lambda t: -layers(t), least.squeeze(-1), rounds=8)
        count: Tensor = layers(best.unsqueeze(-1)).squeeze(-1)
        count = torch.where(least.squeeze(-1) > 0, count.clamp(min=0).ceil(), 1.0)
        return torch.where(least.squeeze(-1) < 1, count, torch.inf)


def diagonality_needed(discount: Number, condition: str) -> Float[Tensor, "*batch"]:
    r"""Compute the smallest diagonality that a condition asks for.

    ========================  ============================================================
    ``"norm"``                one step contracts, :math:`m_0 = (1 + \gamma) / 2`
    ``"every-step"``          :math:`\rho_1 = 1`: every :math:`\alpha \le 1` converges
    ``"sharp"``               :math:`\rho_* = 1` at :math:`\alpha = 1`: no function of
                              :math:`(m_0, \gamma)` asks for less
    ``"small-step"``          :math:`(1 + \gamma^2)(1 + q^2) = 2`: small :math:`\alpha` converges
    ``"sharp-small-step"``    the same without loss: eigenvalues have positive real parts
    ========================  ============================================================

    Book: :prf:ref:`cor-weaker-diagonality`, :prf:ref:`thm-worst-case`.

    Args:
        discount: :math:`\gamma \in [0, 1]`, a number or ``[*B]``. Dimensionless.
        condition: One of the names in the table.

    Returns:
        :math:`m_0`, ``[*B]``.

    Raises:
        ValueError: If the condition has another name, or the discount lies outside [0, 1].

    Note:
        The two sharp ones are found by repeated grids, without a gradient; the others are formulas.

    Example:
        >>> import ictd
        >>> ictd.diagonality_needed(0.9, "norm"), ictd.diagonality_needed(0.9, "every-step")
        (tensor(0.9500, dtype=torch.float64), tensor(0.8547, dtype=torch.float64))
    """
    (g,) = common(discount=discount)
    check_range("discount", g, 0.0, 1.0)
    square = g**2
    if condition == "norm":
        return (1 + g) / 2
    if condition == "every-step":  # (1 + γ²) q² + γ² q = 1 - γ²
        q = ((4 - 3 * square**2).sqrt() - square) / (2 * (1 + square))
        return 1 / (1 + q)
    if condition == "small-step":
        return 1 / (1 + ((1 - square) / (1 + square)).sqrt())
    step_size = {"sharp": 1.0, "sharp-small-step": 0.0}.get(condition)
    if step_size is None:
        names = "'norm', 'every-step', 'sharp', 'small-step' or 'sharp-small-step'"
        raise ValueError(f"condition: expected {names}, got {condition!r}")
    half = torch.full_like(g, 0.5)  # m_0 = ½ + t/2: both conditions hold at 1 and need q < 1

    def holds(t: Tensor) -> Tensor:
        return slack((1 + t) / 2, g.unsqueeze(-1).expand_as(t), torch.full_like(t, step_size)) > 0

    return half + half * first(holds, g)


def diagonality_step_limit(diagonality: Number, discount: Number) -> Float[Tensor, "*batch"]:
    r"""Compute the step size up to which diagonality alone promises convergence.

    .. math::
        \alpha < \frac{1}{m_0} \min_e \frac{1 + e^2 - d(e)^2}{e^2}

    with :math:`d` and the range of :math:`e` of :func:`ictd.sharp_rate`, whose value is below 1
    exactly for these steps.

    Book: :prf:ref:`cor-weaker-diagonality`.

    Args:
        diagonality: :math:`m_0 \in (0, 1]`, a lower bound of every :math:`M(s, s)`; a number or
            ``[*B]``.
        discount: :math:`\gamma \in [0, 1]`, a number or ``[*B]``. Dimensionless.

    Returns:
        The limit, ``[*B]``; 0 where no step is certified.

    Raises:
        ValueError: If an argument lies outside its range or the shapes differ.

    Note:
        Found by repeated grids, without a gradient. At most :math:`2 / (1 + \gamma)`.

    Example:
        >>> import ictd
        >>> ictd.diagonality_step_limit(0.97, 0.9), ictd.diagonality_step_limit(0.8, 0.9)
        (tensor(1.0526, dtype=torch.float64), tensor(0.7775, dtype=torch.float64))
    """
    m, g = common(diagonality=diagonality, discount=discount)
    _check(m, g)
    limit = least_ratio(g, (1 - m) / m) / m
    return torch.where(limit > 1e-12, limit, 0.0)


def _check(diagonality: Tensor, discount: Tensor) -> None:
    check_range("diagonality", diagonality, 0.0, 1.0, closed="(]")
    check_range("discount", discount, 0.0, 1.0)
