"""The explorers on the pages of the site: drawn without a kernel, a picture without JavaScript."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from browse import pages, serve
from test_site import open_tab

pytestmark = pytest.mark.browser
VIEW = "application/vnd.jupyter.widget-view+json"
# Of each explorer of a page: is it drawn, is its picture to be seen, has that words and a caption?
LOOK = """() => [...document.querySelectorAll(".explorer")].map((place) => {
  const drawn = place.querySelector(".ictd-explorer");
  const image = place.querySelector(".explorer-picture img");
  return {
    drawn: (drawn?.getBoundingClientRect().height ?? 0) > 100,
    picture: image.getBoundingClientRect().height > 100 && image.naturalWidth > 0,
    words: image.alt.length > 40 && !image.alt.endsWith(".svg"),
    caption: (place.closest("figure")?.querySelector("figcaption")?.textContent ?? "").length > 40,
  };
})"""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with serve(site) as served:
        yield served


@pytest.fixture(scope="module")
def with_explorers(site: Path) -> dict[str, int]:
    """How many explorers each page has, of those that have any."""
    texts = {name: (site / name).read_text(encoding="utf-8") for name in pages(site)}
    counts = {name: text.count('class="explorer docutils') for name, text in texts.items()}
    found = {name: count for name, count in counts.items() if count}
    assert {name.rpartition("/")[2][:2] for name in found} >= {"01", "02"}
    return found


def all_are(looks: list[dict[str, bool]], **expected: bool) -> bool:
    return all(look[name] == value for look in looks for name, value in expected.items())


def wait_until_drawn(page: Page) -> None:
    page.wait_for_function(
        "document.querySelectorAll('.explorer').length"
        " === document.querySelectorAll('.explorer .ictd-status:not(:empty)').length"
    )


def test_drawn_without_a_kernel(
    browser: Browser, address: str, with_explorers: dict[str, int]
) -> None:
    """Each explorer in the place of its picture, and its first control moves it by keyboard."""
    tab = open_tab(browser, address)
    for name, count in with_explorers.items():
        assert tab.open(name) == []
        wait_until_drawn(tab.page)
        looks = tab.page.evaluate(LOOK)
        assert len(looks) == count
        assert all_are(looks, drawn=True, picture=False, words=True, caption=True), (name, looks)
        for explorer in tab.page.query_selector_all(".ictd-explorer"):
            before = explorer.inner_text()
            slider = explorer.query_selector("input[type=range]")
            assert slider is not None
            slider.focus()
            tab.page.keyboard.press("ArrowLeft")
            tab.page.keyboard.press("ArrowLeft")
            tab.page.wait_for_timeout(100)
            assert explorer.inner_text() != before
        assert tab.faults == []
        assert tab.refused == []
        tab.page.emulate_media(media="print")
        looks = tab.page.evaluate(LOOK)
        assert all_are(looks, drawn=False, picture=True), (name, looks)
        tab.page.emulate_media(media="screen")


def test_drawn_from_the_disk(browser: Browser, site: Path, with_explorers: dict[str, int]) -> None:
    tab = open_tab(browser, site.as_uri() + "/")
    for name in with_explorers:
        assert tab.open(name) == []
        wait_until_drawn(tab.page)
        assert all_are(tab.page.evaluate(LOOK), drawn=True, picture=False), name


def test_a_captioned_picture_without_javascript(
    browser: Browser, address: str, with_explorers: dict[str, int]
) -> None:
    """C22: never an empty box. The scripts of the page do not run, the test's own do."""
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    context.route("**/*.js*", lambda route: route.abort())
    page = context.new_page()
    for name, count in with_explorers.items():
        page.goto(address + name, wait_until="load")
        looks = page.evaluate(LOOK)
        assert len(looks) == count
        assert all_are(looks, drawn=False, picture=True, words=True, caption=True), (name, looks)
    context.close()
