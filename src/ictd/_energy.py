"""Norms weighted by a measure whose entries may differ by hundreds of orders of magnitude."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ictd._linear import symmetric_eigenvalues

Vector = Float[Tensor, "*batch state"]
Matrix = Float[Tensor, "*batch state state"]


def log_weights(weights: Vector) -> Vector:
    """Logarithms of weights; −∞ where they are 0."""
    return torch.where(weights > 0, torch.where(weights > 0, weights, 1.0).log(), -torch.inf)


def log_row_mass(log_weights: Vector, scores: Matrix) -> Vector:
    r"""The logarithm of :math:`z(s) = \sum_u a(u) e^{g(s, u)}`."""
    return (log_weights.unsqueeze(-2) + scores).logsumexp(-1)


def similar(matrix: Matrix, log_weights: Vector) -> Matrix:
    r"""Return :math:`D_a^{1/2} G D_a^{-1/2}`, 0 at states of weight 0.

    What is too large to be squared is cut off; it is far above every threshold of 1.
    """
    positive = log_weights > -torch.inf
    both = positive.unsqueeze(-1) & positive.unsqueeze(-2) & (matrix != 0)
    half = torch.where(positive, log_weights, 0.0) / 2
    top = torch.finfo(matrix.dtype).max ** 0.25
    ratio = torch.where(both, half.unsqueeze(-1) - half.unsqueeze(-2), 0.0).exp()
    return torch.where(both, (matrix * ratio).clamp(-top, top), 0.0)


def spectral_norm(matrix: Matrix) -> Float[Tensor, "*batch"]:
    """The largest singular value."""
    norm: Tensor = torch.linalg.svdvals(matrix).amax(-1)
    return norm


def numerical_abscissa(matrix: Matrix) -> Float[Tensor, "*batch"]:
    """The largest eigenvalue of the symmetric part."""
    return symmetric_eigenvalues((matrix + matrix.mT) / 2).amax(-1)


def trial_factor(
    multiply: Callable[[Vector], Vector], start: Vector, num_iterations: int
) -> Float[Tensor, "*batch"]:
    r"""The smallest :math:`\beta` with :math:`B p \le \beta p` for :math:`p = B^k p_0`, B ≥ 0.

    Entries of p are kept positive: every positive vector makes a valid test.
    """
    tiny = torch.finfo(start.dtype).tiny ** 0.25
    vector, best = start.clamp(min=tiny), torch.full_like(start[..., 0], torch.inf)
    for _ in range(num_iterations + 1):
        image = multiply(vector)
        best = torch.minimum(best, (image / vector).amax(-1))
        size = image.amax(-1, keepdim=True)
        vector = (image / torch.where(size > 0, size, 1.0)).clamp(min=tiny)
    return best


def times(*matrices: Matrix) -> Callable[[Vector], Vector]:
    """Multiply a vector by matrices, the last one first."""

    def multiply(vector: Vector) -> Vector:
        column = vector.unsqueeze(-1)
        for matrix in reversed(matrices):
            column = matrix @ column
        return column.squeeze(-1)

    return multiply


def block(matrix: Matrix, visited: Bool[Tensor, "*batch state"]) -> Matrix:
    """The matrix among the visited states, 0 elsewhere."""
    return torch.where(visited.unsqueeze(-1) & visited.unsqueeze(-2), matrix, 0.0)
