"""The run-time type check of the test suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beartype import beartype
from beartype.roar import BeartypeDecorHintPep673Exception

Function = Callable[..., Any]
FIGURES = {"ictd.plotting", "ictd._chain_drawing", "ictd._figure_style"}


def check(function: Function) -> Function:
    """Check types at every call, but not where a method returns Self.

    beartype knows what Self is only when it decorates the whole class; jaxtyping, which checks that
    the axes of all arguments agree, decorates one method at a time. The figures take no axes, and
    their tests hand them wrong arguments to see them refused in words.
    """
    if function.__module__ in FIGURES:
        return function
    try:
        return beartype(function)
    except BeartypeDecorHintPep673Exception:
        return function
