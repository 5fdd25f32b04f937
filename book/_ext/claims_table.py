"""The directive ``claims``: the results of a page and their checks, from the registry of claims.

:::{claims} 05-convergence
:::
"""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Iterable
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

import ictd
from ictd.claims import CASES, Claim, registry

CAPTION = "The results, and how their numbers are checked"
HEADINGS = (["result"], ["what it says, and code"], ["check"])


class ClaimsTable(SphinxDirective):
    """A table with one row for each numbered result of a page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Write the table in Markdown and have it read as if it stood on the page."""
        (page,) = self.arguments
        claims = [claim for claim in registry().values() if claim.page == page]
        if not claims:
            raise self.error(f"claims: expected a page with claims, got {page!r}")
        chapter = Path(self.env.doc2path(f"book/{page}"))
        self.env.note_dependency(str(chapter))
        claims = in_order(claims, chapter.read_text(encoding="utf-8"))
        for module in Path(inspect.getfile(registry)).parent.glob("*.py"):
            self.env.note_dependency(str(module))
        lines = markdown(claims).splitlines()
        box = nodes.container()
        self.state.nested_parse(StringList(lines, source=self.env.docname), 0, box)
        return list(box.children)


def in_order(claims: Iterable[Claim], chapter: str) -> list[Claim]:
    """The claims as the chapter's text states them, one after the other."""
    labels = re.findall(r"^:label: (\S+)$", chapter, re.MULTILINE)
    return sorted(claims, key=lambda claim: labels.index(claim.label))


def markdown(claims: Iterable[Claim]) -> str:
    """The table as a MyST directive."""
    rows = [HEADINGS, *(row(claim) for claim in claims)]
    text = [f":::{{list-table}} {CAPTION}", ":header-rows: 1", ":class: claims", ""]
    for cells in rows:
        for mark, paragraphs in zip(("* - ", "  - ", "  - "), cells, strict=True):
            text.append(mark + "\n\n    ".join(paragraphs))
    return "\n".join([*text, ":::"])


def row(claim: Claim) -> tuple[list[str], list[str], list[str]]:
    """The three cells of a claim, each of one or two paragraphs."""
    links = ", ".join(map(code, claim.functions))
    says = [escape(claim.statement), *([links] if links else [])]
    return [f"{{prf:ref}}`{claim.label}`"], says, [f"`{claim.label}`", check(claim)]


def code(name: str) -> str:
    """A link to a function, a class or a method of the package, by its short name."""
    thing = operator.attrgetter(name)(ictd)
    role = "class" if inspect.isclass(thing) else "meth" if "." in name else "func"
    return f"{{{role}}}`~ictd.{name}`"


def check(claim: Claim) -> str:
    """What is tried, and how exactly it must hold."""
    tried = "an exact example" if claim.exact else f"≥ {CASES:,} problems"
    tight = "" if claim.attained is None else f", attained to {claim.attained:g}"
    exactly = f"to {claim.tolerance:.0e}" if claim.tolerance else "exactly"
    exactly = re.sub("e-0?", "e\N{MINUS SIGN}", exactly)  # a hyphen is where lines break
    return f"{tried}, {exactly}{tight}"


def escape(text: str) -> str:
    """Plain text that Markdown leaves alone."""
    return re.sub(r"([\\`*_{}\[\]<>#|$^~])", r"\\\1", text)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("claims", ClaimsTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
