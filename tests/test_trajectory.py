"""Trajectories: what a process leaves behind, and how it becomes a prompt."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

import ictd
from strategies import BATCH_SHAPES, Contexts, contexts, quick, refuses, tensor

FIELDS = ["states", "rewards", "discounts", "is_transition", "is_terminal"]


def bools(*flags: int) -> torch.Tensor:
    return torch.tensor(flags, dtype=torch.bool)


def small(**changes: Any) -> ictd.Trajectory:
    """Three tokens, two transitions, the last state terminal; keywords replace arguments."""
    arguments: dict[str, Any] = {
        "states": torch.tensor([0, 1, 2]),
        "rewards": tensor([1.0, 10.0, 0.0]),
        "discounts": tensor([0.5, 0.0, 0.0]),
        "is_terminal": bools(0, 0, 1),
        **changes,
    }
    return ictd.Trajectory(**arguments)


# Making one ------------------------------------------------------------------------------------


def test_transitions_leave_all_tokens_but_the_last_and_terminal_ones() -> None:
    assert small().is_transition.tolist() == [True, True, False]
    assert small(is_terminal=None).is_transition.tolist() == [True, True, False]
    assert small(is_terminal=None).is_terminal is None
    assert small(is_terminal=bools(0, 1, 0)).is_transition.tolist() == [True, False, False]
    explicit = small(is_transition=bools(0, 1, 0))
    assert explicit.is_transition.tolist() == [False, True, False]
    batch = ictd.Trajectory(
        torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3), torch.ones(2, 3)
    )
    assert batch.is_transition.tolist() == [[True, True, False]] * 2


def test_masked_tokens_may_hold_anything() -> None:
    trajectory = small(
        rewards=tensor([torch.nan, 1.0, torch.inf]),
        discounts=tensor([-7.0, 1.0, torch.nan]),
        is_transition=bools(0, 1, 0),
    )
    assert trajectory.rewards[0].isnan()


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "states dtype": (
        {"states": tensor([0.0, 1.0, 2.0])},
        TypeError,
        r"states: expected dtype torch\.int64, got torch\.float64",
    ),
    "no tokens": (
        {"states": torch.zeros(2, 0, dtype=torch.int64)},
        ValueError,
        r"states: expected \[\*B, N\] with at least one token, got shape \(2, 0\)",
    ),
    "no axis": ({"states": torch.tensor(0)}, ValueError, r"states: .* got shape \(\)"),
    "negative state": (
        {"states": torch.tensor([0, -1, 0])},
        ValueError,
        r"states: expected states >= 0, got -1 at index \(1,\)",
    ),
    "rewards shape": (
        {"rewards": tensor([1.0])},
        ValueError,
        r"rewards: expected shape \[\*B, N\] = \(3,\), got \(1,\)",
    ),
    "rewards dtype": (
        {"rewards": torch.tensor([1, 2, 3])},
        TypeError,
        r"rewards: expected a floating-point dtype, got torch\.int64",
    ),
    "rewards NaN": (
        {"rewards": tensor([1.0, torch.nan, 0.0])},
        ValueError,
        r"rewards: expected finite entries, got nan at index \(1,\)",
    ),
    "discounts dtype": (
        {"discounts": torch.ones(3)},
        TypeError,
        r"discounts: expected dtype torch\.float64 \(that of rewards\), got torch\.float32",
    ),
    "no discounts": ({"discounts": 0.9}, TypeError, r"discounts: expected a torch\.Tensor"),
    "discounts shape": ({"discounts": tensor([[0.5]])}, ValueError, r"discounts: .* got \(1, 1\)"),
    "discounts range": (
        {"discounts": tensor([0.5, 1.5, 0.0])},
        ValueError,
        r"discounts: expected numbers in \[0, 1\] at transitions, got 1\.5 at index \(1,\)",
    ),
    "discounts NaN": (
        {"discounts": tensor([torch.nan, 0.0, 0.0])},
        ValueError,
        r"discounts: .* got nan at index \(0,\)",
    ),
    "transition dtype": (
        {"is_transition": tensor([1.0, 0.0, 0.0])},
        TypeError,
        r"is_transition: expected dtype torch\.bool",
    ),
    "transition shape": ({"is_transition": bools(1, 0)}, ValueError, r"is_transition: .* \(2,\)"),
    "transition from the last": (
        {"is_transition": bools(1, 1, 1), "is_terminal": None},
        ValueError,
        r"is_transition: expected no transition from the last token, got one at index \(2,\)",
    ),
    "transition from a terminal": (
        {"is_transition": bools(1, 1, 0), "is_terminal": bools(0, 1, 0)},
        ValueError,
        r"is_transition: expected no transition from a terminal token, got one at index \(1,\)",
    ),
    "terminal dtype": (
        {"is_terminal": tensor([0.0, 0.0, 1.0])},
        TypeError,
        r"is_terminal: expected dtype torch\.bool",
    ),
    "terminal shape": ({"is_terminal": bools(1)}, ValueError, r"is_terminal: .* got \(1,\)"),
    "device": (
        {"states": torch.zeros(3, dtype=torch.int64, device="meta"), "is_terminal": None},
        ValueError,
        r"states: expected device cpu \(that of rewards\), got meta",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    changes, error, message = REFUSED[name]
    with refuses(error, message):
        small(**changes)


# The record ------------------------------------------------------------------------------------


def test_record_indexes_moves_and_maps() -> None:
    generator = torch.Generator().manual_seed(0)
    walk = ictd.random_walk(3, batch_shape=(2, 3), dtype=torch.float64)
    trajectory = walk.sample(6, generator=generator)
    assert len(trajectory) == 7
    assert (trajectory.batch_shape, trajectory.dtype) == ((2, 3), torch.float64)
    assert trajectory.device.type == "cpu"
    assert torch.equal(trajectory[1, 2].states, trajectory.states[1, 2])
    assert trajectory[:, 0].batch_shape == (2,)
    with pytest.raises(IndexError, match="expected at most 2 indices"):
        trajectory[0, 0, 0]
    single = trajectory.to(torch.float32)
    assert single.rewards.dtype == single.discounts.dtype == torch.float32
    assert single.states.dtype == torch.int64
    assert len(trajectory.to("meta").prompt(torch.ones(5, 2, device="meta").double())) == 7
    leaves, structure = pytree.tree_flatten(trajectory)
    assert len(leaves) == 5
    again = pytree.tree_unflatten(leaves, structure)
    assert all(torch.equal(getattr(again, name), getattr(trajectory, name)) for name in FIELDS)
    with pytest.raises(AttributeError):
        trajectory.states = trajectory.states  # type: ignore[misc]


# Prompts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_prompt_holds_the_features_of_the_states(
    batch_shape: tuple[int, ...], shared: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    walk = ictd.random_walk(3, batch_shape=batch_shape)
    trajectory = walk.sample(9, generator=generator)
    features = ictd.unit_sphere_features(
        5, 2, generator=generator, batch_shape=() if shared else batch_shape
    )
    prompt = trajectory.prompt(features)
    assert prompt.features.shape == (*batch_shape, 10, 2)
    table = features.expand(*batch_shape, 5, 2).reshape(-1, 5, 2)
    states = trajectory.states.reshape(-1, 10)
    for i, tokens in enumerate(prompt.features.reshape(-1, 10, 2)):
        assert torch.equal(tokens, torch.stack([table[i, s] for s in states[i]]))
    for name in FIELDS[1:]:
        assert torch.equal(getattr(prompt, name), getattr(trajectory, name)), name


def test_prompt_of_a_trajectory_without_terminal_tokens_pins_nothing() -> None:
    assert small(is_terminal=None).prompt(torch.eye(3).double()).is_terminal is None


def test_gradients_reach_the_features() -> None:
    for features in (torch.eye(3).double(), torch.eye(3).double().expand(2, 3, 3)):
        leaf = features.clone().requires_grad_()
        states = torch.tensor([0, 1, 0]) if leaf.ndim == 2 else torch.tensor([[0, 1, 0]] * 2)
        zeros = torch.zeros(states.shape, dtype=torch.float64)
        prompt = ictd.Trajectory(states, zeros, zeros).prompt(leaf)
        (gradient,) = torch.autograd.grad(prompt.features.sum(), leaf)
        assert gradient.reshape(-1, 3, 3)[0].tolist() == [[2.0] * 3, [1.0] * 3, [0.0] * 3]


@pytest.mark.parametrize(
    ("features", "error", "message"),
    [
        (
            torch.eye(2).double(),
            ValueError,
            r"states: expected states < 2 .* got 2 at index \(2,\)",
        ),
        (torch.eye(3), TypeError, r"features: expected dtype torch\.float64 \(that of rewards\)"),
        (torch.ones(3).double(), ValueError, r"features: expected shape \[m, d\].* got \(3,\)"),
        (torch.ones(2, 3, 3).double(), ValueError, r"features: .* got \(2, 3, 3\)"),
        (torch.ones(3, 3, dtype=torch.int64), TypeError, "features: expected a floating-point"),
        (torch.ones(3, 3, device="meta").double(), ValueError, "features: expected device cpu"),
    ],
)
def test_prompt_refuses_features(
    features: torch.Tensor, error: type[Exception], message: str
) -> None:
    with refuses(error, message):
        small().prompt(features)


def test_prompt_refuses_features_of_another_batch() -> None:
    batch = pytree.tree_map(lambda leaf: leaf.expand(2, 3), small())
    for shape in ((3, 3, 4), (1, 3, 4), (2, 1, 3, 4)):
        with refuses(ValueError, r"features: expected shape \[m, d\], or .* = \(2,\)"):
            batch.prompt(torch.ones(shape, dtype=torch.float64))
    assert batch.prompt(torch.ones(2, 3, 4, dtype=torch.float64)).batch_shape == (2,)


def test_no_tensor_is_made_on_another_device() -> None:
    with FakeTensorMode():
        states = torch.zeros(2, 3, dtype=torch.int64, device="cuda")
        zeros = torch.zeros(2, 3, device="cuda")
        trajectory = ictd.Trajectory(states, zeros, zeros, is_terminal=zeros.bool())
        prompt = trajectory.prompt(torch.ones(2, 4, 2, device="cuda"))
        assert {str(leaf.device) for leaf in pytree.tree_leaves((trajectory, prompt))} == {"cuda:0"}


# Closure ---------------------------------------------------------------------------------------


@quick
@given(context=contexts())
def test_trim_cuts_where_the_prompt_with_one_hot_features_is_cut(context: Contexts) -> None:
    trajectory = context.trajectory()
    features = ictd.one_hot_features(int(trajectory.states.max()) + 1, dtype=torch.float64)
    trimmed, expected = trajectory.trim(), trajectory.prompt(features).trim()
    assert torch.equal(trimmed.prompt(features).features, expected.features)
    for name in FIELDS[1:]:
        assert torch.equal(getattr(trimmed, name), getattr(expected, name)), name
    again = trimmed.trim()
    assert all(torch.equal(getattr(again, name), getattr(trimmed, name)) for name in FIELDS)


def test_trimmed_trajectory_ends_where_it_was() -> None:
    trajectory = ictd.Trajectory(
        torch.tensor([0, 1, 0, 2]), torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.full((4,), 0.5)
    ).trim()
    assert trajectory.states.tolist() == [0, 1, 0]
    assert trajectory.rewards.tolist() == [1.0, 2.0, 0.0]
    assert trajectory.discounts.tolist() == [0.5, 0.5, 0.0]
    assert trajectory.is_transition.tolist() == [True, True, False]
    assert trajectory.is_terminal is None


def test_a_terminated_episode_is_closed() -> None:
    assert small().trim().states.tolist() == [0, 1, 2]


def test_certainty_equivalence_is_defined_after_trimming() -> None:
    generator = torch.Generator().manual_seed(0)
    mrp = ictd.boyan_chain(4, generator=generator, batch_shape=(20,), dtype=torch.float64)
    trimmed = mrp.sample(12, generator=generator).trim()
    values = ictd.certainty_equivalence(trimmed, 4)
    sources = torch.where(trimmed.is_transition, trimmed.states, -1)
    for i in range(20):
        assert values[i].isfinite().tolist() == [s in sources[i].tolist() for s in range(4)]


def test_trim_keeps_a_transition_into_a_terminal_state_whatever_its_discount() -> None:
    """The value of a terminal state is 0, so nothing is bootstrapped from it."""
    fields = torch.tensor([0, 1]), torch.ones(2), torch.full((2,), 0.5)
    ended = ictd.Trajectory(*fields, is_terminal=torch.tensor([False, True]))
    assert len(ended.trim()) == 2
    assert len(ended.prompt(torch.eye(2)).trim()) == 2
    assert len(ictd.Trajectory(*fields).trim()) == 1
    assert ictd.certainty_equivalence(ended, 2).tolist() == [1.0, 0.0]
