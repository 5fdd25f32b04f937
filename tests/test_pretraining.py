"""Pretraining, part by part: settings, tasks, replicas, loss, metrics."""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import Any, cast

import pytest
import torch
from torch.utils import _pytree as pytree

import ictd
from fake_cuda import fake_cuda
from ictd import pretraining
from ictd.pretraining import (
    PretrainConfig,
    evaluate,
    layer_values,
    multiply_adds,
    optimum,
    pretrain,
    yardsticks,
)
from ictd.pretraining.loss import query_loss
from ictd.pretraining.metrics import measure
from ictd.pretraining.models import make_model, stack_parameters, state_values, unstack_parameters
from ictd.pretraining.tasks import Queries, Tasks, assemble, draw_numbers, draw_tasks
from strategies import assert_same, refuses
from test_repository import left_out, methods

TINY: dict[str, Any] = {
    "num_tasks": 4,
    "num_queries": 3,
    "context_length": 7,
    "num_layers": 2,
    "num_states": 4,
    "feature_dim": 3,
    "num_evaluation_tasks": 4,
    "dtype": "float64",
}
FAMILIES = ("boyan", "loop", "garnet", "random-walk")
KINDS: dict[str, dict[str, Any]] = {
    "softmax, structured": {},
    "softmax, structured, untied": {"looped": False},
    "softmax, structured, two heads": {"num_heads": 2},
    "softmax, full": {"parametrization": "full"},
    "softmax, full, one head": {"parametrization": "full", "num_heads": 1},
    "softmax, full, untied": {"parametrization": "full", "looped": False},
    "linear, structured": {"attention": "linear"},
    "linear, structured, untied": {"attention": "linear", "looped": False},
    "linear, full, untied": {"attention": "linear", "parametrization": "full", "looped": False},
}
every_family = pytest.mark.parametrize("family", FAMILIES)
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))


def tiny(**options: Any) -> PretrainConfig:
    return PretrainConfig(**(TINY | options))


def leaves(tasks: Tasks) -> list[torch.Tensor]:
    fields = [getattr(tasks, field.name) for field in dataclasses.fields(tasks)]
    return [leaf for leaf in pytree.tree_leaves(fields) if isinstance(leaf, torch.Tensor)]


# --- Public names


@pytest.mark.parametrize("name", sorted(pretraining.__all__))
def test_every_public_name_is_documented(name: str) -> None:
    thing = getattr(pretraining, name)
    if isinstance(thing, type) and issubclass(thing, Exception):
        assert inspect.getdoc(thing)
        return
    own = methods(thing) if inspect.isclass(thing) else {}
    parts = {name: thing, **own}
    assert [fault for part in parts.items() for fault in left_out(*part)] == []


