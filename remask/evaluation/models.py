"""Fine-tuned models as an evaluation needs them: trained once by fingerprint, scored, averaged, submitted.

In: a task, its files, and the model to start from (or that has the task's head already). Out: scores of each seed with
their median and spread, an ensemble's scores, answers for the leaderboard. A folder of the cache is named by the
fingerprint of recipe, start and files, so that the same question is answered once and a changed one gets its own.
Not here: which tasks, the table, how anything is trained.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from remask import artifacts
from remask.config import build_run, dump, fingerprint
from remask.errors import DataError
from remask.progress import Progress
from remask.schema import Json, Values
from remask.tasks import metrics
from remask.tasks.kind import Item, Problem, TaskSource
from remask.tasks.kinds import check_same_labels, open_problem, task_files
from remask.tasks.specs import TASKS
from remask.tune.finetune import finetune
from remask.tune.seed import rate_of_all
from remask.tune.settings import TUNED, FinetuneRun

if TYPE_CHECKING:
    import numpy as np
    import torch

    from remask.answer.reader import Reader
    from remask.precision import Format
    from remask.tasks.rows import Rows

_NOT_IN_NAME = ("init", "data", "seed", "seeds")  # paths are covered by contents; further seeds join the others
_GRID_NAMES = {".".join(place): name for name, place in TUNED.items()}  # a dotted key -> what a grid calls it
KEYS = ("metric", "metrics", "spread", "data", "notes", "model")


@functools.cache
def file_hash(path: Path) -> str:
    return artifacts.sha256_of(path)


def check_unchanged(paths: Sequence[Path], hashes: Sequence[str]) -> None:
    """What is kept under a hash of files must have been measured on them: nobody wrote them meanwhile."""
    for path, known in zip(paths, hashes, strict=True):
        if not path.is_file() or artifacts.sha256_of(path) != known:
            raise DataError(f"{path}: has changed while it was evaluated; nothing was kept of that, run it again")


@functools.cache
def model_hash(folder: Path) -> str:
    from remask.model.store import model_fingerprint

    return model_fingerprint(folder)


# ------------------------------------------------------------------------------------------------- fine-tuning


@dataclass(frozen=True)
class Tuner:
    """What all fine-tunings of an evaluation share."""

    cache: Path
    options: Values  # of FinetuneRun: seeds, limits, budget, precision
    grid: bool
    progress: Progress

    def num_runs(self, task: str) -> int:
        variants = 1
        for values in self._grid(task, 768).values():
            variants *= len(values)
        return int(self.options["seeds"]) * variants

    def tuned(self, task: str, init: Path, width: int, folder: Path) -> tuple[Json, Path]:
        """(results of the best variant, the folder with its seeds); what is there already is not trained again."""
        recipe = [f"{key}={value}" for key, value in TASKS[task]["recipe"].items()]
        options = {"task": task, "init": str(init.resolve()), "data": str(folder.resolve()), **self.options}
        run = build_run(FinetuneRun, None, recipe, options | self._grid(task, width)).run
        named = {key: value for key, value in dump(run).items() if key not in _NOT_IN_NAME}
        paths = task_files(task, folder)
        files = [[path.name, file_hash(path)] for path in paths]
        out = self.cache / f"{task.replace(':', '-')}-{fingerprint([named, model_hash(init), files])[:10]}"
        done = out / "results.json"
        wanted = list(range(run.seed, run.seed + run.seeds))
        if done.is_file() and json.loads(done.read_bytes())["seeds"]["seeds"] == wanted:
            self.progress.say(f"  {task}: trained already, {out}")
            results = json.loads(done.read_bytes())
        else:
            self.progress.say(f"{task}:")
            results = finetune(run, out, progress=self.progress, allow_change=("init", "data"))
            try:
                check_unchanged(paths, [known for _, known in files])
            except DataError:
                shutil.rmtree(out)  # it is called by what it was not trained on
                raise
        values = {key: results[key] for key in (*KEYS, *(["grid"] if "grid" in results else []))}
        return values, out / results.get("variant", "")

    def _grid(self, task: str, width: int) -> dict[str, list[float | int]]:
        """The paper's learning rates and batches, the rates at this width; without a grid nothing varies."""
        grid = TASKS[task].get("grid", {}) if self.grid else {}
        values = {f"grid.{_GRID_NAMES[key]}": list(tried) for key, tried in grid.items()}
        if "grid.lr" in values:
            values["grid.lr"] = [float(f"{rate_of_all(rate, width):.4g}") for rate in values["grid.lr"]]
        return values


