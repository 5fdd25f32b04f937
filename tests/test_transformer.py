"""The Transformer: layers against written-out matrices, the two theorems, and its cost."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

import ictd
from reference import td as reference_td
from reference import transformer as reference
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

MATRIX = random_matrix(3, 3)
KINDS = [(heads, form) for heads in (1, 2) for form in ("structured", "full")]

# torch has no batching rule for fused attention on CPUs: it says so, and loops.
ignore_slow_vmap = pytest.mark.filterwarnings("ignore:There is a performance drop")
every_kind = pytest.mark.parametrize(("num_heads", "parametrization"), KINDS)
every_looping = pytest.mark.parametrize("looped", [True, False], ids=["looped", "untied"])
every_batch_shape = pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)


def random_model(
    num_heads: int,
    parametrization: str,
    *,
    num_layers: int = 3,
    feature_dim: int = 3,
    looped: bool = False,
    seed: int = 0,
) -> ictd.InContextTD:
    """A model with weights that mean nothing, large enough for every row to matter."""
    model = ictd.InContextTD(
        feature_dim,
        num_layers,
        looped=looped,
        parametrization=parametrization,
        num_heads=num_heads,
        dtype=torch.float64,
        generator=torch.Generator().manual_seed(seed),
    )
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=generator)
    return model


Matrices = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def matrices(layer: nn.Module, num_heads: int, parametrization: str) -> Matrices:
    """Q, V_cur and V_tgt (None for the single head) of a layer, in full."""
    weights = {name: p.detach().numpy() for name, p in layer.named_parameters()}
    if parametrization == "full":
        return weights["query_key"], weights["value_current"], weights.get("value_target")
    dim = len(weights["attention"])
    V_cur, V_tgt = (
        reference.structured_value(dim, weights["value_weights"], dim + row) for row in (2, 1)
    )
    Q = reference.structured_query_key(weights["attention"])
    return Q, V_cur, V_tgt if num_heads == 2 else None


def all_matrices(model: ictd.InContextTD, num_heads: int, parametrization: str) -> list[Matrices]:
    """The matrices of every layer; a looped model repeats its only one."""
    layers = [matrices(layer, num_heads, parametrization) for layer in model.layers]
    return layers * model.num_layers if model.looped else layers


def flags(drawn: Contexts) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Discounts, transitions and terminal tokens, as a layer takes them."""
    return (
        tensor(drawn.discounts),
        torch.as_tensor(drawn.is_transition),
        torch.as_tensor(drawn.is_terminal),
    )


# The theorems ----------------------------------------------------------------------------------


@pytest.mark.claim("thm-equivalence")
@every_kind
@every_looping
def test_a_thousand_prompts(num_heads: int, parametrization: str, looped: bool) -> None:
    prompt = random_contexts(1, batch_shape=(1000,), num_tokens=16, num_queries=3).prompt()
    matrix = tensor(MATRIX)
    values = ictd.softmax_td(
        prompt, ictd.BilinearScore(matrix), num_steps=6, step_size=0.8, return_history=True
    )
    model = ictd.InContextTD.from_construction(
        matrix, 6, 0.8, looped=looped, parametrization=parametrization, num_heads=num_heads
    )
    with torch.no_grad():
        history = model(prompt, return_history=True)
        assert_same(model(prompt), history[-1])
    assert history.shape == (7, 1000, 20)
    assert_same(history, values)
    assert history[-1].abs().amax() > 1.0


@pytest.mark.claim("thm-equivalence")
@every_kind
@quick
@given(drawn=contexts(feature_dim=3), step_size=st.floats(0.1, 1.2), seed=st.integers(0, 99))
def test_equivalence_on_any_context(
    num_heads: int, parametrization: str, drawn: Contexts, step_size: float, seed: int
) -> None:
    matrix = random_matrix(seed, 3)
    model = ictd.InContextTD.from_construction(
        tensor(matrix), 4, step_size, parametrization=parametrization, num_heads=num_heads
    )
    expected = drawn.loop(
        lambda c: reference_td.softmax_td(
            c, reference_td.bilinear(matrix), num_steps=4, step_size=step_size
        )
    )
    with torch.no_grad():
        assert_same(model(drawn.with_junk().prompt(), return_history=True), expected)


