"""The registry of claims: every numbered result of the book has a check, and the check passes.

``ictd verify`` runs the same checks; here they also run with types and axes checked at every call.
"""

from __future__ import annotations

import operator
import re
from pathlib import Path

import pytest

import ictd
from ictd.claims import CASES, MODULES, Claim, registry

ROOT = Path(__file__).parents[1]
RESULT = r"^:{3,}\{prf:(?:theorem|proposition|lemma|corollary)\}[^\n]*\n:label: (\S+)"
CLAIMS = registry()


def results() -> dict[str, str]:
    """The page of every label of a numbered result."""
    return {
        label: page.stem
        for page in sorted((ROOT / "book").glob("*.md"))
        for label in re.findall(RESULT, page.read_text(encoding="utf-8"), re.MULTILINE)
    }


each_claim = pytest.mark.parametrize(
    "claim",
    [pytest.param(claim, marks=pytest.mark.claim(label)) for label, claim in CLAIMS.items()],
    ids=list(CLAIMS),
)


def test_every_result_has_a_check() -> None:
    assert sorted(results().keys() - CLAIMS.keys()) == []


def test_every_check_belongs_to_a_result() -> None:
    assert sorted(CLAIMS.keys() - results().keys()) == []


def test_checks_name_the_page_that_states_the_result() -> None:
    assert {label: claim.page for label, claim in CLAIMS.items()} == results()


def test_the_pages_come_in_order() -> None:
    pages = [claim.page for claim in CLAIMS.values()]
    assert pages == sorted(pages)


def test_no_module_of_checks_is_left_out() -> None:
    folder = Path(ictd.__file__).parent / "claims"
    assert {p.stem for p in folder.glob("*.py") if not p.stem.startswith("_")} == set(MODULES)


@each_claim
def test_what_a_claim_says_of_itself(claim: Claim) -> None:
    assert not re.match("[a-z]", claim.statement)
    assert claim.statement.endswith(".")
    assert len(claim.statement) <= 100
    assert "$" not in claim.statement
    for name in claim.functions:
        assert name.partition(".")[0] in ictd.__all__
        assert callable(operator.attrgetter(name)(ictd))
    assert claim.check.__doc__
    assert 0 <= claim.tolerance <= 0.05


@each_claim
def test_claim(claim: Claim) -> None:
    result = claim.run()
    assert result.message == ""
    outcome = result.outcome
    assert outcome.cases >= CASES or claim.exact
    assert outcome.deviation <= claim.tolerance
    if claim.attained is not None:
        assert outcome.tightness is not None
        assert claim.attained <= outcome.tightness <= 1 + 1e-6
