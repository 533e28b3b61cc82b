"""What fine-tuning learns: the loss of one task, as the papers have it.

In: a network with the task's head and a Batch whose `labels` are classes, numbers, 0/1 vectors, tags, spans or the
right choice. Out: a Loss with one part, `task` (and `answerable` for SQuAD 2.0, which RoBERTa trains jointly, section
5.2), as sums with their counts. Choices may be ranked by a margin instead (WSC, section 5.1). No torch at import.
Not here: pretraining (objectives), batches (tasks).

Shapes: B rows, S positions, C classes, Q questions of C choices each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from remask.schema import IGNORE, Batch, Loss, Part

if TYPE_CHECKING:
    import torch

# head of the network by kind of task
HEADS = {
    "classify": "classify",
    "regress": "classify",
    "multilabel": "classify",
    "tags": "tag",
    "spans": "span",
    "choice": "choose",
}

MARGIN = 1.0


def task_logits(model: Any, kind: str, batch: Batch, noise: Any = None) -> torch.Tensor:
    """What the task's head says about a batch of tensors: B x C, B x S x C, B x S x 2 or B.

    A network that also says whether there is an answer gives B x S x 3 for spans: that logit at every position."""
    import torch

    wanted_M = None if kind in ("tags", "spans") else model.first_positions(batch)
    hidden_BSD = model.encode(batch, noise, wanted_M=wanted_M)
    if kind == "spans" and model.head_settings.answerable:
        logits_BS2, logit_B = model.span(hidden_BSD, noise), model.answerable(hidden_BSD, batch.lengths_B, noise)
        return torch.cat([logits_BS2, logit_B[:, None, None].expand(-1, logits_BS2.shape[1], 1)], dim=2)
    head = getattr(model, HEADS[kind])
    if kind in ("tags", "spans"):
        return head(hidden_BSD, noise)
    return head(hidden_BSD, batch.lengths_B, noise)


class TaskObjective:
    """schema.Objective for one kind of task. `answerable`: SQuAD 2.0's second loss, on the same encoder pass.
    `class_weights`: how much an example of each class counts (their mean over the data is 1). `margin`: choices are
    ranked, not classified."""

    def __init__(
        self,
        kind: str,
        seed: int,
        *,
        answerable: bool = False,
        class_weights: Sequence[float] | None = None,
        margin: bool = False,
    ) -> None:
        assert kind in HEADS
        assert kind == "spans" or not answerable
        assert kind == "classify" or class_weights is None
        assert kind == "choice" or not margin
        self.kind, self.seed, self.answerable = kind, seed, answerable
        self.class_weights, self.margin = class_weights, margin
        self.step = 0  # the last training step that was asked for: what an evaluation between steps belongs to
        self.weights: Mapping[str, float] = {"task": 1.0, **({"answerable": 1.0} if answerable else {})}

    def counts(self, batch: Batch) -> Mapping[str, int]:
        labels = batch.labels
        assert labels is not None
        if self.kind == "tags":
            return {"task": int((labels != IGNORE).sum())}
        if self.kind in ("multilabel", "spans"):
            both = {"task": labels.shape[0] * labels.shape[1]}
            return both | ({"answerable": labels.shape[0]} if self.answerable else {})
        return {"task": labels.shape[0]}

    def __call__(self, model: Any, batch: Batch, step: int | None) -> Loss:
        noise = None
        if step is not None:
            from remask.model.noise import Noise

            self.step = step
            noise = Noise(self.seed, step, batch.example_ids_B)
        if self.answerable:
            return self._spans_and_answerable(model, batch, noise)
        logits = task_logits(model, self.kind, batch, noise).float()
        if self.margin:
            total, right = _margin_loss(logits, batch)
        else:
            total, right = _loss(self.kind, logits, batch, self.class_weights)
        count = self.counts(batch)["task"]
        metrics = {} if right is None else {"accuracy": Part(right, count)}
        return Loss({"task": Part(total, count)}, metrics)

    def _spans_and_answerable(self, model: Any, batch: Batch, noise: Any) -> Loss:
        import torch.nn.functional as F

        logits_BS3 = task_logits(model, "spans", batch, noise).float()
        total, right = _loss("spans", logits_BS3[:, :, :2], batch)
        logits_B = logits_BS3[:, 0, 2]
        assert batch.labels is not None
        has_answer_B = (batch.labels[:, 1] > 0).float()
        answerable = F.binary_cross_entropy_with_logits(logits_B, has_answer_B, reduction="sum")
        counts = self.counts(batch)
        return Loss(
            {"task": Part(total, counts["task"]), "answerable": Part(answerable, counts["answerable"])},
            {"accuracy": Part(right, counts["task"])},
        )


class MixedObjective:
    """schema.Objective for several tasks over one encoder: every batch is of one task, whose loss it has.

    A part is named after its task, so that each is divided by its own count and shown by itself."""

    def __init__(self, objectives: Mapping[str, TaskObjective]) -> None:
        self._objectives = objectives
        self.step = 0
        self.weights: Mapping[str, float] = {
            _named(task, part): weight for task, one in objectives.items() for part, weight in one.weights.items()
        }

    def counts(self, batch: Batch) -> Mapping[str, int]:
        assert batch.task is not None
        found = self._objectives[batch.task].counts(batch)
        return {_named(batch.task, part): count for part, count in found.items()}

    def __call__(self, model: Any, batch: Batch, step: int | None) -> Loss:
        """`model.of(task)` is the network with that task's head."""
        task = batch.task
        assert task is not None
        if step is not None:
            self.step = step
        loss = self._objectives[task](model.of(task), batch, step)
        return Loss(
            {_named(task, part): value for part, value in loss.parts.items()},
            {f"{task}.{name}": value for name, value in loss.metrics.items()},
        )


