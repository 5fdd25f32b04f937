"""More of chapter 6: full layers, one state by hand, estimators, weaker diagonality."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

import ictd
from ictd.claims._draw import excess, gap, normal, stochastic, uniform, worst
from ictd.claims._registry import Outcome, claim
from ictd.claims.neu import BATCH, PAGE, Problem, squares, tasks


@claim(
    "thm-neu-full",
    page=PAGE,
    statement="Full layers: NEU obeys its bound; one state grows linearly and uses nearly half.",
    functions=("neu_bound", "value_jacobian"),
    tolerance=1e-10,
    attained=0.8,
)
def full(generator: torch.Generator) -> Outcome:
    """NEU against its bound, both heads; the drift of one state and G_L against formulas.

    One state near the limit of part (iii), which uses all of the bound at one layer.
    """
    found, drift, cases = [], [], 0
    for index, layers in enumerate((1, 2, 3, 5, 8, 12)):
        p = tasks(generator, states=3)
        model = p.model(layers, parametrization="full", num_heads=1 + index % 2)
        norm = float(torch.linalg.matrix_norm(p.matrix, 2))
        options = {**p.limits(), "matrix_norm": norm, "form": "full"}
        bound = ictd.neu_bound(p.rate(), layers, **options)  # type: ignore[arg-type]
        found.append(excess(squares(p, model), bound, size=1e-16))
        gamma, rho = p.mrp.discount, p.rate()
        known = (1 + gamma) * p.value * full_gradient(p, norm, layers) * rho**layers
        drift.append(float((bound / known**2 - 1).abs().max()))
        cases += len(p.value)
        gamma, r = uniform(generator, 50, high=0.95), normal(generator, 50)
        ones = torch.ones(50, 1, 1, dtype=torch.float64)
        mrp = ictd.MarkovRewardProcess(ones, r.unsqueeze(-1), gamma)
        model = ictd.InContextTD.from_construction(ones[0], layers, p.alpha, parametrization="full")
        with torch.no_grad():
            slope = ictd.value_jacobian(model, mrp, ones[0])[:, 0, 16 + 4 + 1]
        q = 1 - p.alpha * (1 - gamma)
        value = r / (1 - gamma)
        drift.append(gap(slope, value * (layers - (1 - q**layers) / (1 - q))))
        share, limit = near_the_limit(p.alpha / 2, layers)
        found.append((share - 1, share))
        drift.append(max(abs(share / limit - 1) - 1e-9, 0.5 - limit))
    deviation = worst(*(f[0] for f in found), *drift)
    return Outcome(cases, deviation, max(f[1] for f in found))


def near_the_limit(alpha: float, layers: int) -> tuple[float, float]:
    """Share of the bound that one state uses at a tiny discount and reward, and its limit."""
    tiny, one = 1e-12, torch.ones(1, 1, dtype=torch.float64)
    mrp = ictd.MarkovRewardProcess(one, tiny * one[0], tiny)
    model = ictd.InContextTD.from_construction(
        0 * one, layers, alpha, parametrization="full", num_heads=2
    )
    with torch.no_grad():
        neu = ictd.norm_of_expected_update(model, mrp, one)
    numbers = {"discount": tiny, "step_size": alpha, "reward_bound": tiny}
    bound = ictd.neu_bound(1 - alpha * (1 - tiny), layers, form="full", **numbers)
    powers = [(1 - alpha) ** (layers - 1 - i) for i in range(layers)]
    steady, later = sum(powers), sum(i * power for i, power in enumerate(powers))
    root = math.sqrt(2) * alpha * later
    return float(neu / bound), (steady**2 + root**2) / (steady + root) ** 2


def full_gradient(p: Problem, a: float, layers: int) -> Tensor:
    """The bound of the Jacobian, G_L, by the recursion of the proof, layer by layer."""
    gamma, alpha, rho, V = p.mrp.discount, p.alpha, p.rate(), p.value
    R, B = p.mrp.reward.abs().amax(-1), p.features.norm(dim=-1).max()
    column = (B**2 + R**2 + 4 * V**2 + 4 * gamma**2 * V**2).sqrt()
    errors = R + 2 * V + 2 * gamma * V
    heads = (1 + gamma**2).sqrt()
    features = alpha * a * B * heads * column
    fading = (1 + gamma) * V / (math.e * (1 - rho))
    blocks = []
    for query_key in (True, False):
        kept = state = torch.zeros_like(rho)  # what no layer contracts; a function of the state
        for layer in range(layers):
            state = rho * state + alpha * (1 + gamma) * kept
            if query_key:
                kept = kept + alpha * column**2 * errors
                continue
            drift = alpha * column * heads * (2 + gamma**2).sqrt() + features * errors
            state = state + column + drift * layer
            kept = kept + gamma * column + features * fading
        blocks.append(kept + state)
    return torch.hypot(*blocks)


@claim(
    "prop-neu-pairs",
    page=PAGE,
    statement="To first order a full layer sees a long context as weighted pairs of states.",
    functions=("value_jacobian",),
    tolerance=1e-11,
)
def pairs(generator: torch.Generator) -> Outcome:
    """A de Bruijn sequence: two states and all triples equally often, so it is the population."""
    states = torch.tensor([0, 0, 0, 1, 0, 1, 1, 1, 0])
    half = torch.full((BATCH, 2, 2), 0.5, dtype=torch.float64)
    found = []
    for index in range(6):
        rewards, phi = normal(generator, BATCH, 2, 2), normal(generator, BATCH, 2, 2)
        gamma = uniform(generator, BATCH, high=0.9)
        mrp = ictd.MarkovRewardProcess(half, rewards, gamma)
        paid = torch.cat([rewards[:, states[:-1], states[1:]], torch.zeros_like(phi[:, :1, 0])], -1)
        context = ictd.Trajectory(states.expand(BATCH, -1), paid, gamma.unsqueeze(-1).expand(-1, 9))
        model = ictd.InContextTD.from_construction(
            normal(generator, 2, 2), 3, 0.8, parametrization="full", num_heads=1 + index % 2
        )
        with torch.no_grad():
            there = ictd.value_jacobian(model, mrp, phi)
            here = ictd.value_jacobian(model, mrp, phi, context)
        # the last token, no key, has neither reward nor target to read with, and no shift into it
        exempt = torch.zeros(2 + index % 2, 5, 5, dtype=torch.bool)
        exempt[0, :, 2:4] = True
        exempt[2:, :2] = True
        found.append(gap(here[..., ~exempt.flatten()], there[..., ~exempt.flatten()]))
    return Outcome(6 * BATCH, worst(*found))


@claim(
    "prop-neu-not-stationary",
    page=PAGE,
    statement="One state: the update in closed form, never 0 at the construction; and its zero.",
    functions=("expected_update",),
    tolerance=1e-11,
)
def one_state(generator: torch.Generator) -> Outcome:
    """The formulas; the w_R at which the update vanishes; the curve's peak."""
    found, cases = [], 0
    for layers in (1, 2, 3, 6, 12, 30):
        gamma, r = uniform(generator, BATCH, high=0.95), normal(generator, BATCH)
        alpha = float(uniform(generator, 1, low=0.2))
        ones = torch.ones(BATCH, 1, 1, dtype=torch.float64)
        mrp = ictd.MarkovRewardProcess(ones, r.unsqueeze(-1), gamma)
        model = ictd.InContextTD.from_construction(ones[0], layers, alpha)
        q, v = 1 - alpha * (1 - gamma), r / (1 - gamma)
        by_reward = (1 - gamma) * v**2 * q**layers * (1 - q**layers) / alpha
        inner = (1 - q**layers) / (1 - q) - layers * q ** (layers - 1)
        by_value = (1 - gamma) * v**2 * q**layers * inner
        update = torch.stack([0 * q, by_reward, gamma * by_value, by_value], -1)
        with torch.no_grad():
            found.append(gap(ictd.expected_update(model, mrp, ones[0]), update))
            goal = float(alpha / (1 - q[0] ** layers))
            model.layers[0].get_parameter("value_weights")[0] = goal
            alone = ictd.norm_of_expected_update(model, mrp[:1], ones[0])
        found.append(float(alone))
        cases += BATCH
    return Outcome(cases, worst(*found))


