"""`remask evaluate`'s work: one model on many tasks, in one table.

In: MODEL, names of tasks and the folder with their files. Out: a metric for each. A model that was fine-tuned on a
task is only scored on its dev file; for any other task it is fine-tuned first, with the task's recipe, in a folder of
OUT (or of the user's cache) named by a fingerprint: the same command trains nothing twice, and goes on after a stop.
BLiMP, claims and perplexity need no training, only a masked-LM head. A model of the user's own task is scored on a file
(file). Not here: how a task is read, trained or scored; the printed table (table).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from remask import artifacts
from remask.allocator import keep_freed_memory
from remask.config import fingerprint
from remask.errors import ConfigError, DataError, MissingInputError, UsageError
from remask.evaluation import file, models, zero_shot
from remask.evaluation.settings import GROUPS, ZERO_SHOT, EvaluateRun
from remask.evaluation.table import glue_mean
from remask.progress import Progress
from remask.schema import Json
from remask.tasks.kinds import StoredTask, task_files
from remask.tasks.specs import TASKS

MARK = ".evaluate"  # by which a folder is known to be an evaluation's

if TYPE_CHECKING:
    import torch

    from remask.answer.reader import Reader
    from remask.model.store import Loaded
    from remask.precision import Format
    from remask.tasks.kind import Problem


def evaluate(run: EvaluateRun, out: Path | None = None, *, progress: Progress) -> Json:
    """Each task in turn, or the file given as test. A group's task without files is skipped, and the output says so."""
    if out is not None and any((out / name).is_file() for name in ("run.json", artifacts.MANIFEST)):
        raise ConfigError(f"{out}: holds a run or a model, whose files would be lost; choose another --out")
    if out is not None:
        artifacts.claim(out, MARK)
    keep_freed_memory()
    if run.test:
        reader, problem = open_test(run)
        _begin(out)
        scorer = models.Scorer(*_format(run, progress), run.max_dev)
        return file.score_file(reader, problem, Path(run.test), out, scorer)
    evaluation = ModelEvaluation(run, out or _user_cache(), progress)
    plan, skipped = evaluation.plan(_expand(run.tasks))
    if not plan:
        raise DataError(f"{run.data}: has the files of none of these tasks: {', '.join(run.tasks)}")
    _begin(out)
    results = {task: evaluation.result(task) for task in plan}
    values = {
        "metrics": {f"{task}.{name}": v for task, result in results.items() for name, v in result["metrics"].items()},
        "tasks": results,
        "skipped": skipped,
        "model": run.model,
        "init_weights": run.init_weights,
        "precision": evaluation.judge.precision,
        "device": str(evaluation.judge.device),
    }
    mean = glue_mean(results)
    if mean:
        values["glue"] = mean
        values["metrics"]["glue.mean"] = mean["mean"]
    if evaluation.submitted:
        values["submission"] = evaluation.submitted
    if out is not None:
        artifacts.write_json(out / "results.json", values)
    return values


def _begin(out: Path | None) -> None:
    """The folder of the results, as soon as there will be some: a mistake in the model or the files leaves none."""
    if out is not None:
        with artifacts.output_errors(out):
            out.mkdir(parents=True, exist_ok=True)
            (out / MARK).touch()


def check(run: EvaluateRun, out: Path | None, progress: Progress) -> None:
    """Everything but training and scoring: every mistake in the model and the files shows."""
    if run.test:
        open_test(run)
    else:
        ModelEvaluation(run, out or _user_cache(), progress).plan(_expand(run.tasks))


def open_test(run: EvaluateRun) -> tuple[Reader, Problem]:
    assert run.test
    return file.open_both(Path(run.model), run.task, Path(run.test), run.table, run.max_dev)


def _format(run: EvaluateRun, progress: Progress) -> tuple[torch.device, Format]:
    """Where models are asked, and in which number format."""
    from remask.precision import choose_device, choose_precision

    device = choose_device(run.device)
    name, reason = choose_precision(run.precision, device)
    progress.say(f"scored on {device} in {name} ({reason})")
    return device, name


