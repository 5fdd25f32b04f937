"""What search engines, messengers and lost readers see of the site."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from bs4 import BeautifulSoup
from playwright.sync_api import Browser

from browse import isolate, serve

ROOT = Path(__file__).parents[1]
SITE = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["html"]["baseurl"]
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
ORDER = [TOC["root"], *(c["file"] for part in TOC["parts"] for c in part["chapters"])]
each_page = pytest.mark.parametrize("name", ORDER)


def head(site: Path, name: str) -> BeautifulSoup:
    html = (site / f"{name}.html").read_text(encoding="utf-8")
    return BeautifulSoup(html.partition("</head>")[0], "html.parser")


def content(head: BeautifulSoup, selector: str, attribute: str = "content") -> str:
    (found,) = head.select(selector)
    return str(found[attribute])


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with serve(site) as served:
        yield served


@each_page
def test_every_page_says_what_it_is(name: str, site: Path) -> None:
    found = head(site, name)
    assert content(found, "link[rel=canonical]", "href") == f"{SITE}{name}.html"
    assert content(found, "meta[property='og:url']") == f"{SITE}{name}.html"
    title = content(found, "meta[property='og:title']")
    assert title in found.title.string
    assert content(found, "meta[property='og:type']") == "website"
    description = content(found, "meta[name=description]")
    assert content(found, "meta[property='og:description']") == description
    assert 90 <= len(description) <= 180
    assert not set("\\$`{}") & set(description)


def test_no_two_pages_say_the_same(site: Path) -> None:
    said = [content(head(site, name), "meta[name=description]") for name in ORDER]
    assert len(set(said)) == len(ORDER)


@each_page
def test_the_pages_are_a_chain(name: str, site: Path) -> None:
    """Previous and next, in the head for programs and at the foot for readers."""
    place = ORDER.index(name)
    page = BeautifulSoup((site / f"{name}.html").read_text(encoding="utf-8"), "html.parser")
    for relation, css, other in (
        ("prev", "left-prev", place - 1),
        ("next", "right-next", place + 1),
    ):
        wanted = [f"{ORDER[other]}.html".removeprefix("book/")] if 0 <= other < len(ORDER) else []
        assert [link["href"] for link in page.select(f"link[rel={relation}]")] == wanted
        assert [link["href"] for link in page.select(f"a.{css}")] == wanted


@pytest.mark.browser
@pytest.mark.parametrize("path", ["nothing.html", "book/nothing", "a/b/c/nothing.html?x=1#y"])
def test_an_address_that_leads_nowhere(path: str, browser: Browser, address: str) -> None:
    """The page for it works at any depth: its looks, its menu, its search."""
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    refused = isolate(context, address)
    tab = context.new_page()
    faults: list[str] = []
    missing = address + path.partition("#")[0]
    tab.on("response", lambda r: faults.append(r.url) if r.status >= 400 else None)
    tab.on("pageerror", lambda error: faults.append(str(error)))
    answer = tab.goto(address + path, wait_until="load")
    assert answer is not None
    assert answer.status == 404
    assert tab.inner_text(".bd-article h1") == "Page not found"
    assert refused == []
    assert [fault for fault in faults if fault != missing] == []
    links = tab.locator(".bd-sidebar-primary a[href]")
    assert links.count() >= len(ORDER)
    links.filter(has_text="How to cite").first.click()
    tab.wait_for_url(f"{address}book/cite.html", wait_until="commit")
    context.close()


def test_a_missing_page_is_served_as_such(address: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as raised:
        urllib.request.urlopen(address + "no/such/page.html")
    assert b"Page not found" in raised.value.read()
    raised.value.close()
