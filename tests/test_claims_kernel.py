"""The numbered results of the chapter on kernel TD, on random problems and with assumptions broken.

Contexts are drawn a thousand at a time as one batch; every seed is fixed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import ictd
from ictd.mirrored import mirrored_keys_td, opposite_heads_td
from strategies import Contexts, random_contexts

MANY = 1000
STEPS: dict[str, Any] = {"num_steps": 6, "step_size": 0.7}
GAUSSIAN = ictd.GaussianKernel(0.8)


def draw(seed: int, **keywords: Any) -> Contexts:
    """A thousand contexts of several episodes, with terminal tokens, padding and queries."""
    return random_contexts(seed, batch_shape=(MANY,), **keywords)


def largest(x: torch.Tensor) -> float:
    return x.abs().max().item()


def density(kernel: Any, prompt: ictd.Prompt) -> torch.Tensor:
    """The mean of a kernel over the transitions, at every token."""
    values = kernel(prompt.features, prompt.features)
    counted = torch.where(prompt.is_transition.unsqueeze(-2), values, 0.0)
    return counted.sum(-1) / prompt.is_transition.sum(-1, keepdim=True).clamp(min=1)


def unpinned(prompt: ictd.Prompt, values: torch.Tensor) -> torch.Tensor:
    """The values with those of pinned tokens set to 0."""
    assert prompt.is_terminal is not None
    return values.masked_fill(prompt.is_terminal, 0.0)


def start(prompt: ictd.Prompt, seed: int) -> torch.Tensor:
    """Random first values that are a function of the features, 0 at pinned tokens."""
    generator = torch.Generator().manual_seed(seed)
    shape = (prompt.feature_dim, 1)
    weights = torch.randn(shape, generator=generator, dtype=prompt.dtype)
    return unpinned(prompt, torch.cos(3 * prompt.features @ weights).squeeze(-1))


def closed_walks(
    seed: int, num_steps: int = 20, num_states: int = 4, discount: float = 0.9
) -> ictd.Trajectory:
    """A thousand walks that end in their first state, with one discount."""
    generator = torch.Generator().manual_seed(seed)
    shape = (MANY, num_steps + 1)
    states = torch.randint(num_states, shape, generator=generator)
    states[:, -1] = states[:, 0]
    rewards = torch.randn(shape, generator=generator, dtype=torch.float64)
    return ictd.Trajectory(states, rewards, torch.full_like(rewards, discount))


def one_hot(trajectory: ictd.Trajectory, num_states: int = 4) -> ictd.Prompt:
    return trajectory.prompt(torch.eye(num_states, dtype=torch.float64))


# Function space --------------------------------------------------------------------------------


def odd_kernel(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A kernel that is neither symmetric nor of one sign."""
    return torch.sin(query.sum(-1, keepdim=True) + 2 * key[..., 0].unsqueeze(-2))


@pytest.mark.claim("prop-representer")
@pytest.mark.parametrize("kernel", [GAUSSIAN, ictd.LinearKernel(), odd_kernel])
def test_representer_form(kernel: Any) -> None:
    prompt = draw(0).prompt()
    first = start(prompt, 1)
    history = ictd.kernel_td(prompt, kernel, initial_values=first, return_history=True, **STEPS)
    n = prompt.is_transition.sum(-1, keepdim=True).clamp(min=1).double()
    gram = kernel(prompt.features, prompt.features)
    error = ictd.td_errors(prompt, first)
    summed = torch.zeros_like(first)  # the sum of the TD errors over the steps
    recursive = torch.zeros_like(first)  # the same coefficients without any values
    for t in range(1, 7):
        summed = summed + 0.7 / n * ictd.td_errors(prompt, history[t - 1])
        move = unpinned(prompt, (gram @ recursive.unsqueeze(-1)).squeeze(-1))
        change = move - ictd.temporal_shift(move, prompt.discounts, prompt.is_transition)
        step = torch.where(prompt.is_transition, error - change, 0.0)
        recursive = recursive + 0.7 / n * step
        assert largest(recursive - summed) < 1e-11
        values = first + unpinned(prompt, (gram @ summed.unsqueeze(-1)).squeeze(-1))
        assert largest(values - history[t]) < 1e-11


