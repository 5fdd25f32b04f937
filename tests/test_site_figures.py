"""The text of every figure, against what is drawn behind it, in the dark theme as well."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image
from playwright.sync_api import Browser, Page

from browse import isolate, pages, serve
from ictd import plotting

pytestmark = pytest.mark.browser
LEAST = 4.5  # WCAG 2, level AA
# Where text stands, and in which colour; then it is hidden, to see what is behind it.
TEXTS = """() => [...document.querySelectorAll("g[id^=text_] > g:has(> use)")].map((text) => {
  const box = text.getBoundingClientRect();
  const fill = getComputedStyle(text).fill.match(/[0-9.]+/g).slice(0, 3).map(Number);
  text.style.visibility = "hidden";
  return [box.left, box.top, box.right, box.bottom, ...fill];
})"""


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1000, "height": 1400}, color_scheme="dark")
    yield context.new_page()
    context.close()


def luminance(rgb: np.ndarray) -> np.ndarray:
    """Relative luminance of colours in [0, 1], by WCAG 2."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return np.asarray(linear @ [0.2126, 0.7152, 0.0722])


def contrasts(tab: Page, svg: str) -> list[float]:
    """For every text of a figure the contrast that three quarters of its box have at least."""
    tab.set_content(f"<body style='margin: 0; background: #121212'>{svg[svg.index('<svg') :]}")
    texts = tab.evaluate(TEXTS)
    behind = luminance(
        image.imread(io.BytesIO(tab.screenshot(full_page=True)), format="png")[..., :3]
    )
    found = []
    for left, top, right, bottom, *fill in texts:
        box = behind[int(top) : int(bottom) + 1, int(left) : int(right) + 1]
        own = luminance(np.array(fill) / 255)
        ratio = (np.maximum(box, own) + 0.05) / (np.minimum(box, own) + 0.05)
        found.append(float(np.quantile(ratio, 0.25)))
    return found


def test_text_of_every_figure_can_be_read(site: Path, tab: Page) -> None:
    figures = sorted((site / "_images").glob("*.svg"))
    read = {path.name: contrasts(tab, path.read_text(encoding="utf-8")) for path in figures}
    assert len(read) > 50
    assert min(len(found) for found in read.values()) > 0
    assert {name: min(found) for name, found in read.items() if min(found) < LEAST} == {}


@pytest.mark.parametrize(("color", "enough"), [("#767676", True), ("#777777", False)])
def test_text_that_cannot_be_read_is_seen(tab: Page, color: str, enough: bool) -> None:
    bar = "<defs><path id='bar' d='M 5 5 h 30 v 10 h -30 z'/></defs><use href='#bar'/>"
    text = f"<g id='text_1'><g style='fill: {color}'>{bar}</g></g>"
    card = "<rect width='50' height='20' fill='white'/>"
    (found,) = contrasts(tab, f"<svg width='50' height='20'>{card}{text}</svg>")
    assert found == pytest.approx(plotting.contrast_ratio(color, "white"))
    assert (found >= LEAST) == enough


def test_figures_are_not_dimmed_in_the_dark(site: Path, browser: Browser) -> None:
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    look = """[...document.querySelectorAll(".cell_output img")].map((image) => {
      const style = getComputedStyle(image);
      return [style.filter, style.opacity, style.mixBlendMode].join(" ");
    })"""
    looks = set()
    with serve(site) as address:
        isolate(context, address)
        chapters = [name for name in pages(site) if name.startswith("book/0")]
        for name in (chapters[0], chapters[-1]):
            page.goto(address + name, wait_until="domcontentloaded")
            assert page.evaluate("document.documentElement.dataset.theme") == "dark"
            looks |= set(page.evaluate(look))
    context.close()
    assert looks == {"none 1 normal"}
