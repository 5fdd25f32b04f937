"""The page of all results, against the boxes on the pages that state them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup, Tag

from ictd.claims import registry
from results_table import statements, table

ROOT = Path(__file__).parents[1]
CHAPTERS = sorted((ROOT / "book").glob("[0-9]*.md"))


def soup(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")


def words(tag: Tag) -> str:
    return re.sub(r"\s+", " ", tag.get_text()).strip()


def boxes(page: Path) -> list[tuple[str, str, str]]:
    """Address, number and title of every numbered statement, as the page shows them."""
    found = []
    for box in soup(page).select("div.proof:has(span.caption-number)"):
        number, title = box.select_one(".caption-number"), box.select_one(".admonition-title")
        assert number is not None
        assert title is not None
        named = words(title).removeprefix(words(number)).strip()
        found.append((f"{page.name}#{box['id']}", words(number), named[1:-1]))  # no parentheses
    return found


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_every_statement_is_listed_with_its_number_and_title(chapter: Path, site: Path) -> None:
    listed = [
        (link["href"], words(link), words(row.select("td")[1]))
        for row in soup(site / "book" / "results.html").select("table.results tbody tr")
        for link in row.select("td:first-child a")
    ]
    here = [row for row in listed if str(row[0]).startswith(chapter.stem)]
    assert here == boxes(site / "book" / f"{chapter.stem}.html")
    assert here


def test_every_claim_is_listed_with_its_check(site: Path) -> None:
    page = soup(site / "book" / "results.html")
    checks = [words(row.select("td")[2]) for row in page.select("table.results tbody tr")]
    labels = [check.partition(":")[0] for check in checks if check != "–"]
    assert sorted(labels) == sorted(registry())


def test_a_row_says_everything() -> None:
    text = ":::{prf:theorem} On $M$\n:label: thm-equivalence\nA.\n:::\n:::{prf:proof}\n:::\n"
    text += "::::{prf:definition} Value\n:label: def-value\n"
    titles = statements(text)
    assert titles == {"thm-equivalence": "On $M$", "def-value": "Value"}
    lines = table(titles).splitlines()
    assert lines[1:8] == [
        ":header-rows: 1",
        ":class: results",
        "",
        "* - result",
        "  - title",
        "  - check",
        "* - {prf:ref}`thm-equivalence`",
    ]
    assert lines[8] == "  - On $M$"
    assert lines[9].startswith("  - `thm-equivalence`: ≥ 1,000 problems, to ")
    assert lines[10:] == ["* - {prf:ref}`def-value`", "  - Value", "  - –", ":::"]
