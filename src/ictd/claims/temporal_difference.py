"""The results of chapter 1: values, temporal-difference learning, certainty equivalence."""

from __future__ import annotations

import torch

import ictd
from ictd.claims._contexts import along_records, longest_closed
from ictd.claims._draw import (
    count,
    episodes,
    excess,
    gap,
    geometric,
    normal,
    pick,
    stochastic,
    uniform,
    unit,
    walks,
    worst,
)
from ictd.claims._registry import Outcome, claim

PAGE = "01-temporal-difference"


@claim(
    "thm-bellman-contraction",
    page=PAGE,
    statement="The Bellman operator contracts by the discount; its fixed point is the value.",
    functions=("MarkovRewardProcess.bellman", "MarkovRewardProcess.value"),
    tolerance=1e-11,
    attained=0.999999,
)
def bellman_contraction(generator: torch.Generator) -> Outcome:
    """Tables that differ by a constant attain the bound."""
    transition, paid = stochastic(generator, 1000, 5), normal(generator, 1000, 5, 5)
    reward = (transition * paid).sum(-1)
    discount = uniform(generator, 1000, low=0.05, high=0.99)
    terminal = uniform(generator, 1000, 5) < torch.tensor([0.0, 0.0, 0.0, 0.3, 0.3])
    mrp = ictd.MarkovRewardProcess(transition, paid, discount, terminal=terminal)
    alive = ~terminal
    onward = discount[:, None, None] * transition * alive.unsqueeze(-1) * alive.unsqueeze(-2)
    value = (geometric(onward) @ (reward * alive).unsqueeze(-1)).squeeze(-1)
    deviation = gap(mrp.value(), value)
    tables = normal(generator, 1000, 5)  # what stands at terminal states is not read
    others = tables + torch.where(uniform(generator, 1000, 1) < 0.5, 1.0, value) * alive
    ratios = []
    for first, second in ((tables, others), (tables, value)):
        distance = ((first - second) * alive).abs().amax(-1)
        for power in range(1, 4):
            first, second = mrp.bellman(first), mrp.bellman(second)
            over, ratio = excess((first - second).abs().amax(-1), discount**power * distance)
            deviation = worst(deviation, over)
            ratios.append(ratio)
    return Outcome(1000, deviation, max(ratios))


