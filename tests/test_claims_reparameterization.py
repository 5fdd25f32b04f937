"""The numbered results of chapter 4: two tied heads are one head and a shift.

The package's layers are compared over 1,000 contexts, with episodes that end, episodes that are
cut, zero discounts, queries, padding and random memory; the theorem itself, which knows no softmax,
is checked with matrices written out in NumPy.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import ictd
from reference import td as reference_td
from reference import transformer as reference
from reference.td import Array
from strategies import assert_same, contexts, quick, random_contexts, random_matrix, tensor

DEPTH = 5
DIM = 3
ROWS = DIM + 3
TARGET, CURRENT = DIM + 1, DIM + 2

# The two forms, written out ---------------------------------------------------------------------

Nonlinearity = Callable[[Array], Array]


def softmax(X: Array) -> Array:
    weights = np.exp(X - X.max(0))
    return weights / weights.sum(0)


NONLINEARITIES: dict[str, Nonlinearity] = {
    "softmax over all columns": softmax,
    "sigmoid": lambda X: 1 / (1 + np.exp(-X)) / len(X),
    "relu": lambda X: np.maximum(X, 0) / len(X),
    "none": lambda X: X / len(X),
    "hard maximum": lambda X: np.eye(len(X))[:, X.argmax(0)],
    "sine": lambda X: np.sin(X) / len(X),
}


def two_heads(Z: Array, u: Array, shift: Array, *, factor: float = 1.0) -> Array:
    Z = Z.copy()
    Z[CURRENT] += u
    Z[TARGET] += factor * (u @ shift)
    return Z


def one_head(Z: Array, u: Array, shift: Array) -> Array:
    Z = Z.copy()
    Z[CURRENT] += u
    Z[TARGET] = Z[CURRENT] @ shift
    return Z


def written_out(seed: int) -> tuple[Array, Array]:
    """A consistent prompt matrix with random memory, and its matrix Pi Gamma."""
    context = random_contexts(seed)[()]
    values = np.random.default_rng(seed).normal(size=len(context.rewards))
    shift = reference.shift_matrix(len(values)) @ reference.discount_matrix(
        context.discounts, context.is_transition
    )
    return reference.prompt_matrix(context, values), shift


def relative(difference: Array, scale: Array) -> float:
    return float(np.abs(difference).max() / max(1.0, np.abs(scale).max()))


# Layers of the package --------------------------------------------------------------------------


def run(layers: Sequence[nn.Module], Z: Tensor, prompt: ictd.Prompt) -> Tensor:
    """Z before the first and after every layer."""
    history = [Z]
    for layer in layers:
        flags = (prompt.discounts, prompt.is_transition, prompt.is_terminal)
        history.append(layer(history[-1], *flags))
    return torch.stack(history)


def make(kind: type[nn.Module], parametrization: str, dim: int = DIM) -> Any:
    return kind(dim, parametrization=parametrization, dtype=torch.float64)


@torch.no_grad()
def structured_pair(seed: int) -> tuple[nn.Module, nn.Module]:
    """Both layers with the same random weights."""
    dual, single = (make(k, "structured") for k in (ictd.DualHeadLayer, ictd.SingleHeadLayer))
    generator = torch.Generator().manual_seed(seed)
    for parameter in dual.parameters():
        parameter.normal_(std=0.5, generator=generator)
    single.load_state_dict(dual.state_dict())
    return dual, single


@torch.no_grad()
def full_pair(seed: int, *, only_memory: bool = False) -> tuple[Any, Any]:
    """Random full layers that meet the corollary; with only_memory V_cur = e_{d+2} w^T."""
    dual, single = (make(k, "full") for k in (ictd.DualHeadLayer, ictd.SingleHeadLayer))
    dual.query_key.copy_(tensor(random_matrix(seed, ROWS, 0.3)))
    dual.value_current.copy_(tensor(random_matrix(seed + 1000, ROWS, 0.3)))
    if only_memory:
        dual.value_current[:TARGET] = 0.0
    single.load_state_dict(dual.state_dict(), strict=False)
    dual.value_current[TARGET] = 0.0  # the single head keeps its row: it is never seen
    dual.value_target.zero_()
    dual.value_target[TARGET] = dual.value_current[CURRENT]
    return dual, single


def thousand(seed: int = 0) -> tuple[ictd.Prompt, Tensor]:
    """1,000 contexts, and consistent prompt matrices with random memory."""
    drawn = random_contexts(seed, batch_shape=(1000,), num_tokens=16, num_queries=2)
    prompt = drawn.prompt()
    start = np.random.default_rng(seed).normal(size=drawn.states.shape)
    return prompt, prompt.matrix(tensor(start))


def assert_same_history(one: Tensor, other: Tensor) -> None:
    """Every matrix of every context, relative to the context's largest entry."""
    scale = other.abs().amax((0, -2, -1), keepdim=True).clamp(min=1)
    torch.testing.assert_close(one / scale, other / scale, rtol=0.0, atol=1e-12)