# --- Settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_steps": -1}, "num_steps: expected an integer >= 0, got -1"),
        ({"num_queries": 0}, "num_queries: expected an integer >= 1, got 0"),
        ({"num_states": 1}, "num_states: expected an integer >= 2, got 1"),
        ({"discount": 1}, r"discount: expected a number in \[0, 1\), got 1"),
        ({"discount": math.nan}, r"discount: expected a number in \[0, 1\), got nan"),
        ({"learning_rate": 0}, "learning_rate: expected a finite number > 0, got 0"),
        ({"weight_decay": -1.0}, "weight_decay: expected a finite number >= 0, got -1"),
        ({"max_gradient_norm": math.inf}, "max_gradient_norm: expected a finite number >= 0"),
        ({"family": "maze"}, r"family: expected one of \['boyan', .*\], got 'maze'"),
        ({"optimizer": "lion"}, "optimizer: expected one of .*, got 'lion'"),
        ({"dtype": "float16"}, "dtype: expected one of .*, got 'float16'"),
        ({"features": "one-hot"}, "feature_dim: expected num_states = 4 with one-hot .*, got 3"),
        ({"family": "random-walk", "num_states": 2}, "num_states: expected an integer >= 3 for a"),
        (
            {"family": "garnet", "branching_factor": 5},
            r"branching_factor: expected an integer in 1\.\.4, got 5",
        ),
        ({"rollout_length": 0}, "rollout_length: expected an integer >= 1 or None, got 0"),
        ({"momentum": 0.9}, "momentum: expected 0 with adam, got 0.9"),
        ({"num_heads": 0}, r"num_heads: expected None or one of \[1, 2\] with softmax .*, got 0"),
        ({"num_heads": 3}, r"num_heads: expected None or one of \[1, 2\] with softmax .*, got 3"),
        (
            {"num_heads": 2, "attention": "linear"},
            r"num_heads: expected None or one of \[1\] with linear attention, got 2",
        ),
        ({"device": "abacus"}, "device: expected a torch device, got 'abacus'"),
        ({"device": "mps"}, "device: expected a CPU or a CUDA device, got 'mps'"),
        ({"device": "meta"}, "device: expected a CPU or a CUDA device, got 'meta'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with refuses(ValueError, message):
        tiny(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_steps": 1.5}, "num_steps: expected int, got float"),
        ({"num_steps": True}, "num_steps: expected int, got bool"),
        ({"looped": 1}, "looped: expected bool, got int"),
        ({"learning_rate": "3e-3"}, "learning_rate: expected float, got str"),
        ({"rollout_length": 2.0}, "rollout_length: expected int, got float"),
        ({"num_heads": 1.0}, "num_heads: expected int, got float"),
    ],
)
def test_settings_of_another_type_are_refused(options: dict[str, Any], message: str) -> None:
    with refuses(TypeError, message):
        tiny(**options)


def test_a_number_that_no_float_holds_is_refused() -> None:
    with refuses(ValueError, "learning_rate: expected a finite number, got one that no float .*"):
        tiny(learning_rate=10**400)


def test_records_of_another_kind_are_refused() -> None:
    config, changes = tiny(), cast(Any, {"num_tasks": 2})
    result = pretrain(tiny(num_steps=0))
    for call in (pretrain, yardsticks, multiply_adds):
        with refuses(TypeError, "config: expected a PretrainConfig, got type: .*"):
            cast(Any, call)(PretrainConfig)
    for call in (evaluate, layer_values, optimum):
        with refuses(TypeError, "result: expected a PretrainResult, got PretrainConfig: .*"):
            cast(Any, call)(config)
        with refuses(TypeError, "changes: expected a Changes, got dict: .*"):
            cast(Any, call)(result, changes)
    with refuses(TypeError, "changes: expected a Changes, got dict: .*"):
        yardsticks(config, changes)
    with refuses(TypeError, "num_queries: expected an integer, got float"):
        multiply_adds(config, cast(Any, 1.5))


def test_settings_survive_json() -> None:
    config = tiny(learning_rate=1e-2, rollout_length=5, family="loop")
    assert PretrainConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ValueError, match=r"config: expected the fields .*, got \['momentun'\]"):
        PretrainConfig.from_dict(config.to_dict() | {"momentun": 0.9})


@pytest.mark.parametrize(
    ("attention", "parametrization", "given", "heads"),
    [
        ("softmax", "structured", None, 1),
        ("softmax", "structured", 2, 2),
        ("softmax", "full", None, 2),
        ("softmax", "full", 1, 1),
        ("softmax", "full", 2, 2),
        ("linear", "structured", None, 1),
        ("linear", "full", None, 1),
        ("linear", "full", 1, 1),
    ],
)
def test_how_many_heads_a_layer_has(
    attention: Any, parametrization: Any, given: int | None, heads: int
) -> None:
    config = tiny(attention=attention, parametrization=parametrization, num_heads=given)
    assert config.heads == heads
    layer: Any = make_model(config, 0).layers[0]
    if attention == "softmax":
        expected = ictd.DualHeadLayer if heads == 2 else ictd.SingleHeadLayer
        assert type(layer) is expected
        assert hasattr(layer, "value_target") == (parametrization == "full" and heads == 2)


def test_rollouts_end_where_little_is_left() -> None:
    assert tiny(discount=0.5).horizon == 10  # 2⁻¹⁰ < 10⁻³ < 2⁻⁹
    assert tiny(discount=0.0).horizon == 1
    assert tiny(rollout_length=3).horizon == 3


