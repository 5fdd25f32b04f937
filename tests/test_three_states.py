"""Three states converge for every step size up to 1: the last step of the proof, in exact numbers.

The proof of :prf:ref:`thm-three-states-steps` ends with 99 polynomials that have to be non-negative
on the cube. Here they are derived from the matrices, and each is written in Bernstein's basis in
integers and fractions. SymPy, which comes with PyTorch, does the algebra; no step is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from typing import Any

import pytest
import torch

import ictd

sympy = pytest.importorskip("sympy")

Powers = tuple[int, ...]
Polynomial = Mapping[Powers, int]
Box = dict[Powers, Fraction]

x, y, w = sympy.symbols("x y w")  # the kernel of the pairs 23, 13, 12
KERNEL = sympy.Matrix([[1, w, y], [w, 1, x], [y, x, 1]])
f = sympy.symbols("f1:4")
loops = sympy.symbols("l1:4")
j, gamma = sympy.symbols("j gamma")
FLOWS = sympy.Matrix(
    [
        [loops[0], f[2] + j, f[1] - j],
        [f[2] - j, loops[1], f[0] + j],
        [f[1] + j, f[0] - j, loops[2]],
    ]
)
VISITS = [sum(FLOWS.row(s)) for s in range(3)]
DENSITY = [sum(KERNEL[s, u] * VISITS[u] for u in range(3)) for s in range(3)]
t, b2, b3 = sympy.symbols("t b2 b3")
SMALLEST = {f[0]: t, f[1]: t + b2, f[2]: t + b3, j: t}
EXPECTED_COEFFICIENTS = (53, 46)


def brackets() -> tuple[Any, Any]:
    """The second and the third bracket times z₁z₂z₃, as the proof writes them."""
    pairs = [tuple(u for u in range(3) if u != s) for s in range(3)]
    det = KERNEL.det()
    both = [DENSITY[u] * DENSITY[v] for u, v in pairs]
    trace_m = sum(VISITS[s] * both[s] for s in range(3)) - sympy.prod(DENSITY)
    trace_ml = sum(
        both[s] * sum((1 - KERNEL[s, u]) * FLOWS[u, s] for u in pairs[s]) for s in range(3)
    )
    d_tau = det * sum(
        (VISITS[s] - loops[s]) * VISITS[pairs[s][0]] * VISITS[pairs[s][1]] for s in range(3)
    )
    d_minors = det * (f[0] * f[1] + f[1] * f[2] + f[2] * f[0] + j**2) * sum(VISITS)
    return trace_m + trace_ml - d_tau, trace_ml - d_minors


@cache
def coefficients() -> tuple[list[Polynomial], ...]:
    """The coefficients of both cubic forms, as polynomials in the kernel."""
    forms = []
    for bracket in brackets():
        form = sympy.Poly(sympy.expand(bracket.subs(SMALLEST)), t, b2, b3, *loops)
        terms = [sympy.Poly(coefficient, x, y, w).terms() for _, coefficient in form.terms()]
        forms.append([{powers: int(value) for powers, value in term} for term in terms])
    return tuple(forms)


def bernstein(polynomial: Polynomial) -> Box:
    """Coefficients in Bernstein's basis of the unit cube."""
    degree = [max(powers) for powers in zip(*polynomial, strict=True)]
    box = {}
    for place in product(*(range(d + 1) for d in degree)):
        total = Fraction(0)
        for powers, value in polynomial.items():
            shares = zip(place, powers, degree, strict=True)
            total += value * math.prod(
                Fraction(math.comb(k, i), math.comb(d, i)) for k, i, d in shares
            )
        box[place] = total
    return box


def halves(box: Box, axis: int) -> Iterator[Box]:
    """Bernstein coefficients on both halves of the cube, by de Casteljau's scheme."""
    size = 1 + max(place[axis] for place in box)
    first, second = {}, {}
    for place in box:
        if place[axis]:
            continue

        def at(k: int, place: Powers = place) -> Powers:
            return (*place[:axis], k, *place[axis + 1 :])

        row = [box[at(k)] for k in range(size)]
        for k in range(size):
            first[at(k)], second[at(size - 1 - k)] = row[0], row[-1]
            row = [(p + q) / 2 for p, q in pairwise(row)]
    yield first
    yield second