# One state, by hand -----------------------------------------------------------------------------


def one_state() -> ictd.Prompt:
    return ictd.Prompt(
        torch.ones(2, 1, dtype=torch.float64), tensor([1.0, 0.0]), tensor([0.5, 0.0]),
        torch.tensor([True, False]),
    )  # fmt: skip


def one_state_pair(factor: float = 1.0, step_size: float = 1.0) -> tuple[Any, Any]:
    """Full layers of the construction; the second head is scaled."""
    pair = tuple(make(k, "full", 1) for k in (ictd.DualHeadLayer, ictd.SingleHeadLayer))
    for layer in pair:
        layer.construct(torch.ones(1, 1, dtype=torch.float64), step_size)
    with torch.no_grad():
        pair[0].value_target.mul_(factor)
    return pair


@torch.no_grad()
def values(layer: nn.Module, depth: int = 4, target: float = 0.0) -> list[float]:
    Z = one_state().matrix()
    Z[-2, 0] = target
    return run([layer] * depth, Z, one_state())[1:, -1, 0].tolist()


# The shift --------------------------------------------------------------------------------------


@pytest.mark.claim("lem-discount-side")
@pytest.mark.parametrize("seed", range(5))
def test_discount_side(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = int(rng.integers(1, 9))
    Pi, gamma = reference.shift_matrix(tokens), rng.normal(size=tokens)
    arriving = np.concatenate([[0.0], gamma[:-1]])
    np.testing.assert_array_equal(Pi @ np.diag(gamma), np.diag(arriving) @ Pi)
    if tokens > 1:
        assert not np.array_equal(Pi @ np.diag(gamma), np.diag(gamma) @ Pi)


@pytest.mark.claim("lem-discount-side")
def test_discount_side_by_hand() -> None:
    eye = torch.eye(3, dtype=torch.float64)
    prompt = ictd.Prompt.from_episodes(
        [eye[[0, 1, 2]], eye[[1, 0]]], [np.ones(2), np.ones(1)], [True, False], [False, True],
        discount=0.5,
    ).with_queries(eye[:1])  # fmt: skip
    x = tensor([10, 20, 0, 20, 10, 7])
    shifted = ictd.temporal_shift(x, prompt.discounts, prompt.is_transition)
    assert shifted.tolist() == [10, 0, 0, 5, 0, 0]
    arriving = torch.cat([tensor([0.0]), prompt.discounts[:-1]])
    before = torch.cat([(x * arriving)[1:], tensor([0.0])])
    assert torch.equal(before, shifted)
    wrong = torch.cat([(x * prompt.discounts)[1:], tensor([0.0])])
    assert wrong.tolist() == [0, 0, 10, 0, 0, 0]
    Z = prompt.matrix()
    Z[-1] = x
    once = ictd.TemporalShift()(Z, prompt.discounts, prompt.is_transition)
    assert torch.equal(once, prompt.matrix(x))
    assert torch.equal(ictd.TemporalShift()(once, prompt.discounts, prompt.is_transition), once)


# The theorem ------------------------------------------------------------------------------------


@pytest.mark.claim("thm-reparameterization")
@torch.no_grad()
def test_tied_heads_are_one_head_and_a_shift() -> None:
    prompt, Z = thousand()
    duals, singles = zip(*map(structured_pair, range(DEPTH)), strict=True)
    history = run(duals, Z, prompt)
    assert_same_history(run(singles, Z, prompt), history)
    assert (history[-1] - Z).abs().amax() > 1.0
    target = ictd.temporal_shift(history[-1, :, -1], prompt.discounts, prompt.is_transition)
    assert_same(history[-1, :, -2], target)


@pytest.mark.claim("thm-reparameterization")
@quick
@given(drawn=contexts(feature_dim=DIM), seed=st.integers(0, 99))
def test_tied_heads_on_any_context(drawn: Any, seed: int) -> None:
    prompt = drawn.prompt()
    start = np.random.default_rng(seed).normal(size=drawn.states.shape)
    Z = prompt.matrix(tensor(start))
    dual, single = structured_pair(seed)
    with torch.no_grad():
        assert_same(run([single] * 3, Z, prompt), run([dual] * 3, Z, prompt))


@pytest.mark.claim("thm-reparameterization")
@pytest.mark.parametrize("name", NONLINEARITIES)
@pytest.mark.parametrize("rewrites", [False, True], ids=["heads only", "all rows"])
def test_tied_heads_with_any_nonlinearity(name: str, rewrites: bool) -> None:
    for seed in range(200):
        rng = np.random.default_rng(seed)
        Z, shift = written_out(seed)
        two = one = Z
        for _ in range(4):  # other weights in every layer
            w, Q = rng.normal(size=ROWS) / 2, rng.normal(size=(ROWS, ROWS)) * 0.3
            mix = rng.normal(size=(ROWS, ROWS)) * 0.3 * rewrites
            mix[TARGET:] = 0.0
            u_two, u_one = (w @ Z @ NONLINEARITIES[name](Z.T @ Q @ Z) for Z in (two, one))
            two = two_heads(two, u_two, shift) + mix @ np.tanh(two)
            one = one_head(one, u_one, shift) + mix @ np.tanh(one)
            assert relative(two - one, one) < 1e-12
            assert relative(two[TARGET] - two[CURRENT] @ shift, two) < 1e-12


@pytest.mark.claim("thm-reparameterization")
def test_tied_heads_need_both_assumptions() -> None:
    dual, single = one_state_pair()
    assert values(dual) == values(single) == [1, 3 / 2, 7 / 4, 15 / 8]
    assert values(one_state_pair(factor=2.0)[0]) == [1, 2, 3, 4]
    assert values(dual, target=1.0) == [2, 3, 7 / 2, 15 / 4]
    assert values(single, target=1.0) == [2, 2, 2, 2]
    assert values(dual, 60, target=1.0)[-1] == pytest.approx(4.0, abs=1e-12)


@pytest.mark.claim("cor-full-weights")
@pytest.mark.parametrize("only_memory", [False, True])
@torch.no_grad()
def test_full_matrices_that_are_tied(only_memory: bool) -> None:
    prompt, Z = thousand(1)
    pairs = [full_pair(seed, only_memory=only_memory) for seed in range(DEPTH)]
    duals, singles = zip(*pairs, strict=True)
    history = run(duals, Z, prompt)
    assert_same_history(run(singles, Z, prompt), history)
    assert ((history[-1, :, :TARGET] - Z[:, :TARGET]).abs().amax() > 0.1) != only_memory


@pytest.mark.claim("cor-full-weights")
@pytest.mark.parametrize(
    ("name", "row"),
    [("value_current", TARGET), *(("value_target", row) for row in (0, DIM, TARGET, CURRENT))],
)
@torch.no_grad()
def test_full_matrices_that_are_not(name: str, row: int) -> None:
    prompt, Z = thousand(2)
    dual, single = full_pair(0)
    getattr(dual, name)[row] += 0.1
    difference = run([dual] * 2, Z, prompt)[-1] - run([single] * 2, Z, prompt)[-1]
    assert difference.abs().amax() > 1e-3


# When an assumption fails -----------------------------------------------------------------------


@pytest.mark.claim("prop-scaled-tie")
@pytest.mark.parametrize("factor", [0.3, 1.0, 1.7, -0.8])
@torch.no_grad()
def test_factor_is_a_discount(factor: float) -> None:
    drawn = random_contexts(3, batch_shape=(20,))
    matrix = random_matrix(0, DIM)
    dual = make(ictd.DualHeadLayer, "full").construct(tensor(matrix), 0.5)
    dual.value_target.mul_(factor)
    prompt = drawn.prompt()

    def scaled(context: reference_td.Context) -> Array:
        context = replace(context, discounts=factor * context.discounts)
        return reference_td.softmax_td(
            context, reference_td.bilinear(matrix), num_steps=4, step_size=0.5
        )

    assert_same(run([dual] * 4, prompt.matrix(), prompt)[..., -1, :], drawn.loop(scaled))


@pytest.mark.claim("prop-scaled-tie")
@pytest.mark.parametrize("factor", [0.0, 0.5, -0.7, 2.0])
def test_factor_with_any_attention(factor: float) -> None:
    broken = 0
    for seed in range(50):
        Z, shift = written_out(seed)
        differences = []
        for memory in (factor, 1.0):  # 1: the memory of the tied heads, which does not fit
            two = Z.copy()
            two[TARGET] *= memory
            one, draws = two, np.random.default_rng(seed)
            for _ in range(4):
                w, Q = draws.normal(size=ROWS) / 2, draws.normal(size=(ROWS, ROWS)) * 0.3
                u_two, u_one = (w @ Z @ np.sin(Z.T @ Q @ Z) / len(shift) for Z in (two, one))
                two = two_heads(two, u_two, shift, factor=factor)
                one = one_head(one, u_one, factor * shift)
            differences.append(relative(two - one, one))
        assert differences[0] < 1e-12
        broken += differences[1] > 1e-3
    assert broken > 30


@pytest.mark.claim("prop-scaled-tie")
def test_factor_in_one_state() -> None:
    for factor, step_size in ((1.8, 1.0), (0.5, 0.7), (-1.0, 1.2)):
        dual = one_state_pair(factor, step_size)[0]
        q = 1 - step_size * (1 - factor / 2)
        closed = [2 / (2 - factor) * (1 - q**depth) for depth in range(1, 31)]
        assert values(dual, 30) == pytest.approx(closed, abs=1e-12)
    assert values(one_state_pair(0.5)[0], 60)[-1] == pytest.approx(4 / 3, abs=1e-12)
    assert values(one_state_pair(-2.0)[0]) == [1, 0, 1, 0]
    layers = [one_state_pair(factor)[0] for factor in (1.0, 2.0, 1.0)]  # no one factor: no discount
    with torch.no_grad():
        mixed = run(layers, one_state().matrix(), one_state())[1:, -1, 0]
    assert mixed.tolist() == [1, 3 / 2, 2]


@pytest.mark.claim("prop-defect")
@torch.no_grad()
def test_defect_stays_with_two_heads_and_goes_with_one() -> None:
    prompt, Z = thousand(4)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(Z.shape[0], Z.shape[2], generator=generator, dtype=torch.float64)
    Z[:, TARGET] += noise

    def defect(Z: Tensor) -> Tensor:
        shifted = ictd.temporal_shift(Z[..., CURRENT, :], prompt.discounts, prompt.is_transition)
        return Z[..., TARGET, :] - shifted

    duals, singles = zip(*map(structured_pair, range(DEPTH)), strict=True)
    Z_two, Z_one = Z, Z
    for dual, single in zip(duals, singles, strict=True):
        Z_two, Z_one = run([dual], Z_two, prompt)[1], run([single], Z_one, prompt)[1]
        assert_same(defect(Z_two), noise)
        assert defect(Z_one).abs().amax() == 0
        if dual is duals[0]:
            assert_same(Z_one[:, CURRENT], Z_two[:, CURRENT])


@pytest.mark.claim("prop-defect")
@torch.no_grad()
def test_defect_grows_if_the_heads_differ() -> None:
    dual, _ = one_state_pair(factor=2.0)
    history = run([dual] * 4, one_state().matrix(), one_state())
    assert (history[:, -2, 0] - history[:, -1, 1] / 2).tolist() == [0, 1 / 2, 1, 3 / 2, 2]


@pytest.mark.claim("prop-defect")
@torch.no_grad()
def test_defect_is_a_reward() -> None:
    drawn = random_contexts(5, batch_shape=(20,))
    prompt, matrix = drawn.prompt(), random_matrix(1, DIM)
    rng = np.random.default_rng(0)
    start = np.where(drawn.is_terminal, 0.0, rng.normal(size=drawn.states.shape))
    noise = np.where(drawn.is_transition, rng.normal(size=start.shape), 0.0)
    Z = prompt.matrix(tensor(start))
    Z[:, TARGET] += tensor(noise)
    dual, single = (
        make(kind, "structured").construct(tensor(matrix), 0.5)
        for kind in (ictd.DualHeadLayer, ictd.SingleHeadLayer)
    )
    two, one = (run([layer] * 5, Z, prompt)[..., CURRENT, :] for layer in (dual, single))
    score = ictd.BilinearScore(tensor(matrix))
    options: dict[str, Any] = {"step_size": 0.5, "return_history": True}
    richer = ictd.Prompt(
        prompt.features, prompt.rewards + tensor(noise), prompt.discounts,
        prompt.is_transition, prompt.is_terminal,
    )  # fmt: skip
    with_defect = ictd.softmax_td(
        richer, score, num_steps=5, initial_values=tensor(start), **options
    )
    assert_same(two, with_defect)
    assert_same(one[1], two[1])
    assert_same(
        one[1:], ictd.softmax_td(prompt, score, num_steps=4, initial_values=one[1], **options)
    )


# Gradients --------------------------------------------------------------------------------------


def gradients(layers: Sequence[nn.Module], parameters: list[Tensor], Z: Tensor, prompt: Any) -> Any:
    """Of a smooth function of every entry of the last matrix."""
    last = run(layers, Z, prompt)[-1]
    weights = torch.arange(last.numel(), dtype=last.dtype).sin().reshape(last.shape)
    return torch.autograd.grad((weights * last + last.square()).mean(), parameters)


@pytest.mark.claim("cor-shared-gradients")
def test_gradients_of_shared_weights() -> None:
    drawn = random_contexts(6, batch_shape=(50,))
    prompt = drawn.prompt()
    start = tensor(np.random.default_rng(0).normal(size=drawn.states.shape)).requires_grad_()
    found = []
    for layers in zip(*map(structured_pair, range(DEPTH)), strict=True):
        parameters = [start, *(p for layer in layers for p in layer.parameters())]
        found.append(gradients(layers, parameters, prompt.matrix(start), prompt))
    for two, one in zip(*found, strict=True):
        assert one.abs().amax() > 1e-4
        assert_same(two / one.abs().amax(), one / one.abs().amax())


@pytest.mark.claim("cor-shared-gradients")
def test_gradients_of_two_heads_sum() -> None:
    drawn = random_contexts(7, batch_shape=(50,))
    prompt = drawn.prompt()
    Z = prompt.matrix(tensor(np.random.default_rng(0).normal(size=drawn.states.shape)))
    dual, single = full_pair(0)
    Q, V_cur, V_tgt = gradients(
        [dual] * 4, [dual.query_key, dual.value_current, dual.value_target], Z, prompt
    )
    Q_one, V_one = gradients([single] * 4, [single.query_key, single.value_current], Z, prompt)
    assert_same(Q, Q_one)
    assert_same(V_cur[CURRENT] + V_tgt[TARGET], V_one[CURRENT])
    assert_same(V_cur[:TARGET], V_one[:TARGET])
    assert (V_cur[CURRENT] - V_tgt[TARGET]).abs().amax() > 1e-3  # one step would untie them
    assert V_one[TARGET].abs().amax() == 0
    assert V_cur[TARGET].abs().amax() > 1e-3


@pytest.mark.claim("cor-shared-gradients")
def test_gradients_in_one_state() -> None:
    dual, single = one_state_pair()

    def slope(layer: nn.Module, name: str, row: int) -> float:
        v = run([layer] * 3, one_state().matrix(), one_state())[-1, -1, 0]
        (gradient,) = torch.autograd.grad(v, getattr(layer, name))
        return (gradient[row] @ tensor([0.0, 1, 1, -1])).item()

    assert slope(dual, "value_current", 3) == -1 / 4
    assert slope(dual, "value_target", 2) == 1
    assert slope(single, "value_current", 3) == 3 / 4


# What is counted and what is measured -----------------------------------------------------------


def test_one_head_keeps_its_memory_exact_in_float32() -> None:
    prompt = random_contexts(8, terminal=False).prompt(torch.float32)
    dual, single = (
        kind(DIM).construct(torch.eye(DIM), 0.3)
        for kind in (ictd.DualHeadLayer, ictd.SingleHeadLayer)
    )
    with torch.no_grad():
        last = run([single] * 20, prompt.matrix(), prompt)[-1]
        other = run([dual] * 20, prompt.matrix(), prompt)[-1]
    for Z, exact in ((last, True), (other, False)):
        shifted = ictd.temporal_shift(Z[-1], prompt.discounts, prompt.is_transition)
        assert torch.equal(Z[-2], shifted) == exact


def test_the_benchmark_compares_layers_that_are_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(__file__).parents[1] / "benchmarks" / "attention_heads.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    output = tmp_path / "ratios.json"
    benchmark.main(
        ["--tokens", "9", "17", "--repeats", "2", "--device", "cpu", "--backward",
         "--output", str(output)]
    )  # fmt: skip
    report = json.loads(output.read_text(encoding="utf-8"))
    assert [row["tokens"] for row in report["rows"]] == [9, 17]
    assert report["rows"][0]["contenders"][benchmark.BASELINE]["ratio"] == 1.0
    assert "stock two heads" in capsys.readouterr().out

    prompt = benchmark.make_prompt(9, 4, 1, "cpu")
    steps = benchmark.contenders(torch.eye(4), prompt)
    broken = steps | {"wrong": lambda Z: Z}
    with pytest.raises(AssertionError, match="wrong"):
        benchmark.check_equal(broken, prompt.matrix())
