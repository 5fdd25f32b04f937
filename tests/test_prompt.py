"""Contexts: the layout of tokens, and everything that makes one prompt out of another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import ictd
from reference import td as reference
from reference import transformer as reference_transformer
from strategies import (
    BATCH_SHAPES,
    Contexts,
    assert_same,
    contexts,
    quick,
    random_contexts,
    refuses,
    tensor,
)

every_batch_shape = pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)
FIELDS = ["features", "rewards", "discounts", "is_transition", "is_terminal"]


def small(**changes: Any) -> ictd.Prompt:
    """Three tokens, two transitions; keywords replace arguments."""
    arguments: dict[str, Any] = {
        "features": tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
        "rewards": tensor([1.0, 2.0, 0.0]),
        "discounts": tensor([0.9, 0.9, 0.0]),
        "is_transition": torch.tensor([True, True, False]),
        "is_terminal": torch.tensor([False, False, True]),
    }
    return ictd.Prompt(**{**arguments, **changes})


def assert_equal(actual: ictd.Prompt, expected: ictd.Prompt) -> None:
    """The same fields, bit for bit, NaN included."""
    for name in FIELDS:
        torch.testing.assert_close(
            getattr(actual, name), getattr(expected, name), rtol=0, atol=0, equal_nan=True
        )


# From episodes ---------------------------------------------------------------------------------


Episodes = tuple[list[np.ndarray], list[np.ndarray], list[bool], list[bool]]


def random_episodes(seed: int, count: int = 4) -> Episodes:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, size=count)
    return (
        [rng.normal(size=(t + 1, 2)) for t in lengths],
        [rng.normal(size=t) for t in lengths],
        [bool(x) for x in rng.random(count) < 0.5],
        [bool(x) for x in rng.random(count) < 0.5],
    )


@pytest.mark.parametrize("seed", range(6))
def test_from_episodes_lays_out_tokens_as_the_reference_does(seed: int) -> None:
    episodes = random_episodes(seed)
    prompt = ictd.Prompt.from_episodes(*episodes, discount=0.8)
    expected = reference.episode_tokens(*episodes, 0.8)
    for name in FIELDS:
        actual = getattr(prompt, name).numpy()
        np.testing.assert_array_equal(actual, getattr(expected, name), err_msg=name)


@pytest.mark.parametrize(("terminated", "value"), [(False, 10.0), (True, 4.0951)])
def test_truncation_bootstraps_and_termination_does_not(terminated: bool, value: float) -> None:
    # C6: five rewards of 1, gamma = .9, v(S_5) = 10.
    prompt = ictd.Prompt.from_episodes(
        [np.eye(6)], [np.ones(5)], [terminated], [not terminated], discount=0.9
    )
    start = tensor([0.0, 0.0, 0.0, 0.0, 0.0, 10.0])
    values = ictd.softmax_td(
        prompt,
        ictd.LogKernelScore(ictd.IdentityKernel()),
        num_steps=5,
        step_size=1.0,
        initial_values=start,
    )
    assert values[0].item() == pytest.approx(value, abs=1e-12)
    assert values[5].item() == (0.0 if terminated else 10.0)


def test_an_episode_that_is_both_is_terminated() -> None:
    both, once = (
        ictd.Prompt.from_episodes([np.eye(3)], [np.ones(2)], [True], [flag], discount=0.9)
        for flag in (True, False)
    )
    assert_equal(both, once)
    assert both.is_terminal is not None
    assert both.is_terminal.tolist() == [False, False, True]
    assert both.discounts.tolist() == [0.9, 0.0, 0.0]


def test_an_episode_that_is_still_running_bootstraps() -> None:
    running, truncated = (
        ictd.Prompt.from_episodes([np.eye(3)], [np.ones(2)], [False], [flag], discount=0.9)
        for flag in (False, True)
    )
    assert_equal(running, truncated)


def test_per_step_flags_are_read_at_their_end() -> None:
    observations, rewards, terminated, truncated = random_episodes(7)
    per_step = [
        [np.arange(1, len(r) + 1) == len(r) * flag for r, flag in zip(rewards, flags, strict=True)]
        for flags in (terminated, truncated)
    ]
    assert_equal(
        ictd.Prompt.from_episodes(observations, rewards, *per_step, discount=0.9),
        ictd.Prompt.from_episodes(observations, rewards, terminated, truncated, discount=0.9),
    )


@pytest.mark.parametrize(
    "convert",
    [np.asarray, torch.as_tensor, lambda x: np.asarray(x).tolist()],
    ids=["arrays", "tensors", "lists"],
)
def test_from_episodes_takes_arrays_tensors_and_lists(convert: Callable[[Any], Any]) -> None:
    observations, rewards, terminated, truncated = random_episodes(8)
    prompt = ictd.Prompt.from_episodes(
        [convert(x) for x in observations],
        [convert(x) for x in rewards],
        terminated,
        truncated,
        discount=0.9,
    )
    expected = ictd.Prompt.from_episodes(observations, rewards, terminated, truncated, discount=0.9)
    torch.testing.assert_close(prompt.features.double(), expected.features)
    torch.testing.assert_close(prompt.rewards.double(), expected.rewards)
    assert torch.equal(prompt.is_transition, expected.is_transition)


def test_the_feature_map_sees_the_observations_of_one_episode_at_a_time() -> None:
    table, seen = tensor(np.random.default_rng(0).normal(size=(4, 3))), []

    def features(observations: list[int]) -> torch.Tensor:
        seen.append(observations)
        return table[observations]

    episodes = [[0, 1, 2], [3, 3]]
    prompt = ictd.Prompt.from_episodes(
        episodes,
        [[1.0, 2.0], [3.0]],
        [True, False],
        [False, True],
        discount=0.5,
        features=features,
    )
    assert seen == episodes
    assert_same(prompt.features, table[[0, 1, 2, 3, 3]])
    assert prompt.dtype == torch.float64
    assert prompt.is_transition.tolist() == [True, True, False, True, False]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"rewards": [np.ones(2)]}, r"rewards.*expected.*got 1"),
        ({"terminated": [True]}, r"terminated.*expected.*got 1"),
        ({"truncated": [True, True, True]}, r"truncated.*expected.*got 3"),
        ({"rewards": [np.ones(2), np.ones(3)]}, r"episode 1.*expected.*got"),
        ({"observations": [np.eye(3), np.ones(3)]}, r"episode 1.*expected.*got"),
        ({"observations": [np.eye(3), np.ones((3, 2))]}, r"features.*expected.*got"),
        ({"discount": 1.5}, r"discount.*expected.*\[0, 1\].*got 1.5"),
        ({"discount": float("nan")}, r"discount.*expected.*\[0, 1\].*got nan"),
        ({"terminated": [False, np.array([True, False])]}, r"terminated.1.*expected.*got"),
        ({"terminated": [[True, False], False]}, r"terminated.0.*expected.*end.*step 0"),
        ({"terminated": [[False] * 3, False]}, r"terminated.0.*one flag or one per step.*got 3"),
        ({"discount": -1.0}, r"discount.*expected.*got -1"),
        (
            {"observations": [], "rewards": [], "terminated": [], "truncated": []},
            r"observations.*expected at least one episode",
        ),
    ],
)
def test_from_episodes_refuses(change: dict[str, Any], match: str) -> None:
    arguments: dict[str, Any] = {
        "observations": [np.eye(3), np.eye(3)],
        "rewards": [np.ones(2), np.ones(2)],
        "terminated": [True, False],
        "truncated": [False, True],
        "discount": 0.9,
    }
    assert len(ictd.Prompt.from_episodes(**arguments)) == 6
    with refuses(ValueError, match):
        ictd.Prompt.from_episodes(**{**arguments, **change})


def test_from_episodes_refuses_observations_that_are_no_features() -> None:
    with refuses(TypeError, r"observations.*expected.*features="):
        ictd.Prompt.from_episodes([[[0], [1]]], [[1.0]], [True], [False], discount=0.9)


# Queries, padding, the matrix ------------------------------------------------------------------


@every_batch_shape
def test_with_queries_appends_tokens_that_nothing_leaves(batch_shape: tuple[int, ...]) -> None:
    prompt = random_contexts(0, batch_shape=batch_shape).prompt()
    queries = torch.ones(*batch_shape, 2, 3, dtype=torch.float64)
    longer = prompt.with_queries(queries)
    assert len(longer) == len(prompt) + 2
    for name in FIELDS:
        old, new = getattr(prompt, name), getattr(longer, name)
        axis = -2 if name == "features" else -1
        assert torch.equal(new.narrow(axis, 0, len(prompt)), old)
    assert torch.equal(longer.features[..., -2:, :], queries)
    assert not longer.is_transition[..., -2:].any()
    assert longer.is_terminal is not None
    assert not longer.is_terminal[..., -2:].any()


@quick
@given(first=contexts(feature_dim=3, batch_shape=(2,)), second=contexts(feature_dim=3))
def test_stack_pads_with_tokens_of_zeros(first: Contexts, second: Contexts) -> None:
    prompts = [first.prompt()[0], first.prompt()[1]]
    prompts += [second.prompt()[i] for i in list(second.indices())[:1]]
    stacked = ictd.Prompt.stack(prompts)
    longest = max(len(p) for p in prompts)
    assert stacked.features.shape == (3, longest, 3)
    assert stacked.is_terminal is not None
    for i, prompt in enumerate(prompts):
        n = len(prompt)
        assert torch.equal(stacked.features[i, :n], prompt.features)
        assert torch.equal(stacked.rewards[i, :n], prompt.rewards)
        assert torch.equal(stacked.discounts[i, :n], prompt.discounts)
        assert torch.equal(stacked.is_transition[i, :n], prompt.is_transition)
        assert torch.equal(stacked.is_terminal[i, :n], prompt.is_terminal)
        assert stacked.features[i, n:].eq(0).all()
        assert not stacked.is_transition[i, n:].any()
        assert not stacked.is_terminal[i, n:].any()


def test_stack_mixes_prompts_with_and_without_terminal_tokens() -> None:
    stacked = ictd.Prompt.stack([small(), small(is_terminal=None)])
    assert stacked.is_terminal is not None
    assert stacked.is_terminal.tolist() == [[False, False, True], [False, False, False]]
    assert ictd.Prompt.stack([small(is_terminal=None)] * 2).is_terminal is None


@pytest.mark.parametrize(
    ("prompts", "match"),
    [
        (lambda: [], r"prompts.*expected at least one"),
        (lambda: [small(), ictd.Prompt.stack([small()])], r"prompts\[1\].*batch shape"),
        (
            lambda: [small(), random_contexts(0, feature_dim=5).prompt()],
            r"prompts\[1\].*2 features.*5",
        ),
    ],
)
def test_stack_refuses(prompts: Callable[[], list[ictd.Prompt]], match: str) -> None:
    with refuses(ValueError, match):
        ictd.Prompt.stack(prompts())


def test_stack_refuses_two_dtypes() -> None:
    with refuses(TypeError, r"prompts\[1\].*float64.*float32"):
        ictd.Prompt.stack([small(), small().to(torch.float32)])


@pytest.mark.parametrize(
    ("queries", "error", "match"),
    [
        (torch.ones(2, 3, dtype=torch.float64), ValueError, r"features.*expected.*got"),
        (torch.ones(2, dtype=torch.float64), ValueError, r"features.*expected.*got"),
        (torch.ones(2, 2), TypeError, r"features.*float64.*float32"),
        (torch.ones(2, 2, dtype=torch.int64), TypeError, r"features.*floating"),
        (torch.full((2, 2), torch.nan, dtype=torch.float64), ValueError, r"features.*finite"),
    ],
)
def test_with_queries_refuses(queries: torch.Tensor, error: type[Exception], match: str) -> None:
    with refuses(error, match):
        small().with_queries(queries)


def test_with_queries_puts_the_same_queries_to_every_context() -> None:
    prompt = random_contexts(1, batch_shape=(2, 3)).prompt()
    queries = torch.ones(4, 3, dtype=torch.float64)
    assert_equal(prompt.with_queries(queries), prompt.with_queries(queries.expand(2, 3, 4, 3)))


@every_batch_shape
def test_matrix_is_the_prompt_of_the_paper(batch_shape: tuple[int, ...]) -> None:
    drawn = random_contexts(2, batch_shape=batch_shape)
    start = np.random.default_rng(0).normal(size=drawn.states.shape)
    plain = drawn.with_junk().prompt().matrix()
    given_values = drawn.with_junk().prompt().matrix(tensor(start))
    for index in drawn.indices():
        assert_same(plain[index], tensor(reference_transformer.prompt_matrix(drawn[index])))
        expected = reference_transformer.prompt_matrix(drawn[index], start[index])
        assert_same(given_values[index], tensor(expected))


def test_matrix_refuses_initial_values_of_another_shape() -> None:
    with refuses(ValueError, r"initial_values.*expected.*3.*got \(4,\)"):
        small().matrix(tensor(np.ones(4)))


# Trimming --------------------------------------------------------------------------------------


def transitions(prompt: ictd.Prompt) -> list[list[float]]:
    """Source, reward, discount and successor of every transition of an unbatched prompt."""
    tokens = prompt.is_transition.nonzero()[:, 0]
    columns = [
        prompt.features[tokens],
        prompt.rewards[tokens, None],
        prompt.discounts[tokens, None],
        prompt.features[tokens + 1],
    ]
    return torch.cat(columns, -1).tolist()


@pytest.mark.parametrize("num_states", [1, 2, 4, 6])
@quick
@given(seed=st.integers(0, 2**32 - 1), num_tokens=st.integers(1, 12))
def test_trim_keeps_the_longest_closed_prefix(num_states: int, seed: int, num_tokens: int) -> None:
    drawn = random_contexts(
        seed, num_states=num_states, num_tokens=num_tokens, batch_shape=(3,), num_padding=0
    )
    together = drawn.with_junk().prompt().trim()
    for index in drawn.indices():
        kept = reference.trimmed_sources(drawn[index])
        prompt = drawn.prompt()[index]
        is_kept = torch.zeros(len(prompt), dtype=torch.bool)
        is_kept[kept] = True
        expected = transitions(replace(prompt, is_transition=is_kept))
        assert transitions(prompt.trim()) == expected
        assert transitions(together[index]) == expected
        assert transitions(prompt.trim().trim()) == expected
        # the two queries of every context stay
        assert torch.equal(prompt.trim().features[-2:], prompt.features[-2:])
        assert torch.equal(together.features[(*index, slice(-2, None))], prompt.features[-2:])


def test_trim_by_hand() -> None:
    eye = torch.eye(4, dtype=torch.float64)
    prompt = ictd.Prompt(
        eye[[0, 1, 0, 2, 3]],
        tensor([1.0, 2.0, 3.0, 4.0, 0.0]),
        tensor([0.9, 0.9, 0.9, 0.0, 0.0]),
        torch.arange(5) < 4,
    )
    # The last transition bootstraps from nothing, so 3 need not be a source.
    assert len(prompt.trim()) == 5
    bootstrapped = replace(prompt, discounts=tensor([0.9, 0.9, 0.9, 0.9, 0.0]))
    assert bootstrapped.trim().rewards[:2].tolist() == [1.0, 2.0]
    assert bootstrapped.trim().is_transition.tolist() == [True, True, False]
    never = replace(prompt, features=tensor([[1.0], [2.0], [3.0], [4.0], [5.0]]))
    assert never.trim().is_transition.sum() == 4
    never = replace(never, discounts=tensor([0.9] * 5))
    assert never.trim().is_transition.sum() == 0


# A frozen pytree with batch axes ---------------------------------------------------------------


@pytest.mark.parametrize("terminal", [True, False])
def test_pytree_round_trip(terminal: bool) -> None:
    prompt = random_contexts(3, batch_shape=(2,)).with_junk().prompt()
    if not terminal:
        prompt = replace(prompt, is_terminal=None)
    leaves, structure = pytree.tree_flatten(prompt)
    assert len(leaves) == 4 + terminal
    again = pytree.tree_unflatten(leaves, structure)
    assert isinstance(again, ictd.Prompt)
    assert_equal(again, prompt)
    shifted = pytree.tree_map(lambda x: x[1:], prompt)
    assert torch.equal(shifted.features, prompt.features[1:])


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        (1, 2),
        (slice(None), 1),
        (..., 1),
        ...,
        slice(0, 1),
        torch.tensor([1, 0]),
        torch.tensor([True, False]),
        (),
        None,
    ],
    ids=str,
)
def test_indexing_reaches_the_batch_axes(index: Any) -> None:
    prompt = random_contexts(4, batch_shape=(2, 3)).prompt()
    tokens = torch.arange(6).reshape(2, 3)
    picked = prompt[index]
    where = tokens[index]
    assert picked.features.shape == (*where.shape, 17, 3)
    for name in FIELDS:
        flat = getattr(prompt, name).flatten(0, 1)
        assert torch.equal(getattr(picked, name), flat[where])


@pytest.mark.parametrize("index", [0, (0, 0, 0), (..., 0, 0, 0), torch.tensor([True])], ids=str)
def test_indexing_refuses_the_token_axis(index: Any) -> None:
    prompt = random_contexts(4, batch_shape=(2, 3)).prompt()
    with refuses(IndexError, r"batch"):
        prompt[1, 2][index] if not isinstance(index, tuple) else prompt[index]


def test_to_casts_numbers_and_keeps_flags() -> None:
    prompt = random_contexts(5).prompt()
    cast = prompt.to(torch.float32)
    assert (prompt.dtype, cast.dtype) == (torch.float64, torch.float32)
    assert cast.rewards.dtype == cast.discounts.dtype == torch.float32
    assert torch.equal(cast.is_transition, prompt.is_transition)
    assert_equal(cast.to(dtype=torch.float64).to(torch.float32), cast)
    assert cast.to(torch.float32).is_transition.dtype == torch.bool


def test_to_moves_every_field() -> None:
    moved = random_contexts(5).prompt().to("meta", torch.float32)
    assert moved.device == torch.device("meta")
    assert moved.dtype == torch.float32
    assert all(getattr(moved, name).is_meta for name in FIELDS)


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        small().rewards = tensor([1.0, 2.0, 3.0])  # type: ignore[misc]


def test_len_counts_tokens() -> None:
    assert len(small()) == 3
    assert len(random_contexts(6, batch_shape=(2, 5)).prompt()) == 17


def test_nothing_given_is_modified_or_shared_by_mistake() -> None:
    drawn = random_contexts(7, batch_shape=(2,)).with_junk()
    prompt, copy = drawn.prompt(), drawn.prompt()
    state = torch.get_rng_state()
    prompt.with_queries(torch.ones(1, 3, dtype=torch.float64))
    prompt.matrix(torch.ones(2, 17, dtype=torch.float64))
    ictd.Prompt.stack([prompt, prompt])
    prompt.trim()
    assert_equal(prompt, copy)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_trajectory_with_features_is_a_prompt() -> None:
    drawn = random_contexts(8, batch_shape=(2,), num_padding=0, num_queries=0)
    table = torch.zeros(2, 5, 3, dtype=torch.float64)
    for i, t in np.ndindex(2, 14):
        table[i, drawn.states[i, t]] = tensor(drawn.features[i, t])
    assert_equal(drawn.trajectory().prompt(table), drawn.prompt())


# Failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"rewards": tensor([1.0, 2.0])}, ValueError, r"rewards.*expected.*\(3,\).*got \(2,\)"),
        ({"discounts": tensor([[0.9] * 3])}, ValueError, r"discounts.*\(3,\).*got \(1, 3\)"),
        ({"is_transition": torch.tensor([True])}, ValueError, r"is_transition.*\(3,\).*got \(1,\)"),
        ({"is_terminal": torch.tensor([True])}, ValueError, r"is_terminal.*\(3,\).*got \(1,\)"),
        ({"features": tensor([1.0, 2.0, 3.0])}, ValueError, r"features.*N, d.*got \(3,\)"),
        ({"features": tensor(np.ones((3, 0)))}, ValueError, r"features.*N, d.*got \(3, 0\)"),
        ({"features": torch.ones(3, 2).long()}, TypeError, r"features.*floating.*int64"),
        ({"features": np.ones((3, 2))}, TypeError, r"features.*Tensor.*ndarray"),
        ({"rewards": torch.ones(3)}, TypeError, r"rewards.*float64.*float32"),
        ({"rewards": [1.0, 2.0, 3.0]}, TypeError, r"rewards.*Tensor.*list"),
        ({"discounts": torch.ones(3)}, TypeError, r"discounts.*float64.*float32"),
        ({"is_transition": tensor([1, 1, 0])}, TypeError, r"is_transition.*bool.*float64"),
        ({"is_terminal": torch.tensor([0, 0, 1])}, TypeError, r"is_terminal.*bool.*int64"),
        ({"rewards": torch.ones(3, device="meta").double()}, ValueError, r"rewards.*cpu.*meta"),
        (
            {"features": tensor([[1.0, 0.0], [0.0, torch.nan], [0.0, 0.0]])},
            ValueError,
            r"features.*finite.*nan.*\(1, 1\)",
        ),
        ({"rewards": tensor([1.0, torch.inf, 0.0])}, ValueError, r"rewards.*finite.*inf.*\(1,\)"),
        ({"discounts": tensor([0.9, 1.5, 0.0])}, ValueError, r"discounts.*\[0, 1\].*1.5.*\(1,\)"),
        ({"discounts": tensor([-0.1, 0.9, 0])}, ValueError, r"discounts.*\[0, 1\].*-0.1.*\(0,\)"),
        ({"discounts": tensor([torch.nan, 0, 0])}, ValueError, r"discounts.*\[0, 1\].*nan"),
        (
            {"is_transition": torch.tensor([True, True, True]), "is_terminal": None},
            ValueError,
            r"is_transition.*last.*\(2,\)",
        ),
        (
            {"is_terminal": torch.tensor([False, True, False])},
            ValueError,
            r"is_transition.*terminal.*\(1,\)",
        ),
    ],
)
def test_refuses(change: dict[str, Any], error: type[Exception], match: str) -> None:
    with refuses(error, match):
        small(**change)


def test_discounts_of_exactly_one_are_fine() -> None:
    assert small(discounts=tensor([1.0, 0.0, 0.0])).discounts[0] == 1.0


def test_values_are_not_read_inside_vmap() -> None:
    def build(rewards: torch.Tensor) -> torch.Tensor:
        return small(rewards=rewards).matrix()

    assert torch.vmap(build)(tensor(np.ones((4, 3)))).shape == (4, 5, 3)
