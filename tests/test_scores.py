"""Scores and kernels against loops over pairs, and the limits where softmax attention trips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import ictd
from reference import td as reference
from strategies import BATCH_SHAPES, assert_same, quick, random_matrix, refuses, tensor

MATRIX = random_matrix(1, 3)
PAIRS: dict[str, tuple[Callable[[], nn.Module], reference.Pairwise]] = {
    "BilinearScore": (lambda: ictd.BilinearScore(tensor(MATRIX)), reference.bilinear(MATRIX)),
    "GaussianScore": (lambda: ictd.GaussianScore(0.7), reference.gaussian_score(0.7)),
    "LogKernelScore": (
        lambda: ictd.LogKernelScore(ictd.GaussianKernel(0.7)),
        reference.gaussian_score(0.7),
    ),
    "LinearKernel": (ictd.LinearKernel, reference.linear_kernel),
    "GaussianKernel": (lambda: ictd.GaussianKernel(0.7), reference.gaussian_kernel(0.7)),
    "IdentityKernel": (ictd.IdentityKernel, reference.identity_kernel),
}
every_pair = pytest.mark.parametrize("name", list(PAIRS))


def draw(seed: int, batch_shape: tuple[int, ...], tokens: int) -> torch.Tensor:
    """Features of which some are equal to others."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(*batch_shape, tokens, 3))
    values[..., -1, :] = values[..., 0, :]
    return tensor(values)


@every_pair
@pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)
def test_every_pair_matches_the_reference(name: str, batch_shape: tuple[int, ...]) -> None:
    make, pairwise = PAIRS[name]
    query, key = draw(0, batch_shape, 5), draw(1, batch_shape, 4)
    key[..., 1, :] = query[..., 2, :]
    result = make()(query, key)
    assert result.shape == (*batch_shape, 5, 4)
    for index in np.ndindex(batch_shape):
        expected = [[pairwise(q, k) for k in key[index].numpy()] for q in query[index].numpy()]
        assert_same(result[index], tensor(expected))


@every_pair
def test_batch_equals_vmap(name: str) -> None:
    module = PAIRS[name][0]()
    query, key = draw(0, (4,), 5), draw(1, (4,), 3)
    assert_same(torch.vmap(module)(query, key), module(query, key))


@every_pair
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_dtype_follows_the_features(name: str, dtype: torch.dtype) -> None:
    module = PAIRS[name][0]().to(dtype)
    query, key = draw(0, (), 5).to(dtype), draw(1, (), 3).to(dtype)
    result = module(query, key)
    assert result.dtype == dtype
    torch.testing.assert_close(
        result.double(), PAIRS[name][0]()(query.double(), key.double()), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("name", [n for n in PAIRS if n not in ("BilinearScore",)])
def test_symmetry(name: str) -> None:
    module, x = PAIRS[name][0](), draw(2, (2,), 6)
    assert_same(module(x, x), module(x, x).mT)


@pytest.mark.parametrize("name", ["LinearKernel", "GaussianKernel", "IdentityKernel"])
def test_kernels_are_positive_semi_definite(name: str) -> None:
    x = draw(3, (), 6)
    eigenvalues = torch.linalg.eigvalsh(PAIRS[name][0]()(x, x))
    assert eigenvalues.min() > -1e-12
    assert eigenvalues.max() > 0.5


def test_the_bilinear_score_reads_the_key_from_the_left() -> None:
    # g(s, s') = phi(s')^T A phi(s): the entry of the only nonzero A_01 needs key e_0, query e_1.
    e = torch.eye(2, dtype=torch.float64)
    score = ictd.BilinearScore(tensor([[0.0, 3.0], [0.0, 0.0]]))
    assert score(e, e).tolist() == [[0.0, 0.0], [3.0, 0.0]]


def test_gradients_reach_what_a_score_is_given() -> None:
    x = draw(4, (), 4)
    matrix = tensor(MATRIX).requires_grad_()
    bandwidth = tensor(0.7).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: ictd.BilinearScore(a)(x, x), matrix)
    assert torch.autograd.gradcheck(lambda h: ictd.GaussianScore(h)(x, x), bandwidth)
    assert torch.autograd.gradcheck(lambda h: ictd.GaussianKernel(h)(x, x), bandwidth)
    assert torch.autograd.gradcheck(
        lambda h: ictd.LogKernelScore(ictd.GaussianKernel(h))(x, x), bandwidth
    )


@pytest.mark.parametrize("name", [n for n in PAIRS if n != "IdentityKernel"])
def test_gradcheck_in_the_features(name: str) -> None:
    module = PAIRS[name][0]()
    query, key = (draw(i, (2,), 3).requires_grad_() for i in (5, 6))
    assert torch.autograd.gradcheck(module, (query, key))


def test_parameters_are_registered_and_plain_tensors_are_not() -> None:
    plain = ictd.BilinearScore(torch.eye(2))
    learned = ictd.BilinearScore(nn.Parameter(torch.eye(2)))
    assert list(plain.parameters()) == []
    assert [n for n, _ in learned.named_parameters()] == ["matrix"]
    assert plain.to(torch.float64).matrix.dtype == torch.float64
    assert ictd.GaussianScore(tensor(2.0)).to(torch.float32).bandwidth.dtype == torch.float32
    assert [n for n, _ in ictd.GaussianScore(nn.Parameter(tensor(2.0))).named_parameters()] == [
        "bandwidth"
    ]


