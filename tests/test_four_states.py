"""Four states around a hub diverge: the signs and the digits of the example, in exact numbers.

The proof of :prf:ref:`prop-four-state-failure` needs the sign of one number. Here the entries of
the kernel lie in intervals with rational ends, and so does all that is computed from them. No step
is rounded to the nearest: what is rounded is rounded outwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import isqrt

import pytest
import torch

import ictd

BITS = 200
GRID = 2**BITS
STATES = range(4)


@dataclass(frozen=True)
class Interval:
    """A real number that is known to lie between two fractions."""

    low: Fraction
    high: Fraction

    def __post_init__(self) -> None:
        """Widen the ends to the next multiples of 2^-200, which keeps the fractions short."""
        object.__setattr__(self, "low", Fraction(self.low * GRID // 1, GRID))
        object.__setattr__(self, "high", Fraction(-(-self.high * GRID // 1), GRID))

    def __add__(self, other: Interval | Fraction | int) -> Interval:
        other = interval(other)
        return Interval(self.low + other.low, self.high + other.high)

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __sub__(self, other: Interval | Fraction | int) -> Interval:
        return self + -interval(other)

    def __mul__(self, other: Interval | Fraction | int) -> Interval:
        other = interval(other)
        ends = [p * q for p in (self.low, self.high) for q in (other.low, other.high)]
        return Interval(min(ends), max(ends))

    def __truediv__(self, other: Interval | Fraction | int) -> Interval:
        other = interval(other)
        if other.low <= 0 <= other.high:
            raise ZeroDivisionError("the divisor may be 0")
        return self * Interval(1 / other.high, 1 / other.low)

    __radd__ = __add__
    __rmul__ = __mul__


def interval(number: Interval | Fraction | int) -> Interval:
    return number if isinstance(number, Interval) else Interval(Fraction(number), Fraction(number))


# --- The kernels ----------------------------------------------------------------------------------


def power_of_two(eighths: int) -> Interval:
    """2^(-k/8), by an integer root: the eighth root is a square root three times."""
    radicand = 2 ** (8 * BITS - eighths)
    root = isqrt(isqrt(isqrt(radicand)))
    assert root**8 <= radicand < (root + 1) ** 8
    return Interval(Fraction(root, GRID), Fraction(root + 1, GRID))


@cache
def cosine(degrees: int) -> Interval:
    """The cosine of a multiple of 10 degrees up to 90, by Chebyshev's recursion from that of 10.

    The cosine of 10 degrees is the largest root of (4c³ - 3c)² = 3/4, the square of the cosine of
    30 degrees, whose left side grows from c = √3/2 on.
    """
    if degrees == 0:
        return interval(1)
    if degrees == 10:
        low, high = Fraction(9, 10), Fraction(1)
        assert low**2 > Fraction(3, 4)
        for _ in range(BITS):
            middle = (low + high) / 2
            is_left = (4 * middle**3 - 3 * middle) ** 2 < Fraction(3, 4)
            low, high = (middle, high) if is_left else (low, middle)
        return Interval(low, high)
    return 2 * cosine(10) * cosine(degrees - 10) - cosine(degrees - 20)


def exponential(argument: Interval) -> Interval:
    """e^x for 0 <= x <= 10, by a hundred terms of its series and a geometric tail."""
    assert 0 <= argument.low <= argument.high <= 10
    count = 100
    term, total = interval(1), interval(0)
    for k in range(1, count + 1):
        total, term = total + term, term * argument / k
    tail = term / (1 - argument.high / (count + 1))
    return total + Interval(Fraction(0), tail.high)


def gaussian() -> list[list[Interval]]:
    places = (0, 5, 7, 8)
    return [[power_of_two((p - q) ** 2) for q in places] for p in places]


def equal_length() -> list[list[Interval]]:
    angles = (0, 50, 70, 80)
    return [[exponential(8 * cosine(abs(p - q))) for q in angles] for p in angles]


# --- The drift and its eigenvalues ----------------------------------------------------------------


def joint_flows(hub: int) -> list[list[Fraction]]:
    """A hub 0, a swap of 1 and 2, and 3 beside the hub."""
    flow = [[Fraction(0)] * 4 for _ in STATES]
    flow[1][2] = flow[2][1] = flow[0][3] = flow[3][0] = Fraction(1)
    flow[0][1] = flow[1][0] = Fraction(1, 100)
    flow[0][0] = hub - Fraction(101, 100)
    return flow


def drift(kernel: list[list[Interval]], hub: int, gamma: Fraction) -> list[list[Interval]]:
    """X = M(I - γP), from M = κD_μ with rows divided by their sums and P = F with rows so."""
    flow = joint_flows(hub)
    visits = [sum(row) for row in flow]
    bellman = [[(s == u) - gamma * flow[s][u] / visits[s] for u in STATES] for s in STATES]
    rows = []
    for s in STATES:
        weighted = [kernel[s][u] * visits[u] for u in STATES]
        density = sum(weighted, interval(0))
        attention = [weight / density for weight in weighted]
        rows.append(
            [sum((attention[t] * bellman[t][u] for t in STATES), interval(0)) for u in STATES]
        )
    return rows


def minors(matrix: list[list[Interval]], size: int) -> Interval:
    """The sum of the principal minors of one size, which is that of the products of eigenvalues."""
    sets = [
        [s for s in STATES if mask >> s & 1] for mask in range(16) if bin(mask).count("1") == size
    ]
    chosen = ([[matrix[s][u] for u in members] for s in members] for members in sets)
    return sum((determinant(block) for block in chosen), interval(0))


def determinant(matrix: list[list[Interval]]) -> Interval:
    if not matrix:
        return interval(1)
    total = interval(0)
    for k, entry in enumerate(matrix[0]):
        block = [[*row[:k], *row[k + 1 :]] for row in matrix[1:]]
        total = total + entry * determinant(block) * (-1) ** k
    return total


@cache
def symmetric_functions(score: str, hub: int, gamma: Fraction) -> tuple[Interval, ...]:
    """Sum, sum of products of two, and product of the three eigenvalues besides 1 - γ."""
    kernel = {"Gaussian": gaussian, "equal length": equal_length}[score]()
    matrix = drift(kernel, hub, gamma)
    first, second, third = (minors(matrix, size) for size in (1, 2, 3))
    known = 1 - gamma
    e_1 = first - known
    e_2 = second - known * e_1
    return e_1, e_2, third - known * e_2


def enclose_root(score: str, hub: int, gamma: Fraction, low: Fraction, high: Fraction) -> Interval:
    """Narrow an interval at whose ends the characteristic polynomial differs in sign."""
    e_1, e_2, e_3 = symmetric_functions(score, hub, gamma)

    def sign(x: Fraction) -> int:
        value = ((interval(x) - e_1) * x + e_2) * x - e_3
        return (value.low > 0) - (value.high < 0)

    first, last = sign(low), sign(high)
    assert first * last == -1, f"no change of sign from {float(low)} to {float(high)}"
    for _ in range(60):
        middle = (low + high) / 2
        here = sign(middle)
        if here == 0:
            break
        low, high = (middle, high) if here == first else (low, middle)
    return Interval(low, high)


def about(digits: str) -> tuple[Fraction, Fraction]:
    """What a decimal number stands for: half a unit of its last place on both sides."""
    half = Fraction(1, 2 * 10 ** len(digits.partition(".")[2]))
    return Fraction(digits) - half, Fraction(digits) + half


def is_about(number: Interval, digits: str) -> bool:
    low, high = about(digits)
    return low < number.low and number.high < high


# --- The signs ------------------------------------------------------------------------------------

CASES = [
    ("Gaussian", 500, Fraction(99, 100), "-0.00095"),
    ("Gaussian", 500, Fraction(9, 10), "-0.000098"),
    ("equal length", 1000, Fraction(99, 100), "-0.00070"),
    ("equal length", 1000, Fraction(95, 100), "-0.000080"),
]


@pytest.mark.claim("prop-four-state-failure")
@pytest.mark.parametrize(("score", "hub", "gamma", "digits"), CASES)
def test_products_of_two_eigenvalues_have_a_negative_sum(
    score: str, hub: int, gamma: Fraction, digits: str
) -> None:
    """Step 3 of the proof, with what the chapter says of the width."""
    _, e_2, _ = symmetric_functions(score, hub, gamma)
    assert e_2.high < 0
    assert is_about(e_2, digits)
    assert e_2.high - e_2.low < Fraction(1, 10**50)


@pytest.mark.claim("prop-four-state-failure")
@pytest.mark.parametrize(
    ("score", "hub", "gamma", "real", "pair"),
    [
        ("Gaussian", 500, Fraction(99, 100), ("0.2712", "-0.000645", "-0.002857"), None),
        ("Gaussian", 500, Fraction(9, 10), ("0.2755",), ("-0.00020", "0.00347")),
        ("equal length", 1000, Fraction(99, 100), ("0.3396",), ("-0.00104", "0.00196")),
    ],
)
def test_digits_of_the_eigenvalues(
    score: str, hub: int, gamma: Fraction, real: tuple[str, ...], pair: tuple[str, str] | None
) -> None:
    """A change of sign for each real eigenvalue; sum and product for a pair."""
    found = [enclose_root(score, hub, gamma, *about(digits)) for digits in real]
    if pair is not None:
        e_1, _, e_3 = symmetric_functions(score, hub, gamma)
        half_sum = (e_1 - found[0]) / 2
        square = e_3 / found[0] - half_sum * half_sum  # of the imaginary part
        assert is_about(half_sum, pair[0])
        low, high = about(pair[1])
        assert low**2 < square.low
        assert square.high < high**2


def test_equal_length_is_stable_at_a_smaller_discount() -> None:
    """By the criterion of Routh and Hurwitz for a cubic, at γ = 0.9."""
    e_1, e_2, e_3 = symmetric_functions("equal length", 1000, Fraction(9, 10))
    assert e_1.low > 0
    assert e_3.low > 0
    assert (e_1 * e_2 - e_3).low > 0


def test_the_other_eigenvalues_are_positive_at_discount_zero() -> None:
    """X = M there, whose eigenvalues are positive, and e_2 with them."""
    for score, hub in (("Gaussian", 500), ("equal length", 1000)):
        assert all(e.low > 0 for e in symmetric_functions(score, hub, Fraction(0)))


# --- That the intervals hold what they say --------------------------------------------------------


def test_kernels_against_decimals() -> None:
    assert power_of_two(0).low <= 1 <= power_of_two(0).high
    assert is_about(power_of_two(1), "0.91700404320467123174")
    assert is_about(power_of_two(64), "0.00390625")
    assert is_about(cosine(10), "0.98480775301220805937")
    assert is_about(cosine(80), "0.17364817766693034885")
    assert is_about(exponential(interval(1)), "2.71828182845904523536")
    assert is_about(exponential(interval(8)), "2980.95798704172827474359")
    assert exponential(interval(0)).low <= 1 <= exponential(interval(0)).high


def test_cosines_close_the_circle() -> None:
    """The recursion leads to 1/2 at 60 degrees and to 0 at 90."""
    for degrees, value in ((60, Fraction(1, 2)), (90, Fraction(0))):
        found = cosine(degrees)
        assert found.low <= value <= found.high
        assert found.high - found.low < Fraction(1, 10**50)


def test_arithmetic_encloses() -> None:
    """Ends of intervals with thirds in them, so that rounding outwards is needed."""
    third, minus = Fraction(1, 3), Fraction(-2, 7)
    x, y = Interval(minus, third), Interval(third, third)
    assert x.low < minus < third < x.high
    for number in (minus, Fraction(0), third):
        assert (x + y).low <= number + third <= (x + y).high
        assert (x - y).low <= number - third <= (x - y).high
        assert (x * x).low <= number * minus <= (x * x).high
        assert (x / y).low <= number / third <= (x / y).high
    with pytest.raises(ZeroDivisionError, match="may be 0"):
        y / x


def test_a_perturbed_example_is_not_proved() -> None:
    """With a rare hub the sign is the other one; with a vague kernel there is none."""
    _, e_2, _ = symmetric_functions("Gaussian", 5, Fraction(99, 100))
    assert e_2.low > 0
    wide = [[Interval(k.low * Fraction(9, 10), k.high) for k in row] for row in gaussian()]
    matrix, known = drift(wide, 500, Fraction(99, 100)), Fraction(1, 100)
    loose = minors(matrix, 2) - known * (minors(matrix, 1) - known)
    assert loose.low < 0 < loose.high


def test_the_package_computes_the_same_numbers() -> None:
    line = torch.tensor([[0.0], [5.0], [7.0], [8.0]], dtype=torch.float64)
    binary = ictd.GaussianScore(2 / torch.tensor(2.0, dtype=torch.float64).log().sqrt().item())
    flow = torch.tensor([[float(x) for x in row] for row in joint_flows(500)], dtype=torch.float64)
    transition = flow / flow.sum(-1, keepdim=True)
    mrp = ictd.MarkovRewardProcess(transition, torch.zeros(4, dtype=torch.float64), 0.99)
    attention = ictd.population_attention(mrp, line, binary)
    found = ictd.drift_matrix(attention, transition, 0.99)
    exact = drift(gaussian(), 500, Fraction(99, 100))
    middle = [[float((x.low + x.high) / 2) for x in row] for row in exact]
    torch.testing.assert_close(found, torch.tensor(middle, dtype=torch.float64))
