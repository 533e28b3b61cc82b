"""`remask finetune`: a pretrained model and a labelled file -> a model that answers, with its scores.

In: MODEL, a task and its files. Out: OUT/model (the best seed's best weights), OUT/results.json (every seed, median and
spread, tables, mistakes), OUT/report.html, OUT/seed-N (log, best weights). The recipe is the paper's (RoBERTa,
appendix, table 10): AdamW, weight decay 0.1, 6 % warmup, linear decay, 10 epochs, the best evaluation kept; the
learning rate follows the width. `init_weights: false` trains the same network from scratch. The same command in the
same folder goes on.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import click
from pydantic import model_validator

from remask import artifacts
from remask.commands import Common, common_options
from remask.config import Config, differences, dump, fingerprint, setting, switch, to_yaml
from remask.errors import ConfigError, DataError, UsageError
from remask.progress import Progress, duration
from remask.study.task_report import finetune_report
from remask.tasks import metrics, problems
from remask.tasks.settings import LossSettings, RowSettings, TableSettings, TaskBatchSettings
from remask.tasks.specs import TASKS
from remask.train.settings import TrainSettings

if TYPE_CHECKING:
    from remask.model.network import Network
    from remask.model.store import Loaded
    from remask.tasks.rows import Rows
    from remask.tokenizer import Tokenizer

# RoBERTa base's rate at its width. Narrow networks take more (a rule of thumb: 1e-4 at 256), and so does a start from
# random weights, which would otherwise be an unfair comparison.
BASE_RATE, BASE_WIDTH, RATE_POWER = 2e-5, 768, 1.5
SCRATCH_RATE = 3e-4


class FinetuneTrainSettings(TrainSettings):
    """The loop's settings with fine-tuning's defaults."""

    epochs: float | None = setting(10.0, "passes over the training data", gt=0)
    learning_rate: float | None = switch(  # pyrefly: ignore
        None, "peak learning rate; null: 2e-5 at width 768, more for narrow networks", effect="math",
        samples=[1e-5, 3e-5], gt=0,
    )  # fmt: skip
    warmup: float = switch(0.06, "linear warmup: a share of all steps, or steps", effect="math", samples=[0.0], ge=0)
    weight_decay: float = switch(0.1, "decoupled weight decay", effect="math", samples=[0.0, 0.01], ge=0)
    spike_sigmas: float = switch(
        0.0, "skip updates whose loss is an outlier; 0: never", effect="math", samples=[4.5], ge=0
    )
    keep_checkpoints: int = setting(1, "verified checkpoints that are kept", ge=1)


class FinetuneRun(Config):
    """One fine-tuning: a task, a model, some seeds."""

    seed: int = setting(0, "the first seed", ge=0)
    seeds: int = setting(1, "runs, with seeds seed, seed + 1, …; the result is their median and spread", ge=1)
    task: str = setting(
        "classify", "classify, regress, multilabel, pair, ner, qa, choice, or a named one such as glue:cola"
    )
    init: str = setting("", "the model to start from: a run, a checkpoint or a Hugging Face folder")
    pooling: Literal["model", "first", "mean"] = switch(
        "model", "what stands for a text: as the model has it, its first token's state, or the mean", effect="math"
    )
    init_weights: bool = switch(True, "start from its weights; false: the same network from scratch", effect="math")
    train_file: str | None = setting(None, "what to train on")
    dev_file: str | None = setting(None, "what to evaluate on; null: a fifth of train_file")
    data: str | None = setting(None, "folder of a named task's files")
    max_train: int | None = setting(None, "train on so many examples at most", ge=1)
    max_dev: int | None = setting(None, "score on so many dev examples at most", ge=1)
    table: TableSettings = setting(TableSettings(), "columns of the user's own table")
    rows: RowSettings = setting(RowSettings(), "texts -> rows")
    batch: TaskBatchSettings = setting(TaskBatchSettings(), "rows -> batches")
    loss: LossSettings = setting(LossSettings(), "what is minimised, where there is a choice")
    train: FinetuneTrainSettings = setting(FinetuneTrainSettings(), "the recipe")
    evaluations: int = setting(1, "evaluations in an epoch", ge=1)
    patience: int = switch(
        0, "end a seed after so many evaluations without a better score; 0: never", effect="math", samples=[1], ge=0
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems.kind_of(self.task)
        return self

    def path(self, value: str | None) -> Path | None:
        return None if value is None else Path(value)


@dataclass(frozen=True)
class Setup:
    """What all seeds share: the opened model, the task, its rows."""

    run: FinetuneRun
    loaded: Loaded
    tokenizer: Tokenizer
    problem: problems.Problem
    train_rows: Rows
    dev_rows: Rows
    identity: Mapping[str, Any]

    @cached_property
    def files(self) -> dict[str, bytes]:
        """What goes with the weights besides model.json: the vocabulary, and what `predict` must know of the task."""
        facts = {
            "task": self.problem.task,
            "kind": self.problem.kind,
            "labels": list(self.problem.labels),
            "metric": self.problem.metric,
            "table": dump(self.run.table),
            "rows": dump(self.run.rows),
        }
        files = {f"tokenizer/{name}": data for name, data in self.tokenizer.files().items()}
        return files | {"task.json": json.dumps(facts, indent=1, ensure_ascii=False).encode()}

    def publish(self, folder: Path, network: Network) -> None:
        """A finished model with its task."""
        from remask.model.store import save_model

        inputs = {"init": self.identity["init"]}
        save_model(folder, network, None, self.problem.labels or None, inputs=inputs, extra=self.files, replace=True)


# ---------------------------------------------------------------------------------------------------- the run


def main(run: FinetuneRun, out: Path, *, progress: Progress, allow_change: Sequence[str] = ()) -> dict[str, Any]:
    """All seeds, then the best one's model and results.json."""
    from remask.train.distributed import joined

    with ExitStack() as stack:
        world = stack.enter_context(joined())
        setup = prepare(run, progress)
        if world.is_first:
            stack.enter_context(artifacts.lock(out))
            _same_run(setup.identity, run, out, allow_change)
        world.barrier()
        if (out / "results.json").is_file():
            progress.say(f"{out}: finished already")
            return json.loads((out / "results.json").read_bytes())
        results = [_one_seed(setup, out / f"seed-{seed}", seed, progress, world) for seed in _seeds(run)]
        values = _summary(setup, results)
        if world.is_first:
            _publish(setup, out, results, values)
        world.barrier()
        return values | {"model": str(out / "model")}


