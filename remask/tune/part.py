"""A task made ready for a model: its problem, its rows, the head it needs, its score.

In: the opened model and a task's files. Out: a `Part`, which is all of a single-task run's data, or one of several over
one encoder; every mistake in the files shows here. Also here: the published folder of a finished model. Not here:
training.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remask import artifacts
from remask.config import dump, fingerprint
from remask.errors import ConfigError
from remask.progress import Progress, counted
from remask.tasks.kind import Problem, TaskSource
from remask.tasks.kinds import TASK_JSON, StoredTask, open_problem
from remask.tune.settings import FinetuneRun, TaskFiles
from remask.tune.units import Units

if TYPE_CHECKING:
    from remask.answer.reader import Reader
    from remask.model.network import Network
    from remask.model.settings import HeadSettings, ModelSettings, WriterSettings
    from remask.model.store import Loaded
    from remask.task_objectives import TaskObjective
    from remask.tasks.rows import Rows
    from remask.tasks.settings import LossSettings
    from remask.tokenizer import Tokenizer


@dataclass(frozen=True)
class Start:
    """The model that a run begins with."""

    reader: Reader
    fingerprint: str

    @property
    def loaded(self) -> Loaded:
        return self.reader.loaded

    @property
    def tokenizer(self) -> Tokenizer:
        return self.reader.tokenizer


@dataclass(frozen=True)
class Part:
    """One task's examples as rows for one model."""

    files: TaskFiles
    problem: Problem
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

    def objective(self, seed: int, network: Network, loss: LossSettings) -> TaskObjective:
        from remask.task_objectives import TaskObjective

        kind = self.problem.kind
        return TaskObjective(kind, seed, kind.plan_loss(self.problem, loss, network.head_settings))

    def score(self, network: Network, check: Callable[[], None]) -> dict[str, Any]:
        """Metrics on the dev rows, the tables behind them, and the value that chooses between models."""
        problem = self.problem
        outputs = self.outputs(network, check)
        result = problem.kind.score(outputs, self.dev_rows, problem.dev, problem.labels)
        return {**result, "score": result["metrics"][problem.metric]}

    def outputs(self, network: Network, check: Callable[[], None]) -> list[Any]:
        """What a network in training says about the dev rows, in the file's own units."""
        from remask.answer.runner import Runner

        has_segments = self.dev_rows.segments is not None
        runner = Runner(network, self.pad_id, has_segments=has_segments)
        outputs = runner.outputs(self.dev_rows, self.problem.kind, check, self.stored.drafting)
        return outputs if self.units is None else self.units.outside(outputs)

    @property
    def stored(self) -> StoredTask:
        """What whoever asks the model must know of the task."""
        problem = self.problem
        files = self.files
        return StoredTask(
            problem.task, problem.kind, problem.labels, problem.metric, files.table, files.rows, decode=files.decode
        )


def open_start(run: FinetuneRun) -> Start:
    from remask.answer.reader import open_reader
    from remask.model.store import model_fingerprint

    if not run.init:
        raise ConfigError("init is needed: the model to start from (--init MODEL)")
    reader = open_reader(Path(run.init))
    if run.target_tokenizer is not None:
        from remask.tokenizer import load_tokenizer

        reader = replace(reader, targets=load_tokenizer(Path(run.target_tokenizer)))
    return Start(reader, model_fingerprint(reader.loaded.folder))


