"""Two heads of opposite temperature and mirrored keys: loops, limits, properties, failures."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ictd
from fake_cuda import fake_cuda
from ictd.mirrored import mirrored_keys_td, opposite_heads_td
from reference import mirrored as reference
from reference.td import Array, bilinear
from strategies import (
    BATCH_SHAPES,
    Contexts,
    assert_same,
    contexts,
    quick,
    random_contexts,
    random_matrix,
    tensor,
)

Algorithm = Callable[..., torch.Tensor]

ALGORITHMS: dict[str, Algorithm] = {
    "opposite heads": opposite_heads_td,
    "mirrored keys": mirrored_keys_td,
}
REFERENCES: dict[str, Callable[..., Array]] = {
    "opposite heads": reference.opposite_heads_td,
    "mirrored keys": reference.mirrored_keys_td,
}
STEPS: dict[str, Any] = {"num_steps": 6, "step_size": 0.7, "scale": 0.4}
MATRIX = random_matrix(31, 3)

every_algorithm = pytest.mark.parametrize("name", list(ALGORITHMS))
every_batch_shape = pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)


def small_prompt(dtype: torch.dtype = torch.float64) -> ictd.Prompt:
    """0 → 1 → 0 with rewards 4 and 0, discount a half, one-hot features."""
    return ictd.Prompt(
        torch.eye(2, dtype=dtype)[[0, 1, 0]],
        torch.tensor([4.0, 0.0, 0.0], dtype=dtype),
        torch.full((3,), 0.5, dtype=dtype),
        torch.tensor([True, True, False]),
    )


# Against the reference -------------------------------------------------------------------------


@every_algorithm
@every_batch_shape
@pytest.mark.parametrize("seed", range(2))
def test_matches_the_reference(name: str, batch_shape: tuple[int, ...], seed: int) -> None:
    drawn = random_contexts(seed, batch_shape=batch_shape)
    history = ALGORITHMS[name](drawn.with_junk().prompt(), return_history=True, **STEPS)
    expected = drawn.loop(lambda c: REFERENCES[name](c, **STEPS))
    assert_same(history, expected)
    assert_same(ALGORITHMS[name](drawn.prompt(), **STEPS), expected[-1])


@every_algorithm
@quick
@given(drawn=contexts(feature_dim=3), scale=st.floats(0.05, 50.0))
def test_matches_the_reference_at_any_scale(name: str, drawn: Contexts, scale: float) -> None:
    keywords = {"num_steps": 3, "step_size": 0.8, "scale": scale}
    history = ALGORITHMS[name](drawn.prompt(), return_history=True, **keywords)
    assert_same(history, drawn.loop(lambda c: REFERENCES[name](c, **keywords)))


@every_algorithm
@every_batch_shape
def test_a_score_and_initial_values(name: str, batch_shape: tuple[int, ...]) -> None:
    drawn = random_contexts(3, batch_shape=batch_shape)
    start = np.random.default_rng(1).normal(size=drawn.states.shape)
    score = ictd.BilinearScore(tensor(MATRIX))
    history = ALGORITHMS[name](
        drawn.prompt(), score=score, initial_values=tensor(start), return_history=True, **STEPS
    )
    for index in drawn.indices():
        expected = REFERENCES[name](
            drawn[index], score=bilinear(MATRIX), initial_values=start[index], **STEPS
        )
        assert_same(history[(slice(None), *index)], tensor(expected))


# By hand ---------------------------------------------------------------------------------------


def test_one_step_by_hand() -> None:
    # Scores eps (1, 0) and (0, 1), errors (4, 0), eps = log 3: the heads read 3/4 and 1/4 of 4.
    eps = float(np.log(3.0))
    keywords: dict[str, Any] = {"num_steps": 1, "step_size": 1.0, "scale": eps}
    gap = (3.0 - 1.0) / (2 * eps)
    assert_same(opposite_heads_td(small_prompt(), **keywords), tensor([gap, -gap, gap]))
    # sinh(log 3) = 4/3, cosh(log 3) = 5/3, cosh 0 = 1: a reads 4 · (4/3) / (5/3 + 1) = 2.
    assert_same(mirrored_keys_td(small_prompt(), **keywords), tensor([2 / eps, 0.0, 2 / eps]))


def test_mirrored_keys_are_a_softmax_over_a_doubled_context() -> None:
    # One query against 2n keys, values δ and -δ, by plain softmax TD without bootstrapping.
    rng = np.random.default_rng(5)
    phi, rewards, query = rng.normal(size=(7, 3)), rng.normal(size=7), rng.normal(size=(1, 3))

    def prompt(features: Array, values: Array) -> ictd.Prompt:
        tokens = np.concatenate([features, query])
        flags = torch.arange(len(tokens)) < len(values)
        zeros = torch.zeros(len(tokens), dtype=torch.float64)
        return ictd.Prompt(tensor(tokens), tensor([*values, 0.0]), zeros, flags)

    doubled = prompt(np.concatenate([phi, -phi]), np.concatenate([rewards, -rewards]))
    score = ictd.BilinearScore(0.3 * torch.eye(3, dtype=torch.float64))
    expected = ictd.softmax_td(doubled, score, num_steps=1, step_size=1.0)[-1] / 0.3
    values = mirrored_keys_td(prompt(phi, rewards), num_steps=1, step_size=1.0, scale=0.3)
    assert_same(values[-1], expected)


# Limits ----------------------------------------------------------------------------------------


def test_a_small_scale_makes_mirrored_keys_linear_td() -> None:
    prompt = random_contexts(6, batch_shape=(4,)).prompt()
    linear = ictd.linear_td(prompt, num_steps=6, step_size=0.7)
    gaps = []
    for scale in (0.4, 0.2, 0.1):
        values = mirrored_keys_td(prompt, num_steps=6, step_size=0.7, scale=scale)
        gaps.append((values - linear).abs().max().item())
    assert gaps[0] > 1e-3
    assert [3.7 < a / b < 4.3 for a, b in itertools.pairwise(gaps)] == [True, True]


def test_a_small_scale_centres_the_opposite_heads() -> None:
    drawn = random_contexts(7, num_queries=0, num_padding=0, closed=True)
    prompt = drawn.prompt()

    def centred(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        x = query @ key.mT
        return x - x.mean(-1, keepdim=True)

    expected = ictd.kernel_td(prompt, centred, num_steps=6, step_size=0.7)
    gaps = []
    for scale in (0.4, 0.2, 0.1):
        values = opposite_heads_td(prompt, num_steps=6, step_size=0.7, scale=scale)
        gaps.append((values - expected).abs().max().item())
    assert gaps[0] > 1e-3
    assert [3.7 < a / b < 4.3 for a, b in itertools.pairwise(gaps)] == [True, True]


@every_algorithm
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_huge_scale_is_finite(name: str, dtype: torch.dtype) -> None:
    # C9 in this form: 10^6 x in the exponent; a head reads its largest score alone.
    features = torch.tensor([[1.0], [0.9], [-1.0], [0.5]], dtype=dtype, requires_grad=True)
    rewards = torch.tensor([5.0, 7.0, 11.0, 0.0], dtype=dtype, requires_grad=True)
    prompt = ictd.Prompt(features, rewards, torch.zeros(4, dtype=dtype), torch.arange(4) < 3)
    scale = 1e6
    values = ALGORITHMS[name](prompt, num_steps=1, step_size=1.0, scale=scale)
    # Token 0: the hot head reads 5, the cold one 11. Mirrored: φ = 1 and -φ = 1 tie, 5 and -11.
    expected = {"opposite heads": (5 - 11) / 2, "mirrored keys": (5 - 11) / 2}[name] / scale
    torch.testing.assert_close(values[0].item(), expected)
    for gradient in torch.autograd.grad(values.sum(), [features, rewards]):
        assert gradient.isfinite().all()


# Properties ------------------------------------------------------------------------------------


@every_algorithm
def test_a_context_without_transitions_changes_nothing(name: str) -> None:
    drawn = random_contexts(10, batch_shape=(2,))
    drawn.is_transition[1] = False
    prompt = drawn.with_junk().prompt()
    features = prompt.features.clone().requires_grad_()
    values = ALGORITHMS[name](replace(prompt, features=features), **STEPS)
    assert values[1].eq(0.0).all()
    assert values[0].ne(0.0).any()
    (gradient,) = torch.autograd.grad(values.sum(), features)
    assert gradient.isfinite().all()
    assert gradient[1].eq(0.0).all()


@every_algorithm
def test_identical_states(name: str) -> None:
    # C8: equal scores tell nothing to a covariance; mirrored, one state of value 2 / (1 - 1/2).
    phi = torch.ones(4, 1, dtype=torch.float64)
    half = torch.full((4,), 0.5, dtype=torch.float64)
    prompt = ictd.Prompt(phi, tensor([1.0, 2.0, 3.0, 0.0]), half, torch.arange(4) < 3)
    values = ALGORITHMS[name](prompt, num_steps=200, step_size=1.0, scale=0.5)
    expected = {"opposite heads": 0.0, "mirrored keys": 4.0}[name]
    assert_same(values, torch.full((4,), expected, dtype=torch.float64))


@every_algorithm
@quick
@given(drawn=contexts(feature_dim=3), extra=st.integers(1, 3))
def test_queries_and_padding_change_nothing_else(name: str, drawn: Contexts, extra: int) -> None:
    prompt = drawn.prompt()
    queries = torch.ones(*drawn.batch_shape, extra, 3, dtype=torch.float64)
    before = ALGORITHMS[name](prompt, **STEPS)
    padded = ictd.Prompt.stack([prompt, prompt.with_queries(queries)])
    stacked = ALGORITHMS[name](padded, **STEPS)
    assert_same(stacked[0, ..., : before.shape[-1]], before)
    assert_same(stacked[1, ..., : before.shape[-1]], before)


@every_algorithm
@every_batch_shape
def test_history(name: str, batch_shape: tuple[int, ...]) -> None:
    prompt = random_contexts(19, batch_shape=batch_shape).prompt()
    keywords = {"step_size": 0.5, "scale": 0.3}
    history = ALGORITHMS[name](prompt, num_steps=4, return_history=True, **keywords)
    assert history.shape == (5, *batch_shape, 17)
    assert history[0].eq(0.0).all()
    for steps in range(5):
        assert_same(history[steps], ALGORITHMS[name](prompt, num_steps=steps, **keywords))


@every_algorithm
def test_terminal_tokens_are_worth_nothing(name: str) -> None:
    prompt = random_contexts(11, batch_shape=(5,)).prompt()
    start = torch.full_like(prompt.rewards, 7.0)
    history = ALGORITHMS[name](prompt, initial_values=start, return_history=True, **STEPS)
    assert prompt.is_terminal is not None
    assert prompt.is_terminal.any()
    assert history[:, prompt.is_terminal].eq(0.0).all()


@every_algorithm
def test_batch_equals_loop_equals_vmap(name: str) -> None:
    drawn = random_contexts(20, batch_shape=(2, 3))
    prompt = drawn.prompt()
    run = functools.partial(ALGORITHMS[name], **STEPS)
    batched = run(prompt)
    looped = torch.stack([run(prompt[index]) for index in drawn.indices()])
    assert_same(batched, looped.reshape(batched.shape))
    assert_same(torch.vmap(torch.vmap(run))(prompt), batched)


@every_algorithm
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_dtype_follows_the_prompt(name: str, dtype: torch.dtype) -> None:
    drawn = random_contexts(22, batch_shape=(3,))
    values = ALGORITHMS[name](drawn.prompt(dtype), **STEPS)
    assert values.dtype == dtype
    expected = ALGORITHMS[name](drawn.prompt(), **STEPS)
    torch.testing.assert_close(values.double(), expected, rtol=0, atol=2e-5)


@every_algorithm
def test_gradcheck(name: str) -> None:
    drawn = random_contexts(24, num_tokens=5, num_padding=1, num_queries=1)
    prompt = drawn.prompt()
    leaves = [prompt.features.clone(), prompt.rewards.clone(), tensor(0.4), tensor(0.7)]
    for leaf in leaves:
        leaf.requires_grad_()

    def run(features: Any, rewards: Any, scale: Any, step_size: Any) -> torch.Tensor:
        one = replace(prompt, features=features, rewards=rewards)
        return ALGORITHMS[name](one, num_steps=2, step_size=step_size, scale=scale)

    assert torch.autograd.gradcheck(run, tuple(leaves))


@every_algorithm
def test_fake_cuda_tensors(name: str) -> None:
    with fake_cuda():
        flags = torch.ones(2, 7, device="cuda") > 0
        numbers = [torch.ones(2, 7, *shape, device="cuda") for shape in ((3,), (), ())]
        values = ALGORITHMS[name](ictd.Prompt(*numbers, flags), **STEPS)
        assert (values.device.type, tuple(values.shape)) == ("cuda", (2, 7))
        on_cpu = torch.tensor(0.4)
        with pytest.raises(ValueError, match=r"scale.*cuda.*cpu"):
            ALGORITHMS[name](ictd.Prompt(*numbers, flags), num_steps=1, step_size=1.0, scale=on_cpu)


@pytest.mark.compile
@every_algorithm
def test_compiles_without_a_graph_break(name: str) -> None:
    prompt = random_contexts(27, batch_shape=(3,)).prompt()
    run = functools.partial(ALGORITHMS[name], **STEPS)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert_same(compiled(prompt), run(prompt))


# Failures --------------------------------------------------------------------------------------


@every_algorithm
@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_refuses_a_scale_that_is_not_positive(name: str, scale: float) -> None:
    with pytest.raises(ValueError, match=r"scale: expected a positive finite number, got"):
        ALGORITHMS[name](small_prompt(), num_steps=1, step_size=1.0, scale=scale)


@every_algorithm
def test_refuses_a_scale_with_axes(name: str) -> None:
    with pytest.raises(ValueError, match=r"scale: expected shape .*got \(2,\)"):
        ALGORITHMS[name](small_prompt(), num_steps=1, step_size=1.0, scale=tensor([1.0, 2.0]))


@every_algorithm
@pytest.mark.parametrize("scale", [0.0, -2.0, float("nan")])
def test_refuses_a_tensor_that_is_not_positive(name: str, scale: float) -> None:
    with pytest.raises(ValueError, match=r"scale: expected a positive finite number, got"):
        ALGORITHMS[name](small_prompt(), num_steps=1, step_size=1.0, scale=tensor(scale))


@every_algorithm
def test_refuses_a_negative_number_of_steps(name: str) -> None:
    with pytest.raises(ValueError, match=r"num_steps.*expected.*got -1"):
        ALGORITHMS[name](small_prompt(), num_steps=-1, step_size=1.0, scale=1.0)


@every_algorithm
def test_refuses_a_score_that_is_not_finite(name: str) -> None:
    score = ictd.LogKernelScore(ictd.IdentityKernel())
    with pytest.raises(ValueError, match=r"scale \* score.*expected finite.*inf"):
        ALGORITHMS[name](small_prompt(), score=score, **STEPS)
    with pytest.raises(ValueError, match=r"scale \* score.*expected finite.*inf"):
        ALGORITHMS[name](small_prompt(torch.float32), num_steps=1, step_size=1.0, scale=1e39)


@every_algorithm
def test_refuses_a_score_of_another_shape(name: str) -> None:
    with pytest.raises(ValueError, match=r"score\(query, key\): expected shape"):
        ALGORITHMS[name](small_prompt(), score=lambda q, k: q @ q.mT, **STEPS)
