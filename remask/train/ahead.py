"""The next batch, made in a thread while this one is computed.

In: a `BatchSource`, whose `take` is a pure function of the cursor. Out: the same batches in the same order; a cursor
other than the expected one (after a rollback) simply drops what was made ahead.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from remask.schema import Batch, BatchSource

Taken = tuple[list[Batch], dict[str, Any]]


class Ahead:
    """`take` like the source's own, one step ahead where `in_thread`."""

    def __init__(self, source: BatchSource, in_thread: bool) -> None:
        self._source = source
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="batches") if in_thread else None
        self._expected: dict[str, Any] | None = None
        self._coming: Future[Taken] | None = None

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def take(self, cursor: dict[str, Any]) -> Taken:
        if self._coming is not None and self._expected == cursor:
            taken = self._coming.result()
        else:
            taken = self._source.take(cursor)
        if self._pool is not None:
            self._expected = taken[1]
            self._coming = self._pool.submit(self._source.take, taken[1])
        return taken