@pytest.mark.claim("thm-equivalence")
def test_both_memories_of_the_layer() -> None:
    # Row d + 2 is v_l, row d + 1 its discounted shift, for consistent memory that is not zero.
    drawn = random_contexts(2)
    c = drawn[()]
    start = np.random.default_rng(0).normal(size=len(drawn.states))
    Z = drawn.prompt().matrix(tensor(start))
    layer = ictd.DualHeadLayer(3, dtype=torch.float64).construct(tensor(MATRIX), 0.8)
    history = reference_td.softmax_td(
        c, reference_td.bilinear(MATRIX), num_steps=4, step_size=0.8, initial_values=start
    )
    for values in history:
        assert_same(Z[-1], tensor(values))
        shifted = reference.temporal_shift(values, c.discounts, c.is_transition)
        assert_same(Z[-2], tensor(shifted))
        assert_same(Z[:4], drawn.prompt().matrix()[:4])
        Z = layer(Z, *flags(drawn)).detach()


@pytest.mark.parametrize("seed", range(3))
@every_batch_shape
def test_tied_heads_are_one_head_and_a_shift(batch_shape: tuple[int, ...], seed: int) -> None:
    drawn = random_contexts(seed, batch_shape=batch_shape)
    start = tensor(np.random.default_rng(seed).normal(size=drawn.states.shape))
    dual = random_model(2, "structured", seed=seed)
    single = random_model(1, "structured", seed=seed)
    single.load_state_dict(dual.state_dict())
    Z_dual = Z_single = drawn.prompt().matrix(start)
    with torch.no_grad():
        for one, other in zip(dual.layers, single.layers, strict=True):
            Z_dual = one(Z_dual, *flags(drawn))
            Z_single = other(Z_single, *flags(drawn))
            assert_same(Z_dual, Z_single)


def iterate(layer: nn.Module, Z: torch.Tensor, num_steps: int) -> list[float]:
    """The value at the first of two tokens in the same state, gamma = 1/2, after every layer."""
    discounts, transitions = tensor([0.5, 0.0]), torch.tensor([True, False])
    values = []
    for _ in range(num_steps):
        Z = layer(Z, discounts, transitions).detach()
        values.append(Z[-1, 0].item())
    return values


def test_heads_that_are_not_tied_are_not_one_head() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    dual, single = (
        cls(1, parametrization="full", dtype=torch.float64).construct(one, 1.0)
        for cls in (ictd.DualHeadLayer, ictd.SingleHeadLayer)
    )
    Z = tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert iterate(dual, Z, 3) == iterate(single, Z, 3) == [1.0, 1.5, 1.75]
    with torch.no_grad():
        dual.value_target.mul_(2.0)
    assert iterate(dual, Z, 4) == [1.0, 2.0, 3.0, 4.0]


def test_memory_that_is_not_consistent_breaks_the_equality() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    dual, single = (
        cls(1, dtype=torch.float64).construct(one, 1.0)
        for cls in (ictd.DualHeadLayer, ictd.SingleHeadLayer)
    )
    Z = tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    assert iterate(single, Z, 3) == [2.0, 2.0, 2.0]
    assert iterate(dual, Z, 3) == [2.0, 3.0, 3.5]
    assert iterate(dual, Z, 60)[-1] == pytest.approx(4.0)


# Layers against the written-out matrices -------------------------------------------------------


@every_kind
@every_batch_shape
@pytest.mark.parametrize("seed", range(2))
def test_layer_matches_the_reference(
    num_heads: int, parametrization: str, batch_shape: tuple[int, ...], seed: int
) -> None:
    drawn = random_contexts(seed, batch_shape=batch_shape)
    model = random_model(num_heads, parametrization, num_layers=1, seed=seed)
    layer = model.layers[0]
    Z = drawn.prompt().matrix()
    memory = tensor(np.random.default_rng(seed).normal(size=(*drawn.states.shape, 2)))
    Z = torch.cat([Z[..., :-2, :], memory.mT], -2)
    result = layer(Z, *flags(drawn))
    Q, V_cur, V_tgt = matrices(layer, num_heads, parametrization)
    for index in drawn.indices():
        c, columns = drawn[index], Z[index].numpy()
        rest = (c.discounts, c.is_transition, c.is_terminal)
        if V_tgt is None:
            expected = reference.single_head_layer(columns, Q, V_cur, *rest)
        else:
            expected = reference.dual_head_layer(columns, Q, V_cur, V_tgt, *rest)
        assert_same(result[index].detach(), tensor(expected))


