"""A fine-tuning over its seeds: each in its folder, the same command going on, one result for all.

In: what is trained (`Trainable`) and a folder. Out: results.json, written last, with every seed's result, their median
and spread. A folder belongs to one run; more or other seeds join those that are done. Not here: one seed's training
(seed), what is trained (single, several).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from remask import artifacts
from remask.config import Config, differences, dump, to_yaml
from remask.errors import ConfigError, DataError
from remask.progress import Progress
from remask.schema import Json, Values
from remask.tasks import metrics
from remask.train.identity import is_allowed, shown
from remask.tune.part import Part
from remask.tune.seed import Report, Trainable, one_seed
from remask.tune.settings import FinetuneRun

Results = Sequence[Values]  # one a seed


def run_seeds(
    setup: Trainable,
    out: Path,
    summary: Callable[[Results], Json],
    publish: Callable[[Path, Json], Json],
    progress: Progress,
    allow_change: Sequence[str],
    report: Report | None,
) -> Json:
    """Every seed in its folder, their summary, what is published of them; results.json, which is written last."""
    from remask.train.distributed import joined

    run = setup.run
    with ExitStack() as stack:
        world = stack.enter_context(joined(run.train.rank_timeout_seconds))
        if world.is_first:
            stack.enter_context(artifacts.lock(out))
            same_run(setup.identity, run, out, allow_change)
        world.barrier()
        results = out / "results.json"
        if results.is_file():
            progress.say(f"{out}: finished already")
            return json.loads(results.read_bytes())
        results_of_seeds = []
        for seed in _seeds(run):
            heard = report if seed == run.seed else None
            results_of_seeds.append(one_seed(setup, out / f"seed-{seed}", seed, progress, world, heard))
        values = summary(results_of_seeds)
        if world.is_first:
            values = publish(out, values)
            artifacts.write_json(results, values)
        world.barrier()
        return values


def _seeds(run: FinetuneRun) -> range:
    return range(run.seed, run.seed + run.seeds)


def same_run(identity: Values, run: FinetuneRun, out: Path, allow_change: Sequence[str]) -> None:
    """A folder belongs to one run; more or other seeds join those that are done."""
    check_identity(identity, FinetuneRun(), out, allow_change)
    results = out / "results.json"
    if results.is_file() and set(json.loads(results.read_bytes())["seeds"]["seeds"]) != set(_seeds(run)):
        results.unlink()
    artifacts.write_json(out / "run.json", {"identity": identity})
    artifacts.write_bytes(out / "run.yaml", to_yaml(run).encode())


def check_identity(identity: Values, defaults: Config, out: Path, allow_change: Sequence[str]) -> None:
    """What was run in this folder before must be the same; otherwise it is refused with what differs."""
    if (out / artifacts.MANIFEST).is_file():
        raise ConfigError(f"{out}: is a finished folder of another command; choose another --out")
    path = out / "run.json"
    if not path.is_file():
        artifacts.claim(out, path.name)
        return
    try:
        kept = json.loads(path.read_bytes())
        if "identity" not in kept and "machine" in kept:
            raise ConfigError(f"{out}: holds a pretraining run; choose another --out (it may be the --init)")
        before = kept["identity"]
        before["run"] = _filled(dump(defaults), before["run"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: damaged: {error!r}") from error
    changed = [
        (key, old, new)
        for key, old, new in differences(before, json.loads(json.dumps(identity)))
        if not is_allowed(key.removeprefix("run."), (*allow_change, "train.trackers"))  # these only look on
    ]
    if changed:
        raise ConfigError(f"{out}: was made by another run; choose another --out:", *shown(changed))


def _filled(under: Values, over: Values) -> Json:
    """A run as an older remask stored it: settings that it did not have yet are as if they were not given."""
    both = {key for key, value in over.items() if isinstance(value, dict) and isinstance(under.get(key), dict)}
    return {**under, **over, **{key: _filled(under[key], over[key]) for key in both}}


def summarise(part: Part, results: Results) -> Json:
    """One task over the seeds: median and spread of every metric, and all that each seed found."""
    problem = part.problem
    spreads = {name: metrics.spread([r["metrics"][name] for r in results]) for name in results[0]["metrics"]}
    return {
        "task": problem.task,
        "metric": problem.metric,
        "metrics": {name: values["median"] for name, values in spreads.items()},
        "spread": spreads,
        "labels": list(problem.labels),
        "data": dict(problem.facts),
        "notes": list(problem.notes),
        "texts_cut": part.texts_cut,
        "runs": list(results),
    }


def seeds_of(results: Results) -> Json:
    """Which seeds there were, and the best of them."""
    best = max(results, key=lambda r: r["score"])
    return {"count": len(results), "seeds": [r["seed"] for r in results], "best": best["seed"]}


def start_of(run: FinetuneRun, results: Results) -> Json:
    return {
        "init": run.init,
        "init_weights": run.init_weights,
        "learn": run.learn,
        "seconds": sum(r["seconds"] for r in results),
    }
