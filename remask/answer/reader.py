"""A model with what it takes to read texts for it: its tokenizer, its frame, and the task as it was taught.

In: a run, checkpoint, model or Hugging Face folder. Out: a `Reader`: items become rows under the settings that are
stored with the model, and outputs become answers. Whatever answers batches can stand behind it: the network, an ONNX
graph. Not here: batches and the network (runner), what may be asked (questions).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from remask.answer.runner import Forward, forward_outputs
from remask.errors import DataError
from remask.model.foreign import ForeignFolder
from remask.model.interop import read_prompts
from remask.model.store import TARGETS, Loaded, open_model
from remask.schema import Batch, Json, Values
from remask.tables import Cells
from remask.tasks.kind import Item, Problem
from remask.tasks.kinds import StoredTask, kinds_for
from remask.tasks.records import Record
from remask.tasks.rows import Frame, Rows, frame_for
from remask.tasks.settings import RowSettings
from remask.tokenizer import Tokenizer, load_tokenizer

Array = np.ndarray


@dataclass(frozen=True)
class Reader:
    """An opened model, before it is put anywhere to answer."""

    loaded: Loaded
    tokenizer: Tokenizer
    stored: StoredTask | None  # None: it was not fine-tuned here
    targets: Tokenizer | None = None  # what it writes with, where that is another vocabulary

    @cached_property
    def tasks(self) -> dict[str, StoredTask]:
        """What each method of answering asks: the task that the model was taught, or what its heads tell."""
        heads, labels = self.loaded.heads, self.loaded.labels
        tasks = {kind.method: StoredTask.by_heads(kind, heads, labels) for kind in kinds_for(heads)}
        if self.stored is not None:
            tasks[self.stored.kind.method] = self.stored
        return tasks

    @property
    def task(self) -> StoredTask:
        """The one task of a model that only answers it."""
        if self.stored is not None:
            return self.stored
        if not self.tasks:
            folder = self.loaded.folder
            raise DataError(f"{folder}: has no task's head; fine-tune it first (remask finetune --init {folder} …)")
        return next(iter(self.tasks.values()))

    @cached_property
    def prompts(self) -> Mapping[str, str]:
        """What to put before a text, by name, as the model was taught."""
        if self.stored is not None and self.stored.prompts:
            return self.stored.prompts
        return read_prompts(self.loaded.folder)

    def frame(self, rows: RowSettings | None = None, max_length: int | None = None) -> Frame:
        """The special tokens around texts, with the room that these settings leave; None: all that the model reads.
        `max_length`: of the model, where it is about to read less than this one."""
        settings = self.loaded.settings
        max_length = max_length or settings.max_length
        rows = rows or RowSettings(max_length=max_length)
        frame = frame_for(self.tokenizer, rows, model_length=max_length, num_segments=settings.num_segments)
        return frame if self.targets is None else replace(frame, targets=self.targets)

    @property
    def refuses(self) -> bool:
        """Whether it may say that a passage has no answer: it learned to, or does not tell what it learned."""
        return self.stored is None or self.loaded.heads.answerable

    def encode(
        self, items: Sequence[Item], *, labelled: bool = False, task: StoredTask | None = None,
        rows: RowSettings | None = None,
    ) -> Rows:  # fmt: skip
        """Items -> rows, as in training; `rows` in place of the stored settings."""
        task = task or self.task
        rows = rows or task.rows
        return task.kind.encode(items, task.labels, self.tokenizer, self.frame(rows), rows, labelled=labelled)

    def read(
        self, outputs: Sequence[Array], rows: Rows, items: Sequence[Item], task: StoredTask | None = None
    ) -> list[Any]:
        """What the network said about rows -> an answer for every item."""
        task = task or self.task
        return list(task.kind.answers(outputs, rows, items, task.labels, refuses=self.refuses))

    # ------------------------------------------------------------------------- rows of a file, any answerer

    def item(self, values: Values, place: str = "", text: str | None = None) -> Item:
        """A row's cells as an item of the task."""
        task = self.task
        return task.kind.item(Cells(values, place), task.kind.columns(task.table, text, None), task.table)

    def named(self, answer: Record, item: Item) -> Json:
        """An answer as the columns of a file."""
        return self.task.kind.named(answer, item)

    def answers(self, items: Sequence[Item], forward: Forward) -> list[Any]:
        """An answer for every item, from whatever answers batches."""
        answers: list[Any] = [None] * len(items)
        for numbers in self.task.kind.alike(items):
            some = [items[i] for i in numbers]
            rows = self.encode(some)
            outputs = self.outputs(rows, forward)
            for number, answer in zip(numbers, self.read(outputs, rows, some), strict=True):
                answers[number] = answer
        return answers

    def outputs(self, rows: Rows, forward: Forward) -> list[Array]:
        return forward_outputs(forward, rows, self.tokenizer.pad_id)

    def score(self, problem: Problem, forward: Forward) -> Json:
        """Metrics and tables of a labelled file."""
        rows = self.encode(problem.dev, labelled=True)
        return self.task.kind.score(self.outputs(rows, forward), rows, problem.dev, self.task.labels)

    def forward_of(self, graph: Callable[[Batch], Mapping[str, Array]]) -> Forward:
        """An exported graph as an answerer: its named outputs as the kind reads them."""
        kind = self.task.kind

        def forward(batch: Batch) -> Array:
            named = graph(batch)
            if kind.method == "embed":
                return self._pooled(named["last_hidden_state"], np.asarray(batch.lengths_B))
            return kind.graph_outputs(named, batch)

        return forward

    def _pooled(self, states_BSD: Array, lengths_B: Array) -> Array:
        """Vectors of texts, as the network pools its states."""
        if self.loaded.heads.pooling == "first":
            return states_BSD[:, 0]
        real_BS = np.arange(states_BSD.shape[1]) < lengths_B[:, None]
        return (states_BSD * real_BS[:, :, None]).sum(1) / lengths_B[:, None]


