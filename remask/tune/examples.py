"""Labelled examples as files: what self-training and curves hand to a fine-tuning run of its own.

In: a run and its opened problem. Out: JSON lines with the run's own column names, and the run that reads them. A file
that is there already is left as it is: it was made of the same examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson

from remask import artifacts
from remask.config import fingerprint
from remask.schema import Json, Values
from remask.tasks.kind import Problem, TaskSource
from remask.tasks.kinds import open_problem
from remask.tasks.settings import TableSettings
from remask.tasks.specs import TASKS
from remask.tasks.tables import Example
from remask.tune.settings import FinetuneRun, TaskFiles


def opened(files: TaskFiles) -> Problem:
    """The examples of a task."""
    paths = (files.path(files.train_file), files.path(files.dev_file), files.path(files.data))
    source = TaskSource(files.task, files.table, *paths, files.prompt)
    return open_problem(source, max_train=files.max_train, max_dev=files.max_dev)


def data_fingerprint(problem: Problem, more: Sequence[Example] = ()) -> str:
    """Of everything that is read, so that a folder is not gone on with on other data."""
    return fingerprint([[repr(item) for item in items] for items in (problem.train, problem.dev, more)])


def write_examples(path: Path, examples: Sequence[Example], table: TableSettings) -> None:
    """One row an example."""
    columns = [table.text, *([table.text2] if table.text2 else [])]
    lines = []
    for example in examples:
        row: Json = dict(zip(columns, example.texts, strict=True))
        lines.append(orjson.dumps(row if example.label is None else {**row, table.label: example.label}))
    artifacts.write_bytes(path, b"\n".join(lines) + b"\n")


def plain_table(run: FinetuneRun, problem: Problem) -> TableSettings:
    """The columns of files that are written here: the run's own; a named task's files have theirs, of as many texts."""
    table = run.table
    second = table.text2 or ("text2" if len(problem.train[0].texts) > 1 else None)
    return TableSettings(text=table.text, text2=second, label=table.label)


def reading(
    run: FinetuneRun, train: Path, dev: Path, table: TableSettings, changes: Values | None = None
) -> FinetuneRun:
    """The run on these files; every other setting stays as it is, but for the changes."""
    task = run.task if run.task not in TASKS else "pair" if table.text2 else "classify"
    files = {"task": task, "train_file": str(train), "dev_file": str(dev), "data": None, "table": table}
    return run.model_copy(update={**files, "max_train": None, "max_dev": None, **(changes or {})})
