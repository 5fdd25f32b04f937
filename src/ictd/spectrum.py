"""How fast an iteration converges in the long run, and with which step sizes: eigenvalues."""

from __future__ import annotations

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from ictd._checks import check_square
from ictd._linear import eigenvalues

__all__ = ["spectral_radius", "step_size_limit"]


def spectral_radius(matrix: Float[Tensor, "*batch state state"]) -> Float[Tensor, "*batch"]:
    r"""Compute the rate in the long run: the largest modulus of an eigenvalue.

    Book: :prf:ref:`prop-exact-step`.

    Args:
        matrix: ``[*B, m, m]``; of :func:`ictd.iteration_matrix`, say.

    Returns:
        ``[*B]``, in the unit of the matrix; NaN where a matrix holds NaN or infinity.

    Raises:
        ValueError: If the matrices are not square.

    Note:
        Differentiable where the eigenvalue is simple. Eigenvalues of multiplicity ``k`` are only
        found to the ``k``-th root of the dtype's accuracy.

    Example:
        >>> import torch, ictd
        >>> ictd.spectral_radius(torch.tensor([[0.0, 0.5], [-0.5, 0.0]]))
        tensor(0.5000)
    """
    check_square("matrix", matrix)
    return eigenvalues(matrix).abs().amax(-1).to(matrix.dtype)


def step_size_limit(drift: Float[Tensor, "*batch state state"]) -> Float[Tensor, "*batch"]:
    r"""Compute up to which step size the iteration converges, exactly.

    .. math::
        \rho(I - \alpha K) < 1 \iff \alpha < \min_i \frac{2\,\mathrm{Re}\,\lambda_i}{|\lambda_i|^2}
        \quad\text{and}\quad \mathrm{Re}\,\lambda_i > 0 \text{ for all } i

    Book: :prf:ref:`prop-exact-step`.

    Args:
        drift: :math:`K = M(I - \gamma P)`, ``[*B, m, m]``, of :func:`ictd.drift_matrix`.

    Returns:
        The smallest :math:`\alpha` that is too large, ``[*B]``; 0 where every step size is, because
        an eigenvalue has no positive real part; NaN where a matrix holds NaN or infinity.

    Raises:
        ValueError: If the matrices are not square.

    Note:
        Differentiable where the eigenvalue that decides is simple.

    Example:
        >>> import torch, ictd
        >>> ictd.step_size_limit(torch.tensor([[[0.5, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]]]))
        tensor([2., 0.])
    """
    check_square("drift", drift)
    return step_limits(eigenvalues(drift)).amin(-1).to(drift.dtype)


def step_limits(found: Complex[Tensor, "*batch eigenvalue"]) -> Float[Tensor, "*batch eigenvalue"]:
    """The step size that is too large for each eigenvalue; 0 if all are, NaN for a NaN."""
    positive = found.real > 0
    size = torch.where(positive, found.abs(), 1.0)
    limit = torch.where(positive, 2 * (found.real / size) / size, 0.0)
    return torch.where(found.real.isnan(), torch.nan, limit)
