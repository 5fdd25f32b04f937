"""Feature tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ictd
from strategies import BATCH_SHAPES, assert_same, quick, refuses, tensor

Make = Callable[..., torch.Tensor]

TABLES: dict[str, Make] = {
    "one_hot": lambda **options: ictd.one_hot_features(5, **options),
    "unit_sphere": lambda **options: ictd.unit_sphere_features(5, 3, generator=seeded(), **options),
    "aggregation": lambda **options: ictd.aggregation_features(5, 3, **options),
    "radial": lambda **options: ictd.radial_features(5, 3, **options),
}
every_table = pytest.mark.parametrize("name", TABLES)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@every_table
@pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_shape_and_dtype(name: str, batch_shape: tuple[int, ...], dtype: torch.dtype) -> None:
    table = TABLES[name](batch_shape=batch_shape, dtype=dtype)
    assert table.shape == (*batch_shape, 5, 5 if name == "one_hot" else 3)
    assert table.dtype == dtype
    assert table.is_contiguous()
    double = TABLES[name](batch_shape=batch_shape, dtype=torch.float64)
    assert torch.equal(double.to(dtype), table)  # the same in every dtype, but for rounding


@every_table
def test_defaults_are_those_of_torch(name: str) -> None:
    assert TABLES[name]().dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert TABLES[name]().dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        assert TABLES[name]().device.type == "meta"
    assert TABLES[name](device="meta", batch_shape=(2,)).device.type == "meta"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_table
def test_cuda_gives_the_same_features(name: str) -> None:
    table = TABLES[name](device="cuda")
    assert table.is_cuda
    assert_same(table.cpu().double(), TABLES[name]().double(), 1e-6)


@pytest.mark.parametrize("num_states", [1, 2, 6])
def test_one_hot_features(num_states: int) -> None:
    table = ictd.one_hot_features(num_states, batch_shape=(2,))
    assert torch.equal(table, torch.stack([torch.eye(num_states)] * 2))
    table[0] = 7.0
    assert torch.equal(table[1], torch.eye(num_states))  # no shared memory


@quick
@given(seed=st.integers(0, 2**32 - 1), num_states=st.integers(1, 6), dim=st.integers(1, 5))
def test_unit_sphere_features_have_unit_norm(seed: int, num_states: int, dim: int) -> None:
    table = ictd.unit_sphere_features(
        num_states, dim, generator=seeded(seed), batch_shape=(3,), dtype=torch.float64
    )
    assert_same(table.norm(dim=-1), tensor(np.ones((3, num_states))), 1e-15)
    if dim == 1:
        assert table.abs().eq(1).all()


def test_unit_sphere_features_are_uniform_and_independent() -> None:
    state = torch.random.get_rng_state()
    table = ictd.unit_sphere_features(
        2, 3, generator=seeded(), batch_shape=(4000,), dtype=torch.float64
    )
    assert torch.equal(state, torch.random.get_rng_state())
    assert_same(table.mean(0), tensor(np.zeros((2, 3))), 0.05)
    second_moment = torch.einsum("bsi,bsj->sij", table, table) / 4000
    assert_same(second_moment, torch.eye(3).double().expand(2, 3, 3) / 3, 0.03)
    # On the sphere in three dimensions every coordinate is uniform (Archimedes).
    height = table[:, 0, 2].sort().values
    assert (height - torch.linspace(-1, 1, 4000, dtype=torch.float64)).abs().max() < 0.08
    assert abs(float((table[:, 0] * table[:, 1]).sum(-1).mean())) < 0.05
    again = ictd.unit_sphere_features(
        2, 3, generator=seeded(), batch_shape=(4000,), dtype=torch.float64
    )
    assert torch.equal(table, again)


@pytest.mark.parametrize(
    ("num_states", "num_groups", "groups"),
    [
        (5, 1, [0, 0, 0, 0, 0]),
        (5, 2, [0, 0, 0, 1, 1]),
        (6, 3, [0, 0, 1, 1, 2, 2]),
        (7, 3, [0, 0, 0, 1, 1, 2, 2]),
        (4, 4, [0, 1, 2, 3]),
    ],
)
def test_aggregation_features(num_states: int, num_groups: int, groups: list[int]) -> None:
    table = ictd.aggregation_features(num_states, num_groups)
    assert table.argmax(-1).tolist() == groups
    assert torch.equal(table, torch.eye(num_groups)[groups])
    sizes = table.sum(0)
    assert sizes.max() - sizes.min() <= 1


def test_radial_features_by_hand() -> None:
    table = ictd.radial_features(5, 3, bandwidth=1.0, dtype=torch.float64)
    expected = [[np.exp(-((s - c) ** 2) / 2) for c in (0, 2, 4)] for s in range(5)]
    assert_same(table, tensor(expected), 1e-15)


@quick
@given(num_states=st.integers(1, 9), dim=st.integers(1, 5))
def test_radial_features_are_symmetric_bumps(num_states: int, dim: int) -> None:
    table = ictd.radial_features(num_states, dim, dtype=torch.float64)
    assert_same(table, table.flip(0).flip(1), 1e-12)
    assert ((table > 0) & (table <= 1)).all()
    if dim > 1:
        assert (table[0, 0], table[-1, -1]) == (1.0, 1.0)
    if dim > 1 and num_states > 1:  # neighbouring bumps meet one bandwidth from their centres
        given = ictd.radial_features(
            num_states, dim, bandwidth=(num_states - 1) / (dim - 1), dtype=torch.float64
        )
        assert torch.equal(table, given)
        assert_same(table[0, 1], tensor(np.exp(-0.5)))


def test_radial_features_become_one_hot_or_constant() -> None:
    assert_same(ictd.radial_features(4, 4, bandwidth=0.01), torch.eye(4), 1e-12)
    assert_same(ictd.radial_features(4, 4, bandwidth=1e6), torch.ones(4, 4), 1e-6)
    single = ictd.radial_features(3, 1, bandwidth=1.0, dtype=torch.float64)
    assert_same(single, tensor([[np.exp(-0.5)], [1.0], [np.exp(-0.5)]]))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ictd.one_hot_features(0), ValueError, "num_states: .* >= 1, got 0"),
        (lambda: ictd.one_hot_features(2.0), TypeError, "num_states: .* got float"),
        (
            lambda: ictd.unit_sphere_features(0, 1, generator=seeded()),
            ValueError,
            "num_states: .* >= 1, got 0",
        ),
        (
            lambda: ictd.unit_sphere_features(1, 0, generator=seeded()),
            ValueError,
            "feature_dim: .* >= 1, got 0",
        ),
        (lambda: ictd.aggregation_features(0, 1), ValueError, "num_states: .* >= 1, got 0"),
        (lambda: ictd.aggregation_features(3, 0), ValueError, "num_groups: .* >= 1, got 0"),
        (
            lambda: ictd.aggregation_features(3, 4),
            ValueError,
            "num_groups: expected at most num_states = 3, got 4",
        ),
        (lambda: ictd.radial_features(0, 1), ValueError, "num_states: .* >= 1, got 0"),
        (lambda: ictd.radial_features(3, 0), ValueError, "feature_dim: .* >= 1, got 0"),
        (
            lambda: ictd.radial_features(3, 2, bandwidth=0.0),
            ValueError,
            "bandwidth: expected a finite number > 0, got 0.0",
        ),
        (
            lambda: ictd.radial_features(3, 2, bandwidth=float("inf")),
            ValueError,
            "bandwidth: .* got inf",
        ),
        (
            lambda: ictd.radial_features(3, 2, bandwidth=float("nan")),
            ValueError,
            "bandwidth: .* got nan",
        ),
    ],
)
def test_refuses(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with refuses(error, message):
        make()
