"""The results of chapter 6: the expected update, its limit, its zeros and its estimators."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

import ictd
from ictd.claims._draw import excess, gap, normal, stochastic, uniform, worst
from ictd.claims._registry import Outcome, claim

PAGE = "06-neu"
BATCH = 200  # problems with the same weights


class Problem(NamedTuple):
    """Hold tasks that share the weights ``(A, α(1, 1, -1))``, and what the bounds ask of them."""

    mrp: ictd.MarkovRewardProcess
    features: Tensor
    matrix: Tensor
    alpha: float
    diagonality: Tensor
    value: Tensor  # largest, of each task

    def model(self, layers: int, **options: object) -> ictd.InContextTD:
        """Return the construction."""
        return ictd.InContextTD.from_construction(self.matrix, layers, self.alpha, **options)  # type: ignore[arg-type]

    def limits(self) -> dict[str, Tensor | float]:
        """Return the arguments that all bounds share."""
        return {
            "discount": self.mrp.discount,
            "step_size": self.alpha,
            "reward_bound": self.mrp.reward.abs().amax(-1),
            "feature_bound": float(self.features.square().sum(-1).max().sqrt()),
            "value_bound": self.value,
        }

    def rate(self) -> Tensor:
        """Return the factor of the depth theorem."""
        return 1 - self.alpha * (2 * self.diagonality - 1 - self.mrp.discount)


def tasks(
    generator: torch.Generator, states: int = 4, high: float = 0.9, slowest: float = 0.3
) -> Problem:
    """Draw one-hot tasks whose attention satisfies diagonality with little or much to spare."""
    gamma = uniform(generator, 300, high=high)
    transition = stochastic(generator, 300, states)
    mrp = ictd.MarkovRewardProcess(transition, normal(generator, 300, states), gamma)
    colder = uniform(generator, 1, low=1.0, high=3.0)
    sharp = colder * torch.log(50 * (1 + gamma.max()) / (1 - gamma.max()))
    scale = float(uniform(generator, 1, low=0.1, high=1.0))  # of the features; A makes up for it
    noise = 0.2 * normal(generator, states, states)
    matrix = (sharp * torch.eye(states, dtype=torch.float64) + noise) / scale**2
    features = scale * torch.eye(states, dtype=torch.float64)
    attention = ictd.population_attention(mrp, features, ictd.BilinearScore(matrix))
    least = ictd.kernel_diagonality(attention).amin(-1)
    alpha = float(uniform(generator, 1, low=slowest))
    kept = (2 * least - 1 - gamma > 0.001).nonzero()[:, 0][:BATCH]
    mrp, least = mrp[kept], least[kept]
    return Problem(mrp, features, matrix, alpha, least, mrp.value().abs().amax(-1))


def squares(problem: Problem, model: ictd.InContextTD) -> Tensor:
    """NEU of each task alone."""
    with torch.no_grad():
        update = ictd.expected_update(model, problem.mrp, problem.features)
    return update.square().sum(-1)


def bounded(
    generator: torch.Generator, form: str, depths: tuple[int, ...], rounds: int = 8
) -> Outcome:
    """NEU against its bound at several depths."""
    found, cases = [], 0
    for index in range(rounds):
        layers = depths[index % len(depths)]
        problem = tasks(generator, high=0.9 if index % 2 else 0.02)
        neu = squares(problem, problem.model(layers, looped=form != "untied"))
        bound = ictd.neu_bound(problem.rate(), layers, form=form, **problem.limits())  # type: ignore[arg-type]
        found.append(excess(neu, bound, size=1e-16))
        known = written_out(problem, layers, form)
        default = {**problem.limits(), "value_bound": None}
        wide = problem.limits()["reward_bound"] / (1 - problem.mrp.discount)
        loose = ictd.neu_bound(problem.rate(), layers, form=form, **default)  # type: ignore[arg-type]
        for ours, theirs in (
            (bound, known),
            (loose, written_out(problem._replace(value=wide), layers, form)),
        ):
            found.append((float((ours / theirs - 1).abs().max()), 0.0))
        cases += len(neu)
    return Outcome(cases, worst(*(f[0] for f in found)), max(f[1] for f in found))


def written_out(problem: Problem, layers: int, form: str) -> Tensor:
    """The bound as the theorem states it, or its corollaries."""
    gamma, alpha, rho = problem.mrp.discount, problem.alpha, problem.rate()
    reward, value = problem.mrp.reward.abs().amax(-1), problem.value
    length = problem.features.norm(dim=-1).max()
    square = reward**2 + 4 * (1 + gamma**2) * value**2
    square = square + alpha**2 * length**4 * (1 + gamma) ** 2 * value**2
    top = ((1 + gamma) * value * square.sqrt()) ** 2 * rho ** (2 * layers)
    bound: Tensor = top / ((1 - rho) ** 2 if form == "looped" else 1 - rho**2)
    return bound


@claim(
    "prop-neu-linear",
    page=PAGE,
    statement="Linear values: NEU lies between the MSPBE times the extreme eigenvalues of C.",
    tolerance=1e-12,
    attained=0.99,
)
def linear(generator: torch.Generator) -> Outcome:
    """The update as a sum over pairs of states; the MSPBE as the squared norm of a projection."""
    transition, n = stochastic(generator, 1000, 5), 1000
    reward, gamma = normal(generator, n, 5), uniform(generator, n, high=0.95)
    mrp = ictd.MarkovRewardProcess(transition, reward, gamma)
    mu, phi = mrp.stationary_distribution(), normal(generator, n, 5, 2)
    value = (phi @ normal(generator, n, 2, 1)).squeeze(-1)
    delta = reward.unsqueeze(-1) + gamma.reshape(n, 1, 1) * value.unsqueeze(-2)
    delta = delta - value.unsqueeze(-1)
    flow = mu.unsqueeze(-1) * transition
    neu = torch.einsum("nsu,nsu,nsd->nd", flow, delta, phi).square().sum(-1)
    root = mu.sqrt().unsqueeze(-1)
    basis = torch.linalg.qr(root * phi).Q  # projection in the norm of mu
    error = root * (mrp.bellman(value) - value).unsqueeze(-1)
    mspbe = (basis.mT @ error).square().sum((-1, -2))
    ends = torch.linalg.eigvalsh(phi.mT @ (mu.unsqueeze(-1) * phi))
    low, high = excess(ends[:, 0] * mspbe, neu), excess(neu, ends[:, 1] * mspbe)
    return Outcome(n, worst(low[0], high[0]), min(low[1], high[1]))


@claim(
    "thm-neu",
    page=PAGE,
    statement="At the construction NEU, contexts infinite, is at most ((1+γ)VC/(1-ρ))² ρ^(2L).",
    functions=("norm_of_expected_update", "neu_bound"),
    tolerance=1e-12,
    attained=0.15,
)
def limit(generator: torch.Generator) -> Outcome:
    """Looped layers; rewards, discounts, steps and temperatures vary. And part (i), exactly."""
    found = bounded(generator, "looped", (1, 2, 5, 30))
    return replace(found, deviation=worst(found.deviation, _in_proportion(generator)))


def _in_proportion(generator: torch.Generator) -> float:
    """The update of untied layers, all different, on a walk that is the population."""
    states = torch.tensor([0, 0, 0, 1, 0])  # from 0: two of three times to 0; from 1: to 0
    transition = torch.tensor([[2 / 3, 1 / 3], [1.0, 0.0]], dtype=torch.float64)
    rewards, phi = normal(generator, BATCH, 2, 2), normal(generator, BATCH, 2, 2)
    gamma = uniform(generator, BATCH, high=0.9)
    mrp = ictd.MarkovRewardProcess(transition.expand(BATCH, 2, 2), rewards, gamma)
    paid = torch.nn.functional.pad(rewards[:, states[:-1], states[1:]], (0, 1))
    walk = ictd.Trajectory(states.expand(BATCH, -1), paid, gamma[:, None].expand(-1, 5))
    model = ictd.InContextTD(2, 3, looped=False, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
        there = ictd.expected_update(model, mrp, phi)
        here = ictd.expected_update(model, mrp, phi, walk.prompt(phi))
    return gap(here, there)


@claim(
    "cor-neu-untied",
    page=PAGE,
    statement="Untied layers: the same bound with √(1-ρ²) for 1-ρ.",
    functions=("norm_of_expected_update", "neu_bound"),
    tolerance=1e-12,
    attained=0.15,
)
def untied(generator: torch.Generator) -> Outcome:
    """Untied layers."""
    return bounded(generator, "untied", (1, 2, 4, 12))


@claim(
    "prop-neu-jacobian",
    page=PAGE,
    statement="The Jacobian's A-block is at most αB²(1+γ)V L ρ^(L-1); its w-block has a limit.",
    functions=("value_jacobian",),
    tolerance=1e-12,
    attained=0.3,
)
def jacobian(generator: torch.Generator) -> Outcome:
    """Both blocks; the limit of the second from a dense inverse."""
    found, cases = [], 0
    for layers in (1, 2, 4, 10, 25, 60):
        p = tasks(generator)
        with torch.no_grad():
            found_all = ictd.value_jacobian(p.model(layers), p.mrp, p.features)
        matrix, weights = found_all[..., :-3], found_all[..., -3:]
        gamma, rho = p.mrp.discount, p.rate()
        length = p.limits()["feature_bound"]
        fading = p.alpha * length**2 * (1 + gamma) * p.value * layers * rho ** (layers - 1)
        found.append(excess(matrix.square().sum(-1).sqrt().amax(-1), fading))
        onward = gamma.reshape(-1, 1, 1) * p.mrp.transition
        inverse = torch.linalg.inv(torch.eye(4, dtype=torch.float64) - onward)
        v = inverse @ p.mrp.reward.unsqueeze(-1)
        goal = torch.cat([v, inverse @ onward @ v, inverse @ v], -1) / p.alpha
        size = goal.square().sum(-1).sqrt().amax(-1)
        slack = layers * rho ** (layers - 1) * (1 + gamma**2).sqrt() * p.value
        apart = (weights - goal).square().sum(-1).sqrt().amax(-1)
        found.append(excess(apart, rho**layers * size + slack))
        cases += len(rho)
    return Outcome(cases, worst(*(f[0] for f in found)), max(f[1] for f in found))


@claim(
    "prop-neu-rate",
    page=PAGE,
    statement="NEU falls as q^(2L), q = 1-α(1-γ), with the coefficient of the formula.",
    functions=("norm_of_expected_update",),
    tolerance=2e-3,
)
def rate(generator: torch.Generator) -> Outcome:
    """The update at a depth where the rest is smaller, against the left eigenvector's formula."""
    found, cases = [], 0
    for _ in range(6):
        gamma = float(uniform(generator, 1, low=0.6, high=0.7))
        transition = 0.7 * stochastic(generator, BATCH, 3) + 0.1  # no eigenvalue near 1 but one
        mrp = ictd.MarkovRewardProcess(transition, normal(generator, BATCH, 3), gamma)
        phi = torch.eye(3, dtype=torch.float64)
        matrix, layers = 7 * phi + 0.2 * normal(generator, 3, 3), 40
        with torch.no_grad():
            model = ictd.InContextTD.from_construction(matrix, layers, 1.0)
            update = ictd.expected_update(model, mrp, phi) / gamma**layers
        attention = ictd.population_attention(mrp, phi, ictd.BilinearScore(matrix))
        onward = gamma * transition
        step = torch.eye(3, dtype=torch.float64) - attention @ (phi - onward)
        left = torch.linalg.matrix_power(step / gamma, 60)[:, 0]  # rows tend to the eigenvector
        mean = (mrp.stationary_distribution() * mrp.value()).sum(-1)
        size = (left * mrp.value()).sum(-1) * mean
        shape = torch.tensor([*[0.0] * 9, 1 - gamma, gamma, 1.0], dtype=torch.float64)
        found.append(gap(update, size.unsqueeze(-1) * shape))
        cases += BATCH
    return Outcome(cases, worst(*found))


@claim(
    "prop-neu-set",
    page=PAGE,
    statement="With diagonality every A and every w on the ray has limit 0; off it v is wrong.",
    functions=("norm_of_expected_update", "population_values"),
    tolerance=1e-12,
)
def zeros(generator: torch.Generator) -> Outcome:
    """NEU on the ray; off it the limit of the values, from a dense solve, which is not v_pi."""
    found, cases = [], 0
    for _ in range(6):
        p = tasks(generator, states=3, high=0.6, slowest=0.6)
        found.append(float(squares(p, p.model(150)).max()))
        w = torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64)
        w = p.alpha * (w + 0.05 * uniform(generator, 3, low=-1.0))
        model = p.model(200)
        with torch.no_grad():
            model.layers[0].get_parameter("value_weights").copy_(w)
            values = ictd.population_values(model, p.mrp, p.features)
        onward = p.mrp.discount.reshape(-1, 1, 1) * p.mrp.transition
        system = -(w[2] * torch.eye(3, dtype=torch.float64) + w[1] * onward)
        goal = torch.linalg.solve(system, w[0] * p.mrp.reward.unsqueeze(-1)).squeeze(-1)
        found.append(gap(values, goal))
        cases += len(values)
    return Outcome(cases, worst(*found))