def is_nonnegative(polynomial: Polynomial, depth: int = 12) -> bool | None:
    """Whether it is so on the cube; None if the subdivision does not decide."""
    boxes = [(bernstein(polynomial), 0)]
    while boxes:
        box, level = boxes.pop()
        top = [max(place[axis] for place in box) for axis in range(3)]
        corners = product(*({0, end} for end in top))
        if any(box[corner] < 0 for corner in corners):
            return False  # the value at a corner
        if min(box.values()) >= 0:
            continue
        if level == depth:
            return None
        boxes += [(half, level + 1) for half in halves(box, level % 3)]
    return True


# --- The identities of the proof ------------------------------------------------------------------


def test_flows_balance() -> None:
    for s in range(3):
        assert sympy.expand(sum(FLOWS.col(s)) - VISITS[s]) == 0


def test_powers_of_gamma() -> None:
    """Sum minus product of two eigenvalues, for any stochastic M and P, is the three brackets."""
    entries = sympy.symbols("m1:7 p1:7")
    rows = [(a, b, 1 - a - b) for a, b in zip(entries[::2], entries[1::2], strict=True)]
    attention, transition = sympy.Matrix(rows[:3]), sympy.Matrix(rows[3:])
    laplacian = sympy.eye(3) - transition
    drift = attention * (sympy.eye(3) - gamma * transition)
    minors = sum(laplacian.minor(s, s) for s in range(3))
    a, d = attention.trace() - 1, attention.det()
    s_1, tau = (attention * laplacian).trace(), laplacian.trace()
    parts = (
        (1 - gamma) ** 2 * (a - d)
        + gamma * (1 - gamma) * (a + s_1 - d * tau)
        + gamma**2 * (s_1 - d * minors)
    )
    sigma = drift.trace() - (1 - gamma)
    difference = (1 - gamma) * (sigma - parts) - attention.det() * (
        sympy.eye(3) - gamma * transition
    ).det()
    assert sympy.expand(difference) == 0


def test_brackets_are_those_of_the_matrices() -> None:
    """Cleared of denominators, at 500 points with fractions for coordinates."""
    generator = torch.Generator().manual_seed(0)
    symbols = (*f, *loops, j, x, y, w)
    second, third = (sympy.lambdify(symbols, bracket) for bracket in brackets())
    flows_at, kernel_at = (sympy.lambdify(symbols, matrix.tolist()) for matrix in (FLOWS, KERNEL))
    for _ in range(500):
        draw = torch.randint(1, 30, (10,), generator=generator).tolist()
        point = [*(40 + n for n in draw[:3]), *draw[3:7], *(Fraction(n, 30) for n in draw[7:])]
        a, d, s_1, tau, minors, scale = quantities(flows_at(*point), kernel_at(*point))
        assert second(*point) == scale * (a + s_1 - d * tau)
        assert third(*point) == scale * (s_1 - d * minors)


def quantities(flows: Any, kernel: Any) -> tuple[Fraction, ...]:
    """A, D, s₁, τ, E₂ and z₁z₂z₃ by their definitions, in fractions."""
    states = range(3)
    visits = [sum(map(Fraction, row)) for row in flows]
    density = [sum(kernel[s][u] * visits[u] for u in states) for s in states]
    attention = [[kernel[s][u] * visits[u] / density[s] for u in states] for s in states]
    onward = [[flows[s][u] / visits[s] for u in states] for s in states]
    laplacian = [[(s == u) - onward[s][u] for u in states] for s in states]
    diagonal = [laplacian[s][s] for s in states]
    minors = sum(
        diagonal[s] * diagonal[u] - laplacian[s][u] * laplacian[u][s]
        for s, u in ((0, 1), (0, 2), (1, 2))
    )
    trace_ml = sum(attention[s][u] * laplacian[u][s] for s in states for u in states)
    a = sum(attention[s][s] for s in states) - 1
    return a, determinant(attention), trace_ml, sum(diagonal), minors, math.prod(density)


