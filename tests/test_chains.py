"""Random and classic Markov reward processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import ictd
from reference import mrp as reference
from strategies import BATCH_SHAPES, assert_same, quick, refuses, tensor

Make = Callable[..., ictd.MarkovRewardProcess]

FAMILIES: dict[str, Make] = {
    "boyan_chain": ictd.boyan_chain,
    "loop_chain": ictd.loop_chain,
    "garnet": lambda num_states, **options: ictd.garnet(num_states, 2, **options),
    "random_walk": lambda num_states, generator, **options: ictd.random_walk(
        num_states - 2, **options
    ),
}
every_family = pytest.mark.parametrize("family", FAMILIES)
RANDOM = ["boyan_chain", "loop_chain", "garnet"]
FIELDS = ["transition", "reward", "discount", "initial", "terminal"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# What all have in common -----------------------------------------------------------------------


@every_family
@pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_shape_and_dtype(family: str, batch_shape: tuple[int, ...], dtype: torch.dtype) -> None:
    mrp = FAMILIES[family](5, generator=seeded(), batch_shape=batch_shape, dtype=dtype)
    assert mrp.transition.shape == (*batch_shape, 5, 5)
    assert mrp.batch_shape == batch_shape
    assert mrp.dtype == dtype
    assert {x.dtype for x in pytree.tree_leaves(mrp)} == {dtype, torch.bool}
    assert all(x.is_contiguous() for x in pytree.tree_leaves(mrp))


@every_family
def test_default_dtype_and_device_are_those_of_torch(family: str) -> None:
    assert FAMILIES[family](5, generator=seeded()).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert FAMILIES[family](5, generator=seeded()).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        mrp = FAMILIES[family](5, generator=seeded())
    assert {x.device.type for x in pytree.tree_leaves(mrp)} == {"meta"}
    mrp = FAMILIES[family](5, generator=seeded(), device="meta", batch_shape=(2,))
    assert {x.device.type for x in pytree.tree_leaves(mrp)} == {"meta"}


@every_family
def test_a_seed_gives_one_problem_in_every_dtype(family: str) -> None:
    make = FAMILIES[family]
    state = torch.random.get_rng_state()
    double = make(5, generator=seeded(3), batch_shape=(2,), dtype=torch.float64)
    again = make(5, generator=seeded(3), batch_shape=(2,), dtype=torch.float64)
    single = make(5, generator=seeded(3), batch_shape=(2,))
    assert torch.equal(state, torch.random.get_rng_state())
    for name in FIELDS:
        assert torch.equal(getattr(double, name), getattr(again, name)), name
        assert torch.equal(getattr(double.to(torch.float32), name), getattr(single, name)), name


@pytest.mark.parametrize("family", RANDOM)
def test_draws_differ(family: str) -> None:
    make = FAMILIES[family]
    batch = make(5, generator=seeded(), batch_shape=(2,))
    assert not torch.equal(batch.transition[0], batch.transition[1])
    assert not torch.equal(batch.reward[0], batch.reward[1])
    other = make(5, generator=seeded(1), batch_shape=(2,))
    assert not torch.equal(batch.transition, other.transition)
    generator = seeded()
    first, second = (make(5, generator=generator).reward for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("family", RANDOM)
def test_rewards_are_uniform_between_minus_one_and_one(family: str) -> None:
    mrp = FAMILIES[family](5, generator=seeded(), batch_shape=(2000,), dtype=torch.float64)
    reward = mrp.reward.flatten().sort().values
    assert reward.abs().max() <= 1
    uniform = torch.linspace(-1, 1, len(reward), dtype=torch.float64)
    assert (reward - uniform).abs().max() < 0.05  # Kolmogorov-Smirnov: 5 deviations
    assert mrp.discount.unique().tolist() == [0.9]
    assert not mrp.terminal.any()


@every_family
def test_discount_may_be_a_number_or_one_for_each_item(family: str) -> None:
    make = FAMILIES[family]
    one = make(5, generator=seeded(), batch_shape=(2,), discount=0.5)
    assert one.discount.tolist() == [0.5, 0.5]
    many = make(5, generator=seeded(), batch_shape=(2,), discount=torch.tensor([0.25, 1.0]))
    assert many.discount.tolist() == [0.25, 1.0]
    with refuses(ValueError, r"discount: expected a number in \[0, 1\], got 2"):
        make(5, generator=seeded(), discount=2.0)


@pytest.mark.parametrize("number", [0.0, 1 - 2.0**-53])
@every_family
def test_the_least_likely_numbers_still_give_a_process(
    family: str, number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rand(shape: tuple[int, ...], **options: Any) -> torch.Tensor:
        return torch.full(shape, number, dtype=torch.float64)

    monkeypatch.setattr(torch, "rand", rand)
    mrp = FAMILIES[family](5, generator=seeded(), dtype=torch.float64)
    if family != "garnet":
        assert (mrp.stationary_distribution() > 0).all()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_family
def test_a_seed_gives_one_problem_on_every_device(family: str) -> None:
    cpu = FAMILIES[family](5, generator=seeded(), batch_shape=(2,))
    gpu = FAMILIES[family](5, generator=seeded(), batch_shape=(2,), device="cuda")
    for name in FIELDS:
        assert getattr(gpu, name).is_cuda
        assert torch.equal(getattr(gpu, name).cpu(), getattr(cpu, name)), name
    drawn = FAMILIES[family](5, generator=torch.Generator("cuda").manual_seed(0), device="cuda")
    assert drawn.device.type == "cuda"


# Boyan's chain ---------------------------------------------------------------------------------


@quick
@given(seed=st.integers(0, 2**32 - 1), num_states=st.integers(2, 9))
def test_boyan_chain_runs_forwards_and_starts_anew(seed: int, num_states: int) -> None:
    mrp = ictd.boyan_chain(num_states, generator=seeded(seed), dtype=torch.float64)
    transition = mrp.transition
    for s in range(num_states - 1):
        ahead = [u for u in (s + 1, s + 2) if u < num_states]
        assert_same(transition[s, ahead].sum(), tensor(1.0), 1e-15)
        assert (transition[s, ahead[0]] > 0) & (transition[s].sum() - 1 < 1e-15)
    assert (transition[-1] > 0).all()
    assert transition[-2, -1] == 1.0
    assert (mrp.initial > 0).all()
    assert len(reference.recurrent_classes(transition.numpy())) == 1
    assert (mrp.stationary_distribution() > 0).all()


def test_boyan_chain_splits_uniformly() -> None:
    mrp = ictd.boyan_chain(4, generator=seeded(), batch_shape=(5000,), dtype=torch.float64)
    split = mrp.transition[:, :2].flatten(1)
    for share in (split[:, 1], split[:, 6]):
        uniform = torch.linspace(0, 1, 5000, dtype=torch.float64)
        assert (share.sort().values - uniform).abs().max() < 0.04
    assert abs(float(torch.corrcoef(torch.stack([split[:, 1], split[:, 6]]))[0, 1])) < 0.07
    for weights in (mrp.transition[:, 3], mrp.initial):
        assert_same(weights.mean(0), tensor([0.25] * 4), 0.01)
        assert weights.std(0).min() > 0.05


# Loops -----------------------------------------------------------------------------------------


@quick
@given(
    seed=st.integers(0, 2**32 - 1),
    num_states=st.integers(1, 8),
    connectivity=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_loop_chain_is_irreducible(seed: int, num_states: int, connectivity: float) -> None:
    mrp = ictd.loop_chain(
        num_states, connectivity=connectivity, generator=seeded(seed), dtype=torch.float64
    )
    transition = mrp.transition
    state = torch.arange(num_states)
    assert (transition[state, (state + 1) % num_states] > 0).all()
    if num_states > 1:
        assert transition.diagonal().eq(0).all()
    if connectivity == 0:
        assert torch.equal(transition, torch.eye(num_states).roll(1, 1).double())
    if connectivity == 1:
        assert (transition > 0).sum() == max(1, num_states * (num_states - 1))
    assert [len(c) for c in reference.recurrent_classes(transition.numpy())] == [num_states]


def test_loop_chain_joins_other_states_as_often_as_asked() -> None:
    mrp = ictd.loop_chain(5, connectivity=0.3, generator=seeded(), batch_shape=(4000,))
    share = (mrp.transition > 0).float().mean(0)
    chance = torch.full((5, 5), 0.3)
    chance.fill_diagonal_(0.0)
    chance[range(5), [1, 2, 3, 4, 0]] = 1.0
    assert_same(share, chance, 0.04)


# Garnets ---------------------------------------------------------------------------------------


@quick
@given(seed=st.integers(0, 2**32 - 1), num_states=st.integers(1, 8), data=st.data())
def test_garnet_has_so_many_successors(seed: int, num_states: int, data: st.DataObject) -> None:
    branching = data.draw(st.integers(1, num_states))
    mrp = ictd.garnet(num_states, branching, generator=seeded(seed), dtype=torch.float64)
    assert ((mrp.transition > 0).sum(-1) == branching).all()
    assert_same(mrp.initial, tensor([1 / num_states] * num_states), 1e-15)


def test_garnet_chooses_successors_and_lengths_uniformly() -> None:
    mrp = ictd.garnet(5, 2, generator=seeded(), batch_shape=(4000,), dtype=torch.float64)
    assert_same((mrp.transition > 0).double().mean(0), tensor(np.full((5, 5), 0.4)), 0.04)
    assert_same(mrp.transition.mean(0), tensor(np.full((5, 5), 0.2)), 0.03)
    lengths = mrp.transition[mrp.transition > 0].sort().values
    uniform = torch.linspace(0, 1, len(lengths), dtype=torch.float64)
    assert (lengths - uniform).abs().max() < 0.02
    three = ictd.garnet(5, 3, generator=seeded(), batch_shape=(4000,), dtype=torch.float64)
    lengths = three.transition[three.transition > 0]
    assert abs(float(lengths.std()) - (1 / 18) ** 0.5) < 0.005  # Beta(1, 2)


# The random walk -------------------------------------------------------------------------------


def test_random_walk_is_the_example_of_sutton_and_barto() -> None:
    walk = ictd.random_walk(dtype=torch.float64)
    assert walk.num_states == 7
    assert_same(walk.value(), tensor([0, *np.arange(1, 6) / 6, 0]))
    assert walk.terminal.tolist() == [True, *[False] * 5, True]
    assert walk.initial.tolist() == [0, 0, 0, 1, 0, 0, 0]
    assert walk.discount == 1.0
    assert walk.reward.nonzero().tolist() == [[5, 6]]


@pytest.mark.parametrize("num_states", [1, 2, 3, 8, 19])
def test_random_walk_of_any_length(num_states: int) -> None:
    walk = ictd.random_walk(num_states, dtype=torch.float64)
    inner = np.arange(1, num_states + 1)
    assert_same(walk.value(), tensor([0, *inner / (num_states + 1), 0]))
    assert_same(walk.initial, walk.initial.flip(0), 0.0)
    assert (walk.initial > 0).sum() == 2 - num_states % 2
    for s in inner:
        assert walk.transition[s, s - 1] == walk.transition[s, s + 1] == 0.5
    assert torch.equal(walk.transition[[0, -1]], walk.initial.expand(2, -1))
    distribution = walk.stationary_distribution()
    assert_same(distribution, distribution.flip(0))
    assert (distribution > 0).all()


# Refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda g: ictd.boyan_chain(1, generator=g), ValueError, "num_states: .* >= 2, got 1"),
        (lambda g: ictd.boyan_chain(3.0, generator=g), TypeError, "num_states: .* got float"),
        (lambda g: ictd.loop_chain(0, generator=g), ValueError, "num_states: .* >= 1, got 0"),
        (
            lambda g: ictd.loop_chain(3, connectivity=1.5, generator=g),
            ValueError,
            r"connectivity: expected a number in \[0, 1\], got 1.5",
        ),
        (
            lambda g: ictd.loop_chain(3, connectivity=float("nan"), generator=g),
            ValueError,
            "connectivity: .* got nan",
        ),
        (lambda g: ictd.garnet(0, 1, generator=g), ValueError, "num_states: .* >= 1, got 0"),
        (lambda g: ictd.garnet(3, 0, generator=g), ValueError, "branching_factor: .* >= 1, got 0"),
        (
            lambda g: ictd.garnet(3, 4, generator=g),
            ValueError,
            "branching_factor: expected at most num_states = 3, got 4",
        ),
        (lambda g: ictd.random_walk(0), ValueError, "num_states: .* >= 1, got 0"),
    ],
)
def test_refuses(
    make: Callable[[torch.Generator], Any], error: type[Exception], message: str
) -> None:
    with refuses(error, message):
        make(seeded())