def seed_models(folder: Path) -> list[Reader]:
    """The best weights of each seed of a fine-tuning."""
    from remask.answer.reader import open_reader

    seeds = json.loads((folder / "results.json").read_bytes())["seeds"]["seeds"]
    return [open_reader(folder / f"seed-{seed}" / "best") for seed in seeds]


# ----------------------------------------------------------------------------------------------------- scoring


@dataclass(frozen=True)
class Scorer:
    """Where models are asked, and in which number format."""

    device: torch.device
    precision: Format
    max_dev: int | None

    def outputs(self, reader: Reader, items: Sequence[Item], *, labelled: bool) -> tuple[list[np.ndarray], Rows]:
        """(what the model says about each row, the rows)."""
        from remask.answer.model import Model

        rows = reader.encode(items, labelled=labelled)
        return Model(reader, device=self.device, precision=self.precision).outputs(rows), rows

    def score(self, task: str, folder: Path, readers: Sequence[Reader]) -> Json:
        """Scores of models that have the task's head: median and spread, and the ensemble's where they are several."""
        stored = readers[0].task
        problem = open_problem(TaskSource(task, stored.table, folder=folder), max_dev=self.max_dev)
        check_same_labels(problem, stored.labels)
        return self.scores(problem, readers)

    def scores(self, problem: Problem, readers: Sequence[Reader]) -> Json:
        """The same for a problem that was read already."""
        kind, dev, labels = problem.kind, problem.dev, problem.labels
        outputs = [self.outputs(reader, dev, labelled=True) for reader in readers]
        rows = outputs[0][1]
        results = [kind.score(of_model, rows, dev, labels) for of_model, _ in outputs]
        spread = {name: metrics.spread([r["metrics"][name] for r in results]) for name in results[0]["metrics"]}
        values: Json = {
            **({**results[0], **kind.tested(outputs[0][0], rows, dev)} if len(results) == 1 else {}),
            "metric": problem.metric,
            "metrics": {name: value["median"] for name, value in spread.items()},
            "spread": spread,
            "data": dict(problem.facts),
            "notes": list(problem.notes),
            "texts_cut": rows.num_cut,
            "model": str(readers[0].loaded.folder),
        }
        if len(readers) > 1 and kind.averages:
            together = kind.mean_outputs([of_model for of_model, _ in outputs], rows)
            values["ensemble"] = {
                "models": len(readers),
                "metrics": kind.score(together, rows, dev, labels)["metrics"],
            }
        return values

    def answer(self, readers: Sequence[Reader], items: Sequence[Item]) -> list[Json]:
        """What the models together say about unlabelled items, as the columns of a file."""
        outputs = [self.outputs(reader, items, labelled=False) for reader in readers]
        rows, first = outputs[0][1], readers[0]
        together = first.task.kind.mean_outputs([of_model for of_model, _ in outputs], rows)
        return [
            first.named(answer, item) for answer, item in zip(first.read(together, rows, items), items, strict=True)
        ]


def submit(
    task: str, folder: Path, out: Path, readers: Sequence[Reader], scorer: Scorer, progress: Progress
) -> dict[str, int]:
    """Answers to the task's test files, by official name; a task without test files gives none."""
    from remask.tasks.submission import find_tests, write_answers

    spec = TASKS[task]
    written = {}
    for name, test in find_tests(spec, folder).items():
        with artifacts.output_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        written[name] = write_answers(task, spec, test, out / name, lambda items: scorer.answer(readers, items))
        progress.say(f"  {out / name}: {written[name]:,} answers")
    return written
