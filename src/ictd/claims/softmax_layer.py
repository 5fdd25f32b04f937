"""The results of chapter 3: softmax TD, the layer that runs it, and where it ends."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.linalg import inv

import ictd
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

PAGE = "03-softmax-layer"


def _matvec(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _sharp(
    generator: torch.Generator, num_states: int
) -> tuple[Tensor, ictd.BilinearScore, Tensor]:
    """Features near the corners of a cube, so that inverses are accurate; a score; its matrix."""
    features = unit(torch.eye(num_states) + 0.2 * normal(generator, 1000, num_states, num_states))
    score = ictd.BilinearScore(6 * torch.eye(num_states, dtype=torch.float64))
    return features, score, 6 * features @ features.mT


@claim(
    "prop-constant-score",
    page=PAGE,
    statement="With a constant score all states move by one number, in closed form.",
    functions=("softmax_td",),
    tolerance=1e-11,
)
def constant_score(generator: torch.Generator) -> Outcome:
    """Random discounts and starts, several step sizes and depths."""
    deviation = -torch.inf
    for alpha, steps in ((0.2, 30), (1.0, 7), (1.4, 12)):
        prompt, start, _ = context(generator)
        flat = ictd.BilinearScore(torch.zeros(3, 3, dtype=torch.float64))
        found = ictd.softmax_td(
            prompt, flat, num_steps=steps, step_size=alpha, initial_values=start
        )
        number = prompt.is_transition.sum(-1, keepdim=True).clamp(min=1)
        rate = 1 - prompt.discounts.sum(-1, keepdim=True) / number
        first = errors_at(prompt, start).sum(-1, keepdim=True) / number
        moved = first / rate * (1 - (1 - alpha * rate) ** steps)
        expected = torch.where(pinned(prompt), 0.0, start + moved)
        deviation = worst(deviation, gap(found, expected))
    return Outcome(3000, deviation)


@claim(
    "prop-identity-score",
    page=PAGE,
    statement="With a sharp identity score softmax TD stays near tabular TD at every depth.",
    functions=("softmax_td", "BilinearScore", "tabular_td"),
    tolerance=1e-11,
    attained=0.9,
)
def identity_score(generator: torch.Generator) -> Outcome:
    """One step exactly; the bound over 60 steps, in random records and in a rare state's."""
    record = walks(generator, 1200, 16, 4)
    rare = (torch.arange(1200) < 200).unsqueeze(-1)
    once = torch.tensor([0, 1, *[0] * 15])
    states = torch.where(rare, once, record.states)
    gamma = torch.where(rare, 0.01, record.discounts)
    rewards = torch.where(rare, torch.where(states == 1, 1.0, -1.0), record.rewards)
    record = ictd.Trajectory(states, rewards, gamma)
    model, one_hot = count(record, 4), torch.eye(4, dtype=torch.float64)
    number, least = 16.0, torch.where(model.visited, model.counts, torch.inf).amin(-1)
    top = record.discounts.amax(-1)
    factor = (1 + top) / (1 - top) * (number - least) / least
    beta = math.log(float(factor.max())) + 0.5
    start = torch.where(rare, 0.0, normal(generator, 1200, 4))
    prompt = record.prompt(one_hot)
    options: dict[str, Any] = {"initial_values": pick(start, states), "step_size": 1.0}
    score = ictd.BilinearScore(beta * one_hot)
    step = ictd.softmax_td(prompt, score, num_steps=1, **options) - pick(start, states)
    error = model.bellman_error(start)
    others = number - model.counts
    total = (model.counts * error).sum(-1, keepdim=True)
    rest = (total - model.counts * error) / others.clamp(min=1)
    off = others * (rest - error) / (model.counts * math.exp(beta) + others)
    deviation = gap(step, pick(error + off, states))
    bound = 2 * others / model.counts.clamp(min=1) * math.exp(-beta)
    bound = bound * error.abs().amax(-1, keepdim=True)
    one_step = excess(off[model.visited].abs(), bound[model.visited])
    away = torch.where(model.visited, model.value() - start, 0.0).abs().amax(-1)
    soft = ictd.softmax_td(prompt, score, num_steps=60, return_history=True, **options)
    hard, apart = start, []
    for values in soft:
        apart.append((values - pick(hard, states)).abs().amax(-1))
        hard = hard + model.bellman_error(hard)
    any_depth = excess(torch.stack(apart).amax(0), 2 * factor * math.exp(-beta) * away)
    share = pick(model.counts / number, states)
    exact = ictd.LogKernelScore(ictd.IdentityKernel())  # the score at infinite temperature
    weighted = ictd.softmax_td(prompt, exact, num_steps=9, weight=share, **options)
    tabular = ictd.tabular_td(record, 4, num_steps=9, step_size=1.0, initial_values=start)
    deviation = worst(deviation, gap(weighted, tabular), one_step[0], any_depth[0])
    return Outcome(1200, deviation, min(one_step[1], any_depth[1]))


