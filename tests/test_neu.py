"""The norm of the expected update: against finite differences, on exact contexts, by hand."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import ictd
from reference import neu as reference
from reference import td as reference_td
from reference import transformer as reference_transformer
from strategies import BATCH_SHAPES, assert_same, refuses, tensor

Array = NDArray[np.float64]
KINDS = [(heads, form) for heads in (1, 2) for form in ("structured", "full")]
every_kind = pytest.mark.parametrize(("num_heads", "parametrization"), KINDS)
every_looping = pytest.mark.parametrize("looped", [True, False], ids=["looped", "untied"])
SIGNS = tensor([1.0, 1.0, -1.0])


def random_tasks(seed: int, *batch: int, states: int = 4, dim: int = 3) -> tuple[Any, Any]:
    """Processes with rewards that depend on the successor, and features."""
    rng = np.random.default_rng(seed)
    transition = rng.dirichlet(np.ones(states), size=(*batch, states))
    reward = rng.uniform(-1, 1, size=(*batch, states, states))
    features = rng.normal(size=(*batch, states, dim))
    discount = tensor(rng.uniform(0.5, 0.9, size=batch))
    return ictd.MarkovRewardProcess(tensor(transition), tensor(reward), discount), tensor(features)


def reference_task(mrp: ictd.MarkovRewardProcess, features: torch.Tensor) -> reference.Task:
    transition = mrp.transition.numpy()
    shares = reference.stationary(transition)
    return reference.Task(
        transition, mrp.reward.numpy(), float(mrp.discount), shares, features.numpy()
    )


def random_model(
    num_heads: int = 1,
    parametrization: str = "structured",
    *,
    looped: bool = True,
    layers: int = 3,
    dim: int = 3,
    seed: int = 0,
) -> ictd.InContextTD:
    """Random attention and value weights; the full layer holds the same as the structured one."""
    generator = torch.Generator().manual_seed(seed)
    options = {"num_heads": num_heads, "looped": looped, "dtype": torch.float64}
    model = ictd.InContextTD(dim, layers, parametrization=parametrization, **options)  # type: ignore[arg-type]
    for layer in model.layers:
        layer.construct(torch.randn(dim, dim, generator=generator, dtype=torch.float64), 1.0)
        weights = SIGNS + 0.2 * torch.randn(3, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if name == "value_weights":
                    parameter.copy_(weights)
                elif name.startswith("value_"):
                    parameter[-2 if name == "value_target" else -1, dim:] = weights
    return model


def structured_layers(model: ictd.InContextTD, flat: Array) -> list[tuple[Array, Array]]:
    """What a vector of weights says, layer by layer."""
    d = model.layers[0].feature_dim
    rows = flat.reshape(len(model.layers), d * d + 3)
    distinct = [(row[: d * d].reshape(d, d), row[d * d :]) for row in rows]
    return [distinct[0 if model.looped else i] for i in range(model.num_layers)]


def matrices(model: ictd.InContextTD, flat: Array) -> list[tuple[Array, Array, Array | None]]:
    """The same for the written-out Transformer, in any parametrization."""
    d, heads = model.layers[0].feature_dim, 1 + model.layers[0].has_target_head
    distinct: list[tuple[Array, Array, Array | None]] = []
    if model.layers[0].parametrization == "full":
        for row in flat.reshape(len(model.layers), 1 + heads, d + 3, d + 3):
            distinct.append((row[0], row[1], row[2] if heads == 2 else None))
    else:
        for row in flat.reshape(len(model.layers), d * d + 3):
            query_key = reference_transformer.structured_query_key(row[: d * d].reshape(d, d))
            cur, tgt = (
                reference_transformer.structured_value(d, row[d * d :], at) for at in (-1, -2)
            )
            distinct.append((query_key, cur, tgt if heads == 2 else None))
    return [distinct[0 if model.looped else i] for i in range(model.num_layers)]


def flat_weights(model: ictd.InContextTD) -> Array:
    weights: Array = parameters_to_vector(model.parameters()).detach().numpy()
    return weights


# --- By hand


@pytest.mark.claim("prop-neu-not-stationary")
def test_one_state_one_layer() -> None:
    # v = w_R r, so u = r^2 (1 - (1 - gamma) w_R) and NEU is its square
    mrp = ictd.MarkovRewardProcess(tensor([[1.0]]), tensor([3.0]), 0.75)
    model = ictd.InContextTD.from_construction(tensor([[1.0]]), 1, 0.5)
    ones = tensor([[1.0]])
    assert_same(ictd.expected_update(model, mrp, ones), tensor([0, 9 * (1 - 0.125), 0, 0]))
    assert_same(ictd.norm_of_expected_update(model, mrp, ones), tensor(81 * 0.875**2))
    with torch.no_grad():
        model.layers[0].value_weights[0] = 1 / (1 - 0.75)
    assert_same(ictd.norm_of_expected_update(model, mrp, ones), tensor(0.0))


@pytest.mark.claim("prop-neu-not-stationary")
@pytest.mark.parametrize("layers", [1, 2, 7, 40])
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_one_state_any_depth(layers: int, alpha: float) -> None:
    gamma, r = 0.9, -2.0
    q = 1 - alpha * (1 - gamma)
    mrp = ictd.MarkovRewardProcess(tensor([[1.0]]), tensor([r]), gamma)
    model = ictd.InContextTD.from_construction(tensor([[1.0]]), layers, alpha)
    value = r / (1 - gamma)
    by_reward = value * (1 - q**layers) / alpha
    by_value = alpha * r * sum(i * q ** (i - 1) for i in range(layers))
    gradient = tensor([[0, by_reward, gamma * by_value, by_value]])
    assert_same(ictd.value_jacobian(model, mrp, tensor([[1.0]])), gradient)
    update = ictd.expected_update(model, mrp, tensor([[1.0]]))
    assert_same(update, r * q**layers * gradient[0])
    with torch.no_grad():
        model.layers[0].value_weights[0] = alpha / (1 - q**layers)
    assert ictd.norm_of_expected_update(model, mrp, tensor([[1.0]])) < 1e-20


# --- Against finite differences


@every_looping
@pytest.mark.parametrize("seed", range(3))
def test_population_update_is_that_of_the_lumped_recursion(looped: bool, seed: int) -> None:
    mrp, features = random_tasks(seed)
    model = random_model(looped=looped, seed=seed)
    task, flat = reference_task(mrp, features), flat_weights(model)

    def values(parameters: Array) -> Array:
        return reference.population_values(task, structured_layers(model, parameters))

    derivative = reference.jacobian(values, flat)
    assert_same(ictd.population_values(model, mrp, features), tensor(values(flat)))
    assert_same(ictd.value_jacobian(model, mrp, features), tensor(derivative), 1e-7)
    expected = reference.update(task, values(flat), derivative)
    assert_same(ictd.expected_update(model, mrp, features), tensor(expected), 1e-7)
    neu = ictd.norm_of_expected_update(model, mrp, features)
    assert_same(neu, tensor(expected @ expected), 1e-7)


@every_kind
@every_looping
def test_update_on_a_context_is_that_of_the_transformer(
    num_heads: int, parametrization: str, looped: bool
) -> None:
    mrp, features = random_tasks(5)
    model = random_model(num_heads, parametrization, looped=looped, seed=4)
    if parametrization == "full":  # any weights will do on a context
        with torch.no_grad():
            for index, parameter in enumerate(model.parameters()):
                generator = torch.Generator().manual_seed(index)
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter += 0.1 * noise
    walk = mrp.sample(12, generator=torch.Generator().manual_seed(6))
    context = walk.prompt(features)
    task, flat = reference_task(mrp, features), flat_weights(model)
    asked = context.with_queries(features)
    tokens = reference_td.Context(
        asked.features.numpy(),
        asked.rewards.numpy(),
        asked.discounts.numpy(),
        asked.is_transition.numpy(),
        np.zeros(len(asked), dtype=bool),
    )

    def values(parameters: Array) -> Array:
        history = reference_transformer.in_context_td(tokens, matrices(model, parameters))
        last: Array = history[-1][-len(task) :]
        return last

    derivative = reference.jacobian(values, flat)
    assert_same(ictd.value_jacobian(model, mrp, features, context), tensor(derivative), 1e-7)
    expected = reference.update(task, values(flat), derivative)
    assert_same(ictd.expected_update(model, mrp, features, context), tensor(expected), 1e-7)


def test_nothing_is_differentiated_through_the_target() -> None:
    mrp, features = random_tasks(8)
    model = random_model(seed=8)
    values = ictd.population_values(model, mrp, features)
    shares = mrp.stationary_distribution()
    loss = 0.5 * (shares * (mrp.bellman(values.detach()) - values).square()).sum()
    semi = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    update = ictd.expected_update(model, mrp, features)
    assert_same(update, -torch.cat([g.flatten() for g in semi]))
    loss = 0.5 * (shares * (mrp.bellman(values) - values).square()).sum()
    full = torch.autograd.grad(loss, list(model.parameters()))
    assert (update + torch.cat([g.flatten() for g in full])).abs().max() > 1e-3


# --- A context that is the population

EXACT = tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]])


def exact_walk(transition: torch.Tensor, repeats: int = 1) -> list[int]:
    """A closed walk in which every three states in a row come in exact proportion.

    An Eulerian circuit (Hierholzer) on the graph of pairs of states.
    """
    m = len(transition)
    shares = reference.stationary(transition.numpy())
    exact = np.einsum("a,ab,bc->abc", shares, transition.numpy(), transition.numpy())
    unit = exact[exact > 0].min()
    counts = np.rint(exact / unit * repeats).astype(int)
    np.testing.assert_allclose(counts / counts.sum(), exact, atol=1e-12)
    start = next((a, b) for a in range(m) for b in range(m) if counts[a, b].sum())
    stack, circuit = [start], []
    while stack:
        a, b = stack[-1]
        left = np.flatnonzero(counts[a, b])
        if len(left):
            counts[a, b, left[0]] -= 1
            stack.append((b, int(left[0])))
        else:
            circuit.append(stack.pop())
    return [pair[0] for pair in reversed(circuit)]


def exact_context(
    repeats: int = 1, dim: int = 3
) -> tuple[ictd.MarkovRewardProcess, torch.Tensor, ictd.Prompt]:
    rng = np.random.default_rng(1)
    rewards, features = tensor(rng.normal(size=(3, 3))), tensor(rng.normal(size=(3, dim)))
    mrp = ictd.MarkovRewardProcess(EXACT, rewards, 0.8)
    states = torch.tensor(exact_walk(EXACT, repeats))
    paid = torch.cat([rewards[states[:-1], states[1:]], tensor([0.0])])
    walk = ictd.Trajectory(states, paid, torch.full(states.shape, 0.8, dtype=torch.float64))
    assert states[0] == states[-1]
    return mrp, features, walk.prompt(features)


@every_looping
@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.claim("thm-neu")
def test_structured_population_is_an_exact_context(num_heads: int, looped: bool) -> None:
    mrp, features, context = exact_context()
    model = random_model(num_heads, looped=looped, layers=4)
    there = ictd.value_jacobian(model, mrp, features)
    assert_same(there, ictd.value_jacobian(model, mrp, features, context))
    neu = ictd.norm_of_expected_update(model, mrp, features)
    assert_same(neu, ictd.norm_of_expected_update(model, mrp, features, context))


@every_looping
@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.claim("prop-neu-pairs")
def test_full_population_is_an_exact_context(num_heads: int, looped: bool) -> None:
    """But for the walk's last token, whose share in the error falls as 1/n.

    It is the successor of a key and no key: as a reader it has no reward and no target, and the
    second head shifts nothing into it.
    """
    errors = []
    for repeats in (1, 2, 8):
        mrp, features, context = exact_context(repeats)
        model = random_model(num_heads, "full", looped=looped, layers=4)
        there = ictd.value_jacobian(model, mrp, features)
        here = ictd.value_jacobian(model, mrp, features, context)
        parts = []
        for name, parameter in model.named_parameters():
            parts.append(torch.zeros_like(parameter, dtype=torch.bool))
            if name.endswith("query_key"):
                parts[-1][:, 3:5] = True
            if name.endswith("value_target"):
                parts[-1][:3] = True
        affected = torch.cat([part.flatten() for part in parts])
        assert_same(here[:, ~affected], there[:, ~affected])
        errors.append((here - there)[:, affected].abs().max().item())
    assert 1e-6 < errors[2] < 1e-2
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.2)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.2)


def test_a_test_in_exact_proportion_gives_the_expected_update() -> None:
    mrp, features, exact = exact_context()
    model = random_model(2, "full", looped=False)
    generator = torch.Generator().manual_seed(0)
    context = mrp.sample(9, generator=generator).prompt(features)
    sampled = ictd.sampled_update(model, context, exact)
    assert_same(sampled, ictd.expected_update(model, mrp, features, context))


@every_kind
def test_contexts_approach_the_population(num_heads: int, parametrization: str) -> None:
    mrp, features = random_tasks(3, states=3)
    model = random_model(num_heads, parametrization, layers=2)
    limit = ictd.value_jacobian(model, mrp, features)
    errors = []
    for n in (15, 1500):
        walk = mrp.sample(n, generator=torch.Generator().manual_seed(1))
        here = ictd.value_jacobian(model, mrp, features, walk.trim().prompt(features))
        errors.append((here - limit).abs().max().item())
    assert errors[1] < 0.15 * limit.abs().max()
    assert errors[1] < 0.5 * errors[0]


def test_the_full_layer_agrees_with_the_structured_one_in_its_directions() -> None:
    mrp, features = random_tasks(9, 2)
    options: dict[str, Any] = {"looped": False, "layers": 5, "seed": 2}
    structured = ictd.value_jacobian(random_model(1, **options), mrp, features)
    full = ictd.value_jacobian(random_model(1, "full", **options), mrp, features)
    parts = full.reshape(2, 4, 5, 2, 6, 6)
    attention = parts[..., 0, :3, :3].flatten(-2)
    weights = parts[..., 1, -1, 3:]
    assert_same(structured, torch.cat([attention, weights], -1).flatten(-2))


# --- Estimators


@pytest.mark.parametrize(
    ("estimator", "slow"),
    [("plain", reference.plain), ("halves", reference.halves), ("u", reference.u_statistic)],
)
@pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)
def test_estimators_are_their_sums(
    estimator: Any, slow: Callable[[Array], float], batch_shape: tuple[int, ...]
) -> None:
    updates = np.random.default_rng(0).normal(size=(*batch_shape, 6, 5))
    fast = ictd.squared_norm_of_mean(tensor(updates), estimator)
    expected = [slow(updates[index]) for index in np.ndindex(batch_shape)]
    assert_same(fast, tensor(expected).reshape(batch_shape))


def all_samples(support: torch.Tensor, size: int) -> torch.Tensor:
    """Every sample of this size from a uniform distribution on a few vectors."""
    index = torch.tensor(list(itertools.product(range(len(support)), repeat=size)))
    return support[index]


@pytest.mark.claim("prop-neu-estimators")
@pytest.mark.parametrize("size", [2, 4, 6])
def test_means_and_variances_of_the_estimators(size: int) -> None:
    support = tensor([[1.0, 0.5], [-0.3, 0.2], [0.1, -1.0]])
    mean = support.mean(0)
    sigma = (support - mean).mT @ (support - mean) / 3
    norm, spread = mean @ mean, (sigma @ sigma).trace()
    along = 4 / size * mean @ sigma @ mean
    samples = all_samples(support, size)
    estimates = {e: ictd.squared_norm_of_mean(samples, e) for e in ("plain", "halves", "u")}  # type: ignore[arg-type]
    assert_same(estimates["plain"].mean(), norm + sigma.trace() / size)
    assert_same(estimates["halves"].mean(), norm)
    assert_same(estimates["u"].mean(), norm)
    variance = {name: values.var(correction=0) for name, values in estimates.items()}
    assert_same(variance["halves"], along + 4 / size**2 * spread)
    assert_same(variance["u"], along + 2 / (size * (size - 1)) * spread)


def test_two_tests_of_the_same_tasks_are_not_independent() -> None:
    # two tasks, with updates 1 and -1 whatever is drawn inside: u = 0, but their halves agree
    tasks = all_samples(tensor([[1.0], [-1.0]]), 2)
    within = (tasks.mean(-2) * tasks.mean(-2)).sum(-1)
    assert_same(within.mean(), tensor(0.5))  # tr Cov / B
    assert_same(ictd.squared_norm_of_mean(tasks, "halves").mean(), tensor(0.0))


# --- Batches, dtypes, derivatives


@every_kind
@pytest.mark.parametrize("with_context", [False, True])
@pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)
def test_batch_is_loop(
    num_heads: int, parametrization: str, with_context: bool, batch_shape: tuple[int, ...]
) -> None:
    mrp, features = random_tasks(2, *batch_shape, states=3)
    model = random_model(num_heads, parametrization, looped=False, layers=2)
    walk = mrp.sample(6, generator=torch.Generator().manual_seed(0))
    context = walk.prompt(features) if with_context else None
    together = ictd.expected_update(model, mrp, features, context)
    assert together.shape == (*batch_shape, sum(p.numel() for p in model.parameters()))
    jacobians = ictd.value_jacobian(model, mrp, features, context)
    sampled = ictd.sampled_update(model, walk.prompt(features), walk.prompt(features))
    for index in np.ndindex(batch_shape):
        one = None if context is None else context[index]
        alone = ictd.expected_update(model, mrp[index], features[index], one)
        assert_same(together[index], alone)
        alone = ictd.value_jacobian(model, mrp[index], features[index], one)
        assert_same(jacobians[index], alone)
        prompt = walk[index].prompt(features[index])
        assert_same(sampled[index], ictd.sampled_update(model, prompt, prompt))
    neu = ictd.norm_of_expected_update(model, mrp, features, context)
    mean = together.reshape(-1, together.shape[-1]).mean(0)
    assert_same(neu, mean.square().sum())


@every_kind
@pytest.mark.parametrize("steps", [0, 1, 30])
def test_a_trajectory_is_its_prompt(num_heads: int, parametrization: str, steps: int) -> None:
    mrp, features = random_tasks(2, 5)
    model = random_model(num_heads, parametrization, looped=False)
    walk = mrp.sample(steps, generator=torch.Generator().manual_seed(0))
    for function in (ictd.expected_update, ictd.value_jacobian):
        there = function(model, mrp, features, walk.prompt(features))
        assert there.isfinite().all()
        assert_same(function(model, mrp, features, walk), there)


@every_kind
@pytest.mark.parametrize("index", [np.s_[:0], np.s_[:, :0]], ids=["0, 3", "2, 0"])
def test_no_tasks_give_no_rows(num_heads: int, parametrization: str, index: Any) -> None:
    mrp, features = random_tasks(2, 2, 3)
    walk = mrp.sample(5, generator=torch.Generator().manual_seed(0))
    model = random_model(num_heads, parametrization)
    mrp, features, walk = mrp[index], features[index], walk[index]
    prompt = walk.prompt(features)
    batch, size = features.shape[:2], len(flat_weights(model))
    assert ictd.population_values(model, mrp, features).shape == (*batch, 4)
    for context in (None, prompt, walk):
        assert ictd.value_jacobian(model, mrp, features, context).shape == (*batch, 4, size)
        updates = ictd.expected_update(model, mrp, features, context)
        assert updates.shape == (*batch, size)
        updates.sum().backward()
        with refuses(ValueError, r"updates: .* with at least 1 tasks, got \(0, "):
            ictd.norm_of_expected_update(model, mrp, features, context)
    assert ictd.sampled_update(model, prompt, prompt).shape == (*batch, size)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_one_table_of_features_serves_all_tasks() -> None:
    mrp, _ = random_tasks(2, 3)
    table = torch.eye(4, dtype=torch.float64)
    model = random_model(dim=4)
    every = ictd.expected_update(model, mrp, table.expand(3, 4, 4))
    assert_same(ictd.expected_update(model, mrp, table), every)


def test_estimators_reach_the_norm() -> None:
    mrp, features = random_tasks(2, 4)
    model = random_model()
    updates = ictd.expected_update(model, mrp, features)
    for estimator in ("plain", "halves", "u"):
        neu = ictd.norm_of_expected_update(model, mrp, features, estimator=estimator)  # type: ignore[arg-type]
        assert_same(neu, ictd.squared_norm_of_mean(updates, estimator))  # type: ignore[arg-type]


@every_kind
def test_float32(num_heads: int, parametrization: str) -> None:
    mrp, features = random_tasks(2, 4)
    model = random_model(num_heads, parametrization)
    exact = ictd.expected_update(model, mrp, features)
    context = mrp.sample(8, generator=torch.Generator().manual_seed(0)).prompt(features)
    on_context = ictd.expected_update(model, mrp, features, context)
    single = model.to(torch.float32), mrp.to(torch.float32), features.float()
    rounded = ictd.expected_update(*single)
    assert rounded.dtype == torch.float32
    assert_same(rounded.double(), exact, 1e-4)
    rounded = ictd.expected_update(*single, context.to(torch.float32))
    assert_same(rounded.double(), on_context, 1e-4)


@pytest.mark.parametrize("with_context", [False, True])
def test_the_norm_can_be_minimised(with_context: bool) -> None:
    mrp, features = random_tasks(2, 3, states=3)
    model = random_model(layers=2)
    walk = mrp.sample(6, generator=torch.Generator().manual_seed(0))
    context = walk.prompt(features) if with_context else None
    start = parameters_to_vector(model.parameters()).detach()

    def neu(flat: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            vector_to_parameters(flat, model.parameters())
        return ictd.norm_of_expected_update(model, mrp, features, context)

    found = torch.autograd.grad(neu(start), list(model.parameters()))
    slope = reference.jacobian(
        lambda x: neu(tensor(x)).detach().numpy()[None], start.numpy(), step=1e-6
    )
    assert_same(torch.cat([g.flatten() for g in found]), tensor(slope[0]), 1e-6)


def test_no_graph_is_kept_where_none_is_wanted() -> None:
    mrp, features = random_tasks(2)
    model = random_model()
    with torch.no_grad():
        alone = ictd.expected_update(model, mrp, features)
    assert not alone.requires_grad
    assert_same(alone, ictd.expected_update(model, mrp, features))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_periodic_chains_are_fine() -> None:
    swap = ictd.MarkovRewardProcess(tensor([[0.0, 1.0], [1.0, 0.0]]), tensor([1.0, -2.0]), 0.5)
    for form in ("structured", "full"):
        model = ictd.InContextTD.from_construction(
            6 * torch.eye(2, dtype=torch.float64), 300, 1.0, parametrization=form
        )
        jacobian = ictd.value_jacobian(model, swap, torch.eye(2, dtype=torch.float64))
        assert jacobian.isfinite().all()
        assert ictd.norm_of_expected_update(model, swap, torch.eye(2, dtype=torch.float64)) < 1e-20


# --- Bounds


def test_the_bound_is_its_formula() -> None:
    r, L, gamma, alpha, R, B, V, C_r = 0.8, 7, 0.6, 0.9, 2.0, 1.3, 4.0, 1.7
    errors, values = (1 + gamma) * C_r * V, (1 + C_r) * V
    source = (R**2 + (1 + gamma**2) * values**2 + (alpha * B**2 * errors) ** 2) ** 0.5
    options: dict[str, Any] = {"discount": gamma, "step_size": alpha, "reward_bound": R}
    options |= {"feature_bound": B, "value_bound": V, "power_constant": C_r}
    looped = ((1 + gamma) * V * C_r**2 * source / (1 - r)) ** 2 * r ** (2 * L)
    assert_same(ictd.neu_bound(r, L, **options), tensor(looped))
    untied = ictd.neu_bound(r, L, form="untied", **options)
    assert_same(untied, tensor(looped * (1 - r) ** 2 / (1 - r**2)))
    full = ictd.neu_bound(tensor([r, 1.0, 1.2]), L, form="full", matrix_norm=3.0, **options)
    gradient = np.hypot(*reference.full_gradient(r, L, gamma, alpha, R, B, V, 3.0))
    assert_same(full[0], tensor((1.6 * V * gradient) ** 2 * r ** (2 * L)))
    assert full[1:].isinf().all()


def test_the_bound_of_full_layers_has_no_fault_at_rates_near_zero_and_one() -> None:
    options: dict[str, Any] = {"discount": 0.0, "step_size": 1.0, "reward_bound": 1.0}
    slow = 1 - 1e-9
    exact = reference.full_gradient(slow, 2, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0)
    bound = ictd.neu_bound(slow, 2, form="full", **options)
    assert_same(bound, tensor(np.hypot(*exact) ** 2 * slow**4))
    assert ictd.neu_bound(0.0, 3, form="full", **options) == 0


@pytest.mark.parametrize("layers", [1, 3, 10, 40])
@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.claim("thm-neu-full")
def test_each_block_of_the_full_gradient_obeys_its_bound(num_heads: int, layers: int) -> None:
    """On random tasks, some with little diagonality to spare."""
    for seed in range(5):
        mrp, _ = random_tasks(seed, 20)
        matrix = 5 * torch.eye(4, dtype=torch.float64)
        matrix += 0.3 * tensor(np.random.default_rng(seed).normal(size=(4, 4)))
        features, alpha = 1.1 * torch.eye(4, dtype=torch.float64), 0.7
        attention = ictd.population_attention(mrp, features, ictd.BilinearScore(matrix))
        rate = ictd.contraction_factor(attention, mrp.discount, alpha)
        model = ictd.InContextTD.from_construction(
            matrix, layers, alpha, parametrization="full", num_heads=num_heads
        )
        with torch.no_grad():
            found = ictd.value_jacobian(model, mrp, features).unflatten(-1, (1 + num_heads, 49))
        query_key = found[:, :, 0].norm(dim=-1).amax(-1)
        values = found[:, :, 1:].flatten(2).norm(dim=-1).amax(-1)
        norm, kept = float(torch.linalg.matrix_norm(matrix, 2)), (rate < 1).nonzero()[:, 0]
        assert len(kept) > 5
        for i in kept.tolist():
            R, V = mrp.reward[i].abs().max().item(), mrp.value()[i].abs().max().item()
            gamma, r = mrp.discount[i].item(), rate[i].item()
            bounds = reference.full_gradient(r, layers, gamma, alpha, R, 1.1, V, norm)
            assert query_key[i] <= bounds[0]
            assert values[i] <= bounds[1]


@pytest.mark.parametrize("layers", [1, 2, 7, 25])
@pytest.mark.claim("thm-neu-full")
def test_in_the_limit_one_state_loses_no_more_than_half_of_the_full_bound(layers: int) -> None:
    ones, alpha, tiny = tensor([[1.0]]), 0.4, 1e-6
    mrp = ictd.MarkovRewardProcess(ones, tensor([tiny]), tiny)
    model = ictd.InContextTD.from_construction(
        0 * ones, layers, alpha, parametrization="full", num_heads=2
    )
    q = 1 - alpha * (1 - tiny)
    bound = ictd.neu_bound(
        q, layers, discount=tiny, step_size=alpha, reward_bound=tiny, form="full"
    )
    once = sum(0.6 ** (layers - 1 - i) for i in range(layers))
    drift = sum(i * 0.6 ** (layers - 1 - i) for i in range(layers))
    limit = (once**2 + 2 * (alpha * drift) ** 2) / (once + 2**0.5 * alpha * drift) ** 2
    share = ictd.norm_of_expected_update(model, mrp, ones) / bound
    assert share.item() == pytest.approx(limit, rel=1e-3)
    assert 0.5 <= limit <= 1
    assert (layers == 1) == (limit == 1)


def test_the_bound_takes_the_worst_value_from_the_rewards() -> None:
    options: dict[str, Any] = {"discount": 0.5, "step_size": 1.0, "reward_bound": 3.0}
    assert ictd.neu_bound(0.5, 3, **options) == ictd.neu_bound(0.5, 3, value_bound=6.0, **options)


# --- The curve, the set and the bounds on processes with names

NAMED: dict[str, Callable[..., ictd.MarkovRewardProcess]] = {
    "boyan_chain": ictd.boyan_chain,
    "loop_chain": ictd.loop_chain,
    "garnet": lambda m, **options: ictd.garnet(m, m, **options),
}
every_process = pytest.mark.parametrize("name", list(NAMED))


def named_tasks(name: str) -> tuple[ictd.MarkovRewardProcess, torch.Tensor]:
    generator = torch.Generator().manual_seed(6)
    options: dict[str, Any] = {"discount": 0.9, "batch_shape": (8,), "dtype": torch.float64}
    mrp = NAMED[name](5, generator=generator, **options)
    attention = ictd.population_attention(
        mrp, torch.eye(5, dtype=torch.float64), ictd.BilinearScore(12 * torch.eye(5).double())
    )
    assert ictd.kernel_diagonality(attention).min() > 0.95
    return mrp, torch.eye(5, dtype=torch.float64)


def constructed(layers: int, matrix: torch.Tensor, step: float = 1.0) -> ictd.InContextTD:
    return ictd.InContextTD.from_construction(matrix, layers, step)


@every_process
@pytest.mark.claim("prop-neu-jacobian")
def test_neu_rises_to_a_peak_and_falls_with_the_spectral_radius(name: str) -> None:
    mrp, features = named_tasks(name)
    depths = [1, 2, 5, 7, 10, 14, 20, 40, 80, 160]
    curve = {
        L: ictd.norm_of_expected_update(constructed(L, 12 * features), mrp, features).item()
        for L in depths
    }
    peak = max(depths, key=lambda L: curve[L])
    assert 5 <= peak <= 20
    assert curve[peak] > 10 * curve[1]
    slope = np.log(curve[160] / curve[80]) / 80
    attention = ictd.population_attention(mrp, features, ictd.BilinearScore(12 * features))
    radius = ictd.spectral_radius(ictd.iteration_matrix(attention, mrp.transition, 0.9, 1.0)).max()
    assert slope == pytest.approx(2 * np.log(radius.item()), rel=0.02)
    assert slope == pytest.approx(2 * np.log(0.9), rel=0.02)


@every_process
@pytest.mark.claim("prop-neu-set")
def test_the_zeros_are_a_set(name: str) -> None:
    mrp, features = named_tasks(name)
    noise = torch.randn(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    on = [(12 * features, 1.0), (12 * features, 0.7), (18 * features, 1.0)]
    on.append((12 * features + 0.3 * noise, 0.9))
    for matrix, step in on:
        model = constructed(300, matrix, step)
        assert ictd.norm_of_expected_update(model, mrp, features) < 1e-12
    for change in ([0.05, 0, 0], [0, -0.02, 0], [0, 0, -0.05]):
        model = constructed(300, 12 * features)
        with torch.no_grad():
            model.layers[0].value_weights += tensor(change)
        assert ictd.norm_of_expected_update(model, mrp, features) > 1e-2


@every_process
@pytest.mark.parametrize("layers", [1, 10, 60])
@pytest.mark.claim("cor-neu-untied")
@pytest.mark.claim("thm-neu-full")
@pytest.mark.claim("cor-neu-weaker")
def test_neu_obeys_its_bounds(name: str, layers: int) -> None:
    mrp, features = named_tasks(name)
    attention = ictd.population_attention(mrp, features, ictd.BilinearScore(12 * features))
    diagonality = ictd.kernel_diagonality(attention).min()
    options: dict[str, Any] = {"discount": 0.9, "step_size": 1.0, "reward_bound": 1.0}
    options["value_bound"] = mrp.value().abs().max()
    rate = ictd.contraction_factor(attention, 0.9, 1.0).max()
    rates = {"looped": (rate, 1.0), "untied": (rate, 1.0), "full": (rate, 1.0)}
    weaker = ictd.sharp_rate(diagonality, 0.9, 1.0) + 0.02
    rates["weaker"] = weaker, ictd.power_bound(diagonality, 0.9, 1.0, weaker)
    for form, (r, constant) in rates.items():
        model = ictd.InContextTD.from_construction(
            12 * features,
            layers,
            1.0,
            looped=form != "untied",
            parametrization="full" if form == "full" else "structured",
            num_heads=2,
        )
        few = mrp[:3] if form == "full" else mrp
        neu = ictd.norm_of_expected_update(model, few, features)
        bound = ictd.neu_bound(
            r,
            layers,
            power_constant=constant,
            matrix_norm=12.0,
            form="looped" if form == "weaker" else form,  # type: ignore[arg-type]
            **options,
        )
        assert neu <= bound


# --- Refusals


def test_messages() -> None:
    mrp, features = random_tasks(0, 2)
    model = random_model()
    walk = mrp.sample(5, generator=torch.Generator().manual_seed(0))
    prompt = walk.prompt(features)
    with refuses(TypeError, r"model: expected an ictd.InContextTD, got Linear"):
        ictd.expected_update(torch.nn.Linear(1, 1), mrp, features)  # type: ignore[arg-type]
    with refuses(ValueError, r"features: expected shape \[\*B, m, d\] = \(2, 4, 3\), got"):
        ictd.expected_update(model, mrp, features[..., :2])
    with refuses(TypeError, r"expected dtype torch.float64 .*, got torch.float32"):
        ictd.population_values(random_model().to(torch.float32), mrp, features)
    with refuses(TypeError, r"features: expected dtype torch.float64"):
        ictd.value_jacobian(model, mrp, features.float())
    for one in (prompt[0], walk[0]):
        with refuses(ValueError, r"context: expected shape \[\*B, N\] = \(2, 6\), got \(6,\)"):
            ictd.expected_update(model, mrp, features, one)
    wide = walk.prompt(torch.nn.functional.pad(features, (0, 1)))
    shape = r"context.features: expected shape \[\*B, N, d\] = \(2, 6, 3\), got \(2, 6, 4\)"
    with refuses(ValueError, shape):
        ictd.expected_update(model, mrp, features, wide)
    with refuses(ValueError, r"test.features: expected shape .* \(2, 6, 3\), got \(6, 3\)"):
        ictd.sampled_update(model, prompt, prompt[0])
    ends = (
        dataclasses.replace(mrp)
        if False
        else ictd.MarkovRewardProcess(
            mrp.transition, mrp.reward, mrp.discount, terminal=torch.eye(4)[:2] == 1
        )
    )
    with refuses(ValueError, r"mrp: expected no terminal state, got one at index \(0, 0\)"):
        ictd.expected_update(model, ends, features)


def test_messages_on_full_weights() -> None:
    mrp, features = random_tasks(0)
    for name, where in (("query_key", (0, 3)), ("value_current", (4, 3)), ("value_target", (5, 3))):
        model = random_model(2, "full")
        with torch.no_grad():
            model.layers[0].get_parameter(name)[where] = 0.5
        match = rf"layers.0.{name}: expected 0 outside of .*, got 0.5 at index \({where[0]}, 3\)"
        with refuses(ValueError, match):
            ictd.population_values(model, mrp, features)


def test_messages_of_estimators() -> None:
    updates = torch.zeros(3, 2)
    with refuses(ValueError, r"estimator: expected 'plain', 'halves' or 'u', got 'v'"):
        ictd.squared_norm_of_mean(updates, "v")  # type: ignore[arg-type]
    with refuses(ValueError, r"updates: .* with an even number of tasks, got \(3, 2\)"):
        ictd.squared_norm_of_mean(updates, "halves")
    with refuses(ValueError, r"updates: .* with at least 2 tasks, got \(1, 2\)"):
        ictd.squared_norm_of_mean(updates[:1])
    with refuses(ValueError, r"updates: .* with at least 1 tasks, got \(0, 2\)"):
        ictd.squared_norm_of_mean(updates[:0], "plain")
    with refuses(TypeError, r"updates: expected a floating-point dtype"):
        ictd.squared_norm_of_mean(updates.long())
    with refuses(ValueError, r"form: expected 'looped', 'untied' or 'full', got 'tied'"):
        ictd.neu_bound(0.5, 1, discount=0.5, step_size=1.0, reward_bound=1.0, form="tied")  # type: ignore[arg-type]
    with refuses(ValueError, r"num_layers: expected an integer >= 1, got 0"):
        ictd.neu_bound(0.5, 0, discount=0.5, step_size=1.0, reward_bound=1.0)
