"""Records with named columns -> documents: JSON lines, CSV and TSV, Parquet, Arrow, and data sets of Hugging Face.

A text is made of the columns that the source names. A file without them is no document of the corpus: it is counted
as one drop that says which columns there are, and a source with nothing but such files is refused (build.py).
"""

from __future__ import annotations

import codecs
import csv
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from remask.errors import MissingInputError, UnavailableError
from remask.text.files import open_stream
from remask.text.plain import LINE_END, portion_blocks, split_records
from remask.text.records import Damaged, Document, Drop, Portion, Reading

# A JSON record holds its text escaped, and other fields beside it.
_RECORD_FACTOR = 4
_ROWS = 256
# A file whose first records all lack the column will not have it later.
_PATIENCE = 100


def _lacking(wanted: Sequence[str], there: Sequence[str]) -> str:
    missing = [name for name in wanted if name not in there]
    if not missing:
        return ""
    return f"has no column {', '.join(missing)}; there are: {', '.join(map(str, there[:40])) or 'none'}"


def _wanted(reading: Reading) -> list[str]:
    dates = [reading.source.date_column] if reading.source.date_column else []
    return [*reading.source.text_columns, *dates]


def _row(values: Sequence[Any], place: str, reading: Reading) -> Iterator[Document | Drop]:
    """The values of the wanted columns (bytes or str, the date last) as documents."""
    if reading.source.date_column:
        if reason := reading.outside_dates(values[-1]):
            yield Drop(reason, place, str(values[-1])[:40])
            return
        values = values[:-1]
    texts = []
    for value in values:
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


# ----------------------------------------------------------------------------------------------- JSON lines


def read_jsonl(portion: Portion, reading: Reading) -> Iterator[Document | Drop]:
    wanted = _wanted(reading)
    limit = _RECORD_FACTOR * reading.max_bytes
    found, missed = False, 0
    blocks = portion_blocks(portion, reading)
    for offset, line in split_records(blocks, LINE_END, limit, True, reading.changed):
        place = portion.at(f"byte {portion.start + offset}")
        if line is None:
            yield Drop("too long", place, f"a record over {limit:,} bytes")
            continue
        record = _parse(line.removeprefix(codecs.BOM_UTF8), place, reading)
        if isinstance(record, Drop):
            yield record
        elif lacking := _lacking(wanted, list(record)):
            missed += 1
            yield Drop("no such column", place, lacking)
            if not found and missed >= _PATIENCE:
                raise Damaged("no such column", f"{lacking}; the rest of the file is not read")
        else:
            found = True
            yield from _row([record[name] for name in wanted], place, reading)


def _parse(line: bytes, place: str, reading: Reading) -> dict[str, Any] | Drop:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        decoded = reading.decode(line, place)
        if isinstance(decoded, Drop):
            return decoded
        try:
            record = orjson.loads(decoded.text)
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            return Drop("not JSON", place, str(error)[:100])
    return record if isinstance(record, dict) else Drop("not JSON", place, "a line must be an object")


# --------------------------------------------------------------------------------------------- CSV and TSV


def read_csv(portion: Portion, reading: Reading) -> Iterator[Document | Drop]:
    """CSV with quotes; TSV without, as it is written by most. The first row names the columns."""
    wanted = _wanted(reading)
    limit = _RECORD_FACTOR * reading.max_bytes
    csv.field_size_limit(limit)
    too_long: list[int] = []
    lines = _lines(portion, reading, limit, too_long)
    if portion.kind == "tsv":
        rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        rows = csv.reader(lines)
    header: list[str] | None = None
    columns: list[int] = []
    number = 0
    while True:
        number += 1
        place = portion.at(f"row {number}")
        try:
            row = next(rows)
        except StopIteration:
            row = None
        except csv.Error as error:
            yield Drop("malformed row", place, str(error)[:100])
            continue
        for offset in too_long:
            yield Drop("too long", portion.at(f"byte {offset}"), f"a line over {limit:,} bytes")
        too_long.clear()
        if row is None:
            return
        if not row:
            number -= 1
        elif header is None:
            header = [name.strip().removeprefix("\ufeff") for name in row]
            if lacking := _lacking(wanted, header):
                raise Damaged("no such column", lacking)
            columns = [header.index(name) for name in wanted]
            number -= 1
        elif len(row) != len(header):
            yield Drop("malformed row", place, f"{len(row)} fields under {len(header)} names")
        else:
            # Bytes again: what was not UTF-8 is replaced or dropped by the same rule as everywhere.
            values = [row[column].encode("utf-8", "surrogateescape") for column in columns]
            if reading.source.date_column:
                values[-1] = row[columns[-1]]  # pyrefly: ignore[unsupported-operation]
            yield from _row(values, place, reading)


def _lines(portion: Portion, reading: Reading, limit: int, too_long: list[int]) -> Iterator[str]:
    """Text lines for the csv module; empty ones matter inside quotes, so this splits by itself."""
    rest, offset, skipping = b"", 0, False
    for block in portion_blocks(portion, reading):
        lines = (rest + block).replace(b"\r\n", b"\n").split(b"\n")
        rest = lines.pop()
        for line in lines:
            offset += len(line) + 1
            if skipping or len(line) > limit:
                too_long += [] if skipping else [offset]
                skipping = False
                continue
            yield line.decode("utf-8", "surrogateescape") + "\n"
        if len(rest) > limit:
            too_long += [] if skipping else [offset]
            offset += len(rest)
            rest, skipping = b"", True
    if rest and not skipping:
        yield rest.decode("utf-8", "surrogateescape")


