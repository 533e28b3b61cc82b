"""GLUE's files -> examples: the official TSV files, MRPC's original ones, and JSONL with the same columns.

In: a task's spec and a folder (of the task, or of all tasks). Out: `TaskData` with train and dev. Quotes are text in
these files. Where one file is all there is, it is cut 80/20 by the hash of the first text (so that no premise or
question is in both parts), and `note` says so. Not here: what the tasks are (specs).
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from remask.errors import DataError, MissingInputError
from remask.schema import Values
from remask.tables import RAGGED_ENDING, Cells, TableForm, read_cells, table_kind
from remask.tasks.clue import clue_rows
from remask.tasks.settings import TableSettings
from remask.tasks.tables import Example, Table, check_labels, examples_of

ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class TaskData:
    """What a task is trained and scored on. `note`: what a reader of the scores must know about the split."""

    kind: str
    labels: tuple[str, ...]
    train: Table
    dev: Table
    note: str = ""


def find_file(spec: Values, part: str, folder: Path) -> Path:
    """The first of a spec's files that is there, in the task's folder or in one below that has its name."""
    tried = [base / name for name in spec[part] for base in (folder / spec["folder"], folder)]
    for path in tried:
        if path.is_file():
            return path.resolve()
    raise MissingInputError(f"{folder}: none of {', '.join(spec[part])} is there or in {spec['folder']}/")


def read_glue(name: str, spec: Values, folder: Path) -> TaskData:
    """Train and dev of one task."""
    train, dev = find_file(spec, "train", folder), find_file(spec, "dev", folder)
    if train == dev:
        whole = read_glue_file(name, spec, train)
        first, second = cut_by_hash(whole)
        note = f"{train.name} is the only file at hand: cut 80/20 by hash, so scores do not compare with published ones"
        return TaskData(spec["kind"], spec["labels"], first, second, note)
    note = "dev is MRPC's original test file" if dev.name == "msr_paraphrase_test.txt" else ""
    return TaskData(
        spec["kind"], spec["labels"], read_glue_file(name, spec, train), read_glue_file(name, spec, dev), note
    )


def read_glue_file(name: str, spec: Values, path: Path) -> Table:
    """One labelled file of a task."""
    cells, ragged = _cells(spec, path)
    first = next(cells, None)
    if first is None:
        raise DataError(f"{path}: no rows")
    columns = next((c for c in spec["columns"] if all(str(v) in first.values for v in c.values())), None)
    if columns is None:
        wanted = " or ".join(", ".join(str(v) for v in c.values()) for c in spec["columns"])
        raise DataError(f"{path}: not a file of {name}: its columns are {', '.join(first.values)}, needed are {wanted}")
    settings = TableSettings.model_validate({key: str(value) for key, value in columns.items()})
    table = examples_of(path, itertools.chain([first], cells), spec["kind"], settings)
    if spec["kind"] == "classify":
        check_labels(table, spec["labels"], "classify", whose=f"{name} does not have")
    return Table(path, table.examples, {**table.dropped, **ragged})


def _cells(spec: Values, path: Path) -> tuple[Iterator[Cells], Counter[str]]:
    """Rows by column name (by number where the file has no header) and the count of ragged lines left out."""
    ragged: Counter[str] = Counter()
    if path.suffix != ".txt" and table_kind(path) != "tsv":
        rows = read_cells(path)
        return (rows if "row" not in spec else clue_rows(spec["row"], rows)), ragged
    numbered = isinstance(spec["columns"][0]["text"], int)
    form = TableForm(delimiter="\t", header=not numbered, quoted=False)

    def on_bad(number: int, reason: str) -> None:
        if not reason.endswith(RAGGED_ENDING):
            raise DataError(f"{path}:{number}: {reason}")
        ragged["ragged line"] += 1

    return read_cells(path, form, kind="tsv", on_bad=on_bad if spec.get("drop_ragged") else None), ragged


def cut_by_hash(table: Table, share: float = 0.2) -> tuple[Table, Table]:
    """(the larger part, the smaller one), by the first text alone."""

    def held_out(example: Example) -> bool:
        digest = hashlib.sha256(example.texts[0].encode()).digest()
        return int.from_bytes(digest[:4], "big") < share * 2**32

    parts = [[e for e in table.examples if held_out(e) == side] for side in (False, True)]
    if not all(parts):
        raise DataError(f"{table.path}: {len(table.examples)} rows are too few to cut in two; give a dev file")
    return replace(table, examples=parts[0]), replace(table, examples=parts[1], dropped={})


def cut_by_group(items: Sequence[ItemT], group: Callable[[ItemT], str], path: Path) -> tuple[list[ItemT], list[ItemT]]:
    """(to train on, to score): a fifth of the groups by hash, at least one. What shares a passage stays together."""
    by_hash = sorted({group(item) for item in items}, key=lambda name: hashlib.sha256(name.encode()).digest())
    if len(by_hash) < 2:
        raise DataError(f"{path}: one passage or sentence cannot be cut in two; give a dev file")
    scored = set(by_hash[: max(1, round(len(by_hash) / 5))])
    return [item for item in items if group(item) not in scored], [item for item in items if group(item) in scored]


def cut_note(train: Path, how: str) -> str:
    return f"no dev file: a fifth of {train.name} was set aside, {how}"
