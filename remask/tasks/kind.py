"""What a kind of task is: one object that reads, encodes, learns, scores, answers and shows.

`TaskKind` is the list of what a kind must know; texts, tags, spans and choices each hold one or several, and `kinds`
has the table of them all. A `Problem` is a task with its examples. Everything else asks the kind and never looks at its
name. No torch at import: what needs it is handed tensors. Not here: reading files (tables, glue, conll, squad, race),
the network, the loop.

Shapes: B rows, S positions, D width, C classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from remask.errors import ConfigError, DataError, MissingInputError
from remask.schema import Batch, Json, Values
from remask.tables import Cells, OnBad, OnNote, read_cells
from remask.tasks.glue import find_file
from remask.tasks.numbers import NUM_WORST
from remask.tasks.records import Record
from remask.tasks.rows import Frame, Rows
from remask.tasks.settings import LossSettings, PromptSettings, RowSettings, TableSettings
from remask.tasks.specs import TASKS
from remask.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

Array = np.ndarray
MAX_TEXT = 500  # characters of each

ItemT = TypeVar("ItemT", bound="Item")
NoiseT = TypeVar("NoiseT", contravariant=True)


class Item(Protocol):
    """One thing to answer; `place` says where it stands."""

    @property
    def place(self) -> str: ...


class Heads(Protocol):
    """What a network has on top: model.settings.HeadSettings, which is out of reach from here."""

    @property
    def num_classes(self) -> int | None: ...
    @property
    def multilabel(self) -> bool: ...
    @property
    def num_tags(self) -> int | None: ...
    @property
    def span(self) -> bool: ...
    @property
    def answerable(self) -> bool: ...
    @property
    def choice(self) -> bool: ...
    @property
    def writer(self) -> object | None: ...


class TaskNetwork(Protocol[NoiseT]):
    """What kinds ask of a network and its heads: model.network.Network, which is out of reach from here as well.
    `NoiseT` is what it draws its dropout from."""

    @property
    def head_settings(self) -> Heads: ...
    def first_positions(self, batch: Batch) -> Array | None: ...
    def encode(self, batch: Batch, noise: NoiseT | None = None) -> torch.Tensor: ...
    def masked_lm(self, hidden_BSD: torch.Tensor, positions_M: torch.Tensor) -> torch.Tensor: ...
    def classify(
        self, hidden_BSD: torch.Tensor, lengths_B: torch.Tensor | None = None, noise: NoiseT | None = None
    ) -> torch.Tensor: ...
    def choose(
        self, hidden_BSD: torch.Tensor, lengths_B: torch.Tensor | None = None, noise: NoiseT | None = None
    ) -> torch.Tensor: ...
    def answerable(
        self, hidden_BSD: torch.Tensor, lengths_B: torch.Tensor | None = None, noise: NoiseT | None = None
    ) -> torch.Tensor: ...
    def tag(self, hidden_BSD: torch.Tensor, noise: NoiseT | None = None) -> torch.Tensor: ...
    def span(self, hidden_BSD: torch.Tensor, noise: NoiseT | None = None) -> torch.Tensor: ...
    def embed(self, hidden_BSD: torch.Tensor, lengths_B: torch.Tensor | None = None) -> torch.Tensor: ...
    def write_loss(
        self, hidden_BSD: torch.Tensor, batch: Batch, noise: NoiseT | None = None, smoothing: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


@dataclass(frozen=True)
class TaskSource:
    """Where a task's examples are: given files, or the folder of a named task."""

    task: str
    table: TableSettings
    train: Path | None = None
    dev: Path | None = None
    folder: Path | None = None
    prompt: PromptSettings = field(default_factory=PromptSettings)  # for kinds that ask by patterns and words

    def files(self) -> tuple[Path, Path | None]:
        """The file to train on and the one to score, which may be missing where the first was given."""
        if self.train is not None and (self.dev is not None or self.folder is None):
            return self.train, self.dev
        if self.folder is None or self.task not in TASKS:
            raise ConfigError(f"task {self.task} needs its files: --train FILE (and --dev FILE)")
        spec = TASKS[self.task]
        return find_file(spec, "train", self.folder), find_file(spec, "dev", self.folder)


@dataclass(frozen=True)
class Problem(Generic[ItemT]):
    """A task's examples, its labels, and the metric that chooses between models."""

    task: str
    kind: TaskKind[ItemT]
    labels: tuple[str, ...]
    metric: str
    train: Sequence[ItemT]
    dev: Sequence[ItemT]
    notes: tuple[str, ...] = ()
    facts: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Labelled(Generic[ItemT]):
    """The examples of one file that is only scored, and what to know about them."""

    items: Sequence[ItemT]
    notes: Sequence[str] = ()
    facts: Values = field(default_factory=dict)


