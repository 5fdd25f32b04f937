"""Inputs at the edge of the contract, each of which once gave a wrong or an unclear answer."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import ictd
from strategies import assert_same, refuses, tensor

LOOP = torch.tensor([0, 1, 2, 0, 2, 1, 0])


def endless(reward: float, dtype: torch.dtype = torch.float64) -> ictd.Trajectory:
    """A closed walk that nothing ends and nothing discounts."""
    return ictd.Trajectory(LOOP, torch.full((7,), reward, dtype=dtype), torch.ones(7, dtype=dtype))


def two_prompts() -> ictd.Prompt:
    generator = torch.Generator().manual_seed(0)
    mrp = ictd.boyan_chain(4, generator=generator, batch_shape=(2,), dtype=torch.float64)
    return mrp.sample(9, generator=generator).prompt(torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_discount_or_ending_there_is_no_value(dtype: torch.dtype) -> None:
    walk = endless(1.0, dtype)
    score = ictd.BilinearScore(torch.eye(3, dtype=dtype))
    with refuses(ValueError, "trajectory: expected an ending or a discount below 1"):
        ictd.certainty_equivalence(walk, 3)
    with refuses(ValueError, "prompt: expected a fixed point that"):
        ictd.fixed_point(walk.prompt(torch.eye(3, dtype=dtype)), score)


def test_without_rewards_an_endless_set_is_worth_nothing() -> None:
    assert ictd.certainty_equivalence(endless(0.0), 3).tolist() == [0.0, 0.0, 0.0]
    walk = ictd.random_walk(5, dtype=torch.float64)
    for seed in range(8):
        record = walk.sample(6, generator=torch.Generator().manual_seed(seed)).trim()
        v_hat = ictd.certainty_equivalence(record, 7)
        tabular = ictd.tabular_td(record, 7, num_steps=800, step_size=1.0)
        known = record.is_transition
        assert_same(tabular[known], v_hat[record.states[known]], 1e-9)


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_lstd_does_not_depend_on_the_unit_of_a_feature(unit: float) -> None:
    generator = torch.Generator().manual_seed(1)
    record = ictd.boyan_chain(10, generator=generator).sample(500, generator=generator)
    x = torch.arange(10.0)
    features = torch.stack([x**0, x, x**2, unit * x**3], -1)
    weights = ictd.lstd(record.prompt(features))
    exact = ictd.lstd(record.to(torch.float64).prompt(features.double()))
    assert_same((features @ weights).double(), features.double() @ exact, 1e-2)


def test_a_score_of_nan_shows() -> None:
    prompt = two_prompts()
    broken = ictd.BilinearScore(torch.full((4, 4), torch.nan, dtype=torch.float64))
    assert ictd.softmax_td(prompt, broken, num_steps=1, step_size=1.0).isnan().any()
    holes = ictd.LogKernelScore(torch.nn.LogSigmoid())
    holes.kernel.forward = lambda q, k: q @ k.mT * torch.nan
    with refuses(ValueError, r"kernel\(query, key\): expected entries >= 0"):
        holes(torch.eye(2), torch.eye(2))


@pytest.mark.parametrize(("dtype", "h"), [(torch.float32, 1e-23), (torch.float64, 1e-170)])
def test_a_tiny_bandwidth_does_not_underflow(dtype: torch.dtype, h: float) -> None:
    x = torch.eye(2, dtype=dtype)
    assert ictd.GaussianScore(h)(x, x).diagonal().tolist() == [0.0, 0.0]
    assert ictd.GaussianKernel(h)(x, x).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_a_map_over_the_tokens_of_a_prompt_keeps_its_last_transition() -> None:
    prompt = two_prompts()
    padded = pytree.tree_map(lambda x: torch.cat([torch.zeros_like(x[:, :1]), x], 1), prompt)
    score = ictd.BilinearScore(2 * torch.eye(4, dtype=torch.float64))
    steps = {"num_steps": 5, "step_size": 0.5}
    assert_same(
        ictd.softmax_td(padded, score, **steps)[:, 1:], ictd.softmax_td(prompt, score, **steps)
    )
    short = prompt.with_queries(torch.eye(4, dtype=torch.float64))[:, ...]
    assert pytree.tree_structure(short) == pytree.tree_structure(prompt)


def test_records_of_a_batch_can_be_gone_through() -> None:
    prompt = two_prompts()
    rows = list(prompt)
    assert len(rows) == 2
    assert torch.equal(rows[1].rewards, prompt.rewards[1])
    with pytest.raises(TypeError, match="expected a batch axis"):
        iter(rows[0])


@pytest.mark.compile
def test_export_and_compile_know_a_prompt() -> None:
    prompt = two_prompts()
    model = ictd.InContextTD(4, 2, dtype=torch.float64)
    exported = torch.export.export(model, (prompt,), strict=False).module()
    assert_same(exported(prompt), model(prompt))
    first = torch.compile(lambda p: p[0].features, fullgraph=True, backend="eager")
    assert torch.equal(first(prompt), prompt.features[0])


@pytest.mark.parametrize(
    "observations",
    [
        [np.zeros(2, np.float32), np.ones(2, np.float32)],
        [torch.zeros(2), torch.ones(2)],
        np.array([[1.0, 1.0], [0.0, 0.0]], np.float32)[::-1],
    ],
    ids=["arrays", "tensors", "negative stride"],
)
def test_from_episodes_takes_what_a_loop_collects(observations: object) -> None:
    prompt = ictd.Prompt.from_episodes(
        [observations], [[np.float64(3)]], [np.bool_(True)], [False], discount=0.9
    )
    assert prompt.features.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert prompt.rewards.tolist() == [3.0, 0.0]
    assert prompt.dtype == torch.float32


class Twice(torch.nn.Sequential):
    """A map without parts, which Python takes for False."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def test_from_episodes_calls_a_map_that_is_falsy() -> None:
    prompt = ictd.Prompt.from_episodes(
        [torch.ones(2, 1)], [[1.0]], [True], [False], discount=0.9, features=Twice()
    )
    assert prompt.features.tolist() == [[2.0], [2.0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_solved_in_single(dtype: torch.dtype) -> None:
    walk = ictd.Trajectory(LOOP, torch.arange(7, dtype=dtype), torch.full((7,), 0.5, dtype=dtype))
    prompt, exact = walk.prompt(torch.eye(3, dtype=dtype)), walk.to(torch.float64)
    expected = ictd.certainty_equivalence(exact, 3)
    score = ictd.BilinearScore(4 * torch.eye(3, dtype=dtype))
    found = ictd.certainty_equivalence(walk, 3), ictd.lstd(prompt)
    for values in (*found, ictd.fixed_point(prompt, score)[[0, 1, 2]]):
        assert values.dtype == dtype
        assert_same(values.double(), expected, 0.1)
    assert ictd.median_bandwidth(prompt.features[:3]).dtype == dtype


def test_the_default_device_counts_with_a_generator_too() -> None:
    with torch.device("meta"):
        layer = ictd.SingleHeadLayer(3, generator=torch.Generator("cpu"))
        model = ictd.InContextTD.from_construction(torch.eye(3, device="cpu"), 2, 1.0)
        stock = ictd.stock_attention(torch.eye(3, device="cpu"), 1.0)
    assert layer.attention.is_meta
    assert not model.layers[0].attention.is_meta
    assert not stock.out_proj.weight.is_meta


def test_an_empty_batch_can_be_trimmed() -> None:
    assert two_prompts()[:0].trim().batch_shape == (0,)
    walk = endless(1.0)
    empty = ictd.Trajectory(walk.states[None], walk.rewards[None], walk.discounts[None])[:0]
    assert empty.trim().batch_shape == (0,)


def test_dtypes_are_not_mixed() -> None:
    prompt, mask = two_prompts(), torch.tensor([True, False])
    with refuses(TypeError, "discounts: expected dtype torch.float32"):
        ictd.temporal_shift(torch.ones(2), torch.ones(2, dtype=torch.float64), mask)
    with refuses(TypeError, "values: expected dtype torch.float64"):
        ictd.td_errors(prompt, torch.zeros(2, 10))
    with refuses(TypeError, "query: expected dtype torch.float32"):
        ictd.softmax_td(prompt, ictd.BilinearScore(torch.eye(4)), num_steps=1, step_size=1.0)
    with refuses(TypeError, "discounts: expected dtype torch.float32"):
        Z, gamma = torch.zeros(6, 2), torch.ones(2, dtype=torch.float64)
        ictd.DualHeadLayer(3)(Z, gamma, mask)
    with refuses(TypeError, "rewards: expected a torch.Tensor, got NoneType"):
        ictd.Prompt(torch.eye(2), None, torch.ones(2), mask)
    with refuses(ValueError, "step_size: expected shape"):
        ictd.InContextTD.from_construction(torch.eye(2), 1, torch.ones(3))


def test_no_value_passes_where_no_transition_leaves() -> None:
    values = torch.tensor([1.0, torch.inf, torch.nan])
    shifted = ictd.temporal_shift(values, torch.ones(3), torch.zeros(3, dtype=torch.bool))
    assert shifted.tolist() == [0.0, 0.0, 0.0]


def test_linear_td_out_of_softmax_under_autocast() -> None:
    prompt = copy.deepcopy(two_prompts()).to(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        for algorithm in (ictd.mirrored_keys_td, ictd.opposite_heads_td):
            values = algorithm(prompt, num_steps=1, step_size=1.0, scale=1.0)
            assert values.isfinite().all()


def test_an_exact_run_can_be_drawn() -> None:
    from ictd import plotting

    plotting.plot_convergence(torch.zeros(5, 2)).figure.canvas.draw()


# --- Numbers that are none, and matrices that are nearly singular ---------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_eigenvalues_of_what_is_not_finite(value: float) -> None:
    # LAPACK may end the whole process on such a matrix.
    matrix = torch.eye(3).repeat(2, 1, 1)
    matrix[0, 0, 1] = value
    for found in (ictd.spectral_radius(matrix), ictd.step_size_limit(matrix)):
        assert found[0].isnan()
        assert found[1].isfinite()


def test_singular_attention_is_not_certified() -> None:
    # Two states with the same features: the attention is singular, an eigenvalue of a layer is 1.
    generator = torch.Generator().manual_seed(0)
    transition = torch.rand(4000, 4, 4, generator=generator, dtype=torch.float64).softmax(-1)
    mrp = ictd.MarkovRewardProcess(transition, torch.zeros(4000, 4).double(), 0.5)
    features = ictd.unit_sphere_features(
        4, 3, batch_shape=(4000,), generator=generator, dtype=torch.float64
    )
    features[:, 1] = features[:, 0]
    for dtype in (torch.float64, torch.float32):
        score = ictd.BilinearScore(3 * torch.eye(3, dtype=dtype))
        report = ictd.stability(mrp.to(dtype), features.to(dtype), score=score)
        assert not report.certified.any()


def test_stability_of_kernels_with_tiny_numbers() -> None:
    generator = torch.Generator().manual_seed(9)
    features = 3 * torch.randn(500, 10, 10, generator=generator)
    uniform = torch.full((500, 10, 10), 0.1)
    mrp = ictd.MarkovRewardProcess(uniform, torch.zeros(500, 10), 0.9)
    report = ictd.stability(mrp, features, score=lambda q, k: q @ k.mT)
    assert report.spectral_radius.isfinite().all()


def test_layers_where_one_is_exact() -> None:
    layers = ictd.certified_layers(tensor([1.0, 1.0]), 0.0, 1.0, 0.1)
    assert layers.tolist() == [1.0, 1.0]


def test_intervals_in_half_precision() -> None:
    generator = torch.Generator().manual_seed(0)
    record = ictd.boyan_chain(4, generator=generator).sample(300, generator=generator)
    values, half = ictd.plug_in_interval(record.to(torch.bfloat16), 4, confidence=0.9)
    assert values.dtype == half.dtype == torch.bfloat16
    assert (half > 0).all()


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"rate": -0.5}, r"rate: expected numbers in \[0, inf\]"),
        ({"discount": 1.0}, r"discount: expected numbers in \[0, 1\)"),
        ({"step_size": 0.0}, r"step_size: expected numbers in \(0, inf\)"),
        ({"power_constant": 0.0}, r"power_constant: expected numbers in \[1, inf\]"),
        ({"step_size": tensor([1.0, 1.0]), "reward_bound": tensor([[1.0]])}, "reward_bound"),
    ],
)
def test_a_bound_of_impossible_numbers(changed: dict[str, Any], match: str) -> None:
    fine = {"rate": 0.5, "discount": 0.5, "step_size": 1.0, "reward_bound": 1.0}
    with refuses(ValueError, match):
        ictd.neu_bound(num_layers=2, **(fine | changed))