@claim(
    "prop-absorbing",
    page=PAGE,
    statement="Without discount, m sweeps together contract if every state can end.",
    functions=("MarkovRewardProcess.bellman", "MarkovRewardProcess.value"),
    tolerance=1e-11,
    attained=0.999999,
)
def absorbing(generator: torch.Generator) -> Outcome:
    """Only one of five states can end; an error of the same size everywhere attains the bound."""
    transition, reward = stochastic(generator, 1000, 5) + 0.05, normal(generator, 1000, 5)
    transition[:, 1:4, 4] = 0.0
    transition[:, 0, 4] += 0.3
    transition = transition / transition.sum(-1, keepdim=True)
    terminal = (torch.arange(5) == 4).expand(1000, 5)
    mrp = ictd.MarkovRewardProcess(transition, reward, 1.0, terminal=terminal)
    onward = transition * ~terminal.unsqueeze(-1) * ~terminal.unsqueeze(-2)
    shrink = torch.linalg.matrix_power(onward, 5).sum(-1).amax(-1)
    value = (geometric(onward) @ (reward * ~terminal).unsqueeze(-1)).squeeze(-1)
    deviation = worst(gap(mrp.value(), value), 0.0 if bool((shrink < 1).all()) else torch.inf)
    tightness = 0.0
    for start in (value + normal(generator, 1000, 5), value + 1.0):
        table = start * ~terminal
        distance = (table - value).abs().amax(-1)
        for sweep in range(1, 13):
            table = mrp.bellman(table)
            bound = shrink ** (sweep // 5) * distance
            over, ratio = excess((table - value).abs().amax(-1), bound)
            deviation = worst(deviation, over)
            tightness = max(tightness, ratio if sweep % 5 == 0 else 0.0)
    return Outcome(1000, deviation, tightness)


@claim(
    "prop-semi-gradient",
    page=PAGE,
    statement="Tabular TD follows a gradient if and only if the chain is reversible.",
    functions=("MarkovRewardProcess.stationary_distribution", "online_td"),
    tolerance=1e-12,
)
def semi_gradient(generator: torch.Generator) -> Outcome:
    """The asymmetry of A is the net flow around three states, in closed form by its trees.

    The mean step is that of online TD, which also runs along records, against its steps.
    """
    weights = uniform(generator, 1500, 3, 3, low=0.01)
    weights[:500] = weights[:500] + weights[:500].mT  # reversible
    transition = weights / weights.sum(-1, keepdim=True)
    discount = uniform(generator, 1500, low=0.1, high=0.99)
    mrp = ictd.MarkovRewardProcess(transition, normal(generator, 1500, 3), discount)
    zero = torch.zeros(1500, 3, dtype=torch.float64)
    columns = [mrp.bellman(zero) - mrp.bellman(zero + e) + e for e in torch.eye(3).double()]
    matrix = mrp.stationary_distribution().unsqueeze(-1) * torch.stack(columns, -1)
    flow = mrp.stationary_distribution().unsqueeze(-1) * transition
    online = _expected_steps(flow, discount)
    (p01, p02), (p10, p12), (p20, p21) = (
        [transition[:, s, u] for u in range(3) if u != s] for s in range(3)
    )
    trees = p10 * p20 + p10 * p21 + p20 * p12 + p01 * p21 + p01 * p20 + p21 * p02
    trees = trees + p02 * p12 + p02 * p10 + p12 * p01
    around = (p01 * p12 * p20 - p10 * p02 * p21) / trees
    asymmetry = matrix[:, 1, 0] - matrix[:, 0, 1]
    reversible = (matrix - matrix.mT)[:500].abs().max()
    deviations = gap(asymmetry, discount * around), gap(online, matrix), float(reversible)
    return Outcome(1500, worst(*deviations, along_records(generator)))


def _expected_steps(flow: torch.Tensor, discount: torch.Tensor) -> torch.Tensor:
    """The matrix of the mean step of online TD over all transitions, one step at a time."""
    one_hot, batch = torch.eye(3, dtype=torch.float64), len(flow)
    pairs = one_hot[torch.cartesian_prod(torch.arange(3), torch.arange(3))]
    prompt = ictd.Prompt(
        pairs[:, None].expand(batch, 9, 3, 2, 3),
        torch.zeros(batch, 9, 3, 2, dtype=torch.float64),
        discount[:, None, None, None].expand(batch, 9, 3, 2),
        torch.tensor([True, False]).expand(batch, 9, 3, 2),
    )
    start = one_hot.expand(batch, 9, 3, 3)
    moved = ictd.online_td(prompt, step_size=1.0, initial_weights=start) - start
    return -torch.einsum("bp,bpid->bdi", flow.flatten(1), moved)


@claim(
    "thm-linear-td",
    page=PAGE,
    statement="On-policy, the expected step of linear TD contracts by 1 - α(1-γ)λ_min.",
    functions=("linear_td", "MarkovRewardProcess.stationary_distribution"),
    tolerance=1e-12,
    attained=0.999,
)
def linear_td(generator: torch.Generator) -> Outcome:
    """Chains that hardly move attain the bound."""
    stay = torch.where(uniform(generator, 1000, 1, 1) < 0.2, 0.9999, 0.0)
    transition = stay * torch.eye(5) + (1 - stay) * stochastic(generator, 1000, 5)
    discount = uniform(generator, 1000, low=0.1, high=0.99)
    mrp = ictd.MarkovRewardProcess(transition, normal(generator, 1000, 5), discount)
    features, mu = normal(generator, 1000, 5, 3), mrp.stationary_distribution()
    weighted = features.mT * mu.unsqueeze(-2)

    def update(values: torch.Tensor) -> torch.Tensor:
        return (weighted @ (mrp.bellman(values) - values).unsqueeze(-1)).squeeze(-1)

    here = update(torch.zeros_like(mu))
    matrix = torch.stack([here - update(features[..., i]) for i in range(3)], -1)
    eigenvalues = torch.linalg.eigvalsh(weighted @ features)
    step = uniform(generator, 1000, low=0.05, high=1.0) / eigenvalues[:, -1]
    step[:500] = 1 / eigenvalues[:500, -1]
    moved = torch.eye(3) - step[:, None, None] * matrix
    bound = 1 - step * (1 - discount) * eigenvalues[:, 0]
    return Outcome(1000, *excess(torch.linalg.matrix_norm(moved, 2), bound))


@claim(
    "thm-certainty-equivalence",
    page=PAGE,
    statement="Batch TD on a closed record ends at the values of the empirical process, at a rate.",
    functions=("certainty_equivalence", "empirical_model", "tabular_td"),
    tolerance=1e-11,
    attained=0.999999,
)
def certainty_equivalence(generator: torch.Generator) -> Outcome:
    """Rings with one discount and an error of the same size everywhere attain the rate."""
    record = walks(generator, 1200, 12, 5)
    ring = torch.cat([torch.arange(4).repeat(3), torch.zeros(1, dtype=torch.int64)])
    gamma = uniform(generator, 1200, 1, low=0.3, high=0.8).expand(1200, 13)
    rings = torch.arange(1200) < 200
    record = ictd.Trajectory(
        torch.where(rings[:, None], ring, record.states),
        record.rewards,
        torch.where(rings[:, None], gamma, record.discounts),
    )
    model = count(record, 6)  # state 5 is never visited
    target = model.value()
    packaged = ictd.certainty_equivalence(record, 6)
    matches = bool((packaged.isnan() == ~model.visited).all())
    deviation = gap(packaged.nan_to_num(), target) if matches else torch.inf
    start = torch.where(rings[:, None], target + 1, normal(generator, 1200, 6))
    share = torch.where(model.visited, model.counts, torch.inf).amin(-1) / 12
    step = float(12 / model.counts.max())
    rate = 1 - step * (1 - record.discounts.amax(-1)) * share
    history = ictd.tabular_td(
        record, 6, num_steps=20, step_size=step, initial_values=start, return_history=True
    )
    errors = (history - pick(target, record.states)).abs().amax(-1)
    over, ratio = excess(errors, rate ** torch.arange(21).unsqueeze(-1) * errors[0])
    again, _ = excess(errors[1:], rate * errors[:-1])
    unseen = ictd.Trajectory(
        torch.cat([record.states, torch.full((1200, 1), 5)], -1),
        torch.cat([record.rewards, record.rewards[:, :1]], -1),
        torch.cat([record.discounts, record.discounts[:, :1]], -1),
        torch.arange(14).expand(1200, 14) < 12,
    )
    kept = ictd.tabular_td(unseen, 6, num_steps=9, step_size=step, initial_values=start)
    same = torch.cat([history[9], start[:, 5:]], -1)
    ratio = float((errors[1:, rings] / (rate[rings] * errors[:-1, rings])).max())
    return Outcome(1200, worst(deviation, over, again, gap(kept, same)), ratio)


@claim(
    "prop-lstd",
    page=PAGE,
    statement="LSTD with as many independent features as sources is certainty equivalence.",
    functions=("lstd", "certainty_equivalence"),
    tolerance=1e-9,
)
def lstd(generator: torch.Generator) -> Outcome:
    """Random orthogonal features, stretched, and one-hot ones; walks that end."""
    record = walks(generator, 1000, 14, 4, all_states=True)
    turn = torch.linalg.qr(normal(generator, 1000, 4, 4)).Q
    features = turn * uniform(generator, 1000, 1, 4, low=0.2, high=3.0)
    features[:300] = torch.eye(4, dtype=torch.float64)
    weights = ictd.lstd(record.prompt(features))
    values = (features @ weights.unsqueeze(-1)).squeeze(-1)
    target = count(record, 4).value()
    exact = ictd.certainty_equivalence(record, 4)
    deviation = worst(gap(values, target), gap(exact, target))

    states = record.states.index_fill(-1, torch.tensor(14), 4)  # the walk ends, in state 4
    discounts = 0.1 + 0.8 * record.discounts
    ended = (torch.arange(15) == 14).expand(1000, 15)
    record = ictd.Trajectory(states, record.rewards, discounts, ~ended, ended)
    model = count(record, 5)
    inner = model.transition.index_fill(-1, torch.tensor(4), 0.0)
    target = (geometric(inner) @ model.reward.unsqueeze(-1)).squeeze(-1)
    features = torch.cat([features, normal(generator, 1000, 1, 4)], 1)
    values = (features @ ictd.lstd(record.prompt(features)).unsqueeze(-1)).squeeze(-1)
    kept = torch.where(model.visited[:, :4].all(-1, keepdim=True), values[:, :4], target[:, :4])
    return Outcome(
        1000,
        worst(
            deviation,
            gap(kept, target[:, :4]),
            gap(ictd.certainty_equivalence(record, 5), target),
        ),
    )


@claim(
    "cor-batch-linear",
    page=PAGE,
    statement="On a balanced record batch linear TD converges to the LSTD solution, at a rate.",
    functions=("linear_td", "lstd"),
    tolerance=1e-10,
    attained=0.999999,
)
def batch_linear(generator: torch.Generator) -> Outcome:
    """Closed walks; those that stay in one state, where one feature is read, attain the rate."""
    record = walks(generator, 1200, 12, 5, shared=True)
    lazy = (torch.arange(1200) < 200).unsqueeze(-1)
    gamma = torch.where(lazy, record.discounts.amax(-1, keepdim=True), record.discounts)
    states = torch.where(lazy, 0, record.states)
    features = unit(normal(generator, 1200, 5, 2))
    prompt = ictd.Trajectory(states, record.rewards, gamma).prompt(features)
    phi, following = prompt.features[:, :-1], prompt.features[:, 1:]
    keep = ~lazy.squeeze(-1)
    later = gamma[:, :-1, None] * following
    matrix, target = phi.mT @ (phi - later), phi.mT @ prompt.rewards[:, :-1, None]
    solution = torch.linalg.lstsq(matrix, target, driver="gelsd").solution.squeeze(-1)
    start = solution + torch.where(lazy, features[:, 0], normal(generator, 1200, 2))
    spectrum = torch.linalg.eigvalsh(phi.mT @ phi / 12)
    rate = 1 - (1 - gamma.amax(-1)) * torch.where(keep, spectrum[:, 0], 1.0)
    history = ictd.linear_td(
        prompt, num_steps=20, step_size=1.0, initial_weights=start, return_history=True
    )
    limit = (prompt.features @ solution.unsqueeze(-1)).squeeze(-1)
    power = rate ** torch.arange(21).unsqueeze(-1)
    bound = power * (start - solution).norm(dim=-1)
    over, ratio = excess((history - limit)[1:].abs().amax(-1), bound[1:])
    regular = keep & (spectrum[:, 0] > 1e-3)
    deviation = gap(ictd.lstd(prompt[regular]), solution[regular])
    return Outcome(1200, worst(over, deviation), ratio)


@claim(
    "prop-open-context",
    page=PAGE,
    statement="Without closure batch TD keeps its guess where nothing leaves, and learns from it.",
    functions=("tabular_td", "Trajectory.trim"),
    tolerance=1e-9,
)
def open_context(generator: torch.Generator) -> Outcome:
    """Closed walks with one more step, to a state that is never left; how much trimming keeps."""
    closed = walks(generator, 1000, 11, 4, low=0.2, high=0.5)
    states = torch.cat([closed.states, torch.full((1000, 1), 4)], -1)
    more = uniform(generator, 1000, 2, low=0.2, high=0.5)
    discounts = torch.cat([closed.discounts[:, :-1], more], -1)
    record = ictd.Trajectory(states, normal(generator, 1000, 13), discounts)
    start = normal(generator, 1000, 5)
    model = count(record, 5)
    inner, onward = model.transition[:, :4, :4], model.transition[:, :4, 4]
    reward = model.reward[:, :4] + onward * start[:, 4:]
    known = (geometric(inner) @ reward.unsqueeze(-1)).squeeze(-1)
    limit = pick(torch.cat([known, start[:, 4:]], -1), states)
    values = ictd.tabular_td(record, 5, num_steps=600, step_size=1.0, initial_values=start)
    trimmed = record.trim()
    same = torch.equal(trimmed.is_transition, torch.arange(12).expand(1000, 12) < 11)
    broken = episodes(generator, 300, 14, 5)
    kept = broken.trim().is_transition.sum(-1)
    same = same and torch.equal(kept, torch.tensor([longest_closed(item) for item in broken]))
    return Outcome(1000, gap(values, limit) if same else torch.inf)


@claim(
    "prop-consistency",
    page=PAGE,
    statement="The error of certainty equivalence is the resolvent of the data's mean TD errors.",
    functions=("certainty_equivalence", "td_errors", "empirical_model"),
    tolerance=1e-10,
    attained=0.999999,
)
def consistency(generator: torch.Generator) -> Outcome:
    """Trajectories with noisy rewards; where the noise is one number for all, the bound is met."""
    mrp = ictd.boyan_chain(
        5, discount=0.8, generator=generator, batch_shape=(1000,), dtype=torch.float64
    )
    record = mrp.sample(40, generator=generator).trim()
    truth = mrp.value()
    at, noise = pick(truth, record.states), normal(generator, *record.states.shape)
    same = (torch.arange(1000) < 200).unsqueeze(-1)
    paid = torch.where(same, at - record.discounts * at.roll(-1, -1) + 1, record.rewards + noise)
    record = ictd.Trajectory(record.states, paid, record.discounts, record.is_transition)
    model = count(record, 5)
    prompt = record.prompt(torch.eye(5, dtype=torch.float64))
    errors = ictd.td_errors(prompt, at)
    xi = torch.zeros_like(truth).scatter_add(-1, record.states, errors)
    xi = xi / model.counts.clamp(min=1)
    off = torch.where(model.visited, ictd.certainty_equivalence(record, 5) - truth, 0.0)
    deviation = gap(off, (geometric(model.transition) @ xi.unsqueeze(-1)).squeeze(-1))
    over, ratio = excess(off.abs().amax(-1), xi.abs().amax(-1) / (1 - 0.8))
    return Outcome(1000, worst(deviation, over), ratio)
