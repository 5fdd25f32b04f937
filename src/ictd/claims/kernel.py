"""The results of chapter 2 on kernel TD: what it contains, where it ends, how it is normalised."""

from __future__ import annotations

import torch
from torch import Tensor

import ictd
from ictd.attention import Score
from ictd.claims._contexts import context, errors_at, pinned
from ictd.claims._draw import (
    count,
    episodes,
    excess,
    gap,
    normal,
    pick,
    uniform,
    unit,
    walks,
    worst,
)
from ictd.claims._registry import Outcome, claim
from ictd.scores import same_features

PAGE = "02-kernel-td"


def _odd(query: Tensor, key: Tensor) -> Tensor:
    """A kernel with neither symmetry nor sign."""
    return torch.sin(3 * query @ key.mT + query.sum(-1, keepdim=True))


@claim(
    "prop-representer",
    page=PAGE,
    statement="Kernel TD stays in the span of the kernel at the sources; coefficients recur.",
    functions=("kernel_td",),
    tolerance=1e-11,
)
def representer(generator: torch.Generator) -> Outcome:
    """The recursion of the coefficients, for a kernel without symmetry."""
    prompt, start, _ = context(generator)
    kernel = _odd(prompt.features, prompt.features) * prompt.is_transition.unsqueeze(-2)
    here = kernel.masked_fill(pinned(prompt).unsqueeze(-1), 0.0)
    later = torch.cat([here[:, 1:], torch.zeros_like(here[:, :1])], 1)
    change = here - prompt.discounts.unsqueeze(-1) * later
    number = prompt.is_transition.sum(-1, keepdim=True).clamp(min=1).double()
    first, coefficients = errors_at(prompt, start), torch.zeros_like(start)
    history = [start]
    for _ in range(8):
        moved = (change @ coefficients.unsqueeze(-1)).squeeze(-1)
        step = 0.8 / number * torch.where(prompt.is_transition, first - moved, 0.0)
        coefficients = coefficients + step
        history.append(start + (here @ coefficients.unsqueeze(-1)).squeeze(-1))
    found = ictd.kernel_td(
        prompt, _odd, num_steps=8, step_size=0.8, initial_values=start, return_history=True
    )
    return Outcome(1000, gap(found.transpose(0, 1), torch.stack(history, 1)))


@claim(
    "thm-kernel-td-is-linear",
    page=PAGE,
    statement="Kernel TD contains linear TD and tabular TD; a semidefinite kernel is linear TD.",
    functions=("kernel_td", "linear_td", "tabular_td", "LinearKernel", "IdentityKernel"),
    tolerance=1e-11,
)
def kernel_td_is_linear(generator: torch.Generator) -> Outcome:
    """Linear, identity and Gaussian kernels; the last by the square root of its matrix."""
    record, table = episodes(generator, 1000, 14, 5), unit(normal(generator, 1000, 6, 3))
    prompt, weights = record.prompt(table), normal(generator, 1000, 3)
    start = (prompt.features @ weights.unsqueeze(-1)).squeeze(-1)
    linear = ictd.kernel_td(
        prompt, ictd.LinearKernel(), num_steps=8, step_size=0.8, initial_values=start
    )
    same = ictd.linear_td(prompt, num_steps=8, step_size=0.8, initial_weights=weights)
    one_hot, first = record.prompt(torch.eye(6).double()), normal(generator, 1000, 6)
    at = pick(first.index_fill(-1, torch.tensor(5), 0.0), record.states)
    hard = ictd.kernel_td(
        one_hot, ictd.IdentityKernel(), num_steps=8, step_size=0.8, initial_values=at
    )
    model, values = count(record, 6), first
    share = model.counts / record.is_transition.sum(-1, keepdim=True).clamp(min=1)
    for _ in range(8):
        values = values + 0.8 * share * model.bellman_error(values)
    values = values.index_fill(-1, torch.tensor(5), 0.0)
    table_td = ictd.tabular_td(record, 6, num_steps=8, step_size=0.8, initial_values=first)
    soft = ictd.kernel_td(prompt, ictd.GaussianKernel(0.7), num_steps=8, step_size=0.8)
    matrix = (-torch.cdist(table, table).square() / (2 * 0.7**2)).exp()
    size, turn = torch.linalg.eigh(matrix)
    root = (turn * size.clamp(min=0).sqrt().unsqueeze(-2)) @ turn.mT
    by_root = ictd.linear_td(record.prompt(root), num_steps=8, step_size=0.8)
    expected = pick(values, record.states)
    deviations = gap(linear, same), gap(hard, expected), gap(table_td, expected)
    return Outcome(1000, worst(*deviations, gap(soft, by_root)))


