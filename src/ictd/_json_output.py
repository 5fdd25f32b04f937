"""Where the commands put their results as JSON."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Any

__all__ = ["check_json", "to_stdout", "write_json"]


def to_stdout(json: Path | None) -> bool:
    """Whether the results go to standard output, and no table with them."""
    return str(json) == "-"


def check_json(json: Path | None) -> None:
    """Complain before the work is done, not after it.

    Raises:
        ValueError: The results cannot be written there.
    """
    if json is None or to_stdout(json):
        return
    if json.is_dir() or not json.parent.is_dir():
        raise ValueError(f"json: expected a file in a folder that exists, got {json}")


def write_json(json: Path | None, found: dict[str, Any]) -> None:
    """Write results where ``--json`` says, if it says anything.

    Raises:
        ValueError: The file cannot be written, or a number in it is not finite.
    """
    if json is None:
        return
    text = jsonlib.dumps(found, indent=2, allow_nan=False) + "\n"
    if to_stdout(json):
        sys.stdout.write(text)
        return
    try:
        json.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"json: expected a file that can be written, got {json}: {error.strerror}"
        ) from error
