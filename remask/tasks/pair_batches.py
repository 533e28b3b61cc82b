"""Pairs -> the rows of training steps: a query for every pair, and every document of the step once.

In: a `PairTable` and rows for its texts (pairs' queries, then documents). Out: `PairBatches`, a schema.BatchSource
whose cursor is {epoch, step}. Pairs come in a keyed order, once an epoch, in steps of equal size; hard negatives are
drawn by a key of (seed, epoch, pair). Rows of a step are cut into micro-batches by length, which changes nothing in
the mathematics (schema.JointObjective). Ranks share the rows of one step. Not here: encoding, the loss.
"""

from __future__ import annotations

import numpy as np

from remask.data.order import key_of, permute
from remask.errors import ConfigError
from remask.schema import Batch, BatchSource, Json
from remask.tasks.batches import collate, split_by_tokens
from remask.tasks.retrieve import PairTable
from remask.tasks.rows import Rows
from remask.tasks.settings import TaskBatchSettings

Array = np.ndarray


class PairBatches(BatchSource):
    """Training steps of task retrieve."""

    def __init__(
        self, table: PairTable, rows: Rows, pad_id: int, settings: TaskBatchSettings, *, num_negatives: int, seed: int,
        rank: int = 0, world_size: int = 1,
    ) -> None:  # fmt: skip
        assert len(rows.ids) == table.num_pairs + len(table.documents)
        if settings.num_rows < 2:
            raise ConfigError(f"batch.num_rows = {settings.num_rows}: a step needs two pairs to compare at least")
        self._table, self._rows, self._pad_id, self._settings = table, rows, pad_id, settings
        self._num_negatives, self._seed, self._rank, self._world_size = num_negatives, seed, rank, world_size
        self._lengths = rows.lengths
        self._order: tuple[int, list[Array]] | None = None

    @property
    def steps_per_epoch(self) -> int:
        return -(-self._table.num_pairs // self._settings.num_rows)

    @property
    def tokens_per_step(self) -> float:
        documents = self._lengths[self._table.num_pairs :]
        of_pairs = self._lengths[: self._table.num_pairs].sum() + documents[self._table.positive_of_pair].sum()
        some = min(self._num_negatives, max(map(len, self._table.negatives_of_pair), default=0))
        return float(of_pairs + some * self._table.num_pairs * documents.mean()) / self.steps_per_epoch

    def first_cursor(self) -> Json:
        return {"epoch": 0, "step": 0}

    def take(self, cursor: Json) -> tuple[list[Batch], Json]:
        epoch, step = cursor["epoch"], cursor["step"]
        numbers = self.rows_of(epoch, step)[self._rank :: self._world_size]
        pieces = split_by_tokens(numbers, self._lengths, self._settings.micro_tokens)
        batches = [collate(self._rows, part, self._pad_id) for part in pieces]
        last = step + 1 == self.steps_per_epoch
        return batches, {"epoch": epoch + 1, "step": 0} if last else {"epoch": epoch, "step": step + 1}

    def rows_of(self, epoch: int, step: int) -> Array:
        """The rows of a step, short ones first: its pairs, and the documents they bring."""
        pairs = self._epoch(epoch)[step]
        brought = [self._table.positive_of_pair[pairs], *(self._drawn(int(pair), epoch) for pair in pairs)]
        documents = np.unique(np.concatenate(brought)) + self._table.num_pairs
        numbers = np.concatenate([pairs, documents])
        return numbers[np.argsort(self._lengths[numbers], kind="stable")]

    def _drawn(self, pair: int, epoch: int) -> Array:
        offered = self._table.negatives_of_pair[pair]
        count = min(self._num_negatives, len(offered))
        return offered[permute(np.arange(count), len(offered), key_of("negatives", self._seed, epoch, pair))]

    def _epoch(self, epoch: int) -> list[Array]:
        if self._order is None or self._order[0] != epoch:
            count = self._table.num_pairs
            order = permute(np.arange(count), count, key_of("pairs", self._seed, epoch))
            self._order = (epoch, np.array_split(order, self.steps_per_epoch))
        return self._order[1]
