"""The numbered results of chapter 1, on random problems, and what happens without an assumption.

The contraction of the Bellman operator is in ``test_mrp.py``. What a record says is counted here
with loops, apart from the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import ictd
from reference import mrp as reference
from reference.td import Array, Mask
from strategies import assert_same, tensor

GAMMA = 0.8


@dataclass(frozen=True)
class Empirical:
    """Counts, mean rewards and discounted frequencies of a record; 0 at states never left."""

    counts: Array
    reward: Array
    transition: Array

    @property
    def sources(self) -> Mask:
        return self.counts > 0


def empirical(record: ictd.Trajectory, num_states: int) -> Empirical:
    """Count, transition by transition."""
    counts, reward = np.zeros(num_states), np.zeros(num_states)
    transition = np.zeros((num_states, num_states))
    states = record.states.tolist()
    for j in range(len(states) - 1):
        if record.is_transition[j]:
            counts[states[j]] += 1
            reward[states[j]] += float(record.rewards[j])
            transition[states[j], states[j + 1]] += float(record.discounts[j])
    known = np.maximum(counts, 1)
    return Empirical(counts, reward / known, transition / known[:, None])


def records(
    seed: int, count: int, num_steps: int, num_states: int = 6
) -> Iterator[tuple[ictd.MarkovRewardProcess, ictd.Trajectory]]:
    """Random Boyan's chains, each with one trajectory, as it was cut off."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        mrp = ictd.boyan_chain(num_states, discount=GAMMA, generator=generator, dtype=torch.float64)
        yield mrp, mrp.sample(num_steps, generator=generator)


def record(
    states: list[int], rewards: list[float], discounts: list[float], *, terminal: bool = False
) -> ictd.Trajectory:
    """One episode, with a reward and a discount for each transition."""
    is_terminal = torch.zeros(len(states), dtype=torch.bool)
    is_terminal[-1] = terminal
    return ictd.Trajectory(
        torch.tensor(states),
        tensor([*rewards, 0.0]),
        tensor([*discounts, 0.0]),
        is_terminal=is_terminal,
    )


def random_chain(rng: np.random.Generator, num_states: int) -> Array:
    """A positive stochastic matrix."""
    weights: Array = rng.random((num_states, num_states)) + 0.01
    transition: Array = weights / weights.sum(-1, keepdims=True)
    return transition


def stationary(transition: Array) -> Array:
    """The stationary distribution, by the reference's exact fractions."""
    return np.array([float(share) for share in reference.stationary_distribution(transition)])


# Values without discount -----------------------------------------------------------------------


@pytest.mark.claim("prop-absorbing")
def test_values_without_discount() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        m = int(rng.integers(2, 7))
        transition = rng.random((m, m)) ** 4
        transition[: m - 2, -1] = 0.0  # only one state leads to the end
        transition /= transition.sum(-1, keepdims=True)
        reward, terminal = rng.normal(size=m), np.arange(m) == m - 1
        mrp = ictd.MarkovRewardProcess(
            tensor(transition), tensor(reward), 1.0, terminal=torch.as_tensor(terminal)
        )
        onward = np.where(terminal | terminal[:, None], 0.0, transition)
        survive = float(np.linalg.matrix_power(onward, m).sum(-1).max())
        assert survive < 1
        value = mrp.value()
        series, power = np.where(terminal, 0.0, reward), onward
        for _ in range(60):  # the first 2, 4, 8, ... terms of the sum of P^i r
            series, power = series + power @ series, power @ power
        assert_same(value, tensor(series), 1e-9)
        v = tensor(np.where(terminal, 0.0, 10 * rng.normal(size=m)))
        distance = float((v - value).abs().max())
        for _ in range(3 * m):
            v = mrp.bellman(v)
        assert float((v - value).abs().max()) <= survive**3 * distance + 1e-9


@pytest.mark.claim("prop-absorbing")
def test_no_value_without_discount_if_a_state_cannot_end() -> None:
    transition = tensor([[1.0, 0.0, 0.0], [0.5, 0.0, 0.5], [0.0, 0.0, 1.0]])
    terminal = torch.tensor([False, False, True])
    stuck = ictd.MarkovRewardProcess(
        transition, torch.ones(3, dtype=torch.float64), 1.0, terminal=terminal
    )
    with pytest.raises(ValueError, match="discount: expected a number < 1"):
        stuck.value()
    v = torch.zeros(3, dtype=torch.float64)
    for _ in range(50):
        v = stuck.bellman(v)
    assert v[0] == 50


# TD and gradients ------------------------------------------------------------------------------


