"""A chapter as a notebook without the solutions of its exercises."""

from __future__ import annotations

import re

import nbformat

SOLUTION = re.compile(r"^:{3,}\{solution-(start|end)\}.*?^:{3,}[ ]*$", re.MULTILINE | re.DOTALL)


def without_solutions(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy in which an empty cell stands where each solution stood."""
    copy: nbformat.NotebookNode = nbformat.from_dict(notebook)
    copy.cells, hidden = [], False
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            if not hidden:
                copy.cells.append(cell)
            continue
        # text, "start", text, "end", text, …: what follows "start" is a solution
        parts = SOLUTION.split(cell.source)
        for number, part in enumerate(parts):
            if number % 2:
                hidden = part == "start"
                if hidden:
                    copy.cells.append(answer_cell(len(copy.cells)))
            elif not hidden and part.strip():
                copy.cells.append(text_cell(part.strip(), len(copy.cells)))
    return copy


def answer_cell(number: int) -> nbformat.NotebookNode:
    """Where the reader works."""
    cell: nbformat.NotebookNode = nbformat.v4.new_code_cell("# Your answer", id=f"answer-{number}")
    return cell


def text_cell(source: str, number: int) -> nbformat.NotebookNode:
    """Prose between solutions."""
    cell: nbformat.NotebookNode = nbformat.v4.new_markdown_cell(source, id=f"text-{number}")
    return cell
