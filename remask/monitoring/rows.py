"""Rows of a file, a growing file or stdin, as they come, with a mark from which reading can go on.

In: where rows come from, and the mark of the last one that was taken. Out: rows and faults in batches that are bounded
in number and in time: a thread reads, whoever takes waits no longer than told. A mark is how many rows of which file
were taken, a file being known by its first row: the same file goes on behind them, another one (a log that was
rotated) starts at its first. A growing file's last line counts once it has its end. Stdin has no place to go back to;
what is sent again is known by the texts themselves (run). Not here: what a row means.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from remask.errors import ConfigError, DataError, MissingInputError
from remask.monitoring.settings import STDIN, MonitorRun
from remask.streams import UTF8, Damaged, as_utf8
from remask.tables import Cells, Record, TableForm, read_records, stream_records, table_kind
from remask.tables.form import MAX_LINE_BYTES, Fault
from remask.tables.reader import open_table

_POLL_SECONDS = 0.2
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Mark:
    """So many rows of the file whose first row has this fingerprint."""

    first: str = ""
    count: int = 0


@dataclass(frozen=True)
class Taken:
    """A row, or why there is none (`bad`), and the mark behind it."""

    cells: Cells
    mark: Mark
    bad: str = ""


class Rotated(Exception):
    """The file under that name is another one now."""


class Source:
    """Rows behind a mark. A context: its thread ends with it."""

    def __init__(self, run: MonitorRun, form: TableForm, mark: Mark, say: Callable[[str], None]) -> None:
        self._run, self._form, self._mark, self._say = run, form, mark, say
        self._queue: queue.Queue[Taken | BaseException | None] = queue.Queue(maxsize=4 * run.batch_rows)
        self._over = threading.Event()
        self._kind = _kind_of(run)
        self.ended = False

    def __enter__(self) -> Source:
        # A daemon: reading from stdin cannot be interrupted, and must not keep the process from ending.
        threading.Thread(target=self._read, name="rows", daemon=True).start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()

    def take(self, most: int, seconds: float) -> list[Taken]:
        """The next rows: at once when there are `most`, else what came within `seconds`."""
        taken: list[Taken] = []
        until = time.monotonic() + seconds
        while len(taken) < most and not self.ended:
            try:
                got = self._queue.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if isinstance(got, BaseException):
                raise got
            if got is None:
                self.ended = True
            else:
                taken.append(got)
        return taken

    # ------------------------------------------------------------------------------------------------ the thread

    def _read(self) -> None:
        try:
            while True:
                try:
                    self._read_file()
                    break
                except Rotated:
                    self._say(f"{self._run.input}: is another file now; reading it from its start")
                    self._mark = Mark()
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, value: Taken | BaseException | None) -> None:
        while not self._over.is_set():
            try:
                self._queue.put(value, timeout=_POLL_SECONDS)
                return
            except queue.Full:
                continue

    def _read_file(self) -> None:
        run = self._run
        name = "stdin" if run.input == STDIN else run.input
        between = ": row " if self._kind in ("parquet", "arrow", "dataset", "json") else ":"
        first, count, skip = "", 0, 0
        try:
            for record in self._records():
                if self._over.is_set():
                    return
                values = record.values if isinstance(record, Record) else {}
                cells = Cells(values, f"{name}{between}{record.number}", record.number)
                count += 1
                if count == 1:
                    first = cells.fingerprint()
                    skip = self._rows_behind(first)
                if count > skip:
                    self._put(Taken(cells, Mark(first, count), _fault(record, cells.place)))
        except Damaged as error:
            raise DataError(f"{name}: cannot be read: {error.detail or error.reason}") from error

    def _rows_behind(self, first: str) -> int:
        """How many rows of the file that starts so were taken before."""
        if first == self._mark.first:
            return self._mark.count
        if self._mark.first and self._run.input != STDIN:
            self._say(f"{self._run.input}: begins otherwise than before the stop; reading it from its start")
        return 0

    def _records(self) -> Iterator[Record | Fault]:
        run = self._run
        if run.input == STDIN:
            blocks: Iterator[bytes] = iter(lambda: os.read(sys.stdin.fileno(), _BLOCK), b"")
        elif run.follow:
            blocks = self._growing(Path(run.input))
        else:
            yield from read_records(open_table(Path(run.input), self._kind), self._form, limit=MAX_LINE_BYTES)
            return
        if self._form.encoding != UTF8:
            blocks = as_utf8(_Blocks(blocks), self._form.encoding)  # type: ignore[arg-type]
        yield from stream_records(blocks, self._kind, self._form)

    def _growing(self, path: Path) -> Iterator[bytes]:
        """Whole lines, as they come. Raises Rotated where the file is cut or another one took its name."""
        idle_since = time.monotonic()
        rest = b""
        with path.open("rb", buffering=0) as file:
            while not self._over.is_set():
                if block := file.read(_BLOCK):
                    idle_since = time.monotonic()
                    whole, newline, rest = (rest + block).rpartition(b"\n")
                    if newline:
                        yield whole + newline
                    continue
                self._check_same(path, file.fileno(), file.tell())
                if (limit := self._run.idle_seconds) is not None and time.monotonic() - idle_since >= limit:
                    return
                self._over.wait(_POLL_SECONDS)

    def _check_same(self, path: Path, handle: int, position: int) -> None:
        try:
            now = path.stat()
        except FileNotFoundError:
            return  # between two files of a rotation
        if now.st_ino != os.fstat(handle).st_ino or now.st_size < position:
            raise Rotated


class _Blocks:
    """Blocks with the one method that as_utf8 calls."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks

    def block(self) -> bytes:
        return next(self._blocks, b"")


def _kind_of(run: MonitorRun) -> str:
    """The layout, and that it can be read this way."""
    if run.input == STDIN:
        return run.format or "jsonl"
    path = Path(run.input)
    if not path.exists():
        raise MissingInputError(f"{run.input}: no such file")
    kind = run.format or table_kind(path)
    if run.follow and (kind not in ("csv", "tsv", "jsonl") or path.suffix.lower() in (".gz", ".xz", ".zst", ".bz2")):
        raise ConfigError(f"{run.input}: only plain .csv, .tsv and .jsonl files can grow; without --follow it is read")
    return kind


def _fault(record: Record | Fault, place: str) -> str:
    """What is wrong with a row; a file that is no table ends the reading."""
    if isinstance(record, Record):
        return f"not text: {record.undecodable}" if record.undecodable else ""
    if record.fatal:
        raise DataError(f"{place}: {record.detail}")
    return record.detail or record.reason
