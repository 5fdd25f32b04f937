"""The checks that every public function makes of its arguments."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ictd import _checks as checks
from strategies import refuses

# When values can be read -----------------------------------------------------------------------


def test_values_of_ordinary_tensors_are_checkable() -> None:
    plain = torch.ones(2)
    assert checks.values_checkable()
    assert checks.values_checkable(plain)
    assert checks.values_checkable(plain, plain.bool(), torch.nn.Parameter(plain), plain[:0])
    assert checks.values_checkable(plain.requires_grad_() * 2)


def test_values_of_tensors_without_data_are_not_checkable() -> None:
    assert not checks.values_checkable(torch.ones(2, device="meta"))
    assert not checks.values_checkable(torch.ones(2), torch.ones(2, device="meta"))
    with FakeTensorMode():
        assert not checks.values_checkable(torch.ones(2))
        assert not checks.values_checkable(torch.ones(2, device="cuda"))


def test_values_are_not_checkable_inside_function_transforms() -> None:
    outside = torch.ones(2)
    answers = []

    def look(x: torch.Tensor) -> torch.Tensor:
        answers.append((checks.values_checkable(x), checks.values_checkable(outside)))
        return x.sum()

    torch.vmap(look)(torch.ones(3, 2))
    torch.func.grad(look)(torch.ones(2))
    torch.vmap(torch.func.grad(look))(torch.ones(3, 2))
    torch.func.jacrev(look)(torch.ones(2))
    assert answers == [(False, True)] * 4


@pytest.mark.compile
def test_values_are_not_checkable_while_compiling() -> None:
    def double_if_checkable(x: torch.Tensor) -> torch.Tensor:
        return 2 * x if checks.values_checkable(x) else x

    compiled = torch.compile(double_if_checkable, fullgraph=True, backend="eager")
    assert compiled(torch.ones(1)).item() == 1.0
    assert double_if_checkable(torch.ones(1)).item() == 2.0


def test_value_checks_pass_over_what_cannot_be_read() -> None:
    bad = torch.full((2, 2), torch.nan)
    checks.check_finite("x", bad.to("meta"))
    checks.check_probabilities("x", bad.to("meta"))
    checks.check_discount("x", bad.to("meta"), (2, 2))

    def pass_over(x: torch.Tensor) -> torch.Tensor:
        checks.check_finite("x", x)
        checks.check_probabilities("x", x)
        checks.check_discount("x", x, (2,))
        return x

    assert torch.vmap(pass_over)(bad).isnan().all()


# Messages --------------------------------------------------------------------------------------


FINE: dict[str, tuple[Any, ...]] = {
    "tensor": (checks.check_tensor, torch.ones(1, dtype=torch.int32)),
    "floating": (checks.check_floating, torch.ones(1, dtype=torch.bfloat16)),
    "dtype": (checks.check_dtype, torch.ones(1, dtype=torch.int64), torch.int64),
    "bool": (checks.check_bool, torch.ones(1, dtype=torch.bool)),
    "shape": (checks.check_shape, torch.ones(2, 3), (2, 3)),
    "torch shape": (checks.check_shape, torch.ones(2, 3), torch.Size([2, 3]), "[*B, N]"),
    "list shape": (checks.check_shape, torch.ones(()), []),
    "none": (checks.check_none, torch.zeros(3, dtype=torch.bool), "nothing"),
    "none of nothing": (checks.check_none, torch.ones(0, 3, dtype=torch.bool), "nothing"),
    "finite": (checks.check_finite, torch.tensor([1e38, -0.0])),
    "probabilities": (checks.check_probabilities, torch.tensor([[0.3, 0.7], [1.0, 0.0]])),
    "zero": (checks.check_int, 0, 0),
    "NumPy integer": (checks.check_positive_int, np.int64(1)),
    "discount": (checks.check_discount, 0.0),
    "discount one": (checks.check_discount, 1.0),
    "discounts": (checks.check_discount, torch.tensor([0.0, 1.0]), (2,)),
}


@pytest.mark.parametrize("case", FINE)
def test_passes_what_is_fine(case: str) -> None:
    check, *rest = FINE[case]
    assert check("x", *rest) is None


REFUSED: dict[str, tuple[tuple[Any, ...], type[Exception], str]] = {
    "list": (
        (checks.check_tensor, [1.0]),
        TypeError,
        "x: expected a torch.Tensor, got list",
    ),
    "no tensor, floating": (
        (checks.check_floating, 1.0),
        TypeError,
        "x: expected a torch.Tensor, got float",
    ),
    "integers": (
        (checks.check_floating, torch.ones(1, dtype=torch.int64)),
        TypeError,
        "x: expected a floating-point dtype, got torch.int64",
    ),
    "complex": (
        (checks.check_floating, torch.ones(1, dtype=torch.complex64)),
        TypeError,
        "x: expected a floating-point dtype, got torch.complex64",
    ),
    "dtype": (
        (checks.check_dtype, torch.ones(1), torch.int64),
        TypeError,
        "x: expected dtype torch.int64, got torch.float32",
    ),
    "bool": (
        (checks.check_bool, torch.ones(1)),
        TypeError,
        "x: expected dtype torch.bool, got torch.float32",
    ),
    "shape": (
        (checks.check_shape, torch.ones(3, 4), (3, 5)),
        ValueError,
        "x: expected shape (3, 5), got (3, 4)",
    ),
    "shape that would broadcast": (
        (checks.check_shape, torch.ones(1, 4), (3, 4), "[*B, N]"),
        ValueError,
        "x: expected shape [*B, N] = (3, 4), got (1, 4)",
    ),
    "missing batch axis": (
        (checks.check_shape, torch.ones(4), (1, 4)),
        ValueError,
        "x: expected shape (1, 4), got (4,)",
    ),
    "true": (
        (checks.check_none, torch.tensor([[False, False], [False, True]]), "nothing"),
        ValueError,
        "x: expected nothing, got one at index (1, 1)",
    ),
    "first value": (
        (checks.check_none, torch.tensor([False, True, True]), "less", torch.arange(3)),
        ValueError,
        "x: expected less, got 1 at index (1,)",
    ),
    "scalar": (
        (checks.check_none, torch.tensor(True), "less", torch.tensor(3)),
        ValueError,
        "x: expected less, got 3",
    ),
    "NaN": (
        (checks.check_finite, torch.tensor([[0.0, 1.0], [torch.nan, torch.inf]])),
        ValueError,
        "x: expected finite entries, got nan at index (1, 0)",
    ),
    "infinite": (
        (checks.check_finite, torch.tensor([-torch.inf])),
        ValueError,
        "x: expected finite entries, got -inf at index (0,)",
    ),
    "negative": (
        (checks.check_probabilities, torch.tensor([1.5, -0.5])),
        ValueError,
        "x: expected entries >= 0, got -0.5 at index (1,)",
    ),
    "sum": (
        (checks.check_probabilities, torch.tensor([[0.5, 0.5], [0.5, 0.25]])),
        ValueError,
        "x: expected rows that sum to 1 within 1.0e-06, got 0.75 at index (1,)",
    ),
    "sum in half precision": (
        (checks.check_probabilities, torch.tensor([0.5, 0.25]).half()),
        ValueError,
        "x: expected rows that sum to 1 within 7.8e-03, got 0.75",
    ),
    "infinite probability": (
        (checks.check_probabilities, torch.tensor([torch.inf, 0.0])),
        ValueError,
        "x: expected finite entries, got inf at index (0,)",
    ),
    "zero": (
        (checks.check_positive_int, 0),
        ValueError,
        "x: expected an integer >= 1, got 0",
    ),
    "float": (
        (checks.check_positive_int, 1.0),
        TypeError,
        "x: expected an integer, got float",
    ),
    "flag": ((checks.check_int, True, 0), TypeError, "x: expected an integer, got bool"),
    "discount": (
        (checks.check_discount, -0.1),
        ValueError,
        "x: expected a number in [0, 1], got -0.1",
    ),
    "discount NaN": (
        (checks.check_discount, float("nan")),
        ValueError,
        "x: expected a number in [0, 1], got nan",
    ),
    "discounts": (
        (checks.check_discount, torch.tensor([0.5, torch.nan]), (2,)),
        ValueError,
        "x: expected numbers in [0, 1], got nan at index (1,)",
    ),
    "shape of discounts": (
        (checks.check_discount, torch.tensor([0.5]), (2,), "[*B]"),
        ValueError,
        "x: expected shape [*B] = (2,), got (1,)",
    ),
    "dtype of discounts": (
        (checks.check_discount, torch.tensor(1)),
        TypeError,
        "x: expected a floating-point dtype, got torch.int64",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_by_name(case: str) -> None:
    (check, *rest), error, message = REFUSED[case]
    with refuses(error, f"^{re.escape(message)}$"):
        check("x", *rest)


def test_tolerance_of_sums_grows_with_length_and_rounding() -> None:
    probabilities = torch.full((1000,), 1e-3)
    probabilities[0] += 4e-4  # 4·1000·2^-23 = 4.8e-4
    checks.check_probabilities("x", probabilities)
    with refuses(ValueError, "rows that sum to 1"):
        checks.check_probabilities("x", probabilities.double())


def test_like_compares_devices_and_floating_dtypes() -> None:
    reference = torch.ones(1)
    checks.check_like("y", reference, "x", torch.zeros(2))
    checks.check_like("y", reference, "x", torch.zeros(2, dtype=torch.bool))
    message = r"x: expected dtype torch\.float32 \(that of y\), got torch\.float64"
    with refuses(TypeError, message):
        checks.check_like("y", reference, "x", torch.zeros(2).double())
    for dtype in (torch.float32, torch.bool):
        other = torch.zeros(2, dtype=dtype, device="meta")
        with refuses(ValueError, r"x: expected device cpu \(that of y\), got meta"):
            checks.check_like("y", reference, "x", other)