@claim(
    "prop-neu-estimators",
    page=PAGE,
    statement="Bias of the plain square; halves and U-statistic unbiased, with these variances.",
    functions=("squared_norm_of_mean", "sampled_update", "expected_update"),
    tolerance=1e-12,
)
def estimators(generator: torch.Generator) -> Outcome:
    """Every sample of four from three vectors, so that means and variances are exact.

    And a task's update has the right mean: over a walk through all transitions equally often.
    """
    cases, size = 1000, 4
    support = normal(generator, cases, 3, 2)
    index = torch.tensor(list(itertools.product(range(3), repeat=size)))
    samples = support[:, index]
    mean = support.mean(-2, keepdim=True)
    sigma = (support - mean).mT @ (support - mean) / 3
    norm, spread = mean.square().sum((-1, -2)), sigma.square().sum((-1, -2))
    trace = sigma.diagonal(dim1=-2, dim2=-1).sum(-1)
    along = 4 / size * (mean @ sigma @ mean.mT).squeeze((-1, -2))
    plain = ictd.squared_norm_of_mean(samples, "plain")
    halves = ictd.squared_norm_of_mean(samples, "halves")
    u = ictd.squared_norm_of_mean(samples, "u")
    found = [
        gap(plain.mean(-1), norm + trace / size),
        gap(halves.mean(-1), norm),
        gap(u.mean(-1), norm),
        gap(halves.var(-1, correction=0), along + 4 / size**2 * spread),
        gap(u.var(-1, correction=0), along + 2 / (size * (size - 1)) * spread),
    ]
    states = torch.tensor([0, 0, 1, 1, 0, 1])  # each transition once, and one that is left out
    leaves = torch.tensor([True] * 4 + [False] * 2).expand(BATCH, -1)
    half = torch.full((BATCH, 2, 2), 0.5, dtype=torch.float64)
    rewards, phi = normal(generator, BATCH, 2, 2), normal(generator, BATCH, 2, 2)
    gamma = uniform(generator, BATCH, high=0.9)
    mrp = ictd.MarkovRewardProcess(half, rewards, gamma)
    paid = torch.nn.functional.pad(rewards[:, states[:-1], states[1:]], (0, 1))
    walk = ictd.Trajectory(states.expand(BATCH, -1), paid, gamma[:, None].expand(-1, 6), leaves)
    read = mrp.sample(9, generator=generator).prompt(phi)
    for form in ("structured", "full"):
        model = ictd.InContextTD.from_construction(
            normal(generator, 2, 2), 3, 0.8, parametrization=form
        )
        with torch.no_grad():
            one = ictd.sampled_update(model, read, walk.prompt(phi))
            found.append(gap(one, ictd.expected_update(model, mrp, phi, read)))
    return Outcome(cases, worst(*found))


