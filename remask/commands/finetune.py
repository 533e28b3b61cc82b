"""`remask finetune`: a pretrained model and a labelled file -> a model that answers, with its scores.

In: MODEL, a task and its files. Out: OUT/model (the best seed's best weights), OUT/results.json (every seed, median and
spread, tables, mistakes), OUT/report.html, OUT/seed-N (log, best weights). What learns is all of the network, its top
layers, LoRA or the heads. `init_weights: false` trains the same network from scratch. The same command in the same
folder goes on. Not here: a seed's training (finetune_seed), several tasks at once (finetune_tasks), grids
(finetune_grid).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remask import artifacts
from remask.commands import Common, common_options, is_first_rank
from remask.commands.finetune_part import (
    Part,
    Start,
    copy_model,
    fresh_network,
    let_learn,
    open_part,
    open_start,
    publish_model,
)
from remask.commands.finetune_part import predict_rows as predict_rows
from remask.commands.finetune_run import TUNED, FinetuneRun
from remask.commands.finetune_run import FinetuneTrainSettings as FinetuneTrainSettings
from remask.commands.finetune_seed import Report, one_seed
from remask.commands.finetune_seed import rate_of_all as rate_of_all
from remask.config import Config, differences, dump, parse_assignment, to_yaml
from remask.errors import ConfigError, DataError, UsageError
from remask.progress import Progress
from remask.study.task_report import finetune_report
from remask.tasks import metrics
from remask.tasks.card import CARD_JSON, task_card
from remask.tasks.specs import TASKS
from remask.train.identity import is_allowed, shown

if TYPE_CHECKING:
    from remask.tasks import problems


@dataclass(frozen=True)
class Setup:
    """What all seeds of a single-task run share: the opened model, the task, its rows. A finetune_seed.Trainable."""

    run: FinetuneRun
    start: Start
    part: Part

    @property
    def identity(self) -> Mapping[str, Any]:
        return {
            "run": dump(self.run) | {"seeds": None, "seed": None},
            "init": self.start.fingerprint,
            "data": self.part.fingerprint,
            "tokenizer": self.start.tokenizer.fingerprint,
        }

    @property
    def problem(self) -> problems.Problem:
        return self.part.problem

    @property
    def width(self) -> int:
        return self.start.loaded.settings.hidden_size

    def build(self, seed: int) -> Any:
        network = fresh_network(self.run, self.start, self.part, seed)
        let_learn(self.run, network.encoder, [self.part], seed)
        return network

    def batches(self, seed: int, rank: int, world_size: int) -> Any:
        from remask.tasks.batches import TaskBatches

        rows, pad_id = self.part.train_rows, self.start.tokenizer.pad_id
        return TaskBatches(rows, pad_id, self.run.batch, seed=seed, rank=rank, world_size=world_size)

    def objective(self, seed: int, network: Any) -> Any:
        return self.part.objective(seed, network, self.run.loss)

    def carried(self, network: Any) -> dict[str, bytes | Path]:
        from remask.model.store import model_files

        lora = self.run.lora if self.run.learn == "lora" else None
        labels = self.problem.labels or None
        files = {f"tokenizer/{name}": data for name, data in self.start.tokenizer.files().items()}
        own = {**files, "task.json": self.part.task_json()}
        return model_files(network.settings, network.head_settings, None, labels, lora) | own

    def score(self, network: Any, check: Callable[[], None]) -> dict[str, Any]:
        return self.part.score(network, check)

    def keep(self, folder: Path, network: Any) -> None:
        publish_model(folder, network, self.run, self.start, self.part)

    def words(self, result: Mapping[str, Any]) -> str:
        return f"{self.problem.metric} {result['score']:.4f}"


# ---------------------------------------------------------------------------------------------------- the run


def main(
    run: FinetuneRun, out: Path, *, progress: Progress, allow_change: Sequence[str] = (), report: Report | None = None
) -> dict[str, Any]:
    """All seeds, then the best one's model and results.json. `report` hears every score of the first seed."""
    if run.grid.given():
        from remask.commands.finetune_grid import main as grid

        return grid(run, out, progress=progress, allow_change=allow_change)
    if run.tasks:
        from remask.commands.finetune_tasks import main as tasks

        return tasks(run, out, progress=progress, allow_change=allow_change, report=report)
    return run_seeds(prepare(run, progress), out, _summary, _publish, progress, allow_change, report)


