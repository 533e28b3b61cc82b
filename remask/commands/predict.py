"""`remask predict`: what a fine-tuned model says about every row of a file.

In: MODEL with a task's head, and a file like the one it was trained on (the label column may be missing). Out: a file
with one answer a row, in the same order: JSONL, CSV or TSV by its name, written whole or not at all.
Not here: scores against known labels (evaluate).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remask import artifacts
from remask.commands import Common, common_options
from remask.config import Config, setting
from remask.errors import DataError, UsageError
from remask.progress import Progress
from remask.tasks import problems
from remask.tasks.settings import Kind, RowSettings, TableSettings

if TYPE_CHECKING:
    from remask.model.store import Loaded

WRITERS = (".jsonl", ".csv", ".tsv")


class PredictRun(Config):
    """One file to answer."""

    model: str = setting("", "a fine-tuned model")
    file: str = setting("", "the rows to answer")
    text: str | None = setting(None, "column with the text; null: the one the model was trained on")
    text2: str | None = setting(None, "column with the second text; null: the one the model was trained on")
    bad_rows: str | None = setting(None, "error or drop; null: as in training")


@dataclass(frozen=True)
class TaskModel:
    """A model with a task's head, and what is known about the task."""

    loaded: Loaded
    task: str | None
    kind: Kind
    labels: tuple[str, ...]
    table: TableSettings
    rows: RowSettings


def open_task_model(path: Path) -> TaskModel:
    """A model that can answer: one of `finetune` (its task.json says how), or a foreign one by its head."""
    from remask.model.store import open_model

    loaded = open_model(path)
    facts = loaded.folder / "task.json"
    if facts.is_file():
        try:
            known = json.loads(facts.read_bytes())
            table = TableSettings.model_validate_json(json.dumps(known["table"]))
            rows = RowSettings.model_validate_json(json.dumps(known["rows"]))
            return TaskModel(loaded, known["task"], known["kind"], tuple(known["labels"]), table, rows)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{facts}: damaged: {str(error).splitlines()[0]}") from error
    heads = loaded.heads
    kind: Kind
    if heads.num_tags is not None:
        kind, count = "tags", heads.num_tags
    elif heads.span:
        kind, count = "spans", 0
    elif heads.choice:
        kind, count = "choice", 0
    elif heads.num_classes is not None:
        kind = "multilabel" if heads.multilabel else "regress" if heads.num_classes == 1 else "classify"
        count = heads.num_classes
    else:
        raise DataError(f"{loaded.folder}: has no task's head; fine-tune it first (remask finetune --init {path} …)")
    named = kind in ("classify", "multilabel", "tags")
    labels = (loaded.labels or tuple(f"LABEL_{i}" for i in range(count))) if named else ()
    return TaskModel(loaded, None, kind, labels, TableSettings(), RowSettings())


def main(run: PredictRun, out: Path, *, progress: Progress) -> dict[str, Any]:
    """Answer every row of the file."""
    if out.suffix not in WRITERS:
        raise UsageError(f"{out}: --out must end in one of {', '.join(WRITERS)}")
    model = open_task_model(Path(run.model))
    given = {k: v for k, v in (("text", run.text), ("text2", run.text2), ("bad_rows", run.bad_rows)) if v is not None}
    table = TableSettings.model_validate(model.table.model_dump() | given)
    items = problems.read_unlabelled(Path(run.file), model.kind, table)
    with progress.stage("predict", len(items), "rows") as stage:
        answers = answer_items(model, items)
        stage.update(len(items))
    artifacts.write_bytes(out, _written(items, answers, out.suffix))
    return {"rows": len(items), "out": str(out), "kind": model.kind, "labels": list(model.labels)}


def answer_items(model: TaskModel, items: Sequence[Any]) -> list[dict[str, Any]]:
    """One answer an item, in order."""
    from remask.commands.finetune import predict_rows
    from remask.tasks.rows import frame_for
    from remask.tokenizer import load_tokenizer

    loaded = model.loaded
    if loaded.tokenizer_folder is None:
        raise DataError(f"{loaded.folder}: has no tokenizer, so texts cannot be read for it")
    tokenizer = load_tokenizer(loaded.tokenizer_folder)
    settings = loaded.settings
    frame = frame_for(tokenizer, model.rows, model_length=settings.max_length, num_segments=settings.num_segments)
    rows = problems.encode(items, model.kind, model.labels, tokenizer, frame, model.rows, labelled=False)
    outputs = predict_rows(loaded.network, model.kind, rows, tokenizer.pad_id)
    return problems.answer(outputs, rows, items, model.kind, model.labels)


def _written(items: Sequence[Any], answers: Sequence[Mapping[str, Any]], suffix: str) -> bytes:
    """JSONL with all there is; CSV and TSV with the place, the answer and (classes) a column of scores each."""
    places = [item.place.rpartition("/")[2] for item in items]
    if suffix == ".jsonl":
        lines = (
            json.dumps({"place": place, **answer}, ensure_ascii=False)
            for place, answer in zip(places, answers, strict=True)
        )
        return ("\n".join(lines) + "\n").encode()
    text = io.StringIO()
    writer = csv.writer(text, delimiter="," if suffix == ".csv" else "\t", lineterminator="\n")
    scores = list(answers[0].get("scores", {}))
    writer.writerow(["place", "prediction", *(f"score {name}" for name in scores)])
    for place, answer in zip(places, answers, strict=True):
        said = answer["prediction"] if "prediction" in answer else answer["tags"]
        shown = "|".join(said) if isinstance(said, list) else said
        writer.writerow([place, shown, *(answer["scores"][name] for name in scores)])
    return text.getvalue().encode()


@click.command()
@click.argument("model")
@click.argument("file")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Answers: a .jsonl, .csv or .tsv file.")
@click.option("--text", help="Column with the text, where it differs from the training file's.")
@click.option("--text2", help="Column with the second text.")
@common_options
def command(common: Common, out: Path, **options: Any) -> None:
    """Answer every row of FILE with the fine-tuned MODEL."""
    built = common.build(PredictRun, None, **options)
    if common.dry_run:
        open_task_model(Path(built.run.model))
        return
    values = main(built.run, out, progress=common.progress)
    common.result(values, f"{values['rows']:,} answers: {out}")
