"""`remask evaluate MODEL --test FILE`: a fine-tuned model on a labelled file that it has not seen. Nothing is trained.

In: a model with a task's head, and a file like the one it was trained on; columns are those that are stored with the
model unless given. Out: what a fine-tuning prints of its dev file (metrics, classes, confusions, the worst mistakes);
in OUT results.json and report.html. Not here: the tasks of the papers (evaluate).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from remask import artifacts
from remask.commands.evaluate_models import Scorer
from remask.commands.finetune import score_lines
from remask.commands.predict import TaskModel, model_path, open_task_model
from remask.config import Config, setting
from remask.errors import ConfigError
from remask.progress import counted
from remask.study.task_report import file_report
from remask.tasks import problems
from remask.tasks.settings import TableSettings


class FileTable(Config):
    """Where a file differs from the one that the model was trained on; null: it does not."""

    text: str | None = setting(None, "the column with the text")
    text2: str | None = setting(None, "the column with the second text of a pair")
    label: str | None = setting(None, "the column with the class, number or list of labels")
    id: str | None = setting(None, "a column whose values must all differ")
    separator: str | None = setting(None, "between the labels of a multi-label cell", min_length=1)
    quoted: bool | None = setting(None, "whether quotes delimit cells")
    bad_rows: Literal["error", "drop"] | None = setting(None, "a row with an empty text or without a label")
    skip_articles: tuple[str, ...] | None = setting(None, "SQuAD: articles that are not scored")

    def over(self, table: TableSettings) -> TableSettings:
        return TableSettings.model_validate(table.model_dump() | self.model_dump(exclude_none=True))


def open_both(
    model: Path, task: str | None, file: Path, table: FileTable, max_dev: int | None
) -> tuple[TaskModel, problems.Problem]:
    """The model and the file; every mistake in either shows here. `task`: of a model with several, which one."""
    opened = open_task_model(model_path(model, task))
    columns = [name for name in ("text", "text2", "label") if getattr(table, name) is not None]
    if columns and opened.kind in ("spans", "choice"):
        raise ConfigError(f"table.{columns[0]}: files of questions have names of their own; leave --{columns[0]} out")
    named = None if columns else opened.task  # a named task's file has its own columns, any other is a table
    over = table.over(opened.table)
    return opened, problems.open_labelled(file, named, opened.kind, opened.labels, opened.metric, over, max_dev)


def main(model: TaskModel, problem: problems.Problem, file: Path, out: Path | None, scorer: Scorer) -> dict[str, Any]:
    """Score it, and keep what was found in OUT."""
    values = {
        "task": model.task or model.kind,
        **scorer.scores(problem, [model]),
        "labels": list(model.labels),
        "file": str(file),
        "precision": scorer.precision.name,
        "device": str(scorer.device),
    }
    if out is not None:
        with artifacts.output_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        artifacts.write_bytes(out / "report.html", file_report(values).encode())
        artifacts.write_json(out / "results.json", values)
    return values


def render(values: Mapping[str, Any]) -> str:
    """The result for a person."""
    lines = score_lines(values, values, f"{counted(values['data']['test'], 'example')} of {values['file']}")
    if values["texts_cut"]:
        lines.append(f"  cut to what the model reads: {counted(values['texts_cut'], 'text')}")
    if dropped := values["data"].get("dropped"):
        reasons = ", ".join(f"{reason}: {number:,}" for reason, number in dropped.items())
        lines.append(f"  rows left out: {reasons}")
    return "\n".join([*lines, f"model: {values['model']}"])