@pytest.mark.claim("prop-representer")
def test_what_the_kernel_cannot_express_is_never_touched() -> None:
    generator = torch.Generator().manual_seed(2)
    phi = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    walks = closed_walks(3, num_states=5)
    guess = torch.randn(5, generator=generator, dtype=torch.float64)
    prompt = walks.prompt(phi).with_queries(phi)
    values = ictd.kernel_td(
        prompt,
        ictd.LinearKernel(),
        num_steps=30,
        step_size=0.1,
        initial_values=torch.cat([guess[walks.states], guess.expand(MANY, 5)], -1),
    )[:, -5:]
    outside = torch.eye(5, dtype=torch.float64) - phi @ torch.linalg.pinv(phi)
    assert largest(values @ outside - guess @ outside) < 1e-11
    assert largest(guess @ outside) > 0.1
    assert (values - guess).abs().amax(-1).min() > 1e-3


@pytest.mark.claim("thm-kernel-td-is-linear")
def test_linear_td_is_kernel_td() -> None:
    prompt = draw(4).prompt()
    generator = torch.Generator().manual_seed(5)
    weights = torch.randn(MANY, 3, generator=generator, dtype=torch.float64)
    first = (prompt.features @ weights.unsqueeze(-1)).squeeze(-1)
    linear = ictd.linear_td(prompt, initial_weights=weights, return_history=True, **STEPS)
    kernel = ictd.kernel_td(
        prompt, ictd.LinearKernel(), initial_values=first, return_history=True, **STEPS
    )
    assert largest(linear - kernel) < 1e-12
    from_zero = ictd.kernel_td(prompt, ictd.LinearKernel(), **STEPS)
    assert largest(linear[-1] - from_zero) > 0.1  # another first guess


@pytest.mark.claim("thm-kernel-td-is-linear")
def test_tabular_td_is_kernel_td() -> None:
    drawn = draw(6, num_padding=0, num_queries=0)
    walks = drawn.trajectory()
    tabular = ictd.tabular_td(walks, 5, return_history=True, **STEPS)
    kernel = ictd.kernel_td(drawn.prompt(), ictd.IdentityKernel(), return_history=True, **STEPS)
    assert largest(tabular - kernel) < 1e-12
    # Features that do not separate states make it tabular TD on groups of states.
    pairs = ictd.aggregation_features(5, 2, dtype=torch.float64)
    grouped = ictd.kernel_td(walks.prompt(pairs), ictd.IdentityKernel(), **STEPS)
    assert largest(grouped - ictd.linear_td(walks.prompt(pairs), **STEPS)) < 1e-12
    assert largest(grouped - tabular[-1]) > 0.1


@pytest.mark.claim("thm-kernel-td-is-linear")
def test_a_semidefinite_kernel_is_linear_td() -> None:
    walks = closed_walks(7)
    generator = torch.Generator().manual_seed(8)
    factor = torch.randn(MANY, 4, 2, generator=generator, dtype=torch.float64)
    kernel = factor @ factor.mT  # rank two
    value, vector = torch.linalg.eigh(kernel)
    root = vector * value.clamp(min=0).sqrt().unsqueeze(-2) @ vector.mT
    linear = ictd.linear_td(walks.prompt(root), num_steps=6, step_size=0.1)
    direct = ictd.kernel_td(
        one_hot(walks), lambda q, k: q @ kernel @ k.mT, num_steps=6, step_size=0.1
    )
    assert largest(linear - direct) < 1e-10
    # A kernel that is not semidefinite moves a state against its TD error.
    prompt = ictd.Prompt(
        torch.ones(2, 1), torch.tensor([1.0, 0.0]), torch.zeros(2), torch.tensor([True, False])
    )
    step = ictd.kernel_td(prompt, lambda q, k: -q @ k.mT, num_steps=1, step_size=1.0)
    assert step[0] == -1.0


