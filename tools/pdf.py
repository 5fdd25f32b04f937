"""Print the built site into one PDF, _build/html/ictd.pdf: every page of the contents, in order.

What is folded on the pages is open, explorers are the pictures that stand for them, and what is too
wide for the paper is made smaller. Links lead to the published site.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import yaml
from playwright.sync_api import Browser, Page
from pypdf import PdfReader, PdfWriter

import ictd
from browse import chromium, isolate, serve
from build_book import ROOT, SITE_FOLDER

NAME = "ictd.pdf"
SCALE = 0.72  # of the screen's sizes, which are large on paper
WIDTH, HEIGHT = round(643 / SCALE), round(930 / SCALE)  # of the paper within its margins
STYLE = """
:root { counter-reset: page %(before)d; }
@page {
  size: A4;
  margin: 20mm 20mm 22mm;
  @top-right { content: %(title)s; font: 8pt sans-serif; color: #555; }
  @bottom-center { content: counter(page); font: 9pt sans-serif; }
}
/* The theme's second title and list of sections; and what folds and unfolds. */
.onlyprint, details.hide > summary, .toggle-button, .sd-summary-state-marker {
  display: none !important;
}
*, ::before, ::after { animation: none !important; transition: none !important; }
.bd-article h1 { display: block !important; }
/* Where sheets end: not within these, and not after what introduces the next. */
.cell_input, .cell_output, figure, tr { break-inside: avoid; }
.bd-main .bd-content :is(table:has(tr:nth-child(9)), details, details .admonition, .solution) {
  break-inside: auto;
}
summary, dt, caption, .rubric, .admonition-title, p:has(+ .pst-scrollable-table-container) {
  break-after: avoid;
}
tbody tr:first-child { break-before: avoid; }
.bd-article :is(.admonition, details, .proof) { box-shadow: none !important; }
/* Room below the last cell can fill a sheet of its own. */
section > .cell:last-child, section > .cell:last-child > .cell_output { margin: 0 !important; }
.cell_output pre { overflow-wrap: anywhere; white-space: pre-wrap; }
:is(.bd-main, .bd-content, .bd-article-container, .bd-article) {
  margin: 0 !important;
  max-width: none !important;
  padding: 0 !important;
}
"""
PREPARE = """async ([address, site]) => {
  await window.MathJax?.startup?.promise;
  document.querySelectorAll("details").forEach((box) => { box.open = true; });
  for (const box of document.querySelectorAll(".toggle-hidden"))
    box.classList.remove("toggle-hidden");
  for (const link of document.querySelectorAll("a[href]"))
    link.href = link.href.replace(address, site);
  for (const image of document.images) image.loading = "eager";
  await Promise.all([...document.images].map((image) => image.decode().catch(() => undefined)));
}"""
HEADINGS = """() => [...document.querySelectorAll(".bd-article :is(h1, h2, h3, h4, h5, h6)")]
  .map((heading) => heading.innerText.replace(/#$/, "").replace(/\\s+/g, " ").trim())"""
# Boxes that scroll on a screen, the outer ones first.
SHRINK = """() => {
  const boxes = ".pst-scrollable-table-container, .cell_output, mjx-container, pre";
  for (const box of document.querySelectorAll(`.bd-article :is(${boxes})`)) {
    const inline = box.matches("mjx-container:not([display])");
    const room = inline ? box.closest("p, li, dd, td, th") : box;
    if (!room || box.scrollWidth <= room.clientWidth + 1) continue;
    const size = parseFloat(getComputedStyle(box).fontSize);
    box.style.fontSize = `${size * Math.max(0.4, (0.98 * room.clientWidth) / box.scrollWidth)}px`;
  }
}"""
FRONT = """<!doctype html><html lang="en"><title>%(title)s</title>
<style>
  @page { size: A4; margin: 20mm; }
  body { font: 15pt sans-serif; }
  h1 { margin: 30mm 0 5mm; font-size: 36pt; }
  h2 { margin-top: 16mm; font-size: 17pt; }
  ol { list-style: none; padding: 0; }
  li { display: flex; margin: 1.5mm 0; }
  li span { flex: 1; margin: 0 2mm; border-bottom: 1px dotted #888; }
</style>
<h1>%(title)s</h1>
<p>%(author)s</p>
<p>Version %(version)s. The pages of <a href="%(site)s">%(site)s</a>, printed: code, figures,
proofs and solutions are those of the site, and links lead there.</p>
<p>Code under the MIT licence, text and figures under CC BY 4.0.</p>
<h2>Contents</h2>
<ol>%(items)s</ol>"""


@dataclass(frozen=True)
class Part:
    """A printed page of the site: its headings, and the page of the PDF on which it begins."""

    headings: list[str]
    begins: int
    sheets: PdfReader


def load(name: str) -> Any:
    """One of Jupyter Book's two files."""
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def contents() -> list[str]:
    """All pages, in the order of the menu."""
    toc = load("_toc.yml")
    chapters = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    return [toc["root"], *chapters]


def print_page(tab: Page, address: str, docname: str, site: str, begins: int) -> Part:
    """Print one page of the site, its first sheet with the given number."""
    tab.goto(f"{address}{docname}.html", wait_until="load")
    tab.evaluate(PREPARE, [address, site])
    headings = tab.evaluate(HEADINGS)
    style = {"before": begins - 1, "title": json.dumps(headings[0])}
    tab.add_style_tag(content=STYLE % style)
    tab.evaluate(SHRINK)
    return Part(headings, begins, sheets(tab))


def sheets(tab: Page) -> PdfReader:
    """What the tab shows, on paper."""
    printed = tab.pdf(
        scale=SCALE,
        prefer_css_page_size=True,
        print_background=True,
        outline=True,
        tagged=True,  # or there is no outline
    )
    return PdfReader(io.BytesIO(printed))


def front_page(tab: Page, parts: list[Part], site: str) -> PdfReader:
    """Title and contents."""
    config = load("_config.yml")
    lines = (f"<li>{escape(p.headings[0])}<span></span>{p.begins}</li>" for p in parts)
    words = {
        "title": escape(config["title"]),
        "author": escape(config["author"]),
        "version": ictd.__version__,
        "site": site,
        "items": "".join(lines),
    }
    tab.set_content(FRONT % words)
    return sheets(tab)


def print_book(browser: Browser, folder: Path, docnames: list[str]) -> bytes:
    """These pages of the book; `contents()` are all."""
    site = load("_config.yml")["html"]["baseurl"]
    parts: list[Part] = []
    with serve(folder) as address:
        context = browser.new_context(
            viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light"
        )
        isolate(context, address)
        tab = context.new_page()
        tab.emulate_media(media="print")
        begins = 2
        for docname in docnames:
            parts.append(print_page(tab, address, docname, site, begins))
            begins += len(parts[-1].sheets.pages)
        front = front_page(tab, parts, site)
        context.close()
    return bind(front, parts)


def bind(front: PdfReader, parts: list[Part]) -> bytes:
    """One PDF of all parts, with an outline."""
    writer = PdfWriter()
    writer.append(front, import_outline=False)
    if len(front.pages) != parts[0].begins - 1:
        raise ValueError(f"expected contents of one page, got {len(front.pages)}")
    for part in parts:
        writer.append(part.sheets, import_outline=False)
        add_outline(writer, part)
    config = load("_config.yml")
    writer.add_metadata({"/Title": config["title"], "/Author": config["author"]})
    writer.page_mode = "/UseOutlines"
    writer.compress_identical_objects()
    whole = io.BytesIO()
    writer.write(whole)
    return whole.getvalue()


def add_outline(writer: PdfWriter, part: Part) -> None:
    """Add a part's headings in the words of the page: Chromium's lack numbers and spaces."""
    entries = list(flat(part.sheets.outline))
    above: list[Any] = []
    for (depth, entry), title in zip(entries, part.headings, strict=True):
        page = part.begins - 1 + (part.sheets.get_destination_page_number(entry) or 0)
        del above[depth:]
        parent = above[-1] if above else None
        above.append(writer.add_outline_item(title=title, page_number=page, parent=parent))


def flat(entries: list[Any], depth: int = 0) -> Iterator[tuple[int, Any]]:
    """The entries of an outline, each with its depth."""
    for entry in entries:
        if isinstance(entry, list):
            yield from flat(entry, depth + 1)
        else:
            yield depth, entry


def main() -> None:
    with chromium() as browser:
        content = print_book(browser, SITE_FOLDER, contents())
    path = SITE_FOLDER / NAME
    path.write_bytes(content)
    print(f"The book is printed: {path}, {len(content) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