def _named(task: str, part: str) -> str:
    return task if part == "task" else f"{task}.{part}"


def _margin_loss(logits_B: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The right choice must be ahead of each other one by MARGIN; what is missing is the loss."""
    labels_Q = batch.labels
    assert labels_Q is not None
    logits_QC = logits_B.view(labels_Q.shape[0], -1)
    right_Q1 = logits_QC.gather(1, labels_Q[:, None])
    missing_QC = (MARGIN + logits_QC - right_Q1).clamp(min=0)
    total = missing_QC.sum() - MARGIN * labels_Q.shape[0]  # the right one's distance to itself is no loss
    return total, (logits_QC.argmax(-1) == labels_Q).sum()


def _loss(
    kind: str, logits: torch.Tensor, batch: Batch, class_weights: Sequence[float] | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(sum, how many were right or None). Regression is squared error, as in GLUE's STS-B."""
    import torch.nn.functional as F

    labels = batch.labels
    assert labels is not None
    if kind == "regress":
        return F.mse_loss(logits[:, 0], labels, reduction="sum"), None
    if kind == "multilabel":
        right = ((logits > 0) == (labels > 0.5)).sum()
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="sum"), right
    if kind == "tags":
        logits, labels = logits.flatten(0, 1), labels.flatten()
    elif kind == "spans":
        # Padding cannot be the start or the end of an answer.
        columns_S = _columns(logits)
        outside_BS = columns_S[None, :] >= batch.lengths_B[:, None]
        logits = logits.masked_fill(outside_BS[:, :, None], float("-inf")).transpose(1, 2).flatten(0, 1)
        labels = labels.flatten()
    elif kind == "choice":
        logits = logits.view(labels.shape[0], -1)
    weights = None if class_weights is None else logits.new_tensor(class_weights)
    total = F.cross_entropy(logits, labels, weights, ignore_index=IGNORE, reduction="sum")
    return total, (logits.argmax(-1) == labels).sum()


def _columns(logits: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.arange(logits.shape[1], device=logits.device)