@pytest.mark.claim("cor-kernel-converges")
def test_kernel_td_converges_on_balanced_records() -> None:
    walks = closed_walks(9)
    places = torch.arange(4, dtype=torch.float64).unsqueeze(-1)
    target = ictd.certainty_equivalence(walks, 4).gather(-1, walks.states)
    values = ictd.kernel_td(
        walks.prompt(places), ictd.GaussianKernel(0.5), num_steps=800, step_size=1.0
    )
    assert largest(values - target) < 1e-4
    assert (values - target).abs().amax(-1).median() < 1e-9
    # Episodes that terminate are balanced too.
    rng = torch.Generator().manual_seed(10)
    chain = ictd.random_walk(5, discount=0.9, batch_shape=(100,), dtype=torch.float64)
    record = chain.sample(60, generator=rng)
    terminal = record.is_terminal
    assert terminal is not None
    is_whole = terminal.flip(-1).cumsum(-1).flip(-1) > 0  # an ending is still to come
    record = ictd.Trajectory(
        record.states, record.rewards, record.discounts, record.is_transition & is_whole, terminal
    )
    line = torch.arange(7, dtype=torch.float64).unsqueeze(-1)
    exact = ictd.certainty_equivalence(record, 7).gather(-1, record.states)
    values = ictd.kernel_td(
        record.prompt(line), ictd.GaussianKernel(0.5), num_steps=3000, step_size=1.0
    )
    gap = torch.where(record.is_transition, values - exact, 0.0)
    assert largest(gap) < 1e-3


@pytest.mark.claim("cor-kernel-converges")
def test_kernel_td_needs_definiteness_and_balance() -> None:
    walks = closed_walks(11)
    prompt = walks.prompt(torch.arange(4, dtype=torch.float64).unsqueeze(-1) - 1.5)
    target = ictd.certainty_equivalence(walks, 4).gather(-1, walks.states)
    values = ictd.kernel_td(prompt, ictd.LinearKernel(), num_steps=800, step_size=0.4)
    limit = (prompt.features @ ictd.lstd(prompt).unsqueeze(-1)).squeeze(-1)
    assert largest(values - limit) < 1e-8
    assert (values - target).abs().amax(-1).min() > 1e-3
    # One transition to a state that is never left: it runs away for every step size.
    open_record = ictd.Prompt(
        torch.tensor([[1.0], [2.0]]),
        torch.tensor([1.0, 0.0]),
        torch.tensor([0.9, 0.0]),
        torch.tensor([True, False]),
    )
    values = ictd.kernel_td(open_record, ictd.LinearKernel(), num_steps=400, step_size=0.1)
    assert values[0] > 1e9


# Normalisation and bandwidth -------------------------------------------------------------------


