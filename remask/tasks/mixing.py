"""Batches of several tasks in one stream: by size with a temperature, as a pure function of the cursor.

In: the TaskBatches of each task. Out: `MixedBatches`, a schema.BatchSource; every step is of one task. An epoch has as
many steps as the tasks' own epochs together; a task gets its share of them, size ^ (1 / temperature) over the sum
(at least one), in an order that is a keyed permutation. At temperature 1 every example comes once an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from remask.data.order import key_of, permute
from remask.schema import Batch, BatchSource, Json
from remask.tasks.batches import TaskBatches


class MixedBatches(BatchSource):
    """Training batches of several tasks. The cursor holds one cursor a task."""

    def __init__(self, sources: Mapping[str, TaskBatches], temperature: float, seed: int) -> None:
        assert sources
        self._sources, self._seed = dict(sources), seed
        self.quotas = dict(
            zip(sources, _quotas([s.steps_per_epoch for s in sources.values()], temperature), strict=True)
        )

    @property
    def steps_per_epoch(self) -> int:
        return sum(self.quotas.values())

    @property
    def num_examples(self) -> int:
        return sum(source.num_examples for source in self._sources.values())

    @property
    def tokens_per_step(self) -> float:
        tokens = sum(self.quotas[name] * source.tokens_per_step for name, source in self._sources.items())
        return tokens / self.steps_per_epoch

    def first_cursor(self) -> Json:
        return {"epoch": 0, "step": 0, "tasks": {name: s.first_cursor() for name, s in self._sources.items()}}

    def take(self, cursor: Json) -> tuple[list[Batch], Json]:
        epoch, step, inner = cursor["epoch"], cursor["step"], cursor["tasks"]
        name = self.task_of(epoch, step)
        batches, after = self._sources[name].take(inner[name])
        last = step + 1 == self.steps_per_epoch
        following = {"epoch": epoch + 1, "step": 0} if last else {"epoch": epoch, "step": step + 1}
        return [replace(batch, task=name) for batch in batches], {**following, "tasks": {**inner, name: after}}

    def task_of(self, epoch: int, step: int) -> str:
        """Whose turn it is."""
        size = self.steps_per_epoch
        place = int(permute(np.array([step]), size, key_of("tasks", self._seed, epoch))[0])
        for name, quota in self.quotas.items():
            if place < quota:
                return name
            place -= quota
        raise AssertionError("a place beyond the quotas")


def _quotas(steps: list[int], temperature: float) -> list[int]:
    """How the sum of the steps is dealt out, by largest remainder, at least one each."""
    weights = np.array(steps, np.float64) ** (1.0 / temperature)
    exact = weights / weights.sum() * sum(steps)
    whole = np.floor(exact + 1e-9).astype(int)
    for index in np.argsort(-(exact - whole), kind="stable")[: sum(steps) - int(whole.sum())]:
        whole[index] += 1
    return [max(1, int(count)) for count in whole]