@dataclass(frozen=True)
class TaskLoss:
    """How a task's loss is computed, where there is a choice."""

    class_weights: tuple[float, ...] | None = None  # their mean over the training data is 1
    margin: bool = False  # choices are ranked, not classified
    answerable: bool = False  # SQuAD 2.0's second loss, on the same encoder pass
    label_smoothing: float = 0.0  # writing: the share of a token that is spread over the vocabulary


Sums = Mapping[str, "torch.Tensor"]


class TaskKind(ABC, Generic[ItemT]):
    """Everything that differs between kinds of tasks."""

    name: ClassVar[str]
    metric: ClassVar[str]  # chooses between models unless the task names another
    method: ClassVar[str]  # what asks a model of this kind: `remask.load(…).METHOD`, POST /v1/METHOD
    own_columns: ClassVar[bool] = False  # whether its files name their columns themselves
    writes: ClassVar[bool] = False  # whether it answers with texts of its own, token by token
    averages: ClassVar[bool] = True  # whether several models' outputs have a mean
    baseline_words: ClassVar[str] = "always the same answer"  # what `baseline` scores
    decode: ClassVar[Values] = {}  # writing: the DecodeSettings that it begins with

    # ------------------------------------------------------------------------------------------------ reading

    @abstractmethod
    def open(self, source: TaskSource) -> Problem[ItemT]:
        """Read what is trained on and what is scored."""

    @abstractmethod
    def read_labelled(self, path: Path, task: str | None, labels: tuple[str, ...], table: TableSettings) -> Labelled:
        """A labelled file for a model with these labels, none of which is trained on."""

    def file_rows(
        self, path: Path, table: TableSettings, on_bad: OnBad, on_note: OnNote | None = None
    ) -> Iterator[Cells]:
        """The rows of a file to answer, in its order; files in a layout of the kind's own give its columns."""
        if not path.exists():
            raise MissingInputError(f"{path}: no such file")
        if self.has_own_layout(path):
            yield from self._own_rows(path, table)
        else:
            yield from read_cells(path, table, on_bad=on_bad, on_note=on_note)

    def has_own_layout(self, path: Path) -> bool:
        """Whether a file is not a table but in a layout that only this kind knows."""
        return False

    def _own_rows(self, path: Path, table: TableSettings) -> Iterator[Cells]:
        raise AssertionError(f"{self.name} has no layout of its own")

    @abstractmethod
    def columns(self, table: TableSettings, text: str | None, text2: str | None) -> tuple[str, ...]:
        """The columns that a row to answer must have; `text` and `text2` are given names."""

    def required(self, columns: Sequence[str]) -> Sequence[str]:
        """Those of the columns that a file must have."""
        return columns

    @abstractmethod
    def item(self, cells: Cells, columns: Sequence[str], table: TableSettings) -> ItemT:
        """A row to answer as an item; tables.BadRow where it is none."""

    @abstractmethod
    def key(self, item: ItemT) -> Hashable:
        """What is the same for an item in two files: its texts."""

    @abstractmethod
    def text(self, item: ItemT) -> str:
        """The item for a reader."""

    def with_prompts(self, prompts: dict[str, str]) -> TaskKind[ItemT]:
        """The kind as a model with these prompts was taught it."""
        return self

    # ---------------------------------------------------------------------------------------- settings of its own

    def bound(self, tokenizer: Tokenizer, labels: Sequence[str]) -> TaskKind[ItemT]:
        """The kind for one vocabulary, where it depends on that."""
        return self

    def stored(self) -> Json:
        """What task.json must hold for this kind to be the same again."""
        return {}

    def restored(self, values: Values) -> TaskKind[ItemT]:
        """The kind as `stored` wrote it."""
        return self

    # ------------------------------------------------------------------------------------------------ network

    @abstractmethod
    def head(self, problem: Problem[ItemT]) -> dict[str, int | bool]:
        """The HeadSettings that this needs."""

    @abstractmethod
    def fits(self, heads: Heads) -> bool:
        """Whether a network with these heads answers tasks of this kind."""

    def num_labels(self, heads: Heads) -> int:
        """How many named labels a head of this kind has."""
        return 0

    def positions(self, network: TaskNetwork[NoiseT], batch: Batch) -> np.ndarray | torch.Tensor | None:
        """Flat positions of the states that the head reads; None: all of them."""
        return network.first_positions(batch)

    @abstractmethod
    def logits(
        self, network: TaskNetwork[NoiseT], hidden_BSD: torch.Tensor, batch: Batch, noise: NoiseT | None = None
    ) -> torch.Tensor:
        """What the head says: B x C, B x S x C or B."""

    def graph_outputs(self, named: Mapping[str, Array], batch: Batch) -> Array:
        """What an exported graph says about a batch of arrays, as `logits` would say it."""
        return named["logits"]

    def plan_loss(self, problem: Problem[ItemT], settings: LossSettings, heads: Heads) -> TaskLoss:
        """The loss that the settings ask for; what this kind does not have is refused."""
        if settings.class_weights != "none":
            raise ConfigError(f"loss.class_weights = balanced: is for classes, not for {problem.task}")
        if settings.choice != "softmax":
            raise ConfigError(f"loss.choice = margin: is for tasks with several choices, not for {problem.task}")
        return TaskLoss()

    def counts(self, batch: Batch, plan: TaskLoss) -> dict[str, float]:
        """What each part of the loss is divided by, known before the forward pass: texts, not their windows."""
        if batch.weights_B is not None:
            return {"task": float(batch.weights_B.sum())}
        assert batch.labels is not None
        return {"task": batch.labels.shape[0]}

    @abstractmethod
    def loss(self, logits: torch.Tensor, batch: Batch, plan: TaskLoss) -> tuple[Sums, torch.Tensor | None]:
        """Sums by part (`task`, …), and how many were right (None: that is no question here)."""

    def difference(self, one: torch.Tensor, other: torch.Tensor, batch: Batch) -> torch.Tensor:
        """How far apart two passes over a batch are, summed over what `counts` counts as `task`."""
        raise ConfigError(f"loss.consistency: is not for tasks of the kind {self.name}")

    # ------------------------------------------------------------------------------------------- rows, answers

    @abstractmethod
    def encode(
        self, items: Sequence[ItemT], labels: Sequence[str], tokenizer: Tokenizer, frame: Frame,
        settings: RowSettings, *, labelled: bool = True,
    ) -> Rows:  # fmt: skip
        """Items -> rows of ids."""

    def alike(self, items: Sequence[ItemT]) -> list[list[int]]:
        """Numbers of the items that can be encoded together."""
        return [list(range(len(items)))] if items else []

    def score(self, outputs: Sequence[Array], rows: Rows, items: Sequence[ItemT], labels: tuple[str, ...]) -> Json:
        """`metrics` by name, the tables behind them, and the mistakes that tell most under `worst`."""
        broken = sum(not np.isfinite(output).all() for output in outputs)
        if broken:
            raise DataError(f"the model's outputs are no numbers (NaN) for {broken:,} of {len(outputs):,} rows")
        return self._score(outputs, rows, items, labels)

    @abstractmethod
    def _score(self, outputs: Sequence[Array], rows: Rows, items: Sequence[ItemT], labels: tuple[str, ...]) -> Json: ...

    def tested(self, outputs: Sequence[Any], rows: Rows, items: Sequence[ItemT]) -> Json:
        """What else to say about a labelled file that is scored once and for all: tests that take their time."""
        return {}

    def example_values(
        self, outputs: Sequence[Array], rows: Rows, items: Sequence[ItemT], labels: tuple[str, ...], metric: str
    ) -> Array:
        """One number an item, whose mean is the metric that chooses between models."""
        raise ConfigError(f"{self.name}: its {metric} is not made of what single examples say")

    @abstractmethod
    def answers(
        self, outputs: Sequence[Array], rows: Rows, items: Sequence[ItemT], labels: tuple[str, ...], *, refuses: bool
    ) -> Sequence[Record]:
        """What each item is answered. `refuses`: the model may say that there is no answer."""

    @abstractmethod
    def named(self, answer: Any, item: ItemT) -> Json:
        """An answer as the columns of a file."""

    @abstractmethod
    def mean_outputs(self, models: Sequence[Sequence[Array]], rows: Rows) -> list[Array]:
        """Several models' outputs about the same rows as one model's: the mean of what they hold to be likely."""

    def baseline(self, train: Sequence[ItemT], dev: Sequence[ItemT], labels: tuple[str, ...]) -> dict[str, float]:
        """Metrics of always giving the most frequent answer of the training items, where there is one."""
        return {}

    def worst(self, rows: Sequence[tuple[int, str, str, float]], items: Sequence[ItemT], by: str) -> Json:
        """The mistakes that tell most, for results.json and the report, from (item, what is true, what was said, how
        bad); `by` says what the last is."""
        records = [
            {
                "text": self.text(items[number])[:MAX_TEXT],
                "label": label,
                "prediction": prediction,
                "confidence": round(float(value), 4),
                "place": items[number].place,
            }
            for number, label, prediction, value in rows[:NUM_WORST]
        ]
        return {"worst": records, "worst_by": by}
