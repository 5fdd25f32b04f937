"""Conditions for stability beyond diagonality, one by one; `ictd.stability` tries them all."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ictd._checks import (
    check_int,
    check_like,
    check_none,
    check_nonnegative,
    check_shape,
    check_square,
)
from ictd._energy import (
    log_row_mass,
    log_weights,
    numerical_abscissa,
    similar,
    spectral_norm,
    times,
    trial_factor,
)
from ictd._linear import solvable

__all__ = [
    "density_ratio",
    "numerical_range",
    "schur_factor",
    "self_adjoint_weights",
    "weighted_norm",
    "weighted_norm_factor",
]

Number = float | Float[Tensor, "*batch"]


def density_ratio(
    weights: Float[Tensor, "*batch state"], scores: Float[Tensor, "*batch state state"]
) -> Float[Tensor, "*batch"]:
    r"""Compare the states with the most and the fewest neighbours.

    .. math:: r = \frac{\max_s z(s)}{\min_s z(s)}, \qquad z(s) = \sum_u \mu(u)\, e^{g(s, u)}

    On-policy, with a symmetric positive definite :math:`e^g`, softmax TD converges for every
    :math:`\alpha \le 1` if :math:`\gamma^2 r < 1`, and for small steps if
    :math:`\gamma(\sqrt r + 1/\sqrt r) < 2`.

    Book: :prf:ref:`cor-density-ratio`, :prf:ref:`cor-kantorovich`.

    Args:
        weights: :math:`\mu \ge 0`, ``[*B, m]``: probabilities or visits; only ratios count. States
            of weight 0 are left out.
        scores: :math:`g(s, u)`, ``[*B, m, m]``.

    Returns:
        ``[*B]``, at least 1; infinite where it is too large for the dtype.

    Raises:
        ValueError: If a shape or device does not fit, or a weight is negative or not finite.
        TypeError: If the dtypes differ.

    Note:
        Differentiable. Computed from logarithms, so that large scores do no harm.

    Example:
        >>> import torch, ictd
        >>> weights = torch.tensor([0.5, 0.5])
        >>> ictd.density_ratio(weights, torch.tensor([[1.0, 1.0], [1.0, 3.0]]).log())
        tensor(2.)
    """
    log = _logs(weights, scores)
    mass = log_row_mass(log, scores)
    positive = weights > 0
    top = torch.where(positive, mass, -torch.inf).amax(-1)
    return (top - torch.where(positive, mass, torch.inf).amin(-1)).exp()


def self_adjoint_weights(
    weights: Float[Tensor, "*batch state"], scores: Float[Tensor, "*batch state state"]
) -> Float[Tensor, "*batch state"]:
    r"""Compute the measure in which the attention is self-adjoint.

    .. math:: a(s) \propto \mu(s)\, z(s), \qquad z(s) = \sum_u \mu(u)\, e^{g(s, u)}

    For symmetric scores :math:`a(s) M(s, u) = a(u) M(u, s)`.

    Book: :prf:ref:`cor-density-ratio`.

    Args:
        weights: :math:`\mu \ge 0`, ``[*B, m]``: probabilities or visits; only ratios count.
        scores: :math:`g(s, u)`, ``[*B, m, m]``, symmetric; that is not checked.

    Returns:
        ``[*B, m]``, summing to 1; 0 where the weight is 0.

    Raises:
        ValueError: If a shape or device does not fit, or a weight is negative or not finite.
        TypeError: If the dtypes differ.

    Note:
        Differentiable. Entries below the smallest number of the dtype become 0;
        :func:`ictd.stability` keeps logarithms instead.

    Example:
        >>> import torch, ictd
        >>> weights = torch.tensor([0.5, 0.5])
        >>> ictd.self_adjoint_weights(weights, torch.tensor([[1.0, 1.0], [1.0, 3.0]]).log())
        tensor([0.3333, 0.6667])
    """
    log = _logs(weights, scores)
    mass = torch.where(weights > 0, log_row_mass(log, scores), 0.0)
    return (log + mass).softmax(-1)


def weighted_norm(
    matrix: Float[Tensor, "*batch state state"], weights: Float[Tensor, "*batch state"]
) -> Float[Tensor, "*batch"]:
    r"""Compute the norm of a matrix in the Euclidean norm with weights.

    .. math:: \lVert G \rVert_a = \sup_x \frac{\lVert G x \rVert_a}{\lVert x \rVert_a}, \qquad
        \lVert x \rVert_a^2 = \sum_s a(s)\, x(s)^2

    If it is below 1 for :math:`G = \gamma P`, in a measure where the attention is self-adjoint and
    positive definite, softmax TD converges for every :math:`\alpha < 2 / (1 + \lVert G \rVert_a)`.

    Book: :prf:ref:`thm-master`, :prf:ref:`lem-row-mass`.

    Args:
        matrix: :math:`G`, ``[*B, m, m]``.
        weights: :math:`a \ge 0`, ``[*B, m]``. States of weight 0 are left out.

    Returns:
        ``[*B]``, dimensionless.

    Raises:
        ValueError: If a shape or device does not fit, or a weight is negative or not finite.
        TypeError: If the dtypes differ.

    Note:
        Cost O(m³). Differentiable where the largest singular value is simple.

    Example:
        >>> import torch, ictd
        >>> swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> ictd.weighted_norm(swap, torch.tensor([1.0, 4.0]))
        tensor(2.)
    """
    return spectral_norm(_similar(matrix, weights)).to(matrix.dtype)


def numerical_range(
    matrix: Float[Tensor, "*batch state state"], weights: Float[Tensor, "*batch state"]
) -> Float[Tensor, "*batch"]:
    r"""Compute how far the numerical range of a matrix reaches to the right.

    .. math:: \eta = \sup_x \frac{\langle x, G x \rangle_a}{\lVert x \rVert_a^2}

    It is at most :func:`ictd.weighted_norm`, and 1 is the same threshold, but for small steps only.

    Book: :prf:ref:`prop-numerical-range`, :prf:ref:`cor-kantorovich`.

    Args:
        matrix: :math:`G \ge 0`, ``[*B, m, m]``.
        weights: :math:`a \ge 0`, ``[*B, m]``. States of weight 0 are left out.

    Returns:
        ``[*B]``, dimensionless.

    Raises:
        ValueError: If a shape or device does not fit, an entry is negative, or a weight is negative
            or not finite.
        TypeError: If the dtypes differ.

    Note:
        Cost O(m³). Differentiable where the largest eigenvalue is simple.

    Example:
        >>> import torch, ictd
        >>> swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> ictd.numerical_range(swap, torch.tensor([1.0, 4.0]))  # (√4 + 1/√4) / 2
        tensor(1.2500)
    """
    check_square("matrix", matrix)
    check_none("matrix", ~(matrix >= 0), "entries >= 0", matrix)
    return numerical_abscissa(_similar(matrix, weights)).to(matrix.dtype)


def schur_factor(
    transition: Float[Tensor, "*batch state next_state"],
    weights: Float[Tensor, "*batch state"],
    *,
    num_iterations: int = 0,
) -> Float[Tensor, "*batch"]:
    r"""Bound the squared norm of the transition by a test vector, at O(m²).

    .. math:: \lVert G \rVert_a^2 \le \beta(p) = \max_u \frac{(G^\dagger G p)(u)}{p(u)}, \qquad
        G^\dagger = D_a^{-1} G^\top D_a

    for every :math:`p > 0`. The first is :math:`p = 1`; each iteration takes
    :math:`G^\dagger G p` for p, which never makes :math:`\beta` larger.

    Book: :prf:ref:`thm-schur`.

    Args:
        transition: :math:`G = \gamma P`, or :math:`\hat P_\gamma` of :func:`ictd.empirical_model`;
            ``[*B, m, m]``, entries :math:`\ge 0`.
        weights: :math:`a \ge 0`, ``[*B, m]``, of :func:`ictd.self_adjoint_weights` say. States of
            weight 0 are left out.
        num_iterations: How often to improve the vector.

    Returns:
        The smallest :math:`\beta` seen, ``[*B]``. Below 1: softmax TD converges for every
        :math:`\alpha < 2/(1 + \sqrt\beta)`, if its attention is positive definite.

    Raises:
        ValueError: If a shape or device does not fit, an entry is negative, or a weight is negative
            or not finite.
        TypeError: If a dtype does not fit.

    Note:
        Cost O(m²) an iteration. Differentiable where the largest ratio is unique.

    Example:
        >>> import torch, ictd
        >>> half = torch.full((2, 2), 0.45)
        >>> ictd.schur_factor(half, torch.tensor([1.0, 3.0]))  # .81 · ½ (1 + 3)
        tensor(1.6200)
        >>> ictd.schur_factor(half, torch.tensor([1.0, 3.0]), num_iterations=1)
        tensor(1.0800)
    """
    check_square("transition", transition)
    check_int("num_iterations", num_iterations, 0)
    check_none("transition", ~(transition >= 0), "entries >= 0", transition)
    matrix = _similar(transition, weights)
    top = weights.amax(-1, keepdim=True)
    start = (weights / torch.where(top > 0, top, 1.0)).sqrt().to(matrix.dtype)
    start = torch.where(weights > 0, start, 1.0)
    return trial_factor(times(matrix.mT, matrix), start, num_iterations).to(weights.dtype)


def weighted_norm_factor(
    matrix: Float[Tensor, "*batch state state"], *, num_iterations: int = 0
) -> Float[Tensor, "*batch"]:
    r"""Bound the iteration in a weighted maximum norm, with weights found by iterating.

    .. math:: \lVert T \rVert_w = \max_s \frac{(|T| w)(s)}{w(s)}

    for :math:`w > 0`. The first is :math:`w = 1`, the norm by rows; each iteration takes
    :math:`|T| w` for w.

    Book: :prf:ref:`prop-weighted-norm`, :prf:ref:`prop-row-dominance`.

    Args:
        matrix: :math:`T = I - M(I - \gamma P)`, ``[*B, m, m]``, of :func:`ictd.iteration_matrix`
            at step size 1; rows of states that are left out are 0.
        num_iterations: How often to improve the weights.

    Returns:
        The smallest factor :math:`\beta` seen, ``[*B]``. Below 1: every
        :math:`\alpha < 2/(1 + \beta)` converges, at the rate :math:`|1 - \alpha| + \alpha\beta`.

    Raises:
        ValueError: If the matrices are not square.
        TypeError: If ``num_iterations`` is no integer.

    Note:
        Cost O(m²) an iteration. Differentiable where the largest ratio is unique.

    Example:
        >>> import torch, ictd
        >>> matrix = torch.tensor([[0.0, 2.0], [0.125, 0.0]])
        >>> ictd.weighted_norm_factor(matrix)
        tensor(2.)
        >>> ictd.weighted_norm_factor(matrix + 0.25 * torch.eye(2), num_iterations=30)
        tensor(0.7500)
    """
    check_square("matrix", matrix)
    check_int("num_iterations", num_iterations, 0)
    return trial_factor(times(matrix.abs()), torch.ones_like(matrix[..., 0]), num_iterations)


def _logs(weights: Tensor, scores: Tensor) -> Float[Tensor, "*batch state"]:
    """Check weights and scores; the logarithms of the weights."""
    check_square("scores", scores)
    check_shape("weights", weights, scores.shape[:-1], "[*B, m]")
    check_like("scores", scores, "weights", weights)
    check_nonnegative("weights", weights, weights.shape)
    return log_weights(weights)


def _similar(matrix: Tensor, weights: Tensor) -> Float[Tensor, "*batch state state"]:
    """Check a matrix and weights; the matrix in orthonormal coordinates."""
    check_square("matrix", matrix)
    check_shape("weights", weights, matrix.shape[:-1], "[*B, m]")
    check_like("matrix", matrix, "weights", weights)
    check_nonnegative("weights", weights, weights.shape)
    work = solvable(matrix.dtype)
    return similar(matrix.to(work), log_weights(weights.to(work)))
