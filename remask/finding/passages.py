"""Files -> passages: documents with ids and fields, cut between sentences, in parts that are made in parallel.

In: a source of `prepare` (tables, text, web pages, ...), a tokenizer and a length. Out: part folders, each whole or not
there, with mapped files: `texts` and `text_offsets` (UTF-8 of all passages, int64), `passages` (int64 x 2: document,
character it starts at), `documents` and `document_offsets` (one JSON object each: id, place, fields). The same bytes on
any number of workers. Not here: vectors (encode), the published index (build).
"""

from __future__ import annotations

import bisect
import itertools
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson

from remask import artifacts, signals
from remask.documents import OFFSETS
from remask.errors import DataError
from remask.finding.settings import IndexRun, PassageSettings
from remask.schema import Json
from remask.streams import Damaged
from remask.tables import Fault, Record, read_records
from remask.tables import form as forms
from remask.text.records import Drop, Portion, Reading
from remask.text.sentences import sentence_starts
from remask.text.settings import Layout, ReadSettings, SourceSettings
from remask.text.sources import TABLES, read_portion
from remask.tokenizer import Tokenizer, load_tokenizer

FACTS = "facts.json"
EMPTY = "empty text"
FILES = ("texts", "text_offsets", "passages", "documents", "document_offsets")
_FIRST_ROWS = 100  # of a table, that must have its text column
_MAX_SAMPLES = 20


@dataclass(frozen=True)
class Found:
    """A document before it is cut."""

    id: str
    place: str
    text: str
    fields: Json


# ------------------------------------------------------------------------------------------------------ reading


def read_found(portion: Portion, run: IndexRun, layout: Layout) -> Iterator[Found | Drop]:
    """The documents of a portion with their ids and fields, and what could not become one."""
    if portion.kind in TABLES and portion.kind != "hf":
        yield from _rows(portion, run, run.docs)
        return
    reading = Reading(run.docs, ReadSettings(), layout, Counter())
    records = read_portion(portion, reading)
    # A text too long for one document comes in pieces of one place: together they are one document again.
    for place, group in itertools.groupby(records, key=lambda record: record.place):
        kept = []
        for record in group:
            if isinstance(record, Drop):
                yield record
            else:
                kept.append(record.text)
        if kept:
            yield Found(place, place, "".join(kept), {})


def _rows(portion: Portion, run: IndexRun, source: SourceSettings) -> Iterator[Found | Drop]:
    between, found = ":" if portion.kind in ("csv", "tsv") else ": row ", False
    records = read_records(
        portion, source, limit=forms.MAX_LINE_BYTES, strict=False, max_expansion=source.max_expansion
    )
    for number, record in enumerate(records):
        where = record.offset + portion.start if portion.kind == "jsonl" else record.number
        place = f"{portion.place}{': byte ' if portion.kind == 'jsonl' else between}{where}"
        if isinstance(record, Fault):
            yield Drop(record.reason, place, record.detail[:100])
            continue
        lacking = [name for name in (*source.text_columns, *run.fields) if name not in record.values]
        if lacking and not found and number >= _FIRST_ROWS - 1:
            there = ", ".join(map(str, record.values))
            raise Damaged(forms.NO_COLUMN, f"no column {lacking[0]!r}; there are {there}")
        if lacking:
            yield Drop(forms.NO_COLUMN, place, f"no column {lacking[0]!r}; there are {', '.join(record.values)}")
            continue
        found = True
        yield _row(record, place, run, source)


def _row(record: Record, place: str, run: IndexRun, source: SourceSettings) -> Found | Drop:
    if record.undecodable:
        return Drop(forms.NOT_UTF8, place, record.undecodable)
    values = [record.values[name] for name in source.text_columns]
    texts = [value for value in values if value is not None]
    if any(not isinstance(text, str) for text in texts):
        return Drop("not text", place, f"a value of type {type(texts[0]).__name__}")
    column = run.id or ("id" if "id" in record.values else None)
    number = place if column is None else record.values.get(column)
    if number is None or str(number).strip() == "":
        return Drop("no id", place, f"nothing in the column {column!r}")
    fields = {name: _plain(record.values[name]) for name in run.fields}
    return Found(str(number), place, "\n".join(texts), fields)