def _seeds(run: FinetuneRun) -> range:
    return range(run.seed, run.seed + run.seeds)


def prepare(run: FinetuneRun, progress: Progress) -> Setup:
    """Open the model, read and encode the task; every mistake in the files shows here."""
    from remask.model.store import open_model
    from remask.tasks.rows import frame_for
    from remask.tokenizer import load_tokenizer

    if not run.init:
        raise ConfigError("init is needed: the model to start from (--init MODEL)")
    table = run.table
    problem = problems.open_problem(
        run.task, table, train=run.path(run.train_file), dev=run.path(run.dev_file), folder=run.path(run.data),
        max_train=run.max_train, max_dev=run.max_dev,
    )  # fmt: skip
    loaded = open_model(Path(run.init))
    if loaded.tokenizer_folder is None:
        raise DataError(f"{loaded.folder}: has no tokenizer, so texts cannot be read for it")
    tokenizer = load_tokenizer(loaded.tokenizer_folder)
    if tokenizer.vocab_size > loaded.settings.vocab_size:
        raise DataError(
            f"{loaded.folder}: the tokenizer has {tokenizer.vocab_size:,} entries, "
            f"the model only {loaded.settings.vocab_size:,}"
        )
    model = loaded.settings
    frame = frame_for(tokenizer, run.rows, model_length=model.max_length, num_segments=model.num_segments)
    rows = [
        problems.encode(items, problem.kind, problem.labels, tokenizer, frame, run.rows)
        for items in (problem.train, problem.dev)
    ]
    for note in problem.notes:
        progress.say(f"  {note}")
    if cut := rows[0].num_cut + rows[1].num_cut:
        progress.say(f"  {cut:,} texts are longer than {frame.max_length} tokens and were cut")
    identity = {
        "run": dump(run) | {"seeds": None, "seed": None},
        "init": _model_fingerprint(loaded.folder),
        "data": fingerprint([[repr(item) for item in problem.train], [repr(item) for item in problem.dev]]),
        "tokenizer": tokenizer.fingerprint,
    }
    return Setup(run, loaded, tokenizer, problem, rows[0], rows[1], identity)


