"""The directive that writes the tables of results, and the tables on the pages."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from claims_table import code, escape, markdown
from ictd.claims import registry

ROOT = Path(__file__).parents[1]
CLAIMS = registry()
PAGES = sorted({claim.page for claim in CLAIMS.values()})


def test_a_row_says_everything() -> None:
    claim = replace(
        CLAIMS["thm-equivalence"],
        statement="It's at most a*b_c.",
        functions=("InContextTD", "softmax_td", "Prompt.trim"),
        tolerance=1e-11,
        attained=0.9,
    )
    lines = markdown([claim]).splitlines()
    assert lines[1:3] == [":header-rows: 1", ":class: claims"]
    assert lines[4:] == [
        "* - result",
        "  - what it says, and code",
        "  - check",
        "* - {prf:ref}`thm-equivalence`",
        r"  - It's at most a\*b\_c.",
        "",
        "    {class}`~ictd.InContextTD`, {func}`~ictd.softmax_td`, {meth}`~ictd.Prompt.trim`",
        "  - `thm-equivalence`",
        "",
        "    ≥ 1,000 problems, to 1e\N{MINUS SIGN}11, attained to 0.9",
        ":::",
    ]
    exact = markdown([replace(claim, exact=True, attained=None, tolerance=1e-9)])
    assert "    an exact example, to 1e\N{MINUS SIGN}9\n" in exact
    assert ", exactly\n" in markdown([replace(claim, attained=None, tolerance=0.0)])


def test_a_name_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        code("no_such_name")


def test_markdown_is_escaped() -> None:
    assert escape("a_b*c < {d} [e] `f` $g$ |h|") == (r"a\_b\*c \< \{d\} \[e\] \`f\` \$g\$ \|h\|")


@pytest.mark.parametrize("page", PAGES)
def test_every_page_with_results_ends_with_its_table(page: str) -> None:
    for name in (page, "claims"):
        text = (ROOT / "book" / f"{name}.md").read_text(encoding="utf-8")
        assert text.count(f"{{claims}} {page}\n") == 1


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_link_to_results_and_code(page: str, site: Path) -> None:
    for name in (page, "claims"):
        html = (site / "book" / f"{name}.html").read_text(encoding="utf-8")
        tables = "".join(re.findall(r'<table class="[^"]*\bclaims\b.*?</table>', html, re.DOTALL))
        assert '<th class="head"><p>what it says, and code</p></th>' in tables
        numbers = [
            tuple(map(int, found)) for found in re.findall(r">[A-Z]\w+ (\d+)\.(\d+)<", tables)
        ]
        assert numbers == sorted(numbers)
        assert len(numbers) >= sum(claim.page == page for claim in CLAIMS.values())
        for label, claim in CLAIMS.items():
            if claim.page != page:
                continue
            assert f'#{label}"' in tables
            for function in claim.functions:
                assert f'href="api.html#ictd.{function}"' in tables
