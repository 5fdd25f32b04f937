"""nn.MultiheadAttention with hand-set weights runs the package's layers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ictd
from strategies import refuses

ROWS, DIM = 6, 3


def drawn(batch: int = 200, tokens: int = 12) -> tuple[Tensor, ictd.Prompt, Tensor]:
    """Contexts of several episodes with a consistent memory, and a score matrix."""
    generator = torch.Generator().manual_seed(0)
    options = {"generator": generator, "dtype": torch.float64}
    is_transition = torch.rand(batch, tokens, generator=generator) < 0.8
    is_transition[:, -1], is_transition[:, 0] = False, True
    prompt = ictd.Prompt(
        torch.randn(batch, tokens, DIM, **options),
        torch.randn(batch, tokens, **options),
        torch.rand(batch, tokens, **options),
        is_transition,
    )
    Z = prompt.matrix(torch.randn(batch, tokens, **options))
    return Z, prompt, torch.randn(DIM, DIM, **options)


@torch.no_grad()
@pytest.mark.parametrize("num_heads", [1, 2])
def test_stock_attention_runs_the_layer(num_heads: int) -> None:
    Z, prompt, matrix = drawn()
    module = ictd.stock_attention(matrix, 0.7, num_heads=num_heads)
    tokens = F.pad(Z.mT, (0, (num_heads - 1) * ROWS))
    update, _ = module(tokens, tokens, tokens, key_padding_mask=~prompt.is_transition)
    flags = (prompt.discounts, prompt.is_transition)
    current = Z[:, -1] + update[..., ROWS - 1]
    if num_heads == 2:
        target = Z[:, -2] + ictd.temporal_shift(update[..., 2 * ROWS - 2], *flags)
        layer = ictd.DualHeadLayer(DIM, dtype=torch.float64)
    else:
        target = ictd.temporal_shift(current, *flags)
        layer = ictd.SingleHeadLayer(DIM, dtype=torch.float64)
    expected = layer.construct(matrix, 0.7)(Z, *flags)
    torch.testing.assert_close(expected[:, -1], current, rtol=0, atol=1e-12)
    torch.testing.assert_close(expected[:, -2], target, rtol=0, atol=1e-12)
    written = update.abs().amax((0, 1)) > 0
    assert written.nonzero().flatten().tolist() == [5, 10][:num_heads]


def test_stock_attention_follows_its_matrix_and_draws_nothing() -> None:
    state = torch.get_rng_state()
    module = ictd.stock_attention(torch.eye(2, dtype=torch.float64), 1.0, num_heads=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert {p.dtype for p in module.parameters()} == {torch.float64}
    assert (module.embed_dim, module.num_heads) == (10, 2)


def test_stock_attention_refuses() -> None:
    with refuses(ValueError, r"num_heads: expected 1 or 2, got 3"):
        ictd.stock_attention(torch.eye(2), 1.0, num_heads=3)
    with refuses(ValueError, r"matrix: expected shape \[d, d\]"):
        ictd.stock_attention(torch.ones(2, 3), 1.0)
