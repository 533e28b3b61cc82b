"""A task made ready for a model: its problem, its rows, the head it needs, its score.

In: the opened model and a task's files. Out: a `Part`, which is all of a single-task run's data, or one of several over
one encoder; every mistake in the files shows here. Also here: what a network says about rows (`predict_rows`), and the
published folder of a finished model. Not here: training.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remask import artifacts, signals
from remask.commands.finetune_run import FinetuneRun, TaskFiles
from remask.commands.finetune_units import Units
from remask.config import dump, fingerprint
from remask.errors import ConfigError, DataError
from remask.progress import Progress
from remask.tasks import problems

if TYPE_CHECKING:
    from remask.model.network import Network
    from remask.model.settings import HeadSettings, ModelSettings
    from remask.model.store import Loaded
    from remask.task_objectives import TaskObjective
    from remask.tasks.rows import Rows
    from remask.tasks.settings import LossSettings
    from remask.tokenizer import Tokenizer


@dataclass(frozen=True)
class Start:
    """The model that a run begins with."""

    loaded: Loaded
    tokenizer: Tokenizer
    fingerprint: str


@dataclass(frozen=True)
class Part:
    """One task's examples as rows for one model."""

    files: TaskFiles
    problem: problems.Problem
    train_rows: Rows
    dev_rows: Rows
    pad_id: int
    units: Units | None  # of a regression

    @property
    def fingerprint(self) -> str:
        return fingerprint([[repr(item) for item in self.problem.train], [repr(item) for item in self.problem.dev]])

    @property
    def texts_cut(self) -> int:
        return self.train_rows.num_cut + self.dev_rows.num_cut

    def objective(self, seed: int, network: Any, loss: LossSettings) -> TaskObjective:
        from remask.task_objectives import TaskObjective

        problem = self.problem
        return TaskObjective(
            problem.kind, seed, answerable=network.head_settings.answerable,
            class_weights=problems.class_weights(problem, loss), margin=problems.ranks_by_margin(problem, loss),
        )  # fmt: skip

    def score(self, network: Any, check: Callable[[], None]) -> dict[str, Any]:
        """Metrics on the dev rows, the tables behind them, and the value that chooses between models."""
        problem = self.problem
        outputs = predict_rows(network, problem.kind, self.dev_rows, self.pad_id, check)
        outputs = outputs if self.units is None else self.units.outside(outputs)
        result = problems.score(outputs, self.dev_rows, problem.dev, problem.kind, problem.labels)
        return {**result, "score": result["metrics"][problem.metric]}

    def task_json(self) -> bytes:
        """What `predict` must know of the task."""
        facts = {
            "task": self.problem.task,
            "kind": self.problem.kind,
            "labels": list(self.problem.labels),
            "metric": self.problem.metric,
            "table": dump(self.files.table),
            "rows": dump(self.files.rows),
        }
        return json.dumps(facts, indent=1, ensure_ascii=False).encode()


def open_start(run: FinetuneRun) -> Start:
    from remask.model.store import open_model
    from remask.tokenizer import load_tokenizer

    if not run.init:
        raise ConfigError("init is needed: the model to start from (--init MODEL)")
    loaded = open_model(Path(run.init))
    if loaded.tokenizer_folder is None:
        raise DataError(f"{loaded.folder}: has no tokenizer, so texts cannot be read for it")
    tokenizer = load_tokenizer(loaded.tokenizer_folder)
    if tokenizer.vocab_size > loaded.settings.vocab_size:
        raise DataError(
            f"{loaded.folder}: the tokenizer has {tokenizer.vocab_size:,} entries, "
            f"the model only {loaded.settings.vocab_size:,}"
        )
    return Start(loaded, tokenizer, _model_fingerprint(loaded.folder))


def _model_fingerprint(folder: Path) -> str:
    weights = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".json"))
    return fingerprint([[path.name, artifacts.sha256_of(path)] for path in weights if path.name != artifacts.MANIFEST])


def open_part(run: FinetuneRun, files: TaskFiles, start: Start, progress: Progress, name: str = "") -> Part:
    """Read and encode a task. `files`: the run itself, or one of its several tasks, which is called `name`."""
    from remask.tasks.rows import frame_for

    problem = problems.open_problem(
        files.task, files.table, train=files.path(files.train_file), dev=files.path(files.dev_file),
        folder=files.path(files.data), max_train=files.max_train, max_dev=files.max_dev,
    )  # fmt: skip
    problem = replace(problem, notes=(*problem.notes, *_adapter_notes(run, start, problem)))
    tokenizer, model = start.tokenizer, start.loaded.settings
    frame = frame_for(tokenizer, files.rows, model_length=model.max_length, num_segments=model.num_segments)
    train, dev = (
        problems.encode(items, problem.kind, problem.labels, tokenizer, frame, files.rows)
        for items in (problem.train, problem.dev)
    )
    units = Units.of(problem)
    train = train if units is None else units.inside(train)
    part = Part(files, problem, train, dev, tokenizer.pad_id, units)
    before = f"  {name}: " if name else "  "
    for note in problem.notes:
        progress.say(f"{before}{note}")
    if part.texts_cut:
        progress.say(f"{before}{part.texts_cut:,} texts are longer than {frame.max_length} tokens and were cut")
    return part


