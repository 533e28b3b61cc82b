"""Fine-tuning on several tasks at once: one encoder, a head for each, steps dealt out by size.

In: a FinetuneRun with `tasks`. Out: OUT/tasks/NAME, a model of its own for each (predict, export and serve take it like
any other), OUT/results.json (each task over the seeds; with `single` also each task trained alone with the same
recipe), OUT/report.html. The best evaluation is the one with the best mean over the tasks. Not here: how steps are
dealt out (tasks/mixing), how the heads share the encoder (model/multitask).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from remask import artifacts
from remask.config import dump
from remask.progress import Progress
from remask.reports.task_report import tasks_report
from remask.schema import Json, Values
from remask.tasks import metrics
from remask.tune.part import Part, Start, fresh_network, let_learn, open_part, open_start, publish_model
from remask.tune.seed import Report
from remask.tune.seeds import Results, run_seeds, seeds_of, start_of, summarise
from remask.tune.settings import FinetuneRun, TaskFiles
from remask.tune.single import tune_single
from remask.workers import is_first_rank

if TYPE_CHECKING:
    from remask.model.multitask import TaskNetworks
    from remask.task_objectives import MixedObjective
    from remask.tasks.mixing import MixedBatches

WEIGHTS = "model.safetensors"
STAGE = "tasks"  # of the best weights so far: encoder and all heads in one file


@dataclass(frozen=True)
class SeveralTasks:
    """What all seeds share. A seed.Trainable."""

    run: FinetuneRun
    start: Start
    parts: Mapping[str, Part]

    @property
    def identity(self) -> Values:
        return {
            "run": dump(self.run) | {"seeds": None, "seed": None, "single": None},
            "init": self.start.fingerprint,
            "data": {name: part.fingerprint for name, part in self.parts.items()},
            "tokenizer": self.start.tokenizer.fingerprint,
        }

    @property
    def width(self) -> int:
        return self.start.loaded.settings.hidden_size

    def build(self, seed: int) -> TaskNetworks:
        from remask.model.multitask import TaskNetworks

        model = TaskNetworks({n: fresh_network(self.run, self.start, p, seed) for n, p in self.parts.items()})
        let_learn(self.run, model.encoder, self.parts.values(), seed)
        return model

    def batches(self, seed: int, rank: int, world_size: int) -> MixedBatches:
        from remask.tasks.batches import TaskBatches
        from remask.tasks.mixing import MixedBatches

        sources = {
            name: TaskBatches(part.train_rows, part.pad_id, self.run.batch, seed=seed, rank=rank, world_size=world_size)
            for name, part in self.parts.items()
        }
        return MixedBatches(sources, self.run.temperature, seed)

    def objective(self, seed: int, network: TaskNetworks) -> MixedObjective:
        from remask.task_objectives import MixedObjective

        each = {name: part.objective(seed, network.of(name), self.run.loss) for name, part in self.parts.items()}
        return MixedObjective(each)

    def carried(self, network: TaskNetworks) -> dict[str, bytes | Path]:
        """A checkpoint of several tasks is only for going on; the models of the tasks are published at the end."""
        heads = {name: dump(network.of(name).head_settings) for name in self.parts}
        return {"tasks.json": json.dumps({"heads": heads}, indent=1).encode()}

    def score(self, network: TaskNetworks, check: Callable[[], None]) -> Json:
        scores = {name: part.score(network.of(name), check) for name, part in self.parts.items()}
        mean = sum(result["score"] for result in scores.values()) / len(scores)
        return {
            "metrics": {
                f"{task}.{name}": v for task, result in scores.items() for name, v in result["metrics"].items()
            },
            "score": mean,
            "tasks": scores,
        }

    def keep(self, folder: Path, network: TaskNetworks) -> None:
        from remask.model.store import write_weights

        def fill(aside: Path) -> None:
            write_weights(aside / WEIGHTS, network.state_dict())

        artifacts.publish(folder, STAGE, fill, inputs={"init": self.start.fingerprint}, replace=True)

    def words(self, result: Values) -> str:
        each = ", ".join(f"{name} {score['score']:.4f}" for name, score in result["tasks"].items())
        return f"{each}; mean {result['score']:.4f}"

    def summary(self, results: Results) -> Json:
        """As for one task, under `tasks` for each; `metrics` has all of them as NAME.METRIC."""
        tasks = {}
        for name, part in self.parts.items():
            runs = [
                {"seed": r["seed"], "step": r["step"], **r["tasks"][name], "history": _history(r["history"], name)}
                for r in results
            ]
            tasks[name] = summarise(part, runs)
        mean = metrics.spread([r["score"] for r in results])
        return {
            "metrics": {f"{task}.{name}": v for task, result in tasks.items() for name, v in result["metrics"].items()},
            "score": mean["median"],
            "mean": mean,
            "tasks": tasks,
            "seeds": seeds_of(results),
            "temperature": self.run.temperature,
            **start_of(self.run, results),
        }

    def publish(self, out: Path, values: Json) -> Json:
        """A model for each task, from the best seed's best weights."""
        from safetensors.torch import load_file

        seed = values["seeds"]["best"]
        best = artifacts.open_artifact(out / f"seed-{seed}" / "best", STAGE, verify=True)
        model = self.build(seed)
        model.load_state_dict(load_file(best.path(WEIGHTS)))
        for name, part in self.parts.items():
            publish_model(out / "tasks" / name, model.of(name), self.run, self.start, part)
        tasks = {name: {**result, "model": str(out / "tasks" / name)} for name, result in values["tasks"].items()}
        values = {**values, "tasks": tasks, "model": str(out / "tasks")}
        artifacts.write_bytes(out / "report.html", tasks_report(values).encode())
        return values