@claim(
    "thm-equivalence",
    page=PAGE,
    statement="L layers of the Transformer are L steps of softmax TD, with one head or two.",
    functions=("InContextTD", "softmax_td", "DualHeadLayer", "SingleHeadLayer"),
    tolerance=1e-11,
)
def equivalence(generator: torch.Generator) -> Outcome:
    """The layer's equation with dense matrices against four models and the algorithm."""
    prompt, start, _ = context(generator)
    given = start + 7.0 * pinned(prompt)  # what is given at terminal tokens is never used
    matrix, alpha = normal(generator, 3, 3), 0.8
    gamma = prompt.discounts
    shift = torch.diag(torch.ones(15, dtype=torch.float64), -1) @ torch.diag_embed(gamma)
    target = torch.zeros_like(start)
    target[:, :-1] = gamma[:, :-1] * start[:, 1:]
    rows = torch.stack([prompt.rewards, target, start], 1)
    Z = torch.cat([prompt.features.mT, rows], 1)
    weights = torch.tensor([0, 0, 0, alpha, alpha, -alpha], dtype=torch.float64)
    memory, current = torch.eye(6, dtype=torch.float64)[4:].unsqueeze(-1)
    Q = torch.zeros(6, 6, dtype=torch.float64)
    Q[:3, :3] = matrix
    values, targets = [start], [target]
    for _ in range(4):
        X = (Z.mT @ Q @ Z).where(prompt.is_transition.unsqueeze(-1), -torch.inf)
        H = X.softmax(-2).nan_to_num(0.0).masked_fill(pinned(prompt).unsqueeze(-2), 0.0)
        read = torch.einsum("r,brn,bnm->bm", weights, Z, H)
        Z = Z + current @ read.unsqueeze(1) + memory @ (read.unsqueeze(1) @ shift)
        values.append(Z[:, 5])
        targets.append(Z[:, 4])
    expected = torch.stack(values, 1)
    steps = ictd.softmax_td(
        prompt,
        ictd.BilinearScore(matrix),
        num_steps=4,
        step_size=alpha,
        initial_values=given,
        return_history=True,
    ).transpose(0, 1)
    shifted = (expected @ shift, torch.stack(targets, 1))
    deviation = worst(gap(steps, expected), gap(*shifted))
    for heads in (1, 2):
        for form in ("structured", "full"):
            model = ictd.InContextTD.from_construction(
                matrix, 4, alpha, num_heads=heads, parametrization=form
            )
            with torch.no_grad():
                layers = model(prompt, return_history=True, initial_values=given)
            deviation = worst(deviation, gap(layers.transpose(0, 1), expected))
    return Outcome(1000, deviation)


@claim(
    "prop-lumped",
    page=PAGE,
    statement="Softmax TD is an iteration over states with N(u) e^g as attention.",
    functions=("softmax_td", "empirical_model"),
    tolerance=1e-11,
)
def lumped(generator: torch.Generator) -> Outcome:
    """States against tokens, with a weight for each state and records that are not closed."""
    record = episodes(generator, 1000, 14, 5, terminal=False)
    features, matrix = normal(generator, 1000, 5, 3), normal(generator, 3, 3)
    start, omega = normal(generator, 1000, 5), uniform(generator, 1000, 5)
    found = ictd.softmax_td(
        record.prompt(features),
        ictd.BilinearScore(matrix),
        num_steps=6,
        step_size=0.7,
        weight=pick(omega, record.states),
        initial_values=pick(start, record.states),
    )
    model, values = count(record, 5), start
    attention = model.attention(features @ matrix.mT @ features.mT).nan_to_num(0.0)
    for _ in range(6):
        values = values + 0.7 * omega * _matvec(attention, model.bellman_error(values))
    packaged = ictd.empirical_model(record, 5)
    same = (gap(ours, theirs) for ours, theirs in zip(packaged, model, strict=True))
    return Outcome(1000, worst(gap(found, pick(values, record.states)), *same))


@claim(
    "thm-fixed-point",
    page=PAGE,
    statement="With closure softmax TD ends at certainty equivalence, and interpolates elsewhere.",
    functions=("softmax_td", "fixed_point", "certainty_equivalence", "kernel_interpolant"),
    tolerance=1e-9,
)
def fixed_point(generator: torch.Generator) -> Outcome:
    """Closed records and two states that never occur; the limit from any start."""
    record = walks(generator, 1000, 16, 4, low=0.2, high=0.6, all_states=True)
    features, score, scores = _sharp(generator, 6)
    prompt = record.prompt(features).with_queries(features[:, 4:])
    everyone = torch.cat([record.states, torch.tensor([4, 5]).expand(1000, 2)], -1)
    model = count(record, 6)
    attention, truth = model.attention(scores), model.value()[:, :4]
    mix = attention[:, 4:, :4] @ inv(attention[:, :4, :4])
    start = normal(generator, 1000, 6)
    limits = [
        torch.cat([truth, first[:, 4:] + _matvec(mix, truth - first[:, :4])], -1)
        for first in (torch.zeros_like(start), start)
    ]
    solved = ictd.fixed_point(prompt, score)
    run = ictd.softmax_td(
        prompt, score, num_steps=150, step_size=0.9, initial_values=pick(start, everyone)
    )
    still = ictd.softmax_td(
        prompt, score, num_steps=1, step_size=0.9, initial_values=pick(limits[1], everyone)
    )
    found = (solved, limits[0]), (run, limits[1]), (still, limits[1])
    deviation = worst(*(gap(a, pick(limit, everyone)) for a, limit in found))
    unread = attention + normal(generator, 1000, 6, 6) * ~model.visited.unsqueeze(-2)
    v_hat = torch.where(model.visited, model.value(), torch.nan)
    for first, limit in ((None, limits[0]), (start, limits[1])):
        extended = ictd.kernel_interpolant(unread, v_hat, model.visited, first)
        deviation = worst(deviation, gap(extended, limit))
    return Outcome(1000, deviation)


