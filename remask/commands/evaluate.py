"""`remask evaluate`: one model on many tasks, in one table.

In: MODEL, names of tasks and the folder with their files. Out: a metric for each. A model that was fine-tuned on a
task is only scored on its dev file; for any other task it is fine-tuned first, with the task's recipe, in OUT/TASK
(which is kept, so that the same command goes on and repeats nothing). BLiMP and perplexity (on the held-out text of
prepared data) need no training, only a masked-LM head.
Not here: how a task is read, trained or scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remask import artifacts
from remask.commands import Common, common_options
from remask.commands import finetune as finetuning
from remask.commands.predict import TaskModel, open_task_model
from remask.config import Config, build_run, setting
from remask.errors import ConfigError, DataError, MissingInputError, RemaskError, UsageError
from remask.progress import Progress
from remask.tasks import problems
from remask.tasks.specs import TASKS

if TYPE_CHECKING:
    from remask.model.store import Loaded
    from remask.tokenizer import Tokenizer

MAX_WORD_DOCUMENTS = 64  # of each held-out source, for bits per byte of whole words
GROUPS = {"glue": tuple(name for name in TASKS if name.startswith("glue:"))}
ZERO_SHOT = ("blimp", "perplexity")


class EvaluateRun(Config):
    """A model and the tasks it is to show itself on."""

    seed: int = setting(0, "the first seed of fine-tuning", ge=0)
    seeds: int = setting(1, "fine-tuning runs a task", ge=1)
    model: str = setting("", "the model")
    tasks: tuple[str, ...] = setting((), "glue (all of it), glue:NAME, ner, squad1, squad2, race, blimp, perplexity")
    data: str = setting("", "folder with the tasks' files (or with folders named as the tasks')")
    max_train: int | None = setting(None, "train on so many examples a task at most", ge=1)
    max_dev: int | None = setting(None, "score on so many dev examples a task at most", ge=1)
    max_pairs: int | None = setting(None, "BLiMP: so many pairs of each paradigm", ge=1)
    epochs: float | None = setting(None, "passes of fine-tuning; null: the recipe's", gt=0)
    precision: str = setting("auto", "of fine-tuning: auto, fp32, bf16 or fp16")


def main(run: EvaluateRun, out: Path | None, *, progress: Progress) -> dict[str, Any]:
    """Each task in turn; a group's task without files is passed over, and said."""
    from remask.model.store import open_model

    loaded = open_model(Path(run.model))
    results: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    for task, required in _expand(run.tasks):
        try:
            results[task] = _one_task(run, task, loaded, out, progress)
        except MissingInputError as error:
            if required:
                raise
            skipped[task] = str(error)
            progress.say(f"  {task}: left out: {error}")
    if not results:
        raise DataError(f"{run.data}: has the files of none of these tasks: {', '.join(run.tasks)}")
    values = {
        "metrics": {f"{task}.{name}": v for task, result in results.items() for name, v in result["metrics"].items()},
        "tasks": results,
        "skipped": skipped,
        "model": run.model,
    }
    if out is not None:
        with artifacts.output_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        artifacts.write_json(out / "results.json", values)
    return values


def _expand(tasks: Sequence[str]) -> list[tuple[str, bool]]:
    """(task, whether its files must be there)."""
    if not tasks:
        raise UsageError(f"--tasks is needed: {', '.join([*GROUPS, *TASKS, *ZERO_SHOT])}")
    found: dict[str, bool] = {}
    for task in tasks:
        if task in GROUPS:
            found |= {name: found.get(name, False) for name in GROUPS[task]}
        elif task in TASKS or task in ZERO_SHOT:
            found[task] = True
        else:
            raise ConfigError(f"tasks: {task!r} is not one of {', '.join([*GROUPS, *TASKS, *ZERO_SHOT])}")
    return list(found.items())


