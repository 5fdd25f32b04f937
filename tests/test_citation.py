"""What tools read from CITATION.cff, and the references of the book."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import ictd

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def citation() -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


@pytest.fixture(scope="module")
def references() -> dict[str, str]:
    text = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    entries = re.findall(r"^@\w+\{([^,]+),\n(.*?)^\}$", text, flags=re.MULTILINE | re.DOTALL)
    assert len(entries) == text.count("\n@")
    return dict(entries)


def test_citation_has_what_the_format_requires(citation: dict[str, Any]) -> None:
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    assert citation["authors"] == [{"name": "The ictd authors"}]


def test_citation_agrees_with_the_package(citation: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert str(citation["version"]) == project["version"] == ictd.__version__
    assert citation["license"] == project["license"]
    assert citation["repository-code"] == project["urls"]["Source"]
    assert citation["url"] == project["urls"]["Homepage"]
    assert citation["authors"] == project["authors"]


def test_preferred_citation_is_the_paper(
    citation: dict[str, Any], references: dict[str, str]
) -> None:
    paper = citation["preferred-citation"]
    assert {"type", "title", "authors", "year", "url"} <= paper.keys()
    assert paper["url"] == "https://arxiv.org/abs/2605.07333"
    names = " and ".join(f"{x['family-names']}, {x['given-names']}" for x in paper["authors"])
    entry = references["xie2026beyond"]
    assert f"{{{names}}}" in entry
    assert paper["title"] in entry.replace("{", "").replace("}", "")
    assert f"= {{{paper['year']}}}" in entry


def test_references_are_complete(references: dict[str, str]) -> None:
    for key, entry in references.items():
        fields = set(re.findall(r"^  (\w+)\s*= \{", entry, flags=re.MULTILINE))
        assert {"title", "author", "year"} <= fields, key
        venue = {"journal", "booktitle", "publisher", "eprint"}
        assert fields & venue, f"{key}: where did it appear?"


def test_no_reference_stands_twice(references: dict[str, str]) -> None:
    for field in ("doi", "eprint", "title"):
        found = re.findall(
            rf"^  {field}\s*= \{{(.*)\}}", "".join(references.values()), re.MULTILINE
        )
        assert len(found) == len(set(found))