# ------------------------------------------------------------------------------------------ Parquet and Arrow


def read_parquet(portion: Portion, reading: Reading) -> Iterator[Document | Drop]:
    """Row groups [start, end) of a file, a few rows at a time."""
    with ExitStack() as stack:
        path = _unpacked(portion, reading, stack)
        try:
            file = stack.enter_context(pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False))
            metadata = file.metadata
            if lacking := _lacking(_wanted(reading), file.schema_arrow.names):
                raise Damaged("no such column", lacking)
            _check_text(file.schema_arrow, reading)
            end = metadata.num_row_groups if portion.end is None else portion.end
            _check_growth(metadata, portion, end, reading)
            row = sum(metadata.row_group(index).num_rows for index in range(portion.start))
            groups = list(range(portion.start, end))
            batches = file.iter_batches(_ROWS, row_groups=groups, columns=_wanted(reading), use_threads=False)
            yield from _rows(batches, row, portion, reading)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Damaged("damaged file", f"{type(error).__name__}: {error}"[:200]) from error


def _check_growth(metadata: Any, portion: Portion, end: int, reading: Reading) -> None:
    for index in range(portion.start, end):
        group = metadata.row_group(index)
        packed = sum(group.column(column).total_compressed_size for column in range(group.num_columns))
        if group.total_byte_size > max(1 << 24, reading.source.max_expansion * max(packed, 1)):
            raise Damaged("compression bomb", f"{group.total_byte_size:,} bytes from {packed:,}")


def parquet_groups(path: str, portion_bytes: int) -> list[int]:
    """Row groups at which a large file can be split; none where it cannot be read."""
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError):
        return [0]
    starts, size = [0], 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        packed = sum(group.column(column).total_compressed_size for column in range(group.num_columns))
        if size and size + packed > portion_bytes:
            starts.append(index)
            size = 0
        size += packed
    return starts


def read_arrow(portion: Portion, reading: Reading) -> Iterator[Document | Drop]:
    """Arrow IPC, as a stream (what `datasets` writes) or as a file (Feather)."""
    with ExitStack() as stack:
        path = _unpacked(portion, reading, stack)
        try:
            mapped = stack.enter_context(pa.memory_map(path))
            yield from _rows(_arrow_batches(mapped, reading), 0, portion, reading)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Damaged("damaged file", f"{type(error).__name__}: {error}"[:200]) from error


def _arrow_batches(mapped: Any, reading: Reading) -> Iterator[Any]:
    try:
        opened: Any = pa.ipc.open_stream(mapped)
        batches: Iterator[Any] = iter(opened)
    except pa.ArrowInvalid:
        mapped.seek(0)
        opened = pa.ipc.open_file(mapped)
        batches = (opened.get_batch(index) for index in range(opened.num_record_batches))
    if lacking := _lacking(_wanted(reading), opened.schema.names):
        raise Damaged("no such column", lacking)
    _check_text(opened.schema, reading)
    for batch in batches:
        batch = batch.select(_wanted(reading))
        for start in range(0, batch.num_rows, _ROWS):
            yield batch.slice(start, _ROWS)


def _check_text(schema: Any, reading: Reading) -> None:
    for name in reading.source.text_columns:
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        test = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
        if not any(is_kind(kind) for is_kind in (*test, pa.types.is_binary, pa.types.is_large_binary)):
            raise Damaged("no such column", f"column {name} holds {kind}, not text")


def _rows(batches: Iterator[Any], row: int, portion: Portion, reading: Reading) -> Iterator[Document | Drop]:
    num_texts = len(reading.source.text_columns)
    for batch in batches:
        columns: list[list[Any]] = []
        for index, column in enumerate(batch.columns):
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            # As bytes: Arrow does not check that its strings are UTF-8.
            columns.append((column.cast(pa.large_binary()) if index < num_texts else column).to_pylist())
        for values in zip(*columns, strict=True):
            yield from _row(values, portion.at(f"row {row}"), reading)
            row += 1


def _unpacked(portion: Portion, reading: Reading, stack: ExitStack) -> str:
    """These formats are read from their end, so a compressed file is unpacked beside the system's other temporaries."""
    if not portion.compression:
        return portion.path
    file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="remask-"))  # noqa: SIM115
    with open_stream(portion.path, portion.compression, reading.source.max_expansion) as stream:
        while block := stream.block():
            file.write(block)
    file.flush()
    return file.name


# --------------------------------------------------------------------------------------------- Hugging Face


def read_hf(portion: Portion, reading: Reading) -> Iterator[Document | Drop]:
    """A data set by its name on the hub (or in the local cache), or a folder that `save_to_disk` wrote."""
    try:
        import datasets
    except ImportError:
        raise UnavailableError("hf: needs the hf extra: pip install 'remask[hf]'") from None
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
    if lacking := _lacking(_wanted(reading), data.column_names):
        raise Damaged("no such column", lacking)
    wanted = _wanted(reading)
    row = 0
    for batch in data.select_columns(wanted).with_format("arrow").iter(_ROWS):  # pyrefly: ignore[missing-attribute]
        for piece in batch.select(wanted).to_batches():
            yield from _rows(iter([piece]), row, portion, reading)
            row += piece.num_rows
