"""How far certainty equivalence is from the value: the bounds, the intervals, what they cover."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

import ictd
from reference import convergence as reference
from strategies import assert_same, contexts, quick, refuses, tensor

FLOAT64: dict[str, Any] = {"dtype": torch.float64}
GAMMA, STATES = 0.9, 5


def chains(
    seed: int, size: int, num_steps: int, *, noisy: bool = False, num_states: int = STATES
) -> tuple[ictd.MarkovRewardProcess, ictd.Trajectory]:
    """Boyan's chains, each with a closed context; noisy rewards are ±1 with the right mean."""
    generator = torch.Generator().manual_seed(seed)
    mrp = ictd.boyan_chain(
        num_states, discount=GAMMA, generator=generator, batch_shape=(size,), **FLOAT64
    )
    if noisy:
        mrp = ictd.MarkovRewardProcess(mrp.transition, mrp.reward.tanh(), GAMMA)
    drawn = mrp.sample(num_steps, generator=generator)
    rewards = drawn.rewards
    if noisy:
        up = torch.rand(rewards.shape, generator=generator, **FLOAT64) < (1 + rewards) / 2
        rewards = torch.where(up, 1.0, -1.0).double()
    fields = drawn.states, rewards, drawn.discounts, drawn.is_transition, drawn.is_terminal
    return mrp, ictd.Trajectory(*fields).trim()


def cards(
    trajectory: ictd.Trajectory, values: torch.Tensor, num_states: int
) -> tuple[list[list[float]], np.ndarray[Any, Any]]:
    """The targets of each state, by the loop, and which states were seen as terminal."""
    end = trajectory.is_terminal
    ended = np.zeros(len(trajectory), dtype=bool) if end is None else end.numpy()
    fields = trajectory.states, trajectory.rewards, trajectory.discounts, trajectory.is_transition
    numbers = [x.numpy() for x in fields]
    found = reference.targets(*numbers, ended, values.numpy(), num_states)
    terminal = np.isin(np.arange(num_states), numbers[0][ended])
    return found, terminal


# The spread and the bound by counts --------------------------------------------------------------


def test_the_spread_by_hand() -> None:
    values = tensor([[1.0, 3.0, -1.0], [0.0, 2.0, 2.0]])
    assert_same(ictd.target_spread(values, 0.5), tensor([2.0, 1.0]))
    assert_same(ictd.target_spread(values, 0.5, reward_bound=4.0), tensor([10.0, 9.0]))
    gamma, most = tensor([0.5, 0.25]), tensor([1.0, 0.0])
    assert_same(ictd.target_spread(values, gamma, most), tensor([4.0, 0.5]))


@pytest.mark.parametrize("noisy", [False, True])
def test_no_two_targets_are_further_apart(noisy: bool) -> None:
    mrp, trajectories = chains(0, 20, 200, noisy=noisy)
    spread = ictd.target_spread(mrp.value(), GAMMA, reward_bound=1.0 if noisy else None)
    ratios = []
    for trajectory, value, b in zip(trajectories, mrp.value(), spread, strict=True):
        drawn = cards(trajectory, value, STATES)[0]
        widest = max(max(c) - min(c) for c in drawn if c)
        assert widest <= float(b) + 1e-12
        ratios.append(widest / float(b))
    assert max(ratios) > 0.95


def test_the_bound_against_the_loop() -> None:
    _, trajectories = chains(1, 5, 60)
    for trajectory in trajectories:
        model = ictd.empirical_model(trajectory, STATES + 1)
        counts, transition = model.counts.numpy(), model.transition.numpy()
        norm = ictd.context_bound(model.counts, 2.0, GAMMA, 0.9, 60)
        assert_same(norm, tensor(reference.context_bound(counts, 2.0, GAMMA, 0.9, 60)))
        each = ictd.context_bound(model.counts, 2.0, GAMMA, 0.9, 60, transition=model.transition)
        widths = np.array(reference.widths(counts, 2.0, 0.9, 60))
        expected = np.where(counts > 0, reference.resolvent(transition) @ widths, np.nan)
        assert torch.equal(each.isnan(), model.counts == 0)
        assert_same(each.nan_to_num(), tensor(expected).nan_to_num())
        assert float(each.nan_to_num().max()) <= float(norm) + 1e-12