def expected_update(transition: Array, reward: Array, gamma: float, weights: Array) -> Array:
    """E[delta e_S] of tabular TD(0), summed over all pairs of states."""
    update = np.zeros(len(reward))
    mu = stationary(transition)
    for s in range(len(reward)):
        for u in range(len(reward)):
            error = reward[s] + gamma * weights[u] - weights[s]
            update[s] += mu[s] * transition[s, u] * error
    return update


def jacobian(transition: Array, gamma: float) -> Array:
    """The derivative of the expected update, which is affine, column by column."""
    m = len(transition)
    origin = expected_update(transition, np.zeros(m), gamma, np.zeros(m))
    columns = [expected_update(transition, np.zeros(m), gamma, e) - origin for e in np.eye(m)]
    return np.stack(columns, axis=-1)


@pytest.mark.claim("prop-semi-gradient")
def test_gradient_iff_reversible() -> None:
    rng = np.random.default_rng(1)
    for _ in range(30):
        m, gamma = int(rng.integers(3, 6)), rng.uniform(0.1, 0.99)
        weights = rng.random((m, m)) + 0.01
        walk = weights + weights.T
        walk /= walk.sum(-1, keepdims=True)
        symmetric = jacobian(walk, gamma)
        np.testing.assert_allclose(symmetric, symmetric.T, atol=1e-13)
        # The function it descends is -b.w + w.A.w / 2.
        reward, w = rng.normal(size=m), rng.normal(size=m)
        update = expected_update(walk, reward, gamma, w)
        potential = [
            -x @ symmetric @ x / 2 - (stationary(walk) * reward) @ x
            for e in np.eye(m)
            for x in (w + 1e-5 * e, w - 1e-5 * e)
        ]
        slope = -np.diff(potential)[::2] / 2e-5
        np.testing.assert_allclose(update, -slope, atol=1e-8)
        flow = stationary(chain := random_chain(rng, m))[:, None] * chain
        asymmetry = jacobian(chain, gamma) - jacobian(chain, gamma).T
        np.testing.assert_allclose(asymmetry, gamma * (flow - flow.T), atol=1e-13)
        assert np.abs(asymmetry).max() > 1e-4


@pytest.mark.claim("prop-semi-gradient")
def test_a_td_step_is_not_the_gradient_of_the_squared_error() -> None:
    # C7: phi = e_1, phi' = e_2, w = (1, 1), R = 0, gamma = .9.
    weights = torch.ones(2, dtype=torch.float64, requires_grad=True)
    error = 0.9 * weights[1] - weights[0]
    (gradient,) = torch.autograd.grad(error.square() / 2, weights)
    prompt = ictd.Prompt(
        torch.eye(2, dtype=torch.float64),
        tensor([0.0, 0.0]),
        tensor([0.9, 0.0]),
        torch.tensor([True, False]),
    )
    start = torch.ones(2, dtype=torch.float64)
    step = ictd.online_td(prompt, step_size=1.0, initial_weights=start) - start
    assert error.item() == pytest.approx(-0.1)
    assert_same(-step, tensor([0.1, 0.0]))
    assert_same(gradient, tensor([0.1, -0.09]))


# On-policy linear TD ---------------------------------------------------------------------------


@pytest.mark.claim("thm-linear-td")
def test_on_policy_contraction() -> None:
    rng = np.random.default_rng(2)
    slack = []
    for _ in range(300):
        m = int(rng.integers(1, 7))
        d, gamma = int(rng.integers(1, m + 1)), rng.uniform(0, 0.99)
        transition, phi = random_chain(rng, m), rng.normal(size=(m, d))
        mu = np.diag(stationary(transition))
        covariance = phi.T @ mu @ phi
        matrix = phi.T @ mu @ (np.eye(m) - gamma * transition) @ phi
        low, *_, high = [*np.linalg.eigvalsh(covariance), np.linalg.eigvalsh(covariance)[-1]]
        for step in np.array([0.01, 0.5, 1.0]) / high:
            norm = float(np.linalg.norm(np.eye(d) - step * matrix, 2))
            bound = 1 - step * (1 - gamma) * low
            assert norm <= bound + 1e-12
            slack.append(bound - norm)
        x = rng.normal(size=m)
        shrunk = gamma * transition @ x
        assert shrunk @ mu @ shrunk <= gamma**2 * (x @ mu @ x) + 1e-12
        short = phi / np.maximum(np.linalg.norm(phi, axis=-1, keepdims=True), 1)
        assert np.linalg.eigvalsh(short.T @ mu @ short)[-1] <= 1 + 1e-12
    assert min(slack) < 1e-12  # attained: one feature that is constant


