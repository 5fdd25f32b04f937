"""Random numbers that Python and JavaScript draw alike."""

from __future__ import annotations

from collections.abc import Sequence

_MASK = 0xFFFFFFFF


class Mulberry32:
    """Draw numbers in [0, 1) from a seed of 32 bits, as ``mulberry32`` in ``js/numerics.js`` does.

    A small public-domain generator of Tommy Ettinger: enough for a demonstration, not for research.

    Example:
        >>> from ictd.widgets._random import Mulberry32
        >>> draw = Mulberry32(1)
        >>> round(draw(), 6), round(draw(), 6)
        (0.627074, 0.002736)
    """

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def __call__(self) -> float:
        """Draw the next number."""
        self._state = (self._state + 0x6D2B79F5) & _MASK
        t = self._state
        t = (t ^ (t >> 15)) * (t | 1) & _MASK
        t ^= (t + ((t ^ (t >> 7)) * (t | 61) & _MASK)) & _MASK
        return ((t ^ (t >> 14)) & _MASK) / 2**32


def categorical(probabilities: Sequence[float], number: float) -> int:
    """Give the index that a number in [0, 1) draws from probabilities."""
    total = 0.0
    for index, probability in enumerate(probabilities):
        total += probability
        if number < total:
            return index
    return max(i for i, probability in enumerate(probabilities) if probability > 0)


def normalized(weights: Sequence[float]) -> list[float]:
    """Divide by the sum, added up from the left."""
    total = 0.0
    for weight in weights:
        total += weight
    return [weight / total for weight in weights]
