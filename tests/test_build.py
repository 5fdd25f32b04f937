"""The build itself, on a book of one page: it fails where it must and is never out of date."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
HEAD = """\
---
jupytext:
  formats: md:myst
  text_representation:
    extension: .md
    format_name: myst
    format_version: 0.13
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

(ch-small)=
# Small

:::{prf:theorem} Small
:label: thm-small
One.
:::

"""
CELL = "```{code-cell} ipython3\n%s\n```\n"


class SmallBook:
    """A copy of the machinery of the book with one chapter, 03-small.md."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("tools", "book/_ext", "book/_static"):
            shutil.copytree(ROOT / name, root / name)
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, root)
        (root / "_vendor").symlink_to(ROOT / "_vendor")
        config = (ROOT / "_config.yml").read_text(encoding="utf-8")
        self.write("_config.yml", config.replace("timeout: 120", "timeout: 3"))
        part = "{caption: Story, numbered: true, chapters: [{file: book/03-small}]}"
        self.write("_toc.yml", f"format: jb-book\nroot: book/index\nparts: [{part}]\n")
        self.write("book/index.md", "# Index\n\n{prf:ref}`thm-small`\n")
        self.write("book/references.bib", "")
        self.write("src/number.txt", "1111")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def build(self, chapter: str, *flags: str) -> subprocess.CompletedProcess[str]:
        self.write("book/03-small.md", HEAD + chapter)
        command = [sys.executable, "tools/build_book.py", *flags]
        return subprocess.run(command, cwd=self.root, capture_output=True, text=True)

    def page(self) -> str:
        return (self.root / "_build/html/book/03-small.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory, site: Path) -> SmallBook:
    """Made after the site, so that the browser's assets are there."""
    return SmallBook(tmp_path_factory.mktemp("book"))


READS = CELL % 'from pathlib import Path\nint(Path("../src/number.txt").read_text()) + 4321'


def test_a_change_of_the_package_reaches_the_page(book: SmallBook) -> None:
    book.write("src/number.txt", "1111")
    done = book.build(READS)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "5432" in book.page()
    book.write("src/number.txt", "1112")
    assert book.build(READS, "--if-stale").returncode == 0
    assert "5433" in book.page()


def test_a_current_site_is_left_alone_and_a_cached_chapter_keeps_its_outputs(
    book: SmallBook,
) -> None:
    assert book.build(READS, "--if-stale").returncode == 0
    time = (book.root / "_build/html/index.html").stat().st_mtime_ns
    assert book.build(READS, "--if-stale").returncode == 0
    assert (book.root / "_build/html/index.html").stat().st_mtime_ns == time
    assert book.build(READS).returncode == 0  # now from the cache
    path = book.root / "_build/html/_sources/book/03-small.ipynb"
    *_, cell = nbformat.read(path, as_version=4).cells
    assert cell.outputs[0].data["text/plain"].startswith("543")


def test_numbers_are_those_of_the_file_name(book: SmallBook) -> None:
    assert book.build(READS, "--if-stale").returncode == 0
    assert '<span class="section-number">3. </span>Small' in book.page()
    assert "Theorem 3.1" in book.page()
    index = (book.root / "_build/html/book/index.html").read_text(encoding="utf-8")
    assert "Theorem 3.1" in index


@pytest.mark.parametrize(
    ("chapter", "reason"),
    [
        pytest.param(
            CELL % '1 + 1\nraise RuntimeError("nothing doing")', "nothing doing", id="raises"
        ),
        pytest.param(CELL % "import time\ntime.sleep(60)", "timed out", id="outlives the timeout"),
        pytest.param(CELL % 'import warnings\nwarnings.warn("hm")', "stderr", id="warns"),
        pytest.param("{prf:ref}`thm-missing`", "thm-missing", id="leads nowhere"),
    ],
)
def test_a_fault_ends_the_build(book: SmallBook, chapter: str, reason: str) -> None:
    book.write("_build/html.stamp", "of an earlier build")
    book.write("_build/html/book/03-small.html", "an earlier page")
    done = book.build(chapter)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert reason in said
    assert "03-small" in said
    assert "direct cause" not in said  # a cell's traceback comes once
    assert not (book.root / "_build/html.stamp").exists()
    page = book.root / "_build/html/book/03-small.html"
    assert not page.exists() or "an earlier page" not in page.read_text(encoding="utf-8")
    if reason in {"nothing doing", "timed out"}:
        assert not page.exists()
