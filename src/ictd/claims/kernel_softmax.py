"""The results of chapter 2 on softmax TD that is kernel TD, and nearly linear TD."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import ictd
from ictd.claims._contexts import context, errors_at, pinned
from ictd.claims._draw import count, excess, gap, normal, pick, uniform, walks, worst
from ictd.claims._registry import Outcome, claim
from ictd.prompt import Prompt

PAGE = "02-kernel-td"


@claim(
    "prop-kernel-softmax",
    page=PAGE,
    statement="Softmax TD with the logarithm of a kernel and the weight z(s) is kernel TD.",
    functions=("softmax_td", "kernel_td", "LogKernelScore"),
    tolerance=1e-11,
)
def kernel_softmax(generator: torch.Generator) -> Outcome:
    """Gaussian kernels, linear ones of features that are never negative, and the identity."""
    prompt, start, states = context(generator)
    positive = Prompt(
        prompt.features.abs(),
        prompt.rewards,
        prompt.discounts,
        prompt.is_transition,
        prompt.is_terminal,
    )
    deviation = -torch.inf
    number = prompt.is_transition.sum(-1, keepdim=True).clamp(min=1)
    for record, kernel in (
        (prompt, ictd.GaussianKernel(0.7)),
        (positive, ictd.LinearKernel()),
        (prompt, ictd.IdentityKernel()),
    ):
        similar = kernel(record.features, record.features) * prompt.is_transition.unsqueeze(-2)
        weight = similar.sum(-1) / number
        options: dict[str, Any] = {"num_steps": 6, "step_size": 0.7, "return_history": True}
        score = ictd.LogKernelScore(kernel)
        soft = ictd.softmax_td(record, score, weight=weight, initial_values=start, **options)
        raw = ictd.kernel_td(record, kernel, initial_values=start, **options)
        deviation = worst(deviation, gap(soft.transpose(0, 1), raw.transpose(0, 1)))
    values = start  # the last kernel is the identity: tabular TD, written out
    same = (states.unsqueeze(-1) == states.unsqueeze(-2)) & prompt.is_transition.unsqueeze(-2)
    for _ in range(6):
        step = (same.double() @ errors_at(prompt, values).unsqueeze(-1)).squeeze(-1)
        values = values + torch.where(pinned(prompt), 0.0, 0.7 / number.double() * step)
    return Outcome(3000, worst(deviation, gap(soft[-1], values)))


@claim(
    "prop-dot-is-gaussian",
    page=PAGE,
    statement="A dot-product score is a Gaussian score, and a bias for long keys.",
    functions=("BilinearScore", "GaussianScore", "attention_weights", "softmax_td"),
    tolerance=1e-10,
)
def dot_is_gaussian(generator: torch.Generator) -> Outcome:
    """Keys of any length against the formula; keys of one length give the same algorithm."""
    prompt, start, _ = context(generator)
    long_queries = 2 * normal(generator, 1000, 2, 3)
    features = torch.cat([prompt.features[:, :-2], long_queries], 1)
    rest = (prompt.rewards, prompt.discounts, prompt.is_transition, prompt.is_terminal)
    prompt = Prompt(features, *rest)
    options: dict[str, Any] = {"num_steps": 5, "step_size": 0.7, "initial_values": start}
    score = ictd.BilinearScore(torch.eye(3).double() / 0.8**2)
    dot = ictd.softmax_td(prompt, score, **options)
    distance = ictd.softmax_td(prompt, ictd.GaussianScore(0.8), **options)
    uneven = Prompt(features * (1 + features[..., :1].abs()), *rest)
    weights = ictd.attention_weights(uneven, score)
    apart = torch.cdist(uneven.features, uneven.features).square()
    bias = uneven.features.square().sum(-1).unsqueeze(-2)
    exponent = ((bias - apart) / (2 * 0.8**2)).where(prompt.is_transition.unsqueeze(-2), -torch.inf)
    expected = (exponent - exponent.amax(-1, keepdim=True)).exp().nan_to_num(0.0)  # 0: no key
    expected = expected / expected.sum(-1, keepdim=True).clamp(min=1)
    expected = expected.masked_fill(pinned(prompt).unsqueeze(-1), 0.0)
    return Outcome(1000, worst(gap(dot, distance), gap(weights, expected)))


def _clouds(generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
    """Scores and errors of many shapes; half take two values, a quarter has errors like scores."""
    x, errors = normal(generator, 800, size) ** 3, normal(generator, 800, size)
    x[400:] = torch.where(x[400:] > 0, 1.0, torch.randint(-1, 1, (400, 1), generator=generator))
    errors[600:] = x[600:]
    errors[700:] = 1.0  # and scores that are all the same
    x[700:750] = 1.0
    return x, errors


def _reading(x: Tensor, errors: Tensor) -> Prompt:
    """Contexts without bootstrapping whose last token has the scores ``x``; the first is no key."""
    keys = torch.nn.functional.pad(x, (1, 1), value=1.0).unsqueeze(-1)
    rewards = torch.nn.functional.pad(errors, (1, 1))
    token = torch.arange(rewards.shape[-1])
    is_key = ((token > 0) & (token <= x.shape[-1])).expand(rewards.shape)
    return Prompt(keys, rewards, torch.zeros_like(rewards), is_key)


def _span(x: Tensor) -> Tensor:
    return x.amax(-1) - x.amin(-1)


@claim(
    "lem-cumulant",
    page=PAGE,
    statement="The joint cumulant of order 3 + 1 is at most range³ · range / 8; a coin attains it.",
    functions=("opposite_heads_td",),
    tolerance=1e-11,
    attained=0.999999,
)
def cumulant(generator: torch.Generator) -> Outcome:
    """Random weights, and fair coins."""
    found = []
    for size in (2, 3, 5, 8):
        x, errors = _clouds(generator, size)
        weight = uniform(generator, 800, size) ** 4
        weight[::2] = 1.0
        weight = weight / weight.sum(-1, keepdim=True)
        a = x - (weight * x).sum(-1, keepdim=True)
        b = errors - (weight * errors).sum(-1, keepdim=True)
        square = (weight * a.square()).sum(-1)
        left = (weight * a**3 * b).sum(-1) - 3 * square * (weight * a * b).sum(-1)
        found.append(excess(left.abs(), _span(x) ** 3 * _span(errors) / 8))
    overs, ratios = zip(*found, strict=True)
    return Outcome(3200, worst(*overs), max(ratios))


@claim(
    "prop-opposite-heads",
    page=PAGE,
    statement="Two opposite heads compute a covariance up to ε² range³ range / 48, sharply.",
    functions=("opposite_heads_td",),
    tolerance=1e-11,
    attained=0.995,
)
def opposite_heads(generator: torch.Generator) -> Outcome:
    """One step of the algorithm; fair coins and a small ε come near the constant."""
    found = []
    for scale in (0.05, 0.3, 1.0, 5.0):
        for size in (2, 3, 6):
            x, errors = _clouds(generator, size)
            step = ictd.opposite_heads_td(
                _reading(x, errors), num_steps=1, step_size=1.0, scale=scale
            )
            covariance = ((x - x.mean(-1, keepdim=True)) * errors).mean(-1)
            bound = scale**2 / 48 * _span(x) ** 3 * _span(errors)
            found.append(excess((step[:, -1] - covariance).abs(), bound))
    overs, ratios = zip(*found, strict=True)
    return Outcome(9600, worst(*overs), max(ratios))


@claim(
    "prop-centred-is-not-linear",
    page=PAGE,
    statement="Centred attention never learns the level: it ends at certainty equivalence shifted.",
    functions=("opposite_heads_td", "certainty_equivalence"),
    tolerance=1e-7,
)
def centred(generator: torch.Generator) -> Outcome:
    """Two heads shift with their start; their limit on closed walks, by the covariance."""
    record = walks(generator, 1000, 12, 3, low=0.2, high=0.6, endings=0.0, shared=True)
    prompt = record.prompt(normal(generator, 1000, 3, 2))
    deviation = -torch.inf
    for scale in (0.1, 3.0):
        options: dict[str, Any] = {"num_steps": 8, "step_size": 0.1, "scale": scale}
        low = ictd.opposite_heads_td(prompt, **options)
        seven = torch.full_like(low, 7.0)
        high = ictd.opposite_heads_td(prompt, initial_values=seven, **options)
        deviation = worst(deviation, 1e3 * gap(high, low + 7))  # to 1e-10

    def covariance(query: Tensor, key: Tensor) -> Tensor:
        inner = query @ key.mT
        return inner - inner.mean(-1, keepdim=True)

    one_hot, model = record.prompt(torch.eye(3).double()), count(record, 3)
    start = normal(generator, 1000, 3)
    at = pick(start, record.states)
    error, mean = model.bellman_error(start), model.counts / 12
    step = mean * (error - (mean * error).sum(-1, keepdim=True))
    once, far = (
        ictd.kernel_td(one_hot, covariance, num_steps=n, step_size=1.0, initial_values=at)
        for n in (1, 700)
    )
    deviation = worst(deviation, gap(once, pick(start + step, record.states)))
    seen = model.visited
    missing = torch.where(seen, model.value() - start, 0.0).sum(-1) / seen.sum(-1)
    limit = pick(model.value(), record.states) - missing.unsqueeze(-1)
    return Outcome(1000, worst(deviation, gap(far, limit)))


@claim(
    "prop-mirrored-keys",
    page=PAGE,
    statement="A softmax over keys and their mirror images is linear TD up to ε² |x|³ |δ| / 3.",
    functions=("mirrored_keys_td",),
    tolerance=1e-10,
    attained=0.995,
)
def mirrored_keys(generator: torch.Generator) -> Outcome:
    """One step of the algorithm against sinh and cosh; equal scores come near the constant."""
    found, deviation = [], -torch.inf
    for scale in (0.05, 0.3, 1.0, 5.0):
        for size in (2, 3, 6):
            x, errors = _clouds(generator, size)
            step = ictd.mirrored_keys_td(
                _reading(x, errors), num_steps=1, step_size=1.0, scale=scale
            )[:, -1]
            moderate = (scale * x).abs().amax(-1) < 50
            over, under = (scale * x).sinh() * errors, (scale * x).cosh()
            formula = over.sum(-1) / under.sum(-1) / scale
            deviation = worst(deviation, gap(step[moderate], formula[moderate]))
            bound = scale**2 / 3 * x.abs().amax(-1) ** 3 * errors.abs().amax(-1)
            found.append(excess((step - (x * errors).mean(-1)).abs(), bound))
    overs, ratios = zip(*found, strict=True)
    return Outcome(9600, worst(deviation, *overs), max(ratios))
