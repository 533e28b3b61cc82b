"""Fine-tuned models as `remask evaluate` needs them: trained once by fingerprint, scored, averaged, submitted.

In: a task, its files, and the model to start from (or that has the task's head already). Out: scores of each seed with
their median and spread, an ensemble's scores, answers for the leaderboard. A folder of the cache is named by the
fingerprint of recipe, start and files, so that the same question is answered once and a changed one gets its own.
Not here: which tasks, the table, how anything is trained.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remask import artifacts
from remask.commands import finetune as finetuning
from remask.commands.predict import TaskModel, open_task_model
from remask.config import build_run, dump, fingerprint
from remask.errors import DataError
from remask.progress import Progress
from remask.tasks import metrics, problems
from remask.tasks.specs import TASKS

if TYPE_CHECKING:
    import torch

    from remask.precision import Precision

_NOT_IN_NAME = ("init", "data", "seed", "seeds")  # paths are covered by contents; further seeds join the others
KEYS = ("metric", "metrics", "spread", "data", "notes", "model")


@functools.cache
def file_hash(path: Path) -> str:
    return artifacts.sha256_of(path)


@functools.cache
def model_hash(folder: Path) -> str:
    """Of a model's weights, settings and vocabulary."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != artifacts.MANIFEST)
    return fingerprint([[str(path.relative_to(folder)), file_hash(path)] for path in files])


# ------------------------------------------------------------------------------------------------- fine-tuning


@dataclass(frozen=True)
class Tuner:
    """What all fine-tunings of an evaluation share."""

    cache: Path
    options: Mapping[str, Any]  # of FinetuneRun: seeds, limits, budget, precision
    grid: bool
    progress: Progress

    def num_runs(self, task: str) -> int:
        return int(self.options["seeds"]) * len(list(self._variants(task, 768)))

    def tuned(self, task: str, init: Path, width: int, folder: Path) -> tuple[dict[str, Any], Path]:
        """(results of the best variant, its folder); what is there already is not trained again."""
        found = [self._one(task, init, folder, variant) for variant in self._variants(task, width)]
        name = found[0][0]["metric"]
        best, where, _ = max(found, key=lambda one: one[0]["metrics"][name])
        values = {key: best[key] for key in KEYS}
        if len(found) > 1:
            values["grid"] = [{**variant, name: tried["metrics"][name]} for tried, _, variant in found]
        return values, where

    def _variants(self, task: str, width: int) -> Iterator[dict[str, Any]]:
        """The paper's learning rates and batches, the rates at this width; without a grid the recipe alone."""
        grid = TASKS[task].get("grid") if self.grid else None
        if not grid:
            yield {}
            return
        for values in itertools.product(*grid.values()):
            chosen = dict(zip(grid, values, strict=True))
            rate = finetuning.rate_of_all(chosen["train.learning_rate"], width)
            yield chosen | {"train.learning_rate": float(f"{rate:.4g}")}

    def _one(self, task: str, init: Path, folder: Path, variant: Mapping[str, Any]) -> Any:
        recipe = [f"{key}={value}" for key, value in TASKS[task]["recipe"].items()]
        options = {"task": task, "init": str(init.resolve()), "data": str(folder.resolve()), **self.options, **variant}
        run = build_run(finetuning.FinetuneRun, None, recipe, options).run
        named = {key: value for key, value in dump(run).items() if key not in _NOT_IN_NAME}
        files = [[path.name, file_hash(path)] for path in problems.task_files(task, folder)]
        out = self.cache / f"{task.replace(':', '-')}-{fingerprint([named, model_hash(init), files])[:10]}"
        done = out / "results.json"
        if done.is_file() and json.loads(done.read_bytes())["seeds"]["seeds"] == [
            run.seed + i for i in range(run.seeds)
        ]:
            self.progress.say(f"  {task}: trained already, {out}")
            return json.loads(done.read_bytes()), out, variant
        self.progress.say(f"{task}:")
        return finetuning.main(run, out, progress=self.progress, allow_change=("init", "data")), out, variant


