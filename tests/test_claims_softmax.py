"""The numbered results of chapter 03, on a thousand random problems each; and what breaks them.

Expected numbers come from NumPy loops over states or from dense matrices, not from the package.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import ictd
from strategies import Contexts, assert_same, random_contexts, random_matrix, tensor

BATCH = 50
SEEDS = range(20)  # batches of 50: a thousand problems
STATES = 5
Array = NDArray[np.float64]


def batches(**options: object) -> Iterator[tuple[np.random.Generator, Contexts]]:
    """A thousand contexts in batches, without padding and queries, each batch with a generator."""
    plain = {"num_queries": 0, "num_padding": 0, "num_states": STATES, **options}
    for seed in SEEDS:
        contexts = random_contexts(seed, batch_shape=(BATCH,), **plain)  # type: ignore[arg-type]
        yield np.random.default_rng(1000 + seed), contexts


def with_last_state(contexts: Contexts, state: int) -> Contexts:
    """The same walks, ending in another state, which is bootstrapped; discounts are below 0.8."""
    states, discounts = contexts.states.copy(), 0.8 * contexts.discounts
    states[:, -1], discounts[:, -2] = state, 0.8
    return dataclasses.replace(contexts, states=states, discounts=discounts)


def separated_features(rng: np.random.Generator, num_states: int) -> Array:
    """Unit vectors near the axes: distinct, and far enough apart for accurate solves."""
    features = np.eye(num_states) + 0.15 * rng.normal(size=(num_states, num_states))
    scaled: Array = features / np.linalg.norm(features, axis=1, keepdims=True)
    return scaled


@dataclasses.dataclass
class Model:
    """What one context says about states: counts, mean rewards, discounted transition shares."""

    count: Array
    reward: Array
    onward: Array

    @property
    def visited(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.count)

    def mean_errors(self, values: Array) -> Array:
        """The mean TD error of each state; 0 where nothing leaves."""
        return np.where(self.count > 0, self.reward + self.onward @ values - values, 0.0)

    def attention(self, scores: Array) -> Array:
        """M(s, u) = N(u) exp g(s, u) / sum of the same, scores [state, state]."""
        weights = self.count * np.exp(scores - scores.max(axis=1, keepdims=True))
        shares: Array = weights / weights.sum(axis=1, keepdims=True)
        return shares

    def certainty_equivalence(self) -> Array:
        """(I - P)^-1 r on the visited states."""
        v = self.visited
        block = self.onward[np.ix_(v, v)]
        solution: Array = np.linalg.solve(np.eye(len(v)) - block, self.reward[v])
        return solution


def empirical(contexts: Contexts, index: int, num_states: int) -> Model:
    """Count, by a loop over the transitions of one context."""
    count, reward = np.zeros(num_states), np.zeros(num_states)
    onward = np.zeros((num_states, num_states))
    states = contexts.states[index]
    for j in np.flatnonzero(contexts.is_transition[index]):
        count[states[j]] += 1
        reward[states[j]] += contexts.rewards[index, j]
        onward[states[j], states[j + 1]] += contexts.discounts[index, j]
    known = np.maximum(count, 1)
    return Model(count, reward / known, onward / known[:, None])


def mean_td_error(contexts: Contexts, index: int, values: Array) -> float:
    """The mean over all transitions of R + gamma v(next) - v, with values at tokens."""
    keys = np.flatnonzero(contexts.is_transition[index])
    errors = [
        contexts.rewards[index, j] + contexts.discounts[index, j] * values[j + 1] - values[j]
        for j in keys
    ]
    return float(np.mean(errors)) if errors else 0.0


# --- A constant score -----------------------------------------------------------------------------


@pytest.mark.claim("prop-constant-score")
def test_constant_score() -> None:
    flat = ictd.BilinearScore(torch.zeros(3, 3, dtype=torch.float64))
    for rng, contexts in batches(num_tokens=12):
        alpha, steps = float(rng.uniform(0.1, 1.5)), int(rng.integers(1, 30))
        start = np.where(contexts.is_terminal, 0.0, rng.normal(size=contexts.states.shape))
        values = ictd.softmax_td(
            contexts.prompt(),
            flat,
            num_steps=steps,
            step_size=alpha,
            initial_values=tensor(start),
        )
        expected = start.copy()
        for i in range(BATCH):
            keys = contexts.is_transition[i]
            if not keys.any():
                continue
            rate = 1 - contexts.discounts[i, keys].mean()
            first = mean_td_error(contexts, i, start[i])
            moved = first / rate * (1 - (1 - alpha * rate) ** steps)
            expected[i] += np.where(contexts.is_terminal[i], 0.0, moved)
        assert_same(values, tensor(expected))


@pytest.mark.claim("prop-constant-score")
def test_constant_score_breaks() -> None:
    # A score that looks at the reader: values are no longer one number.
    contexts = random_contexts(0, batch_shape=(BATCH,), terminal=False)
    mild = ictd.BilinearScore(0.3 * torch.eye(3, dtype=torch.float64))
    values = ictd.softmax_td(contexts.prompt(), mild, num_steps=10, step_size=1.0)
    assert (values.amax(-1) - values.amin(-1)).max() > 0.1
    # A pinned state that is bootstrapped from: its value does not move along.
    prompt = ictd.Prompt(
        torch.ones(2, 1),
        torch.tensor([1.0, 0.0]),
        torch.tensor([0.5, 0.0]),
        torch.tensor([True, False]),
        torch.tensor([False, True]),
    )
    values = ictd.softmax_td(
        prompt, ictd.BilinearScore(torch.zeros(1, 1)), num_steps=60, step_size=1.0
    )
    torch.testing.assert_close(values, torch.tensor([1.0, 0.0]))  # 1, and not 1 / (1 - 0.5)


# --- The identity score ---------------------------------------------------------------------------


@pytest.mark.claim("prop-identity-score")
def test_identity_gap() -> None:
    for rng, contexts in batches():
        beta = float(rng.uniform(0, 6))
        start = rng.normal(size=(BATCH, STATES))
        at_tokens = np.take_along_axis(start, contexts.states, axis=1)
        prompt = dataclasses.replace(contexts, is_terminal=contexts.is_terminal & False)
        values = ictd.softmax_td(
            prompt.trajectory().prompt(torch.eye(STATES, dtype=torch.float64)),
            ictd.BilinearScore(beta * torch.eye(STATES, dtype=torch.float64)),
            num_steps=1,
            step_size=1.0,
            initial_values=tensor(at_tokens),
        )
        read = values.numpy() - at_tokens
        for i in range(BATCH):
            model = empirical(contexts, i, STATES)
            error, n = model.mean_errors(start[i]), model.count.sum()
            for s in model.visited:
                others = n - model.count[s]
                if others == 0:
                    continue
                rest = (model.count @ error - model.count[s] * error[s]) / others
                gap = others * (rest - error[s]) / (model.count[s] * math.exp(beta) + others)
                token = int(np.flatnonzero(contexts.states[i] == s)[0])
                assert abs(read[i, token] - error[s] - gap) < 1e-12
                largest = np.abs(error[model.visited]).max()
                bound = 2 * others / model.count[s] * math.exp(-beta) * largest
                assert abs(gap) <= bound + 1e-15


def identity_history(
    contexts: Contexts, start: Array, score: torch.nn.Module, weight: torch.Tensor | None
) -> Array:
    """Values [step, batch, token] of 40 steps with one-hot features."""
    prompt = contexts.trajectory().prompt(torch.eye(start.shape[1], dtype=torch.float64))
    at_tokens = np.take_along_axis(start, contexts.states, axis=1)
    history = ictd.softmax_td(
        prompt,
        score,
        num_steps=40,
        step_size=0.9,
        weight=weight,
        initial_values=tensor(at_tokens),
        return_history=True,
    )
    result: Array = history.numpy()
    return result


OWN_VISITS = ictd.LogKernelScore(ictd.IdentityKernel())  # the identity score at beta = infinity


@pytest.mark.claim("prop-identity-score")
def test_identity_bound() -> None:
    for rng, contexts in batches(closed=True, num_tokens=25):
        start = rng.normal(size=(BATCH, STATES))
        models = [empirical(contexts, i, STATES) for i in range(BATCH)]
        gamma = contexts.discounts.max()
        rarity = np.array(
            [(m.count.sum() - m.count[m.visited].min()) / m.count[m.visited].min() for m in models]
        )
        factor = (1 + gamma) / (1 - gamma)
        beta = math.log(factor * rarity.max()) + float(rng.uniform(0, 3))
        away = [np.abs(start[i, m.visited] - m.certainty_equivalence()).max()
                for i, m in enumerate(models)]  # fmt: skip
        bound = 2 * factor * rarity * math.exp(-beta) * np.array(away)
        count = np.stack([m.count for m in models])
        shares = np.take_along_axis(count / count.sum(1, keepdims=True), contexts.states, axis=1)
        score = ictd.BilinearScore(beta * torch.eye(STATES, dtype=torch.float64))
        omega = rng.uniform(0, 1 / 0.9, size=STATES)  # any, as long as step size times it is <= 1
        for weight in (None, tensor(omega[contexts.states]), tensor(shares)):
            soft = identity_history(contexts, start, score, weight)
            hard = identity_history(contexts, start, OWN_VISITS, weight)
            assert (np.abs(soft - hard).max(axis=(0, 2)) <= bound + 1e-12).all()
        tabular = ictd.tabular_td(
            contexts.trajectory(),
            STATES,
            num_steps=40,
            step_size=0.9,
            initial_values=tensor(start),
        )
        assert_same(tensor(hard[-1]), tabular)  # the loop ended with the weight N / n


@pytest.mark.claim("prop-identity-score")
def test_identity_breaks() -> None:
    # A bootstrapped successor that was never left: no temperature helps.
    for _, closed in batches(closed=True, num_tokens=6):
        contexts = with_last_state(closed, STATES)
        start = np.zeros((BATCH, STATES + 1))
        known = np.broadcast_to(contexts.states < STATES, contexts.states.shape)
        hard = identity_history(contexts, start, OWN_VISITS, None)
        for beta in (10.0, 40.0):
            score = ictd.BilinearScore(beta * torch.eye(STATES + 1, dtype=torch.float64))
            soft = identity_history(contexts, start, score, None)
            distance = np.where(known, np.abs(soft - hard), 0.0).max(axis=(0, 2))
            assert np.median(distance) > 0.05
        break


# --- A layer is a step ----------------------------------------------------------------------------


def dense_layers(prompt: ictd.Prompt, A: torch.Tensor, alpha: float, start: torch.Tensor) -> None:
    """Run the equation of the layer with dense matrices, and compare both memory rows."""
    d, tokens = prompt.feature_dim, len(prompt)
    assert prompt.is_terminal is not None
    gamma = torch.where(prompt.is_transition, prompt.discounts, 0.0)
    shift = torch.diag(torch.ones(tokens - 1, dtype=torch.float64), -1) @ torch.diag_embed(gamma)
    Z = torch.zeros(*prompt.batch_shape, d + 3, tokens, dtype=torch.float64)
    Z[..., :d, :] = prompt.features.mT
    Z[..., d, :] = torch.where(prompt.is_transition, prompt.rewards, 0.0)
    Z[..., d + 2, :] = torch.where(prompt.is_terminal, 0.0, start)
    Z[..., d + 1, :] = (Z[..., d + 2 :, :] @ shift)[..., 0, :]
    Q = torch.zeros(d + 3, d + 3, dtype=torch.float64)
    Q[:d, :d] = A
    w_bar = torch.zeros(d + 3, dtype=torch.float64)
    w_bar[d:] = alpha * torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64)
    unit = torch.eye(d + 3, dtype=torch.float64)
    V_cur, V_tgt = torch.outer(unit[d + 2], w_bar), torch.outer(unit[d + 1], w_bar)
    steps = ictd.softmax_td(
        prompt,
        ictd.BilinearScore(A),
        num_steps=5,
        step_size=alpha,
        initial_values=start,
        return_history=True,
    )
    for values in steps:
        assert_same(Z[..., d + 2, :], values)
        assert_same(Z[..., d + 1 :, :][..., 0, :], (values[..., None, :] @ shift)[..., 0, :])
        X = (Z.mT @ Q @ Z).masked_fill(~prompt.is_transition[..., None], -torch.inf)
        H = X.softmax(-2).nan_to_num(0.0)  # no key at all: 0
        H = torch.where(prompt.is_terminal[..., None, :], 0.0, H)
        Z = Z + V_cur @ Z @ H + V_tgt @ Z @ H @ shift
    for num_heads in (1, 2):
        for form in ("structured", "full"):
            model = ictd.InContextTD.from_construction(
                A, 5, alpha, num_heads=num_heads, parametrization=form
            )
            with torch.no_grad():
                layers = model(prompt, return_history=True, initial_values=start)
            assert_same(layers, steps)


@pytest.mark.claim("thm-equivalence")
def test_layers_are_steps() -> None:
    for rng, contexts in batches(num_queries=2, num_padding=1):
        prompt = contexts.with_junk().prompt()
        start = tensor(rng.normal(size=contexts.states.shape))
        alpha = float(rng.uniform(-1, 1))
        dense_layers(prompt, tensor(random_matrix(int(rng.integers(10**6)), 3)), alpha, start)


def one_state() -> ictd.Prompt:
    """One transition from a state to itself: the values are 1, 3/2, 7/4, …, 2."""
    return ictd.Prompt(
        torch.ones(2, 1, dtype=torch.float64),
        tensor([1.0, 0.0]),
        tensor([0.5, 0.0]),
        torch.tensor([True, False]),
    )


def run_dual(layer: ictd.DualHeadLayer, Z: torch.Tensor, num_layers: int) -> list[float]:
    values = []
    with torch.no_grad():
        for _ in range(num_layers):
            Z = layer(Z, one_state().discounts, one_state().is_transition)
            values.append(Z[-1, 0].item())
    return values


@pytest.mark.claim("thm-equivalence")
@pytest.mark.parametrize(
    ("target_memory", "target_scale", "first", "limit"),
    [
        (0.0, 1.0, [1, 3 / 2, 7 / 4], 2.0),  # nothing broken
        (1.0, 1.0, [2, 3, 7 / 2], 4.0),  # inconsistent memory
        (0.0, 0.5, [1, 5 / 4, 21 / 16], 4 / 3),  # the discount in V_tgt as well
    ],
)
def test_equivalence_breaks(
    target_memory: float, target_scale: float, first: list[float], limit: float
) -> None:
    layer = ictd.DualHeadLayer(1, parametrization="full", dtype=torch.float64)
    layer.construct(torch.ones(1, 1, dtype=torch.float64), 1.0)
    with torch.no_grad():
        layer.value_target *= target_scale
    Z = one_state().matrix()
    Z[2, 0] = target_memory
    values = run_dual(layer, Z, 60)
    assert values[:3] == first
    assert abs(values[-1] - limit) < 1e-12


# --- The lumped form ------------------------------------------------------------------------------


@pytest.mark.claim("prop-lumped")
def test_lumped_form() -> None:
    for rng, contexts in batches(terminal=False):
        features, A = rng.normal(size=(STATES, 3)), random_matrix(int(rng.integers(10**6)), 3)
        start, omega = rng.normal(size=(BATCH, STATES)), rng.uniform(0, 1, size=STATES)
        values = ictd.softmax_td(
            contexts.trajectory().prompt(tensor(features)),
            ictd.BilinearScore(tensor(A)),
            num_steps=6,
            step_size=0.7,
            weight=tensor(omega[contexts.states]),
            initial_values=tensor(np.take_along_axis(start, contexts.states, axis=1)),
        )
        expected = np.zeros(contexts.states.shape)
        for i in range(BATCH):
            model, v = empirical(contexts, i, STATES), start[i]
            if len(model.visited):
                attention = model.attention(features @ A.T @ features.T)
                for _ in range(6):
                    v = v + 0.7 * omega * (attention @ model.mean_errors(v))
            expected[i] = v[contexts.states[i]]
        assert_same(values, tensor(expected))


@pytest.mark.claim("prop-lumped")
def test_lumped_form_breaks() -> None:
    # Memory that differs between two tokens of one state: it differs for ever.
    contexts = random_contexts(3, num_tokens=20, closed=True, num_queries=0, num_padding=0)
    start = tensor(np.random.default_rng(3).normal(size=20))
    score = ictd.BilinearScore(5 * torch.eye(3, dtype=torch.float64))
    values = ictd.softmax_td(
        contexts.prompt(), score, num_steps=500, step_size=0.5, initial_values=start
    )
    states = torch.as_tensor(contexts.states)
    same = states[:, None] == states[None, :]
    torch.testing.assert_close(
        (values[:, None] - values)[same], (start[:, None] - start)[same], rtol=0, atol=1e-9
    )
    assert (values[:, None] - values)[same].abs().max() > 1


# --- Fixed points ---------------------------------------------------------------------------------


@pytest.mark.claim("thm-fixed-point")
def test_fixed_point() -> None:
    for rng, contexts in batches(closed=True, num_tokens=20):
        features = separated_features(rng, STATES + 2)  # two states that never occur
        scores = 6 * features @ features.T
        queries = tensor(features[STATES:])
        prompt = contexts.trajectory().prompt(tensor(features)).with_queries(queries)
        score = ictd.BilinearScore(6 * torch.eye(STATES + 2, dtype=torch.float64))
        start = rng.normal(size=(BATCH, STATES + 2))
        at_tokens = np.concatenate(
            [np.take_along_axis(start, contexts.states, axis=1), start[:, STATES:]], axis=1
        )
        limit = ictd.fixed_point(prompt, score).numpy()
        history = ictd.softmax_td(
            prompt,
            score,
            num_steps=12,
            step_size=0.8,
            initial_values=tensor(at_tokens),
            return_history=True,
        ).numpy()
        still = np.zeros_like(at_tokens)
        for i in range(BATCH):
            model = empirical(contexts, i, STATES + 2)
            v, v_hat = model.visited, model.certainty_equivalence()
            first = [int(np.flatnonzero(contexts.states[i] == s)[0]) for s in v]
            attention = model.attention(scores)
            unseen = attention[STATES:][:, v] @ np.linalg.inv(attention[np.ix_(v, v)])
            np.testing.assert_allclose(limit[i, first], v_hat, rtol=0, atol=1e-8)
            np.testing.assert_allclose(limit[i, -2:], unseen @ v_hat, rtol=0, atol=1e-8)
            kept = history[:, i, -2:] - history[:, i, first] @ unseen.T
            np.testing.assert_allclose(kept, np.tile(kept[0], (13, 1)), rtol=0, atol=1e-8)
            table = start[i].copy()
            table[v] = v_hat
            still[i] = np.concatenate([table[contexts.states[i]], table[STATES:]])
        after = ictd.softmax_td(
            prompt, score, num_steps=1, step_size=1.0, initial_values=tensor(still)
        )
        assert_same(after, tensor(still), 1e-10)


@pytest.mark.claim("thm-fixed-point")
@pytest.mark.parametrize("beta", [0.5, 8.0, 60.0])
def test_unseen_state(beta: float) -> None:
    angle = 2 * math.pi * torch.arange(5, dtype=torch.float64) / 5
    circle = torch.stack([angle.cos(), angle.sin()], dim=-1)
    tour = ictd.Trajectory(
        torch.tensor([0, 1, 2, 4, 0]),
        tensor([1.0, 2.0, 3.0, 4.0, 0.0]),
        tensor([0.9, 0.9, 0.9, 0.9, 0.0]),
    )
    prompt = tour.prompt(circle).with_queries(circle[3:4])
    score = ictd.BilinearScore(beta * torch.eye(2, dtype=torch.float64))
    values = ictd.softmax_td(prompt, score, num_steps=3000, step_size=1.0)
    expected = tensor([23.687, 25.208, 25.787, 25.318])
    torch.testing.assert_close(values[:4], expected, rtol=0, atol=5e-4)
    torch.testing.assert_close(values, ictd.fixed_point(prompt, score), rtol=0, atol=1e-6)
    # 3 is extrapolated: between its neighbours if sharp, out of the visited range if blurred
    assert bool(values[-1] > expected.max()) == (beta < 1)
    if beta > 50:
        assert abs(values[-1] - (values[2] + values[3]) / 2) < 1e-3


@pytest.mark.claim("thm-fixed-point")
def test_fixed_point_breaks() -> None:
    # Singular attention: flat, or a quarter turn. The limit is another one, or one of many.
    prompt = ictd.Prompt(
        torch.eye(2, dtype=torch.float64)[[0, 1, 0]],
        tensor([4.0, 0.0, 0.0]),
        tensor([0.5, 0.5, 0.0]),
        torch.tensor([True, True, False]),
    )
    flat = ictd.BilinearScore(torch.zeros(2, 2, dtype=torch.float64))
    values = ictd.softmax_td(prompt, flat, num_steps=200, step_size=1.0)
    torch.testing.assert_close(values, torch.full_like(values, 4.0))  # not 16/3 and 8/3
    turn = ictd.BilinearScore(tensor([[0.0, -1.0], [1.0, 0.0]]))
    limits = [
        ictd.softmax_td(
            prompt, turn, num_steps=999, step_size=0.5, initial_values=tensor([x, 0.0, x])
        )
        for x in (0.0, 1.0)
    ]
    assert (limits[1] - limits[0]).abs().max() > 1


@pytest.mark.claim("lem-invertible-attention")
def test_invertible() -> None:
    rng = np.random.default_rng(5)
    for _ in range(1000):
        m, d = int(rng.integers(1, 6)), int(rng.integers(1, 4))
        # distinct: at least 0.3 apart along the first axis
        points = rng.normal(size=(m, d))
        points[:, 0] = rng.permutation(0.6 * np.arange(m) + rng.uniform(0, 0.3, m)) - 0.3 * m
        root = np.eye(d) + 0.2 * rng.normal(size=(d, d))
        A = root.T @ root
        count = rng.integers(1, 20, size=m).astype(float)
        attention = Model(count, count, np.eye(m)).attention(points @ A @ points.T)
        kernel = np.exp(points @ A @ points.T)
        scale = 1 / np.sqrt(np.diag(kernel))
        assert np.linalg.eigvalsh(scale[:, None] * kernel * scale).min() > 1e-11
        z, inverse = kernel @ count, np.linalg.inv(kernel)
        inverse = inverse * z / count[:, None]  # of D_z^-1 kernel D_N
        size = np.abs(attention) @ np.abs(inverse)
        assert (np.abs(attention @ inverse - np.eye(m)) <= 1e-6 * size).all()


@pytest.mark.claim("lem-invertible-attention")
def test_invertible_breaks() -> None:
    model = Model(np.array([2.0, 1.0]), np.zeros(2), np.eye(2))
    points = np.array([[1.0, 0.0], [0.0, 1.0]])
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])  # not positive definite
    assert abs(np.linalg.det(model.attention(points @ turn @ points.T))) < 1e-15
    twins = points[[0, 0]]  # two states with the same features
    assert abs(np.linalg.det(model.attention(twins @ twins.T))) < 1e-15


# --- Without closure ------------------------------------------------------------------------------


@pytest.mark.claim("thm-no-closure")
def test_no_closure() -> None:
    for rng, closed in batches(closed=True, num_tokens=20):
        contexts = with_last_state(closed, STATES)  # a state that nothing leaves
        features = separated_features(rng, STATES + 1)
        prompt = contexts.trajectory().prompt(tensor(features))
        score = ictd.BilinearScore(9 * torch.eye(STATES + 1, dtype=torch.float64))
        start, any_c = rng.normal(size=(2, BATCH, STATES + 1))
        options = {"step_size": 0.9, "num_steps": 150}
        values = ictd.softmax_td(
            prompt,
            score,
            **options,
            initial_values=tensor(np.take_along_axis(start, contexts.states, axis=1)),
        ).numpy()
        from_zero = ictd.fixed_point(prompt, score).numpy()
        still = np.zeros(contexts.states.shape)
        for i in range(BATCH):
            model = empirical(contexts, i, STATES + 1)
            v, u = model.visited, [STATES]
            attention = model.attention(9 * features @ features.T)
            inner = attention[np.ix_(v, v)]
            m = attention[np.ix_(u, v)] @ np.linalg.inv(inner)
            p_vv, p_vu = model.onward[np.ix_(v, v)], model.onward[np.ix_(v, u)]
            system = np.eye(len(v)) - p_vv - p_vu @ m
            first = [int(np.flatnonzero(contexts.states[i] == s)[0]) for s in v]
            # (i) every c is at rest, and 1 is an eigenvalue
            table = np.zeros(STATES + 1)
            table[u] = any_c[i, u]
            table[v] = np.linalg.solve(np.eye(len(v)) - p_vv, model.reward[v] + p_vu @ table[u])
            still[i] = table[contexts.states[i]]
            block = np.concatenate([np.eye(len(v)) - p_vv, -p_vu], axis=1)
            rows = attention[np.ix_([*v, *u], v)]
            eigenvalues = np.linalg.eigvals(np.eye(len(v) + 1) - 0.9 * rows @ block)
            assert np.abs(eigenvalues - 1).min() < 1e-10
            # (ii) and (iii) the limit
            for found, c_0 in (
                (values[i], start[i, u] - m @ start[i, v]),
                (from_zero[i], np.zeros(1)),
            ):
                limit = np.linalg.solve(system, model.reward[v] + p_vu @ c_0)
                np.testing.assert_allclose(found[first], limit, rtol=0, atol=1e-7)
                np.testing.assert_allclose(found[-1:], c_0 + m @ limit, rtol=0, atol=1e-7)
        after = ictd.softmax_td(
            prompt, score, num_steps=1, step_size=0.9, initial_values=tensor(still)
        )
        assert_same(after, tensor(still), 1e-10)


@pytest.mark.claim("thm-no-closure")
def test_no_closure_with_several_unseen_states() -> None:
    seen, unseen = range(STATES), range(STATES, STATES + 3)
    states = np.array([0, 1, 2, 5, 3, 0, 4, 6, 2, 1, 4, 7])  # three walks, cut in 5, 6 and 7
    is_transition = ~np.isin(states, unseen)
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        rewards, discounts = rng.normal(size=12), rng.uniform(0.3, 0.8, size=12)
        features = separated_features(rng, STATES + 3)
        trajectory = ictd.Trajectory(
            torch.as_tensor(states), tensor(rewards), tensor(np.where(is_transition, discounts, 0)),
            torch.as_tensor(is_transition),
        )  # fmt: skip
        start = rng.normal(size=STATES + 3)
        found = ictd.softmax_td(
            trajectory.prompt(tensor(features)),
            ictd.BilinearScore(9 * torch.eye(STATES + 3, dtype=torch.float64)),
            num_steps=300,
            step_size=0.9,
            initial_values=tensor(start[states]),
        ).numpy()
        model = Model(np.zeros(8), np.zeros(8), np.zeros((8, 8)))
        for j in np.flatnonzero(is_transition):
            model.count[states[j]] += 1
            model.reward[states[j]] += rewards[j]
            model.onward[states[j], states[j + 1]] += discounts[j]
        r = (model.reward / np.maximum(model.count, 1))[seen]
        P = (model.onward / np.maximum(model.count, 1)[:, None])[seen]
        attention = model.attention(9 * features @ features.T)[:, seen]
        m = attention[unseen] @ np.linalg.inv(attention[seen])
        c_0 = start[unseen] - m @ start[seen]
        system = np.eye(STATES) - P[:, seen] - P[:, unseen] @ m
        limit = np.linalg.solve(system, r + P[:, unseen] @ c_0)
        table = np.concatenate([limit, c_0 + m @ limit])
        np.testing.assert_allclose(found, table[states], rtol=0, atol=1e-9)
        # (i) the eigenvalue 1, three times, and every c at rest
        block = np.concatenate([np.eye(STATES) - P[:, seen], -P[:, unseen]], axis=1)
        assert np.linalg.matrix_rank(attention @ block, tol=1e-9) == STATES
        c = rng.normal(size=3)
        v = np.linalg.solve(np.eye(STATES) - P[:, seen], r + P[:, unseen] @ c)
        assert np.abs(attention @ (r - block @ np.concatenate([v, c]))).max() < 1e-12


@pytest.mark.claim("thm-no-closure")
def test_trimmed_forgets() -> None:
    rng, closed = next(iter(batches(closed=True, num_tokens=20)))
    trajectory = with_last_state(closed, STATES).trajectory()
    start = tensor(rng.normal(size=STATES + 1))
    one_hot = torch.eye(STATES + 1, dtype=torch.float64)
    score = ictd.BilinearScore(6 * one_hot)
    spread = {}
    for name, context in (("open", trajectory), ("trimmed", trajectory.trim())):
        zero, other = (
            ictd.softmax_td(
                context.prompt(one_hot),
                score,
                num_steps=150,
                step_size=0.9,
                initial_values=first,
            )
            for first in (torch.zeros_like(context.rewards), start[context.states])
        )
        spread[name] = torch.where(context.is_transition, (other - zero).abs(), 0.0).max()
    assert spread["open"] > 0.1
    assert spread["trimmed"] < 1e-8
