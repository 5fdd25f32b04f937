"""The chapters: how they are written, and that they ran.

The build runs them; here its outputs are looked at, so that they run once.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import jupytext
import nbformat
import pytest
import yaml

ROOT = Path(__file__).parents[1]
BOOK = ROOT / "book"
PAGES = sorted(BOOK.glob("*.md"))
CHAPTERS = [page for page in PAGES if page.name[0].isdecimal()]
WITH_CELLS = [page for page in PAGES if "{code-cell}" in page.read_text(encoding="utf-8")]
RESULTS = r"^:{3,}\{prf:(?:theorem|proposition|lemma|corollary)\}"

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
every_chapter = pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.stem)
every_notebook = pytest.mark.parametrize("page", WITH_CELLS, ids=lambda page: page.stem)


@cache
def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@cache
def cells(page: Path, kind: str) -> list[str]:
    """The sources of the cells of one kind, code or markdown."""
    return [cell.source for cell in jupytext.read(page).cells if cell.cell_type == kind]


def faults_of_width(source: str) -> list[str]:
    return [line for line in source.splitlines() if len(line) > 76]


def words_of_place(prose: str) -> list[str]:
    """Where prose says where things stand, which no page keeps for long; formulas left out."""
    prose = re.sub(r"\$\$.*?\$\$|\$[^$]*\$|```.*?```|`[^`]*`", "", prose, flags=re.DOTALL)
    return re.findall(r".*\b(?:above|below)\b.*", prose, flags=re.IGNORECASE)


def results_without_proof(source: str) -> list[str]:
    """Results that the next result or the end of the page reaches before a proof."""
    parts = re.split(f"(?={RESULTS})", source, flags=re.MULTILINE)[1:]
    return [part.partition("\n")[0] for part in parts if "{prf:proof}" not in part]


def exercises_without_solution(source: str) -> set[str]:
    asked = set(re.findall(r"\{exercise\}[^\n]*\n:label: (\S+)", source))
    unlabelled = source.count("{exercise}") - len(asked)
    solved = set(re.findall(r"\{solution(?:-start)?\} (\S+)", source))
    return (asked - solved) | {"without a label"} if unlabelled else asked - solved


def images_without_words(html: str) -> list[str]:
    """Images with no alternative text; Sphinx puts the file's name where an author wrote none."""
    images = re.findall(r"<img\b[^>]*>", html)
    alternatives = [re.search(r'\balt="([^"]*)"', image) for image in images]
    return [
        image
        for image, alt in zip(images, alternatives, strict=True)
        if alt is None or not alt[1].strip() or alt[1].endswith((".png", ".svg", ".jpg"))
    ]


def test_every_chapter_is_in_the_contents() -> None:
    parts = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"]
    listed = [Path(chapter["file"]).name for part in parts for chapter in part["chapters"]]
    assert [name for name in listed if name[0].isdecimal()] == [page.stem for page in CHAPTERS]
    assert set(listed) == {page.stem for page in PAGES} - {"index"}


@every_notebook
def test_lines_of_code_fit_the_page(page: Path) -> None:
    assert [line for cell in cells(page, "code") for line in faults_of_width(cell)] == []


@every_page
def test_prose_does_not_point_up_or_down(page: Path) -> None:
    assert [line for cell in cells(page, "markdown") for line in words_of_place(cell)] == []


@every_chapter
def test_every_result_is_proved(page: Path) -> None:
    assert results_without_proof(text(page)) == []


@every_chapter
def test_every_exercise_is_solved(page: Path) -> None:
    assert exercises_without_solution(text(page)) == set()
    assert text(page).count("{exercise}") >= 3


@every_notebook
def test_every_cell_ran(page: Path, site: Path) -> None:
    """In the notebook for download: all cells, in order, without an error or a warning."""
    notebook = nbformat.read(site / "_sources" / "book" / f"{page.stem}.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code.pop(0).metadata.tags == ["install"]
    assert "jupytext" not in notebook.metadata  # or JupyterLab looks for a paired file
    assert r"\newcommand{\E}{\operatorname{\mathbb{E}}}" in notebook.cells[1].source
    assert [cell.source for cell in code] == cells(page, "code")
    assert [cell.execution_count for cell in code] == [n + 1 for n in range(len(code))]
    outputs = [output for cell in code for output in cell.outputs]
    assert [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"] == []
    assert outputs


@every_chapter
def test_the_exercises_run_without_their_solutions(page: Path, site: Path) -> None:
    """The notebook for those who try first: all exercises, no solution, no cell that needs one.

    Exercises come last: all other cells stand before the first answer, as they ran in the chapter.
    """
    path = site / "_sources" / "book" / f"{page.stem}-exercises.ipynb"
    notebook = nbformat.read(path, as_version=4)
    prose = "".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert prose.count("{exercise}") == text(page).count("{exercise}")
    assert "{solution" not in prose
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    answers = ["# Your answer"] * text(page).count("{solution-start}")
    before = cells(page, "code")[: len(code) - 1 - len(answers)]
    assert code[1:] == before + answers  # the first installs the package where there is none
    assert len(before) < len(cells(page, "code"))


@every_notebook
def test_launch_links_lead_to_files(page: Path, site: Path) -> None:
    """Colab's to a notebook of the published site, Binder's to a page of the repository."""
    html = (site / "book" / f"{page.stem}.html").read_text(encoding="utf-8")
    colab = re.search(r'href="https://colab[^"]*/blob/gh-pages/([^"]*)"', html)
    binder = re.search(r'href="https://mybinder[^"]*urlpath=lab/tree/([^"]*)"', html)
    downloads = re.findall(r'href="\.\./(_sources/[^"]*\.ipynb)"', html)
    assert colab is not None
    assert binder is not None
    assert colab[1] in downloads
    assert [name for name in downloads if not (site / name).is_file()] == []
    assert (ROOT / binder[1]) == page


@every_page
def test_every_image_has_words(page: Path, site: Path) -> None:
    html = (site / "book" / f"{page.stem}.html").read_text(encoding="utf-8")
    article = html.partition("<article")[2].partition("</article>")[0]
    assert images_without_words(article) == []


def test_the_checks_see_faults() -> None:
    assert faults_of_width("x" * 77 + "\n" + "x" * 76) == ["x" * 77]
    assert words_of_place("As shown above.\n$a$, `below`, $above$.") == ["As shown above."]
    theorem, proof = ":::{prf:theorem} A\n", "::::{dropdown} Proof\n:::{prf:proof}\n"
    assert results_without_proof(theorem + proof) == []
    assert results_without_proof(theorem + theorem + proof) == [theorem.strip()]
    exercise, solution = ":::{exercise} A\n:label: a\n", ":::{solution-start} a\n"
    assert exercises_without_solution(exercise + solution) == set()
    assert exercises_without_solution(exercise) == {"a"}
    assert exercises_without_solution(":::{exercise} A\n") == {"without a label"}
    pictures = '<img alt="A curve falls." src="a.png"><img src="b.png"><img alt="../c.png">'
    assert images_without_words(pictures) == ['<img src="b.png">', '<img alt="../c.png">']
