"""How many layers are enough, and when to stop: before the values are computed, and after."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ictd._checks import check_all_like, check_discount, check_finite, check_none
from ictd._extremum import check_range, common

__all__ = ["layers_needed", "residual_bound"]

Number = float | Float[Tensor, "*batch"]


def layers_needed(
    rate: Number, accuracy: Number, smallest_eigenvalue: Number = 1.0, smallest_weight: Number = 1.0
) -> Float[Tensor, "*batch"]:
    r"""Count the layers that bring the largest error down to a share of the first.

    .. math:: L = \Big\lceil \frac{1}{-\log(\text{rate})}
        \log \frac{1}{\varepsilon \sqrt{\lambda\, a_{\min}}} \Big\rceil

    The rate is the factor of one layer in the norm :math:`\lVert x \rVert_*^2 = \langle x, M^{-1} x
    \rangle_a`, where :math:`a` sums to 1, and the root pays for going to the maximum norm and back.
    With both left at 1 it is the factor in the maximum norm itself.

    Book: :prf:ref:`prop-layers`.

    Args:
        rate: The factor of one layer, at least 0; a number or ``[*B]``.
        accuracy: :math:`\varepsilon \in (0, 1]`, a number or ``[*B]``; relative to the first error.
        smallest_eigenvalue: :math:`\lambda \in (0, 1]` of the attention, a number or ``[*B]``.
        smallest_weight: :math:`a_{\min} \in (0, 1]`, a number or ``[*B]``.

    Returns:
        Whole numbers of layers in floating point, ``[*B]``; infinite where the rate is 1 or more.
        Plain numbers give a float64 tensor.

    Raises:
        ValueError: If an argument lies outside its range or the shapes differ.

    Note:
        At least as sharp as :math:`\frac{2}{\alpha(1 - \beta)\lambda} \log
        \frac{1}{\varepsilon \sqrt{\lambda a_{\min}}}`, by :math:`-\log(1 - x) \ge x`.

    Example:
        >>> import ictd
        >>> ictd.layers_needed(0.5, 0.25), ictd.layers_needed(0.5, 0.25, 0.25, 0.25)
        (tensor(2., dtype=torch.float64), tensor(4., dtype=torch.float64))
    """
    factor, share, eigenvalue, weight = common(
        rate=rate,
        accuracy=accuracy,
        smallest_eigenvalue=smallest_eigenvalue,
        smallest_weight=smallest_weight,
    )
    check_range("rate", factor, 0.0)
    check_range("accuracy", share, 0.0, 1.0, closed="(]")
    check_range("smallest_eigenvalue", eigenvalue, 0.0, 1 + 1e-6, closed="(]")
    check_range("smallest_weight", weight, 0.0, 1 + 1e-6, closed="(]")
    needed = -(share.log() + (eigenvalue.log() + weight.log()) / 2).clamp(max=0)
    count = (needed / -torch.where(factor < 1, factor, 0.5).log()).ceil()
    count = torch.maximum(count, (needed > 0).to(count.dtype))  # one, where the rate is 0
    return torch.where(factor < 1, count, torch.inf)


def residual_bound(
    td_errors: Float[Tensor, "*batch state"], discount: Number
) -> Float[Tensor, "*batch"]:
    r"""Bound how far the values are from certainty equivalence, from what is left to correct.

    .. math:: \lVert v - \hat v \rVert_\infty \le \frac{\max_s |\bar\delta(s)|}{1 - \gamma}

    Nothing is assumed of the attention: it is a stopping rule for any way to :math:`v`.

    Book: :prf:ref:`prop-residual`.

    Args:
        td_errors: :math:`\bar\delta = \hat r + \hat P_\gamma v - v`, the mean TD error of each
            state, ``[*B, m]``, in reward units; 0 at states that no transition leaves.
        discount: :math:`\gamma \in [0, 1)`, the largest discount, a number or ``[*B]``.

    Returns:
        ``[*B]``, in reward units.

    Raises:
        ValueError: If a shape or device does not fit, an error is not finite, or the discount is
            not in [0, 1).
        TypeError: If the dtypes differ.

    Note:
        Needs closure. Differentiable.

    Example:
        >>> import torch, ictd
        >>> ictd.residual_bound(torch.tensor([0.25, -0.5]), 0.5)
        tensor(1.)
    """
    batch = td_errors.shape[:-1]
    check_finite("td_errors", td_errors)
    check_discount("discount", discount, batch, "[*B]")
    check_all_like("td_errors", td_errors, discount=discount)
    size = td_errors.abs().amax(-1)
    gamma = discount if isinstance(discount, Tensor) else torch.full_like(size, discount)
    check_none("discount", gamma == 1, "a number below 1", gamma)
    return size / (1 - gamma)
