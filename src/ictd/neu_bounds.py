"""How small the norm of the expected update must be at the constructed weights."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ictd._checks import check_positive_int
from ictd._extremum import check_range, common

__all__ = ["neu_bound"]


def neu_bound(
    rate: float | Float[Tensor, "*batch"],
    num_layers: int,
    *,
    discount: float | Float[Tensor, "*batch"],
    step_size: float | Float[Tensor, "*batch"],
    reward_bound: float | Float[Tensor, "*batch"],
    feature_bound: float | Float[Tensor, "*batch"] = 1.0,
    value_bound: float | Float[Tensor, "*batch"] | None = None,
    power_constant: float | Float[Tensor, "*batch"] = 1.0,
    matrix_norm: float | Float[Tensor, "*batch"] = 0.0,
    form: Literal["looped", "untied", "full"] = "looped",
) -> Float[Tensor, "*batch"]:
    r"""Bound the limit of NEU, as contexts grow, at the weights that run softmax TD.

    .. math::
        \mathrm{NEU}_{L,\infty}(\theta^*)
            \le \big((1 + \gamma)\, V\, C_r\, J_L\big)^2 r^{2L}, \qquad
        J_L = \frac{C_r\, C}{1 - r} \text{ (looped)}, \quad
        \frac{C_r\, C}{\sqrt{1 - r^2}} \text{ (untied)}, \quad
        G_L \text{ (full, looped)},

    .. math::
        C^2 = R_{\max}^2 + (1 + \gamma^2)(1 + C_r)^2 V^2
            + \alpha^2 B^4 (1 + \gamma)^2 C_r^2 V^2 ,

    where :math:`\lVert (I - \alpha M (I - \gamma P))^l \rVert_\infty \le C_r r^l` for almost every
    task. :math:`G_L`, which grows linearly, is written out in the book.

    Book: :prf:ref:`thm-neu`, :prf:ref:`cor-neu-untied`, :prf:ref:`thm-neu-full`,
    :prf:ref:`cor-neu-weaker`.

    Args:
        rate: :math:`r < 1`; under kernel diagonality :math:`1 - \alpha(2m_0 - 1 - \gamma)`.
        num_layers: ``L``, at least 1.
        discount: :math:`\gamma \in [0, 1)`.
        step_size: :math:`\alpha > 0`.
        reward_bound: :math:`R_{\max}`, the largest absolute reward, in reward units.
        feature_bound: :math:`B`, the largest length of a feature vector.
        value_bound: :math:`V`, the largest absolute value :math:`v_\pi`, in reward units;
            :math:`R_{\max} / (1 - \gamma)` if None.
        power_constant: :math:`C_r \ge 1`; 1 where a single step contracts by ``rate``. Not read
            for "full", which needs that.
        matrix_norm: The spectral norm of :math:`A`, read for "full" only.
        form: "looped" or "untied" structured layers, or "full" ones, looped.

    Returns:
        ``[*B]``, the unit is the fourth power of rewards; inf where ``rate`` is 1 or more.

    Raises:
        ValueError: If ``form`` is unknown, ``num_layers`` is less than 1, a number is out of its
            range, or tensors differ in shape or device.
        TypeError: If a tensor is of another dtype than the first.

    Note:
        That the inputs hold of the tasks is not checked.

    Example:
        One state, :math:`\gamma = \tfrac12`, :math:`\alpha = 1`, :math:`r = 1`: the rate is ½.

        >>> import ictd
        >>> bound = ictd.neu_bound(0.5, 1, discount=0.5, step_size=1.0, reward_bound=1.0)
        >>> round(bound.item(), 9)  # (3 · 2√30 · ½)²
        270.0
    """
    check_positive_int("num_layers", num_layers)
    if form not in ("looped", "untied", "full"):
        raise ValueError(f"form: expected 'looped', 'untied' or 'full', got {form!r}")
    r, gamma, alpha, R, B, V, C_r, A = common(
        rate=rate,
        discount=discount,
        step_size=step_size,
        reward_bound=reward_bound,
        feature_bound=feature_bound,
        value_bound=0.0 if value_bound is None else value_bound,
        power_constant=power_constant,
        matrix_norm=matrix_norm,
    )
    check_range("discount", gamma, 0.0, 1.0, closed="[)")
    check_range("step_size", alpha, 0.0, closed="()")
    check_range("power_constant", C_r, 1.0)
    sizes = {"rate": r, "reward_bound": R, "feature_bound": B, "value_bound": V, "matrix_norm": A}
    for name, number in sizes.items():
        check_range(name, number, 0.0)
    if value_bound is None:
        V = R / (1 - gamma)
    if form == "full":
        jacobian, C_r = (
            _full_jacobian(r, gamma, alpha, R, B, V, A, num_layers),
            torch.ones_like(C_r),
        )
    else:
        values, errors = (1 + C_r) * V, (1 + gamma) * C_r * V
        source = R**2 + (1 + gamma**2) * values**2 + (alpha * B**2 * errors) ** 2
        summed = 1 - r if form == "looped" else (1 - r**2).sqrt()
        jacobian = C_r * source.sqrt() / summed
    bound = ((1 + gamma) * V * C_r * jacobian * r**num_layers) ** 2
    return torch.where(r < 1, bound, torch.inf)


def _full_jacobian(
    rho: Tensor, gamma: Tensor, alpha: Tensor, R: Tensor, B: Tensor, V: Tensor, A: Tensor, L: int
) -> Tensor:
    r""":math:`G_L`: of any layer with :math:`Q`, :math:`V_{cur}` and :math:`V_{tgt}`."""
    layer = torch.arange(L, dtype=rho.dtype, device=rho.device)
    power = rho.unsqueeze(-1) ** layer.flip(0)  # what later layers leave of each
    once, drift = power.sum(-1), (power * layer).sum(-1)
    errors, both = R + 2 * (1 + gamma) * V, (1 + gamma**2).sqrt()
    column = (B**2 + R**2 + 4 * (1 + gamma**2) * V**2).sqrt()
    features = alpha * A * B * both * column
    kept = gamma * column + features * (1 + gamma) * V / (math.e * (1 - rho))
    growing = alpha * both * column * (2 + gamma**2).sqrt() + features * errors
    never = L + alpha * (1 + gamma) * drift
    by_query_key = alpha * column**2 * errors * never
    by_value = column * once + kept * never + growing * drift
    return torch.hypot(by_query_key, by_value)
