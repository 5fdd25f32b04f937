"""`make experiments`: every experiment can be run, stops and goes on, and leaves small files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import experiments
from ictd.pretraining import Changes, PretrainConfig, load_pretrained
from ictd.pretraining.evaluate import changed
from test_pretraining import TINY


@pytest.mark.parametrize("name", list(experiments.EXPERIMENTS))
def test_settings_and_evaluations_fit(name: str) -> None:
    config = PretrainConfig(**(experiments.COMMON | experiments.EXPERIMENTS[name]))
    for changes in experiments.sweeps(config):
        changed(config, Changes(**changes))


def test_a_run_goes_on_and_leaves_small_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny: dict[str, Any] = {**TINY, "num_seeds": 2, "log_every": 2}
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"tiny": tiny})
    monkeypatch.setattr(experiments, "sweeps", lambda config: [{}, {"num_layers": 5}])
    places = [f"--{name}={tmp_path / name}" for name in ("runs", "data", "weights")]

    def run(*more: str) -> int:
        monkeypatch.setattr("sys.argv", ["experiments.py", *more, *places])
        return experiments.main()

    assert run("tiny", "--steps=2") == run("tiny", "--steps=4") == run("--steps=4") == 0
    assert run("--steps=9", "--list") == 0
    assert "4 of 9 steps" in capsys.readouterr().out
    found = json.loads((tmp_path / "data" / "tiny.json").read_text())
    assert PretrainConfig.from_dict(found["config"]).num_steps == 4
    assert found["command"].startswith("python tools/experiments.py --steps=4")
    assert [record["step"] for record in found["history"]] == [0, 2, 4]
    assert [entry["changes"] for entry in found["evaluations"]] == [{}, {"num_layers": 5}]
    loaded = load_pretrained(tmp_path / "weights" / "tiny.safetensors")
    assert loaded.step == 4
    assert len(loaded.models) == 2
    assert [record["step"] for record in loaded.history] == [0, 4]
    with pytest.raises(SystemExit):
        run("huge")


def test_numbers_are_rounded() -> None:
    value = {"a": [1.23456, None, 2], "b": 0.000123456}
    assert experiments.rounded(value) == {"a": [1.235, None, 2], "b": 0.0001235}