def test_the_bound_by_hand() -> None:
    # log(2·1·50/.5) = log 200
    counts = tensor([8.0])
    expected = 3 * np.sqrt(np.log(200) / 16)
    assert_same(ictd.context_bound(counts, 3.0, 0.5, 0.5, 50), tensor(2 * expected))
    found = ictd.context_bound(counts, 3.0, 0.5, 0.5, 50, transition=tensor([[0.25]]))
    assert_same(found, tensor([expected / 0.75]))


def test_the_error_is_the_error_of_the_mean_targets() -> None:
    mrp, trajectories = chains(2, 10, 80, noisy=True)
    for trajectory, value in zip(trajectories, mrp.value(), strict=True):
        model = ictd.empirical_model(trajectory, STATES)
        visited = model.counts > 0
        drawn = cards(trajectory, value, STATES)[0]
        pairs = zip(drawn, value.tolist(), strict=True)
        xi = np.array([np.mean(c) - v if c else 0.0 for c, v in pairs])
        expected = reference.resolvent(model.transition.numpy()) @ xi
        error = ictd.certainty_equivalence(trajectory, STATES) - value
        assert_same(error[visited], tensor(expected)[visited], tolerance=1e-11)


@pytest.mark.parametrize("noisy", [False, True])
def test_the_bound_covers(noisy: bool) -> None:
    mrp, trajectories = chains(3, 400, 300, noisy=noisy)
    spread = ictd.target_spread(mrp.value(), GAMMA, reward_bound=1.0 if noisy else None)
    model = ictd.empirical_model(trajectories, STATES)
    each = ictd.context_bound(model.counts, spread, GAMMA, 0.9, 300, transition=model.transition)
    norm = ictd.context_bound(model.counts, spread, GAMMA, 0.9, 300)
    error = (ictd.certainty_equivalence(trajectories, STATES) - mrp.value()).abs().nan_to_num()
    assert bool((each.nan_to_num() <= norm.unsqueeze(-1) + 1e-12).all())
    ratio = (error / each).nan_to_num().amax(-1)
    assert float((ratio > 1).double().mean()) <= 0.1
    assert float(ratio.max()) > 0.1  # it is a bound of this error, not of something far larger


def test_the_hoeffding_width_is_needed() -> None:
    # one state, one possible number of visits: fair coins miss, and too often with less width
    generator = torch.Generator().manual_seed(4)
    coins = (torch.rand(20_000, 40, generator=generator) < 0.5).double()
    width = ictd.context_bound(tensor([40.0]), 1.0, 0.0, 0.9, 1)
    off = (coins.mean(-1) - 0.5).abs()
    assert 0.01 < float((off > width).double().mean()) <= 0.1
    assert float((off > 0.6 * width).double().mean()) > 0.1


# The bound from the data alone -------------------------------------------------------------------


def bound(trajectory: ictd.Trajectory, num_states: int = STATES, **changed: Any) -> torch.Tensor:
    given = {"discount": GAMMA, "reward_bound": 1.0, "confidence": 0.9, **changed}
    return ictd.componentwise_bound(trajectory, num_states, **given)