def prepare(run: FinetuneRun, progress: Progress) -> Setup:
    """Open the model, read and encode the task; every mistake in the files shows here."""
    start = open_start(run)
    return Setup(run, start, open_part(run, run, start, progress))


def run_seeds(
    setup: Any,
    out: Path,
    summary: Callable[[Any, Sequence[Mapping[str, Any]]], dict[str, Any]],
    publish: Callable[[Any, Path, dict[str, Any]], dict[str, Any]],
    progress: Progress,
    allow_change: Sequence[str],
    report: Report | None,
) -> dict[str, Any]:
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
        found = []
        for seed in _seeds(run):
            heard = report if seed == run.seed else None
            found.append(one_seed(setup, out / f"seed-{seed}", seed, progress, world, heard))
        values = summary(setup, found)
        if world.is_first:
            values = publish(setup, out, values)
            artifacts.write_json(results, values)
        world.barrier()
        return values


def _seeds(run: FinetuneRun) -> range:
    return range(run.seed, run.seed + run.seeds)


def same_run(identity: Mapping[str, Any], run: FinetuneRun, out: Path, allow_change: Sequence[str]) -> None:
    """A folder belongs to one run; more or other seeds join those that are done."""
    check_identity(identity, FinetuneRun(), out, allow_change)
    results = out / "results.json"
    if results.is_file() and set(json.loads(results.read_bytes())["seeds"]["seeds"]) != set(_seeds(run)):
        results.unlink()
    artifacts.write_json(out / "run.json", {"identity": identity})
    artifacts.write_bytes(out / "run.yaml", to_yaml(run).encode())


def check_identity(identity: Mapping[str, Any], defaults: Config, out: Path, allow_change: Sequence[str]) -> None:
    """What was run in this folder before must be the same; otherwise it is refused with what differs."""
    if (out / artifacts.MANIFEST).is_file():
        raise ConfigError(f"{out}: is a finished folder of another command; choose another --out")
    path = out / "run.json"
    if not path.is_file():
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
        lines = "\n".join(f"  {line}" for line in shown(changed))
        raise ConfigError(f"{out}: was made by another run; choose another --out:\n{lines}")