def test_the_learning_rate_rises_and_falls() -> None:
    def rates(schedule: Any, warmup: int) -> list[float]:
        config = tiny(num_steps=6, schedule=schedule, warmup_steps=warmup)
        return [round(config.learning_rate_factor(step), 4) for step in range(6)]

    assert rates("constant", 0) == [1] * 6
    assert rates("constant", 2) == [0.5, 1, 1, 1, 1, 1]
    assert rates("linear", 2) == [0.5, 1, 1, 0.75, 0.5, 0.25]
    assert rates("cosine", 0) == [1, 0.933, 0.75, 0.5, 0.25, 0.067]


def test_what_may_change_on_resuming() -> None:
    tiny(num_steps=9, log_every=2, checkpoint_every=3, device="cuda").check_resumes(tiny())
    with pytest.raises(ValueError, match="num_layers: expected 2, as in the checkpoint, got 3"):
        tiny(num_layers=3).check_resumes(tiny())
    with pytest.raises(ValueError, match="num_steps: expected 10000, as in the checkpoint"):
        tiny(num_steps=9, schedule="cosine").check_resumes(tiny(schedule="cosine"))


# --- Tasks


@every_family
@pytest.mark.parametrize("target", ["semi-gradient", "monte-carlo"])
def test_tasks_depend_on_seed_and_step_alone(family: Any, target: Any) -> None:
    config = tiny(family=family, target=target)
    before = torch.random.get_rng_state()
    both = draw_tasks(config, [3, 4], 5)
    assert torch.equal(torch.random.get_rng_state(), before)
    alone = draw_tasks(config, [4], 5)
    half = draw_tasks(config, [3, 4], 5, part=slice(2, 4))
    for pair, one, part in zip(leaves(both), leaves(alone), leaves(half), strict=True):
        assert torch.equal(pair[1:], one)
        assert torch.equal(pair[:, 2:], part)
    for other in (
        draw_tasks(config, [3, 4], 6),
        draw_tasks(config, [3, 4], 5, stream="evaluation"),
        draw_tasks(config, [5, 6], 5),
    ):
        assert not torch.equal(other.features, both.features)
        assert not torch.equal(other.queries.states, both.queries.states)
    assert not torch.equal(both.features[0], both.features[1])


@every_family
def test_contexts_and_queries_are_transitions_of_their_process(family: Any) -> None:
    tasks = draw_tasks(tiny(family=family, num_states=5), [0, 1], 0)
    mrp, context, queries = tasks.mrp, tasks.context, tasks.queries
    m = mrp.num_states
    pairs = context.states[..., :-1] * m + context.states[..., 1:]
    possible = mrp.transition.flatten(-2).gather(-1, pairs) > 0
    assert bool(possible[context.is_transition[..., :-1]].all())
    assert bool(
        (mrp.transition.flatten(-2).gather(-1, queries.states * m + queries.successors) > 0).all()
    )
    ended = mrp.terminal.gather(-1, queries.successors)
    assert torch.equal(queries.discounts == 0, ended)
    assert bool(ended.any()) is (family == "random-walk")
    assert not bool(mrp.terminal.gather(-1, queries.states).any())
    if family != "random-walk":
        assert torch.equal(queries.rewards, mrp.reward.gather(-1, queries.states))
    expected = mrp.stationary_distribution().masked_fill(mrp.terminal, 0.0)
    assert_same(tasks.visits, expected / expected.sum(-1, keepdim=True))
    for counted, wanted in zip(tasks.record, ictd.empirical_model(context, m), strict=True):
        assert_same(counted, wanted)


@every_family
def test_queries_are_stationary_and_returns_are_values(family: Any) -> None:
    config = tiny(family=family, num_queries=20_000, num_tasks=2, target="monte-carlo")
    tasks = draw_tasks(config, [0], 0)
    states, m = tasks.queries.states, config.num_states
    share = torch.nn.functional.one_hot(states, m).double().mean(-2)
    assert_same(share, tasks.visits, tolerance=0.02)
    assert tasks.queries.returns is not None
    counts = share.clamp(min=1e-9) * config.num_queries
    sums = torch.zeros_like(share).scatter_add(-1, states, tasks.queries.returns)
    seen = share > 0.02
    assert_same((sums / counts)[seen], tasks.mrp.value()[seen], tolerance=0.1)