@pytest.mark.parametrize("num_states", [STATES, STATES + 1])
@pytest.mark.parametrize("num_iterations", [0, 1, 5])
def test_the_computable_bound_against_the_loop(num_states: int, num_iterations: int) -> None:
    _, trajectories = chains(5, 3, 3_000, noisy=True)
    for trajectory in trajectories:
        trajectory = ictd.Trajectory(  # discounts that leave something below the first bound
            trajectory.states,
            trajectory.rewards / 4,
            torch.full_like(trajectory.rewards, 0.3),
        )
        values = ictd.certainty_equivalence(trajectory, num_states)
        drawn, terminal = cards(trajectory, values.nan_to_num(), num_states)
        model = ictd.empirical_model(trajectory, num_states)
        expected = reference.componentwise_bound(
            drawn,
            model.transition.numpy(),
            values.numpy(),
            terminal,
            0.3,
            0.25,
            0.9,
            3_000,
            num_iterations,
        )
        found = bound(
            trajectory,
            num_states,
            discount=0.3,
            reward_bound=0.25,
            num_steps=3_000,
            num_iterations=num_iterations,
        )
        assert_same(found.nan_to_num(), tensor(expected).nan_to_num())
        assert torch.equal(found.isnan(), tensor(expected).isnan())
        if num_iterations:
            assert float(found.nan_to_num().max()) < 2 * 0.25 / 0.7


def terminating(seed: int, num_steps: int) -> tuple[ictd.MarkovRewardProcess, ictd.Trajectory]:
    """A random walk that ends at one side."""
    transition = tensor([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0]])
    terminal = torch.tensor([False, False, True])
    mrp = ictd.MarkovRewardProcess(transition, tensor([0.2, 0.1, 0.0]), 0.5, terminal=terminal)
    return mrp, mrp.sample(num_steps, generator=torch.Generator().manual_seed(seed)).trim()


def test_the_computable_bound_of_episodes() -> None:
    mrp, trajectory = terminating(0, 20_000)
    values = ictd.certainty_equivalence(trajectory, 3)
    drawn, terminal = cards(trajectory, values.nan_to_num(), 3)
    model = ictd.empirical_model(trajectory, 3)
    found = bound(trajectory, 3, discount=0.5, reward_bound=0.2, num_steps=20_000)
    numbers = model.transition.numpy(), values.numpy(), terminal
    expected = reference.componentwise_bound(drawn, *numbers, 0.5, 0.2, 0.9, 20_000, 100)
    assert_same(found, tensor(expected))
    assert float(found[2]) == 0.0
    assert bool(((values - mrp.value()).abs() <= found).all())
    assert float(found.max()) < 0.1


def test_the_computable_bound_is_monotone() -> None:
    _, (trajectory,) = chains(6, 1, 30_000)
    trajectory = ictd.Trajectory(
        trajectory.states, trajectory.rewards, torch.full_like(trajectory.rewards, 0.5)
    )
    most = float(trajectory.rewards.abs().max())
    common = {"discount": 0.5, "reward_bound": most}
    steps = [bound(trajectory, num_iterations=i, **common) for i in (0, 1, 2, 5, 20, 100, 200)]
    assert_same(steps[0], torch.full((STATES,), 4 * most, **FLOAT64))
    for larger, smaller in itertools.pairwise(steps):
        assert bool((smaller <= larger).all())
    assert float(steps[1].max()) > 1.05 * float(steps[-1].max())
    assert_same(steps[-2], steps[-1], tolerance=1e-6)  # a fixed point
    best = steps[-1]
    for wider in (
        {"reward_bound": 1.1 * most},
        {"confidence": 0.99},
        {"num_steps": 10**6},
    ):
        assert bool((bound(trajectory, **{**common, **wider}) > best).all())


@pytest.mark.parametrize("discount", [0.5, GAMMA])
def test_the_computable_bound_covers(discount: float) -> None:
    mrp, drawn = chains(7, 50, 5_000)
    mrp = ictd.MarkovRewardProcess(mrp.transition, mrp.reward, discount)
    gamma = torch.where(drawn.is_transition, discount, 0.0).double()
    trajectories = ictd.Trajectory(drawn.states, drawn.rewards, gamma, drawn.is_transition)
    most = mrp.reward.abs().amax(-1)
    found = bound(trajectories, discount=discount, reward_bound=most, num_steps=5_000)
    error = (ictd.certainty_equivalence(trajectories, STATES) - mrp.value()).abs()
    assert not bool((error > found).any())
    assert not bool((found > 2 * most.unsqueeze(-1) / (1 - discount) + 1e-12).any())


