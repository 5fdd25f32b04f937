"""Runs: whole, cut short, killed, resumed, side by side, in two processes; and what they learn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from ictd.pretraining import PretrainConfig, PretrainResult, load_pretrained, pretrain
from ictd.pretraining.checkpoint import NAME, load_checkpoint
from strategies import assert_same
from test_pretraining import tiny


def weights(result: PretrainResult) -> list[torch.Tensor]:
    return [p.detach() for model in result.models for p in model.parameters()]


def assert_equal(one: PretrainResult, other: PretrainResult) -> None:
    """Bit for bit."""
    for mine, theirs in zip(weights(one), weights(other), strict=True):
        assert torch.equal(mine, theirs)
    assert one.history == other.history
    assert one.step == other.step


def stop_at(last: int) -> Any:
    return lambda step, record: step == last


KINDS: dict[str, dict[str, Any]] = {
    "adam": {"dtype": "float32", "num_steps": 100, "log_every": 50},
    "adam, cosine, replicas": {"schedule": "cosine", "warmup_steps": 7, "num_seeds": 2},
    "full, untied, adamw": {
        "parametrization": "full",
        "looped": False,
        "optimizer": "adamw",
        "weight_decay": 0.1,
    },
    "linear, sgd, monte-carlo": {
        "attention": "linear",
        "optimizer": "sgd",
        "momentum": 0.9,
        "target": "monte-carlo",
        "rollout_length": 3,
    },
}


@pytest.mark.parametrize("options", KINDS.values(), ids=list(KINDS))
def test_fifty_and_fifty_steps_are_a_hundred(options: dict[str, Any], tmp_path: Path) -> None:
    config = tiny(**({"num_steps": 20, "log_every": 10} | options))
    whole = pretrain(config)
    middle = config.num_steps // 2
    half = pretrain(config, out=tmp_path, callback=stop_at(middle))
    assert half.step == load_checkpoint(tmp_path).step == middle
    rest = pretrain(config, resume=tmp_path)
    assert_equal(rest, whole)
    assert_equal(load_pretrained(tmp_path), whole)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == whole.history
    assert [record["step"] for record in whole.history] == [0, middle, 2 * middle]


def test_a_run_may_end_where_it_was_stopped(tmp_path: Path) -> None:
    cut = pretrain(tiny(num_steps=20, log_every=10), out=tmp_path, callback=stop_at(10))
    shorter = tiny(num_steps=10, log_every=10)
    assert_equal(pretrain(shorter, resume=tmp_path), cut)
    loaded = load_pretrained(tmp_path)
    assert (loaded.config, loaded.step) == (shorter, 10)
    assert_equal(loaded, cut)


def test_a_run_may_become_longer(tmp_path: Path) -> None:
    pretrain(tiny(num_steps=10, log_every=20), out=tmp_path)
    longer = pretrain(tiny(num_steps=20, log_every=20), resume=tmp_path / NAME)
    assert_equal(longer, pretrain(tiny(num_steps=20, log_every=20)))
    assert_equal(pretrain(tiny(num_steps=20, log_every=20), resume=tmp_path), longer)
    other = pretrain(tiny(num_steps=30, log_every=30), resume=tmp_path)
    assert [record["step"] for record in other.history] == [0, 20, 30]
    with pytest.raises(ValueError, match="num_steps: expected at least the 30 of the checkpoint"):
        pretrain(tiny(num_steps=15, log_every=20), resume=tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_step_30_keeps_30_steps(number: signal.Signals, tmp_path: Path) -> None:
    # C19
    config = tiny(num_steps=40, log_every=20)
    before = signal.getsignal(number)

    def interrupt(step: int, record: dict[str, Any] | None) -> None:
        assert (record is not None) == (step % 20 == 0)
        if step == 30:
            os.kill(os.getpid(), number)

    cut = pretrain(config, out=tmp_path, callback=interrupt)
    assert signal.getsignal(number) is before
    assert cut.step == 30
    assert [record["step"] for record in cut.history] == [0, 20, 30]
    assert load_pretrained(tmp_path).history == cut.history
    assert_equal(pretrain(config, resume=tmp_path), pretrain(config))


def test_a_second_signal_acts_at_once() -> None:
    def insist(step: int, record: dict[str, Any] | None) -> None:
        signal.raise_signal(signal.SIGINT)  # two of `os.kill` may arrive as one
        signal.raise_signal(signal.SIGINT)

    # Where the tests run in the background SIGINT may be ignored from the start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            pretrain(tiny(num_steps=60), callback=insist)
    finally:
        signal.signal(signal.SIGINT, before)


def test_it_runs_in_a_thread_of_a_notebook() -> None:
    found: list[PretrainResult] = []
    thread = threading.Thread(target=lambda: found.append(pretrain(tiny(num_steps=2))))
    thread.start()
    thread.join()
    assert_equal(found[0], pretrain(tiny(num_steps=2)))


KILLED = """
import os, signal, sys
from ictd.pretraining import PretrainConfig, checkpoint, pretrain
config, folder, place = PretrainConfig(**eval(sys.argv[1])), sys.argv[2], sys.argv[3]
calls, fsync = 0, os.fsync
class File:
    def __init__(self, file): self.file = file
    def write(self, data):
        self.file.write(data[: len(data) // 2]); self.file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
def die(step, record):
    # The next save is the last thing that happens.
    if step == 8 and place == "writing":
        opened = checkpoint.Path.open
        def half(path, *args, **kwargs):
            file = opened(path, *args, **kwargs)
            return Half(file) if args == ("wb",) else file
        checkpoint.Path.open = half
    if step == 8 and place == "syncing":
        checkpoint.os.fsync = lambda number: os.kill(os.getpid(), signal.SIGKILL)
class Half(File):
    def __enter__(self): return self
    def __exit__(self, *_): self.file.close()
pretrain(config, out=folder, callback=die)
"""


@pytest.mark.parametrize("place", ["writing", "syncing"])
def test_a_kill_in_the_middle_of_a_save_leaves_the_one_before(place: str, tmp_path: Path) -> None:
    config = tiny(num_steps=12, log_every=4, checkpoint_every=4)
    command = [sys.executable, "-c", KILLED, repr(config.to_dict()), str(tmp_path), place]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (tmp_path / f".{NAME}.writing").exists()
    assert load_checkpoint(tmp_path).step == 4
    assert_equal(pretrain(config, resume=tmp_path), pretrain(config))


@pytest.mark.parametrize(
    "options", [{}, {"parametrization": "full", "looped": False}, {"attention": "linear"}], ids=str
)
def test_replicas_are_runs_of_their_own(options: dict[str, Any]) -> None:
    config = tiny(num_steps=10, log_every=10, seed=3, num_seeds=3, **options)
    together = pretrain(config)
    for replica in range(3):
        alone = pretrain(tiny(num_steps=10, log_every=10, seed=3 + replica, **options))
        for name, parameter in alone.model.named_parameters():
            assert_same(together.models[replica].get_parameter(name), parameter, tolerance=1e-10)
        last, own = together.history[-1], alone.history[-1]
        for name in ("loss", "gradient_norm", "msve"):
            assert last[name][replica] == pytest.approx(own[name][0], rel=1e-9)


TWO = """
import sys
from ictd.pretraining import PretrainConfig, pretrain
pretrain(PretrainConfig(**eval(sys.argv[1])), out=sys.argv[2])
"""


def test_two_processes_are_one(tmp_path: Path) -> None:
    config = tiny(num_steps=50, log_every=25)
    script = tmp_path / "two.py"
    script.write_text(TWO)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", str(script), repr(config.to_dict()), str(tmp_path / "run")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    both, one = load_pretrained(tmp_path / "run"), pretrain(config)
    assert both.step == 50
    for mine, theirs in zip(weights(both), weights(one), strict=True):
        assert_same(mine, theirs, tolerance=1e-10)
    for record, expected in zip(both.history, one.history, strict=True):
        assert record["msve"] == pytest.approx(expected["msve"], rel=1e-9)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["processes"] == 2


def test_tasks_that_cannot_be_shared_out_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from ictd.pretraining.distributed import Processes

    three = Processes(1, 3, torch.device("cpu"))
    assert three.part(12) == slice(4, 8)
    with pytest.raises(
        ValueError, match="num_tasks: expected a multiple of the 3 processes, got 4"
    ):
        three.part(4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="device: expected one that torch finds here, got 'cuda'"):
        pretrain(tiny(device="cuda"))


def test_nothing_is_overwritten_or_written_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    state = torch.random.get_rng_state()
    pretrain(tiny(num_steps=1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")
    pretrain(tiny(num_steps=1), out=tmp_path)
    with pytest.raises(FileExistsError, match="out: expected a directory without a checkpoint"):
        pretrain(tiny(num_steps=1), out=tmp_path)
    with pytest.raises(FileNotFoundError, match="expected a checkpoint, got no file"):
        pretrain(tiny(num_steps=1), resume=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="seed: expected 0, as in the checkpoint, got 1"):
        pretrain(tiny(num_steps=2, seed=1), resume=tmp_path)


def test_a_resumed_run_does_not_overwrite_another(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    pretrain(tiny(num_steps=1), out=first)
    pretrain(tiny(num_steps=1, seed=1), out=second)
    older = first / "older.safetensors"
    older.write_bytes((first / NAME).read_bytes())
    before = (second / NAME).read_bytes()
    for options in ({"resume": first, "out": second}, {"resume": older}):
        with pytest.raises(FileExistsError, match="out: expected a directory without another"):
            pretrain(tiny(num_steps=2), **options)
    assert (second / NAME).read_bytes() == before
    assert pretrain(tiny(num_steps=2), resume=first / NAME, out=first).step == 2
    assert pretrain(tiny(num_steps=2), resume=older, out=tmp_path / "third").step == 2


def test_a_file_is_no_directory_to_write_to(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    with pytest.raises(NotADirectoryError, match=r"out: expected a directory, got the file .*text"):
        pretrain(tiny(num_steps=1), out=tmp_path / "text")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_training_needs_no_gradients_outside(mode: Any) -> None:
    expected = pretrain(tiny(num_steps=2))
    with mode():
        assert_equal(pretrain(tiny(num_steps=2)), expected)


@pytest.mark.parametrize("family", ["boyan", "loop", "garnet", "random-walk"])
def test_the_default_device_does_not_matter(family: Any) -> None:
    config = tiny(num_steps=2, family=family, features="uniform")
    expected = pretrain(config)
    with torch.device("meta"):
        found = pretrain(config)
    assert_equal(found, expected)


def test_a_run_that_diverges_is_saved_and_says_so(tmp_path: Path) -> None:
    config = tiny(num_steps=3, optimizer="sgd", learning_rate=1e200, max_gradient_norm=0.0)
    result = pretrain(config, out=tmp_path)
    assert result.history[-1]["msve"] == [None]
    assert load_pretrained(tmp_path).step == 3


def test_long_gradients_are_cut_per_replica() -> None:
    from ictd.pretraining.optimizer import clip

    gradients = [torch.tensor([[3.0, 0.0], [0.3, 0.0], [0.0, 0.0]]), torch.tensor([4.0, 0.4, 0.0])]
    norm = clip(gradients, 1.0)
    torch.testing.assert_close(norm, torch.tensor([5.0, 0.5, 0.0]))
    torch.testing.assert_close(gradients[0], torch.tensor([[0.6, 0.0], [0.3, 0.0], [0.0, 0.0]]))
    torch.testing.assert_close(gradients[1], torch.tensor([0.8, 0.4, 0.0]))


def test_temporal_difference_learning_emerges() -> None:
    """The signs of w turn to (+, +, −), and the attention to the state that it is asked about."""
    config = PretrainConfig(
        num_seeds=2,
        num_steps=150,
        num_tasks=16,
        num_states=5,
        context_length=30,
        num_layers=10,
        discount=0.8,
        learning_rate=0.04,
        log_every=150,
        num_evaluation_tasks=16,
    )
    result = pretrain(config)
    first, last = result.history[0], result.history[-1]
    for replica in range(2):
        reward, target, current = last["value_weights"][replica]
        assert reward > 0
        assert target > 0
        assert current < 0
        before, after = (r["kernel_diagonality"][replica] for r in (first, last))
        assert after > before + 0.1
        assert last["msve"][replica] < first["msve"][replica] / 4
        assert last["attention_cosine"][replica] > 0.9
