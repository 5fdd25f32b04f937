"""Chapter 8: its propositions, and what the saved experiments must show."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import ictd
from ictd.pretraining import effective_weights, experiment_names, load_experiment, load_pretrained
from strategies import assert_same, refuses, tensor

SIGNS = tensor([1, 1, -1])
FULL: dict[str, Any] = {"parametrization": "full", "num_heads": 2}
SHIPPED = experiment_names()


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(name not in SHIPPED, reason=f"{name} is not there")


# --- The first steps


def weight(model: ictd.InContextTD, name: str) -> Tensor:
    return model.layers[0].get_parameter(name)


def swap(rewards: list[float]) -> ictd.MarkovRewardProcess:
    return ictd.MarkovRewardProcess(tensor([[0, 1], [1, 0]]), tensor(rewards), 0.5)


def update(mrp: ictd.MarkovRewardProcess, theta: list[float], layers: int = 2) -> list[float]:
    """At the weights (A, w) of one feature, which is 1 in state 0 and -1 in state 1."""
    model = ictd.InContextTD.from_construction(tensor([theta[:1]]), layers, 1.0)
    with torch.no_grad():
        weight(model, "value_weights").copy_(tensor(theta[1:]))
        found: list[float] = ictd.expected_update(model, mrp, tensor([[1.0], [-1.0]])).tolist()
    return found


@pytest.mark.claim("prop-first-steps")
def test_first_steps_by_hand() -> None:
    h = 0.2
    assert update(swap([1, 0]), [0, 0, 0, 0]) == [0, 0.5, 0, 0]
    expected = [h / 2, (1 - h) / 2, (1 - h) * h / 8, (1 - h) * h / 4]
    assert update(swap([1, 0]), [0, h, 0, 0]) == pytest.approx(expected, abs=1e-15)


@pytest.mark.claim("prop-first-steps")
def test_without_a_mean_reward_the_mirror_image_is_as_good() -> None:
    theta = [0.01, 0.02, -0.015, 0.005]
    mirrored = [-x for x in theta]
    both = [tensor(update(swap([1, -1]), weights)) for weights in (theta, mirrored)]
    assert (both[0] + both[1]).abs().max() < 1e-3 < both[0].abs().max()
    up, right, *_ = update(swap([1, -1]), [0, 0.02, 0, 0])
    assert up == pytest.approx(0.04, abs=1e-9)  # L k w_R, k = 1
    assert right == 0
    assert update(swap([1, -1]), [0.02, 0, 0, 0])[1] == pytest.approx(0.04, abs=1e-4)
    assert update(swap([1, -1]), [-0.02, 0, 0, 0])[1] == pytest.approx(-0.04, abs=1e-4)
    assert update(swap([1, 0]), [-0.02, 0, 0, 0])[1] > 0.4  # the mean reward decides


@pytest.mark.claim("prop-bootstrap")
def test_bootstrapping_by_hand() -> None:
    """Two states that swap, rewards 1 and 0: the next reward is orthogonal to the own one."""
    one_hot, L, gamma = torch.eye(2, dtype=torch.float64), 3, 0.5
    model = ictd.InContextTD.from_construction(1e4 * one_hot, L, 1.0)
    with torch.no_grad():
        weight(model, "value_weights").copy_(tensor([1 / L, 0, 0]))  # c = 1
        found = ictd.expected_update(model, swap([1, 0]), one_hot)
        assert_same(found[-3:], tensor([0, (L - 1) / 2 * gamma**2 / 2, 0]))
        assert not found[:-3].any()
        level = ictd.expected_update(model, swap([1, 1]), one_hot)
        assert level[-3] > 0  # c = 2 there
        weight(model, "value_weights").copy_(tensor([2 / L, 0, 0]))
        exact = ictd.expected_update(model, swap([1, 1]), one_hot)
    assert exact.abs().max() < 1e-15


# --- Coordinates


@torch.no_grad()
def in_coordinates(model: ictd.InContextTD, S: Tensor) -> ictd.InContextTD:
    model, inverse = copy.deepcopy(model), torch.linalg.inv(S)
    for layer in model.layers:
        for name, parameter in layer.named_parameters():
            left = inverse.mT if name == "query_key" else S
            parameter.copy_(left @ parameter @ inverse)
    return model


def random_net(generator: torch.Generator, **options: Any) -> ictd.InContextTD:
    return ictd.InContextTD(3, 4, generator=generator, dtype=torch.float64, **options)


def prompt(generator: torch.Generator) -> ictd.Prompt:
    mrp = ictd.random_walk(4, discount=0.9, dtype=torch.float64)
    features = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    return mrp.sample(30, generator=generator).prompt(features).with_queries(features)


@pytest.mark.claim("prop-gauge")
@pytest.mark.parametrize("looped", [True, False])
@torch.no_grad()
def test_coordinates_of_the_memory_are_free(looped: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    context, S = prompt(generator), torch.eye(6, dtype=torch.float64)
    S[:5, 4:] = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    net = random_net(generator, looped=looped, **FULL)
    other = in_coordinates(net, S)
    assert_same(other(context, return_history=True), net(context, return_history=True))
    changed = weight(other, "value_current") - weight(net, "value_current")
    assert changed.abs().max() > 0.05
    torch.testing.assert_close(effective_weights(other), effective_weights(net))
    S = torch.eye(6, dtype=torch.float64)
    S[:4, 5] = torch.randn(4, generator=generator, dtype=torch.float64)
    net = random_net(generator, looped=looped, parametrization="full")
    assert_same(in_coordinates(net, S)(context), net(context))


@pytest.mark.claim("prop-gauge")
@pytest.mark.parametrize(
    ("row", "column", "heads"),
    [(5, 4, 2), (3, 0, 2), (5, 3, 2), (4, 5, 1), (3, 4, 1)],
    ids=["output", "feature", "reward", "one head, target", "one head, reads target"],
)
@torch.no_grad()
def test_other_coordinates_are_not(row: int, column: int, heads: int) -> None:
    generator = torch.Generator().manual_seed(1)
    context, S = prompt(generator), torch.eye(6, dtype=torch.float64)
    S[row, column] = 0.5
    net = random_net(generator, parametrization="full", num_heads=heads)
    assert (in_coordinates(net, S)(context) - net(context)).abs().max() > 1e-3


@pytest.mark.claim("prop-gauge")
@torch.no_grad()
def test_td_errors_in_the_reward_row() -> None:
    generator = torch.Generator().manual_seed(2)
    context = prompt(generator)
    A = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    net = ictd.InContextTD.from_construction(A, 1, 0.7, **FULL)
    S = torch.eye(6, dtype=torch.float64)
    S[3, 4], S[3, 5] = 1.0, -1.0
    other = in_coordinates(net, S)
    one = torch.eye(6, dtype=torch.float64)
    assert_same(weight(other, "value_current"), 0.7 * torch.outer(one[5] - one[3], one[3]))
    assert_same(weight(other, "value_target"), 0.7 * torch.outer(one[3] + one[4], one[3]))
    Z = context.matrix()
    for _ in range(3):
        Z = other.layers[0](Z, context.discounts, context.is_transition, context.is_terminal)
        errors = ictd.td_errors(context, Z[-1])
        keys = context.is_transition
        assert_same(Z[3, keys], errors[keys])


def test_effective_weights() -> None:
    A, looped = torch.eye(3, dtype=torch.float64), {"looped": False}
    for options in ({}, {"parametrization": "full"}, FULL, FULL | looped):
        model = ictd.InContextTD.from_construction(A, 4, 0.6, **options)
        found = effective_weights(model)
        assert_same(
            found.detach(), (0.6 * SIGNS).expand(4 if looped.items() <= options.items() else 1, 3)
        )
        assert found.requires_grad
    one_head = ictd.InContextTD.from_construction(A, 4, 0.6, parametrization="full")
    with torch.no_grad():
        one_head.layers[0].value_current[4] = 1.0  # the shift overwrites this row
    assert_same(effective_weights(one_head).detach(), (0.6 * SIGNS).expand(1, 3))
    with refuses(TypeError, "model: expected an ictd.InContextTD, got Linear"):
        effective_weights(torch.nn.Linear(1, 1))  # type: ignore[arg-type]


# --- What the experiments must show


def test_every_structured_seed_has_the_signs_and_gains_diagonality() -> None:
    found = load_experiment("boyan-structured")
    weights, kdm = found.history["value_weights"], found.history["kernel_diagonality"]
    assert weights.shape[1] >= 20
    assert (weights[-1].sign() == SIGNS).all()
    assert (kdm[-1] > 5 * kdm[0]).all()
    assert (weights[1, :, 2] > weights[0, :, 2]).all()  # w_v first goes the wrong way
    assert (weights[-1].abs() > 1).all()
    assert (found.history["stable"][-1] == 1).all()
    assert (found.conditions["diagonality"] == 0).all()


@needs("boyan-full-one-head")
def test_full_layers_with_one_head_have_the_signs() -> None:
    found = load_experiment("boyan-full-one-head")
    weights, kdm = found.history["value_weights"], found.history["kernel_diagonality"]
    assert weights.shape[1] >= 10
    assert (weights[-1].sign() == SIGNS).all(-1).double().mean() >= 0.9
    assert (kdm[-1] > 3 * kdm[0]).all()


@needs("boyan-full")
def test_full_layers_with_two_heads_have_the_signs_in_their_own_coordinates() -> None:
    found = load_experiment("boyan-full")
    models = load_pretrained("boyan-full").models
    effective = torch.cat([effective_weights(model) for model in models]).double()  # type: ignore[arg-type]
    assert len(effective) >= 10
    assert (effective.sign() == SIGNS).all(-1).double().mean() >= 0.9
    read = found.history["value_weights"][-1]
    assert 0.1 < (read[:, 1] > 0).double().mean() < 0.9  # the sign of the target memory is free
    kdm = found.history["kernel_diagonality"]
    assert (kdm[-1] > 3 * kdm[0]).all()
