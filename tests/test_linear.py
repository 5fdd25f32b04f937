"""The linear-attention baseline: against its authors' numbers, loops, and linear TD itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ictd
from reference.linear import linear_values
from strategies import (
    BATCH_SHAPES,
    Contexts,
    assert_same,
    contexts,
    gradients,
    quick,
    random_contexts,
    refuses,
    tensor,
)

PEER = json.loads((Path(__file__).parent / "data" / "b_verification.json").read_text())
PEER_ALGORITHMS = {
    "td0": "td",
    "td_lambda_0.5": "td",
    "residual_gradient": "residual-gradient",
    "avg_reward_td": "average-reward",
}
ALGORITHMS = ("td", "residual-gradient", "average-reward")
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
every_form = pytest.mark.parametrize("parametrization", ["structured", "full"])


@every_form
@pytest.mark.parametrize("case", PEER["cases"], ids=lambda c: f"{c['algorithm']}-{c['seed']}")
def test_reproduces_the_numbers_of_its_authors(case: dict[str, Any], parametrization: str) -> None:
    Z = tensor(PEER["prompts"][case["prompt"]])
    matrices = tensor(PEER["preconditioners"][case["preconditioner"]]).expand(10, -1, -1)
    model = ictd.LinearInContextTD.from_construction(
        matrices,
        10,
        case["step_size"],
        algorithm=PEER_ALGORITHMS[case["algorithm"]],
        trace_decay=case["trace_decay"],
        parametrization=parametrization,
    )
    is_transition = torch.ones(Z.shape[-1] - 1, dtype=torch.bool)
    values = model.on_matrix(Z, is_transition, return_history=True)[1:, -1].detach()
    expected = tensor(case["values"])
    assert float(((values - expected) / expected).abs().max()) < 1e-10


@quick
@given(
    drawn=contexts(terminal=False),
    algorithm=st.sampled_from(ALGORITHMS),
    trace_decay=st.sampled_from([0.0, 0.5, 1.0]),
    parametrization=st.sampled_from(["structured", "full"]),
)
def test_equals_loops_over_transitions(
    drawn: Contexts, algorithm: Any, trace_decay: float, parametrization: Any
) -> None:
    prompt = drawn.prompt()
    d = prompt.feature_dim
    matrices = np.random.default_rng(0).normal(size=(2, d, d)) / 3
    model = ictd.LinearInContextTD.from_construction(
        tensor(matrices),
        2,
        0.5,
        algorithm=algorithm,
        trace_decay=trace_decay,
        parametrization=parametrization,
    )
    values = model(prompt, return_history=True)
    for index in np.ndindex(*prompt.batch_shape):
        one = prompt[index]
        places = one.is_transition.nonzero().squeeze(-1).tolist()
        features = one.features.numpy()
        following = [one.discounts[k].item() * features[k + 1] for k in places]
        expected = linear_values(
            features[places],
            np.reshape(following, (len(places), d)),
            one.rewards.numpy()[places],
            one.is_transition.logical_not().cumsum(-1)[places].tolist(),
            features,
            matrices,
            0.5,
            algorithm=algorithm,
            trace_decay=trace_decay,
        )
        assert_same(values[(slice(None), *index)], tensor(expected))


@every_form
@pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)
def test_the_construction_is_linear_td(parametrization: Any, batch_shape: tuple[int, ...]) -> None:
    prompt = random_contexts(1, batch_shape=batch_shape).prompt()
    model = ictd.LinearInContextTD.from_construction(
        torch.eye(3, dtype=torch.float64), 5, 0.7, parametrization=parametrization
    )
    expected = ictd.linear_td(prompt, num_steps=5, step_size=0.7, return_history=True)
    assert_same(model(prompt, return_history=True), expected)
    assert_same(model(prompt), expected[-1])


def random_model(algorithm: Any, parametrization: Any, **options: Any) -> ictd.LinearInContextTD:
    return ictd.LinearInContextTD(
        3,
        3,
        algorithm=algorithm,
        parametrization=parametrization,
        trace_decay=0.5,
        generator=torch.Generator().manual_seed(0),
        dtype=torch.float64,
        **options,
    )


@every_form
@every_algorithm
def test_queries_and_padding_change_nothing(algorithm: str, parametrization: str) -> None:
    prompt = random_contexts(2, num_tokens=8).prompt()
    model = random_model(algorithm, parametrization, looped=False)
    values = model(prompt)
    assert_same(model(prompt.with_queries(torch.ones(4, 3).double()))[: len(prompt)], values)
    Z = torch.randn(7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    keys = torch.tensor([True, True, False, True])
    spoilt = Z.clone()
    spoilt[:, 2] = torch.nan
    assert_same(model.on_matrix(spoilt, keys)[4:], model.on_matrix(Z, keys)[4:])


@every_form
@every_algorithm
def test_gradients_are_right(algorithm: str, parametrization: str) -> None:
    prompt = random_contexts(3, num_tokens=5).prompt()
    model = random_model(algorithm, parametrization)
    names = [name for name, _ in model.named_parameters()]

    def run(*parameters: torch.Tensor) -> torch.Tensor:
        given_ = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(model, given_, (prompt,))

    assert torch.autograd.gradcheck(run, tuple(model.parameters()))


def test_no_transition_gives_zero_and_finite_gradients() -> None:
    # C10
    prompt = ictd.Prompt(
        torch.ones(2, 3, 3).double(),
        torch.full((2, 3), torch.nan).double(),
        torch.full((2, 3), torch.nan).double(),
        torch.tensor([[True, True, False], [False, False, False]]).logical_and(
            torch.tensor([[False], [False]])
        ),
    )
    for algorithm in ALGORITHMS:
        model = random_model(algorithm, "structured")
        values = model(prompt)
        assert_same(values, torch.zeros(2, 3).double())
        assert all(g.isfinite().all() for g in gradients(values, list(model.parameters())))


@every_form
def test_batch_is_vmap_is_a_loop(parametrization: str) -> None:
    prompt = random_contexts(4, batch_shape=(3,)).prompt()
    model = random_model("td", parametrization)
    values = model(prompt)
    assert_same(torch.stack([model(prompt[i]) for i in range(3)]), values)
    assert_same(torch.vmap(model)(prompt), values)


@every_form
def test_parameters_broadcast_over_replicas(parametrization: str) -> None:
    prompt = random_contexts(5, batch_shape=(2, 4)).prompt()
    models = [random_model("td", parametrization) for _ in range(2)]
    with torch.no_grad():
        for parameter in models[1].parameters():
            parameter.mul_(2)
    stacked, _ = torch.func.stack_module_state(models)
    wide = {name: value.unsqueeze(1) for name, value in stacked.items()}
    values = torch.func.functional_call(models[0], wide, (prompt,))
    assert_same(values, torch.stack([models[i](prompt[i]) for i in range(2)]))


def test_terminal_tokens_are_worth_nothing() -> None:
    prompt = ictd.Prompt(
        torch.ones(3, 1),
        torch.tensor([1.0, 10.0, 0.0]),
        torch.tensor([0.5, 0.0, 0.0]),
        torch.tensor([True, True, False]),
        torch.tensor([False, False, True]),
    )
    values = ictd.LinearInContextTD.from_construction(torch.ones(1, 1), 1, 1.0)(prompt)
    torch.testing.assert_close(values.detach(), torch.tensor([5.5, 5.5, 0.0]))


def test_bad_arguments_are_refused() -> None:
    Linear = ictd.LinearInContextTD
    with refuses(ValueError, "algorithm: expected one of .*, got 'sarsa'"):
        Linear(3, 2, algorithm="sarsa")
    with refuses(ValueError, r"trace_decay: expected a number in \[0, 1\], got 2"):
        Linear(3, 2, trace_decay=2)
    with refuses(ValueError, "parametrization: expected 'structured' or 'full', got 'half'"):
        Linear(3, 2, parametrization="half")
    with refuses(ValueError, "num_layers: expected an integer >= 1, got 0"):
        Linear(3, 0)
    with refuses(ValueError, r"preconditioner: expected shape .*L, d, d.* = \(4, 3, 3\), got"):
        Linear.from_construction(torch.ones(2, 3, 3), 4, 1.0)
    with refuses(ValueError, "Z: expected shape"):
        Linear(3, 2).on_matrix(torch.ones(4, 5), torch.ones(4, dtype=torch.bool))
    with refuses(TypeError, "Z: expected dtype|parameter .*: expected dtype"):
        Linear(3, 2)(random_contexts(0).prompt())
    with refuses(ValueError, r"Z: expected shape \[\*B, 2d \+ 1, columns\]"):
        Linear(2, 2).double()(random_contexts(0).prompt())
