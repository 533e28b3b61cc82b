"""The user's own table -> examples: CSV, TSV, JSONL or Parquet, plain or compressed, with a place for every row.

In: a file and which columns hold the text (or two) and the label. Out: a list of `Example`, and how many rows were
left out and why. A ragged row, an empty text, a missing label or a number that is none is a DataError with file and
line (or, by `bad_rows`, a counted drop). Reading is streamed. Not here: files with a layout of their own (glue,
conll, squad, race).
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import orjson

from remask.errors import ConfigError, DataError, MissingInputError
from remask.tasks.settings import TableSettings

MAX_LINE_BYTES = 32_000_000
_OPENERS: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_FORMATS = {".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
UNSEEN = "that are not in the training data"
_LONG_NUMBER = re.compile(r"\d{19}")
_MISSING = ("", "nan", "NaN", "NAN", "null", "None")


@dataclass(frozen=True, slots=True)
class Example:
    """One thing to answer. `label` is a class name, a number, a tuple of names, or None where it is not known."""

    texts: tuple[str, ...]
    label: Any
    place: str


@dataclass(frozen=True)
class Table:
    """The examples of one file, in its order, and the rows left out by reason."""

    path: Path
    examples: list[Example]
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Cells:
    """One row as the file has it."""

    values: Mapping[str, Any]
    place: str
    number: int = 0  # its first line, or row of a Parquet file, from 1


# Called with a line's number and what is wrong with it, where one bad line is not to end the reading.
OnBad = Callable[[int, str], None]


# --------------------------------------------------------------------------------------- files -> rows of cells


def read_cells(
    path: Path, *, quoted: bool | None = None, header: Sequence[str] | None = None, on_bad: OnBad | None = None
) -> Iterator[Cells]:
    """Rows by column name. `header` names the columns of a file that has no header line. `on_bad`: lines that cannot
    be read are handed there and left out; without it the first one is a DataError."""
    if not path.is_file():
        raise MissingInputError(f"{path}: no such file")
    kind = table_format(path)
    if kind == "parquet":
        yield from _parquet(path)
    elif kind == "jsonl":
        yield from _json_lines(path, on_bad)
    else:
        quotes = kind == "csv" if quoted is None else quoted
        yield from _delimited(path, "," if kind == "csv" else "\t", quotes, header, on_bad)


def table_format(path: Path) -> str:
    """By suffix, under a compressing one if there is one."""
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in (*_OPENERS, ".zst"):
        suffixes.pop()
    kind = _FORMATS.get(suffixes[-1] if suffixes else "")
    if kind is None:
        raise DataError(f"{path}: a table is one of {', '.join(_FORMATS)} (also with .gz, .xz, .bz2, .zst)")
    return kind


def _fault(path: Path, number: int, reason: str, on_bad: OnBad | None, error: Exception | None = None) -> None:
    """A line that cannot be read: an error, or a word to whoever counts them."""
    if on_bad is None:
        raise DataError(f"{path}:{number}: {reason}") from error
    on_bad(number, reason)


def read_lines(path: Path, on_bad: OnBad | None = None) -> Iterator[tuple[int, str]]:
    """(line number, line without its end) of a UTF-8 file, plain or compressed; a byte order mark is dropped."""
    if not path.is_file():
        raise MissingInputError(f"{path}: no such file")
    try:
        with _open(path) as file:
            number = 0
            while raw := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(raw) > MAX_LINE_BYTES:
                    _fault(path, number, f"a line of over {MAX_LINE_BYTES:,} bytes", on_bad)
                    while raw and not raw.endswith(b"\n"):
                        raw = file.readline(MAX_LINE_BYTES)
                    continue
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    _fault(path, number, f"not UTF-8 (byte {error.start} of the line)", on_bad, error)
                    continue
                yield number, line.rstrip("\r\n")
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def _open(path: Path) -> IO[bytes]:
    suffix = path.suffix.lower()
    if suffix == ".zst":
        import pyarrow

        # Arrow's reader, because zstandard's own ends a truncated file without a word.
        return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"))
    return _OPENERS[suffix](path) if suffix in _OPENERS else path.open("rb")


def _delimited(
    path: Path, delimiter: str, quoted: bool, header: Sequence[str] | None, on_bad: OnBad | None
) -> Iterator[Cells]:
    names = list(header) if header else None

    def fault(number: int, reason: str) -> None:
        _fault(path, number, reason, on_bad if names is not None else None)  # without its header a table is nothing

    plain = ((n, line.split(delimiter)) for n, line in read_lines(path, fault))
    rows = _quoted_rows(path, delimiter, fault) if quoted else plain
    for number, cells in rows:
        if names is None:
            names = [name.strip() for name in cells]
            if twice := [name for name, n in Counter(names).items() if n > 1]:
                raise DataError(f"{path}:{number}: column {twice[0]!r} is there twice")
            continue
        if cells in ([], [""]):
            continue  # an empty line is no row
        if len(cells) != len(names):
            fault(number, f"{len(cells)} cells, but the table has {len(names)} columns")
            continue
        yield Cells(dict(zip(names, cells, strict=True)), f"{path}:{number}", number)


def _quoted_rows(path: Path, delimiter: str, fault: OnBad) -> Iterator[tuple[int, list[str]]]:
    last = 0

    def lines() -> Iterator[str]:
        nonlocal last
        for number, line in read_lines(path, fault):
            last = number
            yield line + "\n"

    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    first = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fault(first, f"{error} (in the row that starts there)")
        else:
            yield first, cells
        first = last + 1


def _json_lines(path: Path, on_bad: OnBad | None) -> Iterator[Cells]:
    for number, line in read_lines(path, on_bad):
        if not line.strip():
            continue
        try:
            values = orjson.loads(line)
            if _LONG_NUMBER.search(line):  # which orjson reads as a float beyond 64 bit
                values = json.loads(line)
        except (orjson.JSONDecodeError, RecursionError) as error:
            _fault(path, number, f"not JSON: {error}", on_bad, error)
            continue
        if not isinstance(values, dict):
            _fault(path, number, f"a line must be a JSON object, not {type(values).__name__}", on_bad)
            continue
        yield Cells(values, f"{path}:{number}", number)


def _parquet(path: Path) -> Iterator[Cells]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=4096):
                for values in batch.to_pylist():
                    number += 1
                    yield Cells(values, f"{path}: row {number}", number)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file: {str(error)[:120]}") from error


# ------------------------------------------------------------------------------------------ rows -> examples


def read_table(path: Path, kind: str, settings: TableSettings, *, labelled: bool = True) -> Table:
    """Examples of a classifier, a regression or a multi-label task. `labelled=False`: labels are not looked at."""
    return examples_of(path, read_cells(path, quoted=settings.quoted), kind, settings, labelled=labelled)


def examples_of(
    path: Path, rows: Iterable[Cells], kind: str, settings: TableSettings, *, labelled: bool = True
) -> Table:
    """Rows of cells -> examples; `path` is for messages."""
    assert kind in ("classify", "regress", "multilabel")
    columns = [settings.text, *([settings.text2] if settings.text2 else [])]
    examples: list[Example] = []
    dropped: Counter[str] = Counter()
    places: dict[str, str] = {}
    for cells in rows:
        if not examples and not dropped:
            needed = [settings.label, *([settings.id] if settings.id else [])] if labelled else []
            require_columns(cells, [*columns, *needed])
        if labelled and settings.id:
            name = str(cells.values.get(settings.id))
            if places.setdefault(name, cells.place) != cells.place:
                raise DataError(f"{cells.place}: the id {name!r} is also at {places[name]}")
        try:
            texts = tuple(text_of(cells, column) for column in columns)
            label = _label(cells, settings, kind) if labelled else None
        except BadRow as bad:
            if settings.bad_rows == "error":
                hint = "mend it, or leave such rows out with --set table.bad_rows=drop"
                raise DataError(f"{cells.place}: {bad}; {hint}") from bad
            dropped[bad.reason] += 1
            continue
        examples.append(Example(texts, label, cells.place))
    if not examples:
        raise DataError(f"{path}: no usable rows" + (f" ({sum(dropped.values())} left out)" if dropped else ""))
    return Table(path, examples, dict(dropped))


class BadRow(Exception):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def require_columns(cells: Cells, columns: Iterable[str]) -> None:
    import difflib

    for column in columns:
        if column not in cells.values:
            known = [str(name) for name in cells.values]
            near = difflib.get_close_matches(column, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{cells.place}: no column {column!r}; there are {', '.join(known[:20])}{hint}")


def text_of(cells: Cells, column: str) -> str:
    value = cells.values.get(column)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise BadRow("empty text", f"column {column!r} has no text")
    if not isinstance(value, str):
        raise BadRow("text of another type", f"column {column!r} holds {_shown(value)}, not text")
    return value


def _label(cells: Cells, settings: TableSettings, kind: str) -> Any:
    value = cells.values.get(settings.label)
    if kind == "multilabel":
        return _label_names(value, settings)
    if value is None or (isinstance(value, float) and math.isnan(value)) or str(value).strip() in _MISSING:
        raise BadRow("no label", f"column {settings.label!r} has no label")
    if kind == "classify":
        if isinstance(value, (list, dict)):
            raise BadRow("label of another type", f"column {settings.label!r} holds {_shown(value)}, not one class")
        return class_name(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise BadRow("label is no number", f"column {settings.label!r} holds {_shown(value)}, not a finite number")
    return number


def class_name(value: Any) -> str:
    """One spelling for a class, whatever the file's types: true, 1, 1.0 and "1" in CSV, JSON and Parquet."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _label_names(value: Any, settings: TableSettings) -> tuple[str, ...]:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ()
    parts = value if isinstance(value, list) else str(value).split(settings.separator)
    if any(isinstance(part, (list, dict)) for part in parts):
        raise BadRow("label of another type", f"column {settings.label!r} holds {_shown(value)}, not a list of labels")
    return tuple(sorted({class_name(part) for part in parts if class_name(part)}))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ----------------------------------------------------------------------------------------------------- labels