def open_part(run: FinetuneRun, files: TaskFiles, start: Start, progress: Progress, name: str = "") -> Part:
    """Read and encode a task. `files`: the run itself, or one of its several tasks, which is called `name`."""
    source = TaskSource(
        files.task, files.table, files.path(files.train_file), files.path(files.dev_file), files.path(files.data)
    )
    problem = open_problem(source, max_train=files.max_train, max_dev=files.max_dev)
    problem = replace(problem, notes=(*problem.notes, *_model_notes(run, start, problem)))
    frame = start.reader.frame(files.rows)
    train, dev = (
        problem.kind.encode(items, problem.labels, start.tokenizer, frame, files.rows)
        for items in (problem.train, problem.dev)
    )
    units = Units.of(problem)
    train = train if units is None else units.inside(train)
    part = Part(files, problem, train, dev, start.tokenizer.pad_id, units)
    before = f"  {name}: " if name else "  "
    for note in problem.notes:
        progress.say(f"{before}{note}")
    if part.texts_cut:
        progress.say(f"{before}{counted(part.texts_cut, 'text')} cut after {frame.max_length} tokens")
    if train.weights is not None:
        steps = -(-train.num_groups // run.batch.num_rows)
        progress.say(
            f"{before}{counted(len(problem.train), 'text')} in {train.num_groups:,} windows of up to "
            f"{frame.max_length} tokens: {steps:,} steps an epoch; the windows of a text count as one"
        )
    return part


def head_settings(run: FinetuneRun, start: Start, problem: Problem) -> HeadSettings:
    from remask.model.settings import HeadSettings

    had = start.loaded.heads
    pooling = had.pooling if run.pooling == "model" else run.pooling
    if run.pooling == "model" and had.masked_lm and not (had.sentence or had.num_classes or had.choice):
        pooling = "first"  # the mean of a masked LM is for embeddings; a head is put where the papers put it
    values: dict[str, Any] = {**problem.kind.head(problem), "pooling": pooling}
    if problem.kind.writes:
        values["writer"] = writer_settings(run, start)
    return HeadSettings.model_validate(values)


def writer_settings(run: FinetuneRun, start: Start) -> WriterSettings:
    """The decoder: as the run says, with the vocabulary that it writes with. A model that writes already keeps its
    own."""
    from remask.model.settings import WriterSettings

    if (had := start.loaded.heads.writer) is not None:
        return had
    own = start.reader.targets
    written = own or start.tokenizer
    vocabulary = {"vocab_size": own and own.vocab_size, "start_id": written.bos_id, "end_id": written.eos_id}
    return WriterSettings.model_validate({**dump(run.decoder), **vocabulary})


def _model_notes(run: FinetuneRun, start: Start, problem: Problem) -> list[str]:
    """What to know about what learns: LoRA without a folder for peft, more top layers than there are."""
    from remask.model.interop_config import no_class

    settings = start.loaded.settings
    notes = []
    if run.learn == "lora" and (reasons := no_class(settings, head_settings(run, start, problem))):
        why = f"transformers has no class for this network ({', '.join(reasons)})"
        notes.append(f"the model will have no adapter folder for peft: {why}")
    return notes


def fresh_network(run: FinetuneRun, start: Start, part: Part, seed: int) -> Network:
    """A fresh head on the model's encoder, or on a fresh one; all of it learns."""
    from remask.model.network import build_network, with_heads
    from remask.model.settings import HeadSettings

    loaded, heads = start.loaded, head_settings(run, start, part.problem)
    settings = model_settings(run, loaded.settings)
    if not run.init_weights:
        return build_network(settings, heads, seed)
    network = loaded.network
    stored = start.reader.stored
    other_task = stored is not None and stored.name != part.problem.task  # classes 0 and 1 are no sign of the same
    if part.problem.kind.writes:
        return writing_network(network, heads, settings, seed)
    if (loaded.labels or ()) != part.problem.labels or other_task:
        network = with_heads(network, HeadSettings(pooling=loaded.heads.pooling), seed)  # another task's head goes
    keeps_numbers = part.units is not None and network.heads.classifier is not None
    network = with_heads(network, heads, seed, settings)
    if part.units is not None and keeps_numbers:
        part.units.back.fold(network.heads.classifier)
    return network


def writing_network(network: Network, heads: HeadSettings, settings: ModelSettings, seed: int) -> Network:
    """The model with a decoder that starts from its encoder and masked LM; one that writes already goes on."""
    from remask.model.network import with_heads

    changed = with_heads(network, heads, seed, settings)
    if network.heads.writer is None:
        assert changed.heads.writer is not None
        changed.heads.writer.start_from(changed.encoder, network.heads.masked_lm)
    return changed


def model_settings(run: FinetuneRun, settings: ModelSettings) -> ModelSettings:
    """The model's own, with the run's dropout: a pretraining that reads nothing twice needs none, a small task does."""
    if run.dropout is None:
        return settings
    names = ("dropout", "attention_dropout", "head_dropout")
    return settings.model_copy(update=dict.fromkeys(names, run.dropout))


def let_learn(run: FinetuneRun, encoder: Any, parts: Iterable[Part], seed: int) -> None:
    """What `learn` says, in place; the top layers are the loop's own setting. Of the embeddings only the rows that the
    tasks' training texts use learn (an averaged model, which is all rows, has them all)."""
    parts = list(parts)
    if any(part.problem.kind.writes for part in parts) and run.learn == "all":
        return  # its output is the whole table
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


def tokenizer_files(start: Start) -> dict[str, bytes]:
    """The vocabulary, or both of a model that writes with another one, under their names in a model's folder."""
    files = {f"tokenizer/{name}": data for name, data in start.tokenizer.files().items()}
    if start.reader.targets is not None:
        files |= {f"target_tokenizer/{name}": data for name, data in start.reader.targets.files().items()}
    return files


def publish_model(folder: Path, network: Network, run: FinetuneRun, start: Start, part: Part) -> None:
    """A finished model with its task: LoRA merged, and beside it under `adapter/` what peft loads over the start."""
    from remask.model.adapters import ADAPTER, adapter_files, merged_network
    from remask.model.store import save_model

    extra: dict[str, bytes] = tokenizer_files(start)
    extra[TASK_JSON] = part.stored.to_json()
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
