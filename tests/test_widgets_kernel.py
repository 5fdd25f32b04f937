"""The explorer of the kernel, in a browser and against the package."""

from __future__ import annotations

import math
import random

import pytest
from playwright.sync_api import Browser

from ictd.widgets import KernelExplorer
from widgets_harness import blank_page, compare, displayed_faults, is_close, mount, shown

pytestmark = pytest.mark.browser


def random_settings(count: int) -> list[KernelExplorer]:
    draw = random.Random(1)
    return [
        KernelExplorer(
            score=draw.choice(["dot", "gaussian"]),
            metric=draw.choice(["identity", "anisotropic", "indefinite"]),
            bandwidth=0.05 * 400 ** draw.random(),
            weights=draw.choice(["equal", "increasing"]),
            selected=draw.randint(0, 7),
            positions=[
                [draw.uniform(-1.5, 1.5), draw.uniform(-1.5, 1.5)]
                for _ in range(draw.randint(2, 8))
            ],
        )
        for _ in range(count)
    ]


def test_javascript_computes_what_the_package_does(browser: Browser) -> None:
    with blank_page(browser) as page:
        assert compare(page, KernelExplorer, random_settings(100)) == []


def test_attention_by_hand() -> None:
    """Two states at a distance of 1, the second seen twice: weights 1 and 2 e^(−1/2)."""
    explorer = KernelExplorer(
        score="gaussian", bandwidth=1.0, weights="increasing", positions=[[0.0, 0.0], [1.0, 0.0]]
    )
    told = explorer.compute()
    kept = 1 / (1 + 2 * math.exp(-0.5))
    assert told["attention"][0] == pytest.approx([kept, 1 - kept])
    assert told["weights"] == pytest.approx([1 / 3, 2 / 3])
    assert told["diagonality"] == pytest.approx([kept, 2 / (2 + math.exp(-0.5))])
    assert told["from_tabular"] == pytest.approx(1 - kept)
    # The linear limit of row 1: a(u) (1 + g(u) − mean of g), with g = (−1/2, 0).
    limit = (1 - 1 / 2 + 1 / 6) / 3
    assert told["from_linear"] == pytest.approx(told["attention"][1][0] - limit)


def test_an_indefinite_metric_can_prefer_what_is_far() -> None:
    places = [[0.0, 0.0], [0.0, 1.0]]
    explorer = KernelExplorer(score="gaussian", metric="indefinite", positions=places)
    assert explorer.compute()["least_diagonality"] < 0.5


def test_the_limits_are_limits(browser: Browser) -> None:
    """The three presets, and the drawing that follows."""
    with blank_page(browser) as page:
        mount(page, KernelExplorer(metric="anisotropic"))
        page.get_by_role("button", name="Tabular limit").press("Enter")
        assert shown(page)["from_tabular"] < 1e-9
        page.get_by_role("button", name="Linear limit").press("Enter")
        told = shown(page)
        assert told["from_linear"] < 1e-3 < told["from_constant"]
        page.get_by_role("button", name="Softmax").press("Enter")
        told = shown(page)
        assert min(told["from_tabular"], told["from_linear"]) > 0.1
        assert is_close(KernelExplorer().compute(), told, 1e-9)
        assert displayed_faults(page) == []


def test_states_move_by_keyboard(browser: Browser) -> None:
    with blank_page(browser) as page:
        mount(page, KernelExplorer(positions=[[0.0, 0.0], [1.0, 0.0], [0.0, 1.45]]))
        page.get_by_role("button", name="State 2").press("Enter")
        assert shown(page)["selected"] == 2
        for key in ("ArrowLeft", "Shift+ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp"):
            page.keyboard.press(key)  # the focus stays through every drawing
        assert page.evaluate("window.model.get('positions')[2]") == [0.05, 1.3]
        for _ in range(3):
            page.keyboard.press("Shift+ArrowUp")
        assert page.evaluate("window.model.get('positions')[2]") == [0.05, 1.5]
        moved = page.get_by_role("button", name="State 2")
        assert moved.get_attribute("aria-label") == "State 2 at 0.05, 1.50"
        assert moved.get_attribute("aria-pressed") == "true"
        assert "Attention of state 2" in (page.get_by_role("img").get_attribute("aria-label") or "")
        expected = KernelExplorer(
            positions=page.evaluate("window.model.get('positions')"), selected=2
        )
        assert is_close(expected.compute(), shown(page), 1e-9)


def test_states_are_dragged(browser: Browser) -> None:
    with blank_page(browser) as page:
        mount(page, KernelExplorer(positions=[[0.0, 0.0], [1.0, 0.0]], selected=0))
        box = page.get_by_role("button", name="State 1").bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x - 50, y - 100, steps=5)  # 100 pixels are one unit
        page.mouse.up()
        page.mouse.move(x, y)
        moved = page.evaluate("window.model.get('positions')")
        assert moved[0] == [0, 0]
        assert moved[1] == pytest.approx([0.5, 1.0], abs=0.02)
        assert shown(page)["selected"] == 1
