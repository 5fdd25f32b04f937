"""What a pretrained Transformer is compared with: algorithms, its own layers, the best weights."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from typing import Any

import pytest
import torch

import ictd
from ictd.pretraining import (
    Changes,
    PretrainConfig,
    PretrainResult,
    evaluate,
    layer_values,
    multiply_adds,
    optimum,
    pretrain,
    yardsticks,
)
from ictd.pretraining.evaluate import changed, evaluation_tasks
from ictd.pretraining.optimum import _msve, _update, _zero
from ictd.pretraining.tasks import Tasks
from ictd.pretraining.yardsticks import (
    SCALES,
    STEP_SIZES,
    _chosen,
    _linear_td,
    _lstd,
    _softmax_td,
    _softmax_td_limit,
)
from strategies import assert_same, refuses
from test_pretraining import FAMILIES, KINDS, constructed, tiny

FEW = Changes(seed=7, num_tasks=6)


def drawn(config: PretrainConfig, changes: Changes = FEW) -> Tasks:
    return evaluation_tasks(changed(config, changes))


def msve(tasks: Tasks, values: torch.Tensor) -> float:
    return float((tasks.visits * (values - tasks.mrp.value()).square()).sum(-1).mean())


def per_task(tasks: Tasks, method: Any) -> torch.Tensor:
    """A method of one task's trajectory and features, for each task alone, ``[1, task, m]``."""
    number = tasks.mrp.batch_shape[1]
    return torch.stack(
        [method(tasks.context[0, i], tasks.features[0, i]) for i in range(number)]
    ).unsqueeze(0)


# --- Algorithms


@pytest.mark.parametrize("family", FAMILIES)
def test_methods_are_those_of_the_package(family: Any) -> None:
    config = tiny(family=family, context_length=30, num_layers=3)
    tasks, m = drawn(config), config.num_states
    found = yardsticks(config, FEW)

    def linear_td(context: Any, table: Any) -> Any:
        prompt = context.prompt(table).with_queries(table)
        step = found["linear-td"]["step_size"]
        return ictd.linear_td(prompt, num_steps=3, step_size=step)[-m:]

    def softmax_td(context: Any, table: Any) -> Any:
        score = ictd.BilinearScore(found["softmax-td"]["scale"] * torch.eye(3).double())
        prompt = context.prompt(table).with_queries(table)
        step = found["softmax-td"]["step_size"]
        return ictd.softmax_td(prompt, score, num_steps=3, step_size=step)[-m:]

    def constant(context: Any, table: Any) -> Any:
        rewards = context.rewards[context.is_transition]
        return (rewards.mean() / (1 - config.discount)).expand(m)

    def lstd(context: Any, table: Any) -> Any:
        return table @ ictd.lstd(context.prompt(table))

    expected: dict[str, Any] = {
        "linear-td": linear_td,
        "softmax-td": softmax_td,
        "constant": constant,
    }
    if family != "random-walk":  # two states and three features: singular
        expected["lstd"] = lstd
    for name, method in expected.items():
        wanted = msve(tasks, per_task(tasks, method).masked_fill(tasks.mrp.terminal, 0.0))
        assert found[name]["msve"] == pytest.approx(wanted, rel=1e-9), name
    assert found["zero"]["msve"] == pytest.approx(msve(tasks, torch.zeros(1, 1, 1).double()))


def test_certainty_equivalence_where_the_context_is_closed() -> None:
    config = tiny(context_length=60)
    tasks, found = drawn(config), yardsticks(config, FEW)
    assert bool((tasks.record.counts > 0).all())
    wanted = msve(tasks, per_task(tasks, lambda c, _: ictd.certainty_equivalence(c, 4)))
    for name in ("certainty-equivalence", "certainty-equivalence-mean"):
        assert found[name]["msve"] == pytest.approx(wanted, rel=1e-9)


