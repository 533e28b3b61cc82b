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
from remask.schema import Json, Values
from remask.tasks.kind import Problem
from remask.tasks.kinds import TASK_JSON, StoredTask, kind_of
from remask.tasks.retrieve import Retrieve
from remask.tune.examples import opened
from remask.tune.settings import FinetuneRun, TaskFiles
from remask.tune.units import Units

if TYPE_CHECKING:
    import numpy as np

    from remask.answer.reader import Reader
    from remask.model.network import Network
    from remask.model.settings import HeadSettings, ModelSettings, WriterSettings
    from remask.model.store import Loaded
    from remask.schema import BatchSource
    from remask.task_objectives import PairObjective, TaskObjective
    from remask.tasks.rows import Rows
    from remask.tasks.settings import LossSettings, TaskBatchSettings
    from remask.tokenizer import Tokenizer


BESIDE = ("bottleneck", "prefix")  # what `learn` puts beside the encoder for good: nothing can absorb it


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

    def objective(self, seed: int, network: Network, loss: LossSettings) -> TaskObjective | PairObjective:
        from remask.task_objectives import TaskObjective

        kind, settings = self.problem.kind, network.settings
        if loss.consistency and not (settings.dropout or settings.attention_dropout or settings.head_dropout):
            raise ConfigError(
                f"loss.consistency = {loss.consistency:g}: compares two dropouts, and this model has none; set dropout"
            )
        ration = network.encoder.ration
        weight = 0.0 if ration is None else ration.settings.orthogonality
        return TaskObjective(kind, seed, kind.plan_loss(self.problem, loss, network.head_settings), loss, weight)

    def score(self, network: Network, check: Callable[[], None]) -> Json:
        """Metrics on the dev rows, the tables behind them, and the value that chooses between models."""
        problem = self.problem
        outputs = self.outputs(network, check)
        result = problem.kind.score(outputs, self.dev_rows, problem.dev, problem.labels)
        return {**result, "score": result["metrics"][problem.metric]}

    def outputs(self, network: Network, check: Callable[[], None]) -> list[Any]:
        """What a network in training says about the dev rows, in the file's own units."""
        from remask.answer.runner import Runner

        has_segments = self.dev_rows.segments is not None
        runner = Runner(network, self.pad_id, has_segments=has_segments, in_training=True)
        outputs = runner.outputs(self.dev_rows, self.problem.kind, check, self.stored.drafting)
        return outputs if self.units is None else self.units.outside(outputs)

    def batches(self, settings: TaskBatchSettings, seed: int, rank: int, world_size: int) -> BatchSource:
        """What a seed trains on."""
        from remask.tasks.batches import TaskBatches

        return TaskBatches(self.train_rows, self.pad_id, settings, seed=seed, rank=rank, world_size=world_size)

    def finished(self, network: Network) -> Network:
        """Without what only training needs."""
        return network

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
    if isinstance(kind_of(files.task), Retrieve):
        from remask.tune.retrieval import open_pairs

        return open_pairs(run, start, progress)
    problem = opened(files)
    if problem.kind.name == "prompt":
        from remask.tune.prompt import ready_problem

        problem = ready_problem(problem, start.reader, files.rows, init_weights=run.init_weights)
    problem = replace(problem, notes=(*problem.notes, *model_notes(run, start, problem)))
    frame = start.reader.frame(files.rows, model_settings(run, start.loaded.settings).max_length)
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
    embeds = problem.kind.method == "embed"  # a vector of its own, as the model was made to give
    if run.pooling == "model" and not embeds and had.masked_lm and not (had.sentence or had.num_classes or had.choice):
        pooling = "first"  # the mean of a masked LM is for embeddings; a head is put where the papers put it
    values: Json = {**problem.kind.head(problem), "pooling": pooling}
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


def model_notes(run: FinetuneRun, start: Start, problem: Problem) -> list[str]:
    """What to know about what learns: without a folder for peft, more top layers than there are."""
    from remask.model.peft_files import no_peft

    settings = start.loaded.settings
    notes = []
    if run.updates is not None or run.learn in BESIDE:
        reasons = no_peft(model_settings(run, settings), head_settings(run, start, problem))
        notes += [f"the model will have no adapter folder for peft: {reason}" for reason in reasons]
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
        return writing_network(network, heads, settings, seed, part.train_rows)
    if (loaded.labels or ()) != part.problem.labels or other_task:
        kept = HeadSettings(pooling=loaded.heads.pooling, masked_lm=heads.masked_lm and loaded.heads.masked_lm)
        network = with_heads(network, kept, seed)  # another task's head goes
    keeps_numbers = part.units is not None and network.heads.classifier is not None
    network = with_heads(network, heads, seed, settings)
    if part.units is not None and keeps_numbers:
        part.units.back.fold(network.heads.classifier)
    return network


def writing_network(
    network: Network, heads: HeadSettings, settings: ModelSettings, seed: int, train_rows: Rows
) -> Network:
    """The model with a decoder that starts from its encoder and masked LM; one that writes already goes on. Without a
    masked LM, as embedding models are, it starts by writing tokens as often as the targets have them."""
    from remask.model.counted import quiet_head
    from remask.model.network import with_heads

    changed = with_heads(network, heads, seed, settings)
    if network.heads.writer is None:
        writer = changed.heads.writer
        assert writer is not None
        writer.start_from(changed.encoder, network.heads.masked_lm)
        if network.heads.masked_lm is None:
            quiet_head(writer.lm, target_frequencies(train_rows, len(writer.lm.bias)))
    return changed


