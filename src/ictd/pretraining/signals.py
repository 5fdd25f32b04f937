"""SIGINT and SIGTERM, taken as a request to stop after the step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["StopRequest", "stop_on_signals"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Hold whether someone asked to stop."""

    def __init__(self) -> None:
        self.made = False


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request; the second one acts as it always did.

    Outside of the main thread signals cannot be caught: there nothing changes.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def ask(number: int, frame: FrameType | None) -> None:
        request.made = True
        restore()

    for number in SIGNALS:
        signal.signal(number, ask)
    try:
        yield request
    finally:
        restore()
