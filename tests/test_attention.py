"""Masked softmax attention: against a loop, at the limits of the softmax, and its cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from torch.nn.functional import scaled_dot_product_attention

import ictd
from ictd.attention import attend, masked_softmax
from reference import transformer as reference
from strategies import (
    BATCH_SHAPES,
    Contexts,
    assert_same,
    contexts,
    quick,
    random_contexts,
    random_matrix,
    refuses,
    tensor,
)

MATRIX = random_matrix(2, 3)

# torch has no batching rule for fused attention on CPUs: it says so, and loops.
ignore_slow_vmap = pytest.mark.filterwarnings("ignore:There is a performance drop")


def expected_weights(drawn: Contexts, matrix: np.ndarray) -> torch.Tensor:
    """The transpose of the paper's H for every context."""
    Q = reference.structured_query_key(matrix)
    results = []
    for index in drawn.indices():
        c = drawn[index]
        Z = reference.prompt_matrix(c)
        results.append(reference.attention_matrix(Z, Q, c.is_transition, c.is_terminal).T)
    return tensor(np.stack(results)).reshape(*drawn.batch_shape, *results[0].shape)


@pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)
def test_weights_match_the_reference(batch_shape: tuple[int, ...]) -> None:
    drawn = random_contexts(0, batch_shape=batch_shape)
    score = ictd.BilinearScore(tensor(MATRIX))
    weights = ictd.attention_weights(drawn.with_junk().prompt(), score)
    assert_same(weights, expected_weights(drawn, MATRIX))


@quick
@given(drawn=contexts(feature_dim=3))
def test_rows_are_distributions_over_transitions(drawn: Contexts) -> None:
    weights = ictd.attention_weights(drawn.prompt(), ictd.BilinearScore(tensor(MATRIX)))
    assert_same(weights, expected_weights(drawn, MATRIX))
    is_key = torch.as_tensor(drawn.is_transition)
    attends = ~torch.as_tensor(drawn.is_terminal) & is_key.any(-1, keepdim=True)
    assert_same(weights.sum(-1), attends.double())
    assert weights.mT[~is_key].eq(0.0).all()
    assert (weights >= 0).all()


def test_a_row_of_zero_kernel_attends_to_nothing() -> None:
    prompt = ictd.Prompt(
        torch.eye(3, dtype=torch.float64),
        *tensor(np.zeros((2, 3))),
        torch.tensor([True, True, False]),
    )
    weights = ictd.attention_weights(prompt, ictd.LogKernelScore(ictd.IdentityKernel()))
    assert weights.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize("scale", [1e4, 1e30])
def test_masked_softmax_of_huge_scores(scale: float) -> None:
    # C9
    scores = (scale * tensor([[1.0, 0.9, -1.0], [1.0, 1.0, -1.0]])).requires_grad_()
    weights = masked_softmax(scores, torch.tensor([[True, True, True]]))
    assert weights.tolist() == [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]
    (gradient,) = torch.autograd.grad((weights * tensor([1.0, 2.0, 3.0])).sum(), scores)
    assert gradient.isfinite().all()


def test_masked_softmax_never_reads_what_it_masks() -> None:
    scores = tensor([[0.0, torch.nan, 1.0, torch.inf], [torch.nan] * 4]).requires_grad_()
    is_key = torch.tensor([[True, False, True, False], [False] * 4])
    weights = masked_softmax(scores, is_key)
    share = 1 / (1 + np.exp(1.0))
    assert_same(weights, tensor([[share, 0.0, 1 - share, 0.0], [0.0] * 4]))
    (gradient,) = torch.autograd.grad(weights[:, 0].sum(), scores)
    moved = share * (1 - share)
    assert_same(gradient, tensor([[moved, 0.0, -moved, 0.0], [0.0] * 4]))


def test_no_nan_appears_on_the_way_back() -> None:
    # C10: not even one that is masked afterwards.
    scores = tensor([[0.0, 1.0], [-torch.inf, 0.0]]).requires_grad_()
    is_key = torch.tensor([[False, False], [True, False]])
    with torch.autograd.set_detect_anomaly(True):
        weights = masked_softmax(scores, is_key)
        assert weights.eq(0.0).all()
        (gradient,) = torch.autograd.grad(weights.sum(), scores)
    assert gradient.eq(0.0).all()


def arguments(batch_shape: tuple[int, ...], seed: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    is_key = rng.random((*batch_shape, 6)) < 0.6
    is_key[..., 0] = True
    return {
        "query": tensor(rng.normal(size=(*batch_shape, 7, 3))),
        "key": tensor(rng.normal(size=(*batch_shape, 6, 3))),
        "value": tensor(rng.normal(size=(*batch_shape, 6, 2))),
        "is_key": torch.as_tensor(is_key),
    }


@pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)
def test_attend_is_softmax_attention(batch_shape: tuple[int, ...]) -> None:
    given_ = arguments(batch_shape)
    scores = given_["query"] @ given_["key"].mT
    scores = scores.masked_fill(~given_["is_key"].unsqueeze(-2), -torch.inf)
    assert_same(attend(**given_), scores.softmax(-1) @ given_["value"])


def test_attend_ignores_masked_keys_and_values() -> None:
    given_ = arguments((2,))
    given_["is_key"][1] = False
    clean = attend(**given_)
    leaves = {
        name: torch.where(given_["is_key"].unsqueeze(-1), given_[name], torch.nan)
        for name in ("key", "value")
    }
    leaves["query"] = given_["query"].clone()
    for leaf in leaves.values():
        leaf.requires_grad_()
    result = attend(**{**given_, **leaves})
    assert_same(result, clean)
    assert result[1].eq(0.0).all()
    for gradient in torch.autograd.grad(result.square().sum(), list(leaves.values())):
        assert gradient.isfinite().all()


def test_attend_gradcheck() -> None:
    given_ = arguments((3,))
    is_key = given_.pop("is_key")
    leaves = [x.requires_grad_() for x in given_.values()]
    assert torch.autograd.gradcheck(lambda q, k, v: attend(q, k, v, is_key), leaves)


@ignore_slow_vmap
def test_attend_under_vmap() -> None:
    given_ = arguments((3,))
    assert_same(torch.vmap(attend)(*given_.values()), attend(**given_))


def test_attend_equals_the_plain_call_of_torch() -> None:
    given_ = arguments((2,))
    plain = scaled_dot_product_attention(
        given_["query"],
        given_["key"],
        given_["value"],
        attn_mask=given_["is_key"].unsqueeze(-2).expand(2, 7, 6),
        scale=1.0,
    )
    assert_same(attend(**given_), plain)


def test_queries_are_never_keys() -> None:
    drawn = random_contexts(1, num_tokens=6, num_queries=30, closed=True)
    seen = []

    def score(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        seen.append((query.shape, key.shape))
        return query @ key.mT

    weights = ictd.attention_weights(drawn.prompt(), score)
    assert seen == [((37, 3), (5, 3))]
    assert weights.shape == (37, 37)
    ictd.softmax_td(drawn.prompt(), score, num_steps=3, step_size=1.0)
    ictd.kernel_td(drawn.prompt(), score, num_steps=3, step_size=1.0)
    assert seen == [((37, 3), (5, 3))] * 3


def test_refuses_a_score_of_another_shape() -> None:
    prompt = random_contexts(2).prompt()
    with refuses(ValueError, r"score.*expected.*Q, K.*got"):
        ictd.attention_weights(prompt, lambda query, key: query @ key.mT[..., :2])