@pytest.mark.parametrize("features", ["unit-sphere", "one-hot", "uniform"])
def test_features_are_of_their_kind(features: Any) -> None:
    tasks = draw_tasks(tiny(features=features, feature_dim=4, num_tasks=200), [0], 0)
    table = tasks.features
    if features == "unit-sphere":
        assert_same(table.norm(dim=-1), torch.ones(1, 200, 4).double())
    elif features == "one-hot":
        assert torch.equal(table, torch.eye(4).double().expand(1, 200, 4, 4))
    else:
        assert float(table.abs().max()) <= 1
        assert_same(table.square().mean(), torch.tensor(1 / 3).double(), tolerance=0.03)


# --- Replicas


@every_kind
@every_family
def test_replicas_answer_as_their_models_do(kind: dict[str, Any], family: Any) -> None:
    config = tiny(family=family, initial_scale=0.5, **kind)
    models = [make_model(config, seed) for seed in (0, 1)]
    parameters = stack_parameters(models)
    tasks = draw_tasks(config, [0, 1], 0)
    values = state_values(models[0], parameters, tasks)
    values.square().sum().backward()
    for replica, model in enumerate(models):
        prompt = tasks.context[replica].prompt(tasks.features[replica])
        asked = model(prompt.with_queries(tasks.features[replica]))[..., len(prompt) :]
        asked = asked.masked_fill(tasks.mrp.terminal[replica], 0.0)
        assert_same(values[replica], asked)
        asked.square().sum().backward()
        for name, parameter in model.named_parameters():
            wide = parameters[name].grad
            assert wide is not None
            assert_same(wide[replica], torch.as_tensor(parameter.grad), tolerance=1e-10)


@every_kind
def test_stacking_is_undone(kind: dict[str, Any]) -> None:
    config = tiny(**kind)
    models = [make_model(config, seed) for seed in (0, 1, 2)]
    again = unstack_parameters(config, stack_parameters(models))
    for one, other in zip(models, again, strict=True):
        for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(mine, theirs)
    larger = make_model(dataclasses.replace(config, initial_scale=0.2), 0)
    for mine, theirs in zip(models[0].parameters(), larger.parameters(), strict=True):
        assert_same(2 * mine, theirs)


# --- Loss


def query(returns: torch.Tensor | None) -> Queries:
    """From state 0 to state 1, unpaid, at discount 0.9."""
    place = torch.zeros(1, 1, 1, dtype=torch.int64)
    return Queries(place, place + 1, torch.zeros(1, 1, 1), torch.full((1, 1, 1), 0.9), returns)


def test_no_gradient_reaches_the_target() -> None:
    # C7
    weights = torch.ones(2, requires_grad=True)
    values = (torch.eye(2) @ weights).reshape(1, 1, 2)
    query_loss(values, query(None)).sum().backward()
    torch.testing.assert_close(weights.grad, torch.tensor([0.1, 0.0]))


def test_monte_carlo_targets_are_returns() -> None:
    values = torch.tensor([[[1.0, 5.0]]])
    loss = query_loss(values, query(torch.full((1, 1, 1), 3.0)))
    torch.testing.assert_close(loss, torch.tensor([[2.0]]))


# --- Metrics


def constructed(config: PretrainConfig, scale: float, step: float) -> Any:
    matrix = scale * torch.eye(config.feature_dim, dtype=torch.float64)
    return ictd.InContextTD.from_construction(
        matrix,
        config.num_layers,
        step,
        looped=config.looped,
        parametrization=config.parametrization,
        num_heads=config.heads,
    )


