"""Run an explorer in a real browser without a kernel: what it computes, what it shows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page

from ictd.widgets import Explorer

IMPORT = """async (code) => {
  const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  window.explorer = await import(url);
}"""
# What a kernel's side of a widget does, as far as the page sees it.
MOUNT = """async ({ state, css }) => {
  const style = document.createElement("style");
  style.textContent = css;
  document.head.append(style);
  const listeners = [];
  window.model = {
    get: (name) => state[name],
    set(name, value) {
      if (state[name] === value) return;
      state[name] = value;
      for (const [event, call] of [...listeners]) if (event === `change:${name}`) call();
    },
    save_changes() {},
    on: (event, call) => listeners.push([event, call]),
    off(event, call) {
      const at = listeners.findIndex(([e, c]) => e === event && c === call);
      if (at >= 0) listeners.splice(at, 1);
    },
  };
  window.listeners = listeners;
  const el = document.createElement("div");
  document.querySelector("main").append(el);
  window.unmount = await window.explorer.default.render({ model: window.model, el });
}"""
SHOWN = """() => [...document.querySelectorAll("[data-shown]")].map((element) => [
  element.dataset.shown,
  element.textContent,
])"""


@contextmanager
def blank_page(browser: Browser, **context: Any) -> Iterator[Page]:
    """An empty page; whatever goes wrong in it is an error when it is closed."""
    opened = browser.new_context(**context)
    page = opened.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
    page.set_content('<!doctype html><html lang="en"><title>Explorer</title><main></main></html>')
    try:
        yield page
    finally:
        opened.close()
    assert faults == [], faults


def javascript(page: Page, kind: type[Explorer], settings: Sequence[dict[str, Any]]) -> list[Any]:
    """What the explorer's JavaScript computes for each of the settings."""
    page.evaluate(IMPORT, kind._esm)
    told: str = page.evaluate(
        "(all) => JSON.stringify(all.map(window.explorer.compute))", list(settings)
    )
    computed: list[Any] = json.loads(told)
    return computed


def compare(page: Page, kind: type[Explorer], explorers: Sequence[Explorer]) -> list[str]:
    """Where JavaScript and Python disagree by more than 1e-9 of the scale of a quantity."""
    computed = javascript(page, kind, [explorer.settings() for explorer in explorers])
    faults = []
    for explorer, found in zip(explorers, computed, strict=True):
        expected = explorer.compute()
        if expected.keys() != found.keys():
            faults.append(f"names: {sorted(expected.keys() ^ found.keys())}")
            continue
        for name, value in expected.items():
            scale = max([1.0, *map(abs, numbers(value))])
            if not is_close(value, found[name], 1e-9 * scale):
                faults.append(f"{explorer.settings()}: {name}: {found[name]}, expected {value}")
    return faults


def numbers(value: Any) -> list[float]:
    """All numbers in nested lists."""
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    if isinstance(value, dict):
        return numbers(list(value.values()))
    return [value] if isinstance(value, int | float) else []


def is_close(expected: Any, found: Any, tolerance: float) -> bool:
    """Whether two nested lists have the same shape, and numbers as close as that."""
    if isinstance(expected, list) and isinstance(found, list):
        pairs = list(zip(expected, found, strict=False))
        return len(expected) == len(found) and all(is_close(e, f, tolerance) for e, f in pairs)
    if isinstance(expected, dict) and isinstance(found, dict):
        same = expected.keys() == found.keys()
        return same and all(is_close(expected[name], found[name], tolerance) for name in expected)
    is_number = isinstance(expected, int | float) and not isinstance(expected, bool)
    if is_number and isinstance(found, int | float) and not isinstance(found, bool):
        return math.isfinite(found) and abs(expected - found) <= tolerance
    return type(expected) is type(found) and bool(expected == found)


def mount(page: Page, explorer: Explorer) -> None:
    """Put an explorer on the page, with a stand-in for its model: `window.model`."""
    page.evaluate(IMPORT, explorer._esm)
    state = {name: getattr(explorer, name) for name in ("_settings", "_controls", "_title")}
    page.evaluate(MOUNT, {"state": {**state, **explorer.settings()}, "css": explorer._css})


def shown(page: Page) -> dict[str, Any]:
    """What the explorer told Python that it displays."""
    told: dict[str, Any] = json.loads(page.evaluate("JSON.stringify(window.model.get('shown'))"))
    return told


def displayed(page: Page) -> dict[str, str]:
    """The text at each quantity that is displayed as a number."""
    return dict(page.evaluate(SHOWN))


def displayed_faults(page: Page) -> list[str]:
    """Numbers on the page that are not the rounded quantities."""
    told, texts, faults = shown(page), displayed(page), []
    if not texts:
        return ["no number is displayed"]
    for path, text in texts.items():
        value: Any = told
        for part in path.split("."):
            value = value[int(part)] if isinstance(value, list) else value[part]
        if value is None:
            faults += [] if text == "–" else [f"{path}: {text}, expected –"]
            continue
        plain = text.replace("−", "-")
        digits = len(plain.partition("e")[0].partition(".")[2])
        exponent = int(plain.partition("e")[2] or 0)
        if abs(float(plain) - value) > 0.5001 * 10.0 ** (exponent - digits):
            faults.append(f"{path}: {text}, expected {value}")
    return faults
