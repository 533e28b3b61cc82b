"""The next batch, made in a thread while this one is computed.

In: a `BatchSource`, whose `take` is a pure function of the cursor. Out: the same batches in the same order; a cursor
other than the expected one (after a rollback) simply drops what was made ahead. A batch that does not come within the
time limit (a disk that hangs) ends the run with one line. There are no worker processes that could be killed alone:
masks and batches are made here, in the process that trains.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any

from remask.errors import UnavailableError
from remask.schema import Batch, BatchSource

Taken = tuple[list[Batch], dict[str, Any]]

_LAST_SECONDS = 5.0  # for a thread to end when the run does; one that hangs is left behind


class Ahead:
    """`take` like the source's own, one step ahead where `in_thread`."""

    def __init__(self, source: BatchSource, in_thread: bool, timeout_seconds: float) -> None:
        self._source, self._in_thread, self._timeout_seconds = source, in_thread, timeout_seconds
        self._expected: dict[str, Any] | None = None
        self._coming: Future[Taken] | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._thread is not None and kind is not UnavailableError:
            self._thread.join(_LAST_SECONDS)

    def read_from(self, source: BatchSource) -> None:
        """Go on with another source; what was made ahead is dropped."""
        self._source, self._coming = source, None

    def take(self, cursor: dict[str, Any]) -> Taken:
        if not self._in_thread:
            return self._source.take(cursor)
        if self._coming is None or self._expected != cursor:
            self._start(cursor)
        taken = self._arrived()
        self._start(taken[1])
        return taken

    def _start(self, cursor: dict[str, Any]) -> None:
        self._expected, self._coming = cursor, Future()
        # A daemon, so that a source that hangs does not keep the process from ending.
        work = (self._source, cursor, self._coming)
        self._thread = threading.Thread(target=_make, args=work, name="batches", daemon=True)
        self._thread.start()

    def _arrived(self) -> Taken:
        assert self._coming is not None
        wait([self._coming], timeout=self._timeout_seconds)
        if not self._coming.done():
            raise UnavailableError(
                f"no batch within {self._timeout_seconds:g} s (train.batch_timeout_seconds): is the disk of the data "
                "still there? Run the same command again to go on"
            )
        return self._coming.result()


def _make(source: BatchSource, cursor: dict[str, Any], coming: Future[Taken]) -> None:
    try:
        coming.set_result(source.take(cursor))
    except BaseException as error:
        coming.set_exception(error)