@pytest.mark.claim("prop-nadaraya-watson")
@pytest.mark.parametrize("kernel", [GAUSSIAN, ictd.IdentityKernel()], ids=repr)
def test_normalised_steps_are_means(kernel: Any) -> None:
    prompt = draw(12).prompt()
    first = start(prompt, 13)
    one: dict[str, Any] = {"num_steps": 1, "step_size": 0.7, "initial_values": first}
    error, leaves = ictd.td_errors(prompt, first), prompt.is_transition
    has_any = leaves.any(-1, keepdim=True)
    low = torch.where(leaves, error, torch.inf).amin(-1, keepdim=True)
    high = torch.where(leaves, error, -torch.inf).amax(-1, keepdim=True)
    soft = ictd.softmax_td(prompt, ictd.LogKernelScore(kernel), **one) - first
    moved = (density(kernel, prompt) > 0) & has_any & ~prompt.is_terminal
    inside = (0.7 * low - 1e-12 <= soft) & (soft <= 0.7 * high + 1e-12)
    assert inside[moved].all()
    assert soft[~moved].eq(0.0).all()
    raw = ictd.kernel_td(prompt, kernel, **one) - first
    assert largest(density(kernel, prompt) * soft - raw) < 1e-12
    score = ictd.LogKernelScore(kernel)

    def stretched(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return score(query, key) + query.square().sum(-1, keepdim=True)

    assert largest(ictd.softmax_td(prompt, stretched, **one) - first - soft) < 1e-12


@pytest.mark.claim("prop-nadaraya-watson")
def test_a_quotient_with_negative_weights_is_no_mean() -> None:
    rng = np.random.default_rng(14)
    weights, errors = rng.normal(size=(2, MANY, 5))
    quotient = (weights * errors).sum(-1) / weights.sum(-1)
    outside = (quotient > errors.max(-1)) | (quotient < errors.min(-1))
    assert outside.mean() > 0.2
    assert np.abs(quotient).max() > 10 * np.abs(errors).max()
    with pytest.raises(ValueError, match=r"kernel_td takes any kernel"):
        ictd.softmax_td(draw(15).prompt(), ictd.LogKernelScore(ictd.LinearKernel()), **STEPS)


@pytest.mark.claim("prop-bandwidth")
@pytest.mark.parametrize("h", [0.05, 0.2, 0.6, 2.0, 20.0])
def test_bandwidth_bounds(h: float) -> None:
    prompt = draw(16, num_padding=0, num_queries=1).prompt()
    first = start(prompt, 17)
    one: dict[str, Any] = {"num_steps": 1, "step_size": 0.7, "initial_values": first}
    error, leaves = ictd.td_errors(prompt, first), prompt.is_transition
    n = leaves.sum(-1, keepdim=True).clamp(min=1).double()
    mean_size, mean = error.abs().sum(-1, keepdim=True) / n, error.sum(-1, keepdim=True) / n
    same = ictd.IdentityKernel()(prompt.features, prompt.features) == 1
    distance = torch.cdist(
        prompt.features, prompt.features, compute_mode="donot_use_mm_for_euclid_dist"
    )
    d_min = torch.where(same, torch.inf, distance).amin((-2, -1))[:, None]
    d_max = distance.amax((-2, -1))[:, None]
    raw = ictd.kernel_td(prompt, ictd.GaussianKernel(h), **one) - first
    table = ictd.kernel_td(prompt, ictd.IdentityKernel(), **one) - first
    small = 0.7 * (-d_min.square() / (2 * h**2)).exp() * mean_size
    wide = 0.7 * d_max.square() / (2 * h**2) * mean_size
    free = ~prompt.is_terminal
    assert ((raw - table).abs() <= small + 1e-12)[free].all()
    assert ((raw - 0.7 * mean).abs() <= wide + 1e-12)[free].all()
    # Normalised, only differences of squared distances count.
    far = torch.where(leaves.unsqueeze(-2), distance, torch.inf)
    d_1 = far.amin(-1, keepdim=True)
    near = (far <= d_1) & far.isfinite()
    d_2 = torch.where(near, torch.inf, far).amin(-1)
    n_1 = near.sum(-1)
    usable = free & (n_1 > 0) & d_2.isfinite()
    soft = ictd.softmax_td(prompt, ictd.GaussianScore(h), **one) - first
    nearest = 0.7 * (near * error.unsqueeze(-2)).sum(-1) / n_1.clamp(min=1)
    decay = (-(d_2.square() - d_1.squeeze(-1).square()) / (2 * h**2)).exp()
    worst = error.abs().amax(-1, keepdim=True)
    bound = 1.4 * (n - n_1) / n_1.clamp(min=1) * decay * worst
    assert usable.sum() > MANY
    assert ((soft - nearest).abs() <= bound + 1e-12)[usable].all()


@pytest.mark.claim("prop-bandwidth")
@pytest.mark.parametrize("h", [1.0, 1e-2, 1e-6])
def test_no_bandwidth_is_small_in_itself(h: float) -> None:
    prompt = ictd.Prompt(
        torch.tensor([[0.0], [h / 10]], dtype=torch.float64),
        torch.tensor([1.0, 0.0], dtype=torch.float64),
        torch.zeros(2, dtype=torch.float64),
        torch.tensor([True, False]),
    )
    values = ictd.kernel_td(prompt, ictd.GaussianKernel(h), num_steps=1, step_size=1.0)
    assert abs(values[1].item() - math.exp(-0.005)) < 1e-12


def test_the_median_bandwidth_follows_the_unit_and_names_what_is_missing() -> None:
    # C8: all states identical, a context of one state.
    x = torch.randn(9, 3, generator=torch.Generator().manual_seed(18), dtype=torch.float64)
    torch.testing.assert_close(ictd.median_bandwidth(1000 * x), 1000 * ictd.median_bandwidth(x))
    for degenerate in (torch.ones(5, 2), torch.ones(1, 2)):
        with pytest.raises(ValueError, match="bandwidth"):
            ictd.median_bandwidth(degenerate)


# The bridge ------------------------------------------------------------------------------------


@pytest.mark.claim("prop-kernel-softmax")
@pytest.mark.parametrize("name", ["Gaussian", "linear", "identity"])
def test_softmax_td_is_kernel_td(name: str) -> None:
    drawn = draw(19, num_padding=0, num_queries=0)
    kernels = {
        "Gaussian": GAUSSIAN,
        "linear": ictd.LinearKernel(),
        "identity": ictd.IdentityKernel(),
    }
    kernel, prompt, walks = kernels[name], drawn.prompt(), drawn.trajectory()
    if name == "linear":  # half of the entries exactly 0, so that some rows of the kernel vanish
        features = torch.relu(prompt.features)
        prompt = ictd.Prompt(
            features, prompt.rewards, prompt.discounts, prompt.is_transition, prompt.is_terminal
        )
    weight = density(kernel, prompt)
    score = ictd.LogKernelScore(kernel)
    soft = ictd.softmax_td(prompt, score, weight=weight, return_history=True, **STEPS)
    raw = ictd.kernel_td(prompt, kernel, return_history=True, **STEPS)
    assert largest(soft - raw) < 1e-12
    if name == "linear":
        assert largest(soft - ictd.linear_td(prompt, return_history=True, **STEPS)) < 1e-12
        assert weight.eq(0.0).any()
    if name == "identity":
        tabular = ictd.tabular_td(walks, 5, return_history=True, **STEPS)
        assert largest(soft - tabular) < 1e-12
    plain = ictd.softmax_td(prompt, score, **STEPS)  # without the weight
    assert largest(plain - raw[-1]) > 0.1


@pytest.mark.claim("prop-dot-is-gaussian")
@pytest.mark.parametrize("h", [0.5, 0.8, 2.0])
def test_dot_products_are_distances(h: float) -> None:
    prompt = draw(20).prompt()  # features of length one; the queries have any length
    score = ictd.BilinearScore(torch.eye(3, dtype=torch.float64) / h**2)
    dot = ictd.softmax_td(prompt, score, **STEPS)
    distance = ictd.softmax_td(prompt, ictd.GaussianScore(h), **STEPS)
    assert largest(dot - distance) < 1e-11
    size = 1 + prompt.features[..., :1].abs()  # a function of the state
    uneven = ictd.Prompt(
        size * prompt.features,
        prompt.rewards,
        prompt.discounts,
        prompt.is_transition,
        prompt.is_terminal,
    )
    dot = ictd.softmax_td(uneven, score, **STEPS)
    distance = ictd.softmax_td(uneven, ictd.GaussianScore(h), **STEPS)
    assert largest(dot - distance) > 0.01

    def long_keys_first(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        bias = key.square().sum(-1).unsqueeze(-2) / (2 * h**2)
        return ictd.GaussianScore(h)(query, key) + bias

    assert largest(dot - ictd.softmax_td(uneven, long_keys_first, **STEPS)) < 1e-10


# Opposite heads and mirrored keys --------------------------------------------------------------


def clouds(seed: int, size: int, many: int = 20 * MANY) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and errors of many shapes; half of them take two values only, some δ equal x."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(many, size)) ** rng.choice([1, 3], size=(many, 1))
    d = rng.normal(size=(many, size))
    two = slice(0, many // 2)
    x[two] = np.where(x[two] > 0, 1.0, rng.choice([-1.0, 0.0], size=(many // 2, 1)))
    d[: many // 4] = x[: many // 4]
    return torch.as_tensor(x), torch.as_tensor(d)


def spread(x: torch.Tensor) -> torch.Tensor:
    return x.amax(-1) - x.amin(-1)


def readings(x: torch.Tensor, errors: torch.Tensor) -> ictd.Prompt:
    """Contexts without bootstrapping whose last token has the scores x."""
    zero = torch.zeros_like(x[..., :1])
    keys = torch.stack([x, torch.zeros_like(x)], -1)
    ask = torch.stack([zero + 1, zero], -1)
    rewards = torch.cat([errors, zero], -1)
    is_key = (torch.arange(rewards.shape[-1]) < x.shape[-1]).expand(rewards.shape)
    return ictd.Prompt(torch.cat([keys, ask], -2), rewards, 0 * rewards, is_key)


@pytest.mark.claim("lem-cumulant")
@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_joint_cumulant(size: int) -> None:
    x, d = clouds(size, size)
    rng = np.random.default_rng(21)
    weights = torch.as_tensor(rng.dirichlet(np.full(size, 0.7), size=len(x)))
    weights[: len(x) // 8] = 1 / size

    def mean(f: torch.Tensor) -> torch.Tensor:
        return (weights * f).sum(-1)

    a, b = x - mean(x).unsqueeze(-1), d - mean(d).unsqueeze(-1)
    variance = mean(a**2)
    cumulant = (mean(a**3 * b) - 3 * variance * mean(a * b)).abs()
    bound = spread(x) ** 3 * spread(d) / 8
    assert (cumulant <= bound * (1 + 1e-9) + 1e-12).all()
    ratio = cumulant / bound.clamp(min=1e-9)
    assert ratio.max() > (0.8 if size % 2 else 1 - 1e-9)  # a fair coin attains it
    # The step of the proof that bounds the cubic, and its three straight lines.
    cubic = mean((a**3 - 3 * variance.unsqueeze(-1) * a) ** 2)
    assert (cubic <= spread(x) ** 6 / 16 * (1 + 1e-9) + 1e-12).all()
    # Without the means subtracted it is wrong.
    raw = (mean(x**3 * d) - 3 * mean(x**2) * mean(x * d)).abs()
    assert (raw > 2 * bound).double().mean() > 0.01


@pytest.mark.claim("lem-cumulant")
def test_the_three_lines_lie_over_the_cubic() -> None:
    rng = np.random.default_rng(22)
    v = rng.uniform(0, 0.25, size=MANY)
    b = rng.uniform(v, 1.0)
    y = np.linspace(0, 1, 201)[:, None] * b
    cubic = y * (y - 3 * v) ** 2
    y_0 = 3 * v - b / 2
    at_v = v * (v - 3 * v) ** 2
    cases = [b <= 4 * v, b <= 6 * v]
    line = np.select(
        cases, [4 * v**3 + 0 * y, cubic - (y - y_0) ** 2 * (y - b)], (b - 3 * v) ** 2 * y
    )
    assert (cubic <= line + 1e-12).all()
    assert np.abs(np.diff(line, 2, axis=0)).max() < 1e-12  # straight
    value = np.select(cases, [4 * v**3, at_v - (v - y_0) ** 2 * (v - b)], v * (b - 3 * v) ** 2)
    assert value.max() <= 1 / 16


@pytest.mark.claim("prop-opposite-heads")
@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0, 5.0])
def test_opposite_heads(scale: float) -> None:
    for size in (2, 3, 6):
        x, d = clouds(30 + size, size, many=4 * MANY)
        read = opposite_heads_td(readings(x, d), num_steps=1, step_size=1.0, scale=scale)
        covariance = ((x - x.mean(-1, keepdim=True)) * d).mean(-1)
        gap = (read[..., -1] - covariance).abs()
        bound = scale**2 / 48 * spread(x) ** 3 * spread(d)
        assert (gap <= bound * (1 + 1e-9) + 1e-11).all()
        if scale == 0.05 and size % 2 == 0:  # sharp
            assert (gap / bound.clamp(min=1e-6)).max() > 0.995


@pytest.mark.claim("prop-opposite-heads")
def test_one_head_alone_is_off_in_the_first_order() -> None:
    x, d = clouds(33, 5, many=4 * MANY)
    readers = readings(x, d)
    covariance = ((x - x.mean(-1, keepdim=True)) * d).mean(-1)
    third = ((x - x.mean(-1, keepdim=True)) ** 2 * (d - d.mean(-1, keepdim=True))).mean(-1)
    for scale in (1e-2, 1e-3):
        score = ictd.BilinearScore(scale * torch.eye(2, dtype=torch.float64))
        read = ictd.softmax_td(readers, score, num_steps=1, step_size=1.0)[:, -1]
        gap = (read - d.mean(-1)) / scale - covariance
        bound = scale**2 / 48 * spread(x) ** 3 * spread(d)
        assert (gap.abs() > bound).double().mean() > 0.5
        first_order = scale / 2 * third
        assert largest((gap - first_order) / spread(x).clamp(min=1) ** 3) < 5 * scale**2


@pytest.mark.claim("prop-mirrored-keys")
@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0, 5.0])
def test_mirrored_keys(scale: float) -> None:
    for size in (1, 3, 6):
        x, d = clouds(40 + size, size, many=4 * MANY)
        read = mirrored_keys_td(readings(x, d), num_steps=1, step_size=1.0, scale=scale)[..., -1]
        gap = (read - (x * d).mean(-1)).abs()
        bound = scale**2 / 3 * x.abs().amax(-1) ** 3 * d.abs().amax(-1)
        assert (gap <= bound * (1 + 1e-9) + 1e-11).all()
        if scale == 0.05:  # sharp: all x and all δ equal
            assert (gap / bound.clamp(min=1e-6)).max() > 0.995
        formula = (scale * x).sinh() * d
        formula = formula.sum(-1) / (scale * x).cosh().sum(-1) / scale
        usable = x.abs().amax(-1) * scale < 50
        torch.testing.assert_close(read[usable], formula[usable], rtol=1e-10, atol=1e-11)


@pytest.mark.claim("prop-mirrored-keys")
def test_mirroring_only_the_keys_cancels_the_linear_term() -> None:
    x, d = clouds(44, 5, many=2 * MANY)
    both = readings(torch.cat([x, -x], -1), torch.cat([d, d], -1))
    for scale in (1e-2, 1e-3):
        score = ictd.BilinearScore(scale * torch.eye(2, dtype=torch.float64))
        read = ictd.softmax_td(both, score, num_steps=1, step_size=1.0)[:, -1]
        away = (read - d.mean(-1)).abs() / spread(x).clamp(min=1) ** 2
        assert away.max() < 20 * scale**2 * d.abs().max()
        gap = (read / scale - (x * d).mean(-1)).abs()
        bound = scale**2 / 3 * x.abs().amax(-1) ** 3 * d.abs().amax(-1)
        assert (gap > bound).double().mean() > 0.9


@pytest.mark.claim("prop-centred-is-not-linear")
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_the_level_is_never_learned(scale: float) -> None:
    generator = torch.Generator().manual_seed(50)
    phi = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    prompt = closed_walks(51).prompt(phi)
    keywords: dict[str, Any] = {"num_steps": 10, "step_size": 0.05, "scale": scale}
    low = opposite_heads_td(prompt, **keywords)
    seven = torch.full_like(low, 7.0)
    assert largest(opposite_heads_td(prompt, initial_values=seven, **keywords) - low - 7) < 1e-11
    # Mirrored keys do learn it.
    low = mirrored_keys_td(prompt, **keywords)
    high = mirrored_keys_td(prompt, initial_values=seven, **keywords)
    assert (high - low - 7).abs().amax(-1).min() > 1e-3


def centred(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Inner products, minus their mean over the keys."""
    inner = query @ key.mT
    return inner - inner.mean(-1, keepdim=True)


def sources_total(trajectory: ictd.Trajectory, values: torch.Tensor) -> torch.Tensor:
    """The sum over the sources of a walk of values at its tokens."""
    states, table = trajectory.states[:, :-1], values.new_zeros(MANY, 4)
    return table.scatter(-1, states, values[:, :-1]).sum(-1)


@pytest.mark.claim("prop-centred-is-not-linear")
@pytest.mark.parametrize("step_size", [0.3, 1.0])
def test_centred_attention_on_closed_walks(step_size: float) -> None:
    walks = closed_walks(52, discount=0.7)
    prompt = one_hot(walks)
    first = start(prompt_with_flags(prompt), 53)
    keywords: dict[str, Any] = {"step_size": step_size, "initial_values": first}
    step = ictd.kernel_td(prompt, centred, num_steps=1, **keywords) - first
    error = ictd.td_errors(prompt, first)[:, :-1]
    same = walks.states[:, :, None] == walks.states[:, None, :-1]
    count = same.sum(-1).double()
    own = (same * error[:, None]).sum(-1) / count
    expected = step_size * count / 20 * (own - error.mean(-1, keepdim=True))
    assert largest(step - expected) < 1e-12
    values = ictd.kernel_td(prompt, centred, num_steps=int(600 / step_size), **keywords)
    total = sources_total(walks, first)
    assert largest(sources_total(walks, values) - total) < 1e-10
    v_hat = ictd.certainty_equivalence(walks, 4)
    size = v_hat.isfinite().sum(-1)
    missing = (v_hat.nansum(-1) - total) / size
    target = v_hat.gather(-1, walks.states)
    assert largest(values - target + missing[:, None]) < 1e-6
    assert (values - target).abs().amax(-1).median() > 0.1  # it is not linear TD


def prompt_with_flags(prompt: ictd.Prompt) -> ictd.Prompt:
    """The same prompt with a mask that pins nothing."""
    flags = torch.zeros_like(prompt.is_transition)
    return ictd.Prompt(
        prompt.features, prompt.rewards, prompt.discounts, prompt.is_transition, flags
    )


@pytest.mark.claim("prop-centred-is-not-linear")
def test_centred_attention_needs_one_hot_features_and_one_discount() -> None:
    walks = closed_walks(54)
    stretched = torch.diag(torch.tensor([2.0, 1.0, 1.0, 1.0], dtype=torch.float64))
    values = ictd.kernel_td(walks.prompt(stretched), centred, num_steps=50, step_size=0.25)
    assert sources_total(walks, values).abs().median() > 0.05
    discounts = walks.discounts.clone()
    discounts[:, -2] = 0.0  # the last transition ends
    ended = ictd.Trajectory(walks.states, walks.rewards, discounts)
    values = ictd.kernel_td(one_hot(ended), centred, num_steps=600, step_size=1.0)
    v_hat = ictd.certainty_equivalence(ended, 4)
    predicted = (v_hat - v_hat.nanmean(-1, keepdim=True)).gather(-1, walks.states)
    assert (values - predicted).abs().amax(-1).median() > 1e-3
    assert largest(sources_total(ended, values)) < 1e-10  # (ii) still holds


# Unvisited states ------------------------------------------------------------------------------


@pytest.mark.claim("cor-kernel-interpolant")
def test_unvisited_states_are_interpolated() -> None:
    walks = closed_walks(60)
    walks = walks[ictd.certainty_equivalence(walks, 4).isfinite().all(-1)]
    assert len(walks.states) > 0.9 * MANY
    places = torch.arange(4, dtype=torch.float64).unsqueeze(-1)
    elsewhere = torch.linspace(-1, 4, 11, dtype=torch.float64).unsqueeze(-1)
    prompt = walks.prompt(places).with_queries(torch.cat([places, elsewhere]))
    first = torch.cos(2 * prompt.features).squeeze(-1)
    history = ictd.kernel_td(
        prompt,
        GAUSSIAN,
        num_steps=40,
        step_size=1.0,
        initial_values=first,
        return_history=True,
    )
    move = (history - first)[..., -15:]
    weights = torch.linalg.solve(GAUSSIAN(places, places), GAUSSIAN(places, elsewhere))
    assert largest(move[..., :4] @ weights - move[..., 4:]) < 1e-11
    # The softmax version interpolates with other weights; both agree on the sources.
    sharp = ictd.GaussianKernel(0.4)
    limit = ictd.fixed_point(prompt, ictd.LogKernelScore(sharp))[:, -15:]
    v_hat = ictd.certainty_equivalence(walks, 4)
    assert largest(limit[:, :4] - v_hat) < 1e-9
    weights = torch.linalg.solve(sharp(places, places), sharp(places, elsewhere))
    plain = v_hat @ weights
    z = density(sharp, prompt)[:, -15:]
    softmax = (z[:, :4] * v_hat) @ weights / z[:, 4:]
    assert largest(limit[:, 4:] - softmax) < 1e-9
    assert largest(plain - softmax) > 0.1


@pytest.mark.claim("cor-kernel-interpolant")
def test_sources_that_share_a_bump_move_together() -> None:
    walks = closed_walks(61)
    merged = torch.tensor([[0.0], [0.0], [1.0], [2.0]], dtype=torch.float64)
    values = ictd.kernel_td(
        walks.prompt(merged).with_queries(merged), GAUSSIAN, num_steps=300, step_size=1.0
    )[:, -4:]
    assert largest(values[:, 0] - values[:, 1]) < 1e-12
    v_hat = ictd.certainty_equivalence(walks, 4)
    apart = (v_hat[:, 0] - v_hat[:, 1]).abs()
    assert apart[apart.isfinite()].median() > 0.1
