"""The nouns that cross folders: Document, Batch, BatchSource, Loss. No torch at import.

An `Array` is a numpy array when data/ or tasks/ makes it and a torch tensor once the loop has moved it to the
device; the fields, shapes and meanings stay the same.

Shapes: B rows of a batch, S positions of a row, M predicted positions over the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import torch

Array = Any
Json = dict[str, Any]  # a JSON object: plain values by name, such as what a verb prints with --json
Values = Mapping[str, Any]  # the same where it is only read
IGNORE = -100  # a label that is not predicted, as everywhere in this ecosystem


@dataclass(frozen=True, slots=True)
class Document:
    """One text with where it came from. `place` names file and record, for errors and drops."""

    text: str
    place: str
    source: str = ""


@dataclass(frozen=True)
class Batch:
    """What a model reads and what it should say. Rows are padded on the right; `lengths_B` says where each ends."""

    input_ids_BS: Array
    lengths_B: Array
    segment_ids_BS: Array | None = None
    # Packed rows: which document a position belongs to (-1: padding; attention stays inside a document) and its
    # position there. None: one document a row, positions 0..S-1.
    document_ids_BS: Array | None = None
    position_ids_BS: Array | None = None
    # Masked LM: flat positions (row * S + column) and the ids that stood there.
    masked_positions_M: Array | None = None
    masked_labels_M: Array | None = None
    # NSP and SOP: 1 = the second part really follows, 0 = it does not, IGNORE = the row is no pair.
    sentence_labels_B: Array | None = None
    # Fine-tuning: B classes, B numbers, B x C multi-label, B x S tags, B x 2 spans or B x L targets, as the task says.
    labels: Array | None = None
    target_lengths_B: Array | None = None  # writing: tokens of each target
    weights_B: Array | None = None  # fine-tuning: how much a row counts; None: each counts 1
    example_ids_B: Array | None = None
    task: str | None = None  # several tasks at once: the one that these rows are of
    # The same as numpy arrays, where this one is on a device: who must know a length asks there, and nobody waits.
    host: Batch | None = None

    @property
    def num_rows(self) -> int:
        return self.input_ids_BS.shape[0]

    @property
    def num_tokens(self) -> int:
        """Of the rows and of their targets."""
        targets = 0 if self.target_lengths_B is None else int(self.target_lengths_B.sum())
        return int(self.lengths_B.sum()) + targets

    def map(self, change: Callable[[Array], Array]) -> Batch:
        """The same batch with `change` applied to every array. Rows may be taken away, so it has no `host`."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("task", "host")}
        changed: Json = {name: change(array) for name, array in arrays.items() if array is not None}
        return replace(self, host=None, **changed)

    def sent(self, send: Callable[[Array], Array]) -> Batch:
        """A batch of numpy arrays as tensors on a device, which keeps this one as its `host`."""
        return replace(self.map(send), host=self)

    @property
    def known(self) -> Batch:
        """Where values can be read without waiting for a device: the host's batch, or this one."""
        return self.host or self


class BatchSource(Protocol):
    """Batches as a pure function of a cursor: no state, so resume is storing the cursor.

    A cursor is a small JSON value. `take` gives this rank's micro-batches of one optimizer step, and the next cursor.
    Sources inherit what follows: it holds where all steps are alike, whatever the length of the run.
    """

    @property
    def steps_per_epoch(self) -> float: ...

    @property
    def tokens_per_step(self) -> float:
        """Of a full step, padding not counted."""
        ...

    def first_cursor(self) -> Json: ...

    def take(self, cursor: Json) -> tuple[list[Batch], Json]: ...

    def with_steps(self, num_steps: int) -> BatchSource:
        """The same source in a run of so many steps, where batches depend on that (short rows first, growing masks)."""
        return self

    def tokens_in(self, num_steps: int) -> float:
        """Tokens that a run of so many steps reads."""
        return num_steps * self.tokens_per_step

    def passes_in(self, num_steps: int) -> float:
        """How often such a run reads everything."""
        return num_steps / self.steps_per_epoch

    def stretches(self) -> Sequence[tuple[float, BatchSource, BatchSource]]:
        """A run cut where the cost of a step begins to move otherwise: (share of the steps, batches that are all as at
        the start of the stretch, batches as at its end)."""
        return [(1.0, self, self)]


@dataclass(frozen=True)
class LossPart:
    """A sum and what it is a sum over: a part of the loss, or a metric that is averaged the same way."""

    sum: torch.Tensor
    count: float


@dataclass(frozen=True)
class Loss:
    """Sums by name (`mlm`, `sentence`, `causal`, `task`) with their counts, and metrics such as accuracy."""

    parts: Mapping[str, LossPart]
    metrics: Mapping[str, LossPart]


ModelT = TypeVar("ModelT", contravariant=True)


class Objective(Protocol[ModelT]):
    """What is learned. The loop divides every part by its global count (over micro-batches and ranks) and adds the
    parts by weight, so that accumulation and world size do not change the mathematics."""

    weights: Mapping[str, float]

    def counts(self, batch: Batch) -> Mapping[str, float]:
        """The counts of the parts, known before the forward pass."""
        ...

    def __call__(self, model: ModelT, batch: Batch, step: int | None) -> Loss:
        """`step` keys the dropout noise; None is evaluation, without noise."""
        ...


@runtime_checkable
class JointObjective(Objective[ModelT], Protocol[ModelT]):
    """What compares all rows of a step with one another, so that its loss is not a sum over micro-batches.

    The loop keeps the mathematics of one big batch by gradient caching (arXiv 2101.06983): outputs of all rows without
    gradients, the loss of all outputs, then every micro-batch again with the gradients of its own outputs."""

    def outputs(self, model: ModelT, batch: Batch, step: int | None) -> Array:
        """One vector a row, B x D; the same again for the same rows and step."""
        ...

    def compare(self, model: ModelT, outputs_ND: Array, example_ids_N: Array, rank: int, num_ranks: int) -> Loss:
        """The loss of the outputs of a whole step: the share that this one of so many ranks adds to the sums."""
        ...