@pytest.mark.claim("thm-linear-td")
def test_contraction_for_weights_that_are_not_stationary() -> None:
    rng = np.random.default_rng(11)
    for _ in range(200):
        m = int(rng.integers(2, 7))
        d, gamma = int(rng.integers(1, m + 1)), rng.uniform(0, 0.99)
        # Visits of a chain that ends and starts again: only mu P <= mu and row sums <= 1 hold.
        onward = random_chain(rng, m) * rng.uniform(0, 1, size=(m, 1))
        visits = np.linalg.solve(np.eye(m) - onward.T, rng.dirichlet(np.ones(m)))
        mu, phi = visits / visits.sum(), rng.normal(size=(m, d))
        assert (mu @ onward <= mu + 1e-12).all()
        covariance = phi.T @ (mu[:, None] * phi)
        matrix = phi.T @ (mu[:, None] * ((np.eye(m) - gamma * onward) @ phi))
        eigenvalues = np.linalg.eigvalsh(covariance)
        step = 1 / eigenvalues[-1]
        norm = float(np.linalg.norm(np.eye(d) - step * matrix, 2))
        assert norm <= 1 - step * (1 - gamma) * eigenvalues[0] + 1e-12
        # A feature twice: a direction of the weights is invisible, and nothing contracts it.
        double = np.concatenate([phi, phi[:, :1]], axis=1)
        matrix = double.T @ (mu[:, None] * ((np.eye(m) - gamma * onward) @ double))
        assert np.linalg.norm(np.eye(d + 1) - step / 2 * matrix, 2) >= 1 - 1e-12


@pytest.mark.claim("thm-linear-td")
@pytest.mark.claim("cor-batch-linear")
def test_off_policy_linear_td_can_diverge() -> None:
    # The record arrives in state 1 and never leaves it, so it is not balanced.
    runaway = record([0, 1], [1.0], [0.9]).prompt(tensor([[1.0], [2.0]]))
    for step in (0.01, 0.5, 1.0):
        history = ictd.linear_td(runaway, num_steps=30, step_size=step, return_history=True)
        increments = history[:, 0].diff()
        assert_same(increments[1:] / increments[:-1], tensor([1 + 0.8 * step] * 29))


# Batch TD and its limits -----------------------------------------------------------------------


@pytest.mark.claim("thm-certainty-equivalence")
def test_batch_td_limit() -> None:
    for _, cut in records(3, 40, 50):
        closed = cut.trim()
        model = empirical(closed, 6)
        seen, n = model.sources, model.counts.sum()
        if n == 0:
            continue
        # Certainty equivalence is the value of the process that replays the record.
        system = np.eye(6)[seen][:, seen] - model.transition[seen][:, seen]
        v_hat = np.linalg.solve(system, model.reward[seen])
        found = ictd.certainty_equivalence(closed, 6)
        assert_same(found[torch.as_tensor(seen)], tensor(v_hat), 1e-10)
        assert found[torch.as_tensor(~seen)].isnan().all()
        replay = model.transition[seen][:, seen] / GAMMA
        process = ictd.MarkovRewardProcess(tensor(replay), tensor(model.reward[seen]), GAMMA)
        assert_same(process.value(), tensor(v_hat), 1e-10)
        # The rate, at the largest step that the theorem allows.
        start = 3 * torch.randn(6, generator=torch.Generator().manual_seed(0)).double()
        step = n / model.counts.max()
        history = ictd.tabular_td(
            closed,
            6,
            num_steps=40,
            step_size=float(step),
            initial_values=start,
            return_history=True,
        )
        error = (history - found[closed.states])[:, closed.is_transition].abs().amax(-1)
        rate = 1 - step * (1 - GAMMA) * model.counts[seen].min() / n
        assert (error <= error[0] * tensor(rate ** np.arange(41)) + 1e-12).all()


@pytest.mark.claim("thm-certainty-equivalence")
def test_batch_td_keeps_what_it_never_leaves_and_diverges_if_the_step_is_too_large() -> None:
    start = tensor([1.0, 2.0, 7.0])
    ended = record([0, 1, 2], [1.0, 10.0], [0.5, 0.0])
    values = ictd.tabular_td(ended, 3, num_steps=200, step_size=1.0, initial_values=start)
    assert_same(values, tensor([6.0, 10.0, 7.0]))  # C5; state 2 is not known to be terminal
    loop = record([0, 1, 0], [1.0, -1.0], [0.9, 0.9])
    limit = ictd.certainty_equivalence(loop, 2)[loop.states]
    inside, outside = (
        ictd.tabular_td(loop, 2, num_steps=2000, step_size=factor * 4 / 1.9)
        for factor in (0.99, 1.01)
    )
    assert_same(inside, limit, 1e-9)
    assert (outside - limit).abs().max() > 1e9


