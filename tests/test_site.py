"""Every page of the built site in a real browser that reaches no other host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page

from browse import isolate, pages, serve

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[1]
AXE = ROOT / "_vendor" / "axe" / "axe.min.js"
COLORS = ["color-contrast", "link-in-text-block"]  # axe-core's rules that look at them
SHARES = 5  # of the pages, for as many processes

# What a reader would see of mathematics or markup that was not rendered.
READ = r"""() => {
  const article = document.querySelector("article") ?? document.body;
  const seen = article.cloneNode(true);
  seen.querySelectorAll("pre, code, script, style, mjx-container").forEach((part) => part.remove());
  const faults = [];
  const raw = seen.textContent.match(/\\[([]|\$\$|:::|\{[a-z:-]+\}`|\[\[[^\]]*\]\]/g);
  if (raw) faults.push("raw markup: " + raw.join(" "));
  for (const error of document.querySelectorAll("mjx-merror"))
    faults.push("mathematics: " + error.getAttribute("data-mjx-error"));
  for (const math of article.querySelectorAll(".math"))
    if (!math.querySelector("mjx-container")) faults.push("not rendered: " + math.textContent);
  for (const image of document.images)
    if (!image.complete || image.naturalWidth === 0) faults.push("no image: " + image.src);
  const drawn = "img, canvas, svg:not(svg svg, mjx-container svg)";
  for (const image of article.querySelectorAll(drawn)) {
    const title = image.querySelector("title")?.textContent;
    const words = image.alt ?? image.getAttribute("aria-label") ?? title;
    const decorative = image.closest("[aria-hidden=true], .tb-icon"); // an icon that folds a cell
    if (!decorative && !words?.trim()) faults.push("no words: " + image.outerHTML.slice(0, 120));
  }
  return faults;
}"""
# What sticks out of a narrow page, or is cut off where no scrollbar reaches it.
MEASURE = r"""() => {
  const width = document.documentElement.clientWidth;
  const faults = [];
  if (document.documentElement.scrollWidth > width)
    faults.push("the page scrolls sideways: " + document.documentElement.scrollWidth);
  const scrolls = (element) => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
  for (const element of document.querySelectorAll("article *")) {
    if (element.getBoundingClientRect().right <= width + 1) continue;
    if (element.closest("mjx-assistive-mml, .visually-hidden")) continue;
    let box = element;
    while (box && !scrolls(box)) box = box.parentElement;
    if (!box || box.contains(document.querySelector("article")))
      faults.push("cut off: " + element.outerHTML.slice(0, 120));
  }
  return faults.slice(0, 5);
}"""


@dataclass
class Tab:
    """A tab of the browser, and all that went wrong in it since the last time it was asked."""

    page: Page
    address: str
    refused: list[str]
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        note = self.faults.append
        self.page.on("response", lambda r: note(f"{r.status} {r.url}") if r.status >= 400 else None)
        # A request that the next page interrupts is aborted: that is no fault.
        self.page.on(
            "requestfailed",
            lambda r: None if r.failure == "net::ERR_ABORTED" else note(f"{r.failure} {r.url}"),
        )
        self.page.on("pageerror", lambda error: note(f"page error: {error}"))
        self.page.on("console", lambda m: note(m.text) if m.type == "error" else None)

    def open(self, name: str) -> list[str]:
        """Open a page, wait for its mathematics, give its faults."""
        self.faults.clear()
        self.refused.clear()
        self.page.goto(self.address + name, wait_until="load")
        self.page.evaluate("window.MathJax?.startup?.promise.then(() => undefined)")
        outside = [f"asks another host: {url}" for url in self.refused]
        return [*outside, *self.faults, *self.page.evaluate(READ)]


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with serve(site) as served:
        yield served


def open_tab(browser: Browser, address: str, scheme: Literal["light", "dark"] = "light") -> Tab:
    context = browser.new_context(viewport={"width": 1300, "height": 900}, color_scheme=scheme)
    refused = isolate(context, address)
    return Tab(context.new_page(), address, refused)


def report(faults: dict[str, Any]) -> dict[str, Any]:
    """The pages that have faults."""
    return {name: found for name, found in faults.items() if found}


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_under_a_sub_path(
    site: Path, browser: Browser, address: str, scheme: Literal["light", "dark"], share: int
) -> None:
    """No request to others, no error, all rendered, accessible; then on a narrow screen."""
    tab = open_tab(browser, address, scheme)
    found: dict[str, list[str]] = {}
    for name in pages(site)[share::SHARES]:
        is_source = name.startswith("_modules/")  # of the package: many pages, all alike
        if is_source and scheme == "dark":
            continue
        tab.page.set_viewport_size({"width": 1300, "height": 900})
        found[name] = tab.open(name)
        assert tab.page.evaluate("document.documentElement.dataset.theme") == scheme
        if not is_source:
            # The markup is the same in the dark; colours are not.
            found[name] += accessibility(tab.page, COLORS if scheme == "dark" else None)
        if scheme == "light":
            tab.page.set_viewport_size({"width": 375, "height": 800})
            tab.page.wait_for_timeout(100)
            found[name] += tab.page.evaluate(MEASURE)
    tab.page.context.close()
    assert report(found) == {}


def accessibility(page: Page, rules: list[str] | None = None) -> list[str]:
    """What axe-core finds, by these rules or by all that are on.

    A heading of one formula, which it takes for empty, is left out.
    """
    page.evaluate(AXE.read_text(encoding="utf-8"))
    only = {"runOnly": {"type": "rule", "values": rules}} if rules else {}
    options = {"resultTypes": ["violations"]} | only
    run = "(options) => axe.run({ exclude: ['th:has(mjx-container)'] }, options)"
    result = page.evaluate(run, options)
    return [
        f"{violation['id']}: {node['target']} {node['html'][:150]}"
        for violation in result["violations"]
        for node in violation["nodes"]
    ]


@pytest.mark.parametrize("rules", [None, COLORS])
def test_pale_words_are_seen(browser: Browser, rules: list[str] | None) -> None:
    page = browser.new_page()
    page.set_content(
        "<html lang='en'><title>Pale</title><main><h1 style='color: #999; background: #aaa'>"
        "Pale</h1><img src='data:,'></main></html>"
    )
    found = [fault.partition(":")[0] for fault in accessibility(page, rules)]
    page.close()
    assert found == (["color-contrast"] if rules else ["color-contrast", "image-alt"])


def test_every_page_from_the_disk(site: Path, browser: Browser) -> None:
    tab = open_tab(browser, site.as_uri() + "/")
    # The page for missing addresses is a server's: it names its files from the root.
    left_out = ("404.html", "_modules/")
    names = [name for name in pages(site) if not name.startswith(left_out)]
    found = {name: tab.open(name) for name in names}
    tab.page.context.close()
    assert report(found) == {}


def test_the_address_of_the_site_leads_to_the_first_page(browser: Browser, address: str) -> None:
    tab = open_tab(browser, address)
    tab.page.goto(address)
    tab.page.wait_for_url("**/book/index.html")
    assert tab.faults == []


def test_search_finds_a_chapter(browser: Browser, address: str) -> None:
    tab = open_tab(browser, address)
    tab.page.goto(address + "search.html?q=contraction")
    tab.page.wait_for_selector("#search-results a[href*='01-temporal-difference']")
    assert tab.faults == []


@pytest.mark.parametrize(
    ("tex", "fault"),
    [
        (r"\(\nosuchmacro x\)", "mathematics: Undefined control sequence \\nosuchmacro"),
        (r"\(\frac{1}\)", "mathematics: Missing argument for \\frac"),
        (r"\(\KDM + \softmax(x) + \E \Pr \R \diag\)", None),
    ],
)
def test_mathematics_that_fails_is_seen(
    browser: Browser, address: str, tex: str, fault: str | None
) -> None:
    tab = open_tab(browser, address)
    tab.open("book/notation.html")
    add = """(tex) => {
      const line = document.createElement("span");
      line.className = "math notranslate nohighlight";
      line.textContent = tex;
      document.querySelector("article").append(line);
      return MathJax.typesetPromise([line]).then(() => undefined);
    }"""
    tab.page.evaluate(add, tex)
    assert tab.page.evaluate(READ) == ([] if fault is None else [fault])


@pytest.mark.parametrize(
    ("drawn", "faults"),
    [
        ('<img src="{pixel}" alt="A point.">', 0),
        ('<img src="{pixel}" alt=" ">', 1),
        ('<img src="{pixel}">', 1),
        ('<canvas aria-label="A curve falls."></canvas>', 0),
        ("<canvas></canvas>", 1),
        ("<svg><title>A curve falls.</title><svg></svg></svg>", 0),
        ('<i aria-hidden="true"><svg></svg></i>', 0),
        ("<svg><g></g></svg>", 1),
    ],
)
def test_a_picture_without_words_is_seen(
    browser: Browser, address: str, drawn: str, faults: int
) -> None:
    tab = open_tab(browser, address)
    tab.open("book/cite.html")
    pixel = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA="
    add = "(html) => document.querySelector('article').insertAdjacentHTML('beforeend', html)"
    tab.page.evaluate(add, drawn.format(pixel=pixel))
    tab.page.wait_for_function("[...document.images].every((image) => image.complete)")
    found = tab.page.evaluate(READ)
    assert [fault.startswith("no words") for fault in found] == [True] * faults


def test_a_long_bound_scrolls_in_its_box(browser: Browser, address: str) -> None:
    """On a phone, inside the box of a theorem; the page itself stays."""
    tab = open_tab(browser, address)
    tab.page.set_viewport_size({"width": 375, "height": 800})
    tab.open("book/notation.html")
    add = r"""() => {
      const box = document.createElement("div");
      box.className = "proof theorem admonition";
      const bound = "a_1 + b_2 + ".repeat(40) + "c";
      box.innerHTML = `<div class="math notranslate">\\[${bound}\\]</div>`;
      document.querySelector("article").append(box);
      return MathJax.typesetPromise([box]).then(() => {
        const formula = box.querySelector("mjx-container");
        return formula.scrollWidth > 2 * formula.clientWidth;
      });
    }"""
    assert tab.page.evaluate(add)
    assert tab.page.evaluate(MEASURE) == []


def test_what_sticks_out_is_seen(browser: Browser, address: str) -> None:
    tab = open_tab(browser, address)
    tab.page.set_viewport_size({"width": 375, "height": 800})
    tab.open("book/notation.html")
    tab.page.evaluate(
        "document.querySelector('article').insertAdjacentHTML('beforeend',"
        " '<div style=\"width: 900px\">wide</div>')"
    )
    assert tab.page.evaluate(MEASURE) != []


def test_other_hosts_are_refused(browser: Browser, address: str) -> None:
    tab = open_tab(browser, address)
    tab.open("book/notation.html")
    tab.page.evaluate("fetch('https://example.org/font.css').catch(() => undefined)")
    assert tab.refused == ["https://example.org/font.css"]


def test_a_widget_without_a_kernel(browser: Browser, address: str, site: Path) -> None:
    """The loader, its settings and the front end are there and draw a slider from its state."""
    tab = open_tab(browser, address)
    tab.open("book/notation.html")
    state = {
        "version_major": 2,
        "version_minor": 0,
        "state": {
            "layout": widget("@jupyter-widgets/base", "2.0.0", "LayoutModel", {}),
            "style": widget("@jupyter-widgets/controls", "2.0.0", "SliderStyleModel", {}),
            "slider": widget(
                "@jupyter-widgets/controls",
                "2.0.0",
                "IntSliderModel",
                {"layout": "IPY_MODEL_layout", "style": "IPY_MODEL_style", "value": 42},
            ),
        },
    }
    add = """(state) => {
      const article = document.querySelector("article");
      for (const [type, content] of [
        ["application/vnd.jupyter.widget-state+json", state],
        ["application/vnd.jupyter.widget-view+json",
         { version_major: 2, version_minor: 0, model_id: "slider" }],
      ]) {
        const script = document.createElement("script");
        script.type = type;
        script.textContent = JSON.stringify(content);
        article.append(script);
      }
    }"""
    tab.page.evaluate(add, state)
    for script in ("require.js", "config.js", "@jupyter-widgets/html-manager/dist/embed-amd.js"):
        tab.page.add_script_tag(url=f"{address}_static/vendor/widgets/{script}")
    # The front end draws when the page has loaded, which here it has.
    tab.page.evaluate("window.dispatchEvent(new Event('load'))")
    readout = tab.page.wait_for_selector(".widget-readout")
    assert readout is not None
    assert readout.inner_text() == "42"
    assert tab.refused == []
    assert tab.faults == []


def widget(module: str, version: str, model: str, state: dict[str, Any]) -> dict[str, Any]:
    """The saved state of one widget model."""
    return {
        "model_module": module,
        "model_module_version": version,
        "model_name": model,
        "state": {"_model_module": module, "_model_name": model, **state},
    }
