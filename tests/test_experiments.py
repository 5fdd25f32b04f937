"""`make experiments`: every experiment can be run, stops and goes on, and leaves small files."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import experiments
from ictd.pretraining import Changes, PretrainConfig, load_pretrained, multiply_adds, yardsticks
from ictd.pretraining.checkpoint import NAME
from ictd.pretraining.evaluate import changed
from test_pretraining import TINY


@pytest.mark.parametrize("name", list(experiments.EXPERIMENTS))
def test_settings_and_evaluations_fit(name: str) -> None:
    config = PretrainConfig(**(experiments.COMMON | experiments.EXPERIMENTS[name]))
    for changes in experiments.sweeps(config):
        changed(config, Changes(**changes))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Call the script for one small experiment, in a folder of its own."""
    tiny: dict[str, Any] = {**TINY, "num_seeds": 2, "log_every": 2}
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"tiny": tiny})
    monkeypatch.setattr(experiments, "sweeps", lambda config: [{}, {"num_layers": 5}])
    places = [f"--{name}={tmp_path / name}" for name in ("runs", "data", "weights")]

    def run(*more: str) -> int:
        monkeypatch.setattr("sys.argv", ["experiments.py", *more, *places])
        return experiments.main()

    return run


def test_a_run_goes_on_and_leaves_small_files(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("tiny", "--steps=2") == run("tiny", "--steps=4") == 0
    assert run("--steps=9", "--list") == 0
    assert "4 of 9 steps" in capsys.readouterr().out
    found = json.loads((tmp_path / "data" / "tiny.json").read_text())
    assert PretrainConfig.from_dict(found["config"]).num_steps == 4
    assert found["command"].startswith("python tools/experiments.py tiny --steps=4")
    assert [record["step"] for record in found["history"]] == [0, 2, 4]
    assert [entry["changes"] for entry in found["evaluations"]] == [{}, {"num_layers": 5}]
    assert found["settled"]["msve"] == pytest.approx(
        sum(found["history"][2]["msve"]) / sum(found["history"][1]["msve"]) - 1, abs=1e-3
    )
    assert [len(values) for values in found["layers"]["distance"]] == [3, 3]
    loaded = load_pretrained(tmp_path / "weights" / "tiny.safetensors")
    assert loaded.step == 4
    assert len(loaded.models) == 2
    assert [record["step"] for record in loaded.history] == [0, 4]
    with pytest.raises(SystemExit):
        run("huge")


def test_weights_are_evaluated_again_without_training(
    run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "data" / "tiny.json"
    run("tiny", "--steps=2")
    before = json.loads(file.read_text())
    for path in (tmp_path / "runs" / "tiny").iterdir():
        path.unlink()
    monkeypatch.setattr(experiments, "sweeps", lambda config: [{}, {"discount": 0.5}])
    assert run("tiny", "--evaluate") == 0
    after = json.loads(file.read_text())
    assert after["evaluated"]["command"].startswith("python tools/experiments.py tiny --evaluate")
    assert [entry["changes"] for entry in after["evaluations"]] == [{}, {"discount": 0.5}]
    assert after["evaluations"][0] == before["evaluations"][0]
    for name in ("history", "command", "config", "settled", "layers"):
        assert after[name] == before[name]
    assert not (tmp_path / "runs" / "tiny" / NAME).exists()


def test_the_yardsticks_need_no_training(
    run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["ictd.pretraining.optimum"], "SAMPLE", 64)
    run("tiny", "--steps=0")
    assert run("yardsticks") == 0
    found = json.loads((tmp_path / "data" / "yardsticks.json").read_text())
    entries = found["yardsticks"]["tiny"]
    assert [entry["changes"] for entry in entries] == [{}, {"num_layers": 5}]
    config = PretrainConfig(**TINY)
    exact = yardsticks(config, Changes(num_layers=5))
    assert entries[1]["methods"] == experiments.rounded(exact)
    assert found["multiply_adds"] == {"tiny": multiply_adds(config, 4)}
    assert {"trained", "sought"} <= found["optimum"].keys()
    assert found["command"].startswith("python tools/experiments.py yardsticks")


def test_a_diverged_seed_does_not_spoil_the_mean() -> None:
    assert experiments.mean([1.0, None, 3.0]) == 2
    assert math.isnan(experiments.mean([None]))


def test_the_deep_baseline_takes_as_many_multiplications() -> None:
    def count(name: str) -> int:
        config = PretrainConfig(**(experiments.COMMON | experiments.EXPERIMENTS[name]))
        return multiply_adds(config, config.num_states)

    assert count("linear-equal-compute") / count("boyan-structured") == pytest.approx(1, abs=0.01)
    assert count("linear-one-hot-equal-compute") / count("one-hot") == pytest.approx(1, abs=0.05)


def test_numbers_are_rounded() -> None:
    value = {"a": [1.23456, None, 2], "b": 0.000123456}
    assert experiments.rounded(value) == {"a": [1.235, None, 2], "b": 0.0001235}
