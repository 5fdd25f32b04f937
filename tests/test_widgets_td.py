"""The explorer of temporal differences, in a browser and against the package."""

from __future__ import annotations

import random

import pytest
from playwright.sync_api import Browser

from ictd.widgets import TDExplorer
from widgets_harness import (
    blank_page,
    compare,
    displayed,
    displayed_faults,
    is_close,
    mount,
    shown,
)

pytestmark = pytest.mark.browser
TICKS = """() => {
  const drawing = document.querySelector(".ictd-moves").closest("svg");
  return [...drawing.querySelectorAll(".ictd-y-tick")].map(
    (tick) => [tick.textContent.replace("−", "-"), tick.getAttribute("y")],
  );
}"""
MARKS = "[...document.querySelectorAll('.ictd-moves')].map((mark) => mark.style.transform)"


def random_settings(count: int) -> list[TDExplorer]:
    draw = random.Random(0)
    return [
        TDExplorer(
            algorithm=draw.choice(["batch", "online", "expected"]),
            chain=draw.choice(["random", "random", "classic"]),
            num_states=draw.randint(3, 10),
            discount=draw.uniform(0.0, 0.99),
            step_size=draw.uniform(0.05, 4.0),
            num_transitions=draw.randint(20, 400),
            seed=draw.randint(0, 99),
            step=draw.choice([0, 1, draw.randint(2, 30), draw.randint(30, 400)]),
        )
        for _ in range(count)
    ]


def test_javascript_computes_what_the_package_does(browser: Browser) -> None:
    with blank_page(browser) as page:
        assert compare(page, TDExplorer, random_settings(60)) == []


def test_values_by_hand() -> None:
    """Boyan's own chain of three states: 1 leads to the end, 0 to either."""
    explorer = TDExplorer(chain="classic", algorithm="expected", num_states=3, discount=0.9)
    told = explorer.compute()
    assert told["true_values"] == pytest.approx([-3.9, -2.0, 0.0], abs=1e-12)
    assert told["td_errors"] == [-3.0, -2.0, 0.0]
    explorer.step, explorer.step_size = 1, 0.5
    assert explorer.compute()["values"] == [-1.5, -1.0, 0.0]
    assert explorer.compute()["rms_errors"][1] == pytest.approx(((2.4**2 + 1) / 2) ** 0.5)


def test_the_chain_is_boyans() -> None:
    explorer = TDExplorer(num_states=5)
    mrp, other = explorer.process(), TDExplorer(num_states=5, seed=4).process()
    steps = (mrp.transition > 0).int().tolist()
    assert steps == [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1], [0, 0, 0, 0, 1], [1] * 5]
    assert (mrp.transition != other.transition).any()
    record, longer = explorer.record(), TDExplorer(num_states=5, num_transitions=80).record()
    assert len(record) == 61
    assert (longer.states[:61] == record.states).all()


def test_one_step_play_and_reset(browser: Browser) -> None:
    """The buttons, by keyboard, on a clock that the test moves; nothing is read out meanwhile."""
    with blank_page(browser) as page:
        page.clock.install(time=0)
        page.clock.pause_at(1)
        mount(page, TDExplorer(algorithm="online", num_transitions=20, step_size=0.5))

        def at_step() -> int:
            step: int = page.evaluate("window.model.get('step')")
            return step

        status = page.get_by_role("status")
        page.get_by_role("button", name="One step").press("Enter")
        assert at_step() == 1
        page.get_by_role("button", name="Play").press("Enter")
        page.clock.run_for(1100)
        assert at_step() == 5
        assert status.get_attribute("aria-live") == "off"
        page.get_by_role("button", name="Pause").press("Enter")
        page.clock.run_for(1000)
        assert at_step() == 5
        page.get_by_role("button", name="Play").press("Space")
        page.clock.run_for(10_000)
        assert at_step() == 20  # the record is at its end
        page.get_by_role("button", name="Play").wait_for()
        assert status.get_attribute("aria-live") == "polite"
        assert "Step 20 of 20" in status.inner_text()
        page.get_by_role("button", name="Play").press("Enter")  # from the start again
        page.clock.run_for(600)
        assert at_step() == 2
        page.get_by_role("button", name="Reset").press("Enter")
        page.clock.run_for(1000)
        assert at_step() == 0


@pytest.mark.parametrize("algorithm", ["batch", "online", "expected"])
def test_the_page_shows_what_was_computed(browser: Browser, algorithm: str) -> None:
    """As numbers, and in the drawing: every mark stands where the axis says."""
    explorer = TDExplorer(algorithm=algorithm, step=9, step_size=0.4, seed=8)
    with blank_page(browser) as page:
        mount(page, explorer)
        told = shown(page)
        assert is_close(explorer.compute(), told, 1e-9)
        assert displayed_faults(page) == []
        texts = displayed(page)
        names = {"values", "true_values", "td_errors", "rms_errors"}
        if algorithm != "expected":
            names |= {"record_values", "rms_to_record"}
        assert {path.partition(".")[0] for path in texts} == names
        ticks = page.evaluate(TICKS)
        (low, y_low), *_, (high, y_high) = [(float(a), float(b) - 4) for a, b in ticks]
        marks = page.evaluate(MARKS)
        for mark, value in zip(marks, told["values"], strict=True):
            y = float(mark.rpartition(",")[2].removesuffix("px)"))
            found = low + (y - y_low) / (y_high - y_low) * (high - low)
            assert found == pytest.approx(value, abs=0.02)
