"""The results of chapter 8: the first steps of pretraining, and coordinates of full layers."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

import ictd
from ictd.claims._contexts import context
from ictd.claims._draw import gap, normal, stochastic, uniform, unit, worst
from ictd.claims._registry import Outcome, claim
from ictd.layers import Layer
from ictd.prompt import Prompt

PAGE = "08-emergence"
REWARD, TARGET, CURRENT, ROWS = 3, 4, 5, 6  # rows of Z with three features


class Moments(NamedTuple):
    """Hold what the first steps depend on, one entry for each task."""

    mean: Tensor  # of the reward, under the stationary distribution
    covariance: Tensor  # of features and rewards, c
    product: Tensor  # mean of feature times reward, g
    scale: Tensor  # k, the mean of their product over isotropic features, times d


def moments(mrp: ictd.MarkovRewardProcess, features: Tensor) -> Moments:
    """Sums over the states, written out."""
    mu = mrp.stationary_distribution()
    mean = (mu * mrp.reward).sum(-1)
    above = mrp.reward - mean.unsqueeze(-1)
    return Moments(
        mean,
        torch.einsum("bs,bs,bsi->bi", mu, above, features),
        torch.einsum("bs,bs,bsi->bi", mu, mrp.reward, features),
        (mu.square() * above * mrp.reward).sum(-1),
    )


def update_at(
    mrp: ictd.MarkovRewardProcess, features: Tensor, weights: Tensor, layers: int
) -> Tensor:
    """The expected update of each task at weights ``(A, w)`` in one vector."""
    d = features.shape[-1]
    model = ictd.InContextTD.from_construction(weights[: d * d].reshape(d, d), layers, 1.0)
    with torch.no_grad():
        model.layers[0].get_parameter("value_weights").copy_(weights[d * d :])
        return ictd.expected_update(model, mrp, features)


def linear_part(found: Moments, weights: Tensor, layers: int, gamma: float) -> Tensor:
    """The derivative of the update at zero, along ``weights``, by the formula."""
    d = found.covariance.shape[-1]
    A, (w_R, w_target, w_current) = weights[: d * d].reshape(d, d), weights[d * d :]
    rho, pairs = found.mean.square(), layers * (layers - 1) / 2
    attention = layers * w_R * torch.einsum("bi,bj->bij", found.covariance, found.product)
    reward = layers * torch.einsum("bi,ij,bj->b", found.covariance, A, found.product)
    reward = reward + rho * pairs * (w_current + gamma * w_target)
    reward = reward - rho * (1 - gamma) * layers**2 * w_R
    memory = rho * pairs * w_R
    return torch.cat([attention.flatten(1), torch.stack([reward, gamma * memory, memory], -1)], -1)


@claim(
    "prop-first-steps",
    page=PAGE,
    statement="Near zero A drifts along w_R times the identity, and w_R upwards.",
    functions=("expected_update",),
    tolerance=1e-5,
)
def first_steps(generator: torch.Generator) -> Outcome:
    """Value and derivative at zero; and all tables of isotropic features, one after the other."""
    found, cases, tiny = [], 0, 3e-6
    for layers in (1, 2, 4, 10):
        gamma = float(uniform(generator, 1, high=0.9))
        mrp = ictd.MarkovRewardProcess(
            stochastic(generator, 250, 4), normal(generator, 250, 4), gamma
        )
        features, along = unit(normal(generator, 250, 4, 3)), 0.3 * normal(generator, 12)
        up, down = (update_at(mrp, features, s * tiny * along, layers) for s in (1, -1))
        known = moments(mrp, features)
        start = torch.zeros(12, dtype=torch.float64)
        start = start.expand(250, 12).index_fill(-1, torch.tensor([9]), 1.0)
        found.append(gap((up + down) / 2, layers * known.mean.square().unsqueeze(-1) * start))
        found.append(gap((up - down) / (2 * tiny), linear_part(known, along, layers, gamma)))
        cases += 250
    axes = torch.cat([torch.eye(2), -torch.eye(2)]).double()
    tables = axes[torch.tensor(list(product(range(4), repeat=3)))]  # [64, 3, 2], isotropic
    for _ in range(5):
        chain = ictd.MarkovRewardProcess(
            stochastic(generator, 1, 3).expand(64, 3, 3),
            normal(generator, 1, 3).expand(64, 3),
            0.8,
        )
        w_R = float(uniform(generator, 1, low=-1.0)) * tiny
        weights = torch.tensor([0.0] * 4 + [w_R, 0.0, 0.0], dtype=torch.float64)
        mean = update_at(chain, tables, weights, 5).mean(0)[:4].reshape(2, 2) / tiny
        wanted = 5 * w_R / tiny * moments(chain, tables).scale[0] / 2
        found.append(gap(mean, wanted * torch.eye(2, dtype=torch.float64)))
        cases += 64
    return Outcome(cases, worst(*found))


@claim(
    "prop-bootstrap",
    page=PAGE,
    statement="At the best network that reads rewards alone, reading the successor is pushed up.",
    functions=("expected_update",),
    tolerance=1e-12,
)
def bootstrap(generator: torch.Generator) -> Outcome:
    """Identity attention, 12 sets of 100 tasks, against sums over states."""
    found, cases = [], 0
    for index in range(12):
        gamma, layers = float(uniform(generator, 1, low=0.1, high=0.9)), 2 + index % 4
        transition, reward = stochastic(generator, 100, 4), normal(generator, 100, 4)
        mrp = ictd.MarkovRewardProcess(transition, reward, gamma)
        mu = mrp.stationary_distribution()
        onward = torch.einsum("bsu,bu->bs", transition, reward)
        own, both, other = (
            (mu * x * y).sum(-1).mean()
            for x, y in ((reward, reward), (reward, onward), (onward, onward))
        )
        c = own / (own - gamma * both)
        weights = torch.zeros(19, dtype=torch.float64)
        weights[:16] = 1e4 * torch.eye(4).flatten()
        weights[16] = c / layers
        eye = torch.eye(4, dtype=torch.float64).expand(100, 4, 4)
        update = update_at(mrp, eye, weights, layers).mean(0)
        wanted = torch.zeros(19, dtype=torch.float64)
        wanted[17] = (layers - 1) / 2 * (gamma * c) ** 2 * (other - both.square() / own)
        found += [gap(update.unsqueeze(0), wanted.unsqueeze(0)), -float(wanted[17])]
        cases += 100
    return Outcome(cases, worst(*found))


def values_of(layers: list[Layer], prompt: Prompt) -> Tensor:
    """The last row of Z after every layer."""
    Z, history = prompt.matrix(), []
    for layer in layers:
        Z = layer(Z, prompt.discounts, prompt.is_transition, prompt.is_terminal)
        history.append(Z[:, CURRENT])
    return torch.stack(history, 1)


@torch.no_grad()
def changed(layer: Layer, S: Tensor) -> Layer:
    """The layer in other coordinates, Z' = S Z."""
    inverse = torch.linalg.inv(S)
    other = type(layer)(3, parametrization="full", dtype=torch.float64)
    for name, parameter in other.named_parameters():
        own = layer.get_parameter(name)
        reads = name == "query_key"
        parameter.copy_(inverse.mT @ own @ inverse if reads else S @ own @ inverse)
    return other