def _model_fingerprint(folder: Path) -> str:
    weights = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".json"))
    return fingerprint([[path.name, artifacts.sha256_of(path)] for path in weights if path.name != artifacts.MANIFEST])


def _same_run(identity: Mapping[str, Any], run: FinetuneRun, out: Path, allow_change: Sequence[str]) -> None:
    """A folder belongs to one run; another one is refused with what differs."""
    path = out / "run.json"
    if path.is_file():
        try:
            before = json.loads(path.read_bytes())["identity"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: damaged: {error!r}") from error
        changed = [
            (key, old, new)
            for key, old, new in differences(before, json.loads(json.dumps(identity)))
            if not any(key.removeprefix("run.") == word or key.startswith(f"run.{word}.") for word in allow_change)
        ]
        if changed:
            lines = "\n".join(f"  {key}: {json.dumps(old)} -> {json.dumps(new)}" for key, old, new in changed)
            raise ConfigError(f"{out}: was made by another run; choose another --out:\n{lines}")
        results = out / "results.json"
        if results.is_file() and set(json.loads(results.read_bytes())["seeds"]["seeds"]) != set(_seeds(run)):
            results.unlink()  # more or other seeds are asked for: those that are done stay done
    artifacts.write_json(path, {"identity": identity})
    artifacts.write_bytes(out / "run.yaml", to_yaml(run).encode())


# ------------------------------------------------------------------------------------------------------ a seed


class _Enough(Exception):
    """The score has stopped improving."""


def _one_seed(setup: Setup, folder: Path, seed: int, progress: Progress, world: Any) -> dict[str, Any]:
    """Train one seed, keep its best evaluation's weights; gives that evaluation."""
    from remask.model.store import model_files
    from remask.task_objectives import TaskObjective
    from remask.tasks.batches import TaskBatches
    from remask.train.loop import train

    done = folder / "result.json"
    if done.is_file():
        return json.loads(done.read_bytes())
    run, problem = setup.run, setup.problem
    network = _network(setup, seed)
    batches = TaskBatches(
        setup.train_rows, setup.tokenizer.pad_id, run.batch, seed=seed, rank=world.rank, world_size=world.size
    )
    every = max(1, round(batches.steps_per_epoch / run.evaluations))
    settings = _train_settings(run, setup.loaded, every)
    objective = TaskObjective(
        problem.kind, seed, answerable=network.head_settings.answerable,
        class_weights=problems.class_weights(problem, run.loss), margin=problems.ranks_by_margin(problem, run.loss),
    )  # fmt: skip
    watch = _Watch(setup, folder, objective, world.is_first)
    watch.restore()
    started = time.monotonic()
    try:
        train(
            model=network, batches=batches, objective=objective, settings=settings, folder=folder,
            identity={**setup.identity, "seed": seed}, evaluate=watch.evaluate, progress=progress, seed=seed,
            carried=model_files(network.settings, network.head_settings, None, problem.labels or None) | setup.files,
            allow_change=("run",), world=world, name=f"fine-tune, seed {seed}",
        )  # fmt: skip
    except _Enough:
        progress.say(f"  no better score in {run.patience} evaluations: seed {seed} ends")
    result: dict[str, Any] = {
        "seed": seed,
        **watch.best,
        "history": watch.history,
        "seconds": round(time.monotonic() - started, 1),
    }
    if world.is_first:
        artifacts.write_json(done, result)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # only needed to go on
    shown = f"{problem.metric} {result['metrics'][problem.metric]:.4f}"
    progress.say(f"  seed {seed}: {shown} at step {result['step']:,}, {duration(result['seconds'])}")
    return result


def _network(setup: Setup, seed: int) -> Network:
    """A fresh head on the model's encoder, or on a fresh one."""
    from remask.model.network import build_network, with_heads
    from remask.model.settings import HeadSettings

    loaded, problem = setup.loaded, setup.problem
    pooling = loaded.heads.pooling if setup.run.pooling == "model" else setup.run.pooling
    heads = HeadSettings.model_validate({**problem.head, "pooling": pooling})
    if not setup.run.init_weights:
        return build_network(loaded.settings, heads, seed)
    network = loaded.network
    if (loaded.labels or ()) != problem.labels:
        network = with_heads(network, HeadSettings(pooling=loaded.heads.pooling), seed)  # another task's head goes
    return with_heads(network, heads, seed)


def _train_settings(run: FinetuneRun, loaded: Loaded, every: int) -> TrainSettings:
    """The loop's own settings: rate by width, evaluations and checkpoints by epoch, unless given."""
    values = dump(run.train)
    if values["learning_rate"] is None:
        scaled = BASE_RATE * (BASE_WIDTH / loaded.settings.hidden_size) ** RATE_POWER
        values["learning_rate"] = scaled if run.init_weights else max(scaled, SCRATCH_RATE)
    for key in ("eval_every", "save_every"):
        values[key] = every if values[key] is None else values[key]
    return TrainSettings.model_validate_json(json.dumps(values))


class _Watch:
    """Scores the model between steps, keeps the best weights on disk, and says when it is enough."""

    def __init__(self, setup: Setup, folder: Path, objective: Any, is_first: bool) -> None:
        self._setup, self._folder, self._objective, self._is_first = setup, folder, objective, is_first
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] = {}

    def restore(self) -> None:
        """After a stop: evaluations up to the checkpoint that the loop goes on from count, later ones come again."""
        path = self._folder / "history.json"
        if not path.is_file():
            return
        kept = json.loads(path.read_bytes())
        steps = [int(p.name.removeprefix("step-")) for p in (self._folder / "checkpoints").glob("step-*")]
        self.history = [entry for entry in kept["history"] if entry["step"] <= max(steps, default=0)]
        if kept["best"]["step"] in [entry["step"] for entry in self.history]:
            self.best = kept["best"]
        else:
            self.history = []  # the best weights are of a step that comes again, and with it all scores

    def evaluate(self, model: Any) -> dict[str, float]:
        setup = self._setup
        problem, rows = setup.problem, setup.dev_rows
        outputs = predict_rows(model, problem.kind, rows, setup.tokenizer.pad_id, stop=False)
        result = problems.score(outputs, rows, problem.dev, problem.kind, problem.labels)
        step, value = self._objective.step, result["metrics"][problem.metric]
        self.history.append({"step": step, **result["metrics"]})
        if not self.best or value > self.best["metrics"][problem.metric]:
            self.best = {"step": step, **result}
            if self._is_first:
                setup.publish(self._folder / "best", model)
        if self._is_first:
            artifacts.write_json(self._folder / "history.json", {"history": self.history, "best": self.best})
        since = [entry["step"] for entry in self.history if entry["step"] > self.best["step"]]
        if setup.run.patience and len(since) >= setup.run.patience:
            raise _Enough
        return result["metrics"]