def test_the_spread_shrinks_only_when_every_state_was_seen() -> None:
    states = torch.arange(40_001) % 2
    trajectory = ictd.Trajectory(states, 1.0 - states.double(), torch.full((40_001,), 0.9).double())
    common = {"num_steps": 40_000, "confidence": 0.9}
    all_seen = bound(trajectory, 2, **common)
    # the same x = log(3 m n / δ): three states with the confidence that makes up for it
    missing = bound(trajectory, 3, **{**common, "confidence": 1 - 0.1 * 3 / 2})
    assert bool((all_seen < missing[:2]).all())
    assert bool(missing[2].isnan())


# The interval to show ----------------------------------------------------------------------------


@quick
@given(drawn=contexts(closed=True, num_queries=0, num_padding=0))
def test_the_interval_against_the_loop(drawn: Any) -> None:
    trajectories, num_states = drawn.trajectory(), 6
    values, widths = ictd.plug_in_interval(trajectories, num_states, confidence=0.9)
    together = ictd.plug_in_interval(trajectories, num_states, confidence=0.9, simultaneous=True)[1]
    every = ictd.certainty_equivalence(trajectories, num_states)
    model = ictd.empirical_model(trajectories, num_states)
    assert_same(values.nan_to_num(), every.nan_to_num())
    for index in np.ndindex(drawn.batch_shape):
        found = cards(trajectories[index], every[index].nan_to_num(), num_states)[0]
        number = sum(bool(c) for c in found)
        for actual, tail in ((widths, 0.05), (together, 0.05 / max(number, 1))):
            expected = reference.plug_in_width(found, model.transition[index].numpy(), tail)
            for s in range(num_states):
                if every[index][s].isnan():
                    assert bool(actual[index][s].isnan())
                else:
                    assert float(actual[index][s]) == pytest.approx(expected[s], abs=1e-7)


def test_a_state_seen_once_has_no_width() -> None:
    # 0 → 1 → 0 → 0 → 0: state 1 was left once; 0 leans on it
    record = ictd.Trajectory(
        torch.tensor([0, 1, 0, 0, 0]), torch.zeros(5, **FLOAT64), torch.full((5,), 0.5).double()
    )
    values, width = ictd.plug_in_interval(record, 2, confidence=0.9)
    assert_same(values, torch.zeros(2, **FLOAT64))
    assert width.tolist() == [np.inf, np.inf]
    # 1 → 0 → 0 → 0: but nothing depends on state 1 here, save itself
    record = ictd.Trajectory(
        torch.tensor([1, 0, 0, 0]), torch.zeros(4, **FLOAT64), torch.full((4,), 0.5).double()
    )
    width = ictd.plug_in_interval(record, 2, confidence=0.9)[1]
    assert width.tolist() == [0.0, np.inf]


def test_terminal_states_are_known() -> None:
    _, trajectory = terminating(1, 300)
    values, width = ictd.plug_in_interval(trajectory, 4, confidence=0.9)
    assert float(values[2]) == float(width[2]) == 0.0
    assert bool(values[3].isnan())
    assert bool(width[3].isnan())
    assert bool((width[:2] > 0).all())


@pytest.mark.parametrize("noisy", [False, True])
def test_the_interval_covers_as_often_as_it_says(noisy: bool) -> None:
    mrp, trajectories = chains(8, 400, 1_500, noisy=noisy)
    often = ictd.empirical_model(trajectories, STATES).counts.amin(-1) >= 30
    assert int(often.sum()) > 250
    values, width = ictd.plug_in_interval(trajectories, STATES, confidence=0.9)
    together = ictd.plug_in_interval(trajectories, STATES, confidence=0.9, simultaneous=True)[1]
    error = (values - mrp.value()).abs()[often]
    assert 0.86 < float((error <= width[often]).double().mean()) < 0.94
    assert 0.88 < float((error <= together[often]).all(-1).double().mean()) < 1.0