def _one_task(run: EvaluateRun, task: str, loaded: Loaded, out: Path | None, progress: Progress) -> dict[str, Any]:
    if task in ZERO_SHOT:
        if not loaded.heads.masked_lm:
            raise DataError(f"{loaded.folder}: has no masked-LM head, which {task} needs")
        return (_blimp if task == "blimp" else _perplexity)(run, loaded, progress)
    folder = _folder(run.data, task)
    own = _own_head(loaded, task)
    if own is not None:
        return _score_only(run, own, task, folder)
    if out is None:
        raise UsageError(f"{run.model} has no head for {task}, so it is fine-tuned first: say where with --out DIR")
    recipe = [f"{key}={value}" for key, value in TASKS[task]["recipe"].items()]
    options = {
        "task": task, "init": run.model, "data": str(folder), "seed": run.seed, "seeds": run.seeds,
        "max_train": run.max_train, "max_dev": run.max_dev, "train.epochs": run.epochs,
        "train.precision": run.precision,
    }  # fmt: skip
    values = finetuning.main(
        build_run(finetuning.FinetuneRun, None, recipe, options).run, out / task.replace(":", "-"), progress=progress
    )
    keys = ("metric", "metrics", "spread", "data", "notes", "model")
    return {key: values[key] for key in keys}


def _folder(data: str, task: str) -> Path:
    """GLUE's tasks may lie together in a folder `glue`."""
    base = Path(data)
    if not base.is_dir():
        raise MissingInputError(f"{base}: no such folder")
    inside = base / "glue"
    return inside if task.startswith("glue:") and inside.is_dir() else base


def _own_head(loaded: Loaded, task: str) -> TaskModel | None:
    """The model as a model of this task, if it is one."""
    try:
        model = open_task_model(loaded.folder)
    except RemaskError:
        return None
    return model if model.task == task else None


def _score_only(run: EvaluateRun, model: TaskModel, task: str, folder: Path) -> dict[str, Any]:
    from remask.tasks.rows import frame_for

    loaded = model.loaded
    problem = problems.open_problem(task, model.table, train=None, dev=None, folder=folder, max_dev=run.max_dev)
    problems.check_same_labels(problem, model.labels)
    tokenizer = _tokenizer(loaded)
    settings = loaded.settings
    frame = frame_for(tokenizer, model.rows, model_length=settings.max_length, num_segments=settings.num_segments)
    rows = problems.encode(problem.dev, problem.kind, problem.labels, tokenizer, frame, model.rows)
    outputs = finetuning.predict_rows(loaded.network, problem.kind, rows, tokenizer.pad_id)
    result = problems.score(outputs, rows, problem.dev, problem.kind, problem.labels)
    facts = {"metric": problem.metric, "data": dict(problem.facts), "notes": list(problem.notes)}
    return {**result, **facts, "model": str(loaded.folder)}


def _tokenizer(loaded: Loaded) -> Tokenizer:
    from remask.tokenizer import load_tokenizer

    if loaded.tokenizer_folder is None:
        raise DataError(f"{loaded.folder}: has no tokenizer, so texts cannot be read for it")
    return load_tokenizer(loaded.tokenizer_folder)


def _perplexity(run: EvaluateRun, loaded: Loaded, progress: Progress) -> dict[str, Any]:
    """Loss, perplexity, accuracy and bits per byte of masked tokens, on rows and masks that are the same for every
    model with this vocabulary; and bits per byte of whole words, which compare across vocabularies."""
    import torch

    from remask.data.evaluation import evaluation_batches, is_comparable, word_batches
    from remask.data.settings import DataSettings
    from remask.objectives import held_out
    from remask.tokenizer import load_tokenizer

    base = Path(run.data)
    prepared = base / "prepared" if (base / "prepared").is_dir() else base
    if not (prepared / artifacts.MANIFEST).is_file():
        raise MissingInputError(f"{prepared}: is no prepared data (remask prepare), which perplexity is measured on")
    tokenizer = _tokenizer(loaded)
    if load_tokenizer(prepared / "tokenizer").fingerprint != tokenizer.fingerprint:
        raise DataError(f"{prepared}: was prepared with another vocabulary than that of {loaded.folder}")
    settings = DataSettings(length=min(512, loaded.settings.max_length))
    with progress.stage("perplexity") as stage, torch.inference_mode():
        held = evaluation_batches(prepared, settings, tokenizer, max_rows=run.max_dev)
        found = held_out(loaded.network, held, tokenizer.token_lengths)
        if is_comparable(tokenizer):
            words = word_batches(prepared, settings, tokenizer, max_documents=MAX_WORD_DOCUMENTS)
            found = {
                **found,
                "word_bits_per_byte": held_out(loaded.network, words, tokenizer.token_lengths)["bits_per_byte"],
            }
        stage.update(len(held))
    return {"metrics": dict(found), "metric": "perplexity", "notes": [], "data": {"prepared": str(prepared)}}


