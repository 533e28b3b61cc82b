"""A file of rows -> its rows, whatever its layout, compression and encoding; used by prepare and by every task.

`read_records` gives records and faults and leaves it to the caller what to do about them; `read_cells` is for files in
which a fault is a mistake: a DataError with the place (or a word to `on_bad`). Layouts go by the name: CSV, TSV, JSON
lines, JSON arrays and objects with one list, Parquet, Arrow, folders of datasets' `save_to_disk`. Not here: columns.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from remask.errors import ConfigError, DataError, MissingInputError
from remask.schema import Values
from remask.streams import BLOCK, COMPRESSIONS, UTF8, Damaged, as_utf8, open_stream, split_name
from remask.tables import form as forms
from remask.tables.columnar import arrow_records, dataset_files, parquet_records
from remask.tables.delimited import byte_lines, delimited_records, too_long, undecodable
from remask.tables.form import DELIMITERS, MAX_EXPANSION, NOT_UTF8, TABLE_KINDS, Fault, Record, TableForm
from remask.tables.json_rows import array_records, begins_as_lines, line_records

_GUESS_BYTES = 1 << 18
DATASET = "dataset"

# Called with a line's number and what is wrong with it, where one bad line is not to end the reading.
OnBad = Callable[[int, str], None]
# Called with what was guessed about a file.
OnNote = Callable[[str], None]


class FilePart(Protocol):
    """A file, or a part of one that can be read alone: bytes of JSON lines, row groups of Parquet."""

    @property
    def path(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def compression(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int | None: ...


@dataclass(frozen=True)
class Whole:
    """All of a file."""

    path: str
    kind: str
    compression: str = ""
    start: int = 0
    end: int | None = None


# ------------------------------------------------------------------------------------------ records and faults


def read_records(
    part: FilePart, form: TableForm, *, limit: int, strict: bool = True, max_expansion: float = MAX_EXPANSION,
    columns: Sequence[str] | None = None, texts: Sequence[str] = (), on_delimiter: Callable[[str], None] | None = None,
) -> Iterator[Record | Fault]:  # fmt: skip
    """Every row once; `Damaged` where nothing can be read on from. `columns`: only these, in this order; a row or file
    that lacks one is a fault or damage. `texts`: those that must hold text where a file has types. `strict`: quotes out
    of place are faults."""
    if part.kind == "parquet":
        groups = part.start, part.end
        yield from parquet_records(part.path, part.compression, max_expansion, *groups, columns, texts)
    elif part.kind == "arrow":
        yield from arrow_records(part.path, part.compression, max_expansion, columns, texts)
    elif part.kind == DATASET:
        row = 0
        for path in dataset_files(part.path):
            for record in arrow_records(path, "", max_expansion, columns, texts):
                row += 1
                yield _renumbered(record, row)
    else:
        length = part.end - part.start if part.end is not None else None
        with open_stream(part.path, part.compression, max_expansion, part.start, length) as stream:
            plain = part.start and form.encoding == UTF8
            blocks = iter(stream.block, b"") if plain else as_utf8(stream, form.encoding)
            yield from _text_records(part.kind, blocks, form, limit, strict, columns, on_delimiter or (lambda _: None))


def stream_records(blocks: Iterator[bytes], kind: str, form: TableForm) -> Iterator[Record | Fault]:
    """Rows of CSV, TSV or JSON lines as they come: nothing is looked at in advance, so the delimiter is the usual one
    unless the form says."""
    usual = {"csv": ",", "tsv": "\t"}.get(kind)
    form = form.model_copy(update={"delimiter": form.delimiter or usual})
    yield from _text_records(kind, blocks, form, forms.MAX_LINE_BYTES, True, None, lambda _: None)


def _text_records(
    kind: str, blocks: Iterator[bytes], form: TableForm, limit: int, strict: bool, columns: Sequence[str] | None,
    on_delimiter: Callable[[str], None],
) -> Iterator[Record | Fault]:  # fmt: skip
    if kind in ("csv", "tsv"):
        lines = byte_lines(blocks, limit)
        yield from delimited_records(
            lines, form, kind, limit=limit, strict=strict, columns=columns, on_delimiter=on_delimiter
        )
        return
    first = next(blocks, b"") if kind == "json" else b""
    if kind == "json" and not begins_as_lines(first):
        yield from array_records(_joined(first.removeprefix(b"\xef\xbb\xbf"), blocks), limit, columns)
    else:
        yield from line_records(byte_lines(_joined(first, blocks), limit, any_newline=True), limit, columns)


def _joined(first: bytes, blocks: Iterable[bytes]) -> Iterator[bytes]:
    yield first
    yield from blocks


def _renumbered(record: Record | Fault, row: int) -> Record | Fault:
    if isinstance(record, Fault):
        return Fault(record.reason, record.detail, row)
    return Record(record.values, row, 0, record.undecodable)


# ------------------------------------------------------------------------------------------------ rows of cells


@dataclass(frozen=True, slots=True)
class Cells:
    """One row as the file has it."""

    values: Values
    place: str
    number: int = 0  # its first line, or its row where a file has no lines; from 1

    def fingerprint(self) -> str:
        """By which a row is known again, where its file is read a second time."""
        text = repr((self.number, list(self.values.items())))
        return hashlib.blake2b(text.encode(UTF8, "surrogatepass"), digest_size=8).hexdigest()


def table_kind(path: Path) -> str:
    """The layout of a table by its name; a DataError where that says nothing."""
    if path.is_dir():
        return DATASET
    kind = TABLE_KINDS.get(split_name(path.name)[0])
    if kind is None:
        packed = ", ".join(COMPRESSIONS)
        raise DataError(
            f"{path}: a table is one of {', '.join(TABLE_KINDS)} (also with {packed}), or a folder of save_to_disk"
        )
    return kind


def open_table(path: Path, kind: str | None = None) -> Whole:
    if not path.exists():
        raise MissingInputError(f"{path}: no such file")
    return Whole(str(path), kind or table_kind(path), split_name(path.name)[1] if path.is_file() else "")


def read_cells(
    path: Path, form: TableForm | None = None, *, on_bad: OnBad | None = None, on_note: OnNote | None = None,
    kind: str | None = None,
) -> Iterator[Cells]:  # fmt: skip
    """Rows by column name. `kind`: a layout that the name does not tell. `on_bad`: rows that cannot be read are handed
    there and left out; without it the first one is a DataError, as is in any case a file that breaks off, or whose
    header cannot be read."""
    file, form = open_table(path, kind), form or TableForm()
    between = ":" if file.kind in ("csv", "tsv", "jsonl") else ": row "
    encoding = _LikelyEncoding(file, form)

    def on_delimiter(delimiter: str) -> None:
        if on_note is not None:
            word = DELIMITERS[delimiter]
            on_note(f"{path.name}: cells are divided by {word} (guessed; the setting `delimiter` says otherwise)")

    try:
        for record in read_records(file, form, limit=forms.MAX_LINE_BYTES, on_delimiter=on_delimiter):
            if isinstance(record, Record) and not record.undecodable:
                yield Cells(record.values, f"{path}{between}{record.number}", record.number)
                continue
            if isinstance(record, Record):
                reason = encoding.said(record.undecodable)
            else:
                reason = encoding.said(record.detail) if record.reason == NOT_UTF8 else record.detail
            if on_bad is None or (isinstance(record, Fault) and record.fatal):
                raise DataError(f"{path}{between}{record.number}: {reason}")
            on_bad(record.number, reason)
    except Damaged as error:
        kinds = {"parquet": "not a readable Parquet file", "arrow": "not a readable Arrow file"}
        words = kinds.get(file.kind, "cannot be read") if error.reason == "damaged file" else ""
        raise DataError(f"{path}: {words}{': ' if words else ''}{error.detail}") from error


class _LikelyEncoding:
    """What a file that is not in its encoding seems to be in: named in the message, never applied."""

    def __init__(self, file: Whole, form: TableForm) -> None:
        self._file, self._form = file, form
        self._likely: str | None = None

    def said(self, where: str = "") -> str:
        if self._likely is None:
            self._likely = self._guess()
        name = "UTF-8" if self._form.encoding == UTF8 else self._form.encoding
        hint = f"; the file looks like {self._likely}: give --encoding {self._likely.partition(' ')[0]}"
        return f"not {name}{f' ({where})' if where else ''}{hint if self._likely else ''}"

    def _guess(self) -> str:
        from charset_normalizer import from_bytes

        if self._file.kind not in ("csv", "tsv", "jsonl", "json"):
            return ""
        lines = self._odd_lines()
        likely = [match.encoding.replace("_", "-") for match in from_bytes(lines)][:3]
        if not likely or likely[0] == "utf-8":
            return ""
        # Short texts fit many encodings: of those that fit, the one of Western Europe is by far the most frequent.
        if lines.decode("cp1252", "replace") == lines.decode(likely[0], "replace"):
            return "cp1252"
        return f"cp1252 or {likely[0]}" if "cp1252" in likely[1:] else likely[0]

    def _odd_lines(self) -> bytes:
        """The first lines that are not as they should be: the others look alike in most encodings."""
        odd, seen = [], 0
        try:
            with open_stream(self._file.path, self._file.compression, MAX_EXPANSION) as stream:
                for _, _, data in byte_lines(iter(stream.block, b""), BLOCK):
                    if data and undecodable(data):
                        odd.append(data)
                        seen += len(data)
                    if seen > _GUESS_BYTES:
                        break
        except Damaged:
            pass  # what was read is enough to guess
        return b"\n".join(odd)


def read_lines(path: Path, *, encoding: str = UTF8) -> Iterator[tuple[int, str]]:
    """(line number, line without its end) of a text file, plain or compressed; a byte order mark is dropped."""
    file = open_table(path, "lines")
    likely = _LikelyEncoding(Whole(file.path, "tsv", file.compression), TableForm(encoding=encoding))
    try:
        with open_stream(file.path, file.compression, MAX_EXPANSION) as stream:
            for number, offset, data in byte_lines(as_utf8(stream, encoding), forms.MAX_LINE_BYTES):
                if data is None:
                    raise DataError(f"{path}:{number}: {too_long(number, offset, forms.MAX_LINE_BYTES).detail}")
                if bad := undecodable(data):
                    raise DataError(f"{path}:{number}: {likely.said(bad)}")
                yield number, data.decode(UTF8)
    except Damaged as error:
        raise DataError(f"{path}: cannot be read: {error.detail}") from error


@contextlib.contextmanager
def unchanged(paths: Iterable[Path]) -> Iterator[None]:
    """Files that are read inside must be the same afterwards: what was read while somebody wrote would be half of one
    and half of the other."""
    files = sorted({file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])})
    before = {file: _stamp(file) for file in files}
    yield
    for file, known in before.items():
        if _stamp(file) != known:
            raise DataError(f"{file}: has changed while it was read; run it again when nobody writes it")


def _stamp(path: Path) -> tuple[int, ...]:
    """The time of the last change of any kind is kept by the system alone: no program can set it back."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns if path.is_file() else 0


def require_columns(cells: Cells, columns: Iterable[str]) -> None:
    """A ConfigError with the nearest name, where a row lacks one of these."""
    for column in columns:
        if column not in cells.values:
            known = [str(name) for name in cells.values]
            near = difflib.get_close_matches(column, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{cells.place}: no column {column!r}; there are {', '.join(known[:20])}{hint}")


def about_rows(path: Path) -> int | None:
    """About how many rows, where that is quick to know."""
    ending, compression = split_name(path.name)
    kind = TABLE_KINDS.get(ending)
    if compression or not os.path.isfile(path):
        return None
    if kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        try:
            return pyarrow.parquet.read_metadata(path).num_rows
        except (pyarrow.ArrowException, OSError):
            return None  # the reader says what is wrong with it
    if kind not in ("csv", "tsv", "jsonl"):
        return None
    with path.open("rb") as file:
        lines = sum(block.count(b"\n") for block in iter(lambda: file.read(BLOCK), b""))
    return max(1, lines - (kind != "jsonl"))
