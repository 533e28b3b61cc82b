"""Files with answers: the rows of a table and what a model says about each, as CSV, TSV, JSONL or Parquet.

In: rows as they come, more than fit in memory, and the columns that occur in them. Out: one file, plain or compressed
as its name says, with the same bytes for the same rows. Lists and objects are JSON in a cell of CSV and TSV; scores by
class are a column each there (`scores NAME`). Not here: publishing it (commands/predict).
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

import orjson

from remask.errors import DataError, UsageError
from remask.schema import Json, Values
from remask.tables import table_kind

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
COMPRESSED = (".gz", ".zst")
_GROUP = 8192  # rows of a Parquet row group
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")

Row = Values
Rows = Callable[[], Iterable[Row]]  # may be read more than once


def check_name(out: Path) -> None:
    """Before any work: can a file of that name be written?"""
    plain = out.with_suffix("") if out.suffix.lower() in COMPRESSED else out
    if plain.suffix.lower() not in FORMATS or (plain.suffix.lower() == ".parquet" and plain != out):
        allowed = ", ".join((*FORMATS, *(f"{name}{packed}" for packed in COMPRESSED for name in FORMATS[:3])))
        raise UsageError(f"{out}: --out must end in one of {allowed}")


def write_rows(
    target: Path, named: Path, rows: Rows, columns: Sequence[str], *, scores: str | None, source: Path,
    escape_formulas: bool = False,
) -> None:  # fmt: skip
    """Write all rows to `target` in the format that the name of `named` says. `scores`: the column with an object of
    scores by class. `source`: where the rows came from; the types of a Parquet file are kept in another.
    `escape_formulas`: what a spreadsheet would compute is made text, in CSV and TSV."""
    kind = table_kind(named)
    if kind == "parquet":
        _write_parquet(target, rows, columns, source)
        return
    with _opened(target, named.suffix.lower()) as file:
        if kind == "jsonl":
            for row in rows():
                file.write(_json(row) + b"\n")
            return
        for line in _delimited(rows, columns, scores, kind, _escaped if escape_formulas else str):
            file.write(line.encode())


@contextlib.contextmanager
def _opened(target: Path, suffix: str) -> Iterator[IO[bytes]]:
    with target.open("wb") as file:
        if suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:  # no name, no time: same bytes
                yield packed  # type: ignore[misc]
        elif suffix == ".zst":
            import zstandard

            with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as packed:
                yield packed  # type: ignore[misc]
        else:
            yield file


def _delimited(
    rows: Rows, columns: Sequence[str], scores: str | None, kind: str, guard: Callable[[str], str]
) -> Iterator[str]:
    """Lines of a CSV or TSV file. TSV here has no quotes, so a cell's tabs and line ends become spaces."""
    names = list(columns)
    if scores is not None:
        labels = next((list(row[scores]) for row in rows()), [])
        at = names.index(scores)
        names[at : at + 1] = [f"{scores} {label}" for label in labels]
    line: list[str] = []

    class Sink:
        def write(self, text: str) -> None:
            line.append(text)

    writer = csv.writer(Sink(), lineterminator="\n")

    def joined(values: Sequence[object]) -> str:
        cells = [guard(cell) for cell in map(shown_cell, values)]
        if kind == "tsv":
            return "\t".join(" ".join(c.replace("\t", " ").splitlines()) for c in cells) + "\n"
        line.clear()
        writer.writerow(cells)
        return line[0]

    yield joined(names)
    for row in rows():
        flat = dict(row)
        if scores is not None:
            flat |= {f"{scores} {label}": value for label, value in flat.pop(scores).items()}
        yield joined([flat.get(name) for name in names])


def _escaped(cell: str) -> str:
    """A cell that a spreadsheet shows as it is: one that begins like a formula, and is no number, gets a quote before
    it, which the spreadsheet does not show."""
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")) or _NUMBER.fullmatch(cell):
        return cell
    return f"'{cell}"


def shown_cell(value: object) -> str:
    """A value as a cell of CSV and TSV has it."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) and "|" not in item for item in value):
        return "|".join(value)  # several labels, as tables with labels have them
    return _json(value).decode().strip('"')


def _json(value: object) -> bytes:
    try:
        return orjson.dumps(value, default=str)
    except TypeError:  # an integer beyond 64 bit
        return json.dumps(value, default=str, ensure_ascii=False, separators=(",", ":")).encode()


# ------------------------------------------------------------------------------------------------------ Parquet


def _write_parquet(target: Path, rows: Rows, columns: Sequence[str], source: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    try:
        schema = _schema(rows, columns, source)
        with pyarrow.parquet.ParquetWriter(target, schema, compression="zstd") as writer:
            for group in _groups(rows()):
                writer.write_table(pyarrow.Table.from_pylist(group, schema=schema))
    except (pyarrow.ArrowException, TypeError, OverflowError) as error:
        reason = str(error).splitlines()[0][:160]
        wrong = f"a column has values of several types, or integers beyond 64 bit ({reason})"
        raise DataError(f"{wrong}: write .jsonl instead of .parquet") from error


def _groups(rows: Iterable[Row]) -> Iterator[list[Json]]:
    several = iter(rows)
    while group := [dict(row) for row in islice(several, _GROUP)]:
        yield group


def _schema(rows: Rows, columns: Sequence[str], source: Path) -> pa.Schema:
    """One type a column, over all rows; those of a Parquet source are kept."""
    import pyarrow
    import pyarrow.parquet

    known: Json = {}
    if source.suffix.lower() == ".parquet":
        known = {field.name: field for field in pyarrow.parquet.read_schema(source)}
    schema = pyarrow.schema([])
    fresh = [name for name in columns if name not in known]
    for group in _groups(rows()):
        seen = pyarrow.Table.from_pylist([{name: row.get(name) for name in fresh} for row in group]).schema
        schema = pyarrow.unify_schemas([schema, seen], promote_options="permissive")
    fields = {field.name: field for field in schema}
    return pyarrow.schema([known.get(name) or fields[name] for name in columns])
