"""Checkpoints: whole, damaged, foreign, from another device; and weights that come by name."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from ictd.pretraining import (
    CheckpointError,
    PretrainConfig,
    load_pretrained,
    pretrain,
    pretrained_names,
    save_pretrained,
)
from ictd.pretraining import checkpoint as checkpoints
from ictd.pretraining import pretrained as shipped
from ictd.pretraining.checkpoint import load_checkpoint, save_checkpoint
from test_pretraining import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a short run."""
    folder = tmp_path_factory.mktemp("run")
    pretrain(tiny(num_steps=3, num_seeds=2), out=folder)
    return folder


@pytest.fixture
def file(run: Path, tmp_path: Path) -> Path:
    """A copy of its checkpoint."""
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes((run / checkpoints.NAME).read_bytes())
    return copy


def rewritten(file: Path, change: Any, *, sealed: bool = True) -> Path:
    """The same tensors with another header, and unless ``sealed`` is False with its digest."""
    with safetensors.safe_open(file, "pt") as opened:
        about = json.loads(opened.metadata()["ictd"])
    change(about)
    tensors = safetensors.torch.load_file(file)
    if sealed:
        del about["digest"]
        about["digest"] = checkpoints.digest(tensors, about)
    safetensors.torch.save_file(tensors, file, {"ictd": json.dumps(about)})
    return file


def test_a_run_leaves_files_that_people_can_read(run: Path) -> None:
    about = json.loads((run / "config.json").read_text())
    assert PretrainConfig.from_dict(about["config"]) == tiny(num_steps=3, num_seeds=2)
    assert {"ictd", "torch", "python"} <= about["versions"].keys()
    assert about["command"]
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 3]
    assert sorted(path.name for path in run.iterdir()) == [
        "checkpoint.safetensors",
        "config.json",
        "metrics.jsonl",
    ]


def test_what_was_saved_is_loaded(run: Path) -> None:
    once = pretrain(tiny(num_steps=3, num_seeds=2))
    for place in (run, run / checkpoints.NAME, str(run)):
        loaded = load_pretrained(place)
        assert (loaded.config, loaded.step, loaded.history) == (once.config, 3, once.history)
        for mine, theirs in zip(loaded.models, once.models, strict=True):
            for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
                assert torch.equal(one, other)
    assert loaded.model is loaded.models[0]


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_file_that_was_cut_short_is_refused(file: Path, kept: int) -> None:
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match="expected a whole safetensors file, got one that is"):
        load_checkpoint(file)


