"""The temporal-difference algorithms against loops, against each other and their limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ictd
from reference import td as reference
from strategies import (
    BATCH_SHAPES,
    Contexts,
    assert_same,
    contexts,
    gradients,
    quick,
    random_contexts,
    random_matrix,
    refuses,
    tensor,
)

EIGHTH_STEPS: dict[str, Any] = {"num_steps": 8, "step_size": 0.7}
MATRIX = random_matrix(5, 3)

Algorithm = Callable[..., torch.Tensor]

# Every algorithm on a prompt with values at tokens, called as algorithm(prompt, num_steps=…, …).
ALGORITHMS: dict[str, Algorithm] = {
    "softmax, bilinear": lambda prompt, **kw: ictd.softmax_td(
        prompt, ictd.BilinearScore(torch.as_tensor(MATRIX, dtype=prompt.dtype)), **kw
    ),
    "softmax, Gaussian": lambda prompt, **kw: ictd.softmax_td(
        prompt, ictd.GaussianScore(0.6), **kw
    ),
    "softmax, log of a kernel": lambda prompt, **kw: ictd.softmax_td(
        prompt, ictd.LogKernelScore(ictd.IdentityKernel()), **kw
    ),
    "kernel, linear": lambda prompt, **kw: ictd.kernel_td(prompt, ictd.LinearKernel(), **kw),
    "kernel, Gaussian": lambda prompt, **kw: ictd.kernel_td(prompt, ictd.GaussianKernel(0.6), **kw),
    "kernel, identity": lambda prompt, **kw: ictd.kernel_td(prompt, ictd.IdentityKernel(), **kw),
    "linear": ictd.linear_td,
}
REFERENCES: dict[str, Callable[..., reference.Array]] = {
    "softmax, bilinear": lambda c, **kw: reference.softmax_td(c, reference.bilinear(MATRIX), **kw),
    "softmax, Gaussian": lambda c, **kw: reference.softmax_td(
        c, reference.gaussian_score(0.6), **kw
    ),
    "softmax, log of a kernel": lambda c, **kw: reference.softmax_td(
        c, lambda q, k: 0.0 if reference.identity_kernel(q, k) else -np.inf, **kw
    ),
    "kernel, linear": lambda c, **kw: reference.kernel_td(c, reference.linear_kernel, **kw),
    "kernel, Gaussian": lambda c, **kw: reference.kernel_td(
        c, reference.gaussian_kernel(0.6), **kw
    ),
    "kernel, identity": lambda c, **kw: reference.kernel_td(c, reference.identity_kernel, **kw),
    "linear": reference.linear_td,
}
TAKE_INITIAL_VALUES = [name for name in ALGORITHMS if name != "linear"]

every_algorithm = pytest.mark.parametrize("name", list(ALGORITHMS))
every_batch_shape = pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)


def one_hot_prompt(
    states: list[int],
    rewards: list[float],
    discounts: list[float],
    num_states: int,
    terminal: bool = False,
) -> ictd.Prompt:
    """One episode through the given states with one-hot features."""
    is_terminal = torch.zeros(len(states), dtype=torch.bool)
    is_terminal[-1] = terminal
    return ictd.Prompt(
        torch.eye(num_states, dtype=torch.float64)[states],
        tensor([*rewards, 0.0]),
        tensor([*discounts, 0.0]),
        torch.arange(len(states)) < len(rewards),
        is_terminal,
    )


def pieces(drawn: Contexts, order: np.ndarray) -> tuple[Contexts, np.ndarray]:
    """Cut an unbatched context into episodes of one transition, in the given order.

    The tokens that no transition leaves come last. Also returns where each token went.
    """
    sources = np.flatnonzero(drawn.is_transition)[order]
    tokens = [j for k in sources for j in (k, k + 1)]
    tokens += list(np.flatnonzero(~drawn.is_transition))
    transitions = np.zeros(len(tokens), dtype=bool)
    transitions[0 : 2 * len(sources) : 2] = True
    cut = Contexts(
        drawn.states[tokens],
        drawn.features[tokens],
        drawn.rewards[tokens],
        drawn.discounts[tokens],
        transitions,
        drawn.is_terminal[tokens] & ~transitions,
    )
    return cut, np.array(tokens)


# Against the reference -------------------------------------------------------------------------


@every_algorithm
@every_batch_shape
@pytest.mark.parametrize("seed", range(3))
def test_matches_the_reference(name: str, batch_shape: tuple[int, ...], seed: int) -> None:
    drawn = random_contexts(seed, batch_shape=batch_shape)
    history = ALGORITHMS[name](drawn.with_junk().prompt(), return_history=True, **EIGHTH_STEPS)
    expected = drawn.loop(lambda c: REFERENCES[name](c, **EIGHTH_STEPS))
    assert_same(history, expected)
    assert_same(ALGORITHMS[name](drawn.prompt(), **EIGHTH_STEPS), expected[-1])


@every_algorithm
@quick
@given(drawn=contexts(feature_dim=3), step_size=st.floats(0.1, 1.5))
def test_matches_the_reference_on_any_context(name: str, drawn: Contexts, step_size: float) -> None:
    keywords = {"num_steps": 3, "step_size": step_size}
    history = ALGORITHMS[name](drawn.prompt(), return_history=True, **keywords)
    assert_same(history, drawn.loop(lambda c: REFERENCES[name](c, **keywords)))


@pytest.mark.parametrize("name", TAKE_INITIAL_VALUES)
@every_batch_shape
def test_initial_values(name: str, batch_shape: tuple[int, ...]) -> None:
    drawn = random_contexts(3, batch_shape=batch_shape)
    start = np.random.default_rng(1).normal(size=drawn.states.shape)
    history = ALGORITHMS[name](
        drawn.prompt(), initial_values=tensor(start), return_history=True, **EIGHTH_STEPS
    )
    for index in drawn.indices():
        expected = REFERENCES[name](drawn[index], initial_values=start[index], **EIGHTH_STEPS)
        assert_same(history[(slice(None), *index)], tensor(expected))


@every_batch_shape
def test_weight_multiplies_the_update(batch_shape: tuple[int, ...]) -> None:
    drawn = random_contexts(4, batch_shape=batch_shape)
    weight = np.random.default_rng(2).uniform(0.2, 1.0, size=drawn.states.shape)
    history = ictd.softmax_td(
        drawn.prompt(),
        ictd.GaussianScore(0.6),
        weight=tensor(weight),
        return_history=True,
        **EIGHTH_STEPS,
    )
    score = reference.gaussian_score(0.6)
    for index in drawn.indices():
        expected = reference.softmax_td(drawn[index], score, weight=weight[index], **EIGHTH_STEPS)
        assert_same(history[(slice(None), *index)], tensor(expected))


@every_batch_shape
def test_tabular_td_matches_the_reference(batch_shape: tuple[int, ...]) -> None:
    drawn = random_contexts(5, batch_shape=batch_shape)
    num_states = int(drawn.states.max()) + 1
    history = ictd.tabular_td(
        drawn.with_junk().trajectory(), num_states, return_history=True, **EIGHTH_STEPS
    )
    for index in drawn.indices():
        c = drawn[index]
        flags = (c.rewards, c.discounts, c.is_transition, c.is_terminal)
        expected = reference.tabular_td(drawn.states[index], *flags, num_states, **EIGHTH_STEPS)
        assert_same(history[(slice(None), *index)], tensor(expected))


@every_batch_shape
def test_online_td_matches_the_reference(batch_shape: tuple[int, ...]) -> None:
    drawn = random_contexts(6, batch_shape=batch_shape)
    prompt, tokens = drawn.with_junk().prompt(), drawn.states.shape[-1]
    schedule = np.random.default_rng(3).uniform(0.1, 0.5, size=tokens)
    constant = ictd.online_td(prompt, step_size=0.3, return_history=True)
    scheduled = ictd.online_td(prompt, step_size=tensor(schedule), return_history=True)
    assert_same(constant, drawn.loop(lambda c: reference.online_td(c, [0.3] * tokens)))
    assert_same(scheduled, drawn.loop(lambda c: reference.online_td(c, list(schedule))))
    assert_same(ictd.online_td(prompt, step_size=0.3), constant[-1])
    assert constant.shape == (tokens, *batch_shape, 3)


@every_batch_shape
def test_lstd_matches_the_reference(batch_shape: tuple[int, ...]) -> None:
    drawn = random_contexts(7, batch_shape=batch_shape, num_tokens=24)
    weights = ictd.lstd(drawn.with_junk().prompt())
    assert_same(weights, drawn.loop(reference.lstd), tolerance=1e-10)


@every_batch_shape
def test_empirical_model_matches_the_reference(batch_shape: tuple[int, ...]) -> None:
    drawn = random_contexts(32, batch_shape=batch_shape)
    num_states = int(drawn.states.max()) + 1
    model = ictd.empirical_model(drawn.with_junk().trajectory(), num_states)
    for index in drawn.indices():
        c = drawn[index]
        flags = (c.rewards, c.discounts, c.is_transition, c.is_terminal)
        expected = reference.empirical_model(drawn.states[index], *flags, num_states)
        for actual, array in zip(model, expected, strict=True):
            assert_same(actual[index], tensor(array))


@every_batch_shape
def test_certainty_equivalence_matches_the_reference(batch_shape: tuple[int, ...]) -> None:
    drawn = random_contexts(8, batch_shape=batch_shape, closed=True)
    num_states = int(drawn.states.max()) + 1
    values = ictd.certainty_equivalence(drawn.with_junk().trajectory(), num_states)
    assert values.shape == (*batch_shape, num_states)
    for index in drawn.indices():
        c = drawn[index]
        flags = (c.rewards, c.discounts, c.is_transition, c.is_terminal)
        expected = reference.certainty_equivalence(drawn.states[index], *flags, num_states)
        torch.testing.assert_close(values[index], tensor(expected), equal_nan=True)
        assert values[index].isnan().any(), "padding and queries are never a source"


@every_batch_shape
def test_fixed_point_is_where_the_iteration_ends(batch_shape: tuple[int, ...]) -> None:
    drawn = random_contexts(9, batch_shape=batch_shape, num_tokens=16)
    values = ictd.fixed_point(drawn.with_junk().prompt(), ictd.GaussianScore(0.25))
    score = reference.gaussian_score(0.25)
    expected = drawn.loop(lambda c: reference.fixed_point(c, score, step_size=1.0, tolerance=1e-13))
    assert_same(values, expected, tolerance=1e-8)


# By hand ---------------------------------------------------------------------------------------


def test_a_visited_cycle_and_a_state_that_never_occurs() -> None:
    # C1: four states of a cycle have closed-form values; state 3 gets a finite extrapolation.
    prompt = one_hot_prompt([0, 1, 2, 4, 0], [1.0, 2.0, 3.0, 4.0], [0.9] * 4, 5)
    prompt = prompt.with_queries(torch.eye(5, dtype=torch.float64)[3:4])
    score = ictd.BilinearScore(40.0 * torch.eye(5, dtype=torch.float64))
    values = ictd.softmax_td(prompt, score, num_steps=600, step_size=1.0)
    expected = tensor([23.687, 25.208, 25.787, 25.318, 23.687])
    torch.testing.assert_close(values[:5], expected, rtol=0, atol=5e-4)
    # State 3 is as far from every visited state: it moves by the plain mean of the TD errors,
    # and so ends at the mean of the visited values.
    torch.testing.assert_close(values[5], values[:4].mean(), rtol=0, atol=1e-9)
    torch.testing.assert_close(ictd.fixed_point(prompt, score), values, rtol=0, atol=1e-8)


def test_a_reward_belongs_to_the_state_it_leaves() -> None:
    # C5: V = (6, 10, 0).
    prompt = one_hot_prompt([0, 1, 2], [1.0, 10.0], [0.5, 0.0], 3, terminal=True)
    score = ictd.LogKernelScore(ictd.IdentityKernel())
    expected = tensor([6.0, 10.0, 0.0])
    assert_same(ictd.softmax_td(prompt, score, num_steps=2, step_size=1.0), expected)
    assert_same(ictd.fixed_point(prompt, score), expected)
    trajectory = ictd.Trajectory(
        torch.tensor([0, 1, 2]),
        prompt.rewards,
        prompt.discounts,
        prompt.is_transition,
        prompt.is_terminal,
    )
    assert_same(ictd.certainty_equivalence(trajectory, 3), expected)


def test_online_td_takes_a_semi_gradient_step() -> None:
    # C7: w = (1, 1), R = 0, gamma = .9 gives delta = -.1, and w moves along phi only. Two earlier
    # transitions with reward 1 and step 1 bring the weights to (1, 1).
    eye = torch.eye(2, dtype=torch.float64)
    prompt = ictd.Prompt(
        eye[[0, 0, 1, 0, 0, 1]],
        tensor([1.0, 0.0, 1.0, 0.0, 0.0, 0.0]),
        tensor([0.0, 0.0, 0.0, 0.0, 0.9, 0.0]),
        torch.tensor([True, False, True, False, True, False]),
    )
    history = ictd.online_td(prompt, step_size=1.0, return_history=True)
    assert_same(history[4], tensor([1.0, 1.0]))
    assert_same(history[5] - history[4], tensor([-0.1, 0.0]))
    ones = torch.ones(2, dtype=torch.float64)
    one = ictd.Prompt(eye, 0 * ones, tensor([0.9, 0.0]), torch.tensor([True, False]))
    assert_same(ictd.online_td(one, step_size=1.0, initial_weights=ones), tensor([0.9, 1.0]))


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if n.startswith("softmax")])
def test_identical_states_share_one_value(name: str) -> None:
    # C8: one state, mean reward 2, discount .5: the value is 4 for any score.
    phi = tensor([0.6, 0.0, 0.8]).expand(4, 3)
    prompt = ictd.Prompt(
        phi, tensor([1.0, 2.0, 3.0, 0.0]), tensor([0.5, 0.5, 0.5, 0.0]), torch.arange(4) < 3
    )
    values = ALGORITHMS[name](prompt, num_steps=80, step_size=1.0)
    assert_same(values, torch.full((4,), 4.0, dtype=torch.float64))


@every_algorithm
def test_one_transition(name: str) -> None:
    # C8: a context of one transition; its source moves by alpha kappa(s, s) times the reward.
    phi = torch.eye(3, dtype=torch.float64)[:2]
    prompt = ictd.Prompt(phi, tensor([2.0, 0.0]), tensor([0.9, 0.0]), torch.tensor([True, False]))
    values = ALGORITHMS[name](prompt, num_steps=1, step_size=0.5)
    assert_same(values[0], tensor(1.0))
    assert values.isfinite().all()


@pytest.mark.parametrize("largest", [1e4, 1e6])
def test_huge_scores(largest: float) -> None:
    # C9: scores 10^4 (1, .9, -1) give the weights (1, 0, 0); tied maxima share equally.
    key = tensor([[1.0], [0.9], [-1.0], [1.0], [0.0]])
    transitions = torch.tensor([True, True, True, False, False])
    rewards = tensor([5.0, 7.0, 11.0, 0.0, 0.0]).requires_grad_()
    matrix = tensor([[largest]]).requires_grad_()
    features = key.clone().requires_grad_()
    prompt = ictd.Prompt(features, rewards, torch.zeros(5, dtype=torch.float64), transitions)
    values = ictd.softmax_td(prompt, ictd.BilinearScore(matrix), num_steps=1, step_size=1.0)
    # queries 0 and 3 see (1, .9, -1), query 2 sees (-1, -.9, 1), query 4 sees three ties
    expected = tensor([5.0, 5.0, 11.0, 5.0, 23.0 / 3])
    assert_same(values, expected)
    leaves = [rewards, matrix, features]
    assert all(g.isfinite().all() for g in gradients(values, leaves))


@every_algorithm
def test_a_context_without_transitions_changes_nothing(name: str) -> None:
    # C10: one item of the batch has no transition at all.
    drawn = random_contexts(10, batch_shape=(2,))
    drawn.is_transition[1] = False
    prompt = drawn.with_junk().prompt()
    features = prompt.features.clone().requires_grad_()
    rewards = prompt.rewards.clone().requires_grad_()
    prompt = replace(prompt, features=features, rewards=rewards)
    values = ALGORITHMS[name](prompt, **EIGHTH_STEPS)
    assert values[1].eq(0.0).all()
    assert values[0].ne(0.0).any()
    for gradient in gradients(values, [features, rewards]):
        assert gradient.isfinite().all()
        assert gradient[1].eq(0.0).all()


@pytest.mark.parametrize("name", TAKE_INITIAL_VALUES)
def test_a_context_without_transitions_keeps_the_initial_values(name: str) -> None:
    drawn = random_contexts(11, num_tokens=1, terminal=False)
    start = tensor([1.0, 2.0, 3.0, 4.0])
    assert_same(ALGORITHMS[name](drawn.prompt(), initial_values=start, **EIGHTH_STEPS), start)


@every_algorithm
def test_masking_the_last_transition_equals_slicing_it_off(name: str) -> None:
    # C11
    drawn = random_contexts(12, num_tokens=4, num_queries=0, num_padding=0, closed=True)
    prompt = drawn.prompt()
    masked = replace(prompt, is_transition=torch.tensor([True, True, False, False]))
    sliced = ictd.Prompt(
        prompt.features[:3],
        prompt.rewards[:3],
        prompt.discounts[:3],
        torch.tensor([True, True, False]),
    )
    assert_same(
        ALGORITHMS[name](masked, **EIGHTH_STEPS)[:3], ALGORITHMS[name](sliced, **EIGHTH_STEPS)
    )


@every_algorithm
def test_terminal_tokens_are_worth_nothing(name: str) -> None:
    # Even where a careless discount bootstraps from one, and whatever the initial values say.
    prompt = one_hot_prompt([0, 1, 0], [1.0, 1.0], [0.9, 0.9], 3, terminal=True)
    keywords: dict[str, Any] = {}
    if name in TAKE_INITIAL_VALUES:
        keywords["initial_values"] = torch.full((3,), 7.0, dtype=torch.float64)
    history = ALGORITHMS[name](prompt, return_history=True, **keywords, **EIGHTH_STEPS)
    assert history[:, 2].eq(0.0).all()
    assert history[1:, 0].ne(0.0).all()
    unpinned = replace(prompt, is_terminal=torch.zeros(3, dtype=torch.bool))
    assert ALGORITHMS[name](unpinned, **EIGHTH_STEPS)[2].ne(0.0)


def test_every_algorithm_pins_a_terminal_successor() -> None:
    # The discount into the terminal token should be 0, and is not: nothing may bootstrap from it.
    careless = one_hot_prompt([0, 1, 2], [1.0, 10.0], [0.5, 0.9], 3, terminal=True)
    careful = replace(careless, discounts=tensor([0.5, 0.0, 0.0]))
    score = ictd.BilinearScore(20.0 * torch.eye(3, dtype=torch.float64))
    ones = torch.ones(3, dtype=torch.float64)
    for algorithm in (
        lambda p: ictd.fixed_point(p, score),
        lambda p: ictd.online_td(p, step_size=0.5, initial_weights=ones),
        lambda p: ictd.lstd(replace(p, features=p.features[:, :2])),
    ):
        assert_same(algorithm(careless), algorithm(careful))
    flags = (careless.is_transition, careless.is_terminal)
    one, other = (
        ictd.Trajectory(torch.arange(3), p.rewards, p.discounts, *flags)
        for p in (careless, careful)
    )
    assert_same(
        ictd.tabular_td(one, 3, initial_values=ones, **EIGHTH_STEPS),
        ictd.tabular_td(other, 3, initial_values=ones, **EIGHTH_STEPS),
    )
    assert_same(ictd.certainty_equivalence(one, 3), ictd.certainty_equivalence(other, 3))


@every_batch_shape
def test_td_errors_match_the_reference(batch_shape: tuple[int, ...]) -> None:
    drawn = random_contexts(30, batch_shape=batch_shape)
    values = np.random.default_rng(7).normal(size=drawn.states.shape)
    values[drawn.is_terminal] = 0.0
    errors = ictd.td_errors(drawn.with_junk().prompt(), tensor(values))
    for index in drawn.indices():
        expected = np.zeros(values.shape[-1])
        for j, error in reference.td_errors(drawn[index], values[index]).items():
            expected[j] = error
        assert_same(errors[index], tensor(expected))


# One formula against another -------------------------------------------------------------------


@every_batch_shape
def test_kernel_td_with_the_linear_kernel_is_linear_td(batch_shape: tuple[int, ...]) -> None:
    prompt = random_contexts(13, batch_shape=batch_shape).prompt()
    assert_same(
        ictd.kernel_td(prompt, ictd.LinearKernel(), **EIGHTH_STEPS),
        ictd.linear_td(prompt, **EIGHTH_STEPS),
    )


@every_batch_shape
def test_linear_td_from_any_weights_is_kernel_td(batch_shape: tuple[int, ...]) -> None:
    prompt = random_contexts(13, batch_shape=batch_shape).prompt()
    start = tensor(np.random.default_rng(8).normal(size=(*batch_shape, 3)))
    values = (prompt.features @ start.unsqueeze(-1)).squeeze(-1)
    assert_same(
        ictd.linear_td(prompt, initial_weights=start, **EIGHTH_STEPS),
        ictd.kernel_td(prompt, ictd.LinearKernel(), initial_values=values, **EIGHTH_STEPS),
    )


def test_lstd_is_where_linear_td_stands_still() -> None:
    prompt = random_contexts(31, batch_shape=(4,), num_tokens=24).prompt()
    weights = ictd.lstd(prompt)
    still = ictd.linear_td(prompt, initial_weights=weights, num_steps=3, step_size=1.0)
    values = (prompt.features @ weights.unsqueeze(-1)).squeeze(-1)
    assert prompt.is_terminal is not None
    assert_same(still, values.masked_fill(prompt.is_terminal, 0.0), tolerance=1e-10)
    assert values[prompt.is_terminal].ne(0.0).any()
    no_terminal = replace(prompt, is_terminal=None)
    weights = ictd.lstd(no_terminal)
    still = ictd.linear_td(no_terminal, initial_weights=weights, num_steps=3, step_size=1.0)
    assert_same(still, (prompt.features @ weights.unsqueeze(-1)).squeeze(-1), tolerance=1e-10)


@every_batch_shape
def test_kernel_td_with_the_identity_kernel_is_tabular_td(batch_shape: tuple[int, ...]) -> None:
    drawn = random_contexts(14, batch_shape=batch_shape, num_padding=0, num_queries=0)
    assert_same(
        ictd.kernel_td(drawn.prompt(), ictd.IdentityKernel(), **EIGHTH_STEPS),
        ictd.tabular_td(drawn.trajectory(), 5, **EIGHTH_STEPS),
    )


def test_linear_td_with_one_hot_features_is_tabular_td() -> None:
    drawn = random_contexts(15, batch_shape=(4,), num_padding=0, num_queries=0)
    trajectory = drawn.trajectory()
    prompt = trajectory.prompt(torch.eye(5, dtype=torch.float64))
    assert_same(
        ictd.linear_td(prompt, return_history=True, **EIGHTH_STEPS),
        ictd.tabular_td(trajectory, 5, return_history=True, **EIGHTH_STEPS),
    )


@pytest.mark.parametrize(
    "kernel", [ictd.LinearKernel(), ictd.GaussianKernel(0.7), ictd.IdentityKernel()], ids=repr
)
@every_batch_shape
def test_softmax_td_weighted_by_the_mean_kernel_is_kernel_td(
    kernel: torch.nn.Module, batch_shape: tuple[int, ...]
) -> None:
    drawn = random_contexts(16, batch_shape=batch_shape)
    drawn = replace(drawn, features=np.abs(drawn.features))  # positive inner products
    prompt = drawn.prompt()
    similarity = kernel(prompt.features, prompt.features)
    is_key = prompt.is_transition.to(similarity.dtype).unsqueeze(-2)
    weight = (similarity * is_key).sum(-1) / is_key.sum(-1).clamp(min=1)
    assert_same(
        ictd.softmax_td(prompt, ictd.LogKernelScore(kernel), weight=weight, **EIGHTH_STEPS),
        ictd.kernel_td(prompt, kernel, **EIGHTH_STEPS),
    )


def mean_td_errors(c: reference.Context, values: np.ndarray) -> dict[int, float]:
    """The mean TD error of the source state of each token that has one, by features."""
    errors = reference.td_errors(c, values)
    return {
        j: float(np.mean([e for k, e in errors.items() if (c.features[k] == c.features[j]).all()]))
        for j in errors
    }


def test_the_sharpest_score_moves_each_state_by_its_own_mean_error() -> None:
    drawn = random_contexts(17)
    score = ictd.LogKernelScore(ictd.IdentityKernel())
    start = np.random.default_rng(4).normal(size=len(drawn.states))
    start[drawn.is_terminal] = 0.0
    moved = ictd.softmax_td(
        drawn.prompt(), score, num_steps=1, step_size=0.5, initial_values=tensor(start)
    )
    for j, error in mean_td_errors(drawn[()], start).items():
        assert moved[j].item() == pytest.approx(start[j] + 0.5 * error, abs=1e-12)
    unseen = ~np.isin(drawn.states, drawn.states[drawn.is_transition])
    assert unseen.any()
    assert_same(moved[torch.as_tensor(unseen)], tensor(start[unseen]))


@pytest.mark.claim("prop-identity-score")
@pytest.mark.parametrize("beta", [0.0, 1.0, 5.0, 12.0])
def test_the_identity_score_deviates_by_exactly_this_much(beta: float) -> None:
    drawn = random_contexts(18, num_tokens=20, num_padding=0, num_queries=0, closed=True)
    c = drawn[()]
    prompt = drawn.trajectory().prompt(torch.eye(5, dtype=torch.float64))
    start = np.random.default_rng(5).normal(size=5)[drawn.states]
    score = ictd.BilinearScore(beta * torch.eye(5, dtype=torch.float64))
    moved = ictd.softmax_td(prompt, score, num_steps=1, step_size=1.0, initial_values=tensor(start))
    errors = reference.td_errors(c, start)
    n = len(errors)
    worst = max(abs(e) for e in errors.values())
    for j in errors:
        own = [e for k, e in errors.items() if drawn.states[k] == drawn.states[j]]
        others = [e for k, e in errors.items() if drawn.states[k] != drawn.states[j]]
        count = len(own)
        deviation = (n - count) * (np.mean(others) - np.mean(own))
        deviation /= count * np.exp(beta) + n - count
        update = moved[j].item() - start[j]
        assert update == pytest.approx(np.mean(own) + deviation, abs=1e-12)
        assert abs(update - np.mean(own)) <= 2 * (n - count) / count * np.exp(-beta) * worst


def lumped_iteration(
    drawn: Contexts, score: reference.Pairwise, table: np.ndarray, num_steps: int, alpha: float
) -> np.ndarray:
    """The m-state form: counts, empirical model and attention between states."""
    c, m = drawn[()], len(table)
    counts, flows, sums = np.zeros(m), np.zeros((m, m)), np.zeros(m)
    for j in c.sources:
        counts[drawn.states[j]] += 1
        sums[drawn.states[j]] += c.rewards[j]
        flows[drawn.states[j], drawn.states[j + 1]] += c.discounts[j]
    visited = counts > 0
    model = flows[visited] / counts[visited, None]
    reward = sums[visited] / counts[visited]
    attention = np.array(
        [[counts[u] * np.exp(score(table[s], table[u])) for u in range(m)] for s in range(m)]
    )
    attention = attention[:, visited] / attention.sum(axis=1, keepdims=True)
    values = np.zeros(m)
    for _ in range(num_steps):
        values = values + alpha * attention @ (reward + model @ values - values[visited])
    return values


@pytest.mark.claim("prop-lumped")
@pytest.mark.parametrize("seed", range(5))
def test_lumped_form(seed: int) -> None:
    drawn = random_contexts(seed, num_tokens=25, num_padding=0, num_queries=0, terminal=False)
    table = np.zeros((5, 3))
    table[drawn.states] = drawn.features
    values = ictd.softmax_td(
        drawn.prompt(), ictd.BilinearScore(tensor(MATRIX)), num_steps=8, step_size=0.7
    )
    lumped = lumped_iteration(drawn, reference.bilinear(MATRIX), table, 8, 0.7)
    assert_same(values, tensor(lumped[drawn.states]))


@pytest.mark.claim("thm-fixed-point")
@pytest.mark.parametrize("seed", range(3))
def test_with_closure_the_fixed_point_is_certainty_equivalence(seed: int) -> None:
    drawn = random_contexts(seed, num_tokens=20, feature_dim=3, closed=True)
    c, h = drawn[()], 0.3
    prompt = drawn.prompt()
    flags = (c.rewards, c.discounts, c.is_transition, c.is_terminal)
    model_values = reference.certainty_equivalence(drawn.states, *flags, 8)
    values = ictd.fixed_point(prompt, ictd.GaussianScore(h))
    sources = drawn.is_transition
    assert_same(values[sources], tensor(model_values[drawn.states[sources]]), tolerance=1e-9)
    # Everything else is the kernel interpolant M(q, V) M_VV^{-1} v.
    states = np.unique(drawn.states[sources])
    where = [int(np.flatnonzero(drawn.states == s)[0]) for s in states]
    counts = np.array([(drawn.states[sources] == s).sum() for s in states])
    kernel = reference.gaussian_kernel(h)
    rows = [
        [n * kernel(phi, c.features[k]) for n, k in zip(counts, where, strict=True)]
        for phi in c.features
    ]
    attention = np.array(rows) / np.sum(rows, axis=1, keepdims=True)
    interpolant = attention @ np.linalg.solve(attention[where], model_values[states])
    assert_same(values, tensor(interpolant), tolerance=1e-8)
    iterated = ictd.softmax_td(prompt, ictd.GaussianScore(h), num_steps=1500, step_size=1.0)
    assert_same(iterated, values, tolerance=1e-7)


@pytest.mark.claim("thm-no-closure")
def test_without_closure_the_limit_depends_on_the_start() -> None:
    prompt = one_hot_prompt([0, 1, 0, 1, 2], [1.0, 0.0, 2.0, 1.0], [0.8] * 4, 3)
    score = ictd.BilinearScore(3.0 * torch.eye(3, dtype=torch.float64))

    def limit(start: float) -> torch.Tensor:
        return ictd.softmax_td(
            prompt,
            score,
            num_steps=2000,
            step_size=1.0,
            initial_values=tensor([0.0, 0.0, 0.0, 0.0, start]),
        )

    low, high = limit(0.0), limit(1.0)
    assert (high - low)[4] > 0.5
    for values in (low, high):  # both are fixed points
        again = ictd.softmax_td(prompt, score, num_steps=1, step_size=1.0, initial_values=values)
        assert_same(again, values, tolerance=1e-10)
    assert_same(ictd.fixed_point(prompt, score), low, tolerance=1e-8)
    # From zero: v(S_n) = m^T v(V), with m^T = M(S_n, V) M_VV^{-1}, closes the system.
    e = np.exp(3.0)
    attention = np.array([[2 * e, 2], [2, 2 * e], [2, 2]])
    attention /= attention.sum(axis=1, keepdims=True)
    m = attention[2] @ np.linalg.inv(attention[:2])
    model = np.array([[0.0, 0.8], [0.4, 0.0]])
    to_last = np.array([0.0, 0.4])
    reward = np.array([1.5, 0.5])
    visited = np.linalg.solve(np.eye(2) - model - np.outer(to_last, m), reward)
    expected = [visited[0], visited[1], visited[0], visited[1], m @ visited]
    assert_same(low, tensor(expected), tolerance=1e-9)
    trajectory = ictd.Trajectory(
        torch.tensor([0, 1, 0, 1, 2]), prompt.rewards, prompt.discounts, prompt.is_transition
    )
    with refuses(ValueError, r"clos|source|trim"):
        ictd.certainty_equivalence(trajectory, 3)


def test_two_temperatures_give_centred_linear_attention() -> None:
    rng = np.random.default_rng(6)
    x, rewards = rng.normal(size=12), rng.normal(size=12)
    features = np.stack([np.ones(13), np.append(x, 0.0)], axis=-1)
    prompt = ictd.Prompt(
        tensor(features), tensor([*rewards, 0.0]), tensor(np.zeros(13)), torch.arange(13) < 12
    )

    def update(epsilon: float) -> float:  # the last token scores epsilon x_k against key k
        matrix = tensor([[0.0, 0.0], [epsilon, 0.0]])
        values = ictd.softmax_td(prompt, ictd.BilinearScore(matrix), num_steps=1, step_size=1.0)
        return float(values[-1])

    covariance = np.mean(x * rewards) - np.mean(x) * np.mean(rewards)
    spread = np.ptp(x) ** 3 * np.ptp(rewards)
    for epsilon in (0.5, 0.1, 0.02):
        error = abs((update(epsilon) - update(-epsilon)) / (2 * epsilon) - covariance)
        assert error <= 7 / 96 * epsilon**2 * spread
    assert abs((update(0.5) - update(-0.5)) - covariance) > 1e-3  # and not exactly


# Properties ------------------------------------------------------------------------------------


@every_algorithm
@quick
@given(drawn=contexts(batch_shape=(), feature_dim=3), seed=st.integers(0, 1000))
def test_the_order_of_transitions_does_not_matter(name: str, drawn: Contexts, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(int(drawn.is_transition.sum()))
    cut, tokens = pieces(drawn, order)
    whole = ALGORITHMS[name](drawn.prompt(), num_steps=4, step_size=0.8)
    parts = ALGORITHMS[name](cut.prompt(), num_steps=4, step_size=0.8)
    assert_same(parts, whole[tokens])


@every_algorithm
@quick
@given(drawn=contexts(feature_dim=3), extra=st.integers(1, 3))
def test_queries_and_padding_change_nothing_else(name: str, drawn: Contexts, extra: int) -> None:
    prompt = drawn.prompt()
    queries = torch.ones(*drawn.batch_shape, extra, 3, dtype=torch.float64)
    keywords: dict[str, Any] = {"num_steps": 3, "step_size": 0.8}
    before = ALGORITHMS[name](prompt, **keywords)
    after = ALGORITHMS[name](prompt.with_queries(queries), **keywords)
    assert_same(after[..., : before.shape[-1]], before)
    padded = ictd.Prompt.stack([prompt, prompt.with_queries(0 * queries)])
    stacked = ALGORITHMS[name](padded, **keywords)
    assert_same(stacked[0, ..., : before.shape[-1]], before)
    assert_same(stacked[1, ..., : before.shape[-1]], before)


@every_algorithm
@quick
@given(drawn=contexts(feature_dim=3), a=st.floats(-3, 3), b=st.floats(-3, 3))
def test_values_are_linear_in_the_rewards(name: str, drawn: Contexts, a: float, b: float) -> None:
    first = drawn.prompt()
    other = torch.roll(first.rewards, 1, -1) + 0.5
    keywords: dict[str, Any] = {"num_steps": 3, "step_size": 0.8}
    combined = ALGORITHMS[name](replace(first, rewards=a * first.rewards + b * other), **keywords)
    parts = [ALGORITHMS[name](replace(first, rewards=r), **keywords) for r in (other,)]
    expected = a * ALGORITHMS[name](first, **keywords) + b * parts[0]
    assert_same(combined, expected)


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if n.startswith("softmax")])
@quick
@given(drawn=contexts(batch_shape=(), feature_dim=3, terminal=False))
def test_repeating_the_context_changes_nothing(name: str, drawn: Contexts) -> None:
    once = drawn.prompt()
    twice = ictd.Prompt(
        *(torch.cat([x, x]) for x in (once.features, once.rewards, once.discounts)),
        torch.cat([once.is_transition, once.is_transition]),
    )
    keywords: dict[str, Any] = {"num_steps": 3, "step_size": 0.8}
    values = ALGORITHMS[name](once, **keywords)
    assert_same(ALGORITHMS[name](twice, **keywords), torch.cat([values, values]))


@every_algorithm
@every_batch_shape
def test_history(name: str, batch_shape: tuple[int, ...]) -> None:
    prompt = random_contexts(19, batch_shape=batch_shape).prompt()
    history = ALGORITHMS[name](prompt, num_steps=5, step_size=0.5, return_history=True)
    assert history.shape == (6, *batch_shape, 17)
    assert history[0].eq(0.0).all()
    for steps in range(6):
        assert_same(history[steps], ALGORITHMS[name](prompt, num_steps=steps, step_size=0.5))


@every_algorithm
def test_batch_equals_loop_equals_vmap(name: str) -> None:
    drawn = random_contexts(20, batch_shape=(2, 3))
    prompt = drawn.prompt()

    def run(one: ictd.Prompt) -> torch.Tensor:
        return ALGORITHMS[name](one, **EIGHTH_STEPS)

    batched = run(prompt)
    looped = torch.stack([run(prompt[index]) for index in drawn.indices()])
    assert_same(batched, looped.reshape(batched.shape))
    assert_same(torch.vmap(torch.vmap(run))(prompt), batched)


def test_online_td_and_lstd_under_vmap() -> None:
    prompt = random_contexts(21, batch_shape=(4,), num_tokens=20).prompt()
    online = torch.vmap(lambda one: ictd.online_td(one, step_size=0.2))(prompt)
    assert_same(online, ictd.online_td(prompt, step_size=0.2))
    assert_same(torch.vmap(ictd.lstd)(prompt), ictd.lstd(prompt), tolerance=1e-10)


@every_algorithm
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@every_batch_shape
def test_dtype_and_device_follow_the_prompt(
    name: str, dtype: torch.dtype, batch_shape: tuple[int, ...]
) -> None:
    drawn = random_contexts(22, batch_shape=batch_shape)
    prompt = drawn.prompt(dtype)
    values = ALGORITHMS[name](prompt, **EIGHTH_STEPS)
    assert (values.dtype, values.device) == (dtype, prompt.device)
    assert values.shape == prompt.rewards.shape
    expected = ALGORITHMS[name](drawn.prompt(), **EIGHTH_STEPS)
    torch.testing.assert_close(values.double(), expected, rtol=0, atol=2e-5)


@every_algorithm
def test_nothing_else_is_touched(name: str) -> None:
    prompt = random_contexts(23, batch_shape=(3,)).with_junk().prompt()
    before = [x.clone() for x in torch.utils._pytree.tree_leaves(prompt)]
    state = torch.get_rng_state()
    ALGORITHMS[name](prompt, **EIGHTH_STEPS)
    assert torch.equal(torch.get_rng_state(), state)
    for old, new in zip(before, torch.utils._pytree.tree_leaves(prompt), strict=True):
        torch.testing.assert_close(new, old, rtol=0, atol=0, equal_nan=True)


# Gradients -------------------------------------------------------------------------------------


def small_prompt() -> ictd.Prompt:
    return random_contexts(24, num_tokens=6, feature_dim=3, num_padding=0).prompt()


DIFFERENTIABLE = [n for n in ALGORITHMS if "identity" not in n and "log of" not in n]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradcheck_in_features_rewards_and_discounts(name: str) -> None:
    prompt = small_prompt()

    def run(features: torch.Tensor, rewards: torch.Tensor, discounts: torch.Tensor) -> torch.Tensor:
        changed = replace(prompt, features=features, rewards=rewards, discounts=discounts)
        return ALGORITHMS[name](changed, num_steps=3, step_size=0.7)

    inputs = [prompt.features, prompt.rewards, prompt.discounts]
    # strictly inside [0, 1], so that the finite differences stay there too
    inputs[2] = inputs[2].clamp(0.1, 0.9)
    assert torch.autograd.gradcheck(run, [x.clone().requires_grad_() for x in inputs])


def test_gradcheck_in_the_score_the_weight_the_step_and_the_start() -> None:
    prompt = small_prompt()
    tokens = len(prompt)

    def bilinear(matrix: torch.Tensor, weight: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        return ictd.softmax_td(
            prompt,
            ictd.BilinearScore(matrix),
            num_steps=3,
            step_size=0.7,
            weight=weight,
            initial_values=start,
        )

    def gaussian(bandwidth: torch.Tensor) -> torch.Tensor:
        return ictd.softmax_td(
            prompt, ictd.GaussianScore(bandwidth), num_steps=3, step_size=0.7
        ) + ictd.kernel_td(prompt, ictd.GaussianKernel(bandwidth), num_steps=3, step_size=0.7)

    inputs = [tensor(MATRIX), torch.rand(tokens, dtype=torch.float64), tensor(np.ones(tokens))]
    inputs[1] = torch.linspace(0.3, 0.9, tokens, dtype=torch.float64)
    assert torch.autograd.gradcheck(bilinear, [x.requires_grad_() for x in inputs])
    assert torch.autograd.gradcheck(gaussian, tensor(0.8).requires_grad_())


def test_gradcheck_of_online_td_lstd_and_fixed_point() -> None:
    drawn = random_contexts(25, num_tokens=12, num_states=3, feature_dim=2, closed=True)
    prompt = drawn.prompt()
    inputs = [prompt.features, prompt.rewards, prompt.discounts.clamp(0.1, 0.9)]

    def run(
        algorithm: Callable[[ictd.Prompt], torch.Tensor],
    ) -> Callable[..., torch.Tensor]:
        return lambda features, rewards, discounts: algorithm(
            replace(prompt, features=features, rewards=rewards, discounts=discounts)
        )

    for algorithm in (lambda p: ictd.online_td(p, step_size=0.3), ictd.lstd):
        leaves = [x.clone().requires_grad_() for x in inputs]
        assert torch.autograd.gradcheck(run(algorithm), leaves)


@every_algorithm
def test_what_masked_tokens_hold_reaches_no_gradient(name: str) -> None:
    drawn = random_contexts(26, batch_shape=(3,))
    results, values = [], []
    for version in (drawn, drawn.with_junk()):
        prompt = version.prompt()
        leaves = [
            x.clone().requires_grad_() for x in (prompt.features, prompt.rewards, prompt.discounts)
        ]
        prompt = replace(prompt, features=leaves[0], rewards=leaves[1], discounts=leaves[2])
        values.append(ALGORITHMS[name](prompt, **EIGHTH_STEPS))
        results.append(gradients(values[-1], leaves))
    assert_same(values[1], values[0])
    for clean, junk in zip(*results, strict=True):
        assert_same(junk, clean)
        assert junk.isfinite().all()
    for junk in results[1][1:]:
        assert junk[~torch.as_tensor(drawn.is_transition)].eq(0.0).all()


# Compilation -----------------------------------------------------------------------------------


@pytest.mark.compile
@pytest.mark.parametrize("name", ["softmax, bilinear", "linear"])
def test_compiles_without_a_graph_break(name: str) -> None:
    prompt = random_contexts(27, batch_shape=(3,)).prompt()

    def run(one: ictd.Prompt) -> torch.Tensor:
        return ALGORITHMS[name](one, num_steps=4, step_size=0.7)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert_same(compiled(prompt), run(prompt))


@pytest.mark.compile
def test_compiles_where_values_are_checked() -> None:
    # The checks of a kernel's sign look at values; compiled, they are left out.
    prompt = random_contexts(33, batch_shape=(2,)).prompt()

    def run(one: ictd.Prompt) -> torch.Tensor:
        score = ictd.LogKernelScore(ictd.GaussianKernel(0.6))
        weights = ictd.attention_weights(one, score)
        longer = one.with_queries(one.features[..., :2, :])
        return ictd.softmax_td(longer, score, num_steps=2, step_size=0.7) + weights.sum()

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert_same(compiled(prompt), run(prompt))


# Failures --------------------------------------------------------------------------------------


@every_algorithm
def test_refuses_a_negative_number_of_steps(name: str) -> None:
    with refuses(ValueError, r"num_steps.*expected.*got -1"):
        ALGORITHMS[name](small_prompt(), num_steps=-1, step_size=0.5)


@pytest.mark.parametrize("name", TAKE_INITIAL_VALUES)
def test_refuses_initial_values_of_another_shape(name: str) -> None:
    with refuses(ValueError, r"initial_values.*expected.*got"):
        ALGORITHMS[name](
            small_prompt(), initial_values=torch.zeros(3, dtype=torch.float64), **EIGHTH_STEPS
        )


def test_refuses_a_weight_of_another_shape() -> None:
    with refuses(ValueError, r"weight.*expected.*got"):
        ictd.softmax_td(
            small_prompt(),
            ictd.GaussianScore(1.0),
            weight=torch.ones(2, dtype=torch.float64),
            **EIGHTH_STEPS,
        )


def test_refuses_a_score_for_other_features() -> None:
    with refuses(ValueError, r"expected.*got"):
        ictd.softmax_td(
            small_prompt(), ictd.BilinearScore(torch.eye(4, dtype=torch.float64)), **EIGHTH_STEPS
        )


def test_refuses_a_kernel_that_is_negative() -> None:
    prompt = one_hot_prompt([0, 1, 0], [1.0, 1.0], [0.9, 0.9], 2)
    prompt = replace(prompt, features=tensor([[1.0], [-1.0], [1.0]]))
    with refuses(ValueError, r"kernel.*expected.*>= 0.*got -1"):
        ictd.softmax_td(prompt, ictd.LogKernelScore(ictd.LinearKernel()), **EIGHTH_STEPS)


def test_refuses_a_schedule_of_another_length() -> None:
    with refuses(ValueError, r"step_size.*expected.*got"):
        ictd.online_td(small_prompt(), step_size=torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize(
    "algorithm",
    [
        lambda p, w: ictd.linear_td(p, initial_weights=w, **EIGHTH_STEPS),
        lambda p, w: ictd.online_td(p, initial_weights=w, step_size=0.1),
    ],
)
@pytest.mark.parametrize(
    ("weights", "error"),
    [(torch.ones(4, dtype=torch.float64), ValueError), (torch.ones(3), TypeError)],
    ids=["shape", "dtype"],
)
def test_refuses_initial_weights(
    algorithm: Algorithm, weights: torch.Tensor, error: type[Exception]
) -> None:
    with refuses(error, r"initial_weights.*expected.*got"):
        algorithm(small_prompt(), weights)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_refuses_a_step_size_with_axes(name: str) -> None:
    with refuses(ValueError, r"step_size.*expected.*got"):
        ALGORITHMS[name](small_prompt(), num_steps=1, step_size=torch.ones(2).double())


def test_refuses_limits_that_are_not_unique() -> None:
    # Two features, but the transitions span one of them.
    prompt = one_hot_prompt([0, 0], [1.0], [0.5], 2)
    with refuses(ValueError, r"LSTD.*rank 2.*got 1"):
        ictd.lstd(prompt)
    # Two sources that any token attends to alike: their columns of the attention are equal.
    two = one_hot_prompt([0, 1, 0], [1.0, 2.0], [0.5, 0.5], 2)
    with refuses(ValueError, r"prompt: expected a fixed point.*got inf"):
        ictd.fixed_point(two, ictd.BilinearScore(torch.zeros(2, 2, dtype=torch.float64)))


def test_refuses_values_of_another_shape() -> None:
    with refuses(ValueError, r"values.*expected.*got"):
        ictd.td_errors(small_prompt(), torch.ones(3, dtype=torch.float64))


def test_refuses_states_outside_the_table() -> None:
    drawn = random_contexts(28)
    with refuses(ValueError, r"states?.*(expected|got)"):
        ictd.tabular_td(drawn.trajectory(), 3, **EIGHTH_STEPS)
    with refuses(ValueError, r"states?.*(expected|got)"):
        ictd.certainty_equivalence(drawn.trajectory(), 3)
