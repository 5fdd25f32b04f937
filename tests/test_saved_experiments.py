"""What the experiments measured, as the package hands it out."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import experiments
from ictd.pretraining import (
    PretrainConfig,
    experiment_names,
    load_experiment,
    load_pretrained,
    pretrained_names,
)
from strategies import refuses

SHIPPED = experiment_names()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One experiment of two seeds, the second of which diverged, and a file of another kind."""
    config = PretrainConfig(num_seeds=2, num_steps=4, looped=False, num_layers=2).to_dict()
    first: dict[str, Any] = {
        "step": 0,
        "loss": None,
        "value_weights": [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [1, 2, 3]]],
        "msve": [2.5, 3.5],
        "neu": None,
    }
    last = {
        "step": 4,
        "loss": [0.5, None],
        "value_weights": [[[1, 1, -1], [1, 1, -1]], None],
        "msve": [0.25, None],
        "neu": None,
        "conditions": {"diagonality": [0.5, None]},
        "off_schedule": True,
    }
    saved = {
        "name": "tiny",
        "config": config,
        "versions": {"ictd": "0"},
        "command": "python tools/experiments.py tiny",
        "history": [first, last],
        "evaluations": [
            {"changes": {}, "metrics": {"msve": [1.0, None], "neu": None}},
            {
                "changes": {"context_length": 80},
                "metrics": {"msve": [0.5, 2.0], "conditions": {"diagonality": [1.0, 0.0]}},
            },
        ],
        "layers": {"msve": [[4.0, 2.0, 1.0], [4.0, None, None]]},
    }
    (tmp_path / "tiny.json").write_text(json.dumps(saved, separators=(",", ":")))
    (tmp_path / "other.json").write_text('{"versions":{}}')
    return tmp_path


def test_records_become_tensors(folder: Path) -> None:
    found = load_experiment("tiny", folder=folder)
    assert (found.name, found.config.num_steps, found.versions) == ("tiny", 4, {"ictd": "0"})
    assert found.command.endswith("tiny")
    assert found.steps.tolist() == [0, 4]
    assert found.history.keys() == {"loss", "value_weights", "msve"}
    assert {value.dtype for value in found.history.values()} == {torch.float64}
    assert found.history["value_weights"].shape == (2, 2, 2, 3)
    assert found.history["value_weights"][1, 0].tolist() == [[1, 1, -1], [1, 1, -1]]
    assert found.history["value_weights"][1, 1].isnan().all()
    assert found.history["msve"][0].tolist() == [2.5, 3.5]
    assert found.history["loss"].isnan().tolist() == [[True, True], [False, True]]
    assert found.conditions["diagonality"][0] == 0.5
    assert found.layers["msve"].shape == (2, 3)
    assert math.isnan(found.layers["msve"][1, 2])


def test_evaluations_are_found_by_what_is_unlike_the_training(folder: Path) -> None:
    found = load_experiment("tiny", folder=folder)
    assert found.evaluation().keys() == {"msve"}
    assert found.evaluation()["msve"][0] == 1.0
    assert found.evaluation(context_length=40) is found.evaluation()  # as in the training
    longer = found.evaluation(context_length=80, family="boyan")
    assert longer["msve"].tolist() == [0.5, 2.0]
    assert longer["conditions"]["diagonality"].tolist() == [1.0, 0.0]
    with refuses(KeyError, r"expected one of \[\{\}, .*80\}\], got \{'context_length': 81\}"):
        found.evaluation(context_length=81)


def test_other_names_are_refused(folder: Path) -> None:
    assert experiment_names(folder) == ["tiny"]
    with refuses(FileNotFoundError, r"huge: expected one of \[tiny\], got no such experiment"):
        load_experiment("huge", folder=folder)
    with refuses(FileNotFoundError, "boyan-structured"):
        load_experiment("huge")


def test_files_of_another_kind_are_no_experiments(folder: Path) -> None:
    with refuses(FileNotFoundError, r"other: expected one of \[tiny\], got no such experiment"):
        load_experiment("other", folder=folder)


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_shipped_fits_together(name: str) -> None:
    """Settings are those of the script, and the history ends at the weights."""
    found, result = load_experiment(name), load_pretrained(name)
    wanted = PretrainConfig(**(experiments.COMMON | experiments.EXPERIMENTS[name]))
    steps = found.config.num_steps  # some runs were ended sooner
    configs = [dataclasses.replace(c, num_steps=0) for c in (found.config, result.config, wanted)]
    assert configs[0] == configs[1] == configs[2]
    assert found.steps[-1] == result.step == steps
    assert len(result.models) == wanted.num_seeds
    last = experiments.rounded(result.history[-1])
    for key, value in found.history.items():
        ends = torch.tensor(
            [math.nan if x is None else x for x in last[key]]
            if not isinstance(last[key][0], list)
            else last[key],
            dtype=torch.float64,
        )
        torch.testing.assert_close(value[-1], ends, rtol=0, atol=0, equal_nan=True)
    assert [changes for changes, _ in found.evaluations] == experiments.sweeps(wanted)
    assert found.evaluation()["msve"].shape == (wanted.num_seeds,)


def test_every_experiment_that_is_shipped_has_weights() -> None:
    assert {"boyan-structured"} <= set(SHIPPED) <= set(pretrained_names())
