"""The same layer out of a stock module: torch.nn.MultiheadAttention with hand-set weights."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ictd._checks import check_floating, check_shape

__all__ = ["stock_attention"]


def stock_attention(
    matrix: Float[Tensor, "feature feature"], step_size: float, *, num_heads: int = 1
) -> nn.MultiheadAttention:
    r"""Set the weights of :class:`torch.nn.MultiheadAttention` so that it runs softmax TD.

    Head 0 is :math:`V_{cur} Z H`, the update of the current memory. With two heads, head 1 is
    :math:`V_{tgt} Z H`, the update of the target memory before its shift.

    Book: :prf:ref:`thm-reparameterization`.

    Args:
        matrix: :math:`A` of the score, ``[d, d]``; gives dtype and device.
        step_size: :math:`\alpha`, dimensionless.
        num_heads: 1 or 2.

    Returns:
        A module of width ``num_heads * (d + 3)``, batch first, without biases, for the tokens
        ``Z.mT``; with two heads they are padded with zeros to the width, because the module splits
        its width among its heads and each needs all ``d + 3`` rows. Rows ``d + 2`` (and, with two
        heads, ``2 d + 4``) of its output are the updates; the residual and the shift are the
        caller's.

    Raises:
        ValueError: If the matrix is not square or ``num_heads`` is neither 1 nor 2.

    Note:
        The module divides its scores by the square root of ``d + 3``: the query weights undo that.
        Its ``key_padding_mask`` is the negation of ``is_transition``, and hides scores only:
        masked tokens must hold finite numbers.

    Example:
        >>> import torch, ictd
        >>> module = ictd.stock_attention(torch.eye(1), 0.5)
        >>> module.in_proj_weight[-1]  # the current memory reads 0.5 (reward + target - current)
        tensor([ 0.0000,  0.5000,  0.5000, -0.5000], grad_fn=<SelectBackward0>)
    """
    check_floating("matrix", matrix)
    check_shape("matrix", matrix, (*matrix.shape[:1], *matrix.shape[:1]), "[d, d]")
    if num_heads not in (1, 2):
        raise ValueError(f"num_heads: expected 1 or 2, got {num_heads}")
    rows = len(matrix) + 3
    module = nn.MultiheadAttention(
        num_heads * rows,
        num_heads,
        bias=False,
        batch_first=True,
        device="meta",  # draws nothing: every entry is set here
        dtype=matrix.dtype,
    ).to_empty(device=matrix.device)
    with torch.no_grad():
        query, key, value = module.in_proj_weight.zero_().view(3, num_heads, rows, -1)
        query[..., :rows] = math.sqrt(rows) * F.pad(matrix, (0, 3, 0, 3))
        key[..., :rows] = torch.eye(rows, dtype=matrix.dtype, device=matrix.device)
        for head in range(num_heads):
            value[head, rows - 1 - head, rows - 3 : rows - 1] = step_size
            value[head, rows - 1 - head, rows - 1] = -step_size
        module.out_proj.weight.zero_().fill_diagonal_(1.0)
    return module