def test_one_changed_bit_is_seen(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged: the content is not what was saved"):
        load_checkpoint(file)


def test_a_changed_header_is_seen(file: Path) -> None:
    def move_on(about: dict[str, Any]) -> None:
        about["step"] = 9

    def discount(about: dict[str, Any]) -> None:
        about["config"]["discount"] = 0.1

    original = file.read_bytes()
    for change in (move_on, discount):
        file.write_bytes(original)
        with pytest.raises(CheckpointError, match="damaged: the content is not what was saved"):
            load_checkpoint(rewritten(file, change, sealed=False))


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.safetensors"
    text.write_text("weights\n" * 10)
    with pytest.raises(CheckpointError, match="damaged or of another kind"):
        load_checkpoint(text)
    foreign = tmp_path / "foreign.safetensors"
    safetensors.torch.save_file({"weight": torch.ones(2)}, foreign)
    with pytest.raises(CheckpointError, match=r"expected a checkpoint of ictd\.pretraining"):
        load_checkpoint(foreign)
    safetensors.torch.save_file({"weight": torch.ones(2)}, foreign, {"ictd": "{"})
    with pytest.raises(CheckpointError, match="its header is no JSON"):
        load_checkpoint(foreign)
    with pytest.raises(FileNotFoundError, match="expected a checkpoint, got no file"):
        load_checkpoint(tmp_path)


def test_headers_that_are_no_json_are_damaged(file: Path, tmp_path: Path) -> None:
    def no_number(about: dict[str, Any]) -> None:
        about["step"] = float("nan")

    with pytest.raises(CheckpointError, match="its header is no JSON"):
        load_checkpoint(rewritten(file, no_number, sealed=False))
    deep = tmp_path / "deep.safetensors"
    safetensors.torch.save_file({"weight": torch.ones(2)}, deep, {"ictd": "[" * 100_000})
    with pytest.raises(CheckpointError, match="its header is no JSON"):
        load_checkpoint(deep)


class Trap:
    """What a pickle may do to whoever loads it."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was loaded",))


def test_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    file = tmp_path / "trap.pt"
    file.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(CheckpointError, match="damaged or of another kind"):
        load_pretrained(file)
    source = Path(checkpoints.__file__).parent
    assert not [p for p in source.glob("*.py") if "torch.load" in p.read_text()]


def test_settings_that_this_version_does_not_know_are_refused(file: Path) -> None:
    def set_version(about: dict[str, Any]) -> None:
        about["version"] = 2

    def add_setting(about: dict[str, Any]) -> None:
        about["config"]["moonlight"] = 1

    def drop_step(about: dict[str, Any]) -> None:
        del about["step"]

    original = file.read_bytes()
    for change, message in (
        (set_version, "expected version 1 of the format, got 2"),
        (add_setting, r"its settings cannot be used: config: expected .*moonlight"),
        (drop_step, "its settings cannot be used: 'step'"),
    ):
        file.write_bytes(original)
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(rewritten(file, change))


def test_weights_from_a_gpu_load_without_one(file: Path) -> None:
    # C18: tensors are saved from the CPU, and the config says where they were trained.
    def move(about: dict[str, Any]) -> None:
        about["config"]["device"] = "cuda"

    loaded = load_pretrained(rewritten(file, move))
    assert loaded.config.device == "cuda"
    assert {p.device.type for p in loaded.model.parameters()} == {"cpu"}


FRESH = """
import pickle, sys, torch
def refuse(*_, **__):
    raise AssertionError("a pickle was read")
pickle.load = pickle.loads = pickle.Unpickler = torch.load = refuse
from ictd.pretraining import load_pretrained
loaded = load_pretrained(sys.argv[1])
print(loaded.config.device, {p.device.type for p in loaded.model.parameters()})
"""


def test_a_fresh_process_without_a_gpu_loads_them_without_pickle(file: Path) -> None:
    # C18
    def move(about: dict[str, Any]) -> None:
        about["config"]["device"] = "cuda:1"

    command = [sys.executable, "-c", FRESH, str(rewritten(file, move))]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, "cuda:1 {'cpu'}\n"), done.stderr


def test_saving_twice_replaces_the_file_and_clears_what_a_crash_left(file: Path) -> None:
    found = load_checkpoint(file)
    left = file.with_name(f".{file.name}.writing")
    left.write_bytes(b"half of a checkpoi")
    save_checkpoint(file, dataclasses.replace(found, step=7))
    assert load_checkpoint(file).step == 7
    assert not left.exists()


def test_weights_alone_are_small_and_cannot_be_resumed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small.safetensors"
    save_pretrained(run, small)
    assert small.stat().st_size < (run / checkpoints.NAME).stat().st_size
    with pytest.raises(CheckpointError, match="expected the optimizer's state, got weights alone"):
        pretrain(tiny(num_steps=5, num_seeds=2), resume=small)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    assert pretrained_names() == ["small"]
    assert load_pretrained("small").step == 3
    with pytest.raises(
        FileNotFoundError, match=r"large: expected a checkpoint or one of \[small\]"
    ):
        load_pretrained("large")


def test_weights_alone_never_replace_what_can_be_resumed(run: Path, tmp_path: Path) -> None:
    file = run / checkpoints.NAME
    before = file.read_bytes()
    for source in (run, file):
        with pytest.raises(FileExistsError, match="target: expected a file that no run could be"):
            save_pretrained(source, file)
    assert file.read_bytes() == before
    small = tmp_path / "small.safetensors"
    for _ in range(2):  # weights over weights
        save_pretrained(run, small)
    assert load_pretrained(small).step == 3


def test_every_shipped_file_loads() -> None:
    for name in pretrained_names():
        loaded = load_pretrained(name)
        assert loaded.step == loaded.config.num_steps
        assert loaded.history[-1]["step"] == loaded.step
