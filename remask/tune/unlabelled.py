"""Self-training: texts without labels, labelled by a first model where it is sure, teach a second one.

In: a run with `unlabelled.file`. Out: OUT/first (a fine-tuning on the labelled rows alone), OUT/taught.jsonl (the texts
that it was sure of, with their labels, as many of each class), OUT/second (the same start, trained on both), whose
model and results are OUT's. Killed, the same command goes on. Not here: what a fine-tuning does.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from remask import artifacts
from remask.config import dump
from remask.errors import ConfigError, DataError, MissingInputError
from remask.progress import Progress, counted
from remask.schema import Json
from remask.tasks.kind import Problem
from remask.tasks.tables import Example, read_table
from remask.tasks.texts import Classify
from remask.tune.examples import data_fingerprint, opened, plain_table, reading, write_examples
from remask.tune.seeds import same_run
from remask.tune.settings import FinetuneRun, UnlabelledSettings
from remask.tune.sweep import Tune, publish
from remask.workers import is_first_rank


def tune_unlabelled(
    tune: Tune, run: FinetuneRun, out: Path, *, progress: Progress, allow_change: tuple[str, ...] = ()
) -> Json:
    """The first model, what it teaches, the second model."""
    texts, problem = _texts(run), opened(run)
    plain = run.model_copy(update={"unlabelled": UnlabelledSettings()})
    with ExitStack() as stack:
        if is_first_rank():
            stack.enter_context(artifacts.lock(out))
            identity = {"run": dump(run) | {"seeds": None, "seed": None}, "data": data_fingerprint(problem, texts)}
            same_run(identity, run, out, allow_change)
        if (out / "results.json").is_file():
            progress.say(f"{out}: finished already")
            return json.loads((out / "results.json").read_bytes())
        progress.say("first model:")
        first = tune(plain, out / "first", progress=progress, allow_change=allow_change)
        table, data = plain_table(run, problem), (out / "taught.jsonl", out / "dev.jsonl")
        if is_first_rank() and not all(path.is_file() for path in data):
            taught = _taught(texts, problem, out / "first" / "model", run.unlabelled)
            if not taught:
                raise DataError(
                    f"{run.unlabelled.file}: the first model is sure of none of {counted(len(texts), 'text')} "
                    f"(unlabelled.min_score = {run.unlabelled.min_score:g})"
                )
            progress.say(f"  learned from besides: {counted(len(taught), 'text')} of {len(texts):,}")
            write_examples(data[1], problem.dev, table)
            write_examples(data[0], [*problem.train, *taught], table)
        progress.say("second model:")
        second = reading(plain, *data, table)
        values = tune(second, out / "second", progress=progress, allow_change=allow_change)
        taught_count = values["data"]["train"] - first["data"]["train"]
        values = {**values, "unlabelled": {"texts": len(texts), "taught": taught_count, "first": first["metrics"]}}
        return publish(values, out, out / "second") if is_first_rank() else values


def _texts(run: FinetuneRun) -> list[Example]:
    from remask.tasks.kinds import kind_of

    kind = kind_of(run.task)
    if not isinstance(kind, Classify):
        raise ConfigError(f"unlabelled.file: is for classes, not for the task {run.task}")
    path = Path(run.unlabelled.file or "")
    if not path.is_file():
        raise MissingInputError(f"{path}: no such file")
    return read_table(path, kind.form, run.table, labelled=False).examples


def _taught(texts: list[Example], problem: Problem, folder: Path, settings: UnlabelledSettings) -> list[Example]:
    """The texts that the model is sure of, as many of each class as of the rarest; what is labelled stays out."""
    from remask.answer.model import load

    known = {problem.kind.key(item) for item in (*problem.train, *problem.dev)}
    texts = [text for text in texts if problem.kind.key(text) not in known]
    if not texts:
        return []
    model = load(folder, packed=False)
    task = model.reader.task
    rows = model.reader.encode(texts)
    answers = model.reader.read(model.outputs(rows), rows, texts)
    by_label: dict[str, list[tuple[float, int]]] = {label: [] for label in task.labels}
    for number, answer in enumerate(answers):
        if answer.score >= settings.min_score:
            by_label[answer.label].append((-answer.score, number))
    most = min((len(found) for found in by_label.values() if found), default=0)
    most = min(most, settings.max_texts // len(by_label) or 1)
    chosen = sorted((number, label) for label, found in by_label.items() for _, number in sorted(found)[:most])
    return [Example(texts[number].texts, label, texts[number].place) for number, label in chosen]
