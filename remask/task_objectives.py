"""What fine-tuning learns: the loss of one task, or of several over one encoder.

In: a network with the task's head and a Batch with labels. Out: a Loss with the part `task` (and `answerable` for SQuAD
2.0, which RoBERTa trains jointly, section 5.2), as sums with their counts. No torch at import. Not here: what a kind's
loss is (tasks), pretraining (objectives), batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from remask.schema import Batch, Loss, LossPart, Objective
from remask.tasks.kind import TaskKind, TaskLoss
from remask.tasks.retrieve import PairTable, Retrieve, compare_pairs

if TYPE_CHECKING:
    import torch


def task_logits(model: Any, kind: TaskKind, batch: Batch, noise: Any = None) -> torch.Tensor:
    """What the task's head says about a batch of tensors."""
    hidden_BSD = model.encode(batch, noise, wanted_M=kind.positions(model, batch))
    return kind.logits(model, hidden_BSD, batch, noise)


class TaskObjective:
    """schema.Objective for one task."""

    def __init__(self, kind: TaskKind, seed: int, plan: TaskLoss | None = None) -> None:
        self.kind, self.seed, self.plan = kind, seed, plan or TaskLoss()
        self.weights: Mapping[str, float] = {"task": 1.0, **({"answerable": 1.0} if self.plan.answerable else {})}

    def counts(self, batch: Batch) -> Mapping[str, float]:
        return self.kind.counts(batch, self.plan)

    def __call__(self, model: Any, batch: Batch, step: int | None) -> Loss:
        logits = task_logits(model, self.kind, batch, _noise(self.seed, step, batch)).float()
        sums, right = self.kind.loss(logits, batch, self.plan)
        counts = self.counts(batch)
        parts = {name: LossPart(total, counts[name]) for name, total in sums.items()}
        return Loss(parts, {} if right is None else {"accuracy": LossPart(right, counts["task"])})


class PairObjective:
    """schema.JointObjective of task retrieve: every query of a step chooses among all documents of the step."""

    def __init__(self, kind: Retrieve, seed: int, table: PairTable) -> None:
        self.kind, self.seed, self.table = kind, seed, table
        margin = {} if table.margins_of_pair is None else {"margin": kind.settings.distil_weight}
        self.weights: Mapping[str, float] = {"task": 1.0, **margin}

    def counts(self, batch: Batch) -> Mapping[str, float]:
        """Queries: rows below the number of pairs, see pair_batches."""
        assert batch.example_ids_B is not None
        return dict.fromkeys(self.weights, float((batch.example_ids_B < self.table.num_pairs).sum()))

    def outputs(self, model: Any, batch: Batch, step: int | None) -> torch.Tensor:
        return task_logits(model, self.kind, batch, _noise(self.seed, step, batch))

    def compare(
        self, model: Any, outputs_ND: torch.Tensor, example_ids_N: torch.Tensor, rank: int, num_ranks: int
    ) -> Loss:
        settings = self.kind.settings
        scale = model.scale(settings.temperature)
        ids_N = example_ids_N.cpu().numpy()
        sums, right = compare_pairs(outputs_ND, ids_N, self.table, settings, scale, rank, num_ranks)
        num_queries = int((ids_N < self.table.num_pairs).sum())
        count = float(len(range(rank, num_queries, num_ranks)))
        return Loss(
            {name: LossPart(total, count) for name, total in sums.items()}, {"accuracy": LossPart(right, count)}
        )

    def __call__(self, model: Any, batch: Batch, step: int | None) -> Loss:
        """One batch as a step of its own."""
        assert batch.example_ids_B is not None
        return self.compare(model, self.outputs(model, batch, step).float(), batch.example_ids_B, 0, 1)


def _noise(seed: int, step: int | None, batch: Batch) -> Any:
    """Dropout of a training step; None in evaluation."""
    if step is None:
        return None
    from remask.model.noise import Noise

    return Noise(seed, step, batch.example_ids_B)


class MixedObjective:
    """schema.Objective for several tasks over one encoder: every batch is of one task, whose loss it has.

    A part is named after its task, so that each is divided by its own count and shown by itself."""

    def __init__(self, objectives: Mapping[str, Objective]) -> None:
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
