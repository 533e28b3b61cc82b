"""Steps dealt out between tasks: exact shares, a pure function of the cursor, every example once an epoch."""

from __future__ import annotations

import numpy as np
import pytest

from remask.tasks.batches import TaskBatches
from remask.tasks.mixing import MixedBatches
from remask.tasks.rows import Rows
from remask.tasks.settings import TaskBatchSettings


def mixed(sizes: dict[str, int], temperature: float = 1.0, seed: int = 0) -> MixedBatches:
    def source(count: int) -> TaskBatches:
        ids = [np.full(3 + i % 2, 5) for i in range(count)]
        rows = Rows(ids, None, [np.int64(0)] * count, np.arange(count))
        return TaskBatches(rows, 1, TaskBatchSettings(num_rows=4), seed=seed)

    return MixedBatches({name: source(count) for name, count in sizes.items()}, temperature, seed)


def turns(batches: MixedBatches, count: int) -> list[tuple[str, list[int]]]:
    cursor, found = batches.first_cursor(), []
    for _ in range(count):
        taken, cursor = batches.take(cursor)
        assert len({batch.task for batch in taken}) == 1
        assert taken[0].task is not None
        found.append((taken[0].task, sorted(int(i) for b in taken for i in b.example_ids_B)))
    return found


def test_at_temperature_one_every_example_comes_once_an_epoch() -> None:
    batches = mixed({"big": 42, "small": 9})
    assert batches.steps_per_epoch == 11 + 3
    for epoch in range(2):
        order = turns(batches, 14 * (epoch + 1))[14 * epoch :]
        assert sorted(i for name, ids in order if name == "big" for i in ids) == list(range(42))
        assert sorted(i for name, ids in order if name == "small" for i in ids) == list(range(9))


@pytest.mark.parametrize(
    "temperature, expected", [(1.0, [96, 24, 8]), (2.0, [72, 36, 20]), (1e9, [43, 43, 42]), (0.05, [128, 1, 1])]
)
def test_the_temperature_evens_the_shares_out(temperature: float, expected: list[int]) -> None:
    found = list(mixed({"a": 384, "b": 96, "c": 32}, temperature).quotas.values())
    assert found == pytest.approx(expected, abs=1)
    assert min(found) >= 1


def test_the_order_follows_the_seed_and_the_cursor_alone() -> None:
    batches = mixed({"big": 42, "small": 9}, seed=3)
    order = turns(batches, 20)
    assert turns(mixed({"big": 42, "small": 9}, seed=3), 20) == order
    assert [name for name, _ in turns(mixed({"big": 42, "small": 9}, seed=4), 20)] != [name for name, _ in order]
    cursor = batches.first_cursor()
    for _ in range(9):
        _, cursor = batches.take(cursor)
    again = mixed({"big": 42, "small": 9}, seed=3).take(cursor)[0]
    assert again[0].task == order[9][0]
    assert batches.take(cursor)[1] == batches.take(cursor)[1]