@pytest.mark.claim("prop-lstd")
def test_lstd_full_features() -> None:
    rng = np.random.default_rng(4)
    for _, cut in records(4, 40, 60):
        closed = cut.trim()
        v_hat = ictd.certainty_equivalence(closed, 6)
        seen = v_hat.isfinite()
        d = int(seen.sum())
        if d == 0:
            continue
        for basis in (np.eye(d), rng.normal(size=(d, d)) + 2 * np.eye(d)):
            phi = torch.zeros(6, d, dtype=torch.float64)
            phi[seen] = tensor(basis)
            assert_same((phi @ ictd.lstd(closed.prompt(phi)))[seen], v_hat[seen], 1e-7)


@pytest.mark.claim("prop-lstd")
def test_lstd_with_too_few_features_is_something_else() -> None:
    steps = record([0, 1, 0, 0], [2.0, 4.0, 6.0], [0.5, 0.5, 0.5])
    assert_same(ictd.certainty_equivalence(steps, 2), tensor([8.0, 8.0]))
    phi = tensor([[1.0], [2.0]])
    # A = 1 (1 - 1) + 2 (2 - .5) + 1 (1 - .5) and b = 2 + 8 + 6, by hand.
    assert_same(ictd.lstd(steps.prompt(phi)), tensor([16 / 3.5]))


@pytest.mark.claim("cor-batch-linear")
def test_balanced_records() -> None:
    generator = torch.Generator().manual_seed(5)
    checked = 0
    for _, cut in records(5, 40, 80):
        end = int((cut.states == cut.states[0]).nonzero()[-1])
        if end < 10:
            continue
        loop = ictd.Trajectory(
            cut.states[: end + 1], cut.rewards[: end + 1], cut.discounts[: end + 1]
        )
        phi = ictd.unit_sphere_features(6, 2, generator=generator, dtype=torch.float64)
        prompt = loop.prompt(phi)
        sources = prompt.features[:-1]
        low = float(torch.linalg.eigvalsh(sources.mT @ sources / end)[0])
        weights = ictd.lstd(prompt)
        for steps in (1, 50):
            values = ictd.linear_td(prompt, num_steps=steps, step_size=1.0)
            error = float((values - prompt.features @ weights).abs().max())
            bound = (1 - (1 - GAMMA) * low) ** steps * float(weights.norm())
            assert error <= bound + 1e-10
        checked += 1
    assert checked > 20


@pytest.mark.claim("cor-batch-linear")
def test_batch_linear_td_on_terminated_episodes() -> None:
    walk = ictd.random_walk(5, discount=0.9, dtype=torch.float64)
    generator = torch.Generator().manual_seed(6)
    played = walk.sample(200, generator=generator, start=3)
    assert played.is_terminal is not None
    end = int(played.is_terminal.nonzero()[-1]) + 1
    is_terminal = played.is_terminal[:end]
    whole = ictd.Trajectory(
        played.states[:end],
        played.rewards[:end],
        played.discounts[:end],
        played.is_transition[:end],
        is_terminal,
    )
    phi = ictd.unit_sphere_features(7, 2, generator=generator, dtype=torch.float64)
    prompt = whole.prompt(phi)
    values = ictd.linear_td(prompt, num_steps=2000, step_size=1.0)
    expected = torch.where(is_terminal, 0.0, prompt.features @ ictd.lstd(prompt))
    assert_same(values, expected, 1e-8)


@pytest.mark.claim("prop-open-context")
def test_open_records() -> None:
    rng = np.random.default_rng(7)
    checked = 0
    for _, cut in records(7, 80, 12, num_states=8):
        model = empirical(cut, 8)
        v, u = model.sources, ~model.sources
        if v[int(cut.states[-1])]:
            continue
        with pytest.raises(ValueError, match="closure"):
            ictd.certainty_equivalence(cut, 8)
        guess = 10 * rng.normal(size=8)
        step = float(model.counts.sum() / model.counts.max())
        inner = np.eye(int(v.sum())) - model.transition[v][:, v]
        payment = model.reward[v] + model.transition[v][:, u] @ guess[u]
        expected = guess.copy()
        expected[v] = np.linalg.solve(inner, payment)
        limit = ictd.tabular_td(cut, 8, num_steps=900, step_size=step, initial_values=tensor(guess))
        assert_same(limit, tensor(expected)[cut.states], 1e-8)
        # The iteration matrix on all states that occur has the eigenvalue 1.
        share = np.diag(model.counts / model.counts.sum())
        iteration = np.eye(8) - share @ (np.eye(8) - model.transition)
        assert np.abs(np.linalg.eigvals(iteration) - 1).min() < 1e-12
        checked += 1
    assert checked > 5


