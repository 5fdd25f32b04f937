"""Run ``ictd verify`` on a copy of the package, in a process that has not imported the package."""

from __future__ import annotations

import io
import runpy
import sys
from contextlib import redirect_stdout


def verify(folder: str, claims: tuple[str, ...]) -> tuple[int, str]:
    """What ``python -m ictd verify --json -`` does with the package in a folder: code and output.

    For a process of its own: it imports the package from that folder.
    """
    assert "ictd" not in sys.modules
    sys.path.insert(0, folder)
    flags = [flag for label in claims for flag in ("--claim", label)]
    sys.argv = ["ictd", "verify", "--jobs", "1", "--json", "-", *flags]
    output, code = io.StringIO(), 0
    with redirect_stdout(output):
        try:
            runpy.run_module("ictd", run_name="__main__")
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else 3
    found = sys.modules["ictd"].__file__
    assert found is not None
    assert found.startswith(folder)
    return code, output.getvalue()