@claim(
    "lem-invertible-attention",
    page=PAGE,
    statement="A positive definite score of distinct features makes the attention invertible.",
    functions=("attention_weights", "BilinearScore"),
    tolerance=1e-8,
)
def invertible_attention(generator: torch.Generator) -> Outcome:
    """The determinant of the attention by a Cholesky factor of the exponentiated scores."""
    record = walks(generator, 1000, 16, 4, all_states=True)
    features = normal(generator, 1000, 4, 2) + 3 * torch.tensor(
        [[1, 0], [0, 1], [-1, 0], [0, -1]], dtype=torch.float64
    )
    root = normal(generator, 2, 2)
    matrix = 0.1 * root @ root.mT + 0.1 * torch.eye(2)
    prompt = record.prompt(features).with_queries(features)
    weights = ictd.attention_weights(prompt, ictd.BilinearScore(matrix))[:, -4:]
    source = torch.nn.functional.one_hot(record.states[:, :-1], 4).double()
    attention = weights[..., :16] @ source
    scores, counts = features @ matrix @ features.mT, count(record, 4).counts
    kernel = (scores - scores.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)).exp()
    half = scores.diagonal(dim1=-2, dim2=-1) / 2
    symmetric = (scores - half.unsqueeze(-1) - half.unsqueeze(-2)).exp()
    factor = torch.linalg.cholesky(symmetric).diagonal(dim1=-2, dim2=-1)
    total = (kernel * counts.unsqueeze(-2)).sum(-1)
    expected = 2 * factor.log().sum(-1) + (counts / total).log().sum(-1)
    sign, logdet = torch.linalg.slogdet(attention)
    positive = 0.0 if bool((sign > 0).all()) else torch.inf
    return Outcome(1000, worst(gap(logdet, expected), positive))


@claim(
    "thm-no-closure",
    page=PAGE,
    statement="Without closure every guess is a fixed point; the start decides which.",
    functions=("softmax_td", "fixed_point", "Prompt.trim"),
    tolerance=1e-9,
)
def no_closure(generator: torch.Generator) -> Outcome:
    """One successor that is never left; the limit from zero, a random start, and trimmed."""
    closed = walks(generator, 1000, 15, 4, low=0.2, high=0.6, all_states=True)
    states = torch.cat([closed.states, torch.full((1000, 1), 4)], -1)
    last = uniform(generator, 1000, 2, low=0.2, high=0.6)
    discounts = torch.cat([closed.discounts[:, :-1], last], -1)
    record = ictd.Trajectory(states, normal(generator, 1000, 17), discounts)
    features, score, scores = _sharp(generator, 5)
    prompt, model = record.prompt(features), count(record, 5)
    attention = model.attention(scores)
    mix = attention[:, 4:, :4] @ inv(attention[:, :4, :4])
    inner, onward = model.transition[:, :4, :4], model.transition[:, :4, 4:]
    reward, start = model.reward[:, :4], normal(generator, 1000, 5)
    known = _matvec(inv(torch.eye(4) - inner), reward + _matvec(onward, start[:, 4:]))
    still = pick(torch.cat([known, start[:, 4:]], -1), states)  # (i): at rest with any guess
    options: dict[str, Any] = {"step_size": 0.9}
    rest = ictd.softmax_td(prompt, score, num_steps=1, initial_values=still, **options)
    found = [(rest, still)]
    for first in (torch.zeros_like(start), start):
        guess = first[:, 4:] - _matvec(mix, first[:, :4])
        system = torch.eye(4) - inner - onward @ mix
        limit = _matvec(inv(system), reward + _matvec(onward, guess))
        limit = pick(torch.cat([limit, guess + _matvec(mix, limit)], -1), states)
        at = pick(first, states)
        run = ictd.softmax_td(prompt, score, num_steps=200, initial_values=at, **options)
        found.append((run, limit))
    at_zero = found[1][1]
    found.append((ictd.fixed_point(prompt, score), at_zero))
    short = ictd.Trajectory(*(x[:, :16] for x in (states, record.rewards, discounts)))
    whole = pick(count(short, 5).value(), short.states)
    found.append((ictd.fixed_point(prompt.trim(), score), whole))
    return Outcome(1000, worst(*(gap(a, b) for a, b in found)))
