"""Which reader reads which kind, and how a source's files divide into portions that can be read alone.

Portions depend on the files only, never on the number of workers, so neither do places, counts or bytes.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator

import pyarrow.parquet as pq

from remask.tables.columnar import parquet_groups
from remask.text import plain, tables, web
from remask.text.files import InputFile
from remask.text.plain import BLANK_LINE, LINE_END, WIKITEXT_TITLE
from remask.text.pydocs import read_module
from remask.text.records import LACKING_COLUMN, UNKNOWN_KIND, Damaged, Document, Drop, Portion, Reading
from remask.text.settings import Layout
from remask.text.wikipedia import read_wikipedia

Reader = Callable[[Portion, Reading], Iterator[Document | Drop]]
PORTION_BYTES = 16 << 20
_NO_HEADER = "; if the first row is text, text.sources.header=false with text_columns=['1'] reads it"
# How far past a nominal cut a document's end is looked for; beyond it the file is not cut there.
_SEARCH_BYTES = 4 << 20
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


def read_unknown(portion: Portion, reading: Reading) -> Iterator[Document | Drop]:
    ending = os.path.splitext(portion.path)[1] or "none"
    yield Drop(UNKNOWN_KIND, portion.place, f"ending {ending}; text.sources.kind=text reads it", is_file=True)


READERS: dict[str, Reader] = {
    "text": plain.read_text,
    "jsonl": tables.read_table,
    "json": tables.read_table,
    "csv": tables.read_table,
    "tsv": tables.read_table,
    "parquet": tables.read_table,
    "arrow": tables.read_table,
    "hf": tables.read_hf,
    "html": web.read_html,
    "warc": web.read_warc,
    "wikipedia": read_wikipedia,
    "pydocs": read_module,
    "unknown": read_unknown,
}


TABLES = ("jsonl", "json", "csv", "tsv", "parquet", "arrow", "hf")  # kinds with named columns


def read_portion(portion: Portion, reading: Reading) -> Iterator[Document | Drop]:
    """Every record of a portion once. Damage ends it with one more record; so does a file that holds none. Of a table
    that is given up for want of its columns, the rows that were not looked at are counted."""
    num_records = 0
    try:
        for record in READERS[portion.kind](portion, reading):
            num_records += 1
            yield record
    except Damaged as error:
        num_records += 1  # the drop stands for the first row that was not looked at
        unread = num_rows(portion, reading) - num_records if error.reason == LACKING_COLUMN else 0
        advice = _NO_HEADER if unread and portion.kind in ("csv", "tsv") and reading.source.header else ""
        yield Drop(error.reason, portion.place, error.detail + advice, is_file=True, unread=max(0, unread))
    if num_records == 0 and portion.start == 0 and portion.end is None:
        yield Drop("empty file", portion.place, is_file=True)


def num_rows(portion: Portion, reading: Reading) -> int:
    """Rows of a table, as far as they can be counted without reading them: lines of text, entries of Parquet's own
    index. A row of CSV that goes over several lines counts as several, and what is damaged ends the count."""
    if portion.kind == "parquet" and not portion.compression:
        metadata = pq.read_metadata(portion.path)
        end = metadata.num_row_groups if portion.end is None else portion.end
        return sum(metadata.row_group(index).num_rows for index in range(portion.start, end))
    if portion.kind not in ("jsonl", "csv", "tsv"):
        return 1
    count, last = 0, b"\n"
    with contextlib.suppress(Damaged):
        for block in plain.portion_blocks(portion, reading):
            count += block.count(b"\n")
            last = block[-1:] or last
    header = 1 if portion.kind != "jsonl" else 0
    return count + (last != b"\n") - header


def portions(files: list[InputFile], source: int, layout: Layout) -> Iterator[Portion]:
    for file in files:
        cuts = [0]
        if not file.compression and file.size > 2 * PORTION_BYTES:
            if file.kind == "jsonl" or (file.kind == "text" and layout == "line"):
                cuts = _cuts(file, LINE_END)
            elif file.kind == "text" and layout in ("blank", "wikitext"):
                cuts = _cuts(file, BLANK_LINE if layout == "blank" else WIKITEXT_TITLE)
            elif file.kind == "parquet":
                cuts = parquet_groups(file.path, PORTION_BYTES)
        ends: list[int | None] = [*cuts[1:], None]
        for start, end in zip(cuts, ends, strict=True):
            size = file.size // len(cuts)
            yield Portion(source, file.path, file.place, file.kind, file.compression, start, end, size)


def _cuts(file: InputFile, separator: re.Pattern[bytes]) -> list[int]:
    """Byte offsets right after a separator, about PORTION_BYTES apart."""
    cuts = [0]
    with open(file.path, "rb") as stream:
        if stream.read(4).startswith(_WIDE_MARKS):
            return cuts
        for nominal in range(PORTION_BYTES, file.size - PORTION_BYTES, PORTION_BYTES):
            if nominal <= cuts[-1]:
                continue
            stream.seek(nominal)
            match = separator.search(stream.read(_SEARCH_BYTES))
            if match and nominal + match.end() < file.size:
                cuts.append(nominal + match.end())
    return cuts


def task_groups(all_portions: list[Portion]) -> list[tuple[Portion, ...]]:
    """Portions in order, small ones together, so that a task is worth a worker's while."""
    groups: list[tuple[Portion, ...]] = []
    held: list[Portion] = []
    size = 0
    for portion in all_portions:
        weight = max(portion.size, 4096) * (6 if portion.compression else 1)
        if held and (size + weight > PORTION_BYTES or portion.source != held[0].source or len(held) >= 2000):
            groups.append(tuple(held))
            held, size = [], 0
        held.append(portion)
        size += weight
    if held:
        groups.append(tuple(held))
    return groups