def test_states_that_were_never_left_are_worth_nothing_or_the_mean() -> None:
    config = tiny(context_length=2, num_states=6)
    tasks = drawn(config)
    zero, mean = torch.zeros_like(tasks.visits), torch.zeros_like(tasks.visits)
    for i in range(6):
        model = ictd.empirical_model(tasks.context[0, i], 6)
        values = torch.linalg.solve(torch.eye(6).double() - model.transition, model.reward)
        seen = model.counts > 0
        zero[0, i] = torch.where(seen, values, 0.0)
        mean[0, i] = torch.where(seen, values, (model.counts * values).sum() / 2)
    found = yardsticks(config, FEW)
    assert found["certainty-equivalence"]["msve"] == pytest.approx(msve(tasks, zero))
    assert found["certainty-equivalence-mean"]["msve"] == pytest.approx(msve(tasks, mean))
    assert msve(tasks, zero) != pytest.approx(msve(tasks, mean), rel=1e-3)


def test_lstd_takes_the_shortest_of_many_solutions() -> None:
    tasks = drawn(tiny(context_length=1))
    for i in range(6):
        prompt = tasks.context[0, i].prompt(tasks.features[0, i])
        with refuses(ValueError, "full rank 3"):
            ictd.lstd(prompt)
        first, second = prompt.features
        successor = first - prompt.discounts[0] * second
        shortest = successor * prompt.rewards[0] / successor.square().sum()
        assert_same(_lstd(tasks)[0, i], tasks.features[0, i] @ shortest)


