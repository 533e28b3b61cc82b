"""Trying values of a fine-tuning recipe: one loop over trials, for grids and for searches.

In: a FinetuneRun and a source of trials. Out: every trial's results; each is a fine-tuning run. Those that lost keep
their results, not their weights. `tune_grid` tries all values with one another, as the papers do (lr x batch, median of
the seeds, the best by dev metric), and publishes the best under OUT's own names. The same command goes on where it
stopped. Not here: what proposes values for larger spaces (search).
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from remask import artifacts
from remask.config import dump
from remask.progress import Progress
from remask.schema import Json, Values
from remask.tune.part import copy_model, drop_weights
from remask.tune.seed import Report
from remask.tune.seeds import same_run
from remask.tune.settings import FinetuneRun
from remask.workers import is_first_rank

Tune = Callable[..., Json]  # finetune.finetune: a run and a folder -> its results
Outcome = Json | Exception


@dataclass(frozen=True)
class Trial:
    """Values of the recipe to try, and the folder of the fine-tuning that tries them."""

    values: Mapping[str, float | int]
    folder: Path
    report: Report | None = None  # hears every score while it trains; may raise to give the trial up
    ended: Callable[[Outcome], None] = lambda outcome: None  # hears its results, or how it failed, before the next

    @property
    def name(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in self.values.items())


def sweep(
    tune: Tune,
    run: FinetuneRun,
    trials: Iterable[Trial],
    *,
    progress: Progress,
    allow_change: Sequence[str] = (),
    may_fail: tuple[type[Exception], ...] = (),
) -> list[tuple[Trial, Json]]:
    """Every trial that came to its end, with its results, in their order."""
    finished: list[tuple[Trial, Json]] = []
    for trial in trials:
        progress.say(f"{trial.name}:")
        try:
            results = tune(
                run.with_values(trial.values), trial.folder, progress=progress, allow_change=allow_change,
                report=trial.report,
            )  # fmt: skip
        except may_fail as error:
            trial.ended(error)
        else:
            finished.append((trial, results))
            trial.ended(results)
    return finished


# ------------------------------------------------------------------------------------------------------- a grid


def tune_grid(tune: Tune, run: FinetuneRun, out: Path, *, progress: Progress, allow_change: Sequence[str] = ()) -> Json:
    """Every combination of the run's grid, then the best one's results with the table of all."""
    from remask.train.distributed import joined

    with ExitStack() as stack:
        if is_first_rank():
            stack.enter_context(artifacts.lock(out))
            same_run({"run": dump(run) | {"seeds": None, "seed": None}}, run, out, allow_change)
        with joined() as world:  # for this question only: every run of the grid joins by itself
            finished = world.first_says("yes" if (out / "results.json").is_file() else "")
        if finished:
            progress.say(f"{out}: finished already")
            return json.loads((out / "results.json").read_bytes())
        tried = sweep(tune, run, _combinations(run, out), progress=progress, allow_change=allow_change)
        best, results = max(tried, key=lambda pair: pair[1]["score"])
        rows = [_row(trial.values, result, trial is best) for trial, result in tried]
        values = {**results, "grid": rows, "variant": str(best.folder.relative_to(out))}
        if is_first_rank():
            values = publish(values, out, best.folder)
            for trial, _ in tried:
                if trial is not best:
                    drop_weights(trial.folder)
        return values


def _combinations(run: FinetuneRun, out: Path) -> Iterator[Trial]:
    """All values with one another, in the order of the run."""
    given = run.grid.given()
    for chosen in itertools.product(*given.values()):
        values = dict(zip(given, chosen, strict=True))
        name = ",".join(f"{key}={value:g}" for key, value in values.items())
        yield Trial(values, out / "grid" / name)


def _row(values: Values, result: Values, best: bool) -> Json:
    spread = result["mean"] if "tasks" in result else result["spread"][result["metric"]]
    return {**values, "score": result["score"], "low": spread["low"], "high": spread["high"], "best": best}


def publish(result: Json, out: Path, source: Path) -> Json:
    """One of several runs as the result: its models and report under OUT's own names."""
    if "tasks" in result:
        tasks = {}
        for task, of_task in result["tasks"].items():
            copy_model(source / "tasks" / task, out / "tasks" / task)
            tasks[task] = {**of_task, "model": str(out / "tasks" / task)}
        result = {**result, "tasks": tasks, "model": str(out / "tasks")}
    else:
        copy_model(source / "model", out / "model")
        result = {**result, "model": str(out / "model")}
    shutil.copyfile(source / "report.html", out / "report.html")
    shutil.copyfile(source / "run.yaml", out / "best.yaml")
    artifacts.write_json(out / "results.json", result)
    return result


def render(values: Values) -> str:
    """The table of what was tried."""
    rows = values["grid"]
    names = [name for name in rows[0] if name not in ("score", "low", "high", "best")]
    lines = ["  ".join(f"{name:>12}" for name in [*names, values.get("metric", "mean"), "lowest", "highest"])]
    for row in rows:
        shown = [f"{row[name]:>12g}" for name in names] + [f"{row[key]:>12.4f}" for key in ("score", "low", "high")]
        lines.append("  ".join(shown) + ("  *" if row["best"] else ""))
    return "\n".join(lines)