def seed_models(folder: Path) -> list[TaskModel]:
    """The best weights of each seed of a fine-tuning."""
    seeds = json.loads((folder / "results.json").read_bytes())["seeds"]["seeds"]
    return [open_task_model(folder / f"seed-{seed}" / "best") for seed in seeds]


# ----------------------------------------------------------------------------------------------------- scoring


@dataclass(frozen=True)
class Scorer:
    """Where models are asked."""

    device: torch.device
    precision: Precision
    max_dev: int | None

    def outputs(self, model: TaskModel, items: Sequence[Any], *, labelled: bool) -> tuple[list[Any], Any]:
        """(what the model says about each row, the rows)."""
        from remask.tasks.rows import frame_for
        from remask.tokenizer import load_tokenizer

        loaded, settings = model.loaded, model.loaded.settings
        if loaded.tokenizer_folder is None:
            raise DataError(f"{loaded.folder}: has no tokenizer, so texts cannot be read for it")
        tokenizer = load_tokenizer(loaded.tokenizer_folder)
        frame = frame_for(tokenizer, model.rows, model_length=settings.max_length, num_segments=settings.num_segments)
        rows = problems.encode(items, model.kind, model.labels, tokenizer, frame, model.rows, labelled=labelled)
        with self.precision.autocast():
            network = loaded.network.to(self.device)
            return finetuning.predict_rows(network, model.kind, rows, tokenizer.pad_id), rows

    def score(self, task: str, folder: Path, models: Sequence[TaskModel]) -> dict[str, Any]:
        """Scores of models that have the task's head: median and spread, and the ensemble's where they are several."""
        first = models[0]
        problem = problems.open_problem(task, first.table, train=None, dev=None, folder=folder, max_dev=self.max_dev)
        problems.check_same_labels(problem, first.labels)
        return self.scores(problem, models)

    def scores(self, problem: problems.Problem, models: Sequence[TaskModel]) -> dict[str, Any]:
        """The same for a problem that was read already."""
        said = [self.outputs(model, problem.dev, labelled=True) for model in models]
        rows = said[0][1]
        results = [problems.score(o, rows, problem.dev, problem.kind, problem.labels) for o, _ in said]
        spread = {name: metrics.spread([r["metrics"][name] for r in results]) for name in results[0]["metrics"]}
        values: dict[str, Any] = {
            **(results[0] if len(results) == 1 else {}),
            "metric": problem.metric,
            "metrics": {name: value["median"] for name, value in spread.items()},
            "spread": spread,
            "data": dict(problem.facts),
            "notes": list(problem.notes),
            "texts_cut": rows.num_cut,
            "model": str(models[0].loaded.folder),
        }
        if len(models) > 1:
            from remask.tasks.ensemble import mean_outputs

            together = mean_outputs([o for o, _ in said], rows, problem.kind)
            result = problems.score(together, rows, problem.dev, problem.kind, problem.labels)
            values["ensemble"] = {"models": len(models), "metrics": result["metrics"]}
        return values

    def answer(self, models: Sequence[TaskModel], items: Sequence[Any]) -> list[dict[str, Any]]:
        """What the models together say about unlabelled items."""
        from remask.tasks.ensemble import mean_outputs

        said = [self.outputs(model, items, labelled=False) for model in models]
        rows, first = said[0][1], models[0]
        together = mean_outputs([o for o, _ in said], rows, first.kind)
        return problems.answer(together, rows, items, first.kind, first.labels)


def submit(
    task: str, folder: Path, out: Path, models: Sequence[TaskModel], scorer: Scorer, progress: Progress
) -> dict[str, int]:
    """Answers to the task's test files, by official name; a task without test files gives none."""
    from remask.tasks.submission import find_tests, write_answers

    spec = TASKS[task]
    written = {}
    for name, test in find_tests(spec, folder).items():
        with artifacts.output_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        written[name] = write_answers(task, spec, test, out / name, lambda items: scorer.answer(models, items))
        progress.say(f"  {out / name}: {written[name]:,} answers")
    return written


def own_model(folder: Path) -> TaskModel | None:
    """The model as one that was fine-tuned on a named task, if it was (a foreign one does not say on which)."""
    return open_task_model(folder) if (folder / "task.json").is_file() else None
