"""`remask evaluate`: one model on many tasks, in one table.

In: MODEL, names of tasks and the folder with their files. Out: a metric for each. A model that was fine-tuned on a
task is only scored on its dev file; for any other task it is fine-tuned first, with the task's recipe, in a folder of
OUT (or of the user's cache) named by a fingerprint: the same command trains nothing twice, and goes on after a stop.
BLiMP, claims and perplexity need no training, only a masked-LM head. A model of the user's own task is scored on a file
(evaluate_file). Not here: how a task is read, trained or scored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click
from pydantic import model_validator

from remask import artifacts
from remask.allocator import keep_freed_memory
from remask.commands import Common, common_options, evaluate_file, is_first_rank, run_file
from remask.commands import evaluate_models as models
from remask.commands import evaluate_zero_shot as zero_shot
from remask.config import Config, fingerprint, setting, switch
from remask.errors import ConfigError, DataError, MissingInputError, UsageError
from remask.progress import Progress
from remask.tasks import problems
from remask.tasks.specs import TASKS
from remask.train.settings import Precision as PrecisionName

if TYPE_CHECKING:
    import torch

    from remask.commands.predict import TaskModel
    from remask.model.store import Loaded
    from remask.precision import Precision

GROUPS = {"glue": tuple(name for name in TASKS if name.startswith("glue:") and "form_of" not in TASKS[name])}
ZERO_SHOT = ("blimp", "claims", "perplexity")
NOT_IN_MEAN = ("glue:wnli",)  # as in the paper's averages over dev sets: its dev set contradicts its training set


class EvaluateRun(Config):
    """A model and the tasks it is to show itself on."""

    seed: int = setting(0, "the first seed of fine-tuning", ge=0)
    seeds: int = setting(1, "fine-tuning runs a task; of several the ensemble is scored, too", ge=1)
    model: str = setting("", "the model")
    tasks: tuple[str, ...] = setting((), "glue (all of it), a task of finetune, blimp, claims, perplexity")
    data: str = setting("", "folder with the tasks' files (or with folders named as the tasks')")
    texts: tuple[str, ...] = setting((), "perplexity: text files or prepared data; none: what `data` has")
    max_train: int | None = setting(None, "train on so many examples a task at most", ge=1)
    max_dev: int | None = setting(None, "score on so many dev examples a task at most", ge=1)
    max_pairs: int | None = setting(None, "BLiMP: so many pairs of each paradigm", ge=1)
    epochs: float | None = setting(None, "passes of fine-tuning; null: the recipe's", gt=0)
    minutes: float | None = setting(None, "all fine-tuning together; each run gets an equal share", gt=0)
    init_weights: bool = switch(
        True, "fine-tune from the model's weights; false: the same network from scratch, for comparison", effect="math"
    )
    from_mnli: bool = switch(
        False, "RTE, STS-B and MRPC start from the MNLI model, as the paper's leaderboard entry", effect="math"
    )
    grid: bool = switch(
        False, "GLUE: the paper's learning rates x batches for each task; the best median counts", effect="math"
    )
    submission: str | None = setting(None, "folder for answers to GLUE's test files, as the leaderboard takes them")
    test: str | None = setting(None, "instead of tasks: a labelled file that the model is scored on, with no training")
    task: str | None = setting(None, "test, of a model with several tasks: which one")
    table: evaluate_file.FileTable = setting(evaluate_file.FileTable(), "test: columns; null: as the model was trained")
    precision: PrecisionName = setting("auto", "of fine-tuning and scoring: auto, fp32, bf16 or fp16")
    device: str = setting("auto", "auto, cpu, cuda, cuda:N or mps")

    @model_validator(mode="after")
    def _check(self) -> Self:
        """What one of the two ways to score does not read is not given to it."""
        both = ("model", "seed", "max_dev", "precision", "device")
        unread = [
            name for name in type(self).model_fields if name not in both and (name in _OF_TEST) != bool(self.test)
        ]
        for name in unread:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name}: is not for a file given as test, on which nothing is trained"
                    if self.test else f"{name}: is only for a file given as test"
                )  # fmt: skip
        if not self.init_weights:
            for name in ("from_mnli", "grid"):
                if getattr(self, name):
                    raise ValueError(f"{name}: is made for pretrained weights, and init_weights is false")
            if asked := [task for task in self.tasks if task in ZERO_SHOT]:
                raise ValueError(
                    f"tasks: {asked[0]} trains nothing, and random weights (init_weights: false) know nothing"
                )
        return self


_OF_TEST = ("test", "task", "table")


def main(run: EvaluateRun, out: Path | None, *, progress: Progress) -> dict[str, Any]:
    """Each task in turn (a group's task without files is passed over, and said), or the file given as test."""
    if out is not None and any((out / name).is_file() for name in ("run.json", artifacts.MANIFEST)):
        raise ConfigError(f"{out}: holds a run or a model, whose files would be lost; choose another --out")
    keep_freed_memory()
    if run.test:
        model, problem = _open_test(run)
        scorer = models.Scorer(*_format(run, progress), run.max_dev)
        return evaluate_file.main(model, problem, Path(run.test), out, scorer)
    tasks = _expand(run.tasks)
    evaluation = Evaluation(run, out or _user_cache(), progress)
    plan, skipped = evaluation.plan(tasks)
    if not plan:
        raise DataError(f"{run.data}: has the files of none of these tasks: {', '.join(run.tasks)}")
    results = {task: evaluation.result(task) for task in plan}
    values = {
        "metrics": {f"{task}.{name}": v for task, result in results.items() for name, v in result["metrics"].items()},
        "tasks": results,
        "skipped": skipped,
        "model": run.model,
        "init_weights": run.init_weights,
        "precision": evaluation.judge.precision.name,
        "device": str(evaluation.judge.device),
    }
    mean = glue_mean(results)
    if mean:
        values["glue"] = mean
        values["metrics"]["glue.mean"] = mean["mean"]
    if evaluation.submitted:
        values["submission"] = evaluation.submitted
    if out is not None:
        with artifacts.output_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        artifacts.write_json(out / "results.json", values)
    return values


def _open_test(run: EvaluateRun) -> tuple[TaskModel, problems.Problem]:
    assert run.test
    return evaluate_file.open_both(Path(run.model), run.task, Path(run.test), run.table, run.max_dev)


def _format(run: EvaluateRun, progress: Progress) -> tuple[torch.device, Precision]:
    """Where models are asked, and in which number format."""
    from remask.precision import Precision, choose_device, choose_precision

    device = choose_device(run.device)
    name, reason = choose_precision(run.precision, device)
    progress.say(f"scored on {device} in {name} ({reason})")
    return device, Precision(name, device)


def _user_cache() -> Path:
    """Where fine-tuned models are kept without --out."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "remask" / "evaluate"


def _expand(tasks: Sequence[str]) -> list[tuple[str, bool]]:
    """(task, whether its files must be there)."""
    known = [*GROUPS, *TASKS, *ZERO_SHOT]
    if not tasks:
        raise UsageError(f"--tasks is needed: {', '.join(known)}")
    found: dict[str, bool] = {}
    for task in tasks:
        if task in GROUPS:
            found |= {name: found.get(name, False) for name in GROUPS[task]}
        elif task in TASKS or task in ZERO_SHOT:
            found[task] = True
        else:
            raise ConfigError(f"tasks: {task!r} is not one of {', '.join(known)}")
    return list(found.items())


class Evaluation:
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
    def own(self) -> TaskModel | None:
        return models.own_model(self.loaded.folder)

    @cached_property
    def judge(self) -> zero_shot.Judge:
        return zero_shot.Judge(self.loaded, *_format(self.run, self.progress))

    @cached_property
    def scorer(self) -> models.Scorer:
        return models.Scorer(self.judge.device, self.judge.precision, self.run.max_dev)

    @cached_property
    def texts(self) -> dict[str, Path]:
        return zero_shot.perplexity_sources(Path(self.run.data), self.run.texts)

    # -------------------------------------------------------------------------------------------------- the plan

    def plan(self, tasks: Sequence[tuple[str, bool]]) -> tuple[list[str], dict[str, str]]:
        """(tasks to do, why others are left out): nothing is trained before all files were found."""
        found: list[str] = []
        skipped: dict[str, str] = {}
        for task, required in tasks:
            try:
                if task == "perplexity":
                    zero_shot.require_masked_lm(self.loaded, task)
                    found += self.texts
                    continue
                self._files(task)
            except MissingInputError as error:
                if required:
                    raise
                skipped[task] = str(error)
                self.progress.say(f"  {task}: left out: {error}")
                continue
            found.append(task)
        if self.run.minutes is not None:
            self._minutes = self.run.minutes / self._count_runs(found)
        return found, skipped

    def _files(self, task: str) -> list[Path]:
        data = Path(self.run.data)
        if task in ZERO_SHOT:
            zero_shot.require_masked_lm(self.loaded, task)
            if task == "claims":
                return [zero_shot.claims_file(data)]
            from remask.tasks.blimp import blimp_paths

            return blimp_paths(zero_shot.blimp_folder(data))
        return problems.task_files(task, self._folder(task))

    def _folder(self, task: str) -> Path:
        """GLUE's tasks may lie together in a folder `glue`."""
        base = Path(self.run.data)
        if not base.is_dir():
            raise MissingInputError(f"{base}: no such folder")
        inside = base / "glue"
        return inside if task.startswith("glue:") and inside.is_dir() else base

    def _trained(self, task: str) -> str | None:
        """The task whose fine-tuning gives the model for this one; None: the given model has its head already."""
        source = TASKS[task].get("model_of", task)
        has_head = self.run.init_weights and self.own is not None and self.own.task == source
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

    def result(self, task: str) -> dict[str, Any]:
        if task not in TASKS:
            return self._zero_shot(task)
        folder = self._folder(task)
        if (source := self._trained(task)) is None:
            assert self.own is not None
            result, chosen = self.scorer.score(task, folder, [self.own]), [self.own]
        else:
            result, where = self._tuned(source)
            chosen = models.seed_models(where) if self._needs_models(task) else []
            if task != source or len(chosen) > 1:
                scored = self.scorer.score(task, folder, chosen)
                result = scored if task != source else {**result, "ensemble": scored["ensemble"]}
        if self.run.submission and chosen:
            self.submitted.update(
                models.submit(task, folder, Path(self.run.submission), chosen, self.scorer, self.progress)
            )
        return result

    def _needs_models(self, task: str) -> bool:
        return bool(self.run.seeds > 1 or self.run.submission or TASKS[task].get("model_of"))

    def _tuned(self, task: str) -> tuple[dict[str, Any], Path]:
        init = self.loaded.folder
        notes = []
        if (start := self._start(task)) is not None:
            if self.own is None or self.own.task != start:
                init = self._tuned(start)[1] / "model"
            notes = [f"started from the model of {start}"]
        values, where = self._tuner().tuned(task, init, self.loaded.settings.hidden_size, self._folder(task))
        return {**values, "notes": [*values["notes"], *notes]}, where

    def _zero_shot(self, task: str) -> dict[str, Any]:
        """Asked once for each model, file and number format."""
        run, judge = self.run, self.judge
        if task in ZERO_SHOT and task != "perplexity":
            hashes = [models.file_hash(path) for path in self._files(task)]
        else:
            source = self.texts[task]
            hashes = [models.file_hash(source if source.is_file() else source / artifacts.MANIFEST)]
        limit = run.max_pairs if task == "blimp" else run.max_dev
        question = [task, models.model_hash(self.loaded.folder), hashes, limit, judge.precision.name, judge.device.type]
        kept = self.cache / f"{task.replace(':', '-')}-{fingerprint(question)[:10]}.json"
        if kept.is_file():
            self.progress.say(f"  {task}: measured already, {kept}")
            return json.loads(kept.read_bytes())
        found = self._ask(task)
        with artifacts.output_errors(kept):
            kept.parent.mkdir(parents=True, exist_ok=True)
        artifacts.write_json(kept, found)
        return found

    def _ask(self, task: str) -> dict[str, Any]:
        data = Path(self.run.data)
        if task == "blimp":
            return zero_shot.blimp(self.judge, zero_shot.blimp_folder(data), self.run.max_pairs, self.progress)
        if task == "claims":
            return zero_shot.claims(self.judge, zero_shot.claims_file(data), self.progress)
        source = self.texts[task]
        if source.is_file():
            name = fingerprint([models.file_hash(source), self.judge.tokenizer.fingerprint])[:10]
            folder = self.cache / f"text-{source.stem}-{name}"
            with artifacts.output_errors(folder):
                self.cache.mkdir(parents=True, exist_ok=True)
            if not (folder / artifacts.MANIFEST).is_file():
                zero_shot.prepare_text(source, self.judge, folder, self.progress)
            source = folder
        return zero_shot.perplexity(self.judge, source, self.run.max_dev, self.progress)


# ------------------------------------------------------------------------------------------------------ the table


def glue_mean(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """GLUE's average over the tasks at hand: the mean of a task's official metrics, MNLI's two parts as one task."""
    scores: dict[str, list[float]] = {}
    for task, result in results.items():
        if task in GROUPS["glue"] and task not in NOT_IN_MEAN:
            part = [result["metrics"][name] for name in official(task)]
            scores.setdefault(TASKS[task].get("model_of", task), []).append(sum(part) / len(part))
    if len(scores) < 2:
        return None
    means = {task: sum(parts) / len(parts) for task, parts in scores.items()}
    return {"mean": sum(means.values()) / len(means), "tasks": means, "left_out": list(NOT_IN_MEAN)}


def official(task: str) -> tuple[str, ...]:
    spec = TASKS[task]
    return spec.get("official", (spec["metric"],))


def render(values: Mapping[str, Any]) -> str:
    """One table: task, metric, score with its spread, sizes; then the other metrics and what to know."""
    if "file" in values:
        return evaluate_file.render(values)
    start = "" if values["init_weights"] else " (from scratch)"
    rows = [["task", "metric", "score", "lowest to highest", "train", "dev"]]
    details: list[str] = []
    for task, result in values["tasks"].items():
        rows += _rows(task, result, start)
        shown = official(task) if task in TASKS else (result["metric"],)
        others = [f"{name} {_number(value)}" for name, value in result["metrics"].items() if name not in shown]
        details += [f"{task}: {', '.join(others)}"] if others else []
        details += [f"{task}: {note}" for note in result["notes"]]
        details += [f"{task}: {name} {value:.4f}" for name, value in result.get("categories", {}).items()]
        details += [f"{task}: tried {json.dumps(tried)}" for tried in result.get("grid", ())]
    if "glue" in values:
        count = len(values["glue"]["tasks"])
        rows.append([f"glue{start}", f"mean of {count}", f"{values['glue']['mean']:.4f}", "", "", ""])
    details += [f"{task}: left out: {reason}" for task, reason in values["skipped"].items()]
    details += [
        f"{name}: {count:,} answers for the leaderboard" for name, count in values.get("submission", {}).items()
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join([*lines, "", *details]).rstrip()


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 100 else f"{value:,.1f}"


def _rows(task: str, result: Mapping[str, Any], start: str) -> list[list[str]]:
    sizes = [f"{result['data'][part]:,}" if part in result["data"] else "" for part in ("train", "dev")]
    rows: list[list[str]] = []
    for name in official(task) if task in TASKS else (result["metric"],):
        spread = result.get("spread", {}).get(name)
        over = f"{spread['low']:.4f} to {spread['high']:.4f}" if spread and len(spread["seeds"]) > 1 else ""
        first, *last = ["", "", ""] if rows else [f"{task}{start}", *sizes]
        rows.append([first, name, _number(result["metrics"][name]), over, *last])
    if "ensemble" in result:
        together, name = result["ensemble"], result["metric"]
        rows.append(["", name, f"{together['metrics'][name]:.4f}", f"ensemble of {together['models']}", "", ""])
    return rows


@click.command()
@click.argument("word", metavar="RUN.yaml | MODEL")
@click.option(
    "--tasks",
    help="Comma-separated: glue, glue:NAME, ner, squad1, squad2, race, wsc, blimp, claims, perplexity.",
)
@click.option("--data", help="Folder with the tasks' files (claims alone: the file).")
@click.option("--test", help="Instead of --tasks: a labelled file to score a fine-tuned model on.")
@click.option("--task", help="--test, of a model with several tasks: which one.")
@click.option(
    "--text", "texts", multiple=True,
    help="--test: column with the text. Perplexity: a text file or prepared data (may be repeated).",
)  # fmt: skip
@click.option("--text2", "table__text2", help="--test: column with the second text.")
@click.option("--label", "table__label", help="--test: column with the label.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for fine-tuned models and results.json.")
@click.option("--seeds", type=int, help="Fine-tuning runs a task; the result is their median.")
@click.option("--max-train", type=int, help="Train on so many examples a task at most.")
@click.option("--max-dev", type=int, help="Score on so many examples a task at most.")
@click.option("--max-pairs", type=int, help="BLiMP: so many pairs of each paradigm.")
@click.option("--epochs", type=float, help="Passes of fine-tuning.")
@click.option("--minutes", type=float, help="All fine-tuning together; each run gets an equal share.")
@click.option("--from-scratch", is_flag=True, help="Fine-tune the same network with random weights, for comparison.")
@click.option("--from-mnli", is_flag=True, default=None, help="RTE, STS-B and MRPC start from the MNLI model.")
@click.option("--grid", is_flag=True, default=None, help="GLUE: the paper's learning rates x batches.")
@click.option("--submission", help="Folder for answers to GLUE's test files, as the leaderboard takes them.")
@click.option("--precision", type=click.Choice(["auto", "fp32", "bf16", "fp16"]), help="Of training and scoring.")
@click.option("--device", help="auto, cpu, cuda, cuda:N or mps.")
@common_options
def command(
    common: Common, word: str, tasks: str | None, texts: tuple[str, ...], out: Path | None, from_scratch: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Score MODEL on tasks, or on a labelled file of its own task.

    Where it has no head for a task, it is fine-tuned first, in OUT (or the user's cache).

    remask evaluate MODEL --test held-out.csv
    """
    common = common.of_rank()
    file, model, _ = run_file((word,))
    names = None if tasks is None else [name.strip() for name in tasks.split(",") if name.strip()]
    if options["test"] and len(texts) > 1:
        raise UsageError(f"--text {' --text '.join(texts)}: a file given as --test has one column with the text")
    options["init_weights"] = False if from_scratch else None
    if options["test"] and texts:
        options["table__text"], texts = texts[0], ()
    built = common.build(EvaluateRun, file, model=model, tasks=names, texts=list(texts) or None, **options)
    for name in ("model",) if built.run.test else ("model", "tasks", "data"):
        if not getattr(built.run, name):
            raise UsageError(
                f"{name} is needed: remask evaluate MODEL --tasks {','.join((*GROUPS, *ZERO_SHOT))} --data DIR, "
                "or remask evaluate MODEL --test FILE"
            )
    if common.dry_run and built.run.test:
        _open_test(built.run)
        return
    if common.dry_run:
        Evaluation(built.run, out or _user_cache(), common.progress).plan(_expand(built.run.tasks))
        return
    values = main(built.run, out, progress=common.progress)
    if is_first_rank():
        common.result(values, render(values))