def head_settings(run: FinetuneRun, start: Start, problem: problems.Problem) -> HeadSettings:
    from remask.model.settings import HeadSettings

    pooling = start.loaded.heads.pooling if run.pooling == "model" else run.pooling
    return HeadSettings.model_validate({**problem.head, "pooling": pooling})


def _adapter_notes(run: FinetuneRun, start: Start, problem: problems.Problem) -> list[str]:
    """LoRA without a folder for peft, and why."""
    from remask.model.interop_config import no_class

    reasons = no_class(start.loaded.settings, head_settings(run, start, problem)) if run.learn == "lora" else []
    why = f"transformers has no class for this network ({', '.join(reasons)})"
    return [f"the model will have no adapter folder for peft: {why}"] if reasons else []


def fresh_network(run: FinetuneRun, start: Start, part: Part, seed: int) -> Network:
    """A fresh head on the model's encoder, or on a fresh one; all of it learns."""
    from remask.model.network import build_network, with_heads
    from remask.model.settings import HeadSettings

    loaded, heads = start.loaded, head_settings(run, start, part.problem)
    settings = model_settings(run, loaded.settings)
    if not run.init_weights:
        return build_network(settings, heads, seed)
    network = loaded.network
    if (loaded.labels or ()) != part.problem.labels or _task_of(loaded.folder) not in (None, part.problem.task):
        network = with_heads(network, HeadSettings(pooling=loaded.heads.pooling), seed)  # another task's head goes
    keeps_numbers = part.units is not None and network.heads.classifier is not None
    network = with_heads(network, heads, seed, settings)
    if part.units is not None and keeps_numbers:
        part.units.back.fold(network.heads.classifier)
    return network


def model_settings(run: FinetuneRun, settings: ModelSettings) -> ModelSettings:
    """The model's own, with the run's dropout: a pretraining that reads nothing twice needs none, a small task does."""
    if run.dropout is None:
        return settings
    names = ("dropout", "attention_dropout", "head_dropout")
    return settings.model_copy(update=dict.fromkeys(names, run.dropout))


def _task_of(folder: Path) -> str | None:
    """What a model was fine-tuned on, if it says so: classes 0 and 1 are no sign of the same task."""
    path = folder / "task.json"
    try:
        return json.loads(path.read_bytes())["task"] if path.is_file() else None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: damaged: {error!r}") from error


def let_learn(run: FinetuneRun, encoder: Any, parts: Iterable[Part], seed: int) -> None:
    """What `learn` says, in place; the top layers are the loop's own setting. Of the embeddings only the rows that the
    tasks' training texts use learn (an averaged model, which is all rows, has them all)."""
    if run.learn == "all" and run.train.ema_decay == 0.0:
        import numpy as np
        import torch

        from remask.model.used_rows import learn_used_rows

        ids = [ids for part in parts for ids in (*part.train_rows.ids, np.array([part.pad_id]))]
        learn_used_rows(encoder.embeddings, torch.from_numpy(np.concatenate(ids).astype(np.int64)))
    elif run.learn == "heads":
        encoder.requires_grad_(False)
    elif run.learn == "lora":
        from remask.model.adapters import add_lora

        add_lora(encoder, run.lora, seed)


def publish_model(folder: Path, network: Network, run: FinetuneRun, start: Start, part: Part) -> None:
    """A finished model with its task: LoRA merged, and beside it under `adapter/` what peft loads over the start."""
    from remask.model.adapters import ADAPTER, adapter_files, merged_network
    from remask.model.store import save_model

    extra = {f"tokenizer/{name}": data for name, data in start.tokenizer.files().items()}
    extra["task.json"] = part.task_json()
    with nullcontext() if part.units is None else part.units.spoken_by(network):
        if run.learn == "lora":
            extra |= {f"{ADAPTER}/{name}": data for name, data in adapter_files(network, run.lora, run.init).items()}
        save_model(
            folder, merged_network(network), None, part.problem.labels or None, inputs={"init": start.fingerprint},
            extra=extra, replace=True,
        )  # fmt: skip


def copy_model(source: Path, target: Path, extra: Mapping[str, bytes] | None = None) -> None:
    """A published model under another name, with more files, whole or not at all."""
    manifest: Mapping[str, Any] = artifacts.open_artifact(source, "model").manifest

    def fill(aside: Path) -> Mapping[str, Any]:
        for name in manifest["files"]:
            (aside / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, aside / name)
        for name, data in (extra or {}).items():
            (aside / name).write_bytes(data)
        return manifest["counts"]

    artifacts.publish(
        target, "model", fill, config=manifest["config"], inputs=manifest["inputs"], replace=True
    )  # fmt: skip


def drop_weights(folder: Path) -> None:
    """Of a fine-tuning run that lost against others only its results are kept."""
    for path in [*folder.glob("seed-*/best"), folder / "model", folder / "tasks"]:
        shutil.rmtree(path, ignore_errors=True)


def predict_rows(
    model: Any, kind: str, rows: Rows, pad_id: int, check: Callable[[], None] = signals.check
) -> list[Any]:
    """What a network says about every row, on the device it is on. `check` ends it, by raising, at a signal."""
    import torch

    from remask.task_objectives import task_logits
    from remask.tasks.predict import row_outputs

    device = next(model.parameters()).device

    def forward(batch: Any) -> Any:
        with torch.inference_mode():
            tensors = batch.map(lambda array: torch.as_tensor(array).to(device))
            return task_logits(model, kind, tensors).float().cpu().numpy()

    return row_outputs(forward, rows, pad_id, check=check)
