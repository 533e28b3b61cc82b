"""`remask evaluate MODEL --test FILE`: a fine-tuned model on a labelled file that it has not seen. Nothing is trained.

In: a model with a task's head, and a file like the one it was trained on; columns are those that are stored with the
model unless given. Out: what a fine-tuning prints of its dev file (metrics, classes, confusions, the worst mistakes);
in OUT results.json and report.html. Not here: the tasks of the papers (evaluate).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from remask import artifacts
from remask.errors import ConfigError
from remask.evaluation.settings import FileTable
from remask.progress import counted
from remask.reports.task_report import file_report
from remask.schema import Json, Values
from remask.tasks.kind import Problem
from remask.tune.finetune import score_lines

if TYPE_CHECKING:
    from remask.answer.reader import Reader
    from remask.evaluation.models import Scorer


def open_both(
    model: Path, task: str | None, file: Path, table: FileTable, max_dev: int | None
) -> tuple[Reader, Problem]:
    """The model and the file; every mistake in either shows here. `task`: of a model with several, which one."""
    from remask.answer.reader import open_reader

    reader = open_reader(model, task)
    stored = reader.task
    columns = [name for name in ("text", "text2", "label") if getattr(table, name) is not None]
    if columns and stored.kind.own_columns:
        raise ConfigError(f"table.{columns[0]}: files of questions have names of their own; leave --{columns[0]} out")
    # A named task's file has its own columns; with columns given it is a table like any other.
    return reader, stored.labelled(file, table.over(stored.table), named=not columns, max_dev=max_dev)


def score_file(reader: Reader, problem: Problem, file: Path, out: Path | None, scorer: Scorer) -> Json:
    """Score it, and keep what came out in OUT."""
    values = {
        "task": reader.task.name or reader.task.kind.name,
        **scorer.scores(problem, [reader]),
        "labels": list(reader.task.labels),
        "file": str(file),
        "precision": scorer.precision,
        "device": str(scorer.device),
    }
    if out is not None:
        with artifacts.output_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        artifacts.write_bytes(out / "report.html", file_report(values).encode())
        artifacts.write_json(out / "results.json", values)
    return values


def render(values: Values) -> str:
    """The result for a person."""
    lines = score_lines(values, values, f"{counted(values['data']['test'], 'example')} of {values['file']}")
    if values["texts_cut"]:
        lines.append(f"  cut to what the model reads: {counted(values['texts_cut'], 'text')}")
    if dropped := values["data"].get("dropped"):
        reasons = ", ".join(f"{reason}: {number:,}" for reason, number in dropped.items())
        lines.append(f"  rows left out: {reasons}")
    return "\n".join([*lines, f"model: {values['model']}"])