def label_names(table: Table, kind: str) -> tuple[str, ...]:
    """The classes of a training table in a stable order: as numbers where all are numbers, else as text."""
    names = {name for e in table.examples for name in (e.label if kind == "multilabel" else (e.label,))}
    try:
        ordered = sorted(names, key=lambda name: (float(name), name))
    except ValueError:
        ordered = sorted(names)
    if len(ordered) < (1 if kind == "multilabel" else 2):
        raise DataError(
            f"{table.path}: only one class, {ordered[0]!r}" if ordered else f"{table.path}: no labels at all"
        )
    if len(ordered) > len(table.examples) // 2 and len(ordered) > 50:
        raise DataError(
            f"{table.path}: {len(ordered):,} classes in {len(table.examples):,} rows; is that the label column?"
        )
    return tuple(ordered)


def check_labels(table: Table, names: Sequence[str], kind: str, whose: str = UNSEEN) -> None:
    """A label that the training data never showed cannot be answered: an error that lists them, with a place each."""
    known = set(names)
    unseen: dict[str, str] = {}
    for example in table.examples:
        for name in example.label if kind == "multilabel" else (example.label,):
            if name not in known:
                unseen.setdefault(name, example.place)
    if unseen:
        shown = ", ".join(f"{name!r} ({place})" for name, place in list(unseen.items())[:10])
        more = f" and {len(unseen) - 10} more" if len(unseen) > 10 else ""
        raise DataError(f"{table.path}: labels {whose}: {shown}{more}")
