"""A small grid over a fine-tuning recipe, as the papers do: lr x batch, median of the seeds, the best by dev metric.

In: a FinetuneRun with `grid`. Out: OUT/grid/lr=1e-05,batch=16/… (each a fine-tuning run of its own; those that lost
keep their results, not their weights), and OUT/model, results.json and report.html of the best. The same command goes
on where it stopped. Not here: searching larger spaces (search).
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from remask import artifacts
from remask.config import dump
from remask.progress import Progress
from remask.tune.part import copy_model, drop_weights
from remask.tune.seeds import same_run
from remask.tune.settings import FinetuneRun
from remask.workers import is_first_rank

Tune = Callable[..., dict[str, Any]]  # finetune.finetune: a run and a folder -> its results


def tune_grid(
    tune: Tune, run: FinetuneRun, out: Path, *, progress: Progress, allow_change: Sequence[str] = ()
) -> dict[str, Any]:
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
        tried = []
        for values in combinations(run):
            name = ",".join(f"{key}={value:g}" for key, value in values.items())
            progress.say(f"{name}:")
            result = tune(run.with_values(values), out / "grid" / name, progress=progress, allow_change=allow_change)
            tried.append((name, values, result))
        best_name, _, best = max(tried, key=lambda trial: trial[2]["score"])
        rows = [_row(values, result, name == best_name) for name, values, result in tried]
        values = {**best, "grid": rows}
        if is_first_rank():
            values = _publish(values, out, best_name)
            for name, _, _ in tried:
                if name != best_name:
                    drop_weights(out / "grid" / name)
        return values


def combinations(run: FinetuneRun) -> list[dict[str, float | int]]:
    """All values with one another, in the order of the run."""
    given = run.grid.given()
    return [dict(zip(given, values, strict=True)) for values in itertools.product(*given.values())]


def _row(values: Mapping[str, Any], result: Mapping[str, Any], best: bool) -> dict[str, Any]:
    spread = result["mean"] if "tasks" in result else result["spread"][result["metric"]]
    return {**values, "score": result["score"], "low": spread["low"], "high": spread["high"], "best": best}


def _publish(result: dict[str, Any], out: Path, name: str) -> dict[str, Any]:
    """The best one's models and report under OUT's own names."""
    source = out / "grid" / name
    if "tasks" in result:
        tasks = {}
        for task, one in result["tasks"].items():
            copy_model(source / "tasks" / task, out / "tasks" / task)
            tasks[task] = {**one, "model": str(out / "tasks" / task)}
        result = {**result, "tasks": tasks, "model": str(out / "tasks")}
    else:
        copy_model(source / "model", out / "model")
        result = {**result, "model": str(out / "model")}
    shutil.copyfile(source / "report.html", out / "report.html")
    shutil.copyfile(source / "run.yaml", out / "best.yaml")
    artifacts.write_json(out / "results.json", result)
    return result


def render(values: Mapping[str, Any]) -> str:
    """The table of what was tried."""
    rows = values["grid"]
    names = [name for name in rows[0] if name not in ("score", "low", "high", "best")]
    lines = ["  ".join(f"{name:>12}" for name in [*names, values.get("metric", "mean"), "lowest", "highest"])]
    for row in rows:
        shown = [f"{row[name]:>12g}" for name in names] + [f"{row[key]:>12.4f}" for key in ("score", "low", "high")]
        lines.append("  ".join(shown) + ("  *" if row["best"] else ""))
    return "\n".join(lines)