def _filled(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A run as an older remask stored it: settings that it did not have yet are as if they were not given."""
    both = {key for key, value in over.items() if isinstance(value, dict) and isinstance(under.get(key), dict)}
    return {**under, **over, **{key: _filled(under[key], over[key]) for key in both}}


# ----------------------------------------------------------------------------------------------------- results


def summarise(part: Part, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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


def seeds_of(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Which seeds there were, and the best of them."""
    best = max(results, key=lambda r: r["score"])
    return {"count": len(results), "seeds": [r["seed"] for r in results], "best": best["seed"]}


def start_of(run: FinetuneRun, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "init": run.init,
        "init_weights": run.init_weights,
        "learn": run.learn,
        "seconds": sum(r["seconds"] for r in results),
    }


def _summary(setup: Setup, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    values = summarise(setup.part, results)
    score = values["metrics"][values["metric"]]
    return {**values, "score": score, "seeds": seeds_of(results), **start_of(setup.run, results)}


def _publish(setup: Setup, out: Path, values: dict[str, Any]) -> dict[str, Any]:
    card = json.dumps(task_card(values, dump(setup.run)), indent=1, ensure_ascii=False).encode()
    copy_model(out / f"seed-{values['seeds']['best']}" / "best", out / "model", {CARD_JSON: card})
    artifacts.write_bytes(out / "report.html", finetune_report(values, str(out)).encode())
    return {**values, "model": str(out / "model")}


def render(values: Mapping[str, Any]) -> str:
    """The result for a person: the table of the best seed, the metrics with their spread, what to know."""
    lines = []
    if "grid" in values:
        from remask.commands.finetune_grid import render as grid

        lines += [grid(values), ""]
    if "tasks" in values:
        from remask.commands.finetune_tasks import render as tasks

        return "\n".join([*lines, tasks(values)])
    best = next(r for r in values["runs"] if r["seed"] == values["seeds"]["best"])
    count = values["seeds"]["count"]
    origin = f"{f'median of {count} seeds' if count > 1 else 'one seed'}; * chooses between models"
    return "\n".join([*lines, *score_lines(values, best, origin), f"model: {values['model']}"])


def score_lines(values: Mapping[str, Any], tables: Mapping[str, Any], origin: str) -> list[str]:
    """A model's tables and metrics. `origin`: where the numbers come from."""
    lines = []
    for table in ("table", "tags"):  # of tags: by type of entity, then by tag of word
        lines += [metrics.render(tables[table]), ""] if table in tables else []
    for name, spread in values["spread"].items():
        mark = "*" if name == values["metric"] else " "
        over = f"  ({spread['low']:.4f} to {spread['high']:.4f})" if len(spread["seeds"]) > 1 else ""
        lines.append(f"{mark} {name:24} {spread['median']:.4f}{over}")
    lines.append(f"  {origin}")
    if "majority_accuracy" in values["data"]:
        lines.append(f"  always the most frequent class: accuracy {values['data']['majority_accuracy']:.4f}")
    return [*lines, *(f"  note: {note}" for note in values["notes"])]


# ---------------------------------------------------------------------------------------------------- command


def task_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what is fine-tuned on what; `search` has them, too."""
    options = [
        click.argument("file", required=False, type=click.Path(path_type=Path)),
        click.option(
            "--task",
            help="classify, regress, multilabel, pair, ner, qa, choice, or a named one: glue:NAME, squad2, race, …",
        ),
        click.option("--init", help="The model to start from."),
        click.option("--train", "train_file", help="The file to train on."),
        click.option("--dev", "dev_file", help="The file to evaluate on; without it a fifth of the training file."),
        click.option("--data", help="Folder of a named task's files."),
        click.option("--text", "table__text", help="Column with the text."),
        click.option("--text2", "table__text2", help="Column with the second text."),
        click.option("--label", "table__label", help="Column with the label."),
        click.option("--seeds", type=int, help="How many runs; the result is their median and spread."),
        click.option("--learn", type=click.Choice(["all", "heads", "lora"]), help="What learns; all by default."),
        click.option("--max-train", type=int, help="Train on so many examples at most."),
        click.option("--max-dev", type=int, help="Score on so many examples at most."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def with_recipe(common: Common, file: Path | None, task: str | None) -> Common:
    """A named task without a run file comes with its recipe, below what the user says."""
    recipe = TASKS.get(task, {}).get("recipe", {}) if file is None and task else {}
    return Common(
        (*(f"{key}={value}" for key, value in recipe.items()), *common.assignments),
        common.seed, common.dry_run, common.print_config, common.allow_change, common.json, common.progress,
    )  # fmt: skip


@click.command()
@task_options
@click.option("--from-scratch", is_flag=True, help="The same network with random weights, for comparison.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the model and its results.")
@click.option("--epochs", "train__epochs", type=float, help="Passes over the training data.")
@click.option(
    "--grid", "grid_words", multiple=True, metavar="NAME=A,B…",
    help=f"Try values with one another: lr=1e-5,2e-5 (names: {', '.join(TUNED)}; may be given several times).",
)  # fmt: skip
@common_options
def command(
    common: Common, file: Path | None, out: Path, from_scratch: bool, grid_words: tuple[str, ...], **options: Any
) -> None:
    """Fine-tune a model on a task of your own or of the papers.

    remask finetune --task classify --init MODEL --train my.csv --text body --label topic --out DIR
    """
    common = common.of_rank()
    options |= {f"grid__{name}": values for name, values in map(_grid_word, " ".join(grid_words).split())}
    options["init_weights"] = False if from_scratch else None
    built = with_recipe(common, file, options["task"]).build(FinetuneRun, file, **options)
    common.show_differences(built)
    if common.dry_run:
        dry_run(built.run, common.progress)
        return
    if not built.run.init:
        raise UsageError("--init MODEL is needed")
    values = main(built.run, out, progress=common.progress, allow_change=common.allow_change)
    if is_first_rank():
        common.result(values, render(values))


def dry_run(run: FinetuneRun, progress: Progress) -> None:
    """Everything but training."""
    if run.tasks:
        from remask.commands.finetune_tasks import prepare as prepare_tasks

        prepare_tasks(run, progress)
    else:
        prepare(run, progress)


def _grid_word(word: str) -> tuple[str, list[Any]]:
    name, equals, values = word.partition("=")
    if not equals or name not in TUNED:
        raise UsageError(f"--grid {word}: write NAME=VALUE,VALUE with a name of {', '.join(TUNED)}")
    return name, parse_assignment(f"{name}=[{values}]")[1]