# Batches, dtypes, refusals -----------------------------------------------------------------------


def test_a_batch_is_its_items() -> None:
    generator = torch.Generator().manual_seed(9)
    mrp = ictd.boyan_chain(3, discount=0.5, generator=generator, batch_shape=(2, 2), **FLOAT64)
    batch = mrp.sample(400, generator=generator).trim()
    gamma, most = torch.full((2, 2), 0.5, **FLOAT64), mrp.reward.abs().amax(-1)
    model = ictd.empirical_model(batch, 3)
    spread = ictd.target_spread(mrp.value(), gamma, most)
    together = (
        spread,
        ictd.context_bound(model.counts, spread, gamma, 0.9, 400),
        ictd.context_bound(model.counts, spread, gamma, 0.9, 400, transition=model.transition),
        ictd.componentwise_bound(
            batch, 3, discount=gamma, reward_bound=most, confidence=0.9, num_steps=400
        ),
        *ictd.plug_in_interval(batch, 3, confidence=0.9),
    )
    for index in np.ndindex(2, 2):
        b, counts = float(spread[index]), model.counts[index]
        one = batch[index]
        alone = (
            ictd.target_spread(mrp.value()[index], 0.5, float(most[index])),
            ictd.context_bound(counts, b, 0.5, 0.9, 400),
            ictd.context_bound(counts, b, 0.5, 0.9, 400, transition=model.transition[index]),
            ictd.componentwise_bound(
                one,
                3,
                discount=0.5,
                reward_bound=float(most[index]),
                confidence=0.9,
                num_steps=400,
            ),
            *ictd.plug_in_interval(one, 3, confidence=0.9),
        )
        for x, y in zip(together, alone, strict=True):
            torch.testing.assert_close(x[index], y, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_dtype_stays(dtype: torch.dtype) -> None:
    _, (record,) = chains(10, 1, 500)
    record = record.to(dtype)
    model = ictd.empirical_model(record, STATES)
    most = float(record.rewards.abs().max())
    made = [
        ictd.target_spread(model.reward, 0.9),
        ictd.context_bound(model.counts, 1.0, 0.9, 0.9, 500),
        ictd.context_bound(model.counts, 1.0, 0.9, 0.9, 500, transition=model.transition),
        bound(record, reward_bound=most),
        *ictd.plug_in_interval(record, STATES, confidence=0.9),
    ]
    assert {x.dtype for x in made} == {dtype}


def test_gradients() -> None:
    spread, gamma = tensor([2.0, 3.0]).requires_grad_(), tensor([0.5, 0.9]).requires_grad_()
    values = tensor([[1.0, 3.0, 2.0], [0.0, -1.0, 5.0]]).requires_grad_()
    counts = tensor([[3.0, 2.0, 5.0], [4.0, 4.0, 1.0]])
    shares = torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(0), **FLOAT64)
    transition = (0.4 * shares / shares.sum(-1, keepdim=True)).requires_grad_()
    check = torch.autograd.gradcheck
    assert check(ictd.target_spread, (values, gamma, spread))
    assert check(lambda b, g: ictd.context_bound(counts, b, g, 0.9, 10), (spread, gamma))
    assert check(
        lambda b, p: ictd.context_bound(counts, b, 1.0, 0.9, 10, transition=p), (spread, transition)
    )
    rewards = tensor([0.3, -0.2, 0.1, 0.4, 0.0, 0.0]).requires_grad_()
    states, discounts = torch.tensor([0, 1, 0, 1, 0, 1]), torch.full((6,), 0.5, **FLOAT64)

    def half_width(r: torch.Tensor) -> torch.Tensor:
        record = ictd.Trajectory(states[:5], r[:5], discounts[:5])
        return ictd.plug_in_interval(record, 2, confidence=0.9)[1]

    assert check(half_width, (rewards,))


