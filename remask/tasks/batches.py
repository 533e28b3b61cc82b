"""Rows -> training batches: their order is a pure function of (seed, epoch).

In: `Rows`. Out: `TaskBatches`, a schema.BatchSource whose cursor is {epoch, step}. Rows of a
batch are of like length (pools of `bucket_batches` batches are sorted together), so that little is padding; every
example comes once an epoch. A group (the choices of one question) is never split. Not here: encoding.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from remask.data.order import key_of, permute
from remask.schema import IGNORE, Batch, BatchSource, Json
from remask.tasks.rows import Rows
from remask.tasks.settings import TaskBatchSettings

Array = np.ndarray


class TaskBatches(BatchSource):
    """Training batches of one task."""

    def __init__(
        self, rows: Rows, pad_id: int, settings: TaskBatchSettings, *, seed: int, rank: int = 0, world_size: int = 1
    ) -> None:
        assert rows.labels is not None
        self._rows, self._pad_id, self._settings = rows, pad_id, settings
        self._seed, self._rank, self._world_size = seed, rank, world_size
        self._group_lengths = rows.sizes.reshape(-1, rows.group_size).max(1)
        self._plan: tuple[int, list[Array]] | None = None

    @property
    def steps_per_epoch(self) -> int:
        return _num_batches(self._group_lengths, self._rows.group_size, self._settings)

    @property
    def num_examples(self) -> int:
        return self._rows.num_groups

    @property
    def tokens_per_step(self) -> float:
        return float(self._rows.sizes.sum()) / self.steps_per_epoch

    def first_cursor(self) -> Json:
        return {"epoch": 0, "step": 0}

    def take(self, cursor: Json) -> tuple[list[Batch], Json]:
        epoch, step = cursor["epoch"], cursor["step"]
        groups = self.epoch(epoch)[step][self._rank :: self._world_size]
        batches = list(_pieces(self._rows, groups, self._group_lengths, self._pad_id, self._settings.micro_tokens))
        last = step + 1 == self.steps_per_epoch
        return batches, {"epoch": epoch + 1, "step": 0} if last else {"epoch": epoch, "step": step + 1}

    def epoch(self, epoch: int) -> list[Array]:
        """The groups of each batch of an epoch; the last one computed is kept."""
        if self._plan is None or self._plan[0] != epoch:
            self._plan = (epoch, self._ordered(epoch))
        return self._plan[1]

    def _ordered(self, epoch: int) -> list[Array]:
        if self._settings.num_tokens is None:
            return _order(self._group_lengths, self._settings, self._seed, epoch)
        return _order_by_tokens(self._group_lengths, self.steps_per_epoch, self._settings, self._seed, epoch)


def _num_batches(lengths: Array, group_size: int, settings: TaskBatchSettings) -> int:
    if settings.num_tokens is None:
        return -(-len(lengths) // settings.num_rows)
    return max(1, min(len(lengths), round(int(lengths.sum()) * group_size / settings.num_tokens)))


def _order_by_tokens(
    lengths: Array, num_batches: int, settings: TaskBatchSettings, seed: int, epoch: int
) -> list[Array]:
    """The same number of batches in every epoch, each with about as many tokens: the ordered groups are cut where
    their tokens pass the next share. Groups are sorted by length in pools, which a batch may straddle."""
    count = len(lengths)
    order = permute(np.arange(count), count, key_of("task", seed, epoch))
    if settings.bucket_batches > 1:
        pool = max(1, count * settings.bucket_batches // num_batches)
        order = np.concatenate(
            [part[np.argsort(lengths[part], kind="stable")] for part in np.split(order, range(pool, count, pool))]
        )
    middles = np.cumsum(lengths[order]) - lengths[order] / 2
    cuts = np.searchsorted(middles, np.arange(1, num_batches) * (lengths.sum() / num_batches))
    cuts = np.maximum(cuts, np.arange(1, num_batches))  # no batch is empty, from the left …
    cuts = np.minimum(cuts, count - np.arange(num_batches - 1, 0, -1))  # … and from the right
    batches = np.split(order, np.maximum.accumulate(cuts))
    return [batches[i] for i in permute(np.arange(num_batches), num_batches, key_of("task batches", seed, epoch))]


def _order(lengths: Array, settings: TaskBatchSettings, seed: int, epoch: int) -> list[Array]:
    count, width = len(lengths), settings.num_rows
    order = permute(np.arange(count), count, key_of("task", seed, epoch))
    pool = width * settings.bucket_batches
    sort = settings.bucket_batches > 1
    batches: list[Array] = []
    for start in range(0, count, pool):
        part = order[start : start + pool]
        if sort:
            part = part[np.argsort(lengths[part], kind="stable")]
        batches += [part[i : i + width] for i in range(0, len(part), width)]
    if not sort:
        return batches
    return [batches[i] for i in permute(np.arange(len(batches)), len(batches), key_of("task batches", seed, epoch))]


def _pieces(rows: Rows, groups: Array, lengths: Array, pad_id: int, num_tokens: int) -> Iterator[Batch]:
    ordered = groups[np.argsort(lengths[groups], kind="stable")]
    for part in split_by_tokens(ordered, lengths * rows.group_size, num_tokens):
        yield collate(rows, part, pad_id)


def split_by_tokens(groups: Array, tokens: Array, num_tokens: int) -> Iterator[Array]:
    """Cut groups that ascend in length so that count x longest stays within `num_tokens` (one group always fits)."""
    start = 0
    for end in range(1, len(groups) + 1):
        if end < len(groups) and (end + 1 - start) * tokens[groups[end]] <= num_tokens:
            continue
        yield groups[start:end]
        start = end


def collate(rows: Rows, groups: Array, pad_id: int) -> Batch:
    """Some groups as one padded batch."""
    numbers = (groups[:, None] * rows.group_size + np.arange(rows.group_size)).reshape(-1)
    parts = [rows.ids[i] for i in numbers]
    lengths = np.array([len(ids) for ids in parts], np.int64)
    width = int(lengths.max())
    segments = None if rows.segments is None else _padded([rows.segments[i] for i in numbers], width, 0)
    labels = target_lengths = None
    if rows.labels is not None:
        chosen = [rows.labels[i] for i in groups]
        if rows.label_per_target:
            target_lengths = np.array([len(label) for label in chosen], np.int64)
            labels = _padded(chosen, int(target_lengths.max()), IGNORE)
        else:
            labels = _padded(chosen, width, IGNORE) if rows.label_per_token else np.stack(chosen)
    weights = None if rows.weights is None else rows.weights[numbers]
    ids = _padded(parts, width, pad_id)
    return Batch(
        ids, lengths, segments, labels=labels, target_lengths_B=target_lengths, weights_B=weights, example_ids_B=numbers
    )


def _padded(parts: list[Array], width: int, fill: int) -> Array:
    out = np.full((len(parts), width), fill, np.int64)
    for row, part in enumerate(parts):
        out[row, : len(part)] = part
    return out