def target_frequencies(rows: Rows, vocab_size: int) -> np.ndarray:
    """Natural logarithm of every id's share of the targets, each counted once more than it is there."""
    import numpy as np

    assert rows.labels is not None, "targets are known in training"
    counts_V = np.bincount(np.concatenate([np.ravel(label) for label in rows.labels]), minlength=vocab_size) + 1
    return np.log(counts_V / counts_V.sum())


def model_settings(run: FinetuneRun, settings: ModelSettings) -> ModelSettings:
    """The model's own, with the run's dropout (a pretraining that reads nothing twice needs none, a small task does)
    and what `learn` puts beside the encoder."""
    changes: Json = {}
    if run.dropout is not None:
        changes = dict.fromkeys(("dropout", "attention_dropout", "head_dropout"), run.dropout)
    if run.learn == "bottleneck":
        changes["bottleneck_size"] = run.bottleneck.size
    if run.learn == "prefix":
        changes |= _prefix_settings(run.prefix.length, settings)
    if run.learn in BESIDE and (settings.bottleneck_size or settings.prefix_length):
        raise ConfigError(f"learn: {run.learn}: {run.init} already has a bottleneck or a prefix; learn: all goes on")
    return settings.model_copy(update=changes)


def _prefix_settings(length: int, settings: ModelSettings) -> Json:
    """The prefix takes the first positions, as in transformers and peft; the position table stays as it is."""
    if settings.attention_kind != "full":
        kind = settings.attention_kind
        raise ConfigError(f"learn: prefix: needs a model whose tokens see everything; this one has {kind} attention")
    if length + 8 > settings.max_length:
        raise ConfigError(
            f"prefix.length = {length}: the model has {settings.max_length} positions, of which texts need some"
        )
    return {
        "prefix_length": length,
        "max_length": settings.max_length - length,
        "position_offset": settings.position_offset + length,
    }


def let_learn(run: FinetuneRun, encoder: Any, parts: Iterable[Part], seed: int) -> None:
    """What `learn` says, in place; the top layers are the loop's own setting. Of the embeddings only the rows that the
    tasks' training texts use learn (an averaged model, which is all rows, has them all; so has a masked-LM head, whose
    output is the table)."""
    parts = list(parts)
    whole = run.train.ema_decay > 0.0 or any(part.problem.kind.head(part.problem).get("masked_lm") for part in parts)
    whole = whole or any(part.problem.kind.writes for part in parts)
    if run.learn == "all" and not whole:
        import numpy as np
        import torch

        from remask.model.used_rows import learn_used_rows

        ids = [ids for part in parts for ids in (*part.train_rows.ids, np.array([part.pad_id]))]
        learn_used_rows(encoder.embeddings, torch.from_numpy(np.concatenate(ids).astype(np.int64)))
    elif run.learn == "heads":
        encoder.requires_grad_(False)
    elif run.updates is not None:
        from remask.model.adapters import add_updates

        add_updates(encoder, run.updates, seed)
    elif run.learn in BESIDE:
        from remask.model.network import is_beside

        for name, parameter in encoder.named_parameters():
            is_norm = run.learn == "bottleneck" and name.rpartition(".")[0].endswith("norm")  # as in the paper
            parameter.requires_grad_(is_norm or is_beside(name))


def tokenizer_files(start: Start) -> dict[str, bytes]:
    """The vocabulary, or both of a model that writes with another one, under their names in a model's folder."""
    files = {f"tokenizer/{name}": data for name, data in start.tokenizer.files().items()}
    if start.reader.targets is not None:
        files |= {f"target_tokenizer/{name}": data for name, data in start.reader.targets.files().items()}
    return files


def publish_model(folder: Path, network: Network, run: FinetuneRun, start: Start, part: Part) -> None:
    """A finished model with its task: what can be merged is, and beside it under `adapter/` what peft loads over the
    start."""
    from remask.model.adapters import merged_network
    from remask.model.peft_files import ADAPTER, adapter_files
    from remask.model.store import save_model

    extra: dict[str, bytes] = tokenizer_files(start)
    extra[TASK_JSON] = part.stored.to_json()
    with nullcontext() if part.units is None else part.units.spoken_by(network):
        if run.updates is not None or run.learn in BESIDE:
            files = adapter_files(network, run.updates, run.init)
            extra |= {f"{ADAPTER}/{name}": data for name, data in files.items()}
        finished = part.finished(merged_network(network))
        save_model(
            folder, finished, None, part.problem.labels or None, inputs={"init": start.fingerprint}, extra=extra,
            replace=True,
        )  # fmt: skip


def copy_model(source: Path, target: Path, extra: Mapping[str, bytes] | None = None) -> None:
    """A published model under another name, with more files, whole or not at all."""
    manifest: Values = artifacts.open_artifact(source, "model").manifest

    def fill(aside: Path) -> Values:
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
