"""The explorer of depth and context, in a browser and against the package."""

from __future__ import annotations

import random

import pytest
from playwright.sync_api import Browser

from ictd.widgets import DepthContextExplorer
from widgets_harness import blank_page, compare, displayed_faults, javascript, mount, shown

pytestmark = pytest.mark.browser

# Contexts of 20 transitions that closure shortens: few are.
TRIMMED = [("ring", 7, 0, 16), ("ring", 36, 0, 17), ("boyan", 30, 4, 19), ("boyan", 71, 3, 19)]


def random_explorers(count: int) -> list[DepthContextExplorer]:
    draw = random.Random(0)
    return [
        DepthContextExplorer(
            num_layers=draw.randint(0, 60),
            context_length=draw.choice([20, 40, draw.randint(20, 2000)]),
            discount=draw.choice([0.0, 0.9, draw.uniform(0.0, 0.98)]),
            beta=draw.choice([0.0, draw.uniform(0.0, 24.0), draw.uniform(4.0, 12.0)]),
            step_size=draw.choice([1.0, draw.uniform(0.05, 2.0)]),
            chain=draw.choice(["boyan", "ring"]),
            walk=draw.randint(0, 4),
            seed=draw.randint(0, 99),
        )
        for _ in range(count)
    ]


def test_javascript_computes_what_the_package_does(browser: Browser) -> None:
    explorers = random_explorers(60)
    for chain, seed, walk, closed in TRIMMED:
        short = DepthContextExplorer(
            chain=chain, seed=seed, walk=walk, context_length=20, discount=0.9
        )
        assert short.compute()["closed"] == closed
        explorers.append(short)
    with blank_page(browser) as page:
        assert compare(page, DepthContextExplorer, explorers) == []
        settings = [explorer.settings() for explorer in explorers]
        told = javascript(page, DepthContextExplorer, settings)
    assert 10 < sum(shown["is_certified"] for shown in told) < 50  # both cases are there


def test_the_bound_holds_where_it_is_certified() -> None:
    """Its probability is 0.9, and it is far from tight: no context of these breaks it."""
    for explorer in random_explorers(20):
        shown = explorer.compute()
        errors = shown["errors"][explorer.walk]
        assert shown["certainty_error"] <= shown["context_bound"] + 1e-12
        if shown["is_certified"]:
            bounds = [depth + shown["context_bound"] for depth in shown["depth_bounds"]]
            pairs = zip(errors, bounds, strict=True)
            assert all(error <= bound + 1e-12 for error, bound in pairs)
        else:
            assert shown["bound"] is None
            assert shown["depth_bound"] is None


def test_more_context_and_more_depth_help() -> None:
    explorer = DepthContextExplorer(num_layers=60)
    deep = dict.fromkeys((40, 2000), 0.0)
    for n in deep:
        explorer.context_length = n
        shown = explorer.compute()
        deep[n] = sum(errors[60] for errors in shown["errors"])
    assert deep[2000] < deep[40] / 2
    assert shown["population_error"] < 1e-5


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"beta": 2.0},
        {"step_size": 2.0, "discount": 0.9},
        {"discount": 0.0, "num_layers": 0},
        {"chain": "ring", "context_length": 20, "walk": 4},
    ],
)
def test_the_page_shows_what_it_computes(browser: Browser, settings: dict[str, object]) -> None:
    with blank_page(browser) as page:
        mount(page, DepthContextExplorer(**settings))
        assert displayed_faults(page) == []
        for image in page.get_by_role("img").all():
            assert "NaN" not in image.evaluate("(e) => e.outerHTML")
            assert "Infinity" not in image.evaluate("(e) => e.outerHTML")


def test_the_condition_fails_and_the_bound_goes(browser: Browser) -> None:
    """By keyboard: at β = 0 the depth curve is pale, the sum is gone, the words say it."""
    with blank_page(browser) as page:
        mount(page, DepthContextExplorer())
        explorer = page.locator(".ictd-explorer")
        assert "The condition holds" in explorer.inner_text()
        assert "sum of both bounds" in page.locator(".ictd-legend").inner_text()
        page.get_by_label("β (A = β I)").focus()
        page.keyboard.press("Home")
        page.wait_for_timeout(50)
        assert page.evaluate("window.model.get('beta')") == 0
        told = shown(page)
        assert told["is_certified"] is False
        assert told["bound"] is None
        assert "The condition fails" in explorer.inner_text()
        assert "sum of both bounds" not in page.locator(".ictd-legend").inner_text()
        assert "no bound here" in page.locator(".ictd-legend").inner_text()
        label = page.get_by_role("img").first.get_attribute("aria-label")
        assert label is not None
        assert label.endswith("depth has none here.")
        assert displayed_faults(page) == []


def test_a_step_that_is_too_long_is_named(browser: Browser) -> None:
    with blank_page(browser) as page:
        mount(page, DepthContextExplorer(step_size=2.0))
        assert "the step is too long" in page.locator(".ictd-explorer").inner_text()


def test_the_mark_follows_the_depth(browser: Browser) -> None:
    with blank_page(browser) as page:
        mount(page, DepthContextExplorer(num_layers=10))
        mark = page.locator("svg[role=img] circle").first
        before = float(mark.get_attribute("cx") or "nan")
        page.get_by_label("Layers L").focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(50)
        assert page.evaluate("window.model.get('num_layers')") == 11
        assert float(mark.get_attribute("cx") or "nan") > before
        told = shown(page)
        assert told["error"] == told["errors"][0][11]
