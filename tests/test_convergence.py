"""Attention on states, the iteration with it, and how fast it converges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ictd
from reference import convergence as reference
from strategies import assert_same, contexts, quick, random_contexts, random_matrix, refuses, tensor

FLOAT64: dict[str, Any] = {"dtype": torch.float64}


def problem(
    seed: int, batch_shape: tuple[int, ...] = (), num_states: int = 4
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A random attention, transition and reward."""
    rng = np.random.default_rng(seed)
    drawn = rng.exponential(size=(2, *batch_shape, num_states, num_states))
    attention, transition = drawn / drawn.sum(-1, keepdims=True)
    return (
        tensor(attention),
        tensor(transition),
        tensor(rng.normal(size=(*batch_shape, num_states))),
    )


def diagonal_problem(
    seed: int, size: int, num_states: int = 4
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attentions with a diagonal above (1 + γ)/2, transitions, discounts, steps below 2/(1 + γ)."""
    attention, transition, _ = problem(seed, (size,), num_states)
    rng = np.random.default_rng(seed)
    gamma = tensor(rng.uniform(0, 0.99, size))
    least = (1 + gamma) / 2
    own = least + (1 - least) * tensor(rng.uniform(0.01, 1, size))
    off = attention * (1 - torch.eye(num_states, **FLOAT64))
    off = off / off.sum(-1, keepdim=True) * (1 - own)[:, None, None]
    attention = off + own[:, None, None] * torch.eye(num_states, **FLOAT64)
    return attention, transition, gamma, tensor(rng.uniform(0.01, 0.99, size)) * 2 / (1 + gamma)


def infinity_norm(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.abs().sum(-1).amax(-1)


# Attention -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_attention_against_the_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights, features = rng.random((2, 3, 5)), rng.normal(size=(2, 3, 5, 3))
    weights[0, 0, 2] = 0.0
    matrix = random_matrix(seed, 3)
    found = ictd.lumped_attention(
        tensor(weights), tensor(features), ictd.BilinearScore(tensor(matrix))
    )
    for index in np.ndindex(2, 3):
        scores = features[index] @ matrix.T @ features[index].T
        assert_same(found[index], tensor(reference.attention(weights[index], scores)))
    assert_same(found.sum(-1), torch.ones(2, 3, 5, **FLOAT64))
    assert torch.equal(found[0, 0, :, 2], torch.zeros(5, **FLOAT64))


def test_attention_by_hand() -> None:
    # scores log 2 for oneself: 3·2 : 1 and 3 : 2
    features, score = torch.eye(2, **FLOAT64), ictd.BilinearScore(torch.eye(2).double() * np.log(2))
    found = ictd.lumped_attention(tensor([3.0, 1.0]), features, score)
    assert_same(found, tensor([[6 / 7, 1 / 7], [3 / 5, 2 / 5]]))


def test_weights_count_by_their_ratios() -> None:
    features, score = tensor(random_matrix(1, 4)), ictd.GaussianScore(0.7)
    weights = tensor([1.0, 5.0, 2.0, 0.0])
    found = ictd.lumped_attention(weights, features, score)
    assert_same(found, ictd.lumped_attention(1e-300 * weights, features, score))
    assert_same(found, ictd.lumped_attention(1e300 * weights, features, score))


def test_a_score_of_minus_infinity_and_a_row_of_them() -> None:
    kernel = ictd.LogKernelScore(ictd.LinearKernel())
    found = ictd.lumped_attention(tensor([1.0, 1.0, 1.0]), tensor([[1.0], [3.0], [0.0]]), kernel)
    assert_same(found, tensor([[0.25, 0.75, 0.0], [0.25, 0.75, 0.0], [0.0, 0.0, 0.0]]))


def test_population_attention_weighs_by_the_stationary_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    chain = ictd.boyan_chain(5, discount=0.9, generator=generator, batch_shape=(3,), **FLOAT64)
    features, score = tensor(random_matrix(2, 5)[:, :3]), ictd.GaussianScore(0.8)
    found = ictd.population_attention(chain, features, score)
    each = features.expand(3, 5, 3)
    assert_same(found, ictd.lumped_attention(chain.stationary_distribution(), each, score))
    assert_same(found, ictd.population_attention(chain, each, score))
    assert_same(found[1], ictd.population_attention(chain[1], features, score))


def test_terminal_states_take_no_part() -> None:
    transition = tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    terminal = torch.tensor([False, False, True])
    chain = ictd.MarkovRewardProcess(transition, tensor([1.0, 2.0, 0.0]), 0.9, terminal=terminal)
    attention = ictd.population_attention(chain, torch.eye(3, **FLOAT64), ictd.GaussianScore(0.5))
    assert torch.equal(attention[2], torch.zeros(3, **FLOAT64))
    assert torch.equal(attention[:, 2], torch.zeros(3, **FLOAT64))
    reward = chain.expected_reward()
    values = ictd.lumped_td(attention, reward, transition, 0.9, num_steps=3_000, step_size=1.0)
    assert_same(values, chain.value())


@quick
@given(drawn=contexts(num_queries=0, num_padding=0), steps=st.integers(0, 6))
def test_states_instead_of_tokens_same_numbers(drawn: Any, steps: int) -> None:
    # padding and queries have no features of their own state
    trajectory, states = drawn.trajectory(), torch.as_tensor(drawn.states)
    num_states = int(states.max()) + 1
    features = torch.zeros(*drawn.batch_shape, num_states, drawn.features.shape[-1]).double()
    index = states.unsqueeze(-1).expand(drawn.features.shape)
    features = features.scatter(-2, index, tensor(drawn.features))
    score = ictd.GaussianScore(0.7)
    # a state that is terminal in one episode and goes on in another has no value of its own
    ends = torch.zeros(*drawn.batch_shape, num_states).double()
    ended = ends.scatter_add(-1, states, tensor(drawn.is_terminal)) > 0
    left = ends.scatter_add(-1, states, tensor(drawn.is_transition)) > 0
    mixed = (ended & left).any(-1, keepdim=True).unsqueeze(-1)
    model = ictd.empirical_model(trajectory, num_states)
    attention = ictd.empirical_attention(trajectory, features, score)
    found = ictd.lumped_td(
        attention, model.reward, model.transition, 1.0, num_steps=steps, step_size=0.8
    )
    tokens = ictd.softmax_td(trajectory.prompt(features), score, num_steps=steps, step_size=0.8)
    expected = torch.where(mixed.squeeze(-1), found.gather(-1, states), tokens)
    assert_same(found.gather(-1, states), expected)


def test_the_previous_test_compares_something() -> None:
    drawn = random_contexts(3, closed=True, num_queries=0, num_padding=0)
    features = tensor(random_matrix(0, 5)[:, :3])
    trajectory = drawn.trajectory()
    model = ictd.empirical_model(trajectory, 5)
    attention = ictd.empirical_attention(trajectory, features, ictd.GaussianScore(0.7))
    found = ictd.lumped_td(
        attention, model.reward, model.transition, 1.0, num_steps=4, step_size=0.8
    )
    tokens = ictd.softmax_td(
        trajectory.prompt(features), ictd.GaussianScore(0.7), num_steps=4, step_size=0.8
    )
    assert_same(found[trajectory.states], tokens)
    assert float(tokens.abs().max()) > 0.1


@pytest.mark.parametrize("batch_shape", [(), (2, 3)])
def test_the_iteration_against_the_loop(batch_shape: tuple[int, ...]) -> None:
    attention, transition, reward = problem(0, batch_shape)
    start = torch.ones_like(reward)
    found = ictd.lumped_td(
        attention,
        reward,
        transition,
        0.9,
        num_steps=5,
        step_size=0.7,
        initial_values=start,
        return_history=True,
    )
    for index in np.ndindex(batch_shape):
        numbers = [x[index].numpy() for x in (attention, reward, transition)]
        expected = reference.lumped_td(*numbers, 0.9, 5, 0.7, start[index].numpy())
        assert_same(found[(slice(None), *index)], tensor(expected))


def test_a_discount_and_a_step_for_each_item() -> None:
    attention, transition, reward = problem(1, (3,))
    gamma, alpha = tensor([0.5, 0.8, 0.9]), tensor([0.2, 0.5, 1.0])
    found = ictd.lumped_td(attention, reward, transition, gamma, num_steps=3, step_size=alpha)
    matrix = ictd.iteration_matrix(attention, transition, gamma, alpha)
    factor = ictd.contraction_factor(attention, gamma, alpha)
    bound = ictd.depth_bound(attention, gamma, alpha, 3, gamma)
    best = ictd.successor_attention(transition, gamma)
    for i in range(3):
        item = attention[i], reward[i], transition[i]
        g, a = float(gamma[i]), float(alpha[i])
        assert_same(found[i], ictd.lumped_td(*item, g, num_steps=3, step_size=a))
        assert_same(matrix[i], ictd.iteration_matrix(attention[i], transition[i], g, a))
        assert_same(factor[i], ictd.contraction_factor(attention[i], g, a))
        assert_same(bound[i], ictd.depth_bound(attention[i], g, a, 3, g))
        assert_same(best[i], ictd.successor_attention(transition[i], g))


# The diagonal and the factor -------------------------------------------------------------------


def test_the_matrices_against_the_loop() -> None:
    attention, transition, _ = problem(2)
    expected = tensor(reference.iteration_matrix(attention.numpy(), transition.numpy(), 0.9, 0.7))
    assert_same(ictd.iteration_matrix(attention, transition, 0.9, 0.7), expected)
    drift = ictd.drift_matrix(attention, transition, 0.9)
    assert_same(torch.eye(4, **FLOAT64) - 0.7 * drift, expected)
    assert_same(
        ictd.kernel_diagonality(attention), tensor([float(attention[s, s]) for s in range(4)])
    )


def test_errors_are_multiplied_by_the_iteration_matrix() -> None:
    attention, transition, reward = problem(3)
    value = torch.linalg.solve(torch.eye(4, **FLOAT64) - 0.9 * transition, reward)
    matrix = ictd.iteration_matrix(attention, transition, 0.9, 0.6)
    found = ictd.lumped_td(attention, reward, transition, 0.9, num_steps=7, step_size=0.6)
    assert_same(found - value, torch.linalg.matrix_power(matrix, 7) @ -value)


@pytest.mark.parametrize(
    ("diagonal", "discount", "step_size", "factor"),
    [
        (0.97, 0.9, 1.0, 0.96),  # the first branch
        (0.97, 0.9, 1 / 0.97, 1.9 / 0.97 - 1),  # where they cross
        (0.97, 0.9, 1.05, 0.995),  # the second
        (1.0, 0.5, 1.0, 0.5),
        (0.8, 0.9, 1.0, 1.3),  # nothing is certified
        (0.97, 0.9, 0.0, 1.0),
        (0.9, 0.0, 1.0, 0.2),
    ],
)
def test_the_factor_by_hand(
    diagonal: float, discount: float, step_size: float, factor: float
) -> None:
    attention = tensor([[diagonal, 1 - diagonal], [0.0, 1.0]])
    assert_same(ictd.contraction_factor(attention, discount, step_size), tensor(factor))
    bound = ictd.depth_bound(attention, discount, step_size, 3, 2.0)
    assert_same(bound, tensor(2 * factor**3))


@pytest.mark.parametrize("seed", range(5))
def test_the_factor_bounds_the_norm(seed: int) -> None:
    attention, transition, gamma, step = diagonal_problem(seed, 200)
    factor = ictd.contraction_factor(attention, gamma, step)
    matrix = ictd.iteration_matrix(attention, transition, gamma, step)
    for i in range(200):
        own = attention[i].diagonal().numpy()
        assert_same(
            factor[i], tensor(reference.contraction_factor(own, float(gamma[i]), float(step[i])))
        )
    assert bool((infinity_norm(matrix) <= factor + 1e-12).all())
    assert bool((factor < 1).all())
    assert float((infinity_norm(matrix) / factor).max()) > 0.9


def test_the_factor_of_any_attention_bounds_the_norm() -> None:
    # outside the condition it is above 1, and still a bound
    attention, transition, _ = problem(4, (500,))
    step = torch.linspace(0, 3, 500, **FLOAT64)
    gamma = torch.linspace(0, 1, 500, **FLOAT64).flip(-1)
    matrix = ictd.iteration_matrix(attention, transition, gamma, step)
    bound = ictd.contraction_factor(attention, gamma, step)
    assert bool((infinity_norm(matrix) <= bound + 1e-12).all())


def test_the_factor_is_attained_in_the_limit() -> None:
    block, zero = tensor([[0.97, 0.03], [0.03, 0.97]]), torch.zeros(2, 2, **FLOAT64)
    attention = torch.block_diag(block, block)
    half = torch.full((2, 2), 0.5, **FLOAT64)
    transition = torch.cat([torch.cat([zero, half], 1), torch.cat([half, zero], 1)])
    for step in (0.5, 1.0, 1.0 / 0.97, 1.04):
        norm = infinity_norm(ictd.iteration_matrix(attention, transition, 0.9, step))
        assert_same(norm, ictd.contraction_factor(attention, 0.9, step))
    assert_same(
        ictd.spectral_radius(ictd.iteration_matrix(attention, transition, 0.9, 1.0)), tensor(0.9)
    )


def test_states_that_were_not_visited_can_be_left_out() -> None:
    attention = tensor([[0.97, 0.03, 0.0], [0.02, 0.98, 0.0], [0.5, 0.5, 0.0]])
    visited = torch.tensor([True, True, False])
    assert_same(ictd.contraction_factor(attention, 0.9, 1.0, visited=visited), tensor(0.96))
    assert_same(ictd.depth_bound(attention, 0.9, 1.0, 2, 1.0, visited=visited), tensor(0.96**2))
    assert float(ictd.contraction_factor(attention, 0.9, 1.0)) > 1


def test_a_context_against_its_bound() -> None:
    generator = torch.Generator().manual_seed(5)
    chain = ictd.boyan_chain(5, discount=0.9, generator=generator, batch_shape=(20,), **FLOAT64)
    trajectory = chain.sample(400, generator=generator)
    for i in range(20):
        closed = trajectory[i].trim()
        model = ictd.empirical_model(closed, 5)
        one_hot = ictd.one_hot_features(5, **FLOAT64)
        attention = ictd.empirical_attention(
            closed, one_hot, ictd.BilinearScore(9 * torch.eye(5, **FLOAT64))
        )
        visited = model.counts > 0
        limit = ictd.certainty_equivalence(closed, 5)
        start = torch.where(visited, limit, 0.0).abs().max()
        for layers in (0, 5, 50):
            values = ictd.lumped_td(
                attention, model.reward, model.transition, 1.0, num_steps=layers, step_size=1.0
            )
            error = torch.where(visited, values - limit, 0.0).abs().max()
            bound = ictd.depth_bound(attention, 0.9, 1.0, layers, start, visited=visited)
            assert float(ictd.contraction_factor(attention, 0.9, 1.0, visited=visited)) < 1
            assert float(error) <= float(bound) + 1e-12


# Eigenvalues -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_the_spectral_radius_is_the_growth_of_powers(seed: int) -> None:
    matrix = random_matrix(seed, 5)
    expected = tensor(reference.spectral_radius(matrix))
    assert_same(ictd.spectral_radius(tensor(matrix)), expected, tolerance=1e-9)
    stacked = torch.stack([tensor(matrix), 2 * tensor(matrix)])
    assert_same(ictd.spectral_radius(stacked), torch.stack([expected, 2 * expected]), 1e-9)


def test_the_largest_step_by_hand() -> None:
    rotation = tensor([[1.0, -2.0], [2.0, 1.0]])  # 1 ± 2i: 2/5
    assert_same(ictd.step_size_limit(rotation), tensor(0.4))
    assert_same(ictd.step_size_limit(torch.diag(tensor([0.5, 4.0]))), tensor(0.5))
    assert_same(ictd.step_size_limit(torch.diag(tensor([0.5, -1e-9]))), tensor(0.0))
    assert_same(ictd.step_size_limit(torch.diag(tensor([0.5, 0.0]))), tensor(0.0))
    assert_same(ictd.step_size_limit(1e-200 * torch.eye(1, **FLOAT64)) * 1e-200, tensor(2.0))


@pytest.mark.parametrize("seed", range(3))
def test_the_largest_step_separates_convergence_from_divergence(seed: int) -> None:
    attention, transition, _ = problem(seed, (200,), 3)
    drift = ictd.drift_matrix(attention, transition, 0.9)
    limit = ictd.step_size_limit(drift)
    stable = limit > 0
    assert 20 < int(stable.sum()) < 200
    eye = torch.eye(3, **FLOAT64)
    for factor, converges in ((0.999, True), (1.001, False)):
        step = factor * limit[stable]
        radius = ictd.spectral_radius(eye - step[:, None, None] * drift[stable])
        assert bool(((radius < 1) == converges).all())
    for step in (1e-3, 1e-2, 1.0):
        assert bool((ictd.spectral_radius(eye - step * drift[~stable]) >= 1).all())


# Successor attention, and states that were not visited -------------------------------------------


@pytest.mark.parametrize("discount", [0.0, 0.5, 0.99])
def test_successor_attention_is_exact_in_one_step(discount: float) -> None:
    _, transition, reward = problem(6, (3,))
    attention = ictd.successor_attention(transition, discount)
    assert_same(attention.sum(-1), torch.ones(3, 4, **FLOAT64))
    series = [reference.resolvent(discount * p.numpy()) for p in transition]
    assert_same(attention, (1 - discount) * tensor(np.stack(series)))
    value = torch.linalg.solve(torch.eye(4, **FLOAT64) - discount * transition, reward)
    found = ictd.lumped_td(
        attention,
        reward,
        transition,
        discount,
        num_steps=1,
        step_size=1 / (1 - discount),
        initial_values=100 * torch.ones_like(reward),
    )
    assert_same(found, value, tolerance=1e-11)
    factor = 1 - 0.3 * (1 - discount)
    matrix = ictd.iteration_matrix(attention, transition, discount, 0.3)
    assert_same(matrix, factor * torch.eye(4, **FLOAT64).expand(3, 4, 4))


def test_successor_attention_is_a_softmax() -> None:
    chain = ictd.boyan_chain(5, discount=0.9, generator=torch.Generator().manual_seed(1), **FLOAT64)
    best = ictd.successor_attention(chain.transition, 0.9)
    assert bool((best > 0).all())
    weights = chain.stationary_distribution()

    def score(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (best / weights).log()

    assert_same(ictd.population_attention(chain, torch.eye(5, **FLOAT64), score), best)


def test_no_attention_moves_this_eigenvalue() -> None:
    attention, transition, _ = problem(7, (50,))
    drift = ictd.drift_matrix(attention, transition, 0.9)
    ones = torch.ones(50, 4, 1, **FLOAT64)
    assert_same(drift @ ones, 0.1 * ones)
    radius = ictd.spectral_radius(ictd.iteration_matrix(attention, transition, 0.9, 0.7))
    assert bool((radius >= 1 - 0.07 - 1e-12).all())


@pytest.mark.parametrize("seed", range(4))
def test_the_interpolant_is_the_limit(seed: int) -> None:
    drawn = random_contexts(seed, closed=True, num_tokens=30, num_queries=0, num_padding=0)
    features = tensor(random_matrix(seed, 7))
    trajectory, score = drawn.trajectory(), ictd.GaussianScore(0.6)
    model = ictd.empirical_model(trajectory, 7)  # states 5 and 6 never occur
    attention = ictd.empirical_attention(trajectory, features, score)
    start = tensor(np.arange(7) / 7)
    limit = ictd.lumped_td(
        attention,
        model.reward,
        model.transition,
        1.0,
        num_steps=20_000,
        step_size=1.0,
        initial_values=start,
    )
    visited = model.counts > 0
    values = ictd.certainty_equivalence(trajectory, 7)
    found = ictd.kernel_interpolant(attention, values, visited, start)
    assert int(visited.sum()) < 7
    assert_same(found, limit, tolerance=1e-9)
    tokens = trajectory.prompt(features).with_queries(features)
    at_zero = ictd.kernel_interpolant(attention, values, visited)
    assert_same(at_zero, ictd.fixed_point(tokens, score)[-7:], tolerance=1e-9)


def test_the_interpolant_of_a_batch_is_that_of_its_items() -> None:
    attention, _, values = problem(8, (3,))
    visited = torch.tensor([[True, True, False, True], [True] * 4, [False, False, True, False]])
    attention = torch.where(visited.unsqueeze(-2), attention, 0.0)
    start = torch.ones_like(values)
    found = ictd.kernel_interpolant(attention, values, visited, start)
    for i in range(3):
        v = visited[i].numpy()
        block = attention[i].numpy()[:, v]
        coefficients = np.linalg.inv(block[v]) @ (values[i].numpy() - 1)[v]
        expected = np.where(v, values[i].numpy(), 1 + block @ coefficients)
        assert_same(found[i], tensor(expected))


# Dtypes, gradients, refusals -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_the_dtype_stays(dtype: torch.dtype) -> None:
    attention, transition, reward = (x.to(dtype) for x in problem(9, (2,)))
    if dtype == torch.float16:  # rows that sum to 1 to its accuracy
        attention, transition = (
            torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=dtype).expand(2, 2, 2) for _ in "MP"
        )
        reward = reward[:, :2]
    visited = torch.ones_like(reward) > 0
    features = reward.unsqueeze(-1)
    made = [
        ictd.lumped_attention(visited.to(dtype), features, ictd.GaussianScore(1.0)),
        ictd.lumped_td(attention, reward, transition, 0.9, num_steps=2, step_size=0.5),
        ictd.successor_attention(transition, 0.5),
        ictd.kernel_interpolant(attention, reward, visited),
        ictd.iteration_matrix(attention, transition, 0.9, 0.5),
        ictd.contraction_factor(attention, 0.9, 0.5),
        ictd.depth_bound(attention, 0.9, 0.5, 3, 1.0),
        ictd.spectral_radius(attention),
        ictd.step_size_limit(attention),
    ]
    assert {x.dtype for x in made} == {dtype}


def test_float32_is_float64_to_its_accuracy() -> None:
    attention, transition, reward = problem(10, (2,))
    for compute in (
        lambda m, p, r: ictd.lumped_td(m, r, p, 0.9, num_steps=20, step_size=0.5),
        lambda m, p, r: ictd.successor_attention(p, 0.9),
        lambda m, p, r: ictd.spectral_radius(ictd.iteration_matrix(m, p, 0.9, 0.5)),
        lambda m, p, r: ictd.contraction_factor(m, 0.9, 0.5),
    ):
        low = compute(attention.float(), transition.float(), reward.float())
        assert_same(low.double(), compute(attention, transition, reward), tolerance=1e-5)


def test_gradients() -> None:
    attention, transition, reward = (x.requires_grad_() for x in problem(11, (2,), 3))
    gamma = tensor([0.5, 0.9]).requires_grad_()
    step = tensor([0.4, 1.1]).requires_grad_()
    visited = torch.tensor([[True, True, False], [True, True, True]])
    check = torch.autograd.gradcheck
    assert check(
        lambda m, r, p, g, a: ictd.lumped_td(m, r, p, g, num_steps=3, step_size=a),
        (attention, reward, transition, gamma, step),
    )
    assert check(ictd.iteration_matrix, (attention, transition, gamma, step))
    # rows are checked to sum to 1, so they are made so
    assert check(
        lambda m, g, a: ictd.depth_bound(m.softmax(-1), g, a, 2, g), (attention, gamma, step)
    )
    assert check(lambda p, g: ictd.successor_attention(p.softmax(-1), g), (transition, gamma))
    assert check(
        lambda m, v, v0: ictd.kernel_interpolant(m, v, visited, v0), (attention, reward, reward)
    )
    assert check(
        lambda a, x: ictd.lumped_attention(a, x.unsqueeze(-1), ictd.GaussianScore(0.7)),
        (attention.detach()[..., 0].requires_grad_(), reward),
    )
    assert check(ictd.spectral_radius, (attention,))
    assert check(ictd.step_size_limit, (torch.eye(3, **FLOAT64) + attention,))


def test_refusals() -> None:
    attention, transition, reward = problem(12, (2,))
    steps: dict[str, Any] = {"num_steps": 1, "step_size": 0.5}
    score = ictd.GaussianScore(1.0)
    weights, features = torch.ones(2, 4, **FLOAT64), torch.ones(2, 4, 3, **FLOAT64)
    with refuses(ValueError, r"weights: expected finite numbers >= 0, got -1.0 at index \(1, 0\)"):
        ictd.lumped_attention(weights * tensor([[1.0], [-1.0]]), features, score)
    with refuses(ValueError, r"features: expected shape .* = \(2, 4, 3\), got \(2, 5, 3\)"):
        ictd.lumped_attention(weights, torch.ones(2, 5, 3, **FLOAT64), score)
    with refuses(TypeError, "features: expected dtype torch.float64"):
        ictd.lumped_attention(weights, features.float(), score)
    with refuses(ValueError, "score"):
        ictd.lumped_attention(weights, features, lambda q, k: q)
    with refuses(ValueError, r"trajectory: expected states < 2 \(rows of features\), got 2"):
        trajectory = ictd.Trajectory(torch.arange(3), torch.ones(3), torch.ones(3))
        ictd.empirical_attention(trajectory, torch.ones(2, 1), score)
    with refuses(ValueError, r"attention: expected shape \[\*B, m, m\], m >= 1, got \(2, 4\)"):
        ictd.kernel_diagonality(reward)
    with refuses(ValueError, r"transition: expected shape .* got \(4, 4\)"):
        ictd.lumped_td(attention, reward, transition[0], 0.9, **steps)
    with refuses(ValueError, r"reward: expected shape \[\*B, m\] = \(2, 4\), got \(4,\)"):
        ictd.lumped_td(attention, reward[0], transition, 0.9, **steps)
    with refuses(TypeError, "initial_values: expected dtype torch.float64"):
        ictd.lumped_td(attention, reward, transition, 0.9, initial_values=reward.float(), **steps)
    with refuses(ValueError, r"discount: expected a number in \[0, 1\], got 1.5"):
        ictd.lumped_td(attention, reward, transition, 1.5, **steps)
    with refuses(ValueError, r"discount: expected shape \[\*B\] = \(2,\), got \(3,\)"):
        ictd.drift_matrix(attention, transition, tensor([0.9] * 3))
    with refuses(ValueError, "num_steps: expected an integer >= 0, got -1"):
        ictd.lumped_td(attention, reward, transition, 0.9, num_steps=-1, step_size=0.5)
    with refuses(ValueError, "step_size: expected a finite number >= 0, got -0.5"):
        ictd.iteration_matrix(attention, transition, 0.9, -0.5)
    with refuses(ValueError, "step_size: expected finite numbers >= 0, got inf at index"):
        ictd.contraction_factor(attention, 0.9, tensor([0.5, torch.inf]))
    with refuses(ValueError, r"attention: expected rows that sum to 1 .* at index \(0, 0\)"):
        ictd.contraction_factor(attention / 2, 0.9, 0.5)
    with refuses(ValueError, "visited: expected shape"):
        ictd.contraction_factor(attention, 0.9, 0.5, visited=torch.ones(4) > 0)
    with refuses(ValueError, "initial_error: expected a finite number >= 0, got -1"):
        ictd.depth_bound(attention, 0.9, 0.5, 2, -1.0)
    with refuses(ValueError, "num_layers: expected an integer >= 0"):
        ictd.depth_bound(attention, 0.9, 0.5, -2, 1.0)
    with refuses(ValueError, "discount: expected a number below 1, got 1.0"):
        ictd.successor_attention(transition, 1.0)
    with refuses(ValueError, r"discount: expected a number below 1, got 1.0 at index \(1,\)"):
        ictd.successor_attention(transition, tensor([0.5, 1.0]))
    with refuses(ValueError, "transition: expected rows that sum to 1"):
        ictd.successor_attention(0.9 * transition, 0.5)
    visited = torch.ones(2, 4) > 0
    with refuses(ValueError, "attention: expected coefficients of the visited states .* condition"):
        ictd.kernel_interpolant(torch.full_like(attention, 0.25), reward, visited)
    with refuses(ValueError, r"values: expected finite entries, got nan at index \(0, 0\)"):
        ictd.kernel_interpolant(attention, reward * torch.nan, visited)
    with refuses(ValueError, "matrix: expected shape"):
        ictd.spectral_radius(reward)
