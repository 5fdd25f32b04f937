"""The command ``ictd``, from before torch is loaded: Ctrl+C ends it without a traceback."""

from __future__ import annotations

import os
import signal
from types import FrameType

__all__ = ["main"]


def main() -> int:
    """Load the package, which takes seconds, and run one command.

    Returns:
        The exit code of :func:`ictd.cli.main`.
    """
    caught = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored
    if caught:
        signal.signal(signal.SIGINT, _leave)
    from ictd.cli import main as run

    if caught:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


def _leave(number: int, frame: FrameType | None) -> None:
    """Nothing is open yet; an exception would come out of whatever is being imported."""
    os.write(2, b"ictd: interrupted\n")
    os._exit(130)