@quick
@given(shift=st.floats(-1e6, 1e6), h=st.floats(0.1, 10.0))
def test_the_gaussian_score_does_not_cancel_far_from_the_origin(shift: float, h: float) -> None:
    x = tensor([[0.0], [1.0], [1.5]])
    moved = x + shift
    score = ictd.GaussianScore(h)(moved, moved)
    assert score.diagonal().eq(0.0).all()
    exact = -((moved - moved.T) ** 2) / (2 * h**2)
    assert_same(score, exact)


@quick
@given(a=st.floats(0.5, 2.0), beta=st.floats(0.5, 2.0))
def test_scaling_features_and_bandwidth_together_changes_nothing(a: float, beta: float) -> None:
    x = draw(7, (), 5)
    assert_same(ictd.GaussianScore(a * beta)(a * x, a * x), ictd.GaussianScore(beta)(x, x))
    assert_same(ictd.LinearKernel()(a * x, x), a * ictd.LinearKernel()(x, x))
    assert_same(
        ictd.BilinearScore(a * tensor(MATRIX))(x, x), a * ictd.BilinearScore(tensor(MATRIX))(x, x)
    )


def test_log_of_zero_is_minus_infinity_with_finite_gradients() -> None:
    x = tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]).requires_grad_()
    score = ictd.LogKernelScore(ictd.LinearKernel())(x, x)
    assert score[0, 1] == -torch.inf
    assert score[0, 0] == 0.0
    finite = score[score > -torch.inf]
    (gradient,) = torch.autograd.grad(finite.sum(), x)
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0


def test_the_identity_kernel_tells_nearly_equal_features_apart() -> None:
    x = tensor([[1.0], [1.0 + 1e-15], [1.0]])
    assert ictd.IdentityKernel()(x, x).tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]


def test_median_bandwidth_by_hand() -> None:
    x = tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])  # distances 5, 1, sqrt 18
    assert ictd.median_bandwidth(x).item() == pytest.approx(18**0.5)
    assert ictd.median_bandwidth(x.float()).dtype == torch.float32
    assert_same(ictd.median_bandwidth(2 * x), 2 * ictd.median_bandwidth(x))


@pytest.mark.parametrize(
    "features", [tensor(np.ones((5, 2))), tensor([[1.0, 2.0]]), tensor(np.ones((0, 2)))]
)
def test_median_bandwidth_names_the_bandwidth_where_there_is_none(
    features: torch.Tensor,
) -> None:
    # C8: all states identical, or only one.
    with refuses(ValueError, "bandwidth"):
        ictd.median_bandwidth(features)


@pytest.mark.parametrize("h", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("module", [ictd.GaussianScore, ictd.GaussianKernel])
def test_refuses_a_bandwidth_that_is_none(module: type[nn.Module], h: float) -> None:
    with refuses(ValueError, r"bandwidth.*expected.*got"):
        module(h)
    with refuses(ValueError, r"bandwidth.*expected.*got"):
        module(tensor(h))


def test_refuses_a_bandwidth_with_axes() -> None:
    with refuses(ValueError, r"bandwidth.*expected.*got.*2"):
        ictd.GaussianScore(tensor([1.0, 2.0]))


def test_refuses_a_negative_kernel() -> None:
    x = tensor([[1.0], [-2.0]])
    with refuses(ValueError, r"kernel.*expected.*>= 0.*got -2.*\(0, 1\)"):
        ictd.LogKernelScore(ictd.LinearKernel())(x, x)


@pytest.mark.parametrize(
    ("matrix", "error"),
    [
        (tensor(np.ones((2, 3))), ValueError),
        (tensor(np.ones(3)), ValueError),
        (torch.eye(2, dtype=torch.int64), TypeError),
        ([[1.0]], TypeError),
    ],
    ids=["not square", "one axis", "integers", "a list"],
)
def test_refuses_a_matrix(matrix: Any, error: type[Exception]) -> None:
    with refuses(error, r"matrix.*expected.*got"):
        ictd.BilinearScore(matrix)


@every_pair
@pytest.mark.parametrize(
    ("query", "key", "match"),
    [
        ((3,), (4, 3), r"query.*expected.*got"),
        ((5, 3), (4, 2), r"key.*expected.*got"),
        ((2, 5, 3), (3, 4, 3), r"key.*expected.*got"),
        ((5, 3), (3,), r"key.*expected.*got"),
    ],
)
def test_refuses_pairs_that_do_not_fit(
    name: str, query: tuple[int, ...], key: tuple[int, ...], match: str
) -> None:
    with refuses(ValueError, match):
        PAIRS[name][0]()(tensor(np.ones(query)), tensor(np.ones(key)))


def test_refuses_features_of_another_width() -> None:
    with refuses(ValueError, r"query.*expected.*3.*got.*4"):
        ictd.BilinearScore(tensor(MATRIX))(tensor(np.ones((5, 4))), tensor(np.ones((5, 4))))
