"""Linear systems and eigenvalues: in which dtype, and where they mean something."""

from __future__ import annotations

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from ictd._checks import check_none, values_checkable


def solvable(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to solve in: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def eigenvalues(
    matrix: Float[Tensor, "*batch row column"],
) -> Complex[Tensor, "*batch eigenvalue"]:
    """Return the eigenvalues, in at least float32; NaN where a matrix holds NaN or infinity.

    Some builds of LAPACK do not survive such a matrix.
    """
    work = matrix.to(solvable(matrix.dtype))
    finite = work.isfinite().all(-1).all(-1)
    values = torch.linalg.eigvals(torch.where(finite[..., None, None], work, 0.0))
    return torch.where(finite.unsqueeze(-1), values, torch.nan)


def symmetric_eigenvalues(
    matrix: Float[Tensor, "*batch row column"],
) -> Float[Tensor, "*batch eigenvalue"]:
    """Return the eigenvalues of symmetric matrices, in ascending order.

    Entries below the normal numbers are 0 here: on these the solver may not converge.
    """
    tiny = matrix.abs() < torch.finfo(matrix.dtype).tiny
    found: Tensor = torch.linalg.eigvalsh(torch.where(tiny, 0.0, matrix))
    return found


def check_conditioned(name: str, system: Float[Tensor, "*batch row column"], solution: str) -> None:
    """Raise ValueError where the dtype cannot tell a system of equations from a singular one."""
    if not values_checkable(system):
        return
    with torch.no_grad():
        inverse, _ = torch.linalg.inv_ex(system)
        size = system.abs().sum(-1).amax(-1) * inverse.abs().sum(-1).amax(-1)
    limit = 1 / torch.finfo(system.dtype).eps
    expected = (
        f"{solution} that {system.dtype} can tell from others: a condition number < {limit:.0e}"
    )
    check_none(name, ~(size < limit), expected, size)
