"""What a reader yields: documents, and the records that did not become one, each with its reason and place.

Also the pieces of work that readers are handed (`Portion`), and cutting bytes that are too long for one document.
Every record of a source is yielded exactly once, as a `Document` or as a `Drop`, so kept + dropped = read.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from remask.schema import Document
from remask.streams import Damaged
from remask.text.settings import Layout, ReadSettings, SourceSettings
from remask.workers import expect

__all__ = [
    "LACKING_COLUMN",
    "UNKNOWN_KIND",
    "Damaged",
    "Document",
    "Drop",
    "Portion",
    "Reading",
    "Steps",
    "cut_point",
]

TOO_SLOW = "took too long"
SECONDS_PER_MB = 10.0
_SECONDS_FOR_ANY = 2.0
_UNPACKED_PER_SECOND = 50e6  # on a slow machine


@dataclass(frozen=True, slots=True)
class Drop:
    """A record that is not used, or a file that is not read on from here (`is_file`, with the number of its records
    that were not looked at, `unread`). `detail` says more than the reason that drops are counted by."""

    reason: str
    place: str
    detail: str = ""
    is_file: bool = False
    unread: int = 0


# Why a record or a whole table gives no text: its columns are not those that the source names.
LACKING_COLUMN = "no such column"
UNKNOWN_KIND = "unknown kind of file"


@dataclass(frozen=True)
class Portion:
    """A file, or a part of one that can be read alone: bytes of text and JSON lines, row groups of Parquet."""

    source: int
    path: str
    place: str
    kind: str
    compression: str = ""
    start: int = 0
    end: int | None = None
    size: int = 0

    def at(self, record: str) -> str:
        return f"{self.place}:{record}"


@dataclass
class Steps:
    """Numbers the steps of a task whose time depends on what others wrote, and says how long each may take. One that
    was ended for its time is known by its number in the next attempt, since everything before it goes the same way."""

    passed_over: frozenset[int] = frozenset()
    number: int = 0

    def is_passed_over(self, num_bytes: int, unpacked_bytes: float = 0) -> bool:
        """Whether the next step was given up before; otherwise its time starts now. `unpacked_bytes`: what may have to
        be unpacked for it at most."""
        self.number += 1
        if self.number in self.passed_over:
            return True
        seconds = _SECONDS_FOR_ANY + SECONDS_PER_MB * num_bytes / 1e6 + unpacked_bytes / _UNPACKED_PER_SECOND
        expect(seconds, self.number)
        return False


@dataclass
class Reading:
    """What every reader needs beside its portion; `changed` counts what was done to kept records."""

    source: SourceSettings
    settings: ReadSettings
    layout: Layout
    changed: Counter[str]
    steps: Steps = field(default_factory=Steps)

    @property
    def max_bytes(self) -> int:
        return self.settings.max_document_bytes

    def decode(self, data: bytes, place: str) -> Document | Drop:
        """Bytes that should be UTF-8 as a document, by the choice for those that are not."""
        data = data.removeprefix(codecs.BOM_UTF8)
        try:
            return Document(data.decode(), place)
        except UnicodeDecodeError as error:
            if self.settings.invalid_utf8 == "drop":
                return Drop("invalid UTF-8", place, f"byte {error.start} of the record")
            self.changed["invalid UTF-8 replaced"] += 1
            return Document(data.decode(errors="replace"), place)

    def fitted(self, text: str, place: str) -> Iterator[Document | Drop]:
        """A text that a record held, cut or dropped if it is too long for a document."""
        if len(text) * 4 <= self.max_bytes or len(data := text.encode("utf-8", "replace")) <= self.max_bytes:
            yield Document(text, place)
        elif self.settings.long_documents == "drop":
            yield Drop("too long", place, f"over {self.max_bytes:,} bytes")
        else:
            self.changed["too long: cut"] += 1
            while data:
                end = cut_point(data, self.max_bytes) if len(data) > self.max_bytes else len(data)
                yield Document(data[:end].decode("utf-8", "replace"), place)
                data = data[end:]

    def outside_dates(self, value: object) -> str:
        """Empty, or why a record with this date (ISO text or a date) is not wanted."""
        first, last = self.source.date_from, self.source.date_to
        if first is None and last is None:
            return ""
        day = str(value)[:10]
        if not _DAY.fullmatch(day):
            return "no date"
        return "outside the dates" if (first and day < first) or (last and day > last) else ""


_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def cut_point(data: bytes, limit: int) -> int:
    """Where to cut bytes that go on beyond `limit`: after a newline or space near it, else between characters."""
    near = limit - limit // 8
    for mark in (b"\n", b" "):
        if (place := data.rfind(mark, near, limit)) >= 0:
            return place + 1
    end = limit
    while end > limit - 3 and data[end] & 0xC0 == 0x80:
        end -= 1
    return end
