"""Conditions for stability beyond diagonality, and the report that tries them all."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import ictd
from ictd.stability_report import CONDITIONS
from reference import stability as reference
from reference import td
from strategies import assert_same, quick, random_contexts, refuses, tensor

GENTLE = ictd.GaussianScore(0.5)
WEAKER = {"weaker diagonality, every step", "weaker diagonality, small steps"}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_processes(
    seed: int, size: int, num_states: int, discount: float | torch.Tensor = 0.9
) -> ictd.MarkovRewardProcess:
    return ictd.loop_chain(
        num_states,
        discount=discount,
        generator=seeded(seed),
        batch_shape=(size,),
        dtype=torch.float64,
    )


def sphere(seed: int, size: int, num_states: int, dim: int = 3) -> torch.Tensor:
    x = torch.randn(size, num_states, dim, generator=seeded(seed), dtype=torch.float64)
    return x / x.norm(dim=-1, keepdim=True)


def dot(temperature: float, dim: int = 3) -> ictd.BilinearScore:
    return ictd.BilinearScore(temperature * torch.eye(dim, dtype=torch.float64))


def population(mrp: ictd.MarkovRewardProcess, scores: torch.Tensor, i: int) -> reference.Problem:
    transition = float(mrp.discount[i]) * mrp.transition[i].numpy()
    return reference.Problem(
        mrp.stationary_distribution()[i].numpy(), scores[i].numpy(), transition
    )


def assert_report(
    report: ictd.StabilityReport, problem: reference.Problem, step: float, iterations: int
) -> None:
    """The report of one problem says what the loops say."""
    expected = reference.certificates(problem, step, iterations)
    assert set(expected) | WEAKER == set(CONDITIONS)
    for i, name in enumerate(report.conditions):
        if name in WEAKER:
            continue
        holds, limit, rate = expected[name]
        assert report.holds[i].item() == holds, name
        assert_same(report.step_limit[i], tensor(limit), tolerance=1e-9)
        if rate < 1:
            assert_same(report.rate[i], tensor(rate), tolerance=1e-9)
        else:
            assert report.rate[i] == math.inf
    radius, limit = problem.exact(step)
    assert_same(report.spectral_radius, tensor(radius), tolerance=1e-7)
    assert_same(report.exact_step_limit, tensor(limit), tolerance=1e-7)
    numbers = {
        "kernel_td_step_limit": reference.kernel_td_step_limit(problem),
        "discount": problem.discount,
        "diagonality": min(problem.attention.diagonal()),
        "density_ratio": max(problem.mass) / min(problem.mass),
        "transition_norm": problem.norm(problem.measure),
        "numerical_range": problem.abscissa(problem.measure),
        "smallest_eigenvalue": min(np.linalg.eigvals(problem.attention).real),
        "smallest_weight": min(problem.measure),
    }
    for name, value in numbers.items():
        assert_same(getattr(report, name), tensor(value), tolerance=1e-9)


# --- Against the slow version ---------------------------------------------------------------------


@pytest.mark.parametrize("step_size", [0.3, 1.0, 1.02])
@pytest.mark.parametrize("discount", [0.5, 0.9])
def test_processes(step_size: float, discount: float) -> None:
    mrp, features = random_processes(0, 20, 5, discount), sphere(1, 20, 5)
    for temperature in (1.0, 6.0):
        score = dot(temperature)
        scores = score(features, features)
        report = ictd.stability(mrp, features, score=score, step_size=step_size, num_iterations=3)
        assert report.holds.any(0).sum() >= 4
        for i in range(20):
            problem = population(mrp, scores, i)
            assert_report(report[i], problem, step_size, 3)


@quick
@given(st.integers(0, 2**32 - 1), st.floats(0.2, 0.8))
def test_contexts(seed: int, bandwidth: float) -> None:
    contexts = random_contexts(seed, num_tokens=20, closed=True, num_states=4)
    report = ictd.stability(
        contexts.prompt(), score=ictd.GaussianScore(bandwidth), num_iterations=2
    )
    problem = reference.problem_of(contexts[()], td.gaussian_score(bandwidth))
    assert_report(report, problem, 1.0, 2)


def test_episodes_that_end_are_closed() -> None:
    features = torch.eye(3, dtype=torch.float64)
    rows = [[0, 1, 2], [1, 0, 2]]
    prompt = ictd.Prompt.from_episodes(
        [features[row] for row in rows],
        [torch.ones(2, dtype=torch.float64)] * 2,
        [False, False],
        [True, True],
        discount=0.9,
    )
    prompt = dataclasses.replace(
        prompt,
        is_terminal=torch.tensor([False, False, True, False, False, True]),
        is_transition=torch.tensor([True, True, False, True, True, False]),
    )
    report = ictd.stability(prompt, score=dot(2.0))
    context = td.Context(
        *(x.numpy() for x in (prompt.features, prompt.rewards, prompt.discounts)),
        prompt.is_transition.numpy(),
        prompt.is_terminal.numpy(),  # type: ignore[union-attr]
    )
    problem = reference.problem_of(context, td.bilinear(2 * np.eye(3)))
    assert len(problem) == 2
    assert_report(report, problem, 1.0, 10)


def test_small_functions_are_those_of_the_report() -> None:
    mrp, features = random_processes(2, 30, 6), sphere(3, 30, 6)
    score = dot(4.0)
    scores, weights = score(features, features), mrp.stationary_distribution()
    report = ictd.stability(mrp, features, score=score, num_iterations=4)
    measure = ictd.self_adjoint_weights(weights, scores)
    onward = 0.9 * mrp.transition
    assert_same(ictd.density_ratio(weights, scores), report.density_ratio)
    assert_same(measure.sum(-1), torch.ones(30, dtype=torch.float64))
    assert_same(measure.amin(-1), report.smallest_weight)
    assert_same(ictd.weighted_norm(onward, measure), report.transition_norm)
    assert_same(ictd.numerical_range(onward, measure), report.numerical_range)
    schur = ictd.schur_factor(onward, measure, num_iterations=4)
    column = report.conditions.index("Schur test")
    assert_same(
        2 / (1 + schur.sqrt()),
        torch.where(schur < 1, report.step_limit[:, column], 2 / (1 + schur.sqrt())),
    )
    attention = ictd.population_attention(mrp, features, score)
    matrix = ictd.iteration_matrix(attention, mrp.transition, 0.9, 1.0)
    factor = ictd.weighted_norm_factor(matrix, num_iterations=4)
    column = report.conditions.index("weighted row sums")
    assert torch.equal(factor < 1, report.holds[:, column])
    assert_same(report.rate[:, column].clamp(max=1), factor.clamp(max=1))
    assert_same(ictd.spectral_radius(matrix), report.spectral_radius, tolerance=1e-9)
    drift = ictd.drift_matrix(attention, mrp.transition, 0.9)
    assert_same(ictd.step_size_limit(drift), report.exact_step_limit, tolerance=1e-9)
    assert_same(measure.unsqueeze(-1) * attention, (measure.unsqueeze(-1) * attention).mT)


# --- Properties: what is certified is true --------------------------------------------------------


@pytest.mark.parametrize("step_size", [0.2, 1.0, 1.3])
@pytest.mark.parametrize("discount", [0.5, 0.9, 0.99])
def test_every_certificate_is_kept_by_the_eigenvalues(step_size: float, discount: float) -> None:
    certified = torch.zeros(len(CONDITIONS))
    for num_states, temperature in ((2, 2.0), (4, 1.0), (5, 8.0), (6, 0.2)):
        size = 200
        mrp = random_processes(num_states, size, num_states, discount)
        features = sphere(5, size, num_states) * 2 ** torch.rand(
            size, num_states, 1, generator=seeded(6), dtype=torch.float64
        )
        report = ictd.stability(mrp, features, score=dot(temperature), step_size=step_size)
        radius, limit = report.spectral_radius, report.exact_step_limit
        some = report.rate < 1
        assert (radius[report.certified] < 1).all()
        assert (radius.unsqueeze(-1) <= report.rate + 1e-9).all()
        assert (report.step_limit <= limit.unsqueeze(-1) * (1 + 1e-9)).all()
        assert torch.equal(some, report.holds & (step_size < report.step_limit) & some)
        assert torch.equal(report.holds, report.step_limit > 0)
        certified += report.holds.sum(0)
    assert (certified > 0).all()


@pytest.mark.parametrize("score", [dot(3.0), ictd.GaussianScore(0.4)], ids=["dot", "Gaussian"])
def test_rates_bound_a_run_of_many_layers(score: Any) -> None:
    mrp, features = random_processes(7, 200, 4), sphere(8, 200, 4)
    report = ictd.stability(mrp, features, score=score)
    attention = ictd.population_attention(mrp, features, score)
    values = ictd.lumped_td(attention, mrp.reward, mrp.transition, 0.9, num_steps=60, step_size=1.0)
    start = mrp.value().abs().amax(-1)
    error = (values - mrp.value()).abs().amax(-1)
    energy = [CONDITIONS.index(n) for n in ("Schur test", "norm of the transition")]
    for column in (*energy, CONDITIONS.index("row dominance")):
        factor = (report.smallest_eigenvalue * report.smallest_weight).rsqrt()
        factor = factor if column in energy else torch.ones_like(factor)
        holds = report.rate[:, column] < 1
        assert holds.any()
        bound = factor * report.rate[:, column] ** 60 * start
        assert (error[holds] <= bound[holds] * (1 + 1e-9)).all()


def test_layers_by_hand() -> None:
    # 2^-L <= 2^-5 · √(2^-4 · 2^-2) = 2^-8
    assert ictd.layers_needed(0.5, 2**-5, 2**-4, 2**-2).item() == 8
    assert ictd.layers_needed(0.5, 0.3).item() == 2
    assert ictd.layers_needed(0.5, 1.0).item() == 0
    assert ictd.layers_needed(tensor([0.0, 1.0, 2.0]), 0.1).tolist() == [1.0, math.inf, math.inf]


def test_layers_needed_are_enough() -> None:
    mrp, features = random_processes(9, 100, 4), sphere(10, 100, 4)
    report = ictd.stability(mrp, features, score=GENTLE)
    column = CONDITIONS.index("norm of the transition")
    sure = (report.rate[:, column] < 1) & (report.smallest_eigenvalue > 0.05)
    assert sure.sum() > 10
    layers = ictd.layers_needed(
        report.rate[:, column], 1e-3, report.smallest_eigenvalue, report.smallest_weight
    )
    attention = ictd.population_attention(mrp, features, GENTLE)
    for i in sure.nonzero().flatten().tolist():
        values = ictd.lumped_td(
            attention[i],
            mrp.reward[i],
            mrp.transition[i],
            0.9,
            num_steps=int(layers[i]),
            step_size=1.0,
        )
        exact = mrp[i].value()
        assert (values - exact).abs().max() <= 1e-3 * exact.abs().max()


@quick
@given(st.integers(0, 2**32 - 1))
def test_iterating_never_worsens_a_test(seed: int) -> None:
    mrp, features = random_processes(seed, 8, 5), sphere(seed, 8, 5)
    scores = dot(5.0)(features, features)
    measure = ictd.self_adjoint_weights(mrp.stationary_distribution(), scores)
    factors = [
        ictd.schur_factor(0.9 * mrp.transition, measure, num_iterations=k)
        for k in (0, 1, 2, 5, 10, 40)
    ]
    assert (torch.stack(factors).diff(dim=0) <= 0).all()
    norm = ictd.weighted_norm(0.9 * mrp.transition, measure) ** 2
    assert (factors[-1] >= norm - 1e-12).all()
    assert_same(factors[-1], norm, tolerance=1e-2)


@quick
@given(st.integers(0, 2**32 - 1))
def test_the_order_of_states_does_not_matter(seed: int) -> None:
    mrp, features = random_processes(seed, 1, 5)[0], sphere(seed, 1, 5)[0]
    order = torch.randperm(5, generator=seeded(seed))
    moved = ictd.MarkovRewardProcess(mrp.transition[order][:, order], mrp.reward[order], 0.9)
    plain, other = (
        ictd.stability(p, f, score=dot(3.0)) for p, f in ((mrp, features), (moved, features[order]))
    )
    assert torch.equal(plain.holds, other.holds)
    assert_same(plain.step_limit, other.step_limit, tolerance=1e-9)


def test_residual_bound_holds_for_any_values() -> None:
    mrp = random_processes(11, 500, 6)
    values = torch.randn(500, 6, generator=seeded(12), dtype=torch.float64)
    bound = ictd.residual_bound(mrp.bellman(values) - values, 0.9)
    error = (values - mrp.value()).abs().amax(-1)
    assert (error <= bound * (1 + 1e-12)).all()
    off = mrp.value() + 1.0  # a constant error attains it
    assert_same(
        ictd.residual_bound(mrp.bellman(off) - off, mrp.discount),
        torch.ones(500, dtype=torch.float64),
    )


# --- A context and a process that say the same ----------------------------------------------------


@quick
@given(st.integers(0, 2**32 - 1))
def test_a_closed_context_is_the_process_it_estimates(seed: int) -> None:
    rng = np.random.default_rng(seed)
    walk = rng.integers(4, size=25)
    walk[-1] = walk[0]
    trajectory = ictd.Trajectory(
        torch.as_tensor(walk),
        torch.zeros(25, dtype=torch.float64),
        torch.full((25,), 0.9, dtype=torch.float64),
    )
    features = sphere(seed, 1, 4)[0]
    seen = list(dict.fromkeys(walk[:-1].tolist()))
    model = ictd.empirical_model(trajectory, 4)
    transition = model.transition[seen][:, seen] / 0.9
    mrp = ictd.MarkovRewardProcess(transition, torch.zeros(len(seen)).double(), 0.9)
    found = ictd.stability(trajectory.prompt(features), score=dot(3.0))
    expected = ictd.stability(mrp, features[seen], score=dot(3.0))
    for name, value in expected._tensors().items():
        if value.is_floating_point():
            same = torch.isclose(getattr(found, name), value, rtol=1e-7, atol=1e-9, equal_nan=True)
            assert same.all(), name
        else:
            assert torch.equal(found.holds, value)


def test_padding_and_queries_change_nothing() -> None:
    contexts = random_contexts(4, num_tokens=20, closed=True, num_queries=0, num_padding=0)
    prompt = contexts.prompt()
    plain = ictd.stability(prompt, score=GENTLE)
    more = ictd.stability(prompt.with_queries(torch.randn(3, 3).double()), score=GENTLE)
    for name, value in plain._tensors().items():
        assert torch.equal(value, getattr(more, name)), name


# --- Limits: what is left out, and what is large --------------------------------------------------


def test_states_of_weight_zero_are_left_out() -> None:
    small, features = random_processes(13, 10, 4), sphere(14, 10, 6)
    transition = torch.zeros(10, 6, 6, dtype=torch.float64)
    transition[:, :4, :4] = small.transition
    transition[:, 4, 1] = transition[:, 5, 4] = 1.0  # transient
    large = ictd.MarkovRewardProcess(transition, torch.zeros(10, 6).double(), 0.9)
    expected = ictd.stability(small, features[:, :4], score=GENTLE)
    found = ictd.stability(large, features, score=GENTLE)
    assert torch.equal(found.holds, expected.holds)
    for name in (
        "rate",
        "step_limit",
        "spectral_radius",
        "exact_step_limit",
        "smallest_eigenvalue",
    ):
        finite = getattr(expected, name).isfinite()
        assert_same(getattr(found, name)[finite], getattr(expected, name)[finite], 1e-9)


def test_terminal_states_are_left_out() -> None:
    walk = ictd.random_walk(5, discount=0.9, dtype=torch.float64)
    features = torch.eye(7, dtype=torch.float64)
    inner = (~walk.terminal).nonzero().flatten()
    assert len(inner) == 5
    problem = reference.Problem(
        walk.stationary_distribution()[inner].numpy(),
        GENTLE(features, features)[inner][:, inner].numpy(),
        0.9 * walk.transition[inner][:, inner].numpy(),
    )
    assert_report(ictd.stability(walk, features, score=GENTLE), problem, 1.0, 10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_scores(dtype: torch.dtype) -> None:
    mrp, features = random_processes(15, 50, 4), sphere(16, 50, 4)
    mrp, features = mrp.to(dtype), features.to(dtype)
    base = ictd.stability(mrp, features, score=ictd.BilinearScore(1e4 * torch.eye(3, dtype=dtype)))
    assert base.spectral_radius.isfinite().all()  # exp(10,000) is no number
    assert base.holds[:, 0].any()
    assert (base.kernel_td_step_limit == 0).all()
    norms = features * (1 + 0.5 * torch.rand(50, 4, 1, generator=seeded(17), dtype=dtype))
    wild = ictd.stability(mrp, norms, score=ictd.BilinearScore(3e3 * torch.eye(3, dtype=dtype)))
    assert not wild.rate.isnan().any()
    assert not wild.holds[wild.exact_step_limit == 0].any()


def test_a_common_constant_in_the_scores_changes_nothing() -> None:
    mrp, features = random_processes(18, 20, 4), sphere(19, 20, 4)
    plain = ictd.stability(mrp, features, score=dot(3.0))
    lifted = ictd.stability(mrp, features, score=lambda q, k: dot(3.0)(q, k) + 900.0)
    assert torch.equal(plain.holds, lifted.holds)
    assert_same(plain.step_limit, lifted.step_limit, tolerance=1e-9)
    assert_same(lifted.kernel_td_step_limit, torch.zeros(20).double())  # 2 / exp(900) underflows


def test_one_state_is_a_number() -> None:
    mrp = ictd.MarkovRewardProcess(torch.ones(1, 1), torch.ones(1), 0.5)
    report = ictd.stability(mrp, torch.ones(1, 1), score=ictd.BilinearScore(torch.zeros(1, 1)))
    assert report.holds.all()
    assert_same(report.spectral_radius, torch.tensor(0.5))
    assert_same(report.exact_step_limit, torch.tensor(4.0))
    assert_same(report.kernel_td_step_limit, torch.tensor(4 / 3))
    assert (report.density_ratio, report.smallest_eigenvalue) == (1, 1)


# --- Kernels to which symmetric conditions do not apply -------------------------------------------

SYMMETRIC = CONDITIONS[CONDITIONS.index("density ratio") :]


@pytest.mark.parametrize(
    ("name", "matrix"),
    [
        ("skew", [[3.0, 1.0, 0.0], [-1.0, 3.0, 0.0], [0.0, 0.0, 3.0]]),
        ("negative", [[-3.0, 0.0, 0.0], [0.0, -3.0, 0.0], [0.0, 0.0, -3.0]]),
    ],
)
def test_without_a_symmetric_positive_definite_kernel(name: str, matrix: list[list[float]]) -> None:
    mrp, features = random_processes(20, 30, 4, 0.5), sphere(21, 30, 4)
    report = ictd.stability(mrp, features, score=ictd.BilinearScore(tensor(matrix)))
    first = CONDITIONS.index(SYMMETRIC[0])
    assert not report.holds[:, first:].any()
    assert report.smallest_eigenvalue.isnan().all()
    assert (report.kernel_td_step_limit == 0).all()
    assert report.holds[:, :first].any() or name == "negative"


def test_two_states_with_equal_features_make_no_definite_kernel() -> None:
    mrp, features = random_processes(22, 10, 4, 0.5), sphere(23, 10, 4)
    features[:, 1] = features[:, 0]
    report = ictd.stability(mrp, features, score=dot(2.0))
    assert not report.holds[:, CONDITIONS.index("Schur test")].any()
    assert (report.kernel_td_step_limit > 0).all()  # which semidefinite kernels are enough for


def test_a_kernel_with_zeros() -> None:
    mrp, features = random_processes(24, 10, 4), torch.eye(4, dtype=torch.float64)
    tabular = ictd.stability(mrp, features, score=ictd.LogKernelScore(ictd.IdentityKernel()))
    assert_same(tabular.diagonality, torch.ones(10).double())
    assert_same(tabular.rate[:, 0], torch.full((10,), 0.9, dtype=torch.float64))
    assert_same(tabular.smallest_eigenvalue, torch.ones(10).double())


# --- Examples that fail ---------------------------------------------------------------------------


def flows(hub: float) -> torch.Tensor:
    """Joint flows of four states: a hub 0, a swap of 1 and 2, and 3 beside the hub."""
    flow = torch.zeros(4, 4, dtype=torch.float64)
    flow[1, 2] = flow[0, 3] = 1.0
    flow[0, 1] = 0.01
    flow = flow + flow.mT
    flow[0, 0] = hub - 1.01
    return flow


def reversible(flow: torch.Tensor, discount: float) -> ictd.MarkovRewardProcess:
    return ictd.MarkovRewardProcess(
        flow / flow.sum(-1, keepdim=True), torch.zeros(4, dtype=torch.float64), discount
    )


def rounded(values: torch.Tensor) -> list[complex]:
    found = [complex(round(v.real, 6), round(v.imag, 5)) for v in values.tolist()]
    return sorted(found, key=lambda v: (-v.real, v.imag))


def spectrum(mrp: ictd.MarkovRewardProcess, features: torch.Tensor, score: Any) -> torch.Tensor:
    attention = ictd.population_attention(mrp, features, score)
    drift = ictd.drift_matrix(attention, mrp.transition, mrp.discount)
    return torch.linalg.eigvals(drift)


BINARY = ictd.GaussianScore(2 / math.sqrt(math.log(2)))  # κ = 2^(-(x - y)² / 8)
LINE = tensor([[0.0], [5.0], [7.0], [8.0]])


@pytest.mark.parametrize(
    ("discount", "expected"),
    [
        (0.99, [0.2712, 0.01, -0.000645, -0.002857]),
        (0.9, [0.2755, 0.1, -0.0002 - 0.00347j, -0.0002 + 0.00347j]),
    ],
)
def test_four_states_with_a_gaussian_score_diverge(
    discount: float, expected: list[complex]
) -> None:
    mrp = reversible(flows(500.0), discount)
    found = rounded(spectrum(mrp, LINE, BINARY))
    for value, digits in zip(found, expected, strict=True):
        assert abs(value - digits) <= (5.1e-5 if abs(digits) > 5e-3 else 5.1e-6)
    report = ictd.stability(mrp, LINE, score=BINARY)
    assert not report.holds.any()
    assert report.exact_step_limit == 0
    assert report.spectral_radius > 1
    assert report.kernel_td_step_limit > 1  # kernel TD on the same data is stable


@pytest.mark.parametrize(("discount", "fails"), [(0.99, True), (0.95, True), (0.9, False)])
def test_four_states_of_unit_norm_diverge(discount: float, fails: bool) -> None:
    angles = tensor([0.0, 50.0, 70.0, 80.0]) * math.pi / 180
    features = torch.stack([angles.cos(), angles.sin()], -1)
    mrp, score = reversible(flows(1000.0), discount), dot(8.0, 2)
    report = ictd.stability(mrp, features, score=score)
    assert (report.exact_step_limit == 0) == fails
    if fails:
        assert not report.holds.any()
    if discount == 0.99:
        found = rounded(spectrum(mrp, features, score))
        expected = [0.3396, 0.01, -0.00104 - 0.00196j, -0.00104 + 0.00196j]
        for value, digits in zip(found, expected, strict=True):
            assert abs(value - digits) <= (5.1e-5 if abs(digits) > 5e-3 else 7.1e-6)
        attention = ictd.population_attention(mrp, features, score)
        matrix = ictd.iteration_matrix(attention, mrp.transition, 0.99, 1.0)
        power = torch.linalg.matrix_power(matrix, 6000)
        assert round(torch.linalg.matrix_norm(power, 2).item()) == 4065


def test_three_states_with_raw_inner_products_diverge() -> None:
    cycle = tensor([[0, 0, 1], [1, 0, 0], [0, 1, 0]])
    features = tensor([[1.0], [4.0], [5.0]]) * math.sqrt(math.log(2))
    mrp = ictd.MarkovRewardProcess(cycle, torch.zeros(3, dtype=torch.float64), 0.9)
    score = ictd.BilinearScore(torch.eye(1, dtype=torch.float64))
    attention = ictd.population_attention(mrp, features, score)
    by_hand = tensor([[1, 8, 16], [1, 2**12, 2**16], [1, 2**15, 2**20]])
    by_hand = by_hand / tensor([[25], [69633], [1081345]])
    assert_same(attention, by_hand)
    assert round(attention.trace().item(), 5) == 1.06852
    assert round((attention * cycle.mT).sum().item(), 5) == 1.26116
    assert rounded(spectrum(mrp, features, score))[::-1] == pytest.approx(
        [-0.1453, -0.0212, 0.1], abs=5e-5
    )
    report = ictd.stability(mrp, features, score=score)
    assert not report.holds.any()
    assert report.exact_step_limit == 0
    assert report.kernel_td_step_limit > 0


# --- Batches, dtypes, records ---------------------------------------------------------------------


def test_a_batch_of_processes_is_a_loop() -> None:
    mrp, features = random_processes(25, 6, 4), sphere(26, 6, 4)
    steps = torch.linspace(0.2, 1.2, 6, dtype=torch.float64)
    whole = ictd.stability(mrp, features, score=GENTLE, step_size=steps)
    for i in range(6):
        single = ictd.stability(mrp[i], features[i], score=GENTLE, step_size=float(steps[i]))
        for name, value in single._tensors().items():
            torch.testing.assert_close(getattr(whole[i], name), value, rtol=1e-9, atol=1e-9)


def test_a_batch_of_contexts_is_a_loop() -> None:
    contexts = random_contexts(27, batch_shape=(2, 3), closed=True, num_tokens=12)
    prompt = contexts.prompt()
    whole = ictd.stability(prompt, score=GENTLE)
    assert whole.holds.shape == (2, 3, len(CONDITIONS))
    for index in contexts.indices():
        single = ictd.stability(prompt[index], score=GENTLE)
        for name, value in single._tensors().items():
            found = getattr(whole[index], name)
            torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_dtypes(dtype: torch.dtype) -> None:
    mrp, features = random_processes(28, 20, 4), sphere(29, 20, 4)
    exact = ictd.stability(mrp, features, score=GENTLE)
    found = ictd.stability(mrp.to(dtype), features.to(dtype), score=GENTLE)
    assert found.dtype == dtype
    assert found.rate.dtype == dtype
    close = 1e-4 if dtype == torch.float32 else 1e-2
    assert_same(found.spectral_radius.double(), exact.spectral_radius, tolerance=close)
    assert (found.holds == exact.holds).double().mean() > 0.95


def test_the_report_is_a_record() -> None:
    mrp, features = random_processes(30, 3, 4), sphere(31, 3, 4)
    report = ictd.stability(mrp, features, score=GENTLE)
    assert report.batch_shape == (3,)
    assert report[0].batch_shape == ()
    assert report.to(torch.float32).rate.dtype == torch.float32
    doubled = pytree.tree_map(lambda x: x, report)
    assert torch.equal(doubled.holds, report.holds)
    assert not any(x.requires_grad for x in report._tensors().values())


def test_the_best_rate_and_who_gave_it() -> None:
    mrp, features = random_processes(32, 200, 4), sphere(33, 200, 4)
    report = ictd.stability(mrp, features, score=dot(4.0), step_size=1.0)
    assert 0 < report.certified.sum() < 200
    for i in range(200):
        one = report[i]
        if not one.certified:
            assert one.best_condition == -1
            assert one.best_name is None
            assert one.best_rate == math.inf
            continue
        assert one.rate[one.best_condition] == one.best_rate == min(one.rate.tolist())
        assert one.best_name == CONDITIONS[int(one.best_condition)]
        assert one.certified_step_limit == max(one.step_limit.tolist())


def test_the_report_in_words() -> None:
    mrp, features = random_processes(34, 4, 3), sphere(35, 4, 3)
    report = ictd.stability(mrp, features, score=dot(40.0))
    text, page = str(report[0]), report[0]._repr_html_()
    assert repr(report[0]) == text
    for name in CONDITIONS:
        assert text.count(f"\n{name} ") == 1
        assert f'<th scope="row">{name}</th>' in page
    assert f"{float(report[0].spectral_radius):.4f}" in text
    assert page.count("<tr>") == len(CONDITIONS) + 2
    assert "α &lt; " in page
    shares = str(report)
    assert "100.0 %" in shares
    assert "4 problems" in shares
    assert f"{100 * float(report.holds[:, 3].double().mean()):.1f} %" in shares


# --- Refusals -------------------------------------------------------------------------------------


def open_prompt() -> ictd.Prompt:
    trajectory = ictd.Trajectory(
        torch.tensor([0, 1, 2]), torch.zeros(3).double(), torch.full((3,), 0.9, dtype=torch.float64)
    )
    return trajectory.prompt(torch.eye(3, dtype=torch.float64))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: ictd.stability(open_prompt(), score=GENTLE),
            ValueError,
            r"prompt: expected no bootstrapped successor that is not a source .* at index \(1,\)",
        ),
        (
            lambda: ictd.stability(open_prompt(), torch.eye(3).double(), score=GENTLE),
            ValueError,
            "features: expected None",
        ),
        (
            lambda: ictd.stability(random_processes(0, 1, 3), score=GENTLE),
            ValueError,
            "features: expected those of the states",
        ),
        (
            lambda: ictd.stability(random_processes(0, 1, 3), torch.eye(4).double(), score=GENTLE),
            ValueError,
            r"features: expected shape \[m, d\] or \[\*B, m, d\] = \(3, 4\), got \(4, 4\)",
        ),
        (
            lambda: ictd.stability(torch.eye(3), score=GENTLE),  # type: ignore[arg-type]
            TypeError,
            "problem: expected a Prompt or a MarkovRewardProcess, got Tensor",
        ),
        (
            lambda: ictd.stability(
                ictd.Prompt(torch.ones(2, 1), *torch.zeros(2, 2), torch.zeros(2) > 0), score=GENTLE
            ),
            ValueError,
            "problem: expected at least one transition in every context",
        ),
        (
            lambda: ictd.stability(
                random_processes(0, 1, 3), torch.eye(3).double(), score=GENTLE, step_size=-1.0
            ),
            ValueError,
            "step_size: expected a finite number >= 0",
        ),
        (
            lambda: ictd.stability(
                random_processes(0, 1, 3), torch.eye(3).double(), score=GENTLE, step_size=0.0
            ),
            ValueError,
            r"step_size: expected a number > 0 \(with 0 nothing moves\), got 0.0",
        ),
        (
            lambda: ictd.stability(
                random_processes(0, 1, 3),
                torch.eye(3).double(),
                score=lambda q, k: q @ k.mT / 0.0,
            ),
            ValueError,
            r"score\(query, key\): expected no NaN and no infinity",
        ),
        (
            lambda: ictd.schur_factor(-torch.eye(2), torch.ones(2)),
            ValueError,
            r"transition: expected entries >= 0, got -1.0 at index \(0, 0\)",
        ),
        (
            lambda: ictd.numerical_range(-torch.eye(2), torch.ones(2)),
            ValueError,
            "matrix: expected entries >= 0",
        ),
        (
            lambda: ictd.weighted_norm(torch.eye(2), torch.ones(3)),
            ValueError,
            r"weights: expected shape \[\*B, m\] = \(2,\), got \(3,\)",
        ),
        (
            lambda: ictd.density_ratio(-torch.ones(2), torch.eye(2)),
            ValueError,
            "weights: expected finite numbers >= 0",
        ),
        (
            lambda: ictd.layers_needed(0.5, 2.0),
            ValueError,
            r"accuracy: expected numbers in \(0, 1\], got 2",
        ),
        (
            lambda: ictd.residual_bound(torch.ones(2), 1.0),
            ValueError,
            "discount: expected a number below 1, got 1",
        ),
    ],
)
def test_refuses(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with refuses(error, message):
        call()
