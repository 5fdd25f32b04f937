"""What all explorers share: settings, the page's half, accessibility, the picture."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import traitlets
from playwright.sync_api import Browser, Page

import assets
import ictd.widgets
from ictd.widgets import Explorer, KernelExplorer, TDExplorer
from ictd.widgets._base import describe_control, setting
from ictd.widgets._random import Mulberry32, categorical
from ictd.widgets.emergence import _answers
from strategies import refuses
from widgets_harness import IMPORT, blank_page, displayed_faults, is_close, mount, shown

ROOT = Path(__file__).parents[1]
AXE = ROOT / "_vendor" / "axe" / "axe.min.js"
FOLDER = ROOT / "src" / "ictd" / "widgets" / "js"
PUBLIC = [getattr(ictd.widgets, name) for name in ictd.widgets.__all__]
KINDS = [
    kind
    for kind in PUBLIC
    if isinstance(kind, type) and issubclass(kind, Explorer) and kind is not Explorer
]
BACKGROUND = "getComputedStyle(document.querySelector('.ictd-explorer')).backgroundColor"
LIGHT, DARK = "rgb(252, 252, 250)", "rgb(27, 31, 36)"

browser_test = pytest.mark.browser
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


# Python's half ---------------------------------------------------------------------------------


@every_kind
def test_the_javascript_is_one_module(kind: type[Explorer]) -> None:
    code = kind._esm
    assert re.findall(r"^import .*", code, flags=re.MULTILINE) == []
    exports = re.findall(r"^export (default|function \w+|.*)", code, flags=re.MULTILINE)
    assert exports == ["function compute", "default"]
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", code)


@every_kind
def test_every_setting_is_known_to_the_page(kind: type[Explorer]) -> None:
    explorer = kind()
    assert set(explorer.settings()) == set(kind.class_traits(setting=True))
    assert {control["name"] for control in explorer._controls} <= set(explorer.settings())
    assert explorer._controls
    assert explorer.shown == {}  # nobody draws it here


@every_kind
def test_a_setting_that_is_none_is_refused(kind: type[Explorer]) -> None:
    with refuses(TypeError, "colour: expected a setting, one of .*"):
        kind(colour="red")


@every_kind
def test_numbers_stay_in_their_range(kind: type[Explorer]) -> None:
    explorer = kind()
    for control in explorer._controls:
        if control["kind"] == "range":
            with pytest.raises(traitlets.TraitError, match=control["name"]):
                setattr(explorer, control["name"], control["max"] + 1)


def test_settings_out_of_range_are_refused() -> None:
    with refuses(traitlets.TraitError, ".*'discount'.*TDExplorer.*0.99.*1.5.*"):
        TDExplorer(discount=1.5)
    with refuses(traitlets.TraitError, "(?s).*'score'.*'dot', 'gaussian'.*"):
        KernelExplorer(score="cosine")
    for positions in ([[0.0, 0.0]], [[0.0, 0.0], [2.0, 0.0]], [[0.0], [1.0]]):
        with refuses(traitlets.TraitError, "positions: expected two to eight pairs .*"):
            KernelExplorer(positions=positions)


@every_kind
def test_numbers_that_are_none_are_refused(kind: type[Explorer]) -> None:
    explorer = kind()
    for name, trait in kind.class_traits(setting=True).items():
        if isinstance(trait, traitlets.Int | traitlets.Float):
            for value in (float("nan"), True):
                with pytest.raises(traitlets.TraitError, match=name):
                    setattr(explorer, name, value)


@every_kind
def test_random_numbers_of_others_are_left_alone(kind: type[Explorer]) -> None:
    state = torch.get_rng_state()
    _answers.cache_clear()
    kind().compute()
    assert torch.equal(torch.get_rng_state(), state)


def test_what_is_shown_is_read_only() -> None:
    with refuses(traitlets.TraitError, ".*read-only.*"):
        TDExplorer().shown = {"values": []}


def test_controls_follow_the_traits() -> None:
    number = setting(traitlets.Float(1.0, min=0.5, max=2.0), "Size", step=0.25)
    assert describe_control("size", number) == {
        "name": "size",
        "label": "Size",
        "kind": "range",
        "log": False,
        "min": 0.5,
        "max": 2.0,
        "step": 0.25,
        "decimals": 1,
    }
    choice = setting(traitlets.Enum(["a", "b"], "a"), "Kind", options={"a": "first"})
    assert describe_control("kind", choice)["options"] == [["a", "first"], ["b", "b"]]
    assert describe_control("on", setting(traitlets.Bool(), "On"))["kind"] == "check"
    with refuses(TypeError, "name: expected a number, an Enum or a Bool .*"):
        describe_control("name", setting(traitlets.Unicode(), "Name"))


@every_kind
def test_the_output_holds_a_picture(kind: type[Explorer]) -> None:
    bundle = kind()._repr_mimebundle_()
    assert bundle is not None
    assert "application/vnd.jupyter.widget-view+json" in bundle[0]
    picture = bundle[0]["image/svg+xml"]
    assert picture.count("<path") > 10
    assert "dc:date" not in picture
    assert picture == kind().picture()  # the same settings, the same bytes


# The page's half -------------------------------------------------------------------------------


def evaluate_numerics(page: Page, expression: str, argument: Any) -> Any:
    """Evaluate an expression of the functions in numerics.js, `n`, and an argument, `x`."""
    page.evaluate(IMPORT, (FOLDER / "numerics.js").read_text(encoding="utf-8"))
    told = page.evaluate(
        f"(x) => {{ const n = window.explorer; return JSON.stringify({expression}); }}", argument
    )
    return json.loads(told)


@browser_test
def test_both_halves_draw_the_same_numbers(browser: Browser) -> None:
    draws = [Mulberry32(seed) for seed in (0, 1, 99, 2**32 - 1)]
    numbers = [[draw() for _ in range(50)] for draw in draws]
    weights = [0.125, 0.0, 0.5, 0.375, 0.0]
    chosen = [categorical(weights, u) for u in [*numbers[1], 0.0, 0.125, 0.99999, 1.0]]
    code = "x.map((seed) => { const draw = n.mulberry32(seed); return n.range(50).map(draw); })"
    with blank_page(browser) as page:
        assert evaluate_numerics(page, code, [0, 1, 99, 2**32 - 1]) == numbers
        code = "x[1].map((u) => n.categorical(x[0], u))"
        argument = [weights, [*numbers[1], 0.0, 0.125, 0.99999, 1.0]]
        assert evaluate_numerics(page, code, argument) == chosen
    assert {len(set(row)) for row in numbers} == {50}
    assert set(chosen) == {0, 2, 3}


@browser_test
def test_linear_algebra_of_the_page(browser: Browser) -> None:
    generator = np.random.default_rng(0)
    systems, radii = [], []
    for i in range(60):
        size = int(generator.integers(1, 16))
        a = generator.normal(size=(size, size))
        if i % 2:
            p, m = generator.dirichlet(np.full(size, 0.3), size=(2, size))
            a = np.eye(size) - m @ (np.eye(size) - 0.9 * p)
        b = generator.normal(size=(size, 2))
        systems.append([a.tolist(), b.tolist(), np.linalg.solve(a, b).tolist()])
        radii.append(float(abs(np.linalg.eigvals(a)).max()))
    with blank_page(browser) as page:
        solved = evaluate_numerics(page, "x.map(([a, b]) => n.solve(a, b))", systems)
        column = "x.map(([a, b]) => n.solve(a, b.map((row) => row[1])))"
        one = evaluate_numerics(page, column, systems)
        found = evaluate_numerics(page, "x.map(([a]) => n.spectralRadius(a))", systems)
        nilpotent = evaluate_numerics(page, "n.spectralRadius(x)", [[0, 1], [0, 0]])
        rows = evaluate_numerics(page, "x.map(n.softmax)", [[0, 0], [1000, 0], [-1000, -999]])
    for (_, _, expected), both, right in zip(systems, solved, one, strict=True):
        scale = max(1.0, float(np.abs(expected).max()))
        assert is_close(expected, both, 1e-9 * scale)
        assert is_close([row[1] for row in expected], right, 1e-9 * scale)
    assert is_close(radii, found, 1e-10)
    assert nilpotent == 0
    e = float(np.exp(-1.0))
    assert is_close([[0.5, 0.5], [1, 0], [e / (1 + e), 1 / (1 + e)]], rows, 1e-15)


@browser_test
@every_kind
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessible_and_narrow(browser: Browser, kind: type[Explorer], scheme: Any) -> None:
    """Nothing for axe-core to find, no sideways scrolling on a phone, numbers as computed."""
    assets.main()
    view = {"width": 375, "height": 800}
    with blank_page(browser, viewport=view, color_scheme=scheme) as page:
        mount(page, kind())
        for fold in page.query_selector_all("summary"):
            fold.click()
        page.evaluate(AXE.read_text(encoding="utf-8"))
        found = page.evaluate("axe.run('.ictd-explorer', { resultTypes: ['violations'] })")
        assert [(v["id"], v["nodes"][0]["html"]) for v in found["violations"]] == []
        assert page.evaluate("document.documentElement.scrollWidth") == 375
        assert page.evaluate(BACKGROUND) == {"light": LIGHT, "dark": DARK}[scheme]
        assert displayed_faults(page) == []


@browser_test
@every_kind
def test_python_and_the_page_move_each_other(browser: Browser, kind: type[Explorer]) -> None:
    """Every control sets its setting from the keyboard and follows it when Python sets it."""
    with blank_page(browser) as page:
        mount(page, kind())
        for control in kind()._controls:
            name = control["name"]
            handle = page.query_selector(f"[id$='-{name}']")
            assert handle is not None
            handle.focus()
            before = page.evaluate("(name) => window.model.get(name)", name)
            if control["kind"] == "check":
                page.keyboard.press("Space")
            else:
                at_end = before == control.get("max", control.get("options", [[0]])[-1][0])
                page.keyboard.press("ArrowLeft" if at_end else "ArrowRight")
            after = page.evaluate("(name) => window.model.get(name)", name)
            assert after != before, name
            page.evaluate("([name, value]) => window.model.set(name, value)", [name, before])
            page.wait_for_timeout(10)
            kept = handle.evaluate("(e) => e.type === 'checkbox' ? e.checked : e.value")
            if not control.get("log"):
                assert str(kept) == str(before), name
            outline = handle.evaluate("(e) => getComputedStyle(e).outlineStyle")
            assert outline == "solid"
        assert displayed_faults(page) == []


@browser_test
@every_kind
def test_an_explorer_that_is_gone_is_quiet(browser: Browser, kind: type[Explorer]) -> None:
    with blank_page(browser) as page:
        mount(page, kind())
        assert page.evaluate("window.listeners.length") == len(kind().settings())
        page.evaluate("window.unmount()")
        assert page.evaluate("window.listeners.length") == 0


@browser_test
def test_several_settings_at_once_are_drawn_once(browser: Browser) -> None:
    with blank_page(browser) as page:
        mount(page, TDExplorer())
        count = """() => {
          window.count = 0;
          window.model.on("change:shown", () => (window.count += 1));
          window.model.set("step", 3);
          window.model.set("discount", 0.5);
          return new Promise((resolve) => setTimeout(() => resolve(window.count), 50));
        }"""
        assert page.evaluate(count) == 1
        assert shown(page)["step"] == 3


@browser_test
@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_motion_is_reduced_where_asked(browser: Browser, motion: Any) -> None:
    with blank_page(browser, reduced_motion=motion) as page:
        mount(page, TDExplorer())
        read = "getComputedStyle(document.querySelector('.ictd-moves')).transitionDuration"
        assert page.evaluate(read) == ("0s" if motion == "reduce" else "0.2s")


@browser_test
def test_colours_follow_the_theme_first(browser: Browser) -> None:
    """A page or a notebook that says light is light, whatever the system says, and the reverse."""
    for scheme in ("light", "dark"):
        with blank_page(browser, color_scheme=scheme) as page:
            mount(page, TDExplorer())
            for place, name, value, expected in (
                ("documentElement", "data-theme", "light", LIGHT),
                ("documentElement", "data-theme", "dark", DARK),
                ("body", "data-jp-theme-light", "true", LIGHT),
                ("body", "data-jp-theme-light", "false", DARK),
                ("body", "class", "vscode-light", LIGHT),
                ("body", "class", "vscode-dark", DARK),
            ):
                page.evaluate(f"document.{place}.setAttribute('{name}', '{value}')")
                assert page.evaluate(BACKGROUND) == expected, (scheme, name, value)
                page.evaluate(f"document.{place}.removeAttribute('{name}')")


def test_the_harness_sees_differences() -> None:
    assert is_close([1.0, None, "a"], [1.0 + 1e-10, None, "a"], 1e-9)
    assert not is_close([1.0], [1.0 + 1e-8], 1e-9)
    assert not is_close([1.0, 2.0], [1.0], 1e-9)
    assert not is_close(None, 0.0, 1e-9)
    assert not is_close(True, 1, 1e-9)
    assert not is_close(0.0, float("nan"), 1e-9)
    assert not is_close({"a": 1}, {"b": 1}, 1e-9)