def open_reader(path: Path | Loaded, task: str | None = None) -> Reader:
    """Open a model to read texts for it. `task`: of a run with several, which one."""
    loaded = open_model(_of_task(path, task)) if isinstance(path, Path) else path
    if loaded.tokenizer_folder is None:
        raise DataError(f"{loaded.folder}: has no tokenizer, so texts cannot be read for it")
    tokenizer = load_tokenizer(loaded.tokenizer_folder)
    if tokenizer.vocab_size > loaded.settings.vocab_size:
        raise DataError(
            f"{loaded.folder}: the tokenizer has {tokenizer.vocab_size:,} entries, "
            f"the model only {loaded.settings.vocab_size:,}: they do not belong together"
        )
    stored = StoredTask.read(loaded.folder)
    return Reader(loaded, tokenizer, None if stored is None else stored.bound(tokenizer), _targets(loaded))


def _targets(loaded: Loaded) -> Tokenizer | None:
    """The vocabulary that a model writes with, where it has one of its own."""
    writer = loaded.heads.writer
    if writer is None or writer.vocab_size is None:
        return None
    folder = ForeignFolder(loaded.folder).inner(TARGETS)
    if folder is None:
        raise DataError(f"{loaded.folder}: has no {TARGETS}/, the vocabulary that it writes with")
    tokenizer = load_tokenizer(folder.folder)
    if tokenizer.vocab_size > writer.vocab_size:
        raise DataError(
            f"{loaded.folder / TARGETS}: has {tokenizer.vocab_size:,} entries, the decoder only "
            f"{writer.vocab_size:,}: they do not belong together"
        )
    return tokenizer


def _of_task(path: Path, task: str | None) -> Path:
    """Where the model is: a run with several tasks has one for each."""
    if task is None:
        return path
    known = sorted(inner.parent.name for inner in (path / "tasks").glob("*/model.json"))
    if task not in known:
        has = f"has the tasks {', '.join(known)}" if known else "is no run with several tasks"
        raise DataError(f"{path}: {has}; --task {task} is none of them")
    return path / "tasks" / task