@claim(
    "cor-kernel-converges",
    page=PAGE,
    statement="With a positive definite kernel kernel TD ends at certainty equivalence.",
    functions=("kernel_td", "certainty_equivalence"),
    tolerance=1e-8,
)
def kernel_converges(generator: torch.Generator) -> Outcome:
    """Closed walks with one discount, states on a line, a Gaussian kernel; the largest step."""
    record = walks(generator, 1000, 12, 3, low=0.2, high=0.6, shared=True)
    place = torch.arange(3.0).double().unsqueeze(-1)
    values = ictd.kernel_td(
        record.prompt(place),
        ictd.GaussianKernel(0.6),
        num_steps=800,
        step_size=1.0,
        initial_values=pick(normal(generator, 1000, 3), record.states),
    )
    model = count(record, 3)
    return Outcome(1000, gap(values, pick(model.value(), record.states)))


@claim(
    "prop-nadaraya-watson",
    page=PAGE,
    statement="A step of softmax TD is a weighted mean of TD errors, kernel TD's is z(s) times it.",
    functions=("softmax_td", "kernel_td", "LogKernelScore"),
    tolerance=1e-11,
)
def nadaraya_watson(generator: torch.Generator) -> Outcome:
    """Gaussian weights, the identity's zeros, and kernels with a factor for each reader."""
    prompt, start, _ = context(generator)
    errors, leaves = errors_at(prompt, start), prompt.is_transition.unsqueeze(-2)
    number = prompt.is_transition.sum(-1, keepdim=True).clamp(min=1)
    deviation = -torch.inf
    for bandwidth in (0.7, None):
        kernel = ictd.IdentityKernel() if bandwidth is None else ictd.GaussianKernel(bandwidth)
        if bandwidth is None:
            weight = same_features(prompt.features, prompt.features).double()
        else:
            distance = torch.cdist(prompt.features, prompt.features)
            weight = (-distance.square() / (2 * bandwidth**2)).exp()
        weight = (weight * leaves).masked_fill(pinned(prompt).unsqueeze(-1), 0.0)
        total = weight.sum(-1)
        mean = (weight @ errors.unsqueeze(-1)).squeeze(-1) / total.clamp(min=1e-300)

        soft, other = (
            ictd.softmax_td(prompt, score, num_steps=1, step_size=0.7, initial_values=start) - start
            for score in (ictd.LogKernelScore(kernel), _scaled(kernel))
        )
        raw = ictd.kernel_td(prompt, kernel, num_steps=1, step_size=0.7, initial_values=start)
        moves = total > 0
        low = torch.where(prompt.is_transition, errors, torch.inf).amin(-1, keepdim=True)
        high = torch.where(prompt.is_transition, errors, -torch.inf).amax(-1, keepdim=True)
        outside = torch.where(moves, torch.maximum(0.7 * low - soft, soft - 0.7 * high), 0.0)
        deviation = worst(
            deviation,
            gap(soft, 0.7 * mean * moves),
            gap(other, soft),
            gap(raw - start, total / number * soft),
            float(outside.max()),
        )
    return Outcome(2000, deviation)


def _scaled(kernel: Score) -> Score:
    """The logarithm of a kernel times a positive function of the reader."""
    return lambda query, key: (query[..., :1].exp() * kernel(query, key)).log()


