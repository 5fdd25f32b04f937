"""`ictd pretrain` and `ictd evaluate`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ictd_command
from ictd import cli
from ictd.pretraining import (
    Changes,
    PretrainConfig,
    command,
    evaluate,
    load_pretrained,
    pretrain,
)
from test_pretraining import TINY, tiny

FLAGS = [part for k, v in TINY.items() for part in (f"--{k.replace('_', '-')}", str(v))]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(arguments)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_flags_are_the_fields_of_the_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    flags = [*FLAGS, "--num-steps", "20", "--log-every", "2", "--no-looped", "--out", str(folder)]
    code, out, err = run(capsys, "pretrain", *flags)
    assert code == 0
    assert "step 20 of 20" in out
    assert "saved:" in out
    # C19: on a pipe, few lines instead of a bar
    lines = err.splitlines()
    assert len(lines) == 5
    assert lines[-1].startswith("20/20")
    assert "steps/s loss" in lines[-1]
    assert load_pretrained(folder).config == tiny(num_steps=20, log_every=2, looped=False)
    more = [*FLAGS, "--num-steps", "30", "--log-every", "2", "--no-looped"]
    assert run(capsys, "pretrain", *more, "--resume", str(folder))[0] == 0
    assert load_pretrained(folder).step == 30
    code, _, err = run(capsys, "pretrain", *more, "--out", str(folder))
    assert code == 2
    assert "out: expected a directory without a checkpoint" in err


def test_an_interrupted_run_is_reported_and_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(config: Any, *, callback: Any, **options: Any) -> Any:
        def both(step: int, record: Any) -> Any:
            if step == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return callback(step, record)

        return pretrain(config, callback=both, **options)

    monkeypatch.setattr(command, "pretrain", interrupted)
    code, out, _ = run(capsys, "pretrain", *FLAGS, "--num-steps", "20", "--out", str(tmp_path))
    assert code == 130
    assert "step 3 of 20" in out
    assert load_pretrained(tmp_path).step == 3


@pytest.fixture
def listening() -> Iterator[None]:
    """Ctrl+C raises KeyboardInterrupt, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listening")
def test_a_signal_before_the_first_step_leaves_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("ictd.pretraining.train.make_model", interrupted)
    assert run(capsys, "pretrain", *FLAGS) == (130, "", "ictd: interrupted\n")


SLOW_TORCH = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)
"""


@pytest.mark.parametrize("ignored", [False, True])
def test_a_signal_while_torch_is_loaded_leaves_without_a_traceback(
    ignored: bool, tmp_path: Path
) -> None:
    sleep = SLOW_TORCH.replace("60", "0.1") + "raise SystemExit(7)" if ignored else SLOW_TORCH
    (tmp_path / "torch.py").write_text(sleep)
    handler = "SIG_IGN" if ignored else "default_int_handler"
    program = f"import signal, sys; signal.signal(signal.SIGINT, signal.{handler})"
    program += "; import ictd_command; sys.exit(ictd_command.main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "pretrain"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        timeout=30,
    )
    expected = (7, "") if ignored else (130, "ictd: interrupted\n")
    assert (done.returncode, done.stderr) == expected


@pytest.mark.usefixtures("listening")
def test_the_command_is_that_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "main", lambda: 5)
    assert ictd_command.main() == 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_evaluation_as_a_table_and_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = pretrain(tiny(num_steps=2, num_seeds=2), out=tmp_path)
    flags = ["--num-tasks", "8", "--num-layers", "6", "--family", "loop", "--discount", "0.5"]
    code, out, _ = run(capsys, "evaluate", str(tmp_path), *flags)
    assert code == 0
    assert "spectral_radius" in out
    assert "share: diagonality" in out
    code, out, _ = run(capsys, "evaluate", str(tmp_path), *flags, "--json", "-")
    changes = Changes(num_tasks=8, num_layers=6, family="loop", discount=0.5)
    found = json.loads(out)
    assert found["metrics"] == evaluate(result, changes)
    assert PretrainConfig.from_dict(found["config"]) == result.config
    file = tmp_path / "found.json"
    assert run(capsys, "evaluate", str(tmp_path), *flags, "--json", str(file))[0] == 0
    assert json.loads(file.read_text()) == found


def test_what_changes_in_an_evaluation() -> None:
    looped = pretrain(tiny(num_steps=0, num_seeds=2))
    plain = evaluate(looped)
    assert len(plain["msve"]) == 2
    for changes in (
        Changes(seed=5),
        Changes(context_length=30),
        Changes(num_layers=9),
        Changes(num_states=7),
        Changes(discount=0.1),
        Changes(family="garnet"),
    ):
        assert evaluate(looped, changes)["msve"] != plain["msve"]
    with pytest.raises(ValueError, match="device: expected a CPU or a CUDA device, got 'mps'"):
        evaluate(looped, device="mps")
    untied = pretrain(tiny(num_steps=0, looped=False))
    with pytest.raises(ValueError, match="num_layers: expected 2, as the layers are not looped"):
        evaluate(untied, Changes(num_layers=3))


def test_a_resumed_run_says_where_it_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretrain(tiny(num_steps=0), out=tmp_path)
    file = tmp_path / "mine.safetensors"
    (tmp_path / "checkpoint.safetensors").rename(file)
    flags = ["--num-steps", "1"]
    for name, value in tiny().to_dict().items():
        if name != "num_steps" and value is not None and not isinstance(value, bool):
            flags += [f"--{name.replace('_', '-')}", str(value)]
    assert cli.main(["pretrain", *flags, "--resume", str(file)]) == 0
    assert capsys.readouterr().out.split()[-1] == str(tmp_path / "checkpoint.safetensors")


def test_a_disk_that_is_full_loses_no_metric(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["evaluate", "shallow", "--num-tasks", "2", "--json", "/dev/full"]
    assert cli.main(arguments) == 2
    told = capsys.readouterr()
    assert "shallow, step" in told.out
    assert "json: expected a file that can be written, got /dev/full: No space left" in told.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "nowhere"], "nowhere: expected a checkpoint or one of"),
        (["pretrain", "--discount", "1"], "discount: expected a number in [0, 1), got 1"),
        (["pretrain", "--resume", "nowhere"], "nowhere: expected a checkpoint, got no file"),
        (["pretrain", "--device", "mps"], "device: expected a CPU or a CUDA device, got 'mps'"),
        (["pretrain", "--device", "cuda:99"], "device: expected one that torch finds here, got"),
        (
            ["evaluate", "boyan-structured", "--device", "meta"],
            "device: expected a CPU or a CUDA device, got 'meta'",
        ),
        (
            ["evaluate", "boyan-structured", "--device", "abacus"],
            "device: expected a torch device, got 'abacus'",
        ),
    ],
)
def test_faults_are_told_in_a_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: Any = cli.main(arguments)
    except SystemExit as error:
        code = error.code
    said = capsys.readouterr()
    assert code == 2
    assert message in " ".join((said.out + said.err).replace("│", " ").split())


PROBE = """
import sys
from ictd import cli
assert {"pretrain", "evaluate"} <= cli.commands([]).keys() - cli.COMMANDS.keys()
loaded = "ictd.pretraining" in sys.modules
for name in [name for name in sys.modules if name.startswith(("ictd.pretraining", "safetensors"))]:
    del sys.modules[name]
assert cli.commands(["verify", "--jobs", "1"]) is cli.COMMANDS
print(loaded, "ictd.pretraining" in sys.modules, "safetensors" in sys.modules)
"""


def test_other_commands_do_not_load_pretraining() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False", "False"]
