"""JSON -> records: one object a line, an array of objects, or one object that holds one list of objects.

Arrays are read piece by piece: only one of their objects is in memory at a time. Not here: opening files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from remask.streams import UTF8, Damaged, as_utf8, open_stream
from remask.tables.delimited import Line, too_long, undecodable
from remask.tables.form import NO_COLUMN, Fault, Record, lacking_columns

NOT_JSON, DAMAGED = "not JSON", "damaged file"
_LONG_NUMBER = re.compile(rb"\d{19}")
# A string, whole or up to the end of what was read (then group 1 is empty), or something that opens or closes.
_TOKEN = re.compile(rb'"(?>[^"\\]+|\\.)*("|\\?\Z)|[\[\]{}]', re.DOTALL)
_BLANK = b" \t\r\n"


def line_records(lines: Iterable[Line], limit: int, columns: Sequence[str] | None) -> Iterator[Record | Fault]:
    """One object a line; blank lines are none."""
    for number, offset, data in lines:
        if data is None:
            yield too_long(number, offset, limit)
        elif data.strip():
            yield _record(data, number, offset, columns, "a line")


def _record(data: bytes, number: int, offset: int, columns: Sequence[str] | None, what: str) -> Record | Fault:
    bad = ""
    try:
        values: Any = orjson.loads(data)
        if _LONG_NUMBER.search(data):  # which orjson reads as a float beyond 64 bit
            values = json.loads(data)
    except orjson.JSONDecodeError as error:
        try:
            bad = undecodable(data)
            if not bad:
                return Fault(NOT_JSON, f"not JSON: {str(error)[:100]}", number, offset)
            orjson.loads(data.decode(UTF8, "replace"))  # does not take the halves of surrogates, as json does
            values = json.loads(data.decode(UTF8, "surrogateescape"))
        except (ValueError, RecursionError):
            return Fault(NOT_JSON, f"not JSON: {str(error)[:100]}", number, offset)
    if not isinstance(values, dict):
        return Fault(NOT_JSON, f"{what} must be a JSON object, not {type(values).__name__}", number, offset)
    if columns is None:
        return Record(values, number, offset, bad)
    if lacking := lacking_columns(columns, list(values)):
        return Fault(NO_COLUMN, lacking, number, offset)
    return Record({name: values[name] for name in columns}, number, offset, bad)


# ---------------------------------------------------------------------------------------------- a .json file


def is_json_lines(path: str, compression: str, max_expansion: float) -> bool:
    """Whether a .json file is JSON lines under another name, by its beginning."""
    try:
        with open_stream(path, compression, max_expansion) as stream:
            return begins_as_lines(next(as_utf8(stream), b""))
    except Damaged:
        return False


def begins_as_lines(first: bytes) -> bool:
    """An array is none; nor is an object that goes on in the next line, or that alone holds a list of objects."""
    head = first.removeprefix(b"\xef\xbb\xbf").lstrip(_BLANK)
    if head.startswith(b"["):
        return False
    line, newline, rest = head.partition(b"\n")
    if not newline and len(first) >= 1 << 16:
        return False  # a line of such a length is rather a whole file
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return b"{" not in line or bool(newline and rest.lstrip(_BLANK).startswith(b"{"))
    lists = [v for v in value.values() if _holds_objects(v)] if isinstance(value, dict) else []
    return bool(rest.strip(_BLANK)) or not lists


def _holds_objects(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def array_records(blocks: Iterable[bytes], limit: int, columns: Sequence[str] | None) -> Iterator[Record | Fault]:
    """The objects of an array, or of the one list that an object has. What breaks off or is no JSON between them is
    `Damaged`: nothing after it can be trusted."""
    for number, (offset, data) in enumerate(_objects(iter(blocks), limit), 1):
        if data is None:
            yield Fault("too long", f"an object of over {limit:,} bytes", number, offset)
        else:
            yield _record(data, number, offset, columns, "an element")


class _Scan:
    """Strings and brackets of a file, one after the other, with a buffer that begins at byte `base`."""

    def __init__(self, blocks: Iterator[bytes], limit: int) -> None:
        self._blocks, self._limit = blocks, limit
        self.buffer = b""
        self.base = self._position = 0

    def token(self) -> tuple[int, int, bytes] | None:
        """(first byte, byte after the last, the token); None at the end of the file."""
        while True:
            match = _TOKEN.search(self.buffer, self._position)
            if match and match.group(1) in (b'"', None):
                self._position = match.end()
                return self.base + match.start(), self.base + match.end(), match.group()
            self._position = match.start() if match else len(self.buffer)
            if len(self.buffer) - self._position > self._limit:
                raise Damaged("too long", f"byte {self.base + self._position}: a text of over {self._limit:,} bytes")
            block = next(self._blocks, b"")
            if not block:
                if match:
                    raise Damaged(DAMAGED, "not JSON: a text that is never closed")
                return None
            self.buffer += block

    def forget(self, end: int) -> None:
        """What stands before this byte is not looked at again."""
        self.buffer = self.buffer[end - self.base :]
        self._position -= end - self.base
        self.base = end

    def between(self, start: int, end: int) -> bytes:
        return self.buffer[start - self.base : end - self.base]


def _objects(blocks: Iterator[bytes], limit: int) -> Iterator[tuple[int, bytes | None]]:
    """(first byte, bytes) of every object; None in place of one over the limit."""
    scan = _Scan(blocks, limit)
    opened: list[bytes] = []
    lists: list[str] = []  # by the names that the outer object gives them
    key = b""
    inside = 0  # how many brackets are open around the elements; 0: not in their list
    is_first = False  # whether no element of this list was seen: a list of anything but objects holds no rows
    start = last = 0  # of the element that is open; after the one before it
    dropped = False
    while (token := scan.token()) is not None:
        begin, end, mark = token
        if mark in (b"[", b"{"):
            opened.append(mark)
            if not inside and opened in ([b"["], [b"{", b"["]):
                inside, last, is_first = len(opened), end, True
                if inside == 1:
                    lists.append("")
            elif inside and len(opened) == inside + 1:
                gap = scan.between(last, end if mark == b"[" else begin)
                if is_first and inside == 2 and gap.strip(_BLANK):
                    inside = 0
                else:
                    _check_gap(gap, begin)
                    start, dropped = begin, False
                    if is_first and inside == 2:
                        lists.append(key.decode(UTF8, "replace"))
                    if len(lists) > 1:
                        raise Damaged("several lists", f"holds several lists ({', '.join(lists)}); rows must be in one")
                is_first = False
        elif mark in (b"]", b"}"):
            if not opened or opened.pop() != (b"[" if mark == b"]" else b"{"):
                raise Damaged(DAMAGED, f"not JSON: byte {begin}: {mark.decode()} closes nothing")
            if inside and len(opened) == inside:
                yield start, None if dropped else scan.between(start, end)
                last = end
            elif inside and len(opened) == inside - 1:
                if not is_first or inside == 1:
                    _check_gap(scan.between(last, begin), begin)
                inside = 0
        elif not inside and opened == [b"{"]:
            key = mark[1:-1]
        if inside and len(opened) > inside:
            dropped = dropped or end - start > limit
        elif inside and end - last > limit:
            _check_gap(scan.between(last, end), end)
        if not inside or dropped or end == last:
            scan.forget(end)
    if opened:
        raise Damaged(DAMAGED, "not JSON: the file ends in the middle")
    if not lists:
        raise Damaged("no rows", "holds no list of objects; rows stand in an array, or one object a line")


def _check_gap(gap: bytes, place: int) -> None:
    """Between two elements stands a comma and nothing else."""
    if (text := gap.strip(_BLANK)) not in (b"", b","):
        shown = text.strip(b", \t\r\n")[:40].decode(UTF8, "replace")
        raise Damaged(NOT_JSON, f"byte {place}: an element must be a JSON object, not {shown!r}")