@claim(
    "prop-gauge",
    page=PAGE,
    statement="Changes of coordinates that keep inputs and output leave all values alone.",
    functions=("DualHeadLayer", "SingleHeadLayer"),
    tolerance=1e-10,
)
@torch.no_grad()
def gauge(generator: torch.Generator) -> Outcome:
    """Random layers, tied in nothing, in random coordinates; and TD errors in the reward row."""
    prompt, _, _ = context(generator)
    found = []
    for kind in (ictd.DualHeadLayer, ictd.SingleHeadLayer):
        layers = [kind(3, parametrization="full", dtype=torch.float64) for _ in range(3)]
        for layer in layers:
            for parameter in layer.parameters():
                parameter.copy_(0.3 * normal(generator, ROWS, ROWS))
        S = torch.eye(ROWS, dtype=torch.float64)
        S[:TARGET, CURRENT] = normal(generator, TARGET)
        if kind is ictd.DualHeadLayer:
            S[TARGET, CURRENT] = 0.7
            S[:CURRENT, TARGET] = normal(generator, CURRENT)
            S[TARGET, TARGET] = -1.3
        others = [changed(layer, S) for layer in layers]
        found.append(gap(values_of(others, prompt), values_of(list(layers), prompt)))
    matrix = normal(generator, 3, 3)
    plain = ictd.DualHeadLayer(3, parametrization="full", dtype=torch.float64)
    for name, parameter in plain.named_parameters():
        parameter.zero_()
        if name == "query_key":
            parameter[:3, :3] = matrix
        else:
            sign = 1.0 if name == "value_target" else -1.0
            parameter[REWARD, REWARD] = 0.6 * sign
    plain.value_current[CURRENT, REWARD] = 0.6
    values = [
        ictd.softmax_td(prompt, ictd.BilinearScore(matrix), num_steps=n, step_size=0.6)
        for n in (1, 2, 3)
    ]
    found.append(gap(values_of([plain] * 3, prompt), torch.stack(values, 1)))
    return Outcome(1000, worst(*found))
