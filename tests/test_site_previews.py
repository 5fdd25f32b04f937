"""Previews of results and equations, and the links from names in code to the API page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from browse import isolate, serve

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[1]
AXE = ROOT / "_vendor" / "axe" / "axe.min.js"
CHAPTER = "book/04-reparameterization.html"
# On this page: to a result, to an equation, and to a result of another page.
RESULT = ".bd-article a.reference[href='#thm-reparameterization']"
EQUATION = ".bd-article a.reference[href='#equation-eq-two-forms']"
ELSEWHERE = ".bd-article a.reference[href='03-softmax-layer.html#thm-equivalence']"


@pytest.fixture(scope="module", params=["served", "disk"])
def address(request: pytest.FixtureRequest, site: Path) -> Iterator[str]:
    """Under a sub-path, and from the disk, where no page can fetch another."""
    if request.param == "disk":
        yield site.as_uri() + "/"
    else:
        with serve(site) as served:
            yield served


@dataclass
class Opened:
    """The chapter in a tab, and what went wrong there."""

    page: Page
    refused: list[str]
    errors: list[str]


@pytest.fixture(scope="module")
def opened(browser: Browser, address: str) -> Iterator[Opened]:
    context = browser.new_context(reduced_motion="reduce")
    refused = isolate(context, address)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address + CHAPTER, wait_until="load")
    page.evaluate("window.MathJax.startup.promise.then(() => undefined)")
    yield Opened(page, refused, errors)
    context.close()


@pytest.fixture
def tab(opened: Opened) -> Iterator[Page]:
    """The page as if it had just been opened."""
    page = opened.page
    page.set_viewport_size({"width": 1300, "height": 900})
    page.mouse.move(2, 2)
    page.evaluate("document.activeElement.blur()")
    page.wait_for_selector(".tippy-content", state="detached")
    yield page
    assert opened.refused == []
    assert opened.errors == []


def preview(tab: Page) -> str:
    """The text of the preview that is shown, its mathematics typeset."""
    tab.wait_for_selector(".tippy-content mjx-container")
    return tab.locator(".tippy-content").inner_text()


@pytest.mark.parametrize(
    ("link", "text"),
    [(RESULT, "Theorem 4."), (EQUATION, ""), (ELSEWHERE, "Theorem 3.")],
    ids=["result", "equation", "other page"],
)
def test_the_pointer_shows_a_preview_and_may_rest_on_it(tab: Page, link: str, text: str) -> None:
    tab.locator(link).first.hover()
    assert text in preview(tab)
    assert "\\(" not in preview(tab)
    tab.locator(".tippy-content").hover()
    tab.wait_for_timeout(500)
    assert tab.locator(".tippy-content").count() == 1
    tab.mouse.move(2, 2)
    tab.wait_for_selector(".tippy-content", state="detached")


def test_the_keyboard_shows_a_preview_and_escape_closes_it(tab: Page) -> None:
    link = tab.locator(RESULT).first
    link.focus()
    assert "Theorem 4." in preview(tab)
    described = link.get_attribute("aria-describedby")
    assert tab.locator(f"#{described} .tippy-content").count() == 1
    tab.keyboard.press("Escape")
    tab.wait_for_selector(".tippy-content", state="detached")
    assert link.evaluate("link => link === document.activeElement")


def test_a_shown_preview_is_accessible_and_names_nothing_twice(tab: Page) -> None:
    tab.locator(ELSEWHERE).first.focus()
    preview(tab)
    assert tab.locator(".tippy-content [id]").count() == 0
    tab.evaluate(AXE.read_text(encoding="utf-8"))
    result = tab.evaluate("axe.run('[data-tippy-root]', { resultTypes: ['violations'] })")
    assert [(fault["id"], fault["nodes"][0]["html"]) for fault in result["violations"]] == []


def test_a_preview_fits_a_narrow_screen(tab: Page) -> None:
    tab.set_viewport_size({"width": 375, "height": 800})
    tab.locator(RESULT).first.focus()
    preview(tab)
    box = tab.locator(".tippy-box").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 375
    assert tab.evaluate("document.documentElement.scrollWidth") <= 375


@pytest.mark.parametrize("name", ["boyan_chain", "DualHeadLayer", "stock_attention"])
def test_names_in_code_lead_to_the_api_page(tab: Page, name: str) -> None:
    """So do variables of these types. That the API page has them, the test of all links sees."""
    links = tab.locator(f".bd-article .cell_input a[href$='api.html#ictd.{name}']")
    assert name in {text.rpartition(".")[2] for text in links.all_text_contents()}
    assert links.first.evaluate("link => getComputedStyle(link).textDecorationLine") == "underline"


def test_links_leave_code_as_it_was(tab: Page) -> None:
    """What the button copies is the cell, and names of others stay plain."""
    cell = tab.locator(".cell_input pre:has(a)").first
    assert "api.html" not in cell.inner_text()
    assert tab.locator(".cell_input a:not([href*='api.html#'], [href^='https://'])").count() == 0
