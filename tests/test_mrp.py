"""Markov reward processes: values, Bellman operator, stationary distribution, sampling."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

import ictd
from ictd._sampling import sample_states, thresholds
from reference import mrp as reference
from strategies import BATCH_SHAPES, assert_same, quick, refuses, tensor

every_batch_shape = pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)
seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 7)


def bools(*flags: int) -> torch.Tensor:
    return torch.tensor(flags, dtype=torch.bool)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_process(
    seed: int, num_states: int = 5, *, matrix: bool = False, terminal: bool = True
) -> dict[str, Any]:
    """Arguments of one process in NumPy: random zeros, state 0 never terminal."""
    rng = np.random.default_rng(seed)
    weights = rng.random((num_states, num_states)) * (rng.random((num_states, num_states)) < 0.6)
    weights[range(num_states), rng.integers(num_states, size=num_states)] += 0.1
    flags = (rng.random(num_states) < 0.3) & (np.arange(num_states) > 0) & terminal
    return {
        "transition": weights / weights.sum(1, keepdims=True),
        "reward": rng.normal(size=(num_states,) * (1 + matrix)),
        "discount": float(rng.uniform(0.0, 0.95)),
        "terminal": flags,
    }


def process(**arguments: Any) -> ictd.MarkovRewardProcess:
    """The same process, or a batch of them, in the package."""
    discount = arguments["discount"]
    return ictd.MarkovRewardProcess(
        tensor(arguments["transition"]),
        tensor(arguments["reward"]),
        discount if isinstance(discount, float) else tensor(discount),
        terminal=torch.as_tensor(arguments["terminal"]),
    )


def random_batch(
    batch_shape: tuple[int, ...], **options: Any
) -> tuple[ictd.MarkovRewardProcess, list[dict[str, Any]]]:
    """A batch with a discount of its own for each item, and its items one by one."""
    items = [random_process(seed, **options) for seed in range(int(np.prod(batch_shape)))]
    stacked = {
        name: np.stack([item[name] for item in items]).reshape(
            (*batch_shape, *np.shape(items[0][name]))
        )
        for name in items[0]
    }
    return process(**stacked), items


# By hand ---------------------------------------------------------------------------------------


def test_undiscounted_chain_that_ends_with_probability_one_half() -> None:
    mrp = ictd.MarkovRewardProcess(
        tensor([[0.5, 0.5], [0.0, 1.0]]), tensor([1.0, 0.0]), 1.0, terminal=bools(0, 1)
    )
    assert_same(mrp.value(), tensor([2.0, 0.0]))


def test_undiscounted_chain_whose_absorbing_state_pays_nothing_and_is_not_flagged() -> None:
    mrp = ictd.MarkovRewardProcess(tensor([[0.5, 0.5], [0.0, 1.0]]), tensor([1.0, 0.0]), 1.0)
    assert_same(mrp.value(), tensor([2.0, 0.0]))


def test_reward_belongs_to_the_state_it_leaves() -> None:
    transition = tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    terminal = bools(0, 0, 1)
    mrp = ictd.MarkovRewardProcess(transition, tensor([1.0, 10.0, 0.0]), 0.5, terminal=terminal)
    assert_same(mrp.value(), tensor([6.0, 10.0, 0.0]))
    trajectory = mrp.sample(2, generator=seeded(), start=0)
    assert trajectory.rewards.tolist() == [1.0, 10.0, 0.0]
    assert trajectory.discounts.tolist() == [0.5, 0.0, 0.0]


def test_terminal_states_are_worth_nothing_whatever_their_rows_and_rewards_say() -> None:
    transition = tensor([[0.0, 1.0], [1.0, 0.0]])
    mrp = ictd.MarkovRewardProcess(transition, tensor([1.0, 50.0]), 0.9, terminal=bools(0, 1))
    assert_same(mrp.value(), tensor([1.0, 0.0]))
    assert_same(mrp.bellman(tensor([3.0, torch.nan])), tensor([1.0, 0.0]))
    assert_same(mrp.expected_reward(), tensor([1.0, 0.0]))
    assert_same(mrp.stationary_distribution(), tensor([0.5, 0.5]))


def test_reward_of_a_transition_is_averaged() -> None:
    transition = tensor([[0.25, 0.75], [1.0, 0.0]])
    mrp = ictd.MarkovRewardProcess(transition, tensor([[4.0, 8.0], [-1.0, 99.0]]), 0.0)
    assert_same(mrp.expected_reward(), tensor([7.0, -1.0]))
    assert_same(mrp.value(), tensor([7.0, -1.0]))


def test_lazy_cycle_has_the_uniform_distribution() -> None:
    transition = 0.1 * torch.eye(3) + 0.9 * torch.eye(3).roll(1, 1)
    mrp = ictd.MarkovRewardProcess(transition, torch.zeros(3), 0.9)
    assert_same(mrp.stationary_distribution(), torch.full((3,), 1 / 3), 1e-7)


def test_periodic_chain_has_a_stationary_distribution() -> None:
    mrp = ictd.MarkovRewardProcess(tensor(np.roll(np.eye(4), 1, 1)), tensor(np.zeros(4)), 0.9)
    assert_same(mrp.stationary_distribution(), tensor([0.25] * 4), 0.0)


def test_transient_states_get_exactly_zero() -> None:
    transition = tensor([[0.2, 0.3, 0.0, 0.5], [0.0, 0.4, 0.0, 0.6], [0.1, 0.1, 0.1, 0.7]])
    transition = torch.cat([transition, tensor([[0.0, 1.0, 0.0, 0.0]])])
    mrp = ictd.MarkovRewardProcess(transition, tensor(np.zeros(4)), 0.9)
    distribution = mrp.stationary_distribution()
    assert distribution[[0, 2]].tolist() == [0.0, 0.0]
    assert_same(distribution[[1, 3]], tensor([1 / 1.6, 0.6 / 1.6]))


# The linear-attention peer's numbers -----------------------------------------------------------


PEER = json.loads((Path(__file__).parent / "data" / "a_mrps.json").read_text())
FAMILIES = ["boyan", "loop", "boyan_representable", "loop_representable"]


@pytest.mark.parametrize("family", FAMILIES)
def test_values_and_distributions_of_the_linear_attention_peer(family: str) -> None:
    assert PEER[family]
    for case in PEER[family]:
        mrp = ictd.MarkovRewardProcess(
            tensor(case["P"]),
            tensor(case["r"]).squeeze(-1),
            case["gamma"],
            initial=tensor(case["mu"]),
        )
        assert_same(mrp.value(), tensor(case["v"]).squeeze(-1))
        assert_same(mrp.stationary_distribution(), tensor(case["steady_d"]))


# Against the reference -------------------------------------------------------------------------


@quick
@given(seed=seeds, num_states=sizes, matrix=st.booleans())
def test_value_bellman_and_reward_agree_with_the_reference(
    seed: int, num_states: int, matrix: bool
) -> None:
    arguments = random_process(seed, num_states, matrix=matrix)
    mrp = process(**arguments)
    guess = np.random.default_rng(seed + 1).normal(size=num_states)
    mean = [arguments[name] for name in ("transition", "reward", "terminal")]
    rest = [arguments[name] for name in ("transition", "reward", "discount", "terminal")]
    assert_same(mrp.expected_reward(), tensor(reference.expected_reward(*mean)))
    assert_same(mrp.bellman(tensor(guess)), tensor(reference.bellman(*rest, guess)))
    assert_same(mrp.value(), tensor(reference.value(*rest, sweeps=1500)), 1e-11)


@quick
@given(seed=seeds, num_states=sizes)
def test_stationary_distribution_agrees_with_fractions(seed: int, num_states: int) -> None:
    arguments = random_process(seed, num_states)
    mrp = process(**arguments)
    if len(reference.recurrent_classes(arguments["transition"])) > 1:
        with refuses(ValueError, "not unique"):
            mrp.stationary_distribution()
        return
    exact = reference.stationary_distribution(arguments["transition"])
    expected = tensor([float(x) for x in exact])
    torch.testing.assert_close(mrp.stationary_distribution(), expected, rtol=1e-13, atol=0.0)


@quick
@given(seed=seeds, num_states=sizes, matrix=st.booleans())
def test_undiscounted_value_is_solved_exactly_where_it_exists(
    seed: int, num_states: int, matrix: bool
) -> None:
    arguments = {**random_process(seed, num_states, matrix=matrix), "discount": 1.0}
    if seed % 2:  # let some chains earn nothing at random states
        arguments["reward"][np.random.default_rng(seed).random(num_states) < 0.6] = 0.0
    terminal = arguments["terminal"]
    absorbing = arguments["transition"].copy()
    absorbing[terminal] = np.eye(num_states)[terminal]
    mean = reference.expected_reward(
        arguments["transition"], arguments["reward"], arguments["terminal"]
    )
    paying = any(mean[list(c)].any() for c in reference.recurrent_classes(absorbing))
    mrp = process(**arguments)
    if paying:
        with refuses(ValueError, r"discount: expected a number < 1 .* got 1\.0"):
            mrp.value()
        return
    rest = [arguments[name] for name in ("transition", "reward", "discount", "terminal")]
    assert_same(mrp.value(), tensor(reference.value(*rest)), 1e-9)


def test_nearly_decomposable_chain_comes_out_right_to_the_last_digits() -> None:
    rng = np.random.default_rng(0)
    blocks = np.kron(np.eye(3), np.ones((2, 2))) * rng.random((6, 6))
    transition = blocks + 1e-14 * rng.random((6, 6))
    transition /= transition.sum(1, keepdims=True)
    mrp = ictd.MarkovRewardProcess(tensor(transition), tensor(np.zeros(6)), 0.9)
    exact = tensor([float(x) for x in reference.stationary_distribution(transition)])
    torch.testing.assert_close(mrp.stationary_distribution(), exact, rtol=1e-14, atol=0.0)
    # Elimination with subtractions loses about all of it:
    system = np.vstack([(transition.T - np.eye(6))[:-1], np.ones(6)])
    naive = np.linalg.solve(system, [0.0] * 5 + [1.0])
    assert np.abs(naive / exact.numpy() - 1).max() > 1e-4


# Identities and properties ---------------------------------------------------------------------


@quick
@given(seed=seeds, num_states=sizes)
def test_value_is_linear_in_the_reward(seed: int, num_states: int) -> None:
    first = random_process(seed, num_states)
    second = {**first, "reward": np.random.default_rng(seed + 1).normal(size=num_states)}
    both = {**first, "reward": 2.0 * first["reward"] - 3.0 * second["reward"]}
    expected = 2.0 * process(**first).value() - 3.0 * process(**second).value()
    assert_same(process(**both).value(), expected)


@quick
@given(seed=seeds, num_states=sizes, matrix=st.booleans())
def test_renaming_states_renames_the_results(seed: int, num_states: int, matrix: bool) -> None:
    arguments = random_process(seed, num_states, matrix=matrix)
    names = np.random.default_rng(seed + 1).permutation(num_states)
    reward = arguments["reward"][names]
    renamed = {
        **arguments,
        "transition": arguments["transition"][np.ix_(names, names)],
        "reward": reward[:, names] if matrix else reward,
        "terminal": arguments["terminal"][names],
    }
    assert_same(process(**renamed).value(), process(**arguments).value()[names])
    if len(reference.recurrent_classes(arguments["transition"])) == 1:
        expected = process(**arguments).stationary_distribution()[names]
        assert_same(process(**renamed).stationary_distribution(), expected)


@quick
@given(seed=seeds, num_states=sizes)
def test_expected_rewards_and_rewards_of_transitions_give_one_value(
    seed: int, num_states: int
) -> None:
    arguments = random_process(seed, num_states, matrix=True)
    mrp = process(**arguments)
    mean = {**arguments, "reward": mrp.expected_reward().numpy()}
    assert_same(process(**mean).value(), mrp.value())


def test_value_is_the_reward_at_discount_zero_and_continuous_at_one() -> None:
    walk = ictd.random_walk(5, dtype=torch.float64)
    nothing = ictd.random_walk(5, discount=0.0, dtype=torch.float64)
    assert_same(nothing.value(), nothing.expected_reward())
    nearly = ictd.random_walk(5, discount=1 - 1e-9, dtype=torch.float64)
    assert_same(nearly.value(), walk.value(), 1e-7)
    assert not torch.equal(nearly.value(), walk.value())


@quick
@given(seed=seeds, num_states=sizes)
def test_average_value_under_the_stationary_distribution(seed: int, num_states: int) -> None:
    arguments = random_process(seed, num_states, terminal=False)
    if len(reference.recurrent_classes(arguments["transition"])) > 1:
        return
    mrp = process(**arguments)
    distribution = mrp.stationary_distribution()
    assert_same(distribution @ mrp.transition, distribution)
    average = distribution @ mrp.expected_reward() / (1 - mrp.discount)
    assert_same(distribution @ mrp.value(), average, 1e-11)


# The Bellman operator contracts ----------------------------------------------------------------


@pytest.mark.claim("thm-bellman-contraction")
def test_bellman_operator_contracts_to_the_value() -> None:
    generator = seeded()
    for num_states in range(1, 11):
        size = (100, num_states)
        mrp = ictd.garnet(
            num_states,
            (num_states + 1) // 2,
            discount=torch.rand(100, generator=generator, dtype=torch.float64),
            generator=generator,
            batch_shape=(100,),
            dtype=torch.float64,
        )
        u, v = (10 * torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(2))
        before = (u - v).abs().amax(-1)
        after = (mrp.bellman(u) - mrp.bellman(v)).abs().amax(-1)
        assert (after <= mrp.discount * before * (1 + 1e-12) + 1e-12).all()
        value = mrp.value()
        assert_same(mrp.bellman(value), value)
        # Nearly attained: values that differ by a constant stay apart by exactly γ times it.
        apart = (mrp.bellman(u + 1) - mrp.bellman(u)).abs().amax(-1)
        assert_same(apart, mrp.discount)


@pytest.mark.claim("thm-bellman-contraction")
def test_bellman_operator_need_not_contract_if_rows_sum_to_more_than_one() -> None:
    leaky = np.array([[0.6, 0.6], [0.5, 0.7]])
    with refuses(ValueError, "transition: expected rows that sum to 1"):
        ictd.MarkovRewardProcess(tensor(leaky), tensor([0.0, 0.0]), 0.9)
    args = leaky, np.zeros(2), 0.9, np.zeros(2, dtype=bool)
    apart = reference.bellman(*args, np.ones(2)) - reference.bellman(*args, np.zeros(2))
    assert np.abs(apart).max() > 1.0


# Batches, dtypes, devices ----------------------------------------------------------------------


@every_batch_shape
@pytest.mark.parametrize("matrix", [False, True])
def test_batch_equals_loop_equals_vmap(batch_shape: tuple[int, ...], matrix: bool) -> None:
    mrp, items = random_batch(batch_shape, matrix=matrix)
    loop = torch.stack([process(**item).value() for item in items])
    assert_same(mrp.value(), loop.reshape(*batch_shape, 5))
    assert_same(
        mrp.bellman(mrp.expected_reward()).reshape(-1, 5),
        torch.stack([x.bellman(x.expected_reward()) for x in (process(**i) for i in items)]),
    )
    value, step = ictd.MarkovRewardProcess.value, lambda x: x.bellman(x.expected_reward())
    for _ in batch_shape:
        value, step = torch.vmap(value), torch.vmap(step)
    assert_same(value(mrp), mrp.value())
    assert_same(step(mrp), mrp.bellman(mrp.expected_reward()))


@every_batch_shape
def test_stationary_distribution_of_a_batch(batch_shape: tuple[int, ...]) -> None:
    mrp = ictd.loop_chain(5, generator=seeded(), batch_shape=batch_shape, dtype=torch.float64)
    rows = mrp.transition.reshape(-1, 5, 5)
    rows[0] = tensor(np.eye(5))  # then state 1 alone is recurrent, in this item only
    rows[0, :, 1] = 1.0
    rows[0] = rows[0] / rows[0].sum(-1, keepdim=True)
    distribution = mrp.stationary_distribution()
    loop = [ictd.MarkovRewardProcess(row, row[0], 0.9).stationary_distribution() for row in rows]
    assert_same(distribution, torch.stack(loop).reshape(*batch_shape, 5))
    assert loop[0].tolist() == [0.0, 1.0, 0.0, 0.0, 0.0]
    mapped = ictd.MarkovRewardProcess.stationary_distribution
    for _ in batch_shape:
        mapped = torch.vmap(mapped)
    assert_same(mapped(mrp), distribution)


def test_discounts_of_one_and_less_mix_in_a_batch() -> None:
    discount = tensor([1.0, 0.5, 0.0, 1.0])
    mrp = ictd.random_walk(3, discount=discount, batch_shape=(4,), dtype=torch.float64)
    loop = [ictd.random_walk(3, discount=float(g), dtype=torch.float64).value() for g in discount]
    assert_same(mrp.value(), torch.stack(loop))
    assert_same(torch.vmap(ictd.MarkovRewardProcess.value)(mrp), torch.stack(loop))


def test_without_an_error_to_raise_states_without_a_value_are_nan() -> None:
    transition = tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    mrp = ictd.MarkovRewardProcess(transition, tensor([1.0, 1.0, 0.0]), 1.0)
    values = torch.vmap(lambda r: ictd.MarkovRewardProcess(transition, r, 1.0).value())
    assert values(mrp.reward.unsqueeze(0)).isnan().tolist() == [[True, True, False]]
    two = torch.vmap(lambda p: ictd.MarkovRewardProcess(p, p[0], 0.9).stationary_distribution())
    assert two(transition.unsqueeze(0)).isnan().all()


@every_batch_shape
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float16, 4e-3),
        (torch.bfloat16, 3e-2),
        (torch.float32, 1e-5),
        (torch.float64, 1e-12),
    ],
    ids=str,
)
def test_dtype_and_shape_follow_the_inputs(
    batch_shape: tuple[int, ...], dtype: torch.dtype, tolerance: float
) -> None:
    exact = ictd.loop_chain(
        4, discount=0.5, generator=seeded(), batch_shape=batch_shape, dtype=torch.float64
    )
    rounded = exact.to(dtype)
    results: dict[str, Callable[[ictd.MarkovRewardProcess], torch.Tensor]] = {
        "value": lambda x: x.value(),
        "bellman": lambda x: x.bellman(x.initial),
        "reward": lambda x: x.expected_reward(),
        "distribution": lambda x: x.stationary_distribution(),
    }
    for compute in results.values():
        assert compute(rounded).dtype == dtype
        assert compute(rounded).shape == (*batch_shape, 4)
        assert_same(compute(rounded).double(), compute(exact), tolerance)
    trajectory = rounded.sample(3, generator=seeded())
    assert trajectory.rewards.dtype == trajectory.discounts.dtype == trajectory.dtype == dtype
    assert trajectory.states.dtype == torch.int64
    assert trajectory.states.shape == (*batch_shape, 4)


def test_half_precision_is_solved_in_single() -> None:
    transition = ictd.boyan_chain(6, generator=seeded(), dtype=torch.float64).transition.half()
    mrp = ictd.MarkovRewardProcess(transition, torch.ones(6).half(), 0.96875)
    single = mrp.to(torch.float32)
    assert torch.equal(mrp.value(), single.value().half())
    assert torch.equal(mrp.stationary_distribution(), single.stationary_distribution().half())


def test_gradients_of_value_in_all_that_it_depends_on() -> None:
    terminal = bools(0, 0, 1, 0)

    def value(logits: torch.Tensor, reward: torch.Tensor, discount: torch.Tensor) -> torch.Tensor:
        mrp = ictd.MarkovRewardProcess(logits.softmax(-1), reward, discount, terminal=terminal)
        return mrp.value()

    generator = seeded()
    draw = [
        torch.randn(2, 4, 4, generator=generator, dtype=torch.float64),
        torch.randn(2, 4, generator=generator, dtype=torch.float64),
        torch.rand(2, generator=generator, dtype=torch.float64),
    ]
    terminal = terminal.expand(2, 4)
    assert torch.autograd.gradcheck(value, [x.requires_grad_() for x in draw])
    matrix = torch.randn(2, 4, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value, [draw[0], matrix, draw[2]])


def test_gradients_of_the_undiscounted_value() -> None:
    walk = ictd.random_walk(3, dtype=torch.float64)

    def value(logits: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
        blocked = logits.masked_fill(walk.transition == 0, -torch.inf).softmax(-1)
        return ictd.MarkovRewardProcess(blocked, reward, 1.0, terminal=walk.terminal).value()

    reward = torch.randn(5, generator=seeded(), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value, [torch.zeros_like(walk.reward).requires_grad_(), reward])


def test_gradients_of_bellman_and_of_the_stationary_distribution() -> None:
    logits = torch.randn(2, 4, 4, generator=seeded(), dtype=torch.float64, requires_grad=True)
    values = torch.randn(2, 4, generator=seeded(1), dtype=torch.float64, requires_grad=True)

    def make(logits: torch.Tensor, reward: torch.Tensor) -> ictd.MarkovRewardProcess:
        return ictd.MarkovRewardProcess(logits.softmax(-1), reward, 0.9)

    assert torch.autograd.gradcheck(lambda x, v: make(x, v).bellman(v), [logits, values])
    assert torch.autograd.gradcheck(
        lambda x: make(x, values.detach()).stationary_distribution(), [logits]
    )


def test_gradient_of_the_stationary_distribution_reaches_edges_out_of_the_class() -> None:
    transition = tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    direction = tensor([[-1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])  # opens 0 -> 2

    def distribution(step: torch.Tensor) -> torch.Tensor:
        mrp = ictd.MarkovRewardProcess(transition + step * direction, transition[0], 0.9)
        return mrp.stationary_distribution()

    step = tensor(0.0).requires_grad_()
    slope = torch.autograd.functional.jacobian(distribution, step)
    h = 1e-7
    assert_same(slope, (distribution(tensor(h)) - distribution(tensor(0.0))) / h, 1e-6)
    assert slope[2] > 0.1


@pytest.mark.parametrize("matrix", [False, True])
def test_no_tensor_is_made_on_another_device(matrix: bool) -> None:
    with FakeTensorMode():
        transition = torch.full((2, 3, 3), 1 / 3, device="cuda")
        reward = torch.ones((2, 3, 3) if matrix else (2, 3), device="cuda")
        for terminal in (None, torch.zeros(2, 3, dtype=torch.bool, device="cuda")):
            mrp = ictd.MarkovRewardProcess(transition, reward, 0.9, terminal=terminal)
            results = [
                mrp.value(),
                mrp.bellman(mrp.initial),
                mrp.expected_reward(),
                mrp.stationary_distribution(),
                mrp.initial,
                mrp.terminal,
                mrp.discount,
            ]
            assert {str(x.device) for x in results} == {"cuda:0"}


def test_moves_and_samples_where_it_is() -> None:
    mrp = ictd.random_walk(3, batch_shape=(2,)).to("meta")
    assert {leaf.device.type for leaf in pytree.tree_leaves(mrp)} == {"meta"}
    for start in (None, 1, torch.ones(2, dtype=torch.int64, device="meta")):
        trajectory = mrp.sample(4, generator=seeded(), start=start)
        assert {leaf.device.type for leaf in pytree.tree_leaves(trajectory)} == {"meta"}
        assert trajectory.states.shape == (2, 5)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_same_numbers() -> None:
    cpu = ictd.boyan_chain(6, generator=seeded(), batch_shape=(3,), dtype=torch.float64)
    gpu = cpu.to("cuda")
    assert_same(gpu.value().cpu(), cpu.value())
    assert_same(gpu.bellman(gpu.reward).cpu(), cpu.bellman(cpu.reward))
    assert_same(gpu.stationary_distribution().cpu(), cpu.stationary_distribution())
    single = gpu.to(torch.float32)
    torch.testing.assert_close(single.value().cpu().double(), cpu.value(), rtol=1e-5, atol=1e-5)
    states = [x.sample(50, generator=seeded()).states.cpu() for x in (cpu, gpu)]
    assert torch.equal(*states)
    generator = torch.Generator("cuda").manual_seed(0)
    assert gpu.sample(5, generator=generator).states.is_cuda
    assert not cpu.sample(5, generator=generator).states.is_cuda


@pytest.mark.compile
@pytest.mark.parametrize("name", ["value", "stationary_distribution", "expected_reward"])
def test_compiles_without_a_graph_break(name: str) -> None:
    mrp = ictd.random_walk(3, batch_shape=(2,), dtype=torch.float64)
    compiled = torch.compile(lambda x: getattr(x, name)(), fullgraph=True, backend="aot_eager")
    assert_same(compiled(mrp), getattr(mrp, name)())


# Sampling --------------------------------------------------------------------------------------


def counts(states: torch.Tensor, is_transition: torch.Tensor, num_states: int) -> torch.Tensor:
    """How often each transition happened."""
    pairs = (states[..., :-1] * num_states + states[..., 1:])[is_transition[..., :-1]]
    return pairs.bincount(minlength=num_states**2).reshape(num_states, num_states)


def test_sampled_frequencies_are_the_transition_probabilities() -> None:
    mrp = ictd.garnet(5, 3, generator=seeded(), dtype=torch.float64)
    batch = ictd.MarkovRewardProcess(
        mrp.transition.expand(200, 5, 5), mrp.reward.expand(200, 5), 0.9
    )
    trajectory = batch.sample(500, generator=seeded(1))
    count = counts(trajectory.states, trajectory.is_transition, 5).double()
    visits = count.sum(-1, keepdim=True)
    deviation = (mrp.transition * (1 - mrp.transition) / visits).sqrt()
    assert visits.sum() == 200 * 500
    assert ((count / visits - mrp.transition).abs() <= 4.5 * deviation).all()
    start = trajectory.states[:, 0].bincount(minlength=5) / 200
    assert ((start - 0.2).abs() <= 4.5 * (0.2 * 0.8 / 200) ** 0.5).all()


def test_start_is_drawn_from_the_initial_distribution() -> None:
    initial = tensor([0.0, 0.7, 0.3])
    mrp = ictd.MarkovRewardProcess(
        tensor(np.eye(3)).expand(4000, 3, 3),
        tensor(np.zeros(3)).expand(4000, 3),
        0.9,
        initial=initial.expand(4000, 3),
    )
    share = mrp.sample(1, generator=seeded()).states[:, 0].bincount(minlength=3) / 4000
    assert share[0] == 0
    assert abs(float(share[1]) - 0.7) < 4.5 * (0.7 * 0.3 / 4000) ** 0.5


def test_tokens_of_a_trajectory() -> None:
    walk = ictd.random_walk(3, discount=0.5, dtype=torch.float64)
    trajectory = walk.sample(400, generator=seeded())
    states = trajectory.states.tolist()
    assert len(trajectory) == 401
    seen = set()
    assert trajectory.is_terminal is not None
    for j, state in enumerate(states):
        following = states[j + 1] if j < 400 else None
        ended = state in (0, 4)
        leaves = following is not None and not ended
        expected = (
            0.5 if leaves and following not in (0, 4) else 0.0,
            1.0 if leaves and following == 4 else 0.0,
            leaves,
            ended,
        )
        actual = (
            float(trajectory.discounts[j]),
            float(trajectory.rewards[j]),
            bool(trajectory.is_transition[j]),
            bool(trajectory.is_terminal[j]),
        )
        assert actual == expected
        if ended and following is not None:
            assert following == 2  # a new episode starts in the middle
        elif leaves:
            assert abs(following - state) == 1
        seen.add(expected)
    assert len(seen) == 5  # inside, off to the left, off to the right, terminal, the very last


def test_occupation_of_episodes_is_the_stationary_distribution() -> None:
    walk = ictd.random_walk(3, batch_shape=(50,))
    states = walk.sample(2000, generator=seeded()).states
    share = states.flatten().bincount(minlength=5) / states.numel()
    assert_same(share, walk[0].stationary_distribution(), 0.01)


def test_expected_rewards_are_paid_on_leaving() -> None:
    mrp = ictd.boyan_chain(5, generator=seeded(), batch_shape=(2,), dtype=torch.float64)
    trajectory = mrp.sample(30, generator=seeded())
    for i in range(2):
        expected = mrp.reward[i][trajectory.states[i]]
        assert torch.equal(trajectory.rewards[i, :-1], expected[:-1])
    assert trajectory.rewards[:, -1].tolist() == [0.0, 0.0]
    assert trajectory.discounts[:, :-1].unique().tolist() == [0.9]
    assert trajectory.discounts[:, -1].tolist() == [0.0, 0.0]
    assert trajectory.is_transition[:, -1].tolist() == [False, False]


def test_rewards_of_transitions_are_paid_for_the_pair() -> None:
    reward = tensor(np.arange(18.0)).reshape(2, 3, 3)
    mrp = ictd.MarkovRewardProcess(torch.full_like(reward, 1 / 3), reward, 0.9)
    trajectory = mrp.sample(40, generator=seeded())
    for i in range(2):
        states = trajectory.states[i]
        assert torch.equal(trajectory.rewards[i, :-1], reward[i, states[:-1], states[1:]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_an_impossible_transition_is_never_taken(dtype: torch.dtype) -> None:
    third = torch.tensor(1 / 3, dtype=dtype)
    tenth = torch.full((10,), 0.1, dtype=dtype)
    zero = torch.zeros(4, dtype=dtype)
    row = torch.cat([zero[:2], tenth[:5], zero, tenth[5:], zero])
    thirds = torch.zeros_like(row)
    thirds[[3, 9, 11]] = third
    numbers = [0.0, 2.0**-53, 1 - 2.0**-53, 0.5, 1 / 3, 2 / 3, *np.arange(1, 10) / 10]
    numbers += [np.nextafter(x, 0) for x in numbers[3:]] + [np.nextafter(x, 1) for x in numbers[3:]]
    for probabilities in (row, thirds, torch.cat([zero[:1], row[:-1]]), thirds.flip(0)):
        m = len(probabilities)
        for number in numbers:
            uniforms = torch.full((3,), number, dtype=torch.float64)
            states = sample_states(
                probabilities.expand(m, m), probabilities, torch.zeros(m, dtype=torch.bool), None,
                uniforms,
            )  # fmt: skip
            assert (probabilities[states] > 0).all(), number


def test_thresholds_leave_out_what_is_impossible_and_end_at_the_last_that_is_not() -> None:
    found = thresholds(tensor([[0.0, 0.25, 0.0, 0.75, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0]]))
    no, end = -torch.inf, torch.inf
    assert found.tolist() == [[no, 0.25, no, end, no], [no, no, end, no, no]]


def test_a_row_that_does_not_quite_sum_to_one_still_leads_somewhere_possible() -> None:
    transition = tensor([[0.0, 0.5, 0.5 - 9e-7, 0.0]] * 4)
    uniforms = tensor([0.0, 1 - 2.0**-53])
    none = torch.zeros(4, dtype=torch.bool)
    assert sample_states(transition, transition[0], none, None, uniforms).tolist() == [1, 2]


def test_one_seed_gives_one_trajectory() -> None:
    mrp = ictd.boyan_chain(6, generator=seeded(), batch_shape=(2, 3))
    before = torch.random.get_rng_state()
    first = mrp.sample(30, generator=seeded(7))
    again = mrp.sample(30, generator=seeded(7))
    other = mrp.sample(30, generator=seeded(8))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first.states, again.states)
    assert not torch.equal(first.states, other.states)
    assert not torch.equal(first.states[0, 0], first.states[1, 2])
    double = mrp.to(torch.float64).sample(30, generator=seeded(7))
    assert torch.equal(first.states, double.states)
    longer = mrp.sample(40, generator=seeded(7))
    assert longer.states.shape == (2, 3, 41)


def test_start_fixes_the_first_state_and_keeps_the_random_numbers() -> None:
    mrp = ictd.loop_chain(4, generator=seeded(), batch_shape=(3,))
    drawn = mrp.sample(20, generator=seeded(1))
    fixed = mrp.sample(20, generator=seeded(1), start=drawn.states[:, 0])
    assert torch.equal(drawn.states, fixed.states)
    assert mrp.sample(2, generator=seeded(), start=3).states[:, 0].tolist() == [3, 3, 3]
    assert mrp.sample(0, generator=seeded(), start=1).states.tolist() == [[1], [1], [1]]


def test_a_new_episode_starts_from_initial_whatever_the_terminal_row_says() -> None:
    transition = tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    initial, terminal = tensor([1.0, 0.0, 0.0]), bools(0, 0, 1)
    mrp = ictd.MarkovRewardProcess(transition, initial, 0.9, initial=initial, terminal=terminal)
    assert mrp.sample(6, generator=seeded()).states.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_a_uniform_number_on_a_threshold_belongs_to_the_next_state() -> None:
    half, none = tensor([[0.5, 0.5], [0.5, 0.5]]), bools(0, 0)
    assert sample_states(half, half[0], none, None, tensor([0.5, 0.0, 0.5])).tolist() == [1, 0, 1]


def test_episode_that_starts_at_its_end_starts_anew() -> None:
    walk = ictd.random_walk(1)
    trajectory = walk.sample(2, generator=seeded(), start=0)
    assert trajectory.states[:2].tolist() == [0, 1]
    assert trajectory.is_transition.tolist() == [False, True, False]


def test_gradients_of_sampled_rewards_and_discounts() -> None:
    reward = torch.ones(3, requires_grad=True)
    discount = torch.tensor(0.9, requires_grad=True)
    cycle = torch.eye(3).roll(1, 1).requires_grad_()
    trajectory = ictd.MarkovRewardProcess(cycle, reward, discount).sample(
        4, generator=seeded(), start=0
    )
    grads = torch.autograd.grad(trajectory.rewards.sum(), reward)
    assert grads[0].tolist() == [2.0, 1.0, 1.0]
    assert torch.autograd.grad(trajectory.discounts.sum(), discount)[0] == 4.0


# The record ------------------------------------------------------------------------------------


@pytest.mark.parametrize("matrix", [False, True])
def test_record_indexes_moves_and_maps(matrix: bool) -> None:
    mrp, items = random_batch((2, 3), matrix=matrix)
    assert (mrp.num_states, mrp.batch_shape) == (5, (2, 3))
    assert (mrp.device.type, mrp.dtype) == ("cpu", torch.float64)
    assert_same(mrp[1, 2].value(), process(**items[5]).value())
    assert mrp[1].batch_shape == (3,)
    assert mrp[:, [0, 2]].reward.shape == mrp.reward[:, [0, 2]].shape
    with pytest.raises(IndexError, match="expected at most 2 indices"):
        mrp[0, 0, 0]
    single = mrp.to(torch.float32)
    assert single.discount.dtype == torch.float32
    assert single.terminal.dtype == torch.bool
    leaves, structure = pytree.tree_flatten(mrp)
    assert len(leaves) == 5
    assert torch.equal(pytree.tree_unflatten(leaves, structure).reward, mrp.reward)
    with pytest.raises(AttributeError):
        mrp.reward = mrp.reward  # type: ignore[misc]


def test_arguments_are_kept_and_never_modified() -> None:
    transition, reward = torch.full((2, 2), 0.5), torch.ones(2)
    kept = transition.clone(), reward.clone()
    mrp = ictd.MarkovRewardProcess(transition, reward, 0.9)
    mrp.value(), mrp.stationary_distribution(), mrp.sample(3, generator=seeded())
    assert torch.equal(transition, kept[0])
    assert torch.equal(reward, kept[1])
    assert mrp.transition is transition
    assert torch.equal(mrp.initial, transition[0])
    assert torch.equal(mrp.discount, torch.tensor(0.9))


def test_initial_leaves_terminal_states_out() -> None:
    third = torch.full((3, 3), 1 / 3)
    mrp = ictd.MarkovRewardProcess(third, torch.ones(3), 0.9, terminal=bools(0, 1, 0))
    assert mrp.initial.tolist() == [0.5, 0.0, 0.5]
    ended = ictd.MarkovRewardProcess(
        third, torch.ones(3), 0.9, terminal=bools(1, 1, 1), initial=third[0]
    )
    assert ended.value().tolist() == [0.0, 0.0, 0.0]


# Refusals --------------------------------------------------------------------------------------


def arguments(**changes: Any) -> dict[str, Any]:
    return {
        "transition": tensor([[0.5, 0.5], [0.5, 0.5]]),
        "reward": tensor([1.0, 2.0]),
        "discount": 0.9,
        **changes,
    }


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no matrix": (
        {"transition": tensor([0.5, 0.5])},
        ValueError,
        r"transition: expected shape \[\*B, m, m\], m >= 1, got \(2,\)",
    ),
    "not square": ({"transition": tensor([[0.5, 0.5]])}, ValueError, r"transition: .* \(1, 2\)"),
    "no states": ({"transition": torch.zeros(0, 0)}, ValueError, r"transition: .* \(0, 0\)"),
    "whole numbers": (
        {"transition": torch.eye(2, dtype=torch.int64)},
        TypeError,
        "transition: expected a floating-point dtype, got torch.int64",
    ),
    "negative": (
        {"transition": tensor([[0.5, 0.5], [1.5, -0.5]])},
        ValueError,
        r"transition: expected entries >= 0, got -0.5 at index \(1, 1\)",
    ),
    "NaN": (
        {"transition": tensor([[0.5, 0.5], [torch.nan, 0.5]])},
        ValueError,
        r"transition: expected finite entries, got nan at index \(1, 0\)",
    ),
    "row sum": (
        {"transition": tensor([[0.5, 0.5], [0.5, 0.4]])},
        ValueError,
        r"transition: expected rows that sum to 1 within 1.0e-06, got 0.9 at index \(1,\)",
    ),
    "row sum in the batch": (
        {
            "transition": torch.stack([tensor(np.eye(2)), tensor([[0.5, 0.5 + 2e-6], [0.0, 1.0]])]),
            "reward": tensor(np.zeros((2, 2))),
        },
        ValueError,
        r"transition: .* got 1.00000199.* at index \(1, 0\)",
    ),
    "reward shape": (
        {"reward": tensor([1.0, 2.0, 3.0])},
        ValueError,
        r"reward: expected shape \[\*B, m\] = \(2,\), got \(3,\)",
    ),
    "reward matrix shape": (
        {"reward": tensor([[1.0, 2.0]])},
        ValueError,
        r"reward: expected shape \[\*B, m, m\] = \(2, 2\), got \(1, 2\)",
    ),
    "reward dtype": (
        {"reward": torch.ones(2)},
        TypeError,
        r"reward: expected dtype torch.float64 \(that of transition\), got torch.float32",
    ),
    "reward infinite": (
        {"reward": tensor([1.0, torch.inf])},
        ValueError,
        r"reward: expected finite entries, got inf at index \(1,\)",
    ),
    "discount above 1": ({"discount": 1.5}, ValueError, r"discount: .* \[0, 1\], got 1.5"),
    "discount NaN": ({"discount": float("nan")}, ValueError, "discount: .* got nan"),
    "discount tensor": (
        {"discount": tensor(-0.5)},
        ValueError,
        r"discount: expected numbers in \[0, 1\], got -0.5$",
    ),
    "discount shape": (
        {"discount": tensor([0.9, 0.9])},
        ValueError,
        r"discount: expected shape \[\*B\] = \(\), got \(2,\)",
    ),
    "discount dtype": ({"discount": torch.tensor(0.9)}, TypeError, "discount: expected dtype"),
    "initial shape": ({"initial": tensor([1.0])}, ValueError, r"initial: .* = \(2,\), got \(1,\)"),
    "initial sum": (
        {"initial": tensor([0.5, 0.6])},
        ValueError,
        r"initial: expected rows that sum to 1 within 1.0e-06, got 1.1$",
    ),
    "initial dtype": ({"initial": torch.tensor([0.5, 0.5])}, TypeError, "initial: expected dtype"),
    "terminal dtype": (
        {"terminal": tensor([0.0, 1.0])},
        TypeError,
        "terminal: expected dtype torch.bool, got torch.float64",
    ),
    "terminal shape": ({"terminal": bools(0, 1, 0)}, ValueError, r"terminal: .* got \(3,\)"),
    "all terminal": (
        {"terminal": bools(1, 1)},
        ValueError,
        "terminal: expected a state that is not terminal",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    changes, error, message = REFUSED[name]
    with refuses(error, message):
        ictd.MarkovRewardProcess(**arguments(**changes))


@pytest.mark.parametrize(
    ("dtype", "off", "fine"),
    [
        (torch.float64, 0.9e-6, True),
        (torch.float64, 1.1e-6, False),
        (torch.float16, 0.005, True),
        (torch.float16, 0.01, False),
    ],
    ids=str,
)
def test_row_sums_are_held_to_the_accuracy_of_the_dtype(
    dtype: torch.dtype, off: float, fine: bool
) -> None:
    transition = torch.tensor([[0.5, 0.5 + off], [0.5, 0.5]], dtype=dtype)
    reward = torch.zeros(2, dtype=dtype)
    if fine:
        mrp = ictd.MarkovRewardProcess(transition, reward, 0.5)
        assert mrp.transition is transition  # used as given
    else:
        with refuses(ValueError, "transition: expected rows that sum to 1"):
            ictd.MarkovRewardProcess(transition, reward, 0.5)


def test_stationary_distribution_of_the_identity_is_not_unique() -> None:
    mrp = ictd.MarkovRewardProcess(torch.eye(2), torch.zeros(2), 0.9)
    with refuses(ValueError, r"transition: .* not unique\), got 2$"):
        mrp.stationary_distribution()
    batch = torch.stack([torch.full((3, 3), 1 / 3), torch.eye(3)])
    with refuses(ValueError, r"not unique\), got 3 at index \(1,\)"):
        ictd.MarkovRewardProcess(batch, torch.zeros(2, 3), 0.9).stationary_distribution()


@pytest.mark.parametrize("first", [0, 1])
def test_stationary_distribution_that_the_dtype_cannot_hold(first: int) -> None:
    transition = torch.tensor([[1.0, 1e-30], [1.0, 0.0]])
    mrp = ictd.MarkovRewardProcess(transition, torch.zeros(2), 0.9)
    expected = torch.tensor([1.0, 1e-30])
    torch.testing.assert_close(mrp.stationary_distribution(), expected, rtol=1e-6, atol=0.0)
    chain = torch.tensor([[1.0, 1e-30, 0.0], [1.0, 0.0, 1e-30], [1.0, 0.0, 0.0]])
    order = [0, 1, 2] if first == 0 else [2, 1, 0]
    chain = chain[order][:, order]
    mrp = ictd.MarkovRewardProcess(chain, torch.zeros(3), 0.9)
    with refuses(ValueError, r"can hold \(take a wider dtype\)"):
        mrp.stationary_distribution()
    wide = mrp.to(torch.float64).stationary_distribution()
    torch.testing.assert_close(wide[order], tensor([1.0, 1e-30, 1e-60]), rtol=1e-6, atol=0.0)


def test_stationary_distribution_below_the_normal_numbers_has_lost_its_digits() -> None:
    chain = torch.tensor([[1.0, 1e-30, 0.0], [1.0, 0.0, 1e-10], [1.0, 0.0, 0.0]])
    mrp = ictd.MarkovRewardProcess(chain, torch.zeros(3), 0.9)  # (1, 1e-30, 1e-40): subnormal
    with refuses(ValueError, r"float32 can hold \(take a wider dtype\), got .* at index \(2,\)"):
        mrp.stationary_distribution()


def test_distribution_that_half_precision_cannot_hold() -> None:
    transition = torch.tensor([[1.0, 6e-8, 0.0], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]).half()
    transition[2] = torch.tensor([1.0, 0.0, 0.0])
    mrp = ictd.MarkovRewardProcess(transition, torch.zeros(3).half(), 0.5)
    assert mrp.stationary_distribution()[1] > 0
    rare = torch.tensor([[1.0, 6e-8, 0.0], [1.0, 0.0, 0.1], [1.0, 0.0, 0.0]]).half()
    rare[1, 0] = 0.9
    mrp = ictd.MarkovRewardProcess(rare, torch.zeros(3).half(), 0.5)
    with refuses(ValueError, r"torch.float16 can hold .* got 0.0 at index \(2,\)"):
        mrp.stationary_distribution()


def test_value_that_does_not_exist() -> None:
    mrp = ictd.MarkovRewardProcess(tensor(np.eye(2)), tensor([0.0, 1.0]), 1.0)
    with refuses(ValueError, r"discount: expected a number < 1 .* at index \(1,\)"):
        mrp.value()
    alternating = tensor([[0.0, 1.0], [1.0, 0.0]])  # +1 − 1 + 1 …: no limit
    mrp = ictd.MarkovRewardProcess(alternating, tensor([1.0, -1.0]), 1.0)
    with refuses(ValueError, "a recurrent class that is not terminal pays rewards"):
        mrp.value()


def test_value_that_the_dtype_cannot_reach() -> None:
    transition = torch.tensor([[1.0, 1e-30], [0.0, 1.0]])  # ends, after 1e30 steps
    mrp = ictd.MarkovRewardProcess(transition, torch.ones(2), 1.0, terminal=bools(0, 1))
    with refuses(ValueError, r"transition: expected equations that torch\.float32 can"):
        mrp.value()


def test_bellman_refuses_values_of_another_kind() -> None:
    mrp = ictd.MarkovRewardProcess(**arguments())
    with refuses(ValueError, r"values: expected shape \[\*B, m\] = \(2,\), got \(1,\)"):
        mrp.bellman(tensor([1.0]))
    with refuses(TypeError, r"values: expected dtype torch\.float64"):
        mrp.bellman(torch.ones(2))
    with refuses(TypeError, r"values: expected a torch\.Tensor, got list"):
        mrp.bellman([1.0, 2.0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_steps": -1}, ValueError, "num_steps: expected an integer >= 0, got -1"),
        ({"num_steps": 2.0}, TypeError, "num_steps: expected an integer, got float"),
        ({"start": 2}, ValueError, r"start: expected states in 0..1, got 2$"),
        ({"start": -1}, ValueError, "start: expected an integer >= 0, got -1"),
        ({"start": torch.tensor([0])}, ValueError, r"start: expected shape \[\*B\] = \(\)"),
        ({"start": torch.tensor(0.0)}, TypeError, "start: expected dtype torch.int64"),
        ({"start": torch.tensor(-1)}, ValueError, r"start: expected states in 0..1, got -1$"),
    ],
)
def test_sample_refuses(options: dict[str, Any], error: type[Exception], message: str) -> None:
    mrp = ictd.MarkovRewardProcess(**arguments())
    with refuses(error, message):
        mrp.sample(**{"num_steps": 3, "generator": seeded(), **options})
