"""The results of chapter 7 on four states around a hub, which diverge."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import ictd
from ictd.attention import Score
from ictd.claims._draw import gap, stochastic, uniform
from ictd.claims._kernels import (
    eye_like,
    kernels,
    same_diagonal,
)
from ictd.claims._registry import Outcome, claim

PAGE = "07-beyond-the-condition"


def hub_flows(hub: float) -> Tensor:
    """A hub 0, a swap of 1 and 2, and 3 beside the hub."""
    flow = torch.zeros(4, 4, dtype=torch.float64)
    flow[1, 2] = flow[0, 3] = 1.0
    flow[0, 1] = 0.01
    flow = flow + flow.mT
    flow[0, 0] = hub - 1.01
    return flow


def eigenvalues(flow: Tensor, features: Tensor, score: Score, discount: float) -> list[complex]:
    """Those of the drift, the largest first, and that the report agrees that none is certified."""
    transition = flow / flow.sum(-1, keepdim=True)
    mrp = ictd.MarkovRewardProcess(transition, torch.zeros(4, dtype=torch.float64), discount)
    attention = ictd.population_attention(mrp, features, score)
    report = ictd.stability(mrp, features, score=score)
    if bool(report.holds.any()) or float(report.kernel_td_step_limit) <= 0:
        raise ValueError("report: expected no certificate, and one for kernel TD")
    values = torch.linalg.eigvals(ictd.drift_matrix(attention, transition, discount)).tolist()
    return sorted(values, key=lambda value: (-value.real, value.imag))


@claim(
    "prop-four-state-failure",
    page=PAGE,
    statement="Four states around a hub diverge with Gaussian scores and with unit-norm features.",
    functions=("population_attention", "stability", "step_size_limit"),
    tolerance=1e-9,
    exact=True,
)
def four_state_failure(generator: torch.Generator) -> Outcome:
    """The eigenvalues to the digits printed, and how large the power of a layer becomes."""
    line = torch.tensor([[0.0], [5.0], [7.0], [8.0]], dtype=torch.float64)
    angles = torch.tensor([0.0, 50.0, 70.0, 80.0], dtype=torch.float64) * (math.pi / 180)
    circle = torch.stack([angles.cos(), angles.sin()], -1)
    binary = ictd.GaussianScore(2 / math.sqrt(math.log(2)))
    dot = ictd.BilinearScore(8 * torch.eye(2, dtype=torch.float64))
    swap_pair = [-0.00020 - 0.00347j, -0.00020 + 0.00347j]
    tilt_pair = [-0.00104 - 0.00196j, -0.00104 + 0.00196j]
    cases: list[tuple[float, Tensor, Score, float, list[complex], list[int]]] = [
        (500.0, line, binary, 0.99, [0.2712, 0.01, -0.000645, -0.002857], [4, 4, 6, 6]),
        (500.0, line, binary, 0.9, [0.2755, 0.1, *swap_pair], [4, 4, 5, 5]),
        (1000.0, circle, dot, 0.99, [0.3396, 0.01, *tilt_pair], [4, 4, 5, 5]),
    ]
    wrong = False
    for hub, features, score, gamma, printed, digits in cases:
        found = eigenvalues(hub_flows(hub), features, score, gamma)
        rounded = [
            complex(round(x.real, k), round(x.imag, k)) for x, k in zip(found, digits, strict=True)
        ]
        wrong |= rounded != [complex(x) for x in printed]
    wrong |= min(x.real for x in eigenvalues(hub_flows(1000.0), circle, dot, 0.95)) >= 0
    wrong |= min(x.real for x in eigenvalues(hub_flows(1000.0), circle, dot, 0.9)) <= 0
    flow = hub_flows(1000.0)
    slow = ictd.MarkovRewardProcess(
        flow / flow.sum(-1, keepdim=True), torch.zeros(4, dtype=torch.float64), 0.99
    )
    layer = ictd.iteration_matrix(
        ictd.population_attention(slow, circle, dot), slow.transition, 0.99, 1.0
    )
    power = torch.linalg.matrix_power(layer, 6000)
    wrong |= round(float(torch.linalg.matrix_norm(power, 2))) != 4065
    # by hand: the first attention from powers of two
    visits = hub_flows(500.0).sum(-1)
    kernel = 2 ** (-((line - line.mT) ** 2) / 8)
    by_hand = kernel * visits / (kernel * visits).sum(-1, keepdim=True)
    transition = hub_flows(500.0) / visits.unsqueeze(-1)
    mrp = ictd.MarkovRewardProcess(transition, torch.zeros(4, dtype=torch.float64), 0.9)
    deviation = gap(ictd.population_attention(mrp, line, binary), by_hand)
    drift = by_hand @ (torch.eye(4, dtype=torch.float64) - 0.9 * transition)
    wrong |= float(ictd.step_size_limit(drift)) != 0
    return Outcome(4, math.inf if wrong else deviation)


@claim(
    "prop-hub",
    page=PAGE,
    statement="With a hub, any negative principal minor of κ(D - γF) makes softmax TD diverge.",
    functions=("step_size_limit", "drift_matrix"),
    tolerance=1e-5,
)
def hub(generator: torch.Generator) -> Outcome:
    """The limit of the eigenvalues, as polynomials; and that a negative minor diverges."""
    batch, big = 1500, 1e8
    kernel = same_diagonal(kernels(generator, batch, 3)).exp()
    flow = stochastic(generator, batch, 3) * uniform(generator, batch, 1, 1)
    chain = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.float64)
    share = torch.where(uniform(generator, batch, 1, 1) < 0.5, 1e-3, 1.0)
    flow = share * flow + (1 - share) * chain
    gamma = uniform(generator, batch, low=0.5, high=0.999)
    line = uniform(generator, batch, 3).cumsum(-1)[..., None]  # close together on a line
    near = (-((line - line.mT) ** 2) * uniform(generator, batch, 1, 1)).exp()
    kernel = torch.where(uniform(generator, batch, 1, 1) < 0.7, near, kernel)
    most = torch.maximum(flow.sum(-1), flow.sum(-2))
    nu = most + (uniform(generator, batch, 3) ** 2).clamp(min=1e-2)
    minors = kernel @ (torch.diag_embed(nu) - gamma[:, None, None] * flow)
    zeta = uniform(generator, batch, 3, low=0.1, high=2.0)
    speed = 1 / (zeta + (kernel @ nu.unsqueeze(-1)).squeeze(-1))
    expected = torch.cat(
        [
            1 - gamma[:, None],
            torch.linalg.eigvals(speed.unsqueeze(-1) * minors),
        ],
        -1,
    )
    drift = _with_hub(kernel, flow, nu, zeta, gamma, big)
    deviation = gap(_characteristic(torch.linalg.eigvals(drift)), _characteristic(expected))
    pair = minors[:, 1:, 1:]  # the states 1 and 2 of the rare ones
    negative = torch.linalg.det(pair) < -1e-4
    if int(negative.sum()) < 50:
        return Outcome(batch, math.inf)
    slow = torch.tensor([1e-7, 1.0, 1.0], dtype=torch.float64)
    mass = (kernel @ nu.unsqueeze(-1)).squeeze(-1)
    sigma = 2 * (slow * mass).amax(-1, keepdim=True)
    zeta = sigma / slow - mass
    fails = _with_hub(kernel, flow, nu, zeta, gamma, 1e14)[negative]
    if bool((ictd.step_size_limit(fails) > 0).any()):
        deviation = math.inf
    return Outcome(batch, deviation)


def _with_hub(
    kernel: Tensor, flow: Tensor, nu: Tensor, zeta: Tensor, gamma: Tensor, visits: float
) -> Tensor:
    """The drift of the rare states with a hub in front, which is visited so often."""
    batch = len(kernel)
    full = torch.ones(batch, 4, 4, dtype=torch.float64)
    full[:, 1:, 1:] = kernel
    full[:, 0, 1:] = full[:, 1:, 0] = zeta / visits
    flows = torch.zeros(batch, 4, 4, dtype=torch.float64)
    flows[:, 1:, 1:] = flow
    flows[:, 1:, 0], flows[:, 0, 1:] = nu - flow.sum(-1), nu - flow.sum(-2)
    flows[:, 0, 0] = visits - flows[:, 0, 1:].sum(-1)
    weights = torch.cat([torch.full_like(nu[:, :1], visits), nu], -1)
    attention = full * weights.unsqueeze(-2)
    attention = attention / attention.sum(-1, keepdim=True)
    return ictd.drift_matrix(attention, flows / weights.unsqueeze(-1), gamma)


def _characteristic(values: Tensor) -> Tensor:
    """The coefficients of the polynomial with these roots: they do not depend on the order."""
    coefficients = torch.ones_like(values[:, :1])
    for root in values.unbind(-1):
        shifted = torch.nn.functional.pad(coefficients, (0, 1))
        behind = torch.nn.functional.pad(coefficients, (1, 0))
        coefficients = shifted - root.unsqueeze(-1) * behind
    return coefficients.real


@claim(
    "thm-every-discount",
    page=PAGE,
    statement="For every γ > 0 a reversible chain of four states diverges with a Gaussian score.",
    functions=("step_size_limit",),
    tolerance=1e-9,
    exact=True,
)
def every_discount(generator: torch.Generator) -> Outcome:
    """The recipe of the proof, in the plane and on the sphere, for γ from 0.1 to 0.99."""
    gamma = torch.linspace(0.1, 0.99, 90, dtype=torch.float64)
    width, zero = 3 / gamma, torch.zeros_like(gamma)
    hub = torch.stack([-30 * width, width * math.sqrt(2 * math.log(1e6))], -1)
    rare = [torch.stack([place, zero], -1) for place in (zero, 1 / gamma, 1 / gamma + 1)]
    points = torch.stack([hub, *rare], -2)
    up = (1e12 - points.square().sum(-1, keepdim=True)).sqrt()
    sphere = torch.cat([points, up], -1) / 1e6
    flow = torch.zeros(4, 4, dtype=torch.float64)
    flow[0, 1] = flow[1, 2] = flow[0, 3] = 1.0
    flow = flow + flow.mT
    flow[0, 0] = 1e11 * math.exp(450)  # the hub stays at home
    visits = flow.sum(-1)
    onward = gamma[:, None, None] * flow / visits.unsqueeze(-1)
    wrong = False
    for where, scale in ((points, width), (sphere, width / 1e6)):
        apart = (where.unsqueeze(-2) - where.unsqueeze(-3)).square().sum(-1)
        scores = -apart / (2 * scale[:, None, None] ** 2)
        attention = (scores + visits.log()).softmax(-1)
        drift = attention @ (eye_like(onward) - onward)
        wrong |= bool((ictd.step_size_limit(drift) > 0).any())
        wrong |= bool((ictd.step_size_limit(attention) <= 0).any())  # without a discount
    length = sphere.square().sum(-1)
    return Outcome(180, math.inf if wrong else gap(length, torch.ones_like(length)))