def test_refusals() -> None:
    counts = tensor([[2.0, 0.0], [1.0, 3.0]])
    with refuses(ValueError, r"confidence: expected a number in \(0, 1\), got 1.0"):
        ictd.context_bound(counts, 1.0, 0.9, 1.0, 10)
    with refuses(ValueError, "spread: expected a finite number >= 0, got -1.0"):
        ictd.context_bound(counts, -1.0, 0.9, 0.9, 10)
    with refuses(ValueError, "num_steps: expected an integer >= 1, got 0"):
        ictd.context_bound(counts, 1.0, 0.9, 0.9, 0)
    with refuses(ValueError, "discount: expected a number below 1, got 1.0"):
        ictd.context_bound(counts, 1.0, 1.0, 0.9, 10)
    with refuses(ValueError, r"counts: expected a state that was visited, got one at index \(1,\)"):
        ictd.context_bound(counts * tensor([[1.0], [0.0]]), 1.0, 0.9, 0.9, 10)
    transition = torch.full((2, 2, 2), 0.45, **FLOAT64)
    with refuses(ValueError, r"transition: expected 0 in the columns .* \(closure\).* \(0, 1\)"):
        ictd.context_bound(counts, 1.0, 0.9, 0.9, 10, transition=transition)
    with refuses(ValueError, "transition: expected rows that sum to at most the discount, got 0.9"):
        ictd.context_bound(counts + 1, 1.0, 0.8, 0.9, 10, transition=transition)
    with refuses(ValueError, "transition: expected an error of the values .* condition number"):
        ictd.context_bound(counts + 1, 1.0, 1.0, 0.9, 10, transition=transition / 0.9)
    with refuses(ValueError, r"transition: expected shape \[\*B, m, m\]"):
        ictd.context_bound(counts, 1.0, 0.9, 0.9, 10, transition=transition[0])
    for none in (counts[0, 0], counts[:, :0]):
        with refuses(ValueError, r"counts: expected shape \[\*B, m\], m >= 1, got \("):
            ictd.context_bound(none, 1.0, 0.9, 0.9, 10)
    with refuses(ValueError, "values: expected shape"):
        ictd.target_spread(tensor(1.0), 0.5)
    with refuses(ValueError, "reward_bound: expected a finite number >= 0"):
        ictd.target_spread(counts, 0.5, reward_bound=-1.0)

    record = ictd.Trajectory(
        torch.tensor([0, 1, 0]), tensor([1.0, 0.5, 0.0]), tensor([0.9, 0.8, 0.0])
    )
    with refuses(ValueError, r"discount: expected the discount of every transition .* got 0.8"):
        bound(record, 2)
    with refuses(ValueError, r"reward_bound: expected at least the largest reward, got 1.0"):
        bound(record, 2, reward_bound=0.9)
    with refuses(ValueError, "discount: expected a number below 1, got 1.0"):
        bound(record, 2, discount=1.0)
    with refuses(ValueError, r"discount: expected shape \[\*B\] = \(\), got \(1,\)"):
        bound(record, 2, discount=tensor([0.9]))
    with refuses(ValueError, "num_iterations: expected an integer >= 0"):
        bound(record, 2, num_iterations=-1)
    with refuses(ValueError, "confidence"):
        bound(record, 2, confidence=0.0)
    with refuses(ValueError, "confidence"):
        ictd.plug_in_interval(record, 2, confidence=90.0)
    with refuses(ValueError, "closure"):
        open_ = ictd.Trajectory(torch.tensor([0, 1]), tensor([1.0, 0.0]), tensor([0.9, 0.0]))
        ictd.plug_in_interval(open_, 2, confidence=0.9)
