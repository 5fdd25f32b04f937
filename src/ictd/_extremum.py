"""Search on the unit interval: the numbers that have no closed form."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ictd._checks import check_floating, check_like, check_none, check_shape

Function = Callable[[Tensor], Tensor]


def argmax(function: Function, like: Tensor, *, points: int = 33, rounds: int = 7) -> Tensor:
    """Where on [0, 1] a function with one peak is largest, for each entry of ``like``.

    ``function`` takes arguments ``[*B, points]`` and returns as many numbers. Each round looks at
    a grid and keeps the cells on both sides of its largest value. The place is found to 1e-8, and
    so the value, which is flat there, to rounding. No gradient passes.
    """
    with torch.no_grad():
        steps = torch.arange(points, dtype=like.dtype, device=like.device) / (points - 1)
        low, width = torch.zeros_like(like), torch.ones_like(like)
        best = low
        for _ in range(rounds):
            grid = low.unsqueeze(-1) + width.unsqueeze(-1) * steps
            best = grid.gather(-1, function(grid).argmax(-1, keepdim=True)).squeeze(-1)
            width = width * (2 / (points - 1))
            low = torch.minimum((best - width / 2).clamp(min=0), 1 - width)
    return best


def first(holds: Function, like: Tensor, *, points: int = 9, rounds: int = 18) -> Tensor:
    """The point of [0, 1] at which a condition begins to hold, for each entry of ``like``.

    ``holds`` maps points ``[*B, points]`` to booleans, False first and then True. The point
    returned is one at which it holds, or 1.
    """
    with torch.no_grad():
        steps = torch.arange(points, dtype=like.dtype, device=like.device) / (points - 1)
        low, width = torch.zeros_like(like), torch.ones_like(like)
        for _ in range(rounds):
            grid = low.unsqueeze(-1) + width.unsqueeze(-1) * steps
            below = (~holds(grid)).cumprod(-1).sum(-1)  # grid points before the first that holds
            width = width / (points - 1)
            low = low + (below.clamp(1, points - 1) - 1) * width
    return low + width


def common(**numbers: float | Tensor) -> list[Tensor]:
    """The arguments as tensors of one shape: plain numbers take that of the tensors.

    Without a tensor the numbers become float64 tensors of no axes.
    """
    given = [(name, x) for name, x in numbers.items() if isinstance(x, Tensor)]
    if not given:
        return [torch.tensor(float(x), dtype=torch.float64) for x in numbers.values()]
    first, reference = given[0]
    for name, value in given:
        check_floating(name, value)
        check_shape(name, value, reference.shape, f"[*B] (that of {first})")
        check_like(first, reference, name, value)
    return [x if isinstance(x, Tensor) else torch.full_like(reference, x) for x in numbers.values()]


def check_range(
    name: str, value: Tensor, low: float, high: float = float("inf"), *, closed: str = "[]"
) -> None:
    """Raise ValueError at the first entry outside the interval; ``closed`` has its brackets."""
    inside = value >= low if closed[0] == "[" else value > low
    inside = inside & (value <= high if closed[1] == "]" else value < high)
    check_none(name, ~inside, f"numbers in {closed[0]}{low:g}, {high:g}{closed[1]}", value)