def tune_several(
    run: FinetuneRun, out: Path, *, progress: Progress, allow_change: Sequence[str] = (), report: Report | None = None
) -> Json:
    """All seeds of the tasks together; with `single` then each task alone."""
    tasks = prepare(run, progress)
    values = run_seeds(tasks, out, tasks.summary, tasks.publish, progress, allow_change, report)
    if run.single and "single" not in values:
        alone = {}
        for entry in run.tasks:
            progress.say(f"  {entry.called} alone:")
            result = tune_single(_single(run, entry), out / "single" / entry.called, progress=progress)
            alone[entry.called] = {key: result[key] for key in ("metric", "spread", "model")}
        values = {**values, "single": alone}
        if is_first_rank():
            artifacts.write_bytes(out / "report.html", tasks_report(values).encode())
            artifacts.write_json(out / "results.json", values)
    return values


def _single(run: FinetuneRun, entry: TaskFiles) -> FinetuneRun:
    """The same recipe for one task."""
    files = {key: value for key, value in dump(entry).items() if key in TaskFiles.model_fields}
    values = {**dump(run), **files, "tasks": [], "single": False}
    return FinetuneRun.model_validate_json(json.dumps(values))


def prepare(run: FinetuneRun, progress: Progress) -> SeveralTasks:
    """Open the model, read and encode all tasks."""
    start = open_start(run)
    parts = {entry.called: open_part(run, entry, start, progress, entry.called) for entry in run.tasks}
    return SeveralTasks(run, start, parts)


# ----------------------------------------------------------------------------------------------------- results


def _history(history: Sequence[Values], task: str) -> list[Json]:
    before = f"{task}."
    return [
        {"step": entry["step"], **{k.removeprefix(before): v for k, v in entry.items() if k.startswith(before)}}
        for entry in history
    ]


def render(values: Values) -> str:
    """One line a task: together, and alone where that was asked for."""
    alone = values.get("single", {})
    several = values["seeds"]["count"] > 1
    width = max(12, *(len(name) for name in values["tasks"]))
    header = f"{'task':{width}}  {'metric':12}  {'together':26}" + (f"  {'alone':26}  difference" if alone else "")
    lines = [header]
    for name, result in values["tasks"].items():
        metric = result["metric"]
        line = f"{name:{width}}  {metric:12}  {_shown(result['spread'][metric], several):26}"
        if alone:
            other = alone[name]["spread"][metric]
            difference = result["spread"][metric]["median"] - other["median"]
            line += f"  {_shown(other, several):26}  {difference:+.4f}"
        lines.append(line.rstrip())
    lines.append(f"{'mean':{width}}  {'':12}  {_shown(values['mean'], several)}".rstrip())
    lines += [f"  note: {name}: {note}" for name, result in values["tasks"].items() for note in result["notes"]]
    return "\n".join([*lines, *(f"model: {result['model']}" for result in values["tasks"].values())])


def _shown(spread: Values, several: bool) -> str:
    over = f" ({spread['low']:.4f} to {spread['high']:.4f})" if several else ""
    return f"{spread['median']:.4f}{over}"
