"""The directive ``results``: every numbered statement of a page, with its number and title.

:::{results} 05-convergence
:::
"""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from claims_table import check
from ictd.claims import registry

STATEMENT = re.compile(r"^:{3,}\{prf:(?!proof)\w+\} *(.*)\n:label: (\S+)", re.MULTILINE)
HEADINGS = ("result", "title", "check")


class ResultsTable(SphinxDirective):
    """A table with one row for each numbered statement of a page, in the order of the page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Write the table in Markdown and have it read as if it stood on the page."""
        (page,) = self.arguments
        path = Path(self.env.doc2path(self.env.docname)).with_name(f"{page}.md")
        self.env.note_dependency(str(path))
        rows = statements(path.read_text(encoding="utf-8"))
        if not rows:
            raise self.error(f"results: expected a page with numbered results, got {page!r}")
        box = nodes.container()
        text = StringList(table(rows).splitlines(), source=self.env.docname)
        self.state.nested_parse(text, 0, box)
        return list(box.children)


def statements(text: str) -> dict[str, str]:
    """The title of every labelled statement, by its label."""
    return {label: title for title, label in STATEMENT.findall(text)}


def table(titles: dict[str, str]) -> str:
    """The table as a MyST directive; the references put the numbers in."""
    rows = [HEADINGS, *((f"{{prf:ref}}`{label}`", titles[label], tried(label)) for label in titles)]
    text = [":::{list-table}", ":header-rows: 1", ":class: results", ""]
    for cells in rows:
        for mark, cell in zip(("* - ", "  - ", "  - "), cells, strict=True):
            text.append(mark + cell)
    return "\n".join([*text, ":::"])


def tried(label: str) -> str:
    """How the numbers of a result are checked; definitions and assumptions claim nothing."""
    claim = registry().get(label)
    return f"`{label}`: {check(claim)}" if claim else "–"


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("results", ResultsTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
