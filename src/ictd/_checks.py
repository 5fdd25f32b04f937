"""Refuse bad arguments: every message reads "<argument>: expected …, got …".

Types, shapes, dtypes and devices are always checked, and nothing is broadcast. *Values* (finite
entries, ranges, sums) are looked at only where they can be read: see `values_checkable`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import SupportsIndex

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def values_checkable(*tensors: Tensor) -> bool:
    """Return whether the numbers inside `tensors` can be read right now.

    They cannot under `torch.compile`, in tensors without data (meta and fake tensors), and inside
    `torch.vmap` and `torch.func.grad`, where a branch on a value is an error.
    """
    if torch.compiler.is_compiling():
        return False
    return not any(
        isinstance(tensor, FakeTensor)
        or tensor.is_meta
        or torch.func.debug_unwrap(tensor) is not tensor
        for tensor in tensors
    )


def check_tensor(name: str, value: object) -> None:
    """Raise TypeError unless `value` is a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}")


def check_floating(name: str, value: Tensor) -> None:
    """Raise TypeError unless `value` is a tensor of a real floating-point dtype."""
    check_tensor(name, value)
    if not value.is_floating_point():
        raise TypeError(f"{name}: expected a floating-point dtype, got {value.dtype}")


def check_dtype(name: str, value: Tensor, dtype: torch.dtype) -> None:
    """Raise TypeError unless `value` is a tensor of `dtype`."""
    check_tensor(name, value)
    if value.dtype != dtype:
        raise TypeError(f"{name}: expected dtype {dtype}, got {value.dtype}")


def check_bool(name: str, value: Tensor) -> None:
    """Raise TypeError unless `value` is a tensor of dtype bool."""
    check_dtype(name, value, torch.bool)


def check_shape(name: str, value: Tensor, shape: Sequence[int], axes: str = "") -> None:
    """Raise ValueError unless `value` has exactly `shape`.

    `axes` adds the shape in symbols: ``check_shape("rewards", rewards, (3, 5), "[*B, N]")`` gives
    "rewards: expected shape [*B, N] = (3, 5), got (3, 4)".
    """
    if tuple(value.shape) != tuple(shape):
        symbols = f"{axes} = " if axes else ""
        raise ValueError(
            f"{name}: expected shape {symbols}{tuple(shape)}, got {tuple(value.shape)}"
        )


def check_like(reference_name: str, reference: Tensor, name: str, value: Tensor) -> None:
    """Raise unless `value` is on the device of `reference` and, if floating, of its dtype."""
    if value.device != reference.device:
        raise ValueError(
            f"{name}: expected device {reference.device} (that of {reference_name}), "
            f"got {value.device}"
        )
    if value.is_floating_point() and value.dtype != reference.dtype:
        raise TypeError(
            f"{name}: expected dtype {reference.dtype} (that of {reference_name}), "
            f"got {value.dtype}"
        )


def check_all_like(reference_name: str, reference: Tensor, **values: object) -> None:
    """Raise unless those of `values` that are tensors pass `check_like`."""
    for name, value in values.items():
        if isinstance(value, Tensor):
            check_like(reference_name, reference, name, value)


def check_none(name: str, bad: Tensor, expected: str, values: Tensor | None = None) -> None:
    """Raise ValueError at the first index where `bad` (bool) is True.

    The message quotes the entry there of `values`, a tensor of the same shape, where one is given.
    Nothing happens where values cannot be read.
    """
    if not values_checkable(bad) or not bool(bad.any()):
        return
    index = tuple(bad.nonzero()[0].tolist())
    got = "one" if values is None else values[index].item()
    where = f" at index {index}" if index else ""
    raise ValueError(f"{name}: expected {expected}, got {got}{where}")


def check_finite(name: str, value: Tensor) -> None:
    """Raise ValueError that names the first entry that is NaN or infinite."""
    check_none(name, value.isfinite().logical_not(), "finite entries", value)


def check_probabilities(name: str, value: Tensor) -> None:
    """Raise ValueError unless entries are finite and >= 0 and sum to 1 along the last axis.

    A sum may be off by max(1e-6, 4·m·eps), where m is its length and eps that of the dtype.
    """
    check_finite(name, value)
    check_none(name, value < 0, "entries >= 0", value)
    tolerance = max(1e-6, 4 * value.shape[-1] * torch.finfo(value.dtype).eps)
    sums = value.sum(-1, dtype=torch.promote_types(value.dtype, torch.float32))
    off = (sums - 1).abs() > tolerance
    check_none(name, off, f"rows that sum to 1 within {tolerance:.1e}", sums)


def check_int(name: str, value: SupportsIndex, minimum: int) -> None:
    """Raise TypeError unless `value` is an integer (no bool), ValueError if below `minimum`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}")
    if operator.index(value) < minimum:
        raise ValueError(f"{name}: expected an integer >= {minimum}, got {value}")


def check_positive_int(name: str, value: SupportsIndex) -> None:
    """Raise unless `value` is an integer >= 1 (a number of layers, states, features)."""
    check_int(name, value, 1)


def check_discount(
    name: str, value: float | Tensor, shape: Sequence[int] = (), axes: str = ""
) -> None:
    """Raise unless `value` is a number in [0, 1], or a floating tensor of `shape` full of them."""
    if isinstance(value, Tensor):
        check_floating(name, value)
        check_shape(name, value, shape, axes)
        inside = (value >= 0) & (value <= 1)
        check_none(name, inside.logical_not(), "numbers in [0, 1]", value)
    elif not 0 <= value <= 1:
        raise ValueError(f"{name}: expected a number in [0, 1], got {value}")


def check_nonnegative(
    name: str, value: float | Tensor, shape: Sequence[int] = (), axes: str = ""
) -> None:
    """Raise unless `value` is a finite number >= 0, or a floating tensor of `shape` of them."""
    if isinstance(value, Tensor):
        check_floating(name, value)
        check_shape(name, value, shape, axes)
        fine = (value >= 0) & value.isfinite()
        check_none(name, fine.logical_not(), "finite numbers >= 0", value)
    elif not 0 <= value < math.inf:
        raise ValueError(f"{name}: expected a finite number >= 0, got {value}")


def check_square(name: str, value: Tensor) -> None:
    """Raise unless `value` is a floating tensor of square matrices, ``[*B, m, m]``."""
    check_floating(name, value)
    if value.ndim < 2 or value.shape[-1] != value.shape[-2] or value.shape[-1] == 0:
        raise ValueError(f"{name}: expected shape [*B, m, m], m >= 1, got {tuple(value.shape)}")
