"""What fine-tuning learns: the loss of one task, or of several over one encoder.

In: a network with the task's head and a Batch with labels. Out: a Loss with the part `task` (and `answerable` for SQuAD
2.0, which RoBERTa trains jointly, section 5.2), as sums with their counts. No torch at import. Not here: what a kind's
loss is (tasks), pretraining (objectives), batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remask.schema import Batch, Loss, LossPart
from remask.tasks.kind import TaskKind, TaskLoss


class TaskObjective:
    """schema.Objective for one task."""

    def __init__(self, kind: TaskKind, seed: int, plan: TaskLoss | None = None) -> None:
        self.kind, self.seed, self.plan = kind, seed, plan or TaskLoss()
        self.weights: Mapping[str, float] = {"task": 1.0, **({"answerable": 1.0} if self.plan.answerable else {})}

    def counts(self, batch: Batch) -> Mapping[str, float]:
        return self.kind.counts(batch, self.plan)

    def __call__(self, model: Any, batch: Batch, step: int | None) -> Loss:
        noise = None
        if step is not None:
            from remask.model.noise import Noise

            noise = Noise(self.seed, step, batch.example_ids_B)
        sums, right = self.kind.losses(model, batch, noise, self.plan)
        counts = self.counts(batch)
        parts = {name: LossPart(total, counts[name]) for name, total in sums.items()}
        return Loss(parts, {} if right is None else {"accuracy": LossPart(right, counts["task"])})


class MixedObjective:
    """schema.Objective for several tasks over one encoder: every batch is of one task, whose loss it has.

    A part is named after its task, so that each is divided by its own count and shown by itself."""

    def __init__(self, objectives: Mapping[str, TaskObjective]) -> None:
        self._objectives = objectives
        self.weights: Mapping[str, float] = {
            _named(task, part): weight
            for task, objective in objectives.items()
            for part, weight in objective.weights.items()
        }

    def counts(self, batch: Batch) -> Mapping[str, float]:
        assert batch.task is not None
        counts = self._objectives[batch.task].counts(batch)
        return {_named(batch.task, part): count for part, count in counts.items()}

    def __call__(self, model: Any, batch: Batch, step: int | None) -> Loss:
        """`model.of(task)` is the network with that task's head."""
        task = batch.task
        assert task is not None
        loss = self._objectives[task](model.of(task), batch, step)
        return Loss(
            {_named(task, part): value for part, value in loss.parts.items()},
            {f"{task}.{name}": value for name, value in loss.metrics.items()},
        )


def _named(task: str, part: str) -> str:
    return task if part == "task" else f"{task}.{part}"
