"""The book as one PDF: a part of it, as the whole takes minutes to print."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import Browser
from pypdf import PdfReader

from browse import isolate, serve
from pdf import HEIGHT, PREPARE, SHRINK, STYLE, WIDTH, contents, print_book

pytestmark = pytest.mark.browser
# Code on the pages has backslashes too, but none of these.
TEX = re.compile(
    r"\$\$|(?<!\\)\\(?:[()\[\]] |(?:frac|sum|hat|mathbb|operatorname|left|gamma|KDM|softmax)\b)"
)
PART = [contents()[0], "book/03-softmax-layer", "book/08-emergence", "book/results", "book/status"]


@pytest.fixture(scope="module")
def book(site: Path, browser: Browser) -> PdfReader:
    return PdfReader(io.BytesIO(print_book(browser, site, PART)))


@pytest.fixture(scope="module")
def texts(book: PdfReader) -> list[str]:
    return [page.extract_text() for page in book.pages]


@pytest.fixture(scope="module")
def begins(book: PdfReader) -> list[int]:
    """The index of the page on which each part begins: the outline's entries of the first level."""
    entries = [entry for entry in book.outline if not isinstance(entry, list)]
    return [book.get_destination_page_number(entry) for entry in entries]


def squeezed(text: str) -> str:
    """Without spaces, which lines and fonts put anywhere."""
    return re.sub(r"\s+", "", text)


def heading(site: Path, docname: str) -> str:
    soup = BeautifulSoup((site / f"{docname}.html").read_text(encoding="utf-8"), "html.parser")
    title = soup.select_one(".bd-article h1")
    assert title is not None
    return squeezed(title.get_text().removesuffix("#"))


def test_every_page_of_the_contents_is_there(
    book: PdfReader, texts: list[str], begins: list[int], site: Path
) -> None:
    entries = [entry for entry in book.outline if not isinstance(entry, list)]
    wanted = [heading(site, docname) for docname in PART]
    assert [squeezed(str(entry.title)) for entry in entries] == wanted
    for title, begin in zip(wanted, begins, strict=True):
        assert title in squeezed(texts[begin])
        assert title + str(begin + 1) in squeezed(texts[0])  # in the contents, with its number


def test_pages_are_numbered_and_fit_the_paper(book: PdfReader, texts: list[str]) -> None:
    assert {
        (round(float(p.mediabox.width)), round(float(p.mediabox.height))) for p in book.pages
    } == {(595, 842)}
    numbers = [re.search(rf"(^|\n){n}(\n|$)", text) for n, text in enumerate(texts, start=1)]
    assert [n for n, found in enumerate(numbers, start=1) if found is None] in ([], [1])


def test_mathematics_is_typeset(texts: list[str]) -> None:
    assert [found[0] for text in texts if (found := TEX.search(text))] == []
    assert TEX.search(r"see \( x \) and") is not None
    assert TEX.search(r"\frac{1}{2}") is not None
    assert TEX.search(r'label="$\\frac{1}{2}$"') is None  # of a figure, in code


def test_figures_and_folded_proofs_are_printed(
    book: PdfReader, texts: list[str], begins: list[int], site: Path
) -> None:
    for docname, begin, end in zip(PART, begins, [*begins[1:], len(texts)], strict=True):
        soup = BeautifulSoup((site / f"{docname}.html").read_text(encoding="utf-8"), "html.parser")
        pictures = {image["src"] for image in soup.select("article img[src$='.png']")}
        drawn = {
            reference.idnum
            for page in book.pages[begin:end]
            for reference in page["/Resources"].get("/XObject", {}).values()
        }
        assert len(drawn) >= len(pictures)
        head = heading(site, docname)
        text = "".join(squeezed(texts[p]).removeprefix(f"{head}{p + 1}") for p in range(begin, end))
        for proof in soup.select("details .proof p"):
            words = re.match(r"[A-Za-z ]{12,40}(?= )", proof.get_text())
            if words:
                assert squeezed(words[0]) in text


def test_links_lead_to_the_published_site(book: PdfReader) -> None:
    found = {
        str(annotation.get_object()["/A"]["/URI"])
        for page in book.pages
        for annotation in page.get("/Annots", [])
        if "/URI" in annotation.get_object().get("/A", {})
    }
    assert [link for link in found if "127.0.0.1" in link or not link.startswith("http")] == []
    assert "https://ictd-book.github.io/ictd/book/03-softmax-layer.html#thm-equivalence" in found


def test_nothing_is_wider_than_the_paper(browser: Browser, site: Path) -> None:
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    tab = context.new_page()
    tab.emulate_media(media="print")
    with serve(site) as address:
        isolate(context, address)
        tab.goto(f"{address}book/05-convergence.html", wait_until="load")
        tab.evaluate(PREPARE, [address, "https://example.org/"])
        tab.add_style_tag(content=STYLE % {"before": 0, "title": '""'})
        tab.evaluate(SHRINK)
        wide = """[...document.querySelectorAll(".bd-article :is(mjx-container[display], pre)")]
          .filter((box) => box.scrollWidth > box.clientWidth + 1)
          .map((box) => box.outerHTML.slice(0, 200))"""
        assert tab.evaluate(wide) == []
    context.close()