@every_kind
@every_looping
@every_batch_shape
def test_model_matches_the_reference(
    num_heads: int, parametrization: str, looped: bool, batch_shape: tuple[int, ...]
) -> None:
    drawn = random_contexts(4, batch_shape=batch_shape)
    model = random_model(num_heads, parametrization, looped=looped)
    layers = all_matrices(model, num_heads, parametrization)
    assert len(layers) == 3
    assert len(model.layers) == (1 if looped else 3)
    expected = drawn.loop(lambda c: reference.in_context_td(c, layers))
    with torch.no_grad():
        assert_same(model(drawn.with_junk().prompt(), return_history=True), expected)


@pytest.mark.parametrize("layer_type", [ictd.DualHeadLayer, ictd.SingleHeadLayer])
def test_layers_are_untouched_by_junk_in_masked_columns(layer_type: type[nn.Module]) -> None:
    # A full layer reads the reward row of its queries, so this is about the structured one.
    drawn = random_contexts(5, batch_shape=(2,), num_queries=3)
    layer = layer_type(3, dtype=torch.float64)
    junk = drawn.with_junk()
    results, found = [], []
    for version in (drawn, junk):
        Z = drawn.prompt().matrix()
        Z = torch.cat([Z[:, :3], tensor(version.rewards).unsqueeze(-2), Z[:, 4:]], -2)
        Z.requires_grad_()
        discounts = tensor(version.discounts).requires_grad_()
        result = layer(Z, discounts, *flags(drawn)[1:])
        results.append(result[:, -2:])
        found.append(gradients(results[-1], [Z, discounts, *layer.parameters()]))
    assert_same(results[1], results[0])
    for clean, dirty in zip(*found, strict=True):
        assert_same(dirty, clean)


def test_terminal_columns_receive_nothing() -> None:
    drawn = random_contexts(6, batch_shape=(4,))
    model = random_model(2, "full", num_layers=1)
    Z = drawn.prompt().matrix(torch.ones(4, 17, dtype=torch.float64))
    discounts, transitions, terminal = flags(drawn)
    assert terminal.any()
    moved = model.layers[0](Z, discounts, transitions, terminal)
    before, after = Z.mT[terminal], moved.mT[terminal]
    assert_same(after, before)
    unpinned = model.layers[0](Z, discounts, transitions)
    assert not torch.allclose(unpinned.mT[terminal], before)


def test_temporal_shift_by_hand() -> None:
    values = tensor([1.0, 2.0, 4.0, 8.0])
    discounts = tensor([0.5, torch.nan, 0.25, 0.9])
    transitions = torch.tensor([True, False, True, False])
    expected = tensor([1.0, 0.0, 2.0, 0.0])
    assert_same(ictd.temporal_shift(values, discounts, transitions), expected)
    Z = torch.cat([tensor(np.arange(12.0)).reshape(3, 4), 9 + 0 * values[None], values[None]])
    shifted = ictd.TemporalShift()(Z, discounts, transitions)
    assert_same(shifted, torch.cat([Z[:3], expected[None], values[None]]))


@every_batch_shape
def test_temporal_shift_matches_the_reference(batch_shape: tuple[int, ...]) -> None:
    drawn = random_contexts(7, batch_shape=batch_shape)
    values = np.random.default_rng(0).normal(size=drawn.states.shape)
    shifted = ictd.temporal_shift(tensor(values), *flags(drawn.with_junk())[:2])
    for index in drawn.indices():
        c = drawn[index]
        expected = reference.temporal_shift(values[index], c.discounts, c.is_transition)
        assert_same(shifted[index], tensor(expected))


# The layer as stock attention ------------------------------------------------------------------


def test_the_layer_is_scaled_dot_product_attention() -> None:
    drawn = random_contexts(8, terminal=False)
    Z = drawn.prompt().matrix(tensor(np.linspace(-1, 1, 17)))
    discounts, transitions, _ = flags(drawn)
    layer = ictd.DualHeadLayer(3, dtype=torch.float64).construct(tensor(MATRIX), 0.8)
    td_error = 0.8 * (Z[3] + Z[4] - Z[5])
    update = nn.functional.scaled_dot_product_attention(
        Z[:3].T @ tensor(MATRIX).T,
        Z[:3].T,
        td_error[:, None],
        attn_mask=transitions.expand(17, 17),
        scale=1.0,
    )[:, 0]
    result = layer(Z, discounts, transitions)
    assert_same(result[5], Z[5] + update)
    assert_same(result[4], Z[4] + ictd.temporal_shift(update, discounts, transitions))