def _user_cache() -> Path:
    """Where fine-tuned models are kept without --out."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "remask" / "evaluate"


def _expand(tasks: Sequence[str]) -> list[tuple[str, bool]]:
    """(task, whether its files must be there)."""
    known = [*GROUPS, *TASKS, *ZERO_SHOT]
    if not tasks:
        raise UsageError(f"--tasks is needed: {', '.join(known)}")
    required: dict[str, bool] = {}
    for task in tasks:
        if task in GROUPS:
            required |= {name: required.get(name, False) for name in GROUPS[task]}
        elif task in TASKS or task in ZERO_SHOT:
            required[task] = True
        else:
            raise ConfigError(f"tasks: {task!r} is not one of {', '.join(known)}")
    return list(required.items())


class ModelEvaluation:
    """One model, opened once, on many tasks."""

    def __init__(self, run: EvaluateRun, cache: Path, progress: Progress) -> None:
        self.run, self.cache, self.progress = run, cache, progress
        self.submitted: dict[str, int] = {}  # answers written for the leaderboard, by file name
        self._minutes: float | None = None  # of one fine-tuning

    @cached_property
    def loaded(self) -> Loaded:
        from remask.model.store import open_model

        return open_model(Path(self.run.model))

    @cached_property
    def own(self) -> Reader | None:
        """The model as one that was fine-tuned on a named task, if it was (a foreign one does not say on which)."""
        from remask.answer.reader import open_reader

        return open_reader(self.loaded) if StoredTask.read(self.loaded.folder) is not None else None

    @cached_property
    def judge(self) -> zero_shot.Judge:
        from remask.answer.reader import open_reader

        return zero_shot.Judge(open_reader(self.loaded), *_format(self.run, self.progress))

    @cached_property
    def scorer(self) -> models.Scorer:
        return models.Scorer(self.judge.device, self.judge.precision, self.run.max_dev)

    @cached_property
    def texts(self) -> dict[str, Path]:
        return zero_shot.perplexity_sources(Path(self.run.data), self.run.texts)

    # -------------------------------------------------------------------------------------------------- the plan

    def plan(self, tasks: Sequence[tuple[str, bool]]) -> tuple[list[str], dict[str, str]]:
        """(tasks to do, why others are left out): nothing is trained before all files were found."""
        if not Path(self.run.data).exists():  # once, not as the reason of every task
            raise MissingInputError(f"{self.run.data}: no such folder")
        planned: list[str] = []
        skipped: dict[str, str] = {}
        for task, required in tasks:
            try:
                if task == "perplexity":
                    zero_shot.require_masked_lm(self.loaded, task)
                    planned += self.texts
                    continue
                self._files(task)
            except MissingInputError as error:
                if required:
                    raise
                skipped[task] = str(error)
                self.progress.say(f"  {task}: skipped: {error}")
                continue
            planned.append(task)
        if self.run.minutes is not None:
            self._minutes = self.run.minutes / self._count_runs(planned)
        return planned, skipped

    def _files(self, task: str) -> list[Path]:
        data = Path(self.run.data)
        if task in ZERO_SHOT:
            zero_shot.require_masked_lm(self.loaded, task)
            if task == "claims":
                return [zero_shot.claims_file(data)]
            from remask.tasks.blimp import blimp_paths

            return blimp_paths(zero_shot.blimp_folder(data))
        return task_files(task, self._folder(task))

    def _folder(self, task: str) -> Path:
        """GLUE's tasks may lie together in a folder `glue`, CLUE's in `clue` or `fewclue`."""
        base = Path(self.run.data)
        if not base.is_dir():
            raise MissingInputError(f"{base}: is no folder")
        names = {"glue": ("glue",), "clue": ("clue", "fewclue")}.get(task.partition(":")[0], ())
        return next((base / name for name in names if (base / name).is_dir()), base)

    def _trained(self, task: str) -> str | None:
        """The task whose fine-tuning gives the model for this one; None: the given model has its head already."""
        source = TASKS[task].get("model_of", task)
        has_head = self.run.init_weights and self.own is not None and self.own.task.name == source
        return None if has_head else source

    def _start(self, task: str) -> str | None:
        """The task whose model a fine-tuning starts from, if not from the given one."""
        return TASKS[task].get("starts_from") if self.run.from_mnli else None

    def _count_runs(self, tasks: Sequence[str]) -> int:
        """How many fine-tunings the minutes are shared by."""
        needed: set[str] = set()
        for task in tasks:
            if task in TASKS and (source := self._trained(task)) is not None:
                needed |= {source, *([start] if (start := self._start(source)) else [])}
        return max(1, sum(self._tuner().num_runs(task) for task in needed))

    def _tuner(self) -> models.Tuner:
        run = self.run
        options = {
            "seed": run.seed, "seeds": run.seeds, "max_train": run.max_train, "max_dev": run.max_dev,
            "init_weights": run.init_weights, "train.epochs": run.epochs, "train.minutes": self._minutes,
            "train.precision": run.precision, "train.device": run.device,
        }  # fmt: skip
        return models.Tuner(self.cache, options, run.grid, self.progress)

    # ------------------------------------------------------------------------------------------------ the results

    def result(self, task: str) -> Json:
        if task not in TASKS:
            return self._zero_shot(task)
        folder = self._folder(task)
        if (source := self._trained(task)) is None:
            assert self.own is not None
            result, chosen = self.scorer.score(task, folder, [self.own]), [self.own]
        else:
            result, where = self._tuned(source)
            needs_models = self.run.seeds > 1 or self.run.submission or TASKS[task].get("model_of")
            chosen = models.seed_models(where) if needs_models else []
            if task != source or len(chosen) > 1:
                scored = self.scorer.score(task, folder, chosen)
                result = scored if task != source else {**result, "ensemble": scored["ensemble"]}
        if self.run.submission and chosen:
            self.submitted.update(
                models.submit(task, folder, Path(self.run.submission), chosen, self.scorer, self.progress)
            )
        return result

    def _tuned(self, task: str) -> tuple[Json, Path]:
        init = self.loaded.folder
        notes = []
        if (start := self._start(task)) is not None:
            if self.own is None or self.own.task.name != start:
                init = self._tuned(start)[1] / "model"
            notes = [f"started from the model of {start}"]
        values, where = self._tuner().tuned(task, init, self.loaded.settings.hidden_size, self._folder(task))
        return {**values, "notes": [*values["notes"], *notes]}, where

    def _zero_shot(self, task: str) -> Json:
        """Asked once for each model, file and number format."""
        run, judge = self.run, self.judge
        if task in ZERO_SHOT and task != "perplexity":
            files = list(self._files(task))
        else:
            source = self.texts[task]
            files = [source if source.is_file() else source / artifacts.MANIFEST]
        hashes = [models.file_hash(path) for path in files]
        limit = run.max_pairs if task == "blimp" else run.max_dev
        question = [task, models.model_hash(self.loaded.folder), hashes, limit, judge.precision, judge.device.type]
        kept = self.cache / f"{task.replace(':', '-')}-{fingerprint(question)[:10]}.json"
        if kept.is_file():
            self.progress.say(f"  {task}: measured already, {kept}")
            return json.loads(kept.read_bytes())
        measured = self._ask(task)
        models.check_unchanged(files, hashes)
        with artifacts.output_errors(kept):
            kept.parent.mkdir(parents=True, exist_ok=True)
        artifacts.write_json(kept, measured)
        return measured

    def _ask(self, task: str) -> Json:
        data = Path(self.run.data)
        if task == "blimp":
            return zero_shot.blimp(self.judge, zero_shot.blimp_folder(data), self.run.max_pairs, self.progress)
        if task == "claims":
            return zero_shot.claims(self.judge, zero_shot.claims_file(data), self.progress)
        source = self.texts[task]
        if source.is_file():
            name = fingerprint([models.file_hash(source), self.judge.reader.tokenizer.fingerprint])[:10]
            folder = self.cache / f"text-{source.stem}-{name}"
            with artifacts.output_errors(folder):
                self.cache.mkdir(parents=True, exist_ok=True)
            if not (folder / artifacts.MANIFEST).is_file():
                zero_shot.prepare_text(source, self.judge, folder, self.progress)
            source = folder
        return zero_shot.perplexity(self.judge, source, self.run.max_dev, self.progress)
