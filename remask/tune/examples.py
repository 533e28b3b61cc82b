"""Labelled examples as files: what self-training and curves hand to a fine-tuning run of its own.

In: a run and its opened problem. Out: JSON lines with the run's own column names, and the run that reads them. A file
that is there already is left as it is: it was made of the same examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from remask import artifacts
from remask.tasks.kind import Problem, TaskSource
from remask.tasks.kinds import open_problem
from remask.tasks.settings import TableSettings
from remask.tasks.tables import Example
from remask.tune.settings import FinetuneRun, TaskFiles


def opened(files: TaskFiles) -> Problem:
    """The examples of a task."""
    paths = (files.path(files.train_file), files.path(files.dev_file), files.path(files.data))
    source = TaskSource(files.task, files.table, *paths, files.prompt)
    return open_problem(source, max_train=files.max_train, max_dev=files.max_dev)


def write_examples(path: Path, examples: Sequence[Example], table: TableSettings) -> None:
    """One row an example."""
    columns = [table.text, *([table.text2] if table.text2 else [])]
    lines = []
    for example in examples:
        row: dict[str, Any] = dict(zip(columns, example.texts, strict=True))
        lines.append(orjson.dumps(row if example.label is None else {**row, table.label: example.label}))
    artifacts.write_bytes(path, b"\n".join(lines) + b"\n")


def reading(run: FinetuneRun, train: Path, dev: Path, changes: Mapping[str, Any] | None = None) -> FinetuneRun:
    """The run on these files; every other setting stays as it is, but for the changes."""
    table = run.table
    plain = TableSettings(text=table.text, text2=table.text2, label=table.label)
    files = {"train_file": str(train), "dev_file": str(dev), "data": None, "table": plain}
    return run.model_copy(update={**files, "max_train": None, "max_dev": None, **(changes or {})})