def _blimp(run: EvaluateRun, loaded: Loaded, progress: Progress) -> dict[str, Any]:
    """Zero-shot, in the precision of the weights."""
    import torch

    from remask.tasks.blimp import num_masked_rows, read_blimp, score_pairs
    from remask.tasks.rows import frame_for
    from remask.tasks.settings import RowSettings

    tokenizer, network = _tokenizer(loaded), loaded.network
    base = Path(run.data)
    pairs = read_blimp(base / "blimp" if (base / "blimp").is_dir() else base, run.max_pairs)
    settings = loaded.settings
    frame = frame_for(tokenizer, RowSettings(), model_length=settings.max_length, num_segments=settings.num_segments)

    def log_probs(batch: Any) -> Any:
        with torch.inference_mode():
            tensors = batch.map(torch.as_tensor)
            logits_MV = network.masked_lm(network.encode(tensors), tensors.masked_positions_M).float()
            right_M = logits_MV.gather(1, tensors.masked_labels_M[:, None])[:, 0]
            return (right_M - logits_MV.logsumexp(1)).numpy()

    with progress.stage("blimp", num_masked_rows(pairs, tokenizer), "rows") as stage:
        result = score_pairs(pairs, log_probs, tokenizer, frame, stage.advance)
    notes = [] if run.max_pairs is None else [f"the first {run.max_pairs} pairs of each paradigm"]
    return {**result, "metric": "accuracy", "notes": notes, "data": {"pairs": len(pairs)}}


def render(values: Mapping[str, Any]) -> str:
    """One line a task, then what to know about them."""
    lines = []
    for task, result in values["tasks"].items():
        name = result["metric"]
        spread = result.get("spread", {}).get(name)
        over = f" ({spread['low']:.4f} to {spread['high']:.4f})" if spread and len(spread["seeds"]) > 1 else ""
        others = ", ".join(f"{k} {v:.4f}" for k, v in result["metrics"].items() if k != name)
        lines.append(f"{task:14} {name:14} {result['metrics'][name]:.4f}{over}  [{others}]")
        lines += [f"{'':14}   note: {note}" for note in result["notes"]]
    lines += [f"{task:14} left out: {reason}" for task, reason in values["skipped"].items()]
    return "\n".join(lines)


@click.command()
@click.argument("model")
@click.option(
    "--tasks", required=True, help="Comma-separated: glue, glue:NAME, ner, squad1, squad2, race, blimp, perplexity."
)
@click.option("--data", required=True, help="Folder with the tasks' files.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for fine-tuned models and results.json.")
@click.option("--seeds", type=int, help="Fine-tuning runs a task; the result is their median.")
@click.option("--max-train", type=int, help="Train on so many examples a task at most.")
@click.option("--max-dev", type=int, help="Score on so many examples a task at most.")
@click.option("--max-pairs", type=int, help="BLiMP: so many pairs of each paradigm.")
@click.option("--epochs", type=float, help="Passes of fine-tuning.")
@common_options
def command(common: Common, tasks: str, out: Path | None, **options: Any) -> None:
    """Score MODEL on tasks. Where it has no head for one, it is fine-tuned first, in OUT."""
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    built = common.build(EvaluateRun, None, tasks=names, **options)
    if common.dry_run:
        _expand(built.run.tasks)
        return
    values = main(built.run, out, progress=common.progress)
    if finetuning.is_first_rank():
        common.result(values, render(values))
