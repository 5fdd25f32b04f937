"""The registry: what a claim is, how one is entered, and how its check is judged."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["CASES", "CLAIMS", "Claim", "Outcome", "Result", "claim", "seeded"]

CASES = 1000
"""Random problems that a check tries at least, unless it is an exact example."""


@dataclass(frozen=True)
class Outcome:
    """Hold what a check measured.

    Args:
        cases: How many problems were tried.
        deviation: For an equality, the largest ``|lhs - rhs| / max(1, |rhs|)`` seen; for an
            inequality ``lhs <= rhs``, the largest ``(lhs - rhs) / max(1, |rhs|)``, which may be
            negative.
        tightness: For an inequality, the largest ``lhs / rhs`` seen; 1 is equality. None otherwise.
    """

    cases: int
    deviation: float
    tightness: float | None = None


Check = Callable[[torch.Generator], Outcome]


@dataclass(frozen=True)
class Claim:
    """Hold a numbered result of the book and the check of its numbers.

    Args:
        label: The label of the result in the book.
        page: The page that states it, without ``.md``.
        statement: The result in one line of plain text.
        functions: The public names that the result is about, ``Class.method`` for a method.
        tolerance: The largest deviation that passes.
        attained: The least tightness that passes; None for equalities.
        exact: Whether the check is an exact example, which needs no 1,000 problems.
        check: The check.
    """

    label: str
    page: str
    statement: str
    functions: tuple[str, ...]
    tolerance: float
    attained: float | None
    exact: bool
    check: Check

    def run(self, seed: int = 0) -> Result:
        """Run the check. What it raises is a failure with a message.

        Args:
            seed: The seed; every claim draws its own numbers from it.

        Returns:
            What was measured and the verdict.
        """
        start = time.perf_counter()
        try:
            outcome = self.check(seeded(self.label, seed))
            message = self._fault(outcome)
        except Exception as error:  # whatever a check raises is a result, not a crash
            outcome = Outcome(0, math.nan)
            message = f"{type(error).__name__}: {error}"
        return Result(self, outcome, message, time.perf_counter() - start)

    def _fault(self, outcome: Outcome) -> str:
        """Say what is wrong with an outcome; nothing if it passes. NaN never passes."""
        if outcome.cases < (1 if self.exact else CASES):
            return f"only {outcome.cases} cases"
        if not outcome.deviation <= self.tolerance:
            return f"deviation {outcome.deviation:.3g} > tolerance {self.tolerance:.3g}"
        if self.attained is None:
            return ""
        if outcome.tightness is None:
            return "no tightness reported"
        if not outcome.tightness >= self.attained:
            return f"tightness {outcome.tightness:.3g} < {self.attained:.3g}: tried where slack"
        return ""


@dataclass(frozen=True)
class Result:
    """Hold how the check of one claim ended.

    Args:
        claim: The claim.
        outcome: What was measured.
        message: Why the claim failed; empty if it holds.
        seconds: How long the check took.
    """

    claim: Claim
    outcome: Outcome
    message: str
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether the claim passed its check."""
        return not self.message


CLAIMS: dict[str, Claim] = {}
"""All claims entered so far, by label; :func:`ictd.claims.registry` fills it."""


def claim(
    label: str,
    *,
    page: str,
    statement: str,
    functions: tuple[str, ...] = (),
    tolerance: float,
    attained: float | None = None,
    exact: bool = False,
) -> Callable[[Check], Check]:
    """Enter a check into the registry.

    Args:
        label: The label of the result in the book; its prefix says what it is.
        page: The page that states it, without ``.md``.
        statement: The result in one line of plain text.
        functions: The public names that the result is about, ``Class.method`` for a method.
        tolerance: The largest deviation that passes.
        attained: The least tightness demanded; None for equalities.
        exact: Whether the check is an exact example rather than many random problems.

    Returns:
        A decorator that enters the function and leaves it as it is.

    Raises:
        ValueError: If the label is taken or no label of a result, or the statement is no one line.
    """
    if not re.fullmatch(r"(thm|prop|lem|cor)-[a-z0-9-]+", label):
        raise ValueError(f"label: expected the label of a result, thm-…, got {label!r}")
    if label in CLAIMS:
        raise ValueError(f"label: expected one check for each result, got a second {label!r}")
    if not statement.strip() or "\n" in statement:
        raise ValueError(f"statement: expected one line of text, got {statement!r}")

    def enter(check: Check) -> Check:
        CLAIMS[label] = Claim(label, page, statement, functions, tolerance, attained, exact, check)
        return check

    return enter


def seeded(label: str, seed: int) -> torch.Generator:
    """Return the claim's own source of randomness.

    Args:
        label: The label of the claim.
        seed: The seed that the user chose.

    Returns:
        A generator on the CPU, the same on every machine.
    """
    digest = hashlib.sha256(f"{label}:{seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
