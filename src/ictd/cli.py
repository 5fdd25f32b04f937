"""The command line: ``ictd verify`` and ``ictd info``."""

from __future__ import annotations

import difflib
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import ictd
from ictd._json_output import check_json, to_stdout, write_json
from ictd.claims import Claim, Result, registry
from ictd.claims._runner import run_claims

__all__ = ["COMMANDS", "main"]

WIDTH = 160  # columns of a table that goes to a file or a pipe


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: What stands behind ``ictd``; None: what the shell gave.

    Returns:
        The exit code: 0, or 1 where something failed; 130 after Ctrl+C. Wrong usage exits with 2.
    """
    given = sys.argv[1:] if arguments is None else arguments
    first_line = (ictd.__doc__ or "").partition("\n")[0]
    try:
        code: int = tyro.extras.subcommand_cli_from_dict(
            commands(given), prog="ictd", description=first_line, args=arguments
        )
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130
    return code


def verify(
    claim: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    json: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None,
    seed: int = 0,
    jobs: int = os.cpu_count() or 1,
) -> int:
    """Check the numbers of every claim of the book, and print one table.

    Args:
        claim: The label of a claim, thm-depth say; repeat it for several. All, if none is given.
        json: Write the results to this file too; with - they go to standard output, as JSON and
            without the table.
        seed: The seed of the random problems.
        jobs: How many claims are checked at once, in processes of their own.
    """
    claims = registry()
    unknown = [label for label in claim if label not in claims]
    for label in unknown:
        _complain(f"claim: expected a label of the book, got {label!r}{_close(label, claims)}")
    if jobs < 1:
        _complain(f"jobs: expected an integer >= 1, got {jobs}")
    try:
        check_json(json)
    except ValueError as error:
        _complain(str(error))
        return 2
    if unknown or jobs < 1:
        return 2
    chosen = [claims[label] for label in dict.fromkeys(claim)] or list(claims.values())
    start = time.perf_counter()
    results = _run(chosen, seed, jobs)
    seconds = time.perf_counter() - start
    if not to_stdout(json):
        _show(results, seconds)
    try:
        write_json(json, _report(results, seed, seconds))
    except ValueError as error:
        _complain(str(error))
        return 2
    return int(not all(result.holds for result in results))


def info() -> int:
    """Say which versions and which devices are in use."""
    table = Table(show_header=False, box=None)
    for row in (
        ("ictd", f"{ictd.__version__} ({Path(ictd.__file__).parent})"),
        ("Python", f"{platform.python_version()} on {platform.platform()}"),
        ("torch", f"{torch.__version__}, {torch.get_num_threads()} threads"),
        ("numpy", version("numpy")),
        ("device", _device()),
        ("dtype", f"{torch.get_default_dtype()} by default; ictd verify computes in torch.float64"),
        ("claims", str(len(registry()))),
    ):
        table.add_row(*row)
    _console().print(table)
    return 0


COMMANDS: dict[str, Callable[..., int]] = {"verify": verify, "info": info}
"""The commands by name; their arguments are the flags, their docstrings the help."""


def commands(arguments: Sequence[str]) -> dict[str, Callable[..., int]]:
    """Return all commands; those of pretraining only if none of the others is called.

    Args:
        arguments: What stands behind ``ictd``.

    Returns:
        The commands by name.
    """
    if arguments and arguments[0] in COMMANDS:
        return COMMANDS
    from ictd.pretraining.command import evaluate_command, pretrain_command

    return COMMANDS | {"pretrain": pretrain_command, "evaluate": evaluate_command}


def _run(claims: Sequence[Claim], seed: int, jobs: int) -> list[Result]:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("checking", total=len(claims))
        return run_claims(
            claims, seed=seed, jobs=jobs, on_result=lambda result: progress.advance(task)
        )


def _show(results: Sequence[Result], seconds: float) -> None:
    """Print the table, then why claims failed."""
    table = Table(title="Claims of the book", header_style="bold")
    table.add_column("claim", no_wrap=True)
    table.add_column("page")
    for heading in ("cases", "deviation", "tolerance", "tightness"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    table.add_column("s", justify="right")
    for result in results:
        claim, outcome = result.claim, result.outcome
        tightness = "" if outcome.tightness is None else f"{outcome.tightness:.4f}"
        if claim.attained is not None:
            tightness = f"{tightness} ≥ {claim.attained:g}".strip()
        table.add_row(
            claim.label,
            claim.page,
            f"{outcome.cases:,}" + (" (exact)" if claim.exact else ""),
            f"{outcome.deviation:.1e}",
            f"{claim.tolerance:.0e}",
            tightness,
            "holds" if result.holds else "FAILS",
            f"{result.seconds:.1f}",
            style=None if result.holds else "bold red",
        )
    console = _console()
    console.print(table)
    failed = [result for result in results if not result.holds]
    for result in failed:
        console.print(f"{result.claim.label}: {result.message}", markup=False, highlight=False)
    console.print(
        f"{len(results) - len(failed)} of {len(results)} claims hold ({seconds:.1f} s)",
        highlight=False,
    )


def _report(results: Iterable[Result], seed: int, seconds: float) -> dict[str, Any]:
    """The results as JSON has them; a number that is not finite is null there."""
    entries = [
        {
            "label": result.claim.label,
            "page": result.claim.page,
            "statement": result.claim.statement,
            "functions": list(result.claim.functions),
            "cases": result.outcome.cases,
            "exact": result.claim.exact,
            "deviation": _finite(result.outcome.deviation),
            "tolerance": result.claim.tolerance,
            "tightness": _finite(result.outcome.tightness),
            "attained": result.claim.attained,
            "holds": result.holds,
            "message": result.message,
            "seconds": round(result.seconds, 3),
        }
        for result in results
    ]
    return {
        "ictd": ictd.__version__,
        "torch": torch.__version__,
        "seed": seed,
        "holds": all(entry["holds"] for entry in entries),
        "seconds": round(seconds, 3),
        "claims": entries,
    }


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _close(label: str, labels: Iterable[str]) -> str:
    """Which labels an unknown one may have meant."""
    labels = list(labels)
    found = [known for known in labels if label and label in known]
    found += difflib.get_close_matches(label, labels, n=5, cutoff=0.5)
    near = ", ".join(list(dict.fromkeys(found))[:5])
    return f"; near it: {near}" if found else "; `ictd verify` lists them all"


def _device() -> str:
    if not torch.cuda.is_available():
        return "cpu (no CUDA device)"
    return ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def _complain(message: str) -> None:
    print(f"ictd: {message}", file=sys.stderr)  # noqa: T201
