"""Records with named columns -> documents: every table that remask reads, and data sets of Hugging Face.

A text is made of the columns that the source names. A file without them is no document of the corpus: it is counted
as one drop that says which columns there are, and a source with nothing but such files is refused (build.py). Not here:
the layouts of tables (remask.tables).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from remask.errors import MissingInputError, needs_extra
from remask.streams import UTF8
from remask.tables import Fault, Record, lacking_columns, read_records
from remask.tables.columnar import ROWS, batch_records
from remask.tables.form import DELIMITERS, NO_COLUMN
from remask.text.records import Damaged, Document, Drop, Portion, Reading

# A JSON record holds its text escaped, and other fields beside it.
_RECORD_FACTOR = 4
# A file whose first records all lack the column will not have it later.
_PATIENCE = 100


def _wanted(reading: Reading) -> list[str]:
    dates = [reading.source.date_column] if reading.source.date_column else []
    return [*reading.source.text_columns, *dates]


def read_table(portion: Portion, reading: Reading) -> Iterator[Document | Drop]:
    """The documents of a table, or of a part of one."""

    def on_delimiter(delimiter: str) -> None:
        reading.changed[f"file with cells divided by {DELIMITERS[delimiter]} (guessed)"] += 1

    source = reading.source
    records = read_records(
        portion, source, limit=_RECORD_FACTOR * reading.max_bytes, strict=False, max_expansion=source.max_expansion,
        columns=_wanted(reading), texts=source.text_columns, on_delimiter=on_delimiter,
    )  # fmt: skip
    yield from _documents(records, portion, reading)


def _documents(records: Iterator[Record | Fault], portion: Portion, reading: Reading) -> Iterator[Document | Drop]:
    has_rows, missed = False, 0
    by_line = portion.kind in ("csv", "tsv")
    for record in records:
        # Bytes for JSON lines: a file may have been split, and then nobody knows its lines.
        where = f"line {record.number}" if by_line else f"row {record.number}"
        place = portion.at(f"byte {portion.start + record.offset}" if portion.kind == "jsonl" else where)
        if isinstance(record, Record):
            has_rows = True
            yield from _row(list(record.values.values()), place, reading)
            continue
        yield Drop(record.reason, place, record.detail[:100])
        missed += record.reason == NO_COLUMN
        if not has_rows and missed >= _PATIENCE:
            raise Damaged(NO_COLUMN, f"{record.detail}; the rest of the file is not read")


def _row(values: Sequence[object], place: str, reading: Reading) -> Iterator[Document | Drop]:
    """The values of the wanted columns (bytes or str, the date last) as documents."""
    if reading.source.date_column:
        if reason := reading.outside_dates(values[-1]):
            yield Drop(reason, place, str(values[-1])[:40])
            return
        values = values[:-1]
    texts = []
    for value in values:
        if isinstance(value, str) and not value.isascii():
            # What was not UTF-8 is replaced or dropped by the same rule as everywhere.
            value = value.encode(UTF8, "surrogateescape")
        if isinstance(value, bytes):
            decoded = reading.decode(value, place)
            if isinstance(decoded, Drop):
                yield decoded
                return
            value = decoded.text
        if value is not None and not isinstance(value, str):
            yield Drop("not text", place, f"a value of type {type(value).__name__}")
            return
        texts.append(value or "")
    yield from reading.fitted("\n".join(texts), place)


# --------------------------------------------------------------------------------------------- Hugging Face


def read_hf(portion: Portion, reading: Reading) -> Iterator[Document | Drop]:
    """A data set by its name on the hub (or in the local cache), or a folder that `save_to_disk` wrote."""
    with needs_extra("hf", "hf: needs the hf extra"):
        import datasets
    name, source = portion.place, reading.source
    try:
        if os.path.isdir(name):
            data: Any = datasets.load_from_disk(name)
            if isinstance(data, dict):
                if source.hf_split not in data:
                    there = ", ".join(data)
                    raise MissingInputError(f"hf:{name}: has no split {source.hf_split}; there are: {there}")
                data = data[source.hf_split]
        else:
            data = datasets.load_dataset(name, source.subset, split=source.hf_split)
    except (OSError, ValueError, ConnectionError) as error:
        raise MissingInputError(f"hf:{name}: cannot be loaded: {str(error).splitlines()[0][:200]}") from error
    wanted = _wanted(reading)
    if lacking := lacking_columns(wanted, data.column_names):
        raise Damaged(NO_COLUMN, lacking)
    tables = data.select_columns(wanted).with_format("arrow").iter(ROWS)  # pyrefly: ignore[missing-attribute]
    batches = (batch for table in tables for batch in table.to_batches())
    yield from _documents(batch_records(batches, 0, wanted), portion, reading)
