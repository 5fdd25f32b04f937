"""The results of chapter 7 on kernel TD, on and off policy, and on densities."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import ictd
from ictd.claims._draw import count, excess, gap, normal, uniform, walks, worst
from ictd.claims._kernels import (
    Problem,
    abscissa,
    energy_norm,
    eye_like,
    kernels,
    norm,
    off_policy,
    on_policy,
    orthonormal,
    smallest_real,
    swap,
)
from ictd.claims._registry import Outcome, claim
from ictd.claims._report import any_scores, definite, norm_row, range_row, step_sizes

PAGE = "07-beyond-the-condition"
BATCH = 1500


@claim(
    "cor-kernel-td-stable",
    page=PAGE,
    statement="On-policy, kernel TD converges for every α < 2/((1+γ)Λ), linear TD likewise.",
    functions=("stability", "step_size_limit"),
    tolerance=1e-8,
    attained=0.999999,
)
def kernel_td_stable(generator: torch.Generator) -> Outcome:
    """The promised steps against the exact ones; the factor; a swap that attains it."""
    deviation, tightness = -math.inf, 0.0
    flat = (torch.eye(2, dtype=torch.float64) - 1) * 40
    gamma = uniform(generator, 50, high=0.99)
    problems = [on_policy(generator, kernels(generator, BATCH)), swap(flat.repeat(50, 1, 1), gamma)]
    for problem in problems:
        eye, mu, gamma = eye_like(problem.onward), problem.visits, problem.discount
        scaled = mu.sqrt().unsqueeze(-1) * problem.kernel * mu.sqrt().unsqueeze(-2)
        values = torch.linalg.eigvalsh(scaled)
        low, high = values[:, 0], values[:, -1]
        drift = (problem.kernel * mu.unsqueeze(-2)) @ (eye - problem.onward)
        limit = 2 / ((1 + gamma) * high)
        over, ratio = excess(limit, ictd.step_size_limit(drift))
        deviation, tightness = worst(deviation, over), max(tightness, ratio)
        features = torch.eye(mu.shape[-1], dtype=torch.float64)
        report = ictd.stability(problem.process(), features, score=problem.score())
        deviation = worst(deviation, gap(report.kernel_td_step_limit, limit))
        step = (0.7 / high)[:, None, None]
        layer = orthonormal(eye - step * drift, mu)
        sure = low > 1e-6
        factor = (1 - 0.7 / high * (1 - gamma**2) * low).sqrt()
        deviation = worst(deviation, excess(energy_norm(layer, scaled)[sure], factor[sure])[0])
        trace = (mu * problem.kernel.diagonal(dim1=-2, dim2=-1)).sum(-1)
        deviation = worst(deviation, excess(high, trace)[0])
        phi = normal(generator, len(mu), mu.shape[-1], 2)
        moment = phi.mT @ (mu.unsqueeze(-1) * phi)
        linear = phi.mT @ (mu.unsqueeze(-1) * ((eye - problem.onward) @ phi))
        top = torch.linalg.eigvalsh(moment)[:, -1]
        exact = ictd.step_size_limit(linear)
        deviation = worst(deviation, excess(2 / ((1 + gamma) * top), exact)[0])
    wild = any_scores(generator, problems[0])
    report = ictd.stability(wild.process(), torch.eye(4).double(), score=wild.score())
    sign, clear = definite(wild)
    if not torch.equal((report.kernel_td_step_limit > 0)[clear], (sign > 0)[clear]):
        deviation = math.inf
    return Outcome(BATCH, deviation, tightness)


@claim(
    "cor-finite-context",
    page=PAGE,
    statement="A context that ends in a state left more than γ²/(1-γ²) times is as good as closed.",
    functions=("stability", "empirical_model"),
    tolerance=1e-8,
    attained=0.999999,
)
def finite_context(generator: torch.Generator) -> Outcome:
    """Walks that end anywhere, closed ones, and whole episodes."""
    gamma, states = 0.9, 4  # γ²/(1-γ²) = 4.26: five departures are enough
    deviation, tightness, harmful = -math.inf, 0.0, 0
    for closed, steps in ((False, 5), (False, 25), (True, 14)):
        record = walks(generator, BATCH, steps, states, low=gamma, high=gamma, endings=0.0)
        last = torch.randint(states, (BATCH,), generator=generator)
        tokens = record.states.clone()
        tokens[:, :states] = torch.arange(states)  # every state is a source: closure
        tokens[:, -1] = tokens[:, 0] if closed else last
        record = ictd.Trajectory(tokens, record.rewards, record.discounts)
        model = count(record, states)
        square = norm(orthonormal(model.transition, model.counts)) ** 2
        entered = torch.zeros_like(model.counts).scatter_add(
            -1, tokens[:, 1:], torch.ones_like(tokens[:, 1:]).double()
        )
        bound = gamma**2 * (entered / model.counts).amax(-1)
        over, ratio = excess(square, bound)
        deviation, tightness = worst(deviation, over), max(tightness, ratio)
        departures = model.counts.gather(-1, tokens[:, -1:]).squeeze(-1)
        enough = departures > gamma**2 / (1 - gamma**2)
        enough = torch.ones_like(enough) if closed else enough
        if not bool((bound[enough] < 1).all()):
            deviation = math.inf
        harmful += int((square >= 1).sum())
        prompt = record.prompt(torch.eye(states, dtype=torch.float64))
        report = ictd.stability(prompt, score=ictd.GaussianScore(1.0))
        scores = -(1 - torch.eye(states, dtype=torch.float64))
        visits = model.counts / model.counts.sum(-1, keepdim=True)
        drift = (scores.exp() * visits.unsqueeze(-2)) @ (
            eye_like(model.transition) - model.transition
        )
        promised = report.kernel_td_step_limit
        deviation = worst(deviation, excess(promised, ictd.step_size_limit(drift))[0])
        root = visits.sqrt()
        scaled = root.unsqueeze(-1) * scores.exp() * root.unsqueeze(-2)
        limit = 2 / ((1 + bound.sqrt()) * torch.linalg.eigvalsh(scaled)[:, -1])
        deviation = worst(deviation, gap(promised, torch.where(bound < 1, limit, 0.0)))
        if not bool((promised[enough] > 0).all()):
            deviation = math.inf
    ended = walks(generator, BATCH, 14, states, low=0.5, high=0.95, endings=0.3, all_states=True)
    ended.discounts[:, -2] = 0.0  # the last episode terminates as well
    model = count(ended, states)
    size = norm(orthonormal(model.transition, model.counts))
    deviation = worst(deviation, excess(size, torch.full_like(size, 0.95))[0])
    return Outcome(4 * BATCH, deviation if harmful else math.inf, tightness)


@claim(
    "prop-off-policy",
    page=PAGE,
    statement="Every kernel is stable at every γ < 1 iff the weights are stationary.",
    functions=("weighted_norm", "step_size_limit"),
    tolerance=1e-9,
)
def off_policy_kernel_td(generator: torch.Generator) -> Outcome:
    """Both directions; a little off-policy; and two states with their threshold."""
    problem = on_policy(generator, kernels(generator, BATCH))
    transition, eye = problem.onward / problem.discount[:, None, None], eye_like(problem.onward)
    one = torch.ones(BATCH, dtype=torch.float64)
    deviation = gap(ictd.weighted_norm(transition, problem.visits), one)
    weights = problem.visits * 4 ** normal(generator, *problem.visits.shape)
    coordinates = orthonormal(transition, weights)
    values, vectors = torch.linalg.eigh((coordinates + coordinates.mT) / 2)
    x = vectors[:, :, -1:]
    kernel = x @ x.mT + 1e-9 * eye
    gamma = ((1 + 1 / values[:, -1]) / 2)[:, None, None]
    drift = kernel @ (eye - gamma * coordinates)
    clear = values[:, -1] > 1 + 1e-4
    fails = smallest_real(drift)[clear] < 0
    if not bool(fails.all()) or not bool((norm(coordinates) > 1 - 1e-9).all()):
        deviation = math.inf
    mass = (problem.visits.unsqueeze(-1) * transition).sum(-2) / problem.visits
    mild = problem.visits * (1 + 0.2 * uniform(generator, *problem.visits.shape))
    mass = ((mild.unsqueeze(-1) * transition).sum(-2) / mild).amax(-1)
    kept = problem.discount**2 * mass < 1
    drift = (problem.kernel * mild.unsqueeze(-2)) @ (eye - problem.onward)
    deviation = worst(deviation, -float(smallest_real(drift)[kept].min()))

    rho = uniform(generator, 1000, low=1e-3, high=0.999)
    threshold = (5 + 2 * rho) / (6 + rho)
    outer = torch.tensor([[1.0, 2.0], [2.0, 4.0]], dtype=torch.float64)
    kernel = outer + rho[:, None, None] * torch.eye(2, dtype=torch.float64)
    onward = torch.tensor([[0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    for shift, sign in ((-1e-3, 1), (0.0, 0), (1e-3, -1)):
        drift = (
            kernel
            / 2
            @ (torch.eye(2, dtype=torch.float64) - (threshold + shift)[:, None, None] * onward)
        )
        trace = drift.diagonal(dim1=-2, dim2=-1).sum(-1)
        if sign == 0:
            deviation = worst(deviation, float(trace.abs().max()))
            continue
        real = torch.linalg.eigvals(drift).real * sign
        below_one = threshold + shift < 1
        if not bool((real[below_one] > 0).all()):
            deviation = math.inf
    return Outcome(BATCH, deviation)


def attained(generator: torch.Generator, ratio: Tensor) -> Problem:
    """A swap of two states whose densities have this ratio."""
    low, across = torch.ones_like(ratio), torch.full_like(ratio, 1e-9)
    high = ratio * (low + across) - across
    kernel = torch.stack([low, across, across, high], -1).reshape(-1, 2, 2)
    return swap(kernel.log(), uniform(generator, len(ratio), low=0.1, high=0.99))


@claim(
    "cor-density-ratio",
    page=PAGE,
    statement="With γ² max z/min z < 1 softmax TD converges for every α ≤ 1.",
    functions=("density_ratio", "self_adjoint_weights", "stability"),
    tolerance=1e-9,
    attained=0.999999,
)
def density_ratio(generator: torch.Generator) -> Outcome:
    """The chain of bounds on- and off-policy, the factor of a layer, and the step limit."""
    scores = kernels(generator, BATCH)
    problem = on_policy(generator, scores)
    swaps = attained(generator, torch.linspace(1, 4, 200, dtype=torch.float64))
    deviation, tightness, some = -math.inf, 0.0, 0
    for case in (problem, off_policy(generator, problem), swaps):
        eye, gamma, a = eye_like(case.onward), case.discount, case.measure
        attention = orthonormal(case.attention, a)
        values = torch.linalg.eigvalsh((attention + attention.mT) / 2)
        size = norm(orthonormal(case.onward, a))
        nearby = ((a.unsqueeze(-1) * case.onward).sum(-2) / a).amax(-1)
        inflow = (case.visits.unsqueeze(-1) * case.onward).sum(-2) / case.visits
        bound = (gamma * inflow.amax(-1)).sqrt() * case.ratio.sqrt()
        over, ratio = excess(size, (gamma * nearby).sqrt())
        deviation = worst(
            deviation,
            over,
            gap(attention, attention.mT),
            float(values[:, -1].max()) - 1,
            -float(values[:, 0].min()),
            excess((gamma * nearby).sqrt(), bound)[0],
            gap(ictd.density_ratio(case.visits, case.scores).log(), case.ratio.log()),
            gap(ictd.self_adjoint_weights(case.visits, case.scores), a),
        )
        tightness = max(tightness, ratio)
        sure = (size < 1) & (values[:, 0] > 1e-6)
        some += int(sure.sum())
        limit = 2 / (1 + size)
        exact = ictd.step_size_limit(case.drift)
        deviation = worst(deviation, excess(limit[sure], exact[sure])[0])
        step = uniform(generator, len(a), low=0.01)
        layer = orthonormal(eye - step[:, None, None] * case.drift, a)
        square = energy_norm(layer, attention) ** 2
        factor = 1 - step * (1 - size**2) * values[:, 0]
        deviation = worst(deviation, excess(square[sure], factor[sure])[0])
    problem = any_scores(generator, problem)
    report = ictd.stability(
        problem.process(),
        torch.eye(4).double(),
        score=problem.score(),
        step_size=step_sizes(generator, problem),
    )
    level = problem.discount * problem.ratio.sqrt()
    deviation = worst(deviation, norm_row(report, "density ratio", problem, level))
    return Outcome(2 * BATCH, deviation if some > 500 else math.inf, tightness)


@claim(
    "cor-kantorovich",
    page=PAGE,
    statement="η ≤ γ(√r + 1/√r)/2: a ratio below 2.545 at γ = .9 is enough for small steps.",
    functions=("numerical_range", "density_ratio", "stability"),
    tolerance=1e-9,
    attained=0.999999,
)
def kantorovich(generator: torch.Generator) -> Outcome:
    """The bound, attained by swaps of two states; the promised steps against the exact ones."""
    problem = on_policy(generator, kernels(generator, BATCH))
    swaps = attained(generator, torch.linspace(1, 6, 200, dtype=torch.float64))
    deviation, tightness, some = -math.inf, 0.0, 0
    for case in (problem, off_policy(generator, problem), swaps):
        gamma, a, r = case.discount, case.measure, case.ratio
        inflow = (case.visits.unsqueeze(-1) * case.onward).sum(-2) / case.visits
        level = (gamma * inflow.amax(-1)).sqrt()
        eta = abscissa(orthonormal(case.onward, a))
        over, ratio = excess(eta, level * (r.sqrt() + 1 / r.sqrt()) / 2)
        size = norm(orthonormal(case.onward, a))
        limit = 2 * (1 - eta) / (1 + size) ** 2
        sure = (eta < 1 - 1e-9) & (torch.linalg.eigvals(case.attention).real.amin(-1) > 1e-8)
        some += int(sure.sum())
        exact = ictd.step_size_limit(case.drift)
        deviation = worst(deviation, over, excess(limit[sure], exact[sure])[0])
        deviation = worst(deviation, gap(ictd.numerical_range(case.onward, a), eta))
        tightness = max(tightness, ratio)
    least = ((1 + math.sqrt(1 - 0.81)) / 0.9) ** 2
    root = math.sqrt(least)
    deviation = worst(deviation, abs(0.9 * (root + 1 / root) / 2 - 1))
    if round(least, 3) != 2.545 or some < 1000:
        deviation = math.inf
    problem = any_scores(generator, problem)
    report = ictd.stability(
        problem.process(),
        torch.eye(4).double(),
        score=problem.score(),
        step_size=step_sizes(generator, problem) / 3,
    )
    r, size = problem.ratio.sqrt(), norm(orthonormal(problem.onward, problem.measure))
    eta = problem.discount * (r + 1 / r) / 2
    found = range_row(report, "density ratio, small steps", problem, eta, size)
    deviation = worst(deviation, found)
    return Outcome(2 * BATCH, deviation, tightness)
