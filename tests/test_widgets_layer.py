"""The explorer of the layer, in a browser and against the package."""

from __future__ import annotations

import random

import pytest
from playwright.sync_api import Browser, Page

from ictd.widgets import LayerExplorer
from widgets_harness import blank_page, compare, displayed_faults, javascript, mount, shown

pytestmark = pytest.mark.browser


def random_explorers(count: int) -> list[LayerExplorer]:
    draw = random.Random(0)
    return [
        LayerExplorer(
            layer=draw.randint(0, 20),
            heads=draw.choice(["one", "two"]),
            beta=draw.choice([0.0, draw.uniform(0.0, 12.0)]),
            step_size=draw.uniform(0.05, 1.0),
            discount=draw.choice([0.0, 1.0, draw.random(), draw.random()]),
            seed=draw.randint(0, 99),
            mask=draw.random() < 0.7,
            column=draw.randint(0, 7),
        )
        for _ in range(count)
    ]


def setting(page: Page, name: str) -> object:
    return page.evaluate("(name) => window.model.get(name)", name)


def test_javascript_computes_what_the_package_does(browser: Browser) -> None:
    with blank_page(browser) as page:
        assert compare(page, LayerExplorer, random_explorers(80)) == []


def test_two_heads_and_one_write_the_same_numbers(browser: Browser) -> None:
    """In both halves, to rounding, with the mask and without it."""
    explorers = random_explorers(40)
    with blank_page(browser) as page:
        told = javascript(page, LayerExplorer, [explorer.settings() for explorer in explorers])
        other = [
            {**explorer.settings(), "heads": "one" if explorer.heads == "two" else "two"}
            for explorer in explorers
        ]
        swapped = javascript(page, LayerExplorer, other)
    for explorer, one, two in zip(explorers, told, swapped, strict=True):
        assert one["forms_differ"] < 1e-12
        assert explorer.compute()["forms_differ"] < 1e-12
        rows = zip(one["matrix"], two["matrix"], strict=True)
        assert all(abs(a - b) < 1e-12 for x, y in rows for a, b in zip(x, y, strict=True))


def test_the_mask_matters() -> None:
    """Masked columns weigh nothing; without the mask their zero errors dilute what is read."""
    explorer = LayerExplorer(layer=5, column=7)  # the query, which is masked
    shown = explorer.compute()
    assert shown["is_key"] == [True, True, True, True, False, True, False, False]
    assert [shown["attention"][k] for k in (4, 6, 7)] == [0, 0, 0]
    assert shown["mask_matters"] > 0.1
    explorer.mask = False
    loose = explorer.compute()
    assert all(loose["is_key"])
    assert min(loose["attention"]) > 0
    assert loose["mask_matters"] == shown["mask_matters"]


def test_the_parts_add_up() -> None:
    """An update is what is read; a layer adds it, and hands the successor's on."""
    for explorer in random_explorers(20):
        shown, j = explorer.compute(), explorer.column
        parts = shown["from_reward"] + shown["from_target"] + shown["from_current"]
        assert abs(parts - shown["update"]) < 1e-12
        assert abs(sum(shown["contributions"]) - shown["update"]) < 1e-12
        assert abs(shown["matrix"][-1][j] + shown["update"] - shown["next_value"]) < 1e-12
        assert abs(shown["matrix"][-2][j] + shown["received"] - shown["next_target"]) < 1e-12
        if j > 0:
            assert shown["handed_on"] == shown["discounts"][j - 1] * shown["update"]


@pytest.mark.parametrize(
    "settings",
    [
        {"layer": 0, "column": 0},
        {"layer": 20, "column": 7, "heads": "one"},
        {"layer": 3, "column": 4},  # an end
        {"layer": 3, "column": 4, "mask": False, "beta": 0.0},
        {"layer": 2, "column": 5, "discount": 0.0},
    ],
)
def test_the_page_shows_what_it_computes(browser: Browser, settings: dict[str, object]) -> None:
    with blank_page(browser) as page:
        mount(page, LayerExplorer(**settings))
        assert displayed_faults(page) == []
        cells = page.eval_on_selector_all(".ictd-prompt td", "(all) => all.length")
        assert cells == 8 * (5 + 5)
        assert page.eval_on_selector_all("th.ictd-masked", "(all) => all.length") == (
            0 if settings.get("mask") is False else 3
        )


def test_buttons_go_through_the_layers_by_keyboard(browser: Browser) -> None:
    with blank_page(browser) as page:
        mount(page, LayerExplorer(layer=19))
        forward, back = (
            page.get_by_role("button", name=f"{way} layer") for way in ("Next", "Previous")
        )
        forward.focus()
        values = []
        for _ in range(3):  # the last press is one too many
            values.append((setting(page, "layer"), shown(page)["matrix"][-1][2]))
            page.keyboard.press("Enter")
            page.wait_for_timeout(10)
        assert [layer for layer, _ in values] == [19, 20, 20]
        assert values[0][1] != values[1][1]
        back.focus()
        page.keyboard.press("Space")
        page.wait_for_timeout(10)
        assert setting(page, "layer") == 19
        assert shown(page)["matrix"][-1][2] == values[0][1]


def test_a_column_is_chosen_by_keyboard_and_mouse(browser: Browser) -> None:
    with blank_page(browser) as page:
        mount(page, LayerExplorer(column=2))
        page.get_by_role("radio").nth(2).focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(10)
        assert setting(page, "column") == 3
        label = page.get_by_role("img").get_attribute("aria-label")
        assert label is not None
        assert label.startswith("Column 3, state 3, reads from columns 0 (")
        assert "hands its update on to column 2" in label
        before = shown(page)["attention"]
        page.locator(".ictd-prompt td").nth(8 + 7).hover()  # the second row of the query
        page.wait_for_timeout(10)
        assert setting(page, "column") == 7
        assert page.get_by_role("radio").nth(7).is_checked()
        assert shown(page)["attention"] == before  # the query asks for the state of column 3
        assert "query 3 reads" in page.inner_text(".ictd-explorer").replace("(", "").replace(
            ")", ""
        )
        assert displayed_faults(page) == []


def test_changing_the_form_changes_nothing_that_is_shown(browser: Browser) -> None:
    read = "() => [...document.querySelectorAll('.ictd-prompt td')].map((cell) => cell.textContent)"
    with blank_page(browser) as page:
        mount(page, LayerExplorer(layer=7))
        before = page.evaluate(read)
        page.get_by_label("Form of the layer").select_option("one")
        page.wait_for_timeout(10)
        assert setting(page, "heads") == "one"
        assert page.evaluate(read) == before
        page.get_by_label("Mask what is no key").uncheck()
        page.wait_for_timeout(10)
        assert page.evaluate(read) != before


def test_the_wide_table_scrolls_in_its_box(browser: Browser) -> None:
    with blank_page(browser, viewport={"width": 375, "height": 800}) as page:
        mount(page, LayerExplorer())
        box = page.get_by_role("region", name="Prompt matrix")
        box.focus()
        assert box.evaluate("(e) => e.scrollWidth > e.clientWidth")
        assert page.evaluate("document.documentElement.scrollWidth") == 375
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        page.wait_for_function("document.activeElement.scrollLeft > 0")
