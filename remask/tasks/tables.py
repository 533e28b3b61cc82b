"""The user's own table -> examples, with a place for every row.

In: a file (any that remask.tables reads) and which columns hold the text (or two) and the label. Out: a list of
`Example`, and how many rows were left out and why. An empty text, a missing label or a number that is none is a
DataError with file and line (or, by `bad_rows`, a counted drop). Not here: files with a layout of their own (glue,
conll, squad, race).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from remask.errors import DataError
from remask.tables import Cells, read_cells, require_columns
from remask.tasks.settings import TableSettings

UNSEEN = "that are not in the training data"
SET_ASIDE = "that only the rows set aside have, for there is no dev file: give one"
_MISSING = ("", "nan", "NaN", "NAN", "null", "None")


@dataclass(frozen=True, slots=True)
class Example:
    """One thing to answer. `label` is a class name, a number, a tuple of names, or None where it is not known."""

    texts: tuple[str, ...]
    label: Any
    place: str


@dataclass(frozen=True)
class Table:
    """The examples of one file, in its order, the rows left out by reason, and what was guessed about the file."""

    path: Path
    examples: list[Example]
    dropped: Mapping[str, int]
    notes: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------ rows -> examples


def read_table(path: Path, kind: str, settings: TableSettings, *, labelled: bool = True) -> Table:
    """Examples of a classifier, a regression or a multi-label task. `labelled=False`: labels are not looked at."""
    notes: list[str] = []
    rows = read_cells(path, settings, on_note=notes.append)
    return replace(examples_of(path, rows, kind, settings, labelled=labelled), notes=tuple(notes))


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
            check_id(cells, settings.id, places)
        try:
            texts = tuple(text_of(cells, column) for column in columns)
            label = _label(cells, settings, kind) if labelled else None
        except BadRow as bad:
            count_or_refuse(bad, cells, settings, dropped)
            continue
        examples.append(Example(texts, label, cells.place))
    if not examples:
        raise DataError(f"{path}: no usable rows" + (f" ({sum(dropped.values())} left out)" if dropped else ""))
    return Table(path, examples, dict(dropped))


def check_id(cells: Cells, column: str, places: dict[str, str]) -> None:
    """No id stands twice; `places` has those so far."""
    name = str(cells.values.get(column))
    if places.setdefault(name, cells.place) != cells.place:
        raise DataError(f"{cells.place}: the id {name!r} is also at {places[name]}")


def count_or_refuse(bad: BadRow, cells: Cells, settings: TableSettings, dropped: Counter[str]) -> None:
    """What `bad_rows` says to do about a row."""
    if settings.bad_rows == "error":
        hint = "mend it, or leave such rows out with --set table.bad_rows=drop"
        raise DataError(f"{cells.place}: {bad}; {hint}") from bad
    dropped[bad.reason] += 1


class BadRow(Exception):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def text_of(cells: Cells, column: str) -> str:
    value = cells.values.get(column)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise BadRow("empty text", f"column {column!r} has no text")
    if not isinstance(value, str):
        raise BadRow("text of another type", f"column {column!r} holds {_shown(value)}, not text")
    return value


def _label(cells: Cells, settings: TableSettings, kind: str) -> str | float | tuple[str, ...]:
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


def class_name(value: object) -> str:
    """One spelling for a class, whatever the file's types: true, 1, 1.0 and "1" in CSV, JSON and Parquet."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _label_names(value: object, settings: TableSettings) -> tuple[str, ...]:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ()
    parts = value if isinstance(value, list) else str(value).split(settings.separator)
    if any(isinstance(part, (list, dict)) for part in parts):
        raise BadRow("label of another type", f"column {settings.label!r} holds {_shown(value)}, not a list of labels")
    return tuple(sorted({class_name(part) for part in parts if class_name(part)}))


def _shown(value: object) -> str:
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