def determinant(matrix: list[list[Fraction]]) -> Fraction:
    first, second, third = matrix
    return sum(
        first[k]
        * (second[(k + 1) % 3] * third[(k + 2) % 3] - second[(k + 2) % 3] * third[(k + 1) % 3])
        for k in range(3)
    )


def test_brackets_are_concave_in_the_circulation() -> None:
    """The visits and densities are free of j; the squares of j have no positive coefficient."""
    assert all(
        j not in quantity.free_symbols for quantity in (*VISITS, *map(sympy.expand, DENSITY))
    )
    second, third = (sympy.expand(sympy.diff(bracket, j, 2)) for bracket in brackets())
    assert second == 0
    assert sympy.expand(third + 2 * KERNEL.det() * sum(VISITS)) == 0


# --- The signs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("which", "count"), list(enumerate(EXPECTED_COEFFICIENTS)))
def test_number_of_coefficients(which: int, count: int) -> None:
    assert len(coefficients()[which]) == count


@pytest.mark.claim("thm-three-states-steps")
def test_every_coefficient_is_nonnegative_on_the_cube() -> None:
    verdicts = [is_nonnegative(polynomial) for form in coefficients() for polynomial in form]
    assert verdicts == [True] * sum(EXPECTED_COEFFICIENTS)


def test_no_subdivision_is_needed() -> None:
    """What the chapter says."""
    assert min(min(bernstein(p).values()) for form in coefficients() for p in form) == 0


@pytest.mark.parametrize(
    ("polynomial", "expected"),
    [
        ({(0, 0, 0): 1, (1, 0, 0): -1}, True),  # 1 - x
        ({(0, 0, 0): 1, (1, 0, 0): -3, (2, 0, 0): 3}, True),  # a quarter at least, after a halving
        ({(0, 0, 0): 1, (1, 0, 0): -2}, False),  # 1 - 2x
        ({(0, 0, 0): 1, (1, 0, 0): -5, (2, 0, 0): 5}, False),  # negative inside only
        ({(2, 0, 0): 9, (1, 0, 0): -6, (0, 0, 0): 1}, None),  # (3x - 1)², which no halving meets
    ],
)
def test_the_check_sees_signs(polynomial: Polynomial, expected: bool | None) -> None:
    assert is_nonnegative(polynomial) is expected


def test_a_wrong_sign_is_caught() -> None:
    """With the square of the circulation counted twice a coefficient turns negative."""
    _, third = brackets()
    wrong = third - KERNEL.det() * j**2 * sum(VISITS)
    form = sympy.Poly(sympy.expand(wrong.subs(SMALLEST)), t, b2, b3, *loops)
    terms = [sympy.Poly(coefficient, x, y, w).terms() for _, coefficient in form.terms()]
    verdicts = [is_nonnegative({powers: int(v) for powers, v in term}) for term in terms]
    assert False in verdicts


# --- And in floating point, with the package ------------------------------------------------------


def test_sum_exceeds_product_on_random_problems() -> None:
    generator = torch.Generator().manual_seed(1)
    draw: dict[str, Any] = {
        "batch_shape": (4000,),
        "generator": generator,
        "dtype": torch.float64,
    }
    discount = 0.95
    chains = ictd.loop_chain(3, discount=discount, **draw)
    features = ictd.unit_sphere_features(3, 3, **draw)
    score = ictd.BilinearScore(5 * torch.eye(3, dtype=torch.float64))
    attention = ictd.population_attention(chains, features, score)
    drift = ictd.drift_matrix(attention, chains.transition, discount)
    sigma = drift.diagonal(dim1=-2, dim2=-1).sum(-1) - (1 - discount)
    product_of_two = torch.linalg.det(drift) / (1 - discount)
    assert (sigma > product_of_two).all()
    assert (ictd.step_size_limit(drift) > 1).all()