@claim(
    "prop-bandwidth",
    page=PAGE,
    statement="Gaussian kernels run from tabular TD to a constant step, softmax to the nearest.",
    functions=("kernel_td", "softmax_td", "GaussianKernel", "GaussianScore"),
    tolerance=1e-12,
    attained=0.99,
)
def bandwidth(generator: torch.Generator) -> Outcome:
    """Few distances, many bandwidths; half of the TD errors have one sign or two values."""
    ratios = []
    deviation = -torch.inf
    for h in (0.04, 0.12, 0.25, 0.5, 1.0, 3.0, 30.0):
        record = walks(generator, 300, 12, 3)
        states = torch.where(torch.arange(300)[:, None] < 100, record.states % 2, record.states)
        rewards = torch.where(torch.arange(300)[:, None] < 150, 1.0, record.rewards)
        near = torch.where(states == 0, 1.0, -1.0)
        rewards = torch.where(torch.arange(300)[:, None] < 50, near, rewards)
        place = uniform(generator, 300, 3, 1).cumsum(-2) + torch.arange(3.0)[:, None] / 5
        states[:10], rewards[:10] = 0, 1.0  # state 1 hears one state, at the smallest distance
        place[:10] = torch.tensor([[0.0], [0.5], [1.5]], dtype=torch.float64)
        prompt = ictd.Trajectory(states, rewards, 0.0 * rewards).prompt(place)
        prompt = prompt.with_queries(place)  # one reader for each state
        errors = prompt.rewards[:, :12]
        apart = torch.cdist(prompt.features[:, -3:], prompt.features[:, :12])
        between = torch.cdist(place, place) + 9.0 * torch.eye(3)
        kernel = ictd.kernel_td(prompt, ictd.GaussianKernel(h), num_steps=1, step_size=0.9)
        hard = ictd.kernel_td(prompt, ictd.IdentityKernel(), num_steps=1, step_size=0.9)
        soft = ictd.softmax_td(prompt, ictd.GaussianScore(h), num_steps=1, step_size=0.9)
        kernel, hard, soft = kernel[:, -3:], hard[:, -3:], soft[:, -3:]
        mean = errors.abs().mean(-1, keepdim=True)
        closest = between.amin((-2, -1)).unsqueeze(-1)
        widest = (place[:, 2] - place[:, 0]).abs()
        least = apart.amin(-1, keepdim=True)
        nearest = apart <= least + 1e-12
        others = torch.where(nearest, torch.inf, apart).amin(-1)
        share = nearest.sum(-1)
        own = 0.9 * (nearest * errors.unsqueeze(-2)).sum(-1) / share
        power = (-(others.square() - least.squeeze(-1).square()) / (2 * h**2)).exp()
        sides = (
            ((kernel - hard).abs(), 0.9 * (-closest.square() / (2 * h**2)).exp() * mean),
            (
                (kernel - 0.9 * errors.mean(-1, keepdim=True)).abs(),
                0.9 * widest.square() / (2 * h**2) * mean,
            ),
            (
                (soft - own).abs(),
                1.8 * (12 - share) / share * power * errors.abs().amax(-1, keepdim=True),
            ),
        )
        found = [excess(left, right.expand_as(left)) for left, right in sides]
        deviation = worst(deviation, *(over for over, _ in found))
        ratios.append([ratio for _, ratio in found])
    return Outcome(2100, deviation, min(max(column) for column in zip(*ratios, strict=True)))


@claim(
    "cor-kernel-interpolant",
    page=PAGE,
    statement="At every step kernel TD at an unvisited state interpolates the visited ones.",
    functions=("kernel_td", "Prompt.with_queries"),
    tolerance=1e-10,
)
def kernel_interpolant(generator: torch.Generator) -> Outcome:
    """Four visited states on a line, and queries anywhere; start values of their own."""
    record = walks(generator, 1000, 14, 4, all_states=True)
    place = torch.arange(4.0).double().unsqueeze(-1)
    elsewhere = uniform(generator, 1000, 5, 1, low=-1.0, high=4.0)
    everywhere = torch.cat([place.expand(1000, 4, 1), elsewhere], 1)
    prompt = record.prompt(place).with_queries(everywhere)
    start = torch.cos(2 * prompt.features).squeeze(-1)
    history = ictd.kernel_td(
        prompt,
        ictd.GaussianKernel(0.8),
        num_steps=20,
        step_size=1.0,
        initial_values=start,
        return_history=True,
    )
    moved = (history - start)[..., -9:]
    matrix, cross = (
        (-torch.cdist(rows, place.expand(1000, 4, 1)).square() / (2 * 0.8**2)).exp()
        for rows in (place.expand(1000, 4, 1), elsewhere)
    )
    weights = cross @ torch.linalg.inv(matrix)
    expected = torch.einsum("bqs,tbs->tbq", weights, moved[..., :4])
    return Outcome(1000, gap(moved[..., 4:].transpose(0, 1), expected.transpose(0, 1)))
