"""Lines of a file, and CSV and TSV -> records.

In: blocks of bytes as UTF-8 (streams.as_utf8). Out: records by column name. Quotes delimit cells in CSV and are text in
TSV, as most write it; the delimiter is the usual one of the file's name unless another one fits the first rows. Not
here: opening files, and what is done about bytes that are no text.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from remask.streams import UTF8, Damaged
from remask.tables.form import (
    DELIMITERS,
    HEADER,
    NO_COLUMN,
    NOT_UTF8,
    RAGGED,
    RAGGED_ENDING,
    Fault,
    Record,
    TableForm,
    lacking_columns,
)

Line = tuple[int, int, bytes | None]  # its number from 1, its first byte, and its bytes without the end
_SAMPLE_LINES = 50
_NEWLINE, _ANY_NEWLINE = re.compile(rb"\n"), re.compile(rb"\r\n|\n|\r")


def byte_lines(blocks: Iterable[bytes], limit: int, *, any_newline: bool = False) -> Iterator[Line]:
    """The lines of a file; one over `limit` bytes comes once as None. `any_newline`: a lone \\r ends a line too."""
    rest, offset, number, skipping = b"", 0, 0, False
    for block in blocks:
        data = rest + block
        position = 0
        end = len(data) - 1 if data.endswith(b"\r") else len(data)  # that may be the half of \r\n
        pattern = _ANY_NEWLINE if any_newline and b"\r" in data else _NEWLINE
        for match in pattern.finditer(data, 0, end):
            number += 1
            if not skipping:
                yield _line(number, offset + position, data[position : match.start()], limit)
            skipping = False
            position = match.end()
        rest = data[position:]
        offset += position
        if len(rest) > limit:
            if not skipping:
                yield number + 1, offset, None
            offset += len(rest)
            rest, skipping = b"", True
    if rest and not skipping:
        yield _line(number + 1, offset, rest, limit)


def _line(number: int, offset: int, data: bytes, limit: int) -> Line:
    if len(data) > limit:
        return number, offset, None
    return number, offset, (data.removeprefix(codecs.BOM_UTF8) if offset == 0 else data).rstrip(b"\r")


def too_long(number: int, offset: int, limit: int) -> Fault:
    return Fault("too long", f"a line of over {limit:,} bytes", number, offset)


def undecodable(data: bytes) -> str:
    """Where bytes are no UTF-8; empty where they are."""
    try:
        data.decode(UTF8)
    except UnicodeDecodeError as error:
        return f"byte {error.start} of the line"
    return ""


def delimited_records(
    lines: Iterator[Line], form: TableForm, kind: str, *, limit: int, strict: bool, columns: Sequence[str] | None,
    on_delimiter: Callable[[str], None],
) -> Iterator[Record | Fault]:  # fmt: skip
    """Rows by column name; of `columns` only those, which must all be there. `strict`: a quote that is out of place or
    never closed is a fault; else it is text. `on_delimiter` hears of one that was guessed."""
    quoted = kind == "csv" if form.quoted is None else form.quoted
    usual = "," if kind == "csv" else "\t"
    # A stream, whose delimiter is given, must not wait for a sample.
    first = list(itertools.islice(lines, _SAMPLE_LINES if form.delimiter is None else 0))
    lines = itertools.chain(first, lines)
    delimiter = form.delimiter
    if delimiter is None:
        delimiter = guess_delimiter([data.decode(UTF8, "replace") for _, _, data in first if data], usual, quoted)
        if delimiter != usual:
            on_delimiter(delimiter)
    rows = _quoted_rows(lines, delimiter, limit, strict) if quoted else _plain_rows(lines, delimiter, limit)
    names: list[str] | None = None
    chosen: list[tuple[str, int]] = []
    for row in rows:
        if isinstance(row, Fault):
            if names is None and form.header:
                yield replace(row, fatal=True)
                return  # without its header a table is nothing
            yield row
            continue
        number, offset, cells, bad = row
        if cells in ([], [""]):
            continue  # an empty line is no row
        if names is None:
            if bad and form.header and strict:
                yield Fault(NOT_UTF8, bad, number, offset, fatal=True)
                return
            names = [cell.strip() if form.header else str(place) for place, cell in enumerate(cells, 1)]
            if columns is not None and (lacking := lacking_columns(columns, names)):
                raise Damaged(NO_COLUMN, lacking)
            if twice := [name for name in columns or names if names.count(name) > 1]:
                yield Fault(HEADER, f"column {twice[0]!r} is there twice", number, offset, fatal=True)
                return
            chosen = [(name, names.index(name)) for name in columns or names]
            if form.header:
                continue
        if len(cells) != len(names):
            yield Fault(RAGGED, f"{len(cells)} cells, but the table has {len(names)} {RAGGED_ENDING}", number, offset)
            continue
        yield Record({name: cells[place] for name, place in chosen}, number, offset, bad)


Row = tuple[int, int, list[str], str]  # number, first byte, cells, what is no text


def _plain_rows(lines: Iterator[Line], delimiter: str, limit: int) -> Iterator[Row | Fault]:
    for number, offset, data in lines:
        if data is None:
            yield too_long(number, offset, limit)
            continue
        yield number, offset, data.decode(UTF8, "surrogateescape").split(delimiter), undecodable(data)


def _quoted_rows(lines: Iterator[Line], delimiter: str, limit: int, strict: bool) -> Iterator[Row | Fault]:
    """A row may go over several lines; it is placed where it starts."""
    number = offset = 0
    bad = ""
    long_lines: list[Fault] = []

    def texts() -> Iterator[str]:
        nonlocal number, offset, bad
        for line_number, line_offset, data in lines:
            if number == 0:
                number, offset = line_number, line_offset
            if data is None:
                long_lines.append(too_long(line_number, line_offset, limit))
                continue
            bad = bad or undecodable(data)
            yield data.decode(UTF8, "surrogateescape") + "\n"

    csv.field_size_limit(limit)
    reader = csv.reader(texts(), delimiter=delimiter, strict=strict)
    while True:
        number, bad = 0, ""
        try:
            cells = next(reader)
        except StopIteration:
            yield from long_lines
            return
        except csv.Error as error:
            yield from long_lines
            yield Fault(RAGGED, f"{error} (in the row that starts there)", number, offset)
        else:
            yield from long_lines
            yield number, offset, cells, bad
        long_lines.clear()


def guess_delimiter(sample: Sequence[str], usual: str, quoted: bool) -> str:
    """The usual one, unless it does not divide these lines into equal rows and another one does."""

    def widths(delimiter: str) -> list[int]:
        if not quoted:
            return [line.count(delimiter) + 1 for line in sample if line]
        try:
            rows = [row for row in csv.reader((line + "\n" for line in sample), delimiter=delimiter) if row]
        except csv.Error:
            return []
        return [len(row) for row in (rows[:-1] if len(sample) == _SAMPLE_LINES else rows)]

    def fits(delimiter: str) -> int:
        columns = widths(delimiter)
        return columns[0] if columns and len(set(columns)) == 1 and columns[0] > 1 else 0

    if fits(usual):
        return usual
    best = max((other for other in DELIMITERS if other != usual), key=fits)
    return best if fits(best) else usual