@claim(
    "cor-neu-weaker",
    page=PAGE,
    statement="NEU falls with the powers' bound C_r r^L where diagonality is weaker than (1+γ)/2.",
    functions=("norm_of_expected_update", "neu_bound", "power_bound"),
    tolerance=1e-12,
    attained=0.01,
)
def weaker(generator: torch.Generator) -> Outcome:
    """Tasks between the thresholds: with the powers' own constants, and those of diagonality."""
    found, cases, gamma = [], 0, 0.3
    phi = torch.eye(4, dtype=torch.float64)
    for layers in (1, 3, 10, 30, 60):
        mrp = ictd.MarkovRewardProcess(
            0.6 * stochastic(generator, 500, 4) + 0.1, normal(generator, 500, 4), gamma
        )
        matrix = 2.2 * phi
        attention = ictd.population_attention(mrp, phi, ictd.BilinearScore(matrix))
        least = ictd.kernel_diagonality(attention).amin(-1)
        between = (ictd.asymptotic_rate(least, gamma) < 0.99) & (least < (1 + gamma) / 2)
        mrp, least, attention = mrp[between], least[between], attention[between]
        with torch.no_grad():
            model = ictd.InContextTD.from_construction(matrix, layers, 1.0)
            neu = ictd.expected_update(model, mrp, phi).square().sum(-1)
        step = ictd.iteration_matrix(attention, mrp.transition, gamma, 1.0)
        exact = torch.linalg.eigvals(step).abs().amax(-1) + 0.01
        power, constant = torch.eye(4, dtype=torch.float64).expand_as(step), torch.ones_like(exact)
        for _ in range(200):
            power = power @ step / exact.reshape(-1, 1, 1)
            constant = torch.maximum(constant, power.abs().sum(-1).amax(-1))
        certified = (1 + ictd.asymptotic_rate(least, gamma)) / 2
        general = ictd.power_bound(least, gamma, 1.0, certified)
        for rate, bound in ((exact, constant), (certified, general)):
            limit = ictd.neu_bound(
                rate,
                layers,
                discount=gamma,
                step_size=1.0,
                reward_bound=mrp.reward.abs().amax(-1),
                value_bound=mrp.value().abs().amax(-1),
                power_constant=bound,
            )
            found.append(excess(neu, limit, size=1e-16))
            R, V = mrp.reward.abs().amax(-1), mrp.value().abs().amax(-1)
            square = R**2 + (1 + gamma**2) * (1 + bound) ** 2 * V**2
            square = square + ((1 + gamma) * bound * V) ** 2  # alpha = B = 1
            known = ((1 + gamma) * V * bound**2 / (1 - rate) * rate**layers) ** 2 * square
            found.append((float((limit / known - 1).abs().max()), 0.0))
        cases += len(neu)
        found.append(excess(*two_states_swing(layers)))
    return Outcome(cases, worst(*(f[0] for f in found)), max(f[1] for f in found))


def two_states_swing(layers: int) -> tuple[Tensor, Tensor]:
    """NEU and its bound where the powers need no constant: a coin chooses the next state."""
    gamma, least, length = 0.3, 0.64, 0.1
    one = torch.ones(2, dtype=torch.float64)
    attention = (2 * least - 1) * torch.eye(2, dtype=torch.float64) + (1 - least)
    mrp = ictd.MarkovRewardProcess(0.5 * one.expand(2, 2), one * one.new_tensor([1, -1]), gamma)
    phi = length * torch.eye(2, dtype=torch.float64)
    model = ictd.InContextTD.from_construction(attention.log() / length**2, layers, 1.0)
    with torch.no_grad():
        neu = ictd.norm_of_expected_update(model, mrp, phi)
    bound = ictd.neu_bound(
        2 * (1 - least),
        layers,
        discount=gamma,
        step_size=1.0,
        reward_bound=1.0,
        feature_bound=length,
        value_bound=1.0,
    )
    return neu, torch.as_tensor(bound)