@pytest.mark.claim("prop-open-context")
def test_the_guess_matters_only_where_it_can_be_reached() -> None:
    # Episodes 0 1 0, 2 3 and 4 2; the last has no discount, so nothing is read through it.
    context = ictd.Trajectory(
        torch.tensor([0, 1, 0, 2, 3, 4, 2]),
        tensor([1.0, 2.0, 0.0, 3.0, 0.0, 4.0, 0.0]),
        tensor([0.9, 0.9, 0.0, 0.9, 0.0, 0.0, 0.0]),
        torch.tensor([True, True, False, True, False, True, False]),
    )
    for guess in (0.0, 10.0):
        start = tensor([5.0, 5.0, 5.0, guess, 5.0])
        values = ictd.tabular_td(context, 5, num_steps=2000, step_size=1.0, initial_values=start)
        first, second = (1 + 0.9 * 2) / (1 - 0.81), (2 + 0.9) / (1 - 0.81)
        reached = 3 + 0.9 * guess
        expected = tensor([first, second, first, reached, guess, 4.0, reached])
        assert_same(values, expected, 1e-9)


@pytest.mark.claim("prop-open-context")
def test_terminated_and_trimmed_records_forget_the_guess() -> None:
    # C6: five steps that pay 1, at gamma = .9, towards a state that is worth 10.
    truncated = record(list(range(6)), [1.0] * 5, [0.9] * 5)
    terminated = record(list(range(6)), [1.0] * 5, [0.9] * 4 + [0.0], terminal=True)
    for guess, first in ((10.0, 10.0), (0.0, 4.0951)):
        start = tensor([0.0, 0.0, 0.0, 0.0, 0.0, guess])
        for steps, expected in ((truncated, first), (terminated, 4.0951)):
            values = ictd.tabular_td(steps, 6, num_steps=400, step_size=1.0, initial_values=start)
            assert float(values[0]) == pytest.approx(expected, abs=1e-10)
    for _, cut in records(8, 30, 12, num_states=8):
        trimmed = cut.trim()
        model = empirical(trimmed, 8)
        assert not model.transition[:, ~model.sources].any()


# Data ------------------------------------------------------------------------------------------


@pytest.mark.claim("prop-consistency")
def test_error_of_the_data() -> None:
    for mrp, cut in records(9, 60, 80):
        closed = cut.trim()
        model, v_pi = empirical(closed, 6), mrp.value().numpy()
        seen = model.sources
        xi = np.zeros(6)
        for j in range(len(closed) - 1):
            s, u = int(closed.states[j]), int(closed.states[j + 1])
            error = float(closed.rewards[j]) + float(closed.discounts[j]) * v_pi[u] - v_pi[s]
            xi[s] += error / model.counts[s]
        if not seen.any():
            continue
        difference = ictd.certainty_equivalence(closed, 6).numpy() - v_pi
        resolved = np.linalg.solve(
            np.eye(int(seen.sum())) - model.transition[seen][:, seen], xi[seen]
        )
        np.testing.assert_allclose(difference[seen], resolved, atol=1e-10)
        assert np.abs(resolved).max() <= np.abs(xi).max() / (1 - GAMMA) + 1e-12


@pytest.mark.claim("prop-consistency")
def test_certainty_equivalence_is_consistent_on_irreducible_chains_only() -> None:
    generator = torch.Generator().manual_seed(10)
    chains = ictd.boyan_chain(
        5, discount=GAMMA, batch_shape=(100,), generator=generator, dtype=torch.float64
    )
    long = chains.sample(6400, generator=generator)
    errors = []
    for n in (400, 1600, 6400):
        fields = (x[:, : n + 1] for x in (long.states, long.rewards, long.discounts))
        v_hat = ictd.certainty_equivalence(ictd.Trajectory(*fields).trim(), 5)
        errors.append(float((v_hat - chains.value()).square().nanmean().sqrt()))
    assert errors[1] < errors[0] / 1.5
    assert errors[2] < errors[1] / 1.5
    fork = ictd.MarkovRewardProcess(
        tensor([[0.0, 0.5, 0.5], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), tensor([0.0, 1.0, 0.0]), 0.5
    )
    assert_same(fork.value(), tensor([0.5, 2.0, 0.0]))
    for _ in range(10):
        once = fork.sample(500, generator=generator, start=0)
        assert abs(float(ictd.certainty_equivalence(once, 3)[0]) - 0.5) == pytest.approx(0.5)
