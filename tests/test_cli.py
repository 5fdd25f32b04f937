"""The command `ictd`: exit codes, the table, JSON, and checks that go wrong."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

import ictd
from ictd import cli
from ictd.claims import Claim, Outcome, Result, registry, seeded
from ictd.claims._registry import CLAIMS, claim
from ictd.claims._runner import _result, run_claims

GOOD = Outcome(1000, 1e-14)


def made(
    outcome: Outcome | Exception = GOOD, label: str = "thm-made", **changed: Any
) -> dict[str, Claim]:
    """A registry of one claim whose check gives, or raises, what is passed."""

    def check(generator: torch.Generator) -> Outcome:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    fields = {"tolerance": 1e-12, "attained": None, "exact": False, **changed}
    return {label: Claim(label, "01-page", "It holds.", ("lstd",), check=check, **fields)}


def run(monkeypatch: pytest.MonkeyPatch, claims: dict[str, Claim], *flags: str) -> int:
    monkeypatch.setattr(cli, "registry", lambda: claims)
    return cli.main(["verify", "--jobs", "1", *flags])


# --- What passes and what fails


@pytest.mark.parametrize(
    ("outcome", "changed", "message"),
    [
        (GOOD, {}, ""),
        (Outcome(1, 0.0), {"exact": True}, ""),
        (Outcome(1000, -0.2, 0.95), {"attained": 0.9}, ""),
        (Outcome(1000, 2e-12), {}, "deviation 2e-12 > tolerance 1e-12"),
        (Outcome(1000, math.nan), {}, "deviation nan"),
        (Outcome(1000, math.inf), {}, "deviation inf"),
        (Outcome(999, 0.0), {}, "only 999 cases"),
        (Outcome(0, 0.0), {"exact": True}, "only 0 cases"),
        (Outcome(1000, -0.2, 0.5), {"attained": 0.9}, "tightness 0.5 < 0.9"),
        (Outcome(1000, -0.2, math.nan), {"attained": 0.9}, "tightness nan"),
        (Outcome(1000, -0.2), {"attained": 0.9}, "no tightness"),
        (ValueError("prompt: expected [x]"), {}, "ValueError: prompt: expected [x]"),
    ],
)
def test_verdicts(
    outcome: Outcome | Exception,
    changed: dict[str, Any],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = run(monkeypatch, made(outcome, **changed))
    printed = capsys.readouterr().out
    assert code == (1 if message else 0)
    assert ("FAILS" in printed) is bool(message)
    assert message in printed
    assert f"{int(not message)} of 1 claims hold" in printed


def test_one_failure_among_others_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = made() | made(Outcome(1000, 1.0), "thm-false") | made(label="thm-last")
    assert run(monkeypatch, claims) == 1
    assert "2 of 3 claims hold" in capsys.readouterr().out
    assert run(monkeypatch, claims, "--claim", "thm-last", "--claim", "thm-made") == 0
    assert "2 of 2 claims hold" in capsys.readouterr().out


# --- JSON


def test_json_to_standard_output_is_nothing_but_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = made() | made(Outcome(1000, math.nan), "thm-nan")
    assert run(monkeypatch, claims, "--json", "-", "--seed", "3") == 1
    told = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert (told["ictd"], told["seed"], told["holds"]) == (ictd.__version__, 3, False)
    first, second = told["claims"]
    assert first["label"] == "thm-made"
    assert first["page"] == "01-page"
    assert first["functions"] == ["lstd"]
    assert (first["cases"], first["deviation"], first["holds"]) == (1000, 1e-14, True)
    assert (second["deviation"], second["holds"]) == (None, False)
    assert second["message"] == "deviation nan > tolerance 1e-12"


def test_json_to_a_file_leaves_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "claims.json"
    assert run(monkeypatch, made(), "--json", str(path)) == 0
    assert "thm-made" in capsys.readouterr().out
    assert json.loads(path.read_text(encoding="utf-8"))["holds"] is True


# --- Wrong usage


def test_an_unknown_label_lists_close_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = made(label="thm-depth") | made(label="prop-depth-tight") | made(label="cor-other")
    assert run(monkeypatch, claims, "--claim", "thm-dept", "--claim", "xyzzy") == 2
    said = capsys.readouterr()
    assert "got 'thm-dept'; near it: thm-depth" in said.err
    assert "cor-other" not in said.err
    assert "got 'xyzzy'; `ictd verify` lists them all\n" in said.err
    assert said.out == ""
    assert run(monkeypatch, claims, "--claim", "depth") == 2
    assert "near it: thm-depth, prop-depth-tight" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["verify", "--bogus"], ["verify", "--seed", "x"], ["nothing"]]
)
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2


def test_jobs_must_be_positive(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "--jobs", "0"]) == 2
    assert "jobs: expected an integer >= 1, got 0" in capsys.readouterr().err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert all(name in said for name in cli.COMMANDS)


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info"]) == 0
    said = capsys.readouterr().out
    assert ictd.__version__ in said
    assert torch.__version__ in said
    assert "torch.float32" in said


# --- The registry


def test_every_claim_has_numbers_of_its_own() -> None:
    def draw(label: str, seed: int) -> float:
        return float(torch.rand((), generator=seeded(label, seed)))

    assert draw("thm-a", 0) == draw("thm-a", 0)
    assert len({draw("thm-a", 0), draw("thm-a", 1), draw("thm-b", 0)}) == 3


@pytest.mark.parametrize(
    ("label", "statement", "message"),
    [
        ("fig-one", "It holds.", "label: expected the label of a result"),
        ("thm-equivalence", "It holds.", "label: expected one check for each result"),
        ("thm-not-there-yet", "", "statement: expected one line"),
        ("thm-not-there-yet", "Two\nlines.", "statement: expected one line"),
    ],
)
def test_the_registry_refuses(label: str, statement: str, message: str) -> None:
    before = registry()
    with pytest.raises(ValueError, match=message):
        claim(label, page="01-page", statement=statement, tolerance=0.0)
    assert before == CLAIMS


# --- Processes


def test_processes_give_the_same_numbers() -> None:
    few = list(registry().values())[:3]
    alone = run_claims(few, seed=1)
    heard: list[Result] = []
    shared = run_claims(few, seed=1, jobs=2, on_result=heard.append)
    assert [r.outcome for r in shared] == [r.outcome for r in alone]
    assert [r.claim for r in shared] == few
    assert {r.claim.label for r in heard} == {c.label for c in few}


def test_a_process_that_dies_fails_its_claim() -> None:
    (lost,) = made().values()
    task: Future[tuple[Outcome, str, float]] = Future()
    task.set_exception(RuntimeError("terminated abruptly"))
    result = _result(lost, task)
    assert not result.holds
    assert result.message == "RuntimeError: terminated abruptly"


def test_threads_are_as_before() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        run_claims(list(made(ValueError("x")).values()))
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_the_module_is_a_program() -> None:
    command = [sys.executable, "-m", "ictd", "verify", "--claim", "thm-nowhere"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "80"}
    )
    assert done.returncode == 2
    assert "thm-nowhere" in done.stderr


def test_a_json_path_that_cannot_be_written_is_refused_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for path in (tmp_path, tmp_path / "no" / "claims.json"):
        assert run(monkeypatch, made(), "--json", str(path)) == 2
        assert "json: expected a file in a folder that exists" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no file that is always full")
def test_a_disk_that_is_full_loses_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = made()
    assert run(monkeypatch, claims, "--json", "/dev/full") == 2
    told = capsys.readouterr()
    assert all(label in told.out for label in claims)
    assert "json: expected a file that can be written, got /dev/full: No space left" in told.err