@pytest.mark.parametrize(
    ("parametrization", "heads"), [("structured", 1), ("full", 1), ("full", 2)]
)
@pytest.mark.parametrize("looped", [True, False])
def test_metrics_of_the_construction(parametrization: Any, heads: int, looped: bool) -> None:
    config = tiny(parametrization=parametrization, num_heads=heads, looped=looped)
    models = [constructed(config, 5.0, 0.9), constructed(config, 2.0, 0.5)]
    tasks = draw_tasks(config, [0, 1], 0)
    found = measure(config, models[0], stack_parameters(models), tasks)
    for replica, (scale, step) in enumerate(((5.0, 0.9), (2.0, 0.5))):
        weights = found["value_weights"][replica].reshape(-1, 3)
        signs = torch.tensor([1.0, 1.0, -1.0]).double()
        assert_same(weights, (step * signs).expand_as(weights))
        assert_same(
            found["step_size"][replica].flatten()[:1], torch.tensor([step], dtype=torch.float64)
        )
        assert float(found["attention_cosine"][replica]) == pytest.approx(1)
        assert float(found["td_distance"][replica]) < 1e-12
        mrp, features = tasks.mrp[replica], tasks.features[replica]
        score = ictd.BilinearScore(scale * torch.eye(3).double())
        attention = ictd.population_attention(mrp, features, score)
        diagonal = ictd.kernel_diagonality(attention)
        assert_same(found["kernel_diagonality"][replica], diagonal.mean())
        even = ictd.lumped_attention(torch.ones_like(diagonal), features, score)
        assert_same(
            found["kernel_diagonality_uniform"][replica], ictd.kernel_diagonality(even).mean()
        )
        matrix = ictd.iteration_matrix(attention, mrp.transition, config.discount, step)
        radius = ictd.spectral_radius(matrix)
        assert_same(found["spectral_radius"][replica], radius.mean(), tolerance=1e-8)
        assert_same(found["stable"][replica], (radius < 1).double().mean())
        prompt = tasks.context[replica].prompt(features).with_queries(features)
        values = models[replica](prompt)[..., -config.num_states :]
        errors = (tasks.visits[replica] * (values - mrp.value()).square()).sum(-1)
        assert_same(found["msve"][replica], errors.mean())
        neu = ictd.norm_of_expected_update(
            models[replica], mrp, features, tasks.context[replica], estimator="u"
        )
        assert_same(found["neu"][replica], neu)
        if looped:
            report = ictd.stability(mrp, features, score=score, step_size=step)
            assert_same(found["certified"][replica], report.certified.double().mean())
            share = found["conditions"]["diagonality"][replica]
            assert_same(share, report.holds[:, 0].double().mean())


def test_weights_that_diverged_spoil_their_own_replica_only() -> None:
    config = tiny()
    models = [constructed(config, 5.0, 0.9), constructed(config, 5.0, 0.9)]
    with torch.no_grad():
        next(models[0].parameters())[0, 0] = torch.nan
    found = measure(config, models[0], stack_parameters(models), draw_tasks(config, [0, 1], 0))
    for name, value in found.items():
        for metric in value.values() if isinstance(value, dict) else [value]:
            assert bool(metric[0].isnan().all()), name
            assert not bool(metric[1].isnan().any()), name


def test_terminal_states_do_not_count() -> None:
    config = tiny(family="random-walk", num_states=5)
    model = constructed(config, 20.0, 1.0)
    found = measure(config, model, stack_parameters([model]), draw_tasks(config, [0], 0))
    assert float(found["spectral_radius"]) < 1
    assert 0.3 < float(found["kernel_diagonality"]) <= 1
    assert "neu" not in found


@pytest.mark.parametrize("parametrization", ["structured", "full"])
def test_metrics_of_linear_attention(parametrization: Any) -> None:
    config = tiny(attention="linear", parametrization=parametrization)
    model = ictd.LinearInContextTD.from_construction(
        torch.eye(3).double(), 2, 0.5, parametrization=parametrization
    )
    found = measure(config, model, stack_parameters([model]), draw_tasks(config, [0], 0))
    assert float(found["attention_cosine"]) == pytest.approx(1)
    if parametrization == "structured":
        assert found["value_weights"].tolist() == [[0.5, -0.5]]
    else:
        assert found["value_weights"] is None


