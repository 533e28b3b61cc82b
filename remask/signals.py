"""Stopping cleanly: the first SIGINT or SIGTERM sets a flag that every loop looks at, the second one ends at once.

`catch()` is entered once by the command line; long work calls `check()` between pieces of work that are safe to stop
after (it raises `Stopped`, exit code 75), or asks `requested()` where it has state to save first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from remask.errors import Stopped

_flag = threading.Event()


def requested() -> bool:
    return _flag.is_set()


def check() -> None:
    if requested():
        raise Stopped("stopped; run the same command again to go on")


def _on_signal(number: int, frame: FrameType | None) -> None:
    if _flag.is_set():
        os._exit(Stopped.exit_code)
    _flag.set()


@contextlib.contextmanager
def catch() -> Iterator[None]:
    """Handlers for the length of a command. Child processes that should outlive a group signal call `ignore`."""
    _flag.clear()
    before = {number: signal.signal(number, _on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _flag.clear()


def ignore() -> None:
    """For worker processes: the parent decides when they end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
