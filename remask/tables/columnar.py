"""Parquet, Arrow and the folders of datasets' `save_to_disk` -> records, some rows at a time.

Arrow IPC is read as a stream (what `datasets` writes) and as a file (Feather). These formats are read from their end,
so a compressed file is unpacked beside the system's other temporaries first. Not here: the hub (text/tables).
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from remask.streams import UTF8, Damaged, open_stream
from remask.tables.form import NO_COLUMN, NOT_UTF8, Fault, Record, lacking_columns

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

ROWS = 256
_STATE, _INFO, _PARTS = "state.json", "dataset_info.json", "dataset_dict.json"


def parquet_records(
    path: str, compression: str, max_expansion: float, start: int, end: int | None, columns: Sequence[str] | None,
    texts: Sequence[str],
) -> Iterator[Record | Fault]:  # fmt: skip
    """The rows of row groups [start, end); of `columns` only those. `texts`: columns that must hold text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with ExitStack() as stack:
        path = _unpacked(path, compression, max_expansion, stack)
        try:
            file = stack.enter_context(pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False))
            metadata = file.metadata
            _check_schema(file.schema_arrow, columns, texts)
            end = metadata.num_row_groups if end is None else end
            _check_growth(metadata, start, end, max_expansion)
            row = sum(metadata.row_group(index).num_rows for index in range(start))
            groups, wanted = list(range(start, end)), list(columns) if columns is not None else None
            batches = file.iter_batches(ROWS, row_groups=groups, columns=wanted, use_threads=False)
            yield from batch_records(batches, row, columns)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Damaged("damaged file", f"{type(error).__name__}: {error}"[:200]) from error


def arrow_records(
    path: str, compression: str, max_expansion: float, columns: Sequence[str] | None, texts: Sequence[str]
) -> Iterator[Record | Fault]:
    import pyarrow as pa

    with ExitStack() as stack:
        path = _unpacked(path, compression, max_expansion, stack)
        try:
            mapped = stack.enter_context(pa.memory_map(path))
            yield from batch_records(_arrow_batches(mapped, columns, texts), 0, columns)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Damaged("damaged file", f"{type(error).__name__}: {error}"[:200]) from error


def _arrow_batches(
    mapped: pa.MemoryMappedFile, columns: Sequence[str] | None, texts: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    try:
        opened: Any = pa.ipc.open_stream(mapped)
        batches: Iterator[pa.RecordBatch] = iter(opened)
    except pa.ArrowInvalid:
        mapped.seek(0)
        opened = pa.ipc.open_file(mapped)
        batches = (opened.get_batch(index) for index in range(opened.num_record_batches))
    _check_schema(opened.schema, columns, texts)
    for batch in batches:
        batch = batch.select(list(columns)) if columns is not None else batch
        for start in range(0, batch.num_rows, ROWS):
            yield batch.slice(start, ROWS)


def _check_schema(schema: pa.Schema, columns: Sequence[str] | None, texts: Sequence[str]) -> None:
    import pyarrow as pa

    if lacking := lacking_columns(columns or (), schema.names):
        raise Damaged(NO_COLUMN, lacking)
    types = pa.types
    readable = (
        types.is_string, types.is_large_string, types.is_string_view, types.is_null, types.is_binary,
        types.is_large_binary,
    )  # fmt: skip
    for name in texts:
        kind = schema.field(name).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if not any(is_kind(kind) for is_kind in readable):
            raise Damaged(NO_COLUMN, f"column {name} holds {kind}, not text")


def _check_growth(metadata: pq.FileMetaData, start: int, end: int, max_expansion: float) -> None:
    for index in range(start, end):
        group = metadata.row_group(index)
        packed = sum(group.column(column).total_compressed_size for column in range(group.num_columns))
        if group.total_byte_size > max(1 << 24, max_expansion * max(packed, 1)):
            raise Damaged("compression bomb", f"{group.total_byte_size:,} bytes from {packed:,}")


def batch_records(
    batches: Iterator[pa.RecordBatch], row: int, columns: Sequence[str] | None
) -> Iterator[Record | Fault]:
    """Rows of record batches, numbered from `row` + 1; the columns in the order in which they are asked for."""
    for batch in batches:
        batch = batch.select(list(columns)) if columns is not None else batch
        names = batch.schema.names
        try:
            # Arrow does not check that its strings are UTF-8: Python does, here.
            values = [column.to_pylist() for column in batch.columns]
        except UnicodeDecodeError:
            for index in range(batch.num_rows):
                row += 1
                yield _odd_record(batch.slice(index, 1), row)
            continue
        for cells in zip(*values, strict=True):
            row += 1
            yield Record(dict(zip(names, cells, strict=True)), row)


def _odd_record(batch: pa.RecordBatch, row: int) -> Record | Fault:
    """A row of a batch in which some text is none."""
    import pyarrow as pa

    values, bad = {}, ""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            values[name] = column.to_pylist()[0]
        except UnicodeDecodeError as error:
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            if pa.types.is_nested(column.type):
                return Fault(NOT_UTF8, f"column {name}: not UTF-8", row)
            values[name] = column.cast(pa.large_binary()).to_pylist()[0].decode(UTF8, "surrogateescape")
            bad = bad or f"byte {error.start} of column {name}"
    return Record(values, row, 0, bad)


def parquet_groups(path: str, portion_bytes: int) -> list[int]:
    """Row groups at which a large file can be split; none where it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

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


def _unpacked(path: str, compression: str, max_expansion: float, stack: ExitStack) -> str:
    if not compression:
        return path
    file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="remask-"))  # noqa: SIM115
    with open_stream(path, compression, max_expansion) as stream:
        while block := stream.block():
            file.write(block)
    file.flush()
    return file.name


# --------------------------------------------------------------------------------------- datasets' save_to_disk


def is_saved_dataset(folder: str) -> bool:
    """Whether datasets' `save_to_disk` wrote this folder: its JSON files are no data."""
    return all(os.path.isfile(os.path.join(folder, name)) for name in (_STATE, _INFO))


def dataset_files(folder: str) -> list[str]:
    """The Arrow files of a saved data set, in their order; one with several parts says which to choose from."""
    parts = os.path.join(folder, _PARTS)
    if os.path.isfile(parts):
        with open(parts, "rb") as file:
            names = json.load(file).get("splits", [])
        shown = " or ".join(os.path.join(folder, name) for name in names)
        raise Damaged("several parts", f"is a data set with the parts {', '.join(names)}: give {shown}")
    if not is_saved_dataset(folder):
        raise Damaged("no table", "is a folder, and no data set that save_to_disk wrote (state.json, *.arrow)")
    with open(os.path.join(folder, _STATE), "rb") as file:
        names = [entry["filename"] for entry in json.load(file).get("_data_files", [])]
    if outside := [name for name in names if os.path.basename(name) != name]:
        raise Damaged("damaged file", f"names a file outside its folder: {outside[0]}")
    return [os.path.join(folder, name) for name in names]