# --- Devices


@pytest.mark.parametrize(
    ("kind", "family"),
    [*((kind, "random-walk") for kind in list(KINDS.values())[::2]), ({}, "boyan"), ({}, "garnet")],
    ids=str,
)
def test_everything_stays_on_the_device_of_the_config(kind: dict[str, Any], family: Any) -> None:
    config = tiny(family=family, target="monte-carlo", device="cuda", **kind)
    numbers = draw_numbers(config, [0, 1], 0, "training", config.num_tasks, slice(None))
    kinds = [(number.shape, number.dtype) for number in numbers]
    template = make_model(config, 0).to("meta")
    with fake_cuda():
        there = [torch.empty(shape, dtype=dtype, device="cuda") for shape, dtype in kinds]
        tasks = assemble(config, there)
        assert {leaf.device.type for leaf in leaves(tasks)} == {"cuda"}
        parameters = {
            name: torch.empty(2, *value.shape, dtype=torch.float64, device="cuda")
            for name, value in template.named_parameters()
        }
        values = state_values(template, parameters, tasks)
        loss = query_loss(values, tasks.queries)
    assert (loss.device.type, loss.dtype, loss.shape) == ("cuda", torch.float64, (2, 4))


FLAGS = (
    "torch.backends.cuda.matmul.allow_tf32",
    "torch.backends.cudnn.allow_tf32",
    "torch.backends.cudnn.benchmark",
    "torch.get_float32_matmul_precision()",
    "torch.are_deterministic_algorithms_enabled()",
    "torch.get_default_dtype()",
)


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.cuda,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
            ],
        ),
    ],
)
@every_kind
def test_float32_there_is_float64_here(kind: dict[str, Any], device: str) -> None:
    """C14: values, loss and gradients to 1e-5, on the same trajectories; no flag is touched."""
    before = [eval(flag) for flag in FLAGS]
    found = []
    for dtype, place in (("float64", "cpu"), ("float32", device)):
        config = tiny(dtype=dtype, num_tasks=32, initial_scale=0.3, **kind)
        tasks = draw_tasks(config, [0, 1], 0, device=torch.device(place))
        models = [make_model(tiny(initial_scale=0.3, **kind), seed) for seed in (0, 1)]
        parameters = {
            name: value.detach().to(place, config.torch_dtype).requires_grad_()
            for name, value in stack_parameters(models).items()
        }
        values = state_values(models[0].to(place, config.torch_dtype), parameters, tasks)
        loss = query_loss(values, tasks.queries)
        loss.mean().backward()
        gradient = torch.cat([torch.as_tensor(p.grad).flatten() for p in parameters.values()])
        numbers = [part.detach().cpu().double() for part in (values, loss, gradient)]
        found.append((numbers, tasks.context.states.cpu(), tasks.queries.states.cpu()))
    assert torch.equal(found[0][1], found[1][1])
    assert torch.equal(found[0][2], found[1][2])
    for exact, single in zip(found[0][0], found[1][0], strict=True):
        assert float((single - exact).norm() / exact.norm()) < 1e-5
    assert [eval(flag) for flag in FLAGS] == before


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@every_kind
def test_a_gpu_sees_the_same_tasks_and_takes_the_same_steps(kind: dict[str, Any]) -> None:
    # C14: the random numbers come from the CPU
    config = tiny(num_steps=5, log_every=5, **kind)
    here, there = (
        draw_tasks(config, [0], 0),
        draw_tasks(config, [0], 0, device=torch.device("cuda")),
    )
    for mine, theirs in zip(leaves(here), leaves(there), strict=True):
        assert_same(theirs.cpu(), mine, tolerance=1e-12)
    slow = pretraining.pretrain(config)
    fast = pretraining.pretrain(dataclasses.replace(config, device="cuda"))
    for mine, theirs in zip(slow.model.parameters(), fast.model.parameters(), strict=True):
        assert theirs.device.type == "cuda"
        assert_same(theirs.cpu(), mine, tolerance=1e-8)