def test_the_layer_is_stock_multihead_attention() -> None:
    # One head over tokens [phi, R, v', v] of width d + 3; torch divides by the root of the width.
    drawn = random_contexts(9, terminal=False)
    Z = drawn.prompt().matrix(tensor(np.linspace(-1, 1, 17)))
    discounts, transitions, _ = flags(drawn)
    attention = nn.MultiheadAttention(6, 1, bias=False, batch_first=True, dtype=torch.float64)
    Q = reference.structured_query_key(MATRIX)
    V = reference.structured_value(3, 0.8 * np.array([1.0, 1.0, -1.0]), 5)
    with torch.no_grad():
        stacked = torch.cat([tensor(Q) * 6**0.5, torch.eye(6, dtype=torch.float64), tensor(V)])
        attention.in_proj_weight.copy_(stacked)
        attention.out_proj.weight.copy_(torch.eye(6, dtype=torch.float64))
        tokens = Z.T[None]
        update, weights = attention(tokens, tokens, tokens, key_padding_mask=~transitions[None])
        layer = ictd.SingleHeadLayer(3, dtype=torch.float64).construct(tensor(MATRIX), 0.8)
        assert_same(layer(Z, discounts, transitions)[5], Z[5] + update[0, :, 5])
        assert_same(update[0, :, :5], torch.zeros(17, 5, dtype=torch.float64))
        score = ictd.BilinearScore(tensor(MATRIX))
        assert_same(weights[0], ictd.attention_weights(drawn.prompt(), score))


