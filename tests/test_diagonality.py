"""What diagonality alone promises, against grids, tables worked out by hand, and its worst case."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ictd
from reference import stability as reference
from strategies import assert_same, quick, refuses, tensor

MARGINS = st.floats(0.51, 1.0)
DISCOUNTS = st.floats(0.0, 0.99)
STEPS = st.floats(0.05, 1.0)


def random_numbers(seed: int, size: int = 64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    m, g, a = torch.rand(3, size, generator=generator, dtype=torch.float64)
    return 0.5 + 0.5 * m, 0.99 * g, 0.05 + 0.95 * a


# --- Tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "digits", "row"),
    [
        ("norm", 3, [0.750, 0.900, 0.950, 0.975, 0.995]),
        ("every-step", 4, [0.5949, 0.7620, 0.8547, 0.9168, 0.9808]),
        ("sharp", 4, [0.5945, 0.7619, 0.8547, 0.9168, 0.9808]),
        ("small-step", 4, [0.5635, 0.6810, 0.7553, 0.8154, 0.9089]),
        ("sharp-small-step", 4, [0.5569, 0.6690, 0.7381, 0.7943, 0.8881]),
    ],
)
def test_diagonality_needed(condition: str, digits: int, row: list[float]) -> None:
    discounts = tensor([0.5, 0.8, 0.9, 0.95, 0.99])
    needed = ictd.diagonality_needed(discounts, condition)
    assert needed.numpy().round(digits).tolist() == row


def test_the_two_conditions_for_every_step_agree_to_five_digits_near_one() -> None:
    exact = ictd.diagonality_needed(0.99, "sharp")
    assert round(exact.item(), 5) == 0.98084
    assert round(ictd.diagonality_needed(0.99, "every-step").item(), 5) == 0.98084


@pytest.mark.parametrize(
    ("diagonality", "step_size", "layers", "one_step"),
    [
        (0.97, 1.0, 151, 170),
        (0.96, 1.0, 164, 342),
        (0.951, 1.0, 179, 3451),
        (0.90, 1.0, 384, math.inf),
        (0.87, 1.0, 1197, math.inf),
        (0.80, 0.5, 1239, math.inf),
    ],
)
def test_certified_layers(
    diagonality: float, step_size: float, layers: float, one_step: float
) -> None:
    assert ictd.certified_layers(diagonality, 0.9, step_size, 1e-3).item() == layers
    attention = tensor([[diagonality, 1 - diagonality], [1 - diagonality, diagonality]])
    factor = ictd.contraction_factor(attention, 0.9, step_size)
    assert ictd.layers_needed(factor, 1e-3).item() == one_step


def test_rates_by_hand() -> None:
    # full attention to oneself is tabular TD: every rate is 1 - a (1 - g), and larger steps flip
    for rate in (ictd.asymptotic_rate, ictd.sharp_rate):
        assert_same(rate(1.0, 0.5, 0.5), tensor(0.75))
    assert_same(ictd.sharp_rate(1.0, 0.5, 1.25), tensor(0.875))  # 1.25 · 1.5 - 1
    # without discount the mass q on others is all that counts: |ν - 1| <= q
    assert_same(ictd.sharp_rate(0.8, 0.0, 1.0), tensor(0.4))  # 1 - 0.8 (1 - 0.25)
    assert_same(ictd.asymptotic_rate(0.8, 0.0), tensor(0.5))  # √q


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("discount", [0.0, 0.9, 1.0])
def test_hardly_any_diagonality_promises_nothing(discount: float, dtype: torch.dtype) -> None:
    smallest = torch.finfo(dtype).smallest_normal
    m = smallest ** torch.linspace(1, 0.02, 200, dtype=torch.float64).to(dtype)
    for step_size in (1e-3, 1.0, 1.9):
        assert (ictd.sharp_rate(m, discount, step_size) >= 1).all()
    assert (ictd.asymptotic_rate(m, discount) >= 1).all()
    assert ictd.sharp_rate(1e-300, discount).item() == math.inf
    assert math.isfinite(ictd.sharp_rate(1e-150, discount).item())
    assert ictd.certified_layers(1e-300, discount, 1.0, 0.1).item() == math.inf


# --- Against the slow versions --------------------------------------------------------------------


@quick
@given(MARGINS, DISCOUNTS, st.floats(0.05, 1.5))
def test_sharp_rate_is_the_maximum_over_the_curve(m: float, g: float, a: float) -> None:
    expected = reference.sharp_rate(m, g, a)
    assert_same(ictd.sharp_rate(m, g, a), tensor(expected), tolerance=1e-7)


@quick
@given(st.floats(0.9, 0.99), st.floats(0.1, 0.8), STEPS, st.floats(0.05, 0.95))
def test_power_bound_is_the_maximum_over_the_circle(m: float, g: float, a: float, t: float) -> None:
    least = ictd.sharp_rate(m, g, a).item()
    rate = least + t * (1 - least)
    expected = reference.power_bound(m, g, a, rate, least)
    assert math.isfinite(expected)
    found = ictd.power_bound(m, g, a, rate)
    assert_same(found, tensor(expected), tolerance=1e-3)
    assert found.item() >= expected * (1 - 1e-9)  # a grid never finds more
    assert ictd.power_bound(m, g, a, 0.999 * least).item() == math.inf
    assert ictd.power_bound(m, g, 0.1, 0.2).item() == math.inf  # a circle around no eigenvalue
    assert reference.power_bound(m, g, a, 0.999 * least, least) == math.inf


# --- Identities -----------------------------------------------------------------------------------


def test_the_needed_diagonality_is_where_the_rate_is_one() -> None:
    discounts = torch.linspace(0.05, 0.99, 30, dtype=torch.float64)
    one = torch.ones_like(discounts)
    every = ictd.diagonality_needed(discounts, "every-step")
    assert_same(ictd.asymptotic_rate(every, discounts), one)
    sharp = ictd.diagonality_needed(discounts, "sharp")
    assert_same(ictd.sharp_rate(sharp, discounts), one)
    assert_same(ictd.diagonality_step_limit(sharp, discounts), one, tolerance=1e-9)
    small = ictd.diagonality_needed(discounts, "sharp-small-step")
    assert ictd.diagonality_step_limit(small, discounts).max() < 1e-9
    assert (ictd.diagonality_step_limit(small + 1e-3, discounts) > 1e-4).all()


def test_the_step_limit_is_where_the_sharp_rate_is_one() -> None:
    m, g, _ = random_numbers(0)
    limit = ictd.diagonality_step_limit(m, g)
    some = limit > 0
    assert some.sum() > 30
    assert_same(ictd.sharp_rate(m[some], g[some], limit[some]), torch.ones_like(m[some]))
    assert (ictd.sharp_rate(m[~some], g[~some], torch.full_like(m[~some], 1e-3)) >= 1).all()


def test_with_the_condition_of_one_step_the_step_limit_is_its_own() -> None:
    g = torch.linspace(0, 0.99, 20, dtype=torch.float64)
    limit = ictd.diagonality_step_limit((1 + g) / 2 + 1e-9, g)
    assert_same(limit, 2 / (1 + g), tolerance=1e-6)


def test_the_step_limit_contains_the_formula_for_small_steps() -> None:
    m, g, _ = random_numbers(1, 200)
    q = (1 - m) / m
    holds = (1 + g**2) * (1 + q**2) < 2
    formula = (1 - (g * q) ** 2 / (1 - g**2 - q**2)) / m
    assert holds.sum() > 50
    assert (ictd.diagonality_step_limit(m, g)[holds] >= formula[holds] - 1e-9).all()


# --- Properties -----------------------------------------------------------------------------------


@quick
@given(MARGINS, DISCOUNTS, STEPS)
def test_the_sharp_rate_is_never_above_the_closed_form(m: float, g: float, a: float) -> None:
    assert ictd.sharp_rate(m, g, a) <= ictd.asymptotic_rate(m, g, a) + 1e-12


@pytest.mark.parametrize("edge", ["inside", "m = 1", "g = 0", "a = 1", "a = m = 1"])
def test_a_closed_form_that_converges_makes_every_step_up_to_one_converge(edge: str) -> None:
    generator = torch.Generator().manual_seed(4)
    m, g, a = 1 - torch.rand(3, 4000, generator=generator, dtype=torch.float64)  # in (0, 1]
    m = torch.ones_like(m) if "m = 1" in edge else m
    g = torch.zeros_like(g) if "g = 0" in edge else g * 0.999
    a = torch.ones_like(a) if "a =" in edge else a
    square, sharp = ictd.asymptotic_rate(m, g).square(), ictd.sharp_rate(m, g, a)
    scale = 1 + square  # squares of (1 - m) / m can be large
    assert ((sharp.square() - (1 - a * (1 - square))) / scale).max() < 1e-12
    below = square < 1
    assert below.sum() > 1000
    assert (m[below] > 0.5).all()
    assert (sharp[below] < 1).all()
    assert (ictd.diagonality_step_limit(m[below], g[below]) > 1).all()


def test_a_closed_form_that_converges_says_nothing_of_larger_steps() -> None:
    assert ictd.asymptotic_rate(1.0, 0.9).item() < 1
    assert_same(ictd.sharp_rate(1.0, 0.9, 1.1), tensor(1.09))  # 1.1 · 1.9 - 1


@quick
@given(MARGINS, DISCOUNTS, STEPS)
def test_more_diagonality_is_never_slower(m: float, g: float, a: float) -> None:
    for rate in (ictd.asymptotic_rate, ictd.sharp_rate):
        assert rate((m + 1) / 2, g, a) <= rate(m, g, a) + 1e-12


def test_more_layers_for_more_accuracy() -> None:
    accuracies = tensor([1.0, 1e-1, 1e-2, 1e-4, 1e-8])
    layers = ictd.certified_layers(torch.full_like(accuracies, 0.95), 0.5, 1.0, accuracies)
    assert layers.diff().min() > 0
    assert_same(layers.frac(), torch.zeros_like(layers))


# --- The worst case -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("diagonality", "num_states", "radius"),
    [(0.97, 300, 0.9173), (0.85, 80, 1.0013), (0.85, 300, 1.0038)],
)
def test_the_worst_case(diagonality: float, num_states: int, radius: float) -> None:
    attention, transition = ictd.worst_case(diagonality, 0.9, 1.0, num_states)
    for matrix in (attention, transition):
        assert (matrix >= 0).all()
        assert_same(matrix.sum(-1), tensor(np.ones(num_states)))
    assert attention.diagonal().min() >= diagonality
    found = ictd.spectral_radius(ictd.iteration_matrix(attention, transition, 0.9, 1.0)).item()
    assert round(found, 4) == radius
    assert ictd.sharp_rate(diagonality, 0.9).item() - 10 / num_states**1.5 < found


def test_the_worst_case_for_small_steps_diverges_for_every_step() -> None:
    for num_states, real in ((80, -0.0002), (600, -0.0026)):
        attention, transition = ictd.worst_case(0.735, 0.9, 0.0, num_states)
        drift = ictd.drift_matrix(attention, transition, 0.9)
        assert round(torch.linalg.eigvals(drift).real.min().item(), 4) == real
        assert ictd.step_size_limit(drift).item() == 0


@pytest.mark.parametrize("step_size", [0.3, 1.0, 1.1])
@pytest.mark.parametrize(("m", "g"), [(0.6, 0.9), (0.8, 0.5), (0.95, 0.99)])
def test_the_worst_case_approaches_the_sharp_rate(m: float, g: float, step_size: float) -> None:
    limit = ictd.sharp_rate(m, g, step_size).item()
    gaps = []
    for num_states in (20, 200):
        attention, transition = ictd.worst_case(m, g, step_size, num_states)
        matrix = ictd.iteration_matrix(attention, transition, g, step_size)
        gaps.append(limit - ictd.spectral_radius(matrix).item())
    assert -1e-12 <= gaps[1] < 1e-3
    assert gaps[1] < 0.2 * gaps[0] + 1e-9


# --- Batches, dtypes, gradients -------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "asymptotic_rate": ictd.asymptotic_rate,
    "sharp_rate": ictd.sharp_rate,
    "diagonality_step_limit": lambda m, g, a: ictd.diagonality_step_limit(m, g),
    "power_bound": lambda m, g, a: ictd.power_bound(m, g, a, (ictd.sharp_rate(m, g, a) + 1) / 2),
    "certified_layers": lambda m, g, a: ictd.certified_layers(m, g, a, 1e-3),
    "diagonality_needed": lambda m, g, a: ictd.diagonality_needed(g, "sharp"),
}


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_a_batch_is_a_loop(name: str) -> None:
    numbers = random_numbers(2, 6)
    whole = FUNCTIONS[name](*(x.reshape(2, 3) for x in numbers))
    assert whole.shape == (2, 3)
    single = [FUNCTIONS[name](*(float(x[i]) for x in numbers)) for i in range(6)]
    assert_same(whole.flatten(), torch.stack(single))


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_float32(name: str) -> None:
    numbers = random_numbers(3, 6)
    exact = FUNCTIONS[name](*numbers)
    found = FUNCTIONS[name](*(x.float() for x in numbers))
    assert found.dtype == torch.float32
    close = torch.isclose(found.double(), exact, rtol=2e-2, atol=1e-4)
    assert close.float().mean() >= 5 / 6  # layers are whole numbers


def test_numbers_and_tensors_mix() -> None:
    m = tensor([0.9, 0.95])
    assert_same(ictd.sharp_rate(m, 0.5), ictd.sharp_rate(m, tensor([0.5, 0.5]), tensor([1.0, 1.0])))
    assert ictd.sharp_rate(0.9, 0.5).dtype == torch.float64


@pytest.mark.parametrize("name", ["asymptotic_rate", "sharp_rate"])
def test_gradients(name: str) -> None:
    inputs = [tensor(x).requires_grad_() for x in ([0.9, 0.7], [0.8, 0.6], [0.9, 0.4])]
    assert torch.autograd.gradcheck(FUNCTIONS[name], inputs, atol=1e-6)


def test_worst_case_takes_dtype_and_device() -> None:
    for matrix in ictd.worst_case(0.9, 0.9, 1.0, 6, dtype=torch.float32):
        assert matrix.dtype == torch.float32
    for matrix in ictd.worst_case(0.9, 0.9, 1.0, 6, device="meta"):
        assert matrix.is_meta


# --- Refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ictd.sharp_rate(0.0, 0.9), r"diagonality: expected numbers in \(0, 1\], got 0"),
        (lambda: ictd.sharp_rate(0.9, 1.1), r"discount: expected numbers in \[0, 1\], got 1\.1"),
        (lambda: ictd.sharp_rate(0.9, 0.9, 0.0), r"step_size: expected numbers in \(0, inf\)"),
        (lambda: ictd.asymptotic_rate(0.9, 0.9, 1.1), r"step_size: expected numbers in \(0, 1\]"),
        (lambda: ictd.power_bound(0.9, 0.9, 1.0, 0.0), r"rate: expected numbers in \(0, inf\)"),
        (lambda: ictd.certified_layers(0.9, 0.9, 1.0, 2.0), r"accuracy: expected numbers in \(0"),
        (
            lambda: ictd.diagonality_needed(0.9, "weak"),
            r"condition: expected 'norm', .* got 'weak'",
        ),
        (lambda: ictd.worst_case(0.9, 0.9, 1.0, 7), "num_states: expected an even number, got 7"),
        (lambda: ictd.worst_case(0.9, 0.9, 1.0, 4), "num_states: expected an integer >= 6, got 4"),
        (lambda: ictd.worst_case(1.0, 0.9, 1.0, 8), r"diagonality: expected numbers in \(0, 1\)"),
        (lambda: ictd.worst_case(0.1, 0.5, 1.0, 8), "diagonality: expected one whose bound"),
    ],
)
def test_refuses(call: Callable[[], Any], message: str) -> None:
    with refuses(ValueError, message):
        call()


def test_names_the_place_of_a_bad_number() -> None:
    with refuses(ValueError, r"diagonality: expected .* at index \(1,\)"):
        ictd.sharp_rate(tensor([0.9, 1.2]), 0.9)
    with refuses(ValueError, r"discount: expected shape .*diagonality"):
        ictd.sharp_rate(tensor([0.9, 0.9]), tensor([0.9]))
