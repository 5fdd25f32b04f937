"""The explorer that plays pretraining back: its data, its numbers, its use without a mouse."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import traitlets
from matplotlib.figure import Figure
from playwright.sync_api import Browser, Page

import player
from ictd import empirical_model
from ictd.pretraining import PretrainConfig
from ictd.pretraining.models import stack_parameters, state_values, unstack_parameters
from ictd.pretraining.tasks import draw_tasks
from ictd.trajectory import Trajectory
from ictd.widgets import EmergencePlayer
from test_pretraining import TINY
from widgets_harness import blank_page, compare, displayed, displayed_faults, mount, shown

ROOT = Path(__file__).parents[1]
DATA = ROOT / "src" / "ictd" / "data" / "emergence"
RUNS, SEEDS, STEPS = ("small start", "large start"), (2, 3, 4), range(0, 3001, 50)
browser_test = pytest.mark.browser


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / "player.json").read_text(encoding="utf-8"))
    return found


def config_of(data: dict[str, Any], run: str) -> PretrainConfig:
    return PretrainConfig.from_dict(data["runs"][run]["config"])


# --- The data


def test_the_data_are_small_and_say_where_they_come_from(data: dict[str, Any]) -> None:
    assert (DATA / "player.json").stat().st_size <= 150_000
    assert data["command"] == "python tools/player.py"
    assert data["versions"].keys() == {"ictd", "torch", "python", "platform"}
    for run in RUNS:
        config = config_of(data, run)
        assert config == PretrainConfig(**(player.COMMON | player.RUNS[run]))
        assert data["runs"][run]["steps"] == list(STEPS)
        assert tuple(map(int, data["runs"][run]["seeds"])) == SEEDS
        for saved in data["runs"][run]["seeds"].values():
            assert {len(column) for column in saved.values()} == {len(STEPS)}


def test_the_first_run_is_part_of_the_experiment_of_twenty_seeds(data: dict[str, Any]) -> None:
    """Trained apart, with records more often: the same numbers but for the order of sums."""
    twenty = json.loads((DATA / "boyan-structured.json").read_text(encoding="utf-8"))
    records = {record["step"]: record for record in twenty["history"]}
    for seed in SEEDS:
        saved = data["runs"]["small start"]["seeds"][str(seed)]
        for step in (0, 200, 1000, 3000):
            for name in ("value_weights", "kernel_diagonality", "msve"):
                ours, theirs = saved[name][step // 50], records[step][name][seed]
                assert ours == pytest.approx(theirs, rel=2e-2, abs=2e-3)


def test_both_runs_begin_with_the_same_weights_but_for_their_size(data: dict[str, Any]) -> None:
    for seed in map(str, SEEDS):
        small, large = (data["runs"][run]["seeds"][seed] for run in RUNS)
        for name in ("attention", "value_weights"):
            first = torch.tensor(small[name][0]), torch.tensor(large[name][0])
            torch.testing.assert_close(10 * first[0], first[1], rtol=2e-3, atol=0)


def test_the_task_is_drawn_and_nothing_was_trained_on_it(data: dict[str, Any]) -> None:
    config = config_of(data, "small start")
    assert data["task"] == player.task(config)
    assert data["task"]["seed"] not in range(config.seed, config.seed + config.num_seeds)
    rewards, discounts = (
        torch.tensor(data["task"][name], dtype=torch.float64) for name in ("rewards", "discounts")
    )
    context = Trajectory(torch.tensor(data["task"]["states"]), rewards, discounts)
    model = empirical_model(context, config.num_states)
    for name in ("counts", "reward", "transition"):
        kept = torch.tensor(data["task"][name], dtype=torch.float64)
        torch.testing.assert_close(getattr(model, name), kept, rtol=1e-12, atol=1e-12)
    assert min(data["task"]["counts"]) > 0


def test_the_tool_writes_what_the_explorer_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: dict[str, Any]
) -> None:
    tiny = {**TINY, "seed": 2, "num_seeds": 2, "log_every": 2}
    monkeypatch.setattr(player, "COMMON", tiny)
    target = tmp_path / "player.json"
    monkeypatch.setattr("sys.argv", ["player.py", "--steps", "4", "--out", str(target)])
    assert player.main() == 0
    found = json.loads(target.read_text(encoding="utf-8"))
    assert found.keys() == data.keys()
    assert found["task"].keys() == data["task"].keys()
    for run in RUNS:
        mine, kept = found["runs"][run], data["runs"][run]
        assert mine["steps"] == [0, 2, 4]
        assert mine["seeds"].keys() == {"2", "3"}
        assert mine["seeds"]["2"].keys() == kept["seeds"]["2"].keys()
        first, *_, last = mine["seeds"]["2"]["attention"]
        assert first != last


# --- The numbers


def players(count: int) -> list[EmergencePlayer]:
    """Every run and seed, at its ends and at random steps."""
    draw = random.Random(0)
    chosen = [(run, seed, step) for run in RUNS for seed in SEEDS for step in (0, 3000)]
    while len(chosen) < count:
        chosen.append((draw.choice(RUNS), draw.choice(SEEDS), draw.choice(STEPS)))
    return [EmergencePlayer(run=run, seed=seed, step=step) for run, seed, step in chosen]


@browser_test
def test_javascript_computes_what_the_package_does(browser: Browser) -> None:
    """Attention and values through states there, the Transformer on its tokens here."""
    with blank_page(browser) as page:
        assert compare(page, EmergencePlayer, players(72)) == []


@pytest.mark.parametrize("run", RUNS)
def test_values_are_those_that_pretraining_sees(run: str, data: dict[str, Any]) -> None:
    """`state_values`, by which the run was trained, of the saved weights: a replica per record."""
    config = dataclasses.replace(config_of(data, run), dtype="float64")
    drawn = draw_tasks(config, [data["task"]["seed"]] * 3, 0, stream="evaluation", num_tasks=1)
    records = (0, 24, 60)
    saved = data["runs"][run]["seeds"]["3"]
    template = unstack_parameters(config, stack_parameters([player.Trainer(config).template]))[0]
    parameters = {
        f"layers.0.{ours}": torch.tensor([saved[name][i] for i in records], dtype=torch.float64)
        for ours, name in (("attention", "attention"), ("value_weights", "value_weights"))
    }
    values = state_values(template, parameters, drawn)[:, 0]
    for record, expected in zip(records, values, strict=True):
        computed = EmergencePlayer(run=run, seed=3, step=50 * record).compute()
        found = torch.tensor(computed["values"], dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_what_the_caption_says(data: dict[str, Any]) -> None:
    """From small weights TD emerges in all three; from large ones soon, late, and not yet."""
    for seed in SEEDS:
        start, end = (EmergencePlayer(seed=seed, step=step).compute() for step in (0, 3000))
        assert end["signs"] == "+ + −"
        assert end["kernel_diagonality"] > 0.5 > 0.2 > start["kernel_diagonality"]
        assert end["error"] < 0.1 * start["error"]
    kind = {"run": "large start"}
    assert [EmergencePlayer(**kind, seed=seed).compute()["signs"] == "+ + −" for seed in SEEDS] == [
        True,
        True,
        False,
    ]
    late = EmergencePlayer(**kind, seed=3, step=1000).compute()
    assert late["signs"] == "+ − −"
    assert max(map(abs, late["values"])) < 0.1
    never = [EmergencePlayer(**kind, seed=4, step=step).compute() for step in (200, 1600, 3000)]
    assert all(0 < found["weights"][0] < 0.01 for found in never)


def test_settings_are_checked() -> None:
    explorer = EmergencePlayer(step=50)
    with pytest.raises(traitlets.TraitError, match="step: expected a multiple of 50, got 75"):
        explorer.step = 75
    with pytest.raises(traitlets.TraitError):
        explorer.step = 3050
    with pytest.raises(traitlets.TraitError):
        explorer.seed = 5
    with pytest.raises(traitlets.TraitError):
        explorer.run = "no such run"
    with pytest.raises(traitlets.TraitError):
        explorer.data = {}
    assert explorer.settings() == {
        "run": "small start",
        "seed": 4,
        "step": 50,
        "data": explorer.data,
    }


def test_the_picture_has_its_four_panels() -> None:
    figure = Figure()
    EmergencePlayer(run="large start", seed=3, step=1000).draw(figure)
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert labels[:4] == ["value weights", "diagonality", "query", "value"]
    assert figure.axes[0].lines[-1].get_xdata() == [1000, 1000]


# --- The page


def setting(page: Page, name: str) -> Any:
    return page.evaluate("(name) => window.model.get(name)", name)


@browser_test
def test_by_keyboard(browser: Browser) -> None:
    with blank_page(browser, reduced_motion="reduce") as page:
        mount(page, EmergencePlayer(step=0))
        status = page.locator("p[role=status]")
        assert "not those of TD" in status.inner_text()
        page.get_by_label("Step", exact=True).focus()
        page.keyboard.press("ArrowRight")
        assert setting(page, "step") == 50
        page.keyboard.press("End")
        assert setting(page, "step") == 3000
        assert "Step 3000: the value weights have the signs + + −, as in TD" in status.inner_text()
        assert displayed_faults(page) == []
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("ArrowLeft")
        assert setting(page, "seed") == 3
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("ArrowDown")
        assert setting(page, "run") == "large start"
        expected = EmergencePlayer(run="large start", seed=3).compute()
        assert shown(page)["weights"] == expected["weights"]
        assert displayed_faults(page) == []


@browser_test
def test_play_pause_and_back(browser: Browser) -> None:
    with blank_page(browser) as page:
        mount(page, EmergencePlayer(step=100))
        page.wait_for_timeout(500)
        assert setting(page, "step") == 100  # nothing plays by itself
        press = {name: page.get_by_role("button", name=name) for name in ("Play", "Reset")}
        press["Play"].press("Enter")
        page.wait_for_function("window.model.get('step') >= 200")
        page.get_by_role("button", name="Pause").press("Enter")
        stopped = setting(page, "step")
        page.wait_for_timeout(500)
        assert setting(page, "step") == stopped
        page.get_by_role("button", name="One record").press("Enter")
        assert setting(page, "step") == stopped + 50
        press["Reset"].press("Enter")
        assert setting(page, "step") == 0
        page.evaluate("window.model.set('step', 2950)")
        press["Play"].press("Enter")
        page.wait_for_function("window.model.get('step') === 3000")
        press["Play"].wait_for()  # the run is over
        press["Play"].press("Enter")
        page.wait_for_function("window.model.get('step') < 200")  # and begins again
        page.evaluate("window.unmount()")
        page.wait_for_timeout(300)
        at = setting(page, "step")
        page.wait_for_timeout(500)
        assert setting(page, "step") == at
        assert page.evaluate("window.listeners.length") == 0


@browser_test
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessible_and_narrow(browser: Browser, scheme: Literal["light", "dark"]) -> None:
    axe = (ROOT / "_vendor" / "axe" / "axe.min.js").read_text(encoding="utf-8")
    with blank_page(browser, color_scheme=scheme, viewport={"width": 375, "height": 800}) as page:
        mount(page, EmergencePlayer(run="large start", seed=4, step=0))
        page.get_by_text("All numbers").press("Enter")
        width = "document.documentElement.scrollWidth"
        assert page.evaluate(width) <= 375
        drawn = "all => Math.max(...all.map((drawing) => drawing.width.baseVal.value))"
        assert page.eval_on_selector_all("svg[role=img]", drawn) <= 375  # not scaled down
        page.evaluate(axe)
        options = "document.querySelector('main'), { resultTypes: ['violations'] }"
        faults = page.evaluate(f"axe.run({options})")["violations"]
        assert [(fault["id"], fault["nodes"][0]["html"]) for fault in faults] == []
        labels = page.eval_on_selector_all("svg[role=img]", "all => all.map(s => s.ariaLabel)")
        assert len(labels) == 5
        assert all(labels)
        assert "lie outside the drawing" in labels[3]
        assert len(displayed(page)) == 3 + 2 + 4 + 20