class Calls(TorchFunctionMode):
    """Record the shapes of query and key of every call of fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "scaled_dot_product_attention":
            self.shapes.append((args[0].shape[-2], args[1].shape[-2]))
        return func(*args, **(kwargs or {}))


@every_kind
def test_queries_are_never_keys(num_heads: int, parametrization: str) -> None:
    model = random_model(num_heads, parametrization)
    prompt = random_contexts(10, num_tokens=6, num_padding=0, num_queries=30, closed=True).prompt()
    with Calls() as calls, torch.no_grad():
        model(prompt)
    assert calls.shapes == [(36, 5)] * 3  # shared by the two heads as well


# What a caller sees ----------------------------------------------------------------------------


def test_the_snippet_of_the_contract() -> None:
    generator = torch.Generator().manual_seed(0)
    mrp = ictd.boyan_chain(10, discount=0.9, generator=generator)
    features = ictd.unit_sphere_features(10, 4, generator=generator)
    trajectory = mrp.sample(200, generator=generator)
    prompt = trajectory.prompt(features)
    score = ictd.BilinearScore(50.0 * torch.eye(4))

    values = ictd.softmax_td(prompt, score, num_steps=40, step_size=1.0)
    model = ictd.InContextTD.from_construction(score.matrix, num_layers=40, step_size=1.0)
    torch.testing.assert_close(model(prompt), values)
    assert trajectory.states.shape == trajectory.rewards.shape == values.shape == (201,)
    assert features.shape == (10, 4)
    assert len(prompt) == 201
    assert mrp.value().shape == mrp.stationary_distribution().shape == (10,)


@every_kind
def test_initial_values(num_heads: int, parametrization: str) -> None:
    drawn = random_contexts(23, batch_shape=(3,))
    start = tensor(np.random.default_rng(0).normal(size=drawn.states.shape))
    matrix = tensor(MATRIX)
    model = ictd.InContextTD.from_construction(
        matrix, 4, 0.8, num_heads=num_heads, parametrization=parametrization
    )
    with torch.no_grad():
        history = model(drawn.prompt(), return_history=True, initial_values=start)
    expected = ictd.softmax_td(
        drawn.prompt(),
        ictd.BilinearScore(matrix),
        num_steps=4,
        step_size=0.8,
        initial_values=start,
        return_history=True,
    )
    assert_same(history, expected)
    pinned = torch.as_tensor(drawn.is_terminal)
    assert_same(history[0], start.masked_fill(pinned, 0.0))


@every_kind
@every_batch_shape
def test_history(num_heads: int, parametrization: str, batch_shape: tuple[int, ...]) -> None:
    prompt = random_contexts(11, batch_shape=batch_shape).prompt()
    model = random_model(num_heads, parametrization)
    with torch.no_grad():
        history = model(prompt, return_history=True)
        assert history.shape == (4, *batch_shape, 17)
        assert history[0].eq(0.0).all()
        assert_same(model(prompt), history[-1])


@pytest.mark.parametrize("layer_type", [ictd.DualHeadLayer, ictd.SingleHeadLayer])
def test_parameters(layer_type: type[nn.Module]) -> None:
    structured = {n: tuple(p.shape) for n, p in layer_type(4).named_parameters()}
    assert structured == {"attention": (4, 4), "value_weights": (3,)}
    full = layer_type(4, parametrization="full")
    expected = {"query_key": (7, 7), "value_current": (7, 7)}
    if layer_type is ictd.DualHeadLayer:
        expected["value_target"] = (7, 7)
    assert {n: tuple(p.shape) for n, p in full.named_parameters()} == expected


@every_kind
def test_construction_writes_the_weights_of_the_theorem(
    num_heads: int, parametrization: str
) -> None:
    matrix = tensor(MATRIX)
    model = ictd.InContextTD.from_construction(
        matrix, 3, 0.8, parametrization=parametrization, num_heads=num_heads, looped=False
    )
    for layer in model.layers:
        Q, V_cur, V_tgt = matrices(layer, num_heads, parametrization)
        weights = 0.8 * np.array([1.0, 1.0, -1.0])
        np.testing.assert_array_equal(Q, reference.structured_query_key(MATRIX))
        np.testing.assert_array_equal(V_cur, reference.structured_value(3, weights, 5))
        assert (V_tgt is None) == (num_heads == 1)
        if V_tgt is not None:
            np.testing.assert_array_equal(V_tgt, reference.structured_value(3, weights, 4))
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    assert_same(matrix, tensor(MATRIX))  # the model trains a copy


def test_a_generator_fixes_the_weights_and_spares_the_global_one() -> None:
    def make(seed: int) -> ictd.InContextTD:
        return ictd.InContextTD(3, 2, looped=False, generator=torch.Generator().manual_seed(seed))

    state = torch.get_rng_state()
    first, again, other = make(0), make(0), make(1)
    assert torch.equal(torch.get_rng_state(), state)
    for a, b, c in zip(*(m.parameters() for m in (first, again, other)), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    assert not torch.equal(first.layers[0].attention, first.layers[1].attention)


def test_without_a_generator_weights_follow_the_convention_of_torch() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        first = ictd.InContextTD(3, 2)
        torch.manual_seed(3)
        again = ictd.InContextTD(3, 2)
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


@every_kind
def test_nothing_else_is_touched(num_heads: int, parametrization: str) -> None:
    prompt = random_contexts(12, batch_shape=(3,)).with_junk().prompt()
    before = [x.clone() for x in pytree.tree_leaves(prompt)]
    Z, state = prompt.matrix(), torch.get_rng_state()
    Z_before = Z.clone()
    model = ictd.InContextTD.from_construction(
        tensor(MATRIX), 2, 1.0, num_heads=num_heads, parametrization=parametrization
    )
    with torch.no_grad():
        model(prompt)
        model.layers[0](Z, prompt.discounts, prompt.is_transition, prompt.is_terminal)
    assert torch.equal(Z, Z_before)
    assert torch.equal(torch.get_rng_state(), state)
    for old, new in zip(before, pytree.tree_leaves(prompt), strict=True):
        torch.testing.assert_close(new, old, rtol=0, atol=0, equal_nan=True)


@every_kind
@every_batch_shape
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_dtype_and_device_follow_the_prompt(
    num_heads: int, parametrization: str, batch_shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    drawn = random_contexts(13, batch_shape=batch_shape)
    model = random_model(num_heads, parametrization)
    with torch.no_grad():
        expected = model(drawn.prompt())
        prompt = drawn.prompt(dtype)
        values = copy.deepcopy(model).to(dtype)(prompt)
    assert (values.dtype, values.device) == (dtype, prompt.device)
    torch.testing.assert_close(values.double(), expected, rtol=0, atol=2e-5)


@every_kind
def test_state_dict_round_trip(num_heads: int, parametrization: str) -> None:
    prompt = random_contexts(14).prompt()
    model = random_model(num_heads, parametrization, seed=0)
    other = random_model(num_heads, parametrization, seed=5)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(prompt), model(prompt))


# Invariances -----------------------------------------------------------------------------------


@every_kind
@quick
@given(seed=st.integers(0, 2**32 - 1))
def test_permuting_columns_with_their_memory(
    num_heads: int, parametrization: str, seed: int
) -> None:
    drawn = random_contexts(seed, num_queries=1, num_padding=0, terminal=False)
    rng = np.random.default_rng(seed)
    model = random_model(num_heads, parametrization, num_layers=1)
    Z = drawn.prompt().matrix()
    memory = tensor(rng.normal(size=(2, len(drawn.states))))
    # tokens without a transition have no successor to remember
    memory[0, ~torch.as_tensor(drawn.is_transition)] = 0.0
    Z = torch.cat([Z[:-2], memory])
    order = torch.as_tensor(np.append(rng.permutation(Z.shape[1] - 1), Z.shape[1] - 1))
    discounts, transitions, _ = flags(drawn)
    with torch.no_grad():
        if (num_heads, parametrization) == (2, "full"):
            # what the target head writes is shifted to the column before: only row d + 1 may be
            model.layers[0].value_target[-1] = 0.0
        moved = model.layers[0](Z, discounts, transitions)
        permuted = model.layers[0](Z[:, order], discounts[order], transitions[order])
    assert_same(permuted[-1], moved[-1][order])


@every_kind
@quick
@given(drawn=contexts(feature_dim=3), extra=st.integers(1, 3))
def test_queries_and_padding_change_nothing_else(
    num_heads: int, parametrization: str, drawn: Contexts, extra: int
) -> None:
    model = random_model(num_heads, parametrization)
    prompt = drawn.prompt()
    queries = torch.ones(*drawn.batch_shape, extra, 3, dtype=torch.float64)
    longer = prompt.with_queries(queries)
    stacked = ictd.Prompt.stack([prompt, longer])
    tokens = len(prompt)
    with torch.no_grad():
        before = model(prompt)
        assert_same(model(longer)[..., :tokens], before)
        assert_same(model(stacked)[0, ..., :tokens], before)
        assert_same(model(stacked)[1], model(longer))


@quick
@given(drawn=contexts(feature_dim=3), a=st.floats(-3, 3), b=st.floats(-3, 3))
def test_structured_models_are_linear_in_the_rewards(drawn: Contexts, a: float, b: float) -> None:
    model = random_model(2, "structured")
    prompt = drawn.prompt()
    other = torch.roll(prompt.rewards, 1, -1) + 0.5

    def run(rewards: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(replace(prompt, rewards=rewards))

    combined = run(a * prompt.rewards + b * other)
    assert_same(combined, a * run(prompt.rewards) + b * run(other))


@ignore_slow_vmap
@every_kind
def test_batch_equals_loop_equals_vmap(num_heads: int, parametrization: str) -> None:
    drawn = random_contexts(15, batch_shape=(2, 3))
    prompt = drawn.prompt()
    model = random_model(num_heads, parametrization)
    with torch.no_grad():
        batched = model(prompt)
        looped = torch.stack([model(prompt[index]) for index in drawn.indices()])
        assert_same(batched, looped.reshape(batched.shape))
        assert_same(torch.vmap(torch.vmap(model))(prompt), batched)


@every_kind
def test_a_context_without_transitions_changes_nothing(
    num_heads: int, parametrization: str
) -> None:
    # C10
    drawn = random_contexts(16, batch_shape=(2,))
    drawn.is_transition[1] = False
    model = random_model(num_heads, parametrization)
    values = model(drawn.with_junk().prompt())
    assert values[1].eq(0.0).all()
    assert values[0].ne(0.0).any()
    parameters = list(model.parameters())
    alone = gradients(model(drawn.prompt()[0]), parameters)
    for gradient, expected in zip(gradients(values, parameters), alone, strict=True):
        assert_same(gradient, expected, tolerance=1e-10)
    empty = gradients(model(drawn.prompt()[1]) + 1.0, parameters)
    assert all(g.eq(0.0).all() for g in empty)


@every_kind
def test_masking_the_last_transition_equals_slicing_it_off(
    num_heads: int, parametrization: str
) -> None:
    # C11
    prompt = random_contexts(17, num_tokens=4, num_queries=0, num_padding=0, closed=True).prompt()
    model = random_model(num_heads, parametrization)
    masked = replace(prompt, is_transition=torch.tensor([True, True, False, False]))
    sliced = ictd.Prompt(
        prompt.features[:3],
        prompt.rewards[:3],
        prompt.discounts[:3],
        torch.tensor([True, True, False]),
    )
    with torch.no_grad():
        assert_same(model(masked)[:3], model(sliced))


def test_huge_scores() -> None:
    # C9: scores 10^4 (1, .9, -1), with a tie, through the fused kernel.
    features = tensor([[1.0], [0.9], [-1.0], [1.0], [0.0]]).requires_grad_()
    prompt = ictd.Prompt(
        features,
        tensor([5.0, 7.0, 11.0, 0.0, 0.0]),
        torch.zeros(5, dtype=torch.float64),
        torch.tensor([True, True, True, False, False]),
    )
    model = ictd.InContextTD.from_construction(tensor([[1e4]]), 1, 1.0)
    values = model(prompt)
    assert_same(values, tensor([5.0, 5.0, 11.0, 5.0, 23.0 / 3]))
    for gradient in gradients(values, [features, *model.parameters()]):
        assert gradient.isfinite().all()


# Gradients and cost ----------------------------------------------------------------------------


@every_kind
@every_looping
def test_gradcheck_in_every_parameter_and_input(
    num_heads: int, parametrization: str, looped: bool
) -> None:
    # C13: three learned layers.
    prompt = random_contexts(18, num_tokens=6, feature_dim=2, num_padding=0).prompt()
    model = random_model(num_heads, parametrization, feature_dim=2, looped=looped)
    names = [name for name, _ in model.named_parameters()]

    def run(
        features: torch.Tensor, rewards: torch.Tensor, discounts: torch.Tensor, *weights: Any
    ) -> torch.Tensor:
        changed = replace(prompt, features=features, rewards=rewards, discounts=discounts)
        return torch.func.functional_call(model, dict(zip(names, weights, strict=True)), (changed,))

    inputs = [prompt.features, prompt.rewards, prompt.discounts.clamp(0.1, 0.9)]
    inputs += [p.detach() for p in model.parameters()]
    leaves = [x.clone().requires_grad_() for x in inputs]
    # the fast mode projects at random: from a fixed seed, and leaving the global one alone
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fast = parametrization == "full"
        assert torch.autograd.gradcheck(run, leaves, fast_mode=fast)
    assert all(p.grad is None for p in model.parameters())
    model(prompt).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@every_kind
def test_what_masked_tokens_hold_reaches_no_gradient(num_heads: int, parametrization: str) -> None:
    drawn = random_contexts(19, batch_shape=(3,))
    model = random_model(num_heads, parametrization)
    found = []
    for version in (drawn, drawn.with_junk()):
        leaves = [
            tensor(x).requires_grad_()
            for x in (version.features, version.rewards, version.discounts)
        ]
        prompt = ictd.Prompt(*leaves, *flags(version)[1:])
        found.append(gradients(model(prompt), [*leaves, *model.parameters()]))
    for clean, junk in zip(*found, strict=True):
        assert_same(junk, clean)
    for junk in found[1][1:3]:
        assert junk[~torch.as_tensor(drawn.is_transition)].eq(0.0).all()


@pytest.fixture
def saved() -> Iterator[list[int]]:
    """The number of elements of everything that autograd saves."""
    sizes: list[int] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        sizes.append(x.untyped_storage().nbytes() // x.element_size())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        yield sizes


@every_kind
def test_no_attention_matrix_is_kept(
    num_heads: int, parametrization: str, saved: list[int]
) -> None:
    # C12, at 4,000 tokens: forward and backward through four layers.
    tokens, dim = 4_000, 8
    generator = torch.Generator().manual_seed(0)
    prompt = ictd.Prompt(
        nn.functional.normalize(torch.randn(tokens, dim, generator=generator), dim=-1),
        torch.randn(tokens, generator=generator),
        torch.full((tokens,), 0.9),
        torch.arange(tokens) < tokens - 1,
    )
    model = ictd.InContextTD.from_construction(
        5.0 * torch.eye(dim), 4, 0.5, num_heads=num_heads, parametrization=parametrization
    )
    model(prompt).square().mean().backward()
    assert len(saved) > 4
    assert max(saved) <= 3 * tokens * (dim + 3)
    assert sum(saved) < tokens**2 / 4
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.compile
@pytest.mark.parametrize(("num_heads", "parametrization"), [(1, "structured"), (2, "full")])
def test_compiles_without_a_graph_break(num_heads: int, parametrization: str) -> None:
    prompt = random_contexts(20, batch_shape=(3,)).prompt()
    model = random_model(num_heads, parametrization)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_same(compiled(prompt, return_history=True), model(prompt, return_history=True))


# Failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"num_layers": 0}, ValueError, r"num_layers.*expected.*1.*got 0"),
        ({"num_layers": 1.5}, TypeError, r"num_layers.*expected an integer.*got float"),
        ({"feature_dim": 0}, ValueError, r"feature_dim.*expected.*got 0"),
        ({"parametrization": "lean"}, ValueError, r"parametrization.*expected.*got 'lean'"),
        ({"num_heads": 3}, ValueError, r"num_heads.*expected 1 or 2.*got 3"),
    ],
)
def test_refuses(arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    with refuses(error, match):
        ictd.InContextTD(**{"feature_dim": 3, "num_layers": 2, **arguments})


@pytest.mark.parametrize(
    ("matrix", "error"),
    [
        (torch.ones(2, 3), ValueError),
        (torch.ones(3), ValueError),
        (torch.eye(3, dtype=torch.int64), TypeError),
        ([[1.0]], TypeError),
    ],
    ids=["not square", "one axis", "integers", "a list"],
)
def test_construction_refuses_a_matrix(matrix: Any, error: type[Exception]) -> None:
    with refuses(error, r"matrix.*expected.*got"):
        ictd.InContextTD.from_construction(matrix, 2, 1.0)


@every_kind
def test_refuses_a_prompt_of_another_width(num_heads: int, parametrization: str) -> None:
    model = random_model(num_heads, parametrization)
    with refuses(ValueError, r"expected.*got.*8"):
        model(random_contexts(21, feature_dim=5).prompt())


@every_kind
def test_refuses_a_prompt_of_another_dtype(num_heads: int, parametrization: str) -> None:
    model = random_model(num_heads, parametrization)
    with refuses(TypeError, r"expected.*float64.*got.*float32"):
        model(random_contexts(22).prompt(torch.float32))


@pytest.mark.parametrize("layer_type", [ictd.DualHeadLayer, ictd.SingleHeadLayer])
@pytest.mark.parametrize(
    ("position", "value", "error", "match"),
    [
        (0, torch.ones(5, 4), ValueError, r"Z.*expected.*6.*got \(5, 4\)"),
        (0, torch.ones(6), ValueError, r"Z.*expected.*got \(6,\)"),
        (0, torch.ones(6, 4).long(), TypeError, r"Z.*floating.*int64"),
        (1, torch.ones(3), ValueError, r"discounts.*expected.*\(4,\).*got \(3,\)"),
        (2, torch.ones(3) > 0, ValueError, r"is_transition.*expected.*\(4,\).*got \(3,\)"),
        (3, torch.ones(3) > 0, ValueError, r"is_terminal.*expected.*\(4,\).*got \(3,\)"),
        (2, torch.ones(4), TypeError, r"is_transition.*bool.*float32"),
        (3, torch.ones(4), TypeError, r"is_terminal.*bool.*float32"),
    ],
)
def test_layers_refuse(
    layer_type: type[nn.Module],
    position: int,
    value: torch.Tensor,
    error: type[Exception],
    match: str,
) -> None:
    arguments: list[torch.Tensor] = [torch.ones(6, 4), torch.ones(4), *(torch.zeros(2, 4) > 0)]
    layer = layer_type(3)
    assert layer(*arguments).shape == (6, 4)
    arguments[position] = value
    with refuses(error, match):
        layer(*arguments)


def test_temporal_shift_refuses() -> None:
    values, transitions = tensor([1.0, 2.0]), torch.tensor([True, False])
    with refuses(ValueError, r"discounts.*\(2,\).*got \(1,\)"):
        ictd.temporal_shift(values, tensor([0.5]), transitions)
    with refuses(ValueError, r"is_transition.*\(2,\).*got \(1,\)"):
        ictd.temporal_shift(values, values, transitions[:1])
    with refuses(TypeError, r"is_transition.*bool"):
        ictd.temporal_shift(values, values, values)
