"""Task batches: a pure function of the cursor, every example once an epoch, little padding, groups kept whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from remask.schema import IGNORE
from remask.tasks.batches import TaskBatches
from remask.tasks.rows import Rows
from remask.tasks.settings import TaskBatchSettings

PAD = 1


def make_rows(count: int, *, group_size: int = 1, seed: int = 0, longest: int = 60) -> Rows:
    """Row i holds its own number in every place, so that mix-ups show."""
    lengths = np.random.default_rng(seed).integers(3, longest, count * group_size)
    ids = [np.full(n, 100 + i, np.int64) for i, n in enumerate(lengths)]
    return Rows(ids, None, [np.int64(i) for i in range(count)], np.arange(count * group_size), group_size)


def run_epoch(batches: TaskBatches, epoch: int) -> list[list]:
    cursor, steps = {"epoch": epoch, "step": 0}, []
    while cursor["epoch"] == epoch:
        pieces, cursor = batches.take(cursor)
        steps.append(pieces)
    assert cursor == {"epoch": epoch + 1, "step": 0}
    return steps


def test_every_example_once_an_epoch_with_its_own_label() -> None:
    batches = TaskBatches(make_rows(101), PAD, TaskBatchSettings(num_rows=8, bucket_batches=3), seed=5)
    orders = []
    for epoch in range(2):
        steps = run_epoch(batches, epoch)
        assert len(steps) == batches.steps_per_epoch == 13
        pieces = [piece for step in steps for piece in step]
        seen = np.concatenate([piece.labels for piece in pieces])
        assert sorted(seen) == list(range(101))
        for piece in pieces:
            assert (piece.input_ids_BS[:, 0] == 100 + piece.labels).all()
            assert (piece.example_ids_B == piece.labels).all()
            assert ((piece.input_ids_BS != PAD).sum(1) == piece.lengths_B).all()
            assert piece.input_ids_BS.shape[1] == piece.lengths_B.max()
        orders.append(seen.tolist())
    assert orders[0] != orders[1]


def test_pure_function_of_cursor_and_seed() -> None:
    def labels(seed: int, cursor: dict) -> list[int]:
        batches = TaskBatches(make_rows(50), PAD, TaskBatchSettings(num_rows=8), seed=seed)
        return [int(x) for piece in batches.take(cursor)[0] for x in piece.labels]

    later = {"epoch": 3, "step": 2}
    assert labels(1, later) == labels(1, later)
    assert labels(1, later) != labels(2, later)


def test_ranks_share_a_step_without_overlap() -> None:
    rows, settings = make_rows(40), TaskBatchSettings(num_rows=8)
    cursor = {"epoch": 1, "step": 3}

    def labels(rank: int, world: int) -> list[int]:
        pieces, _ = TaskBatches(rows, PAD, settings, seed=0, rank=rank, world_size=world).take(cursor)
        return [int(x) for piece in pieces for x in piece.labels]

    whole = labels(0, 1)
    parts = [labels(rank, 4) for rank in range(4)]
    assert sorted(label for part in parts for label in part) == sorted(whole)
    assert {len(part) for part in parts} == {2}


def test_buckets_save_padding_and_change_the_order() -> None:
    def waste_and_order(bucket_batches: int) -> tuple[float, list[int]]:
        settings = TaskBatchSettings(num_rows=8, bucket_batches=bucket_batches)
        pieces = [p for step in run_epoch(TaskBatches(make_rows(400), PAD, settings, seed=0), 0) for p in step]
        padded = sum(piece.input_ids_BS.size for piece in pieces)
        return 1 - sum(piece.num_tokens for piece in pieces) / padded, [int(p.labels[0]) for p in pieces]

    (plain, order_1), (bucketed, order_32) = waste_and_order(1), waste_and_order(32)
    assert plain > 0.35
    assert bucketed < 0.06
    assert order_1 != order_32


def test_micro_tokens_bound_a_piece_and_keep_the_step() -> None:
    rows = make_rows(64)

    def step(micro_tokens: int) -> list:
        settings = TaskBatchSettings(num_rows=32, micro_tokens=micro_tokens)
        return TaskBatches(rows, PAD, settings, seed=0).take({"epoch": 0, "step": 0})[0]

    whole, pieces = step(16384), step(256)
    assert len(whole) == 1
    assert len(pieces) > 1
    assert all(piece.input_ids_BS.size <= 256 for piece in pieces)
    assert sorted(np.concatenate([p.labels for p in pieces])) == sorted(whole[0].labels)
    assert all(piece.num_rows == 1 for piece in step(16))


def test_num_rows_is_the_size_of_a_step() -> None:
    rows = make_rows(64)
    for num_rows in (16, 32):
        batches = TaskBatches(rows, PAD, TaskBatchSettings(num_rows=num_rows), seed=0)
        assert sum(piece.num_rows for piece in batches.take(batches.first_cursor())[0]) == num_rows
        assert batches.steps_per_epoch == 64 // num_rows
        assert batches.num_examples == 64
        assert batches.tokens_per_step == pytest.approx(rows.lengths.sum() * num_rows / 64)


def test_groups_stay_whole() -> None:
    rows = make_rows(10, group_size=4)
    pieces, _ = TaskBatches(rows, PAD, TaskBatchSettings(num_rows=4, micro_tokens=500), seed=0).take(
        {"epoch": 0, "step": 0}
    )
    for piece in pieces:
        assert piece.num_rows == 4 * len(piece.labels)
        expected = [label * 4 + choice for label in piece.labels for choice in range(4)]
        assert piece.example_ids_B.tolist() == expected
        assert (piece.input_ids_BS[:, 0] - 100).tolist() == expected


def test_labels_of_tokens_are_padded_with_ignore() -> None:
    ids = [np.arange(4), np.arange(6)]
    rows = Rows(ids, None, [np.array([IGNORE, 1, 2, IGNORE]), np.full(6, 3)], np.arange(2), label_per_token=True)
    pieces, _ = TaskBatches(rows, PAD, TaskBatchSettings(num_rows=2), seed=0).take({"epoch": 0, "step": 0})
    assert pieces[0].labels.tolist() == [[IGNORE, 1, 2, IGNORE, IGNORE, IGNORE], [3] * 6]


def test_windows_of_a_text_weigh_as_one_in_every_batch() -> None:
    weights = np.array([1.0, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25], np.float32)
    rows = replace(make_rows(7), weights=weights)
    pieces = [p for step in run_epoch(TaskBatches(rows, PAD, TaskBatchSettings(num_rows=3), seed=0), 0) for p in step]
    for piece in pieces:
        assert piece.weights_B.tolist() == weights[piece.example_ids_B].tolist()
    assert sum(piece.weights_B.sum() for piece in pieces) == 3.0


def test_a_batch_source_needs_labels() -> None:
    rows = Rows([np.arange(3)], None, None, np.arange(1))
    with pytest.raises(AssertionError):
        TaskBatches(rows, PAD, TaskBatchSettings(), seed=0)