def test_limits_are_those_of_many_steps() -> None:
    tasks = drawn(tiny(context_length=40))
    assert_same(_linear_td(tasks, 4000, 1.0), _lstd(tasks), tolerance=1e-6)
    limit = _softmax_td_limit(tasks, scale=5.0)
    assert_same(limit, _softmax_td(tasks, 4000, 0.5, scale=5.0), tolerance=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_limit_of_softmax_td_is_the_fixed_point_on_tokens(family: Any) -> None:
    tasks = drawn(tiny(family=family, num_states=5, context_length=6))  # not closed
    score = ictd.BilinearScore(7.0 * torch.eye(3).double())

    def limit(context: Any, table: Any) -> Any:
        return ictd.fixed_point(context.prompt(table).with_queries(table), score)[-5:]

    expected = per_task(tasks, limit).masked_fill(tasks.mrp.terminal, 0.0)
    assert_same(_softmax_td_limit(tasks, scale=7.0), expected, tolerance=1e-8)


def test_a_limit_that_is_not_unique_is_not_chosen() -> None:
    tasks = drawn(tiny(context_length=60, num_states=6))
    assert bool(_softmax_td_limit(tasks, scale=1e-9).isnan().all())
    scales = [{"scale": scale} for scale in (1e-9, 5.0)]
    assert _chosen(_softmax_td_limit, scales, tasks, tasks)["scale"] == 5.0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_best_linear_function_solves_the_normal_equations(family: Any) -> None:
    config = tiny(family=family)
    tasks, found = drawn(config), yardsticks(config, FEW)
    weighed = tasks.visits.unsqueeze(-1) * tasks.features
    matrix = weighed.mT @ tasks.features + 1e-13 * torch.eye(3)  # a walk has two states that count
    weights = torch.linalg.solve(matrix, weighed.mT @ tasks.mrp.value().unsqueeze(-1))
    wanted = msve(tasks, (tasks.features @ weights).squeeze(-1))
    assert found["best-linear"]["msve"] == pytest.approx(wanted, rel=1e-6, abs=1e-12)
    mean = (tasks.visits * tasks.mrp.value()).sum(-1, keepdim=True)
    constant = msve(tasks, mean.expand_as(tasks.visits))
    assert found["best-constant"]["msve"] == pytest.approx(constant)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_no_context_tells_bounds_the_others(family: Any) -> None:
    found = yardsticks(tiny(family=family), FEW)
    for name in ("zero", "linear-td", "lstd"):
        assert found["best-linear"]["msve"] <= found[name]["msve"]
    for name in ("zero", "constant"):
        assert found["best-constant"]["msve"] <= found[name]["msve"]
    one_hot = yardsticks(tiny(family=family, features="one-hot", feature_dim=4), FEW)
    assert one_hot["best-linear"]["msve"] < 1e-20


def test_no_linear_attention_beats_the_best_linear_function() -> None:
    """At any weights and any depth its answers are linear in the features of the query."""
    for parametrization in ("structured", "full"):
        for num_layers in (1, 20):
            config = tiny(
                attention="linear",
                parametrization=parametrization,
                num_layers=num_layers,
                num_seeds=20,
            )
            result = pretrain(dataclasses.replace(config, num_steps=0))
            found = [error for error in evaluate(result, FEW)["msve"] if error is not None]
            assert len(found) > 5
            assert min(found) > yardsticks(config, FEW)["best-linear"]["msve"]


def test_settings_are_chosen_on_other_tasks() -> None:
    config = tiny(num_layers=5, context_length=20)

    def best(tasks: Tasks) -> tuple[float, float]:
        def error(pair: tuple[float, float]) -> float:
            score = ictd.BilinearScore(pair[0] * torch.eye(3).double())
            asked = tasks.context.prompt(tasks.features).with_queries(tasks.features)
            values = ictd.softmax_td(asked, score, num_steps=5, step_size=pair[1])
            return msve(tasks, values[..., -4:])

        return min(itertools.product(SCALES, STEP_SIZES), key=error)

    own, next_seed = (dataclasses.replace(FEW, seed=seed) for seed in (5, 6))
    found = yardsticks(config, own)["softmax-td"]
    other = best(drawn(config, next_seed))
    assert (found["scale"], found["step_size"]) == other
    assert other != best(drawn(config, own))


def test_what_diverges_is_not_chosen() -> None:
    tasks = drawn(tiny(context_length=20))
    steps = [{"step_size": step} for step in (50.0, 0.5, 40.0)]
    assert not bool(_linear_td(tasks, 2000, 50.0).isfinite().all())
    found = _chosen(_linear_td, steps, tasks, tasks, num_steps=2000)
    assert found["step_size"] == 0.5
    assert math.isfinite(found["msve"])


def test_the_standard_error_is_that_of_the_mean() -> None:
    tasks = drawn(tiny())
    each = (tasks.visits * tasks.mrp.value().square()).sum(-1).flatten()
    found = yardsticks(tiny(), FEW)["zero"]
    assert found["standard_error"] == pytest.approx(float(each.std() / math.sqrt(6)))
    assert found["median"] == pytest.approx(float(each.median()))


# --- Compute


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 3 * (1 + 2 + 2) + 6),
        ({"parametrization": "full", "num_heads": 1}, 3 * (2 * 16 + 2 * 2 * 4)),
        ({"parametrization": "full"}, 3 * (3 * 16 + 2 * 2 * 4)),
        ({"attention": "linear"}, 2 + 1 + 9),
        ({"attention": "linear", "parametrization": "full"}, 2 * 9 + 2 * 27 + 3 * 9),
    ],
    ids=str,
)
def test_multiplications_counted_by_hand(options: dict[str, Any], count: int) -> None:
    config = tiny(context_length=2, feature_dim=1, num_layers=1, **options)
    assert multiply_adds(config, 1) == count
    assert multiply_adds(dataclasses.replace(config, num_layers=5), 1) == 5 * count


def test_no_negative_number_of_queries() -> None:
    with refuses(ValueError, "num_queries: expected an integer >= 0, got -1"):
        multiply_adds(tiny(), -1)