def predict_rows(model: Any, kind: str, rows: Rows, pad_id: int, *, stop: bool = True) -> list[Any]:
    """What a network says about every row, on the device it is on. `stop`: end at a signal."""
    import torch

    from remask.task_objectives import task_logits
    from remask.tasks.predict import row_outputs

    device = next(model.parameters()).device

    def forward(batch: Any) -> Any:
        with torch.inference_mode():
            tensors = batch.map(lambda array: torch.as_tensor(array).to(device))
            return task_logits(model, kind, tensors).float().cpu().numpy()

    return row_outputs(forward, rows, pad_id, stop=stop)


# ----------------------------------------------------------------------------------------------------- results


def _summary(setup: Setup, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    problem = setup.problem
    spreads = {name: metrics.spread([r["metrics"][name] for r in results]) for name in results[0]["metrics"]}
    best = max(results, key=lambda r: r["metrics"][problem.metric])
    return {
        "task": problem.task,
        "metric": problem.metric,
        "metrics": {name: values["median"] for name, values in spreads.items()},
        "spread": spreads,
        "seeds": {"count": len(results), "seeds": [r["seed"] for r in results], "best": best["seed"]},
        "labels": list(problem.labels),
        "init": setup.run.init,
        "init_weights": setup.run.init_weights,
        "data": dict(problem.facts),
        "notes": list(problem.notes),
        "texts_cut": setup.train_rows.num_cut + setup.dev_rows.num_cut,
        "seconds": sum(r["seconds"] for r in results),
        "runs": list(results),
    }


def _publish(setup: Setup, out: Path, results: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> None:
    from remask.model.store import open_model

    best = open_model(out / f"seed-{values['seeds']['best']}" / "best")
    setup.publish(out / "model", best.network)
    artifacts.write_bytes(out / "report.html", finetune_report(values).encode())
    artifacts.write_json(out / "results.json", {**values, "model": str(out / "model")})


def render(values: Mapping[str, Any]) -> str:
    """The result for a person: the table of the best seed, the metrics with their spread, what to know."""
    best = next(r for r in values["runs"] if r["seed"] == values["seeds"]["best"])
    lines = [metrics.render(best["table"]), ""] if "table" in best else []
    for name, spread in values["spread"].items():
        mark = "*" if name == values["metric"] else " "
        over = f"  ({spread['low']:.4f} to {spread['high']:.4f})" if values["seeds"]["count"] > 1 else ""
        lines.append(f"{mark} {name:24} {spread['median']:.4f}{over}")
    count = values["seeds"]["count"]
    lines.append(f"  {'median of ' + str(count) + ' seeds' if count > 1 else 'one seed'}; * chooses between models")
    if "majority_accuracy" in values["data"]:
        lines.append(f"  always the most frequent class: accuracy {values['data']['majority_accuracy']:.4f}")
    return "\n".join([*lines, *(f"  note: {note}" for note in values["notes"]), f"model: {values['model']}"])


# ---------------------------------------------------------------------------------------------------- command


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--task",
    help="classify, regress, multilabel, pair, ner, qa, choice, or a named one: glue:NAME, squad1, squad2, race.",
)
@click.option("--init", help="The model to start from.")
@click.option("--from-scratch", is_flag=True, help="The same network with random weights, for comparison.")
@click.option("--train", "train_file", help="The file to train on.")
@click.option("--dev", "dev_file", help="The file to evaluate on; without it a fifth of the training file.")
@click.option("--data", help="Folder of a named task's files.")
@click.option("--text", help="Column with the text.")
@click.option("--text2", help="Column with the second text.")
@click.option("--label", help="Column with the label.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the model and its results.")
@click.option("--seeds", type=int, help="How many runs; the result is their median and spread.")
@click.option("--epochs", type=float, help="Passes over the training data.")
@click.option("--max-train", type=int, help="Train on so many examples at most.")
@click.option("--max-dev", type=int, help="Score on so many examples at most.")
@common_options
def command(
    common: Common, file: Path | None, out: Path, text: str | None, text2: str | None, label: str | None,
    from_scratch: bool, epochs: float | None, **options: Any,
) -> None:  # fmt: skip
    """Fine-tune a model on a task of your own or of the papers.

    remask finetune --task classify --init MODEL --train my.csv --text body --label topic --out DIR
    """
    task = options["task"]
    recipe = TASKS.get(task, {}).get("recipe", {}) if file is None and task else {}
    with_recipe = Common(
        (*(f"{key}={value}" for key, value in recipe.items()), *common.assignments),
        common.seed, common.dry_run, common.print_config, common.allow_change, common.json, common.progress,
    )  # fmt: skip
    built = with_recipe.build(
        FinetuneRun, file, **options, table__text=text, table__text2=text2, table__label=label, train__epochs=epochs,
        init_weights=False if from_scratch else None,
    )  # fmt: skip
    common.show_differences(built)
    if common.dry_run:
        prepare(built.run, common.progress)
        return
    if not built.run.init:
        raise UsageError("--init MODEL is needed")
    values = main(built.run, out, progress=common.progress, allow_change=common.allow_change)
    if is_first_rank():
        common.result(values, render(values))


def is_first_rank() -> bool:
    """Under torchrun one process speaks for all."""
    return int(os.environ.get("RANK", "0")) == 0
