"""Closure: the largest prefix of transitions whose bootstrapped successors are sources."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from torch._subclasses.fake_tensor import FakeTensorMode

from ictd import _closure as closure
from reference import mrp as reference
from strategies import Contexts, contexts, quick


def same_states(states: torch.Tensor) -> torch.Tensor:
    return states.unsqueeze(-1) == states.unsqueeze(-2)


def prefix_of(states: list[int], is_transition: list[bool], discounts: list[float]) -> int:
    prefix = closure.closure_prefix(
        same_states(torch.tensor(states)), torch.tensor(is_transition), torch.tensor(discounts)
    )
    return int(prefix)


def test_prefix_by_hand() -> None:
    ends = [True, True, True, False]
    assert prefix_of([0, 1, 0, 2], ends, [0.9] * 4) == 2  # 2 is no source
    assert prefix_of([0, 1, 2, 0], ends, [0.9] * 4) == 4  # back at a source
    assert prefix_of([0, 1, 2, 3], ends, [0.9] * 4) == 0  # never back
    assert prefix_of([0, 1, 2, 3], ends, [0.9, 0.9, 0.0, 0.9]) == 4  # nothing bootstraps from 3
    assert prefix_of([0, 0, 1, 0], [True, False, True, False], [0.9] * 4) == 4
    assert prefix_of([0, 1, 1, 0], [True, False, True, False], [0.9] * 4) == 4  # 1: a later source
    assert prefix_of([0, 1, 1, 2], [True, False, True, False], [0.9] * 4) == 0
    assert prefix_of([0], [False], [0.0]) == 1


def test_what_masked_tokens_hold_is_not_read() -> None:
    junk = [0.9, float("nan"), 0.9, float("inf")]
    assert prefix_of([0, 1, 1, 0], [True, False, True, False], junk) == 4
    assert prefix_of([0, 0, 5, 5], [True, False, False, False], junk) == 4


@quick
@given(context=contexts())
def test_prefix_agrees_with_the_reference(context: Contexts) -> None:
    states = torch.as_tensor(context.states)
    prefix = closure.closure_prefix(
        same_states(states),
        torch.as_tensor(context.is_transition),
        torch.as_tensor(context.discounts),
    )
    assert prefix.shape == context.batch_shape
    for index in context.indices():
        expected = reference.closed_prefix(
            list(context.states[index]),
            list(context.is_transition[index]),
            list(context.discounts[index]),
        )
        assert prefix[index] == expected


@quick
@given(context=contexts())
def test_trim_keeps_the_tokens_that_any_batch_item_needs(context: Contexts) -> None:
    tensors = {
        "features": torch.as_tensor(context.features),
        "rewards": torch.as_tensor(context.rewards),
        "discounts": torch.as_tensor(context.discounts),
        "is_transition": torch.as_tensor(context.is_transition),
        "is_terminal": torch.as_tensor(context.is_terminal),
    }
    same = same_states(torch.as_tensor(context.states))
    result = closure.trim(tensors, same)
    stay: set[int] = set()
    prefixes = {}
    for index in context.indices():
        flags = list(context.is_transition[index])
        prefixes[index] = reference.closed_prefix(
            list(context.states[index]), flags, list(context.discounts[index])
        )
        stay |= set(reference.kept_tokens(flags, prefixes[index]))
    tokens = sorted(stay)
    assert torch.equal(result["features"], tensors["features"][..., tokens, :])
    assert torch.equal(result["is_terminal"], tensors["is_terminal"][..., tokens])
    for index, prefix in prefixes.items():
        before = context.is_transition[index][tokens]
        kept = before & (np.array(tokens) < prefix)
        assert result["is_transition"][index].tolist() == kept.tolist()
        for name in ("rewards", "discounts"):
            expected = np.where(before & ~kept, 0.0, getattr(context, name)[index][tokens])
            assert result[name][index].tolist() == expected.tolist()


def test_trim_keeps_queries_and_padding_and_one_token() -> None:
    tensors = {
        "rewards": torch.tensor([1.0, 2.0, 3.0, torch.nan, 5.0]),
        "discounts": torch.full((5,), 0.9),
        "is_transition": torch.tensor([True, True, False, False, False]),
    }
    result = closure.trim(tensors, same_states(torch.tensor([0, 1, 2, 9, 9])))
    assert result["is_transition"].tolist() == [False, False, False]
    assert result["rewards"][0] == 0.0
    assert result["rewards"][1].isnan()  # what was masked before stays as it is
    assert result["rewards"][2] == 5.0
    assert result["discounts"].tolist() == [0.0, pytest.approx(0.9), pytest.approx(0.9)]


def test_items_of_a_batch_are_cut_where_each_must() -> None:
    states = torch.tensor([[0, 1, 0, 2], [0, 1, 2, 0]])
    tensors = {
        "states": states,
        "rewards": torch.ones(2, 4),
        "discounts": torch.full((2, 4), 0.5),
        "is_transition": torch.tensor([[True, True, True, False]] * 2),
    }
    result = closure.trim(tensors, same_states(states))
    assert result["states"].tolist() == states.tolist()
    assert result["is_transition"].tolist() == [[True, True, False, False], [True] * 3 + [False]]
    assert result["rewards"].tolist() == [[1, 1, 0, 1], [1, 1, 1, 1]]
    assert result["discounts"].tolist() == [[0.5, 0.5, 0.0, 0.5], [0.5] * 4]


def test_no_tensor_is_made_on_another_device() -> None:
    with FakeTensorMode():
        same = torch.ones(2, 3, 3, dtype=torch.bool, device="cuda")
        flags = torch.ones(2, 3, dtype=torch.bool, device="cuda")
        prefix = closure.closure_prefix(same, flags, torch.ones(2, 3, device="cuda"))
        assert prefix.device.type == "cuda"