# --- Layers


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
@pytest.mark.parametrize("family", ["boyan", "random-walk"])
def test_values_of_every_layer(kind: dict[str, Any], family: Any) -> None:
    config = tiny(family=family, num_seeds=2, initial_scale=0.5, num_steps=0, **kind)
    result = pretrain(config)
    found, tasks = layer_values(result, FEW), drawn(config)
    assert found.learned.shape == (3, 2, 6, 4)
    for replica, model in enumerate(result.models):
        prompt = tasks.context[0].prompt(tasks.features[0]).with_queries(tasks.features[0])
        values = model(prompt, return_history=True)[..., -4:]
        assert_same(found.learned[:, replica], values.masked_fill(tasks.mrp.terminal[0], 0.0))
    summary, metrics = found.summary(), evaluate(result, FEW)
    for replica in range(2):
        assert summary["msve"][replica][-1] == pytest.approx(metrics["msve"][replica])
        if config.attention == "softmax":
            last = summary["distance"][replica][-1]
            assert last == pytest.approx(metrics["td_distance"][replica])
    if config.attention == "linear":
        assert (found.as_read, found.softmax_td, summary["distance"]) == (None, None, None)
    elif config.parametrization == "structured":
        assert found.as_read is not None
        assert_same(found.as_read, found.learned)


@pytest.mark.parametrize("looped", [True, False])
@pytest.mark.parametrize(
    ("parametrization", "heads"), [("structured", 1), ("full", 1), ("full", 2)]
)
def test_layers_of_the_construction_take_steps_of_softmax_td(
    parametrization: Any, heads: int, looped: bool
) -> None:
    config = tiny(parametrization=parametrization, num_heads=heads, looped=looped)
    found = layer_values(PretrainResult(config, 0, [], (constructed(config, 3.0, 0.7),)), FEW)
    tasks = drawn(config)
    score = ictd.BilinearScore(3.0 * torch.eye(3).double())
    prompt = tasks.context.prompt(tasks.features).with_queries(tasks.features)
    steps = ictd.softmax_td(prompt, score, num_steps=2, step_size=0.7, return_history=True)
    for values in (found.learned, found.as_read, found.softmax_td):
        assert values is not None
        assert_same(values, steps[..., -4:])
    assert max(found.summary()["distance"][0]) < 1e-12


def test_w_is_read_off_one_full_head() -> None:
    """Whatever w is, the full layer with these entries is the structured layer."""
    config = tiny(parametrization="full", num_heads=1)
    model = constructed(config, 2.0, 1.0)
    matrix, weights = torch.randn(3, 3).double(), torch.tensor([0.7, 1.2, -0.9]).double()
    with torch.no_grad():
        layer: Any = model.layers[0]
        layer.query_key[:3, :3] = matrix
        layer.value_current[-1, 3:] = weights
    result = PretrainResult(config, 0, [], (model,))
    found = layer_values(result, FEW)
    assert evaluate(result, FEW)["value_weights"] == [pytest.approx(weights.tolist())]
    summary = found.summary()
    assert max(summary["distance_as_read"][0]) < 1e-12
    assert summary["distance"][0][-1] > 0.01
    assert evaluate(result, FEW)["step_size"] == [pytest.approx(2.8 / 3)]


def test_layers_at_another_depth() -> None:
    result = pretrain(tiny(num_steps=0))
    assert len(layer_values(result, dataclasses.replace(FEW, num_layers=5)).learned) == 6


# --- The best weights


@dataclasses.dataclass
class Sought:
    """What was found for a hand-made model, and what it takes to ask again."""

    config: PretrainConfig
    result: PretrainResult
    found: dict[str, Any]
    sample: Tasks

    def point(self, name: str, entry: int = 0) -> torch.Tensor:
        own = self.found["sought"][entry]
        numbers = [own["scale"], *own[name]["value_weights"]]
        return torch.tensor(numbers, dtype=torch.float64)

    def error(self, point: torch.Tensor) -> float:
        return float(_msve(point.detach(), self.config, self.sample))


@pytest.fixture(scope="module")
def sought() -> Sought:
    config = tiny(num_layers=4, context_length=30, discount=0.7)
    result = PretrainResult(config, 0, [], (constructed(config, 6.0, 0.8),))
    with pytest.MonkeyPatch.context() as patch:
        module = sys.modules["ictd.pretraining.optimum"]
        patch.setattr(module, "SAMPLE", 128)
        patch.setattr(module, "SCALES", (20.0, 3.0))
        found = optimum(result, FEW)
    sample = drawn(config, dataclasses.replace(FEW, seed=8, num_tasks=128))
    return Sought(config, result, found, sample)