def _plain(value: object) -> object:
    """As JSON has it: dates and the like become text."""
    return value if value is None or isinstance(value, (str, int, float, bool, list, dict)) else str(value)


# ------------------------------------------------------------------------------------------------------ cutting


def cut_passages(text: str, tokenizer: Tokenizer, settings: PassageSettings, length: int) -> list[tuple[int, str]]:
    """(first character, passage) in order: as many whole sentences as fit; a longer sentence is cut by itself."""
    starts = sentence_starts(text, settings.sentences).tolist()
    ends = [*starts[1:], len(text)]
    pieces: list[tuple[int, int, int]] = []  # begin, end, tokens
    spans = list(zip(starts, ends, strict=True))
    counts = tokenizer.encode_batch([text[a:b] for a, b in spans])
    for (begin, end), ids in zip(spans, counts, strict=True):
        if len(ids) <= length:
            pieces.append((begin, end, len(ids)))
        else:
            pieces += _long(text, begin, end, tokenizer, length)
    return [(begin, text[begin:end].rstrip()) for begin, end in _packed(pieces, length, settings.overlap)]


def _long(text: str, begin: int, end: int, tokenizer: Tokenizer, length: int) -> Iterator[tuple[int, int, int]]:
    """A sentence beyond the length in pieces of at most so many tokens, cut before a word where one begins in time."""
    sentence = text[begin:end]
    spans = tokenizer.encode_with_offsets(sentence)[1]
    first = 0
    while first < len(spans):
        last = min(first + length, len(spans))
        if last < len(spans):
            words = (i for i in range(last, first + length // 2, -1) if sentence[int(spans[i][0]) - 1].isspace())
            last = next(words, last)
        low = 0 if first == 0 else int(spans[first][0])
        high = end - begin if last == len(spans) else int(spans[last][0])
        if high > low:
            yield begin + low, begin + high, last - first
        first = last


def _packed(pieces: Sequence[tuple[int, int, int]], length: int, overlap: int) -> Iterator[tuple[int, int]]:
    first, size = 0, 0
    for number, (_, _, tokens) in enumerate(pieces):
        if number > first and size + tokens > length:
            yield pieces[first][0], pieces[number - 1][1]
            back = max(first + 1, number - overlap)
            while back < number and sum(piece[2] for piece in pieces[back:number]) + tokens > length:
                back += 1
            first, size = back, sum(piece[2] for piece in pieces[back:number])
        size += tokens
    if pieces:
        yield pieces[first][0], pieces[-1][1]


# -------------------------------------------------------------------------------------------------------- parts


@dataclass(frozen=True)
class PassageTask:
    """What a worker is handed: some portions, and everything that decides how they are cut."""

    folder: Path
    portions: tuple[Portion, ...]
    run: IndexRun
    layout: Layout
    tokenizer: Path
    length: int


class PassageWriter:
    """Writes the files of a part."""

    def __init__(self, folder: Path) -> None:
        self._files = {name: (folder / name).open("wb", buffering=1 << 20) for name in FILES}
        self.num_documents = self.num_passages = 0
        self._sizes = {"texts": 0, "documents": 0}
        for name in ("text_offsets", "document_offsets"):
            self._files[name].write(np.zeros(1, OFFSETS).tobytes())

    def add(self, facts: Json, passages: Sequence[tuple[int, str]]) -> None:
        self._put("documents", "document_offsets", orjson.dumps(facts))
        for start, text in passages:
            self._put("texts", "text_offsets", text.encode())
            self._files["passages"].write(np.array([self.num_documents, start], OFFSETS).tobytes())
        self.num_documents += 1
        self.num_passages += len(passages)

    def _put(self, name: str, offsets: str, data: bytes) -> None:
        self._sizes[name] += len(data)
        self._files[name].write(data)
        self._files[offsets].write(np.array([self._sizes[name]], OFFSETS).tobytes())

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def make_part(task: PassageTask) -> Json:
    """Cut the documents of a task unless an earlier attempt did; the facts say what came of it."""
    if (facts := artifacts.finished(task.folder / FACTS)) is not None:
        return facts
    aside = task.folder.with_name(f".{task.folder.name}.partial")
    with artifacts.output_errors(task.folder):
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        facts = _fill(task, aside)
        artifacts.finish(aside / FACTS, facts)
        shutil.rmtree(task.folder, ignore_errors=True)
        aside.rename(task.folder)
    return facts


def _fill(task: PassageTask, aside: Path) -> Json:
    tokenizer = load_tokenizer(task.tokenizer)
    writer, dropped, samples, size = PassageWriter(aside), Counter[str](), [], 0
    for portion in task.portions:
        try:
            for record in read_found(portion, task.run, task.layout):
                signals.check()
                if not isinstance(record, Drop) and not record.text.strip():
                    record = Drop(EMPTY, record.place)
                if isinstance(record, Drop):
                    dropped[record.reason] += 1
                    samples.append(f"{record.place}: {record.reason}{f': {record.detail}' if record.detail else ''}")
                    continue
                passages = cut_passages(record.text, tokenizer, task.run.passages, task.length)
                facts = {"id": record.id, "place": record.place, "fields": record.fields}
                writer.add(facts, passages)
                size += len(record.text)
        except Damaged as error:
            raise DataError(f"{portion.place}: {error.detail}") from None
    writer.close()
    return {
        "documents": writer.num_documents, "passages": writer.num_passages, "characters": size,
        "dropped": dict(sorted(dropped.items())), "samples": samples[:_MAX_SAMPLES],
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------- reading them back


def _mapped(path: Path, dtype: npt.DTypeLike) -> np.ndarray:
    size = path.stat().st_size
    if size % np.dtype(dtype).itemsize:
        raise DataError(f"{path}: {size:,} bytes is no whole number of entries: damaged")
    return np.memmap(path, dtype, "r") if size else np.zeros(0, dtype)


@dataclass(frozen=True)
class Passages:
    """The passages of a folder, mapped."""

    folder: Path

    @cached_property
    def _texts(self) -> tuple[np.ndarray, np.ndarray]:
        return self._pair("texts", "text_offsets")

    @cached_property
    def _documents(self) -> tuple[np.ndarray, np.ndarray]:
        return self._pair("documents", "document_offsets")

    def _pair(self, name: str, offsets_name: str) -> tuple[np.ndarray, np.ndarray]:
        data, offsets = _mapped(self.folder / name, np.uint8), _mapped(self.folder / offsets_name, OFFSETS)
        if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(data):
            raise DataError(f"{self.folder / offsets_name}: does not match {name} beside it: damaged")
        return data, offsets

    @cached_property
    def table(self) -> np.ndarray:
        """passages x (document, first character)."""
        flat = _mapped(self.folder / "passages", OFFSETS)
        if len(flat) != 2 * len(self):
            raise DataError(f"{self.folder / 'passages'}: {len(flat)} entries for {len(self)} passages: damaged")
        return flat.reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._texts[1]) - 1

    @property
    def num_documents(self) -> int:
        return len(self._documents[1]) - 1

    def text(self, row: int) -> str:
        data, offsets = self._texts
        return data[offsets[row] : offsets[row + 1]].tobytes().decode()

    def document(self, number: int) -> Json:
        data, offsets = self._documents
        return orjson.loads(data[offsets[number] : offsets[number + 1]].tobytes())

    def document_of(self, row: int) -> int:
        return int(self.table[row, 0])

    def first_of(self, number: int) -> int:
        """The first passage of a document; passages stand in the order of their documents."""
        table = self.table
        return bisect.bisect_left(range(len(table)), number, key=lambda row: table[row, 0])

    def ids(self) -> Iterator[str]:
        return (self.document(number)["id"] for number in range(self.num_documents))


def joined(parts: Sequence[Passages], folder: Path) -> Passages:
    """Parts one after the other, in one folder."""
    for name in FILES:
        with (folder / name).open("wb") as file:
            before = 0
            for number, part in enumerate(parts):
                if name in ("texts", "documents"):
                    with (part.folder / name).open("rb") as source:
                        shutil.copyfileobj(source, file)
                elif name == "passages":
                    table = np.array(part.table)
                    table[:, 0] += before
                    file.write(table.tobytes())
                    before += part.num_documents
                else:
                    offsets = np.array(_mapped(part.folder / name, OFFSETS))
                    file.write((offsets[1 if number else 0 :] + before).tobytes())
                    before += int(offsets[-1])
    return Passages(folder)
