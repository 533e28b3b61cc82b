"""Stopping cleanly: the first SIGINT or SIGTERM sets a flag that every loop looks at, the second one ends at once.

`catch()` is entered once by the command line; long work calls `check()` between pieces of work that are safe to stop
after (it raises `Stopped`, exit code 75), or asks `requested()` where it has state to save first. The second signal is
left to the system, which ends the process by it, so that it works inside foreign code too, where no handler of Python
gets its turn: what was saved before stands.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from remask.errors import Stopped

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_flag = threading.Event()


def requested() -> bool:
    return _flag.is_set()


def check() -> None:
    if requested():
        raise Stopped("stopped; run the same command again to go on")


def _on_signal(number: int, frame: FrameType | None) -> None:
    _flag.set()
    for other in _NUMBERS:
        signal.signal(other, signal.SIG_DFL)


def _once(number: int) -> None:
    """Python's handler, for the first signal only. Python notes a signal and calls the handler between two of its own
    steps, which can be minutes away; until then the system's default would not be there for the second one."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "sysv_signal"):  # not glibc: the second signal waits for the first one's handler there
        return
    for install in (libc.signal, libc.sysv_signal):
        install.restype, install.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)
    handler = libc.signal(number, None)  # the default, for a moment; the answer is what Python had installed
    libc.sysv_signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUMBERS)


@contextlib.contextmanager
def catch() -> Iterator[None]:
    """Handlers for the length of a command. Child processes that should outlive a group signal call `ignore`."""
    _flag.clear()
    before = {number: signal.signal(number, _on_signal) for number in _NUMBERS}
    for number in _NUMBERS:
        _once(number)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _flag.clear()


def ignore() -> None:
    """For worker processes: the parent decides when they end."""
    for number in _NUMBERS:
        signal.signal(number, signal.SIG_IGN)