@pytest.mark.parametrize("entry", [0, 1])
def test_at_the_optimum_the_error_has_no_slope(sought: Sought, entry: int) -> None:
    best = sought.point("msve", entry).requires_grad_()
    _msve(best, sought.config, sought.sample).backward()
    assert best.grad is not None
    assert float(best.grad[1:].norm()) < 1e-4
    ray = sought.point("softmax-td", entry)
    assert ray[1:].tolist() == [ray[1], ray[1], -ray[1]]
    for change in (0.98, 1.02):
        moved = torch.cat([ray[:1], change * ray[1:]])
        assert sought.error(moved) > sought.error(ray) > sought.error(best)


@pytest.mark.parametrize("entry", [0, 1])
def test_the_semi_gradient_leaves_its_zero_alone(sought: Sought, entry: int) -> None:
    point = sought.point("semi-gradient", entry)
    update = _update(point, sought.config, sought.sample).detach()
    assert float(update[1:].norm()) < 1e-10
    told = sought.found["sought"][entry]["semi-gradient"]
    assert told["update"] < 1e-10
    assert told["push"] == pytest.approx(float(update[0]))
    assert sought.found["sought"][entry]["msve"]["update"] > 1e-4


def test_without_a_change_of_sign_there_is_no_fixed_point(sought: Sought) -> None:
    pushes = [entry["semi-gradient"]["push"] for entry in sought.found["sought"]]
    assert min(pushes) > 0
    assert "fixed-point" not in sought.found


def test_newton_finds_a_zero() -> None:
    def update(point: torch.Tensor) -> torch.Tensor:
        return torch.stack([point[0] ** 2 - 4, point[0] * point[1] - 6])

    start = torch.tensor([30.0, 1.0], dtype=torch.float64)
    assert_same(_zero(update, start), torch.tensor([2.0, 3.0]).double())


def test_newton_leaves_alone_what_the_update_does_not_see() -> None:
    """One layer reads nothing but rewards: two of its three weights have no slope."""
    start = torch.tensor([1.0, 5.0, 7.0], dtype=torch.float64)
    found = _zero(lambda point: torch.stack([point[0] - 2, 0 * point[1], 0 * point[2]]), start)
    assert_same(found, torch.tensor([2.0, 5.0, 7.0]).double())


def test_the_scale_of_what_was_trained_comes_first(sought: Sought) -> None:
    trained = sought.found["trained"]
    assert [entry["scale"] for entry in sought.found["sought"]] == pytest.approx([6.0, 20.0, 3.0])
    assert trained["scale"] == pytest.approx(6.0)
    assert trained["value_weights"] == pytest.approx([0.8, 0.8, -0.8])
    assert trained["msve"] == pytest.approx(evaluate(sought.result, FEW)["msve"][0])


def test_the_update_is_the_expected_one(sought: Sought) -> None:
    config, sample = sought.config, sought.sample
    model, here = constructed(config, 6.0, 0.8), torch.tensor([6.0, 0.7, 1.1, -0.9]).double()
    with torch.no_grad():
        model.layers[0].value_weights.copy_(here[1:])
    mrp, table, context = sample.mrp[0], sample.features[0], sample.context[0]
    wide = ictd.expected_update(model, mrp, table, context).mean(0)
    trace = wide[:9].reshape(3, 3).trace().unsqueeze(0)
    assert_same(_update(here, config, sample).detach(), torch.cat([trace, wide[9:]]).detach())


@pytest.mark.parametrize(
    "kind", [{"attention": "linear"}, {"parametrization": "full"}, {"looped": False}], ids=str
)
def test_only_looped_structured_softmax_models_have_four_numbers(kind: dict[str, Any]) -> None:
    with refuses(ValueError, "result: expected looped structured models with softmax attention"):
        optimum(pretrain(tiny(num_steps=0, **kind)), FEW)
