"""Texts and pairs of texts: classes, numbers, several labels at once.

In: the user's own tables, or GLUE's files. Rows are <s> text </s> (and a second text); what the head says about the
windows of one long text is averaged: probabilities, or numbers. Not here: tags, spans, choices.

Shapes: B rows of a batch, N examples, R rows, C classes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from remask.errors import ConfigError
from remask.progress import counted
from remask.schema import Batch, Json
from remask.tables import Cells
from remask.tasks import metrics
from remask.tasks.glue import cut_by_hash, cut_note, read_glue, read_glue_file
from remask.tasks.kind import Heads, Labelled, NoiseT, Problem, Sums, TaskKind, TaskLoss, TaskNetwork, TaskSource
from remask.tasks.numbers import by_size, divergence, log_of, most_frequent, rounded, softmax, surest_mistakes
from remask.tasks.records import Label
from remask.tasks.rows import Frame, Rows, Target, encode_rows
from remask.tasks.settings import LossSettings, RowSettings, TableSettings
from remask.tasks.specs import TASKS
from remask.tasks.tables import (
    SET_ASIDE,
    UNSEEN,
    Example,
    Table,
    check_labels,
    label_names,
    read_table,
    text_of,
)
from remask.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

Array = np.ndarray
UNEVEN_SHARE = 0.8  # one class this large: accuracy says little


class TextKind(TaskKind[Example]):
    """What classes, numbers and several labels have in common: one or two texts, one output for them."""

    method = "classify"
    form: ClassVar[str]  # how labels are written in a table: classify, regress, multilabel

    # ------------------------------------------------------------------------------------------------ reading

    def open(self, source: TaskSource) -> Problem[Example]:
        if source.task == "pair" and source.table.text2 is None:
            raise ConfigError("task pair needs two text columns: --text COL --text2 COL")
        if source.task in TASKS:
            return self._open_named(source)
        if source.train is None:
            raise ConfigError(f"task {source.task} needs a file to train on: --train FILE")
        train = read_table(source.train, self.form, source.table)
        notes = []
        if source.dev is None:
            train, dev = cut_by_hash(train)
            notes.append(cut_note(source.train, "by hash"))
        else:
            dev = read_table(source.dev, self.form, source.table)
        labels = self._label_names(train)
        self._check_labels(dev, labels, SET_ASIDE if source.dev is None else UNSEEN)
        problem = self._problem(source.task, labels, self.metric, train, dev, notes)
        return self._with_own_metric(problem)

    def _open_named(self, source: TaskSource) -> Problem[Example]:
        """One of the papers' tasks, from given files or from those in its folder."""
        task, spec = source.task, TASKS[source.task]
        notes: list[str] = []
        if source.train is not None and source.dev is not None:
            train, dev = (read_glue_file(task, spec, path) for path in (source.train, source.dev))
        elif source.train is not None and source.folder is None:
            train, dev = cut_by_hash(read_glue_file(task, spec, source.train))
            notes.append(cut_note(source.train, "by hash"))
        elif source.folder is not None:
            data = read_glue(task, spec, source.folder)
            train, dev = data.train, data.dev
            notes += [data.note] if data.note else []
        else:
            raise ConfigError(f"task {task} needs its files: --data FOLDER, or --train FILE (and --dev FILE)")
        return self._problem(task, spec["labels"], spec["metric"], train, dev, notes)

    def _problem(
        self, task: str, labels: tuple[str, ...], metric: str, train: Table, dev: Table, notes: Sequence[str]
    ) -> Problem[Example]:
        dropped = dict(Counter(train.dropped) + Counter(dev.dropped))
        notes = (*dict.fromkeys((*train.notes, *dev.notes)), *notes, *self._notes(train.examples))
        return Problem(task, self, labels, metric, train.examples, dev.examples, notes, {"dropped": dropped})

    def _notes(self, train: Sequence[Example]) -> list[str]:
        """What to know about the training data."""
        return []

    def _with_own_metric(self, problem: Problem[Example]) -> Problem[Example]:
        """Of the user's own table: another metric where the usual one would say little."""
        return problem

    def _label_names(self, table: Table) -> tuple[str, ...]:
        return label_names(table, self.form)

    def _check_labels(self, table: Table, labels: Sequence[str], whose: str) -> None:
        check_labels(table, labels, self.form, whose)

    def read_labelled(
        self, path: Path, task: str | None, labels: tuple[str, ...], table: TableSettings
    ) -> Labelled[Example]:
        if task is not None and task in TASKS:
            examples = read_glue_file(task, TASKS[task], path)
        else:
            examples = read_table(path, self.form, table)
        self._check_labels(examples, labels, foreign_labels(labels))
        return Labelled(examples.examples, examples.notes, {"dropped": dict(examples.dropped)})

    def columns(self, table: TableSettings, text: str | None, text2: str | None) -> tuple[str, ...]:
        second = text2 or table.text2
        return (text or table.text, *([second] if second else []))

    def item(self, cells: Cells, columns: Sequence[str], table: TableSettings) -> Example:
        return Example(tuple(text_of(cells, column) for column in columns), None, cells.place)

    def key(self, item: Example) -> Hashable:
        return item.texts

    def text(self, item: Example) -> str:
        return " / ".join(item.texts)

    # ------------------------------------------------------------------------------------------------ network

    def logits(
        self, network: TaskNetwork[NoiseT], hidden_BSD: torch.Tensor, batch: Batch, noise: NoiseT | None = None
    ) -> torch.Tensor:
        return network.classify(hidden_BSD, batch.lengths_B, noise)

    def encode(
        self, items: Sequence[Example], labels: Sequence[str], tokenizer: Tokenizer, frame: Frame,
        settings: RowSettings, *, labelled: bool = True,
    ) -> Rows:  # fmt: skip
        values = self.label_values(items, labels) if labelled else None
        return encode_rows(items, tokenizer, frame, settings, values)

    @abstractmethod
    def label_values(self, items: Sequence[Example], labels: Sequence[str]) -> list[Target]:
        """What Batch.labels holds for each example."""

    # ------------------------------------------------------------------------------------------------ answers

    def values(self, outputs: Sequence[Array], rows: Rows) -> Array:
        """Probabilities (N x C) or numbers (N) of every example, the mean over its windows."""
        values = self.row_values(np.stack(outputs))
        count = np.bincount(rows.example_of_row)
        sums = np.zeros((len(count), *values.shape[1:]))
        np.add.at(sums, rows.example_of_row, values)
        return sums / count.reshape(-1, *[1] * (values.ndim - 1))

    @abstractmethod
    def row_values(self, logits_RC: Array) -> Array:
        """Logits -> probabilities or numbers, row by row."""

    def answers(
        self, outputs: Sequence[Array], rows: Rows, items: Sequence[Example], labels: tuple[str, ...], *, refuses: bool
    ) -> list[Label]:
        return [self.label(value, labels) for value in self.values(outputs, rows)]

    @abstractmethod
    def label(self, value: Array, labels: tuple[str, ...]) -> Label:
        """One example's answer."""

    def mean_outputs(self, models: Sequence[Sequence[Array]], rows: Rows) -> list[Array]:
        return [self._mean([outputs[row] for outputs in models]) for row in range(len(rows.ids))]

    @abstractmethod
    def _mean(self, outputs: Sequence[Array]) -> Array:
        """What several models say about one row, as one output."""


def foreign_labels(labels: Sequence[str]) -> str:
    """How an error speaks of labels that a model does not have."""
    shown = ", ".join(list(labels)[:10])
    return f"that the model does not have (it has {shown}{', …' if len(labels) > 10 else ''})"


def _rounded(scores: Mapping[str, float]) -> dict[str, float]:
    return {name: rounded(score) for name, score in scores.items()}


def weighted(losses_B: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The sum over rows; the windows of one text count as one."""
    return losses_B.sum() if batch.weights_B is None else (losses_B * batch.weights_B).sum()


class Classify(TextKind):
    """One class of several."""

    name, metric, form = "classify", "accuracy", "classify"

    def _notes(self, train: Sequence[Example]) -> list[str]:
        first_label: dict[tuple[str, ...], object] = {}
        unsure = {e.texts for e in train if first_label.setdefault(e.texts, e.label) != e.label}
        words = f"{counted(len(unsure), 'training text')} with different labels at different places"
        return [words] if unsure else []

    def _with_own_metric(self, problem: Problem[Example]) -> Problem[Example]:
        often, count = Counter(e.label for e in problem.train).most_common(1)[0]
        share = count / len(problem.train)
        if share <= UNEVEN_SHARE:
            return problem
        note = (
            f"{share:.0%} of the training rows are {often!r}: models are chosen by macro F1 "
            "(loss.class_weights=balanced lets rare classes count more)"
        )
        return replace(problem, metric="macro_f1", notes=(*problem.notes, note))

    def head(self, problem: Problem[Example]) -> dict[str, int | bool]:
        return {"num_classes": len(problem.labels), "multilabel": False}

    def fits(self, heads: Heads) -> bool:
        return heads.num_classes is not None and heads.num_classes > 1 and not heads.multilabel

    def num_labels(self, heads: Heads) -> int:
        return heads.num_classes or 0

    def plan_loss(self, problem: Problem[Example], settings: LossSettings, heads: Heads) -> TaskLoss:
        if settings.class_weights == "none":
            return super().plan_loss(problem, settings, heads)
        counts = Counter(e.label for e in problem.train)
        # A class of the task that this part of its data does not have never occurs: any weight will do.
        total = len(problem.train)
        return TaskLoss(tuple(total / (len(counts) * max(1, counts[name])) for name in problem.labels))

    def loss(self, logits: torch.Tensor, batch: Batch, plan: TaskLoss) -> tuple[Sums, torch.Tensor]:
        import torch.nn.functional as F

        weights = None if plan.class_weights is None else logits.new_tensor(plan.class_weights)
        assert batch.labels is not None
        right_B = logits.argmax(-1) == batch.labels
        if batch.weights_B is None:
            return {"task": F.cross_entropy(logits, batch.labels, weights, reduction="sum")}, right_B.sum()
        losses_B = F.cross_entropy(logits, batch.labels, weights, reduction="none")
        return {"task": weighted(losses_B, batch)}, weighted(right_B, batch)

    def difference(self, one: torch.Tensor, other: torch.Tensor, batch: Batch) -> torch.Tensor:
        return weighted(divergence(one, other), batch)

    def label_values(self, items: Sequence[Example], labels: Sequence[str]) -> list[Target]:
        index = {name: i for i, name in enumerate(labels)}
        return [np.int64(index[e.label]) for e in items]

    def row_values(self, logits_RC: Array) -> Array:
        return softmax(logits_RC)

    def label(self, value: Array, labels: tuple[str, ...]) -> Label:
        best = labels[int(value.argmax())]
        return Label(best, float(value.max()), dict(zip(labels, value.tolist(), strict=True)), (best,))

    def named(self, answer: Label, item: Example) -> Json:
        return {"prediction": answer.label, "score": rounded(answer.score), "scores": _rounded(answer.scores)}

    def _mean(self, outputs: Sequence[Array]) -> Array:
        return log_of(np.mean([softmax(np.asarray(output)) for output in outputs], axis=0))

    def _score(self, outputs: Sequence[Array], rows: Rows, items: Sequence[Example], labels: tuple[str, ...]) -> Json:
        probs_NC, truth = self.values(outputs, rows), np.array(self.label_values(items, labels))
        chosen = probs_NC.argmax(1)
        counts = metrics.confusion(truth, chosen, len(labels))
        mistakes = [
            (i, labels[truth[i]], labels[chosen[i]], probs_NC[i].max()) for i in surest_mistakes(probs_NC, truth)
        ]
        return {
            "metrics": metrics.classification(truth, chosen, labels),
            "table": metrics.class_table(counts, labels),
            "confusion": counts.tolist(),
            "calibration": metrics.calibration(chosen == truth, probs_NC.max(1)),
            **self.worst(mistakes, items, "confidence"),
        }

    def example_values(
        self, outputs: Sequence[Array], rows: Rows, items: Sequence[Example], labels: tuple[str, ...], metric: str
    ) -> Array:
        truth = np.array(self.label_values(items, labels))
        chosen, count = self.values(outputs, rows).argmax(1), len(labels)
        if metric == "accuracy":
            return (chosen == truth).astype(np.float64)
        cells_EK = np.zeros((len(items), count * count))
        cells_EK[np.arange(len(items)), truth * count + chosen] = 1.0

        def score(means_K: Array) -> float:
            counts_CC = means_K.reshape(count, count)
            if metric == "matthews":
                return metrics.matthews(counts_CC)
            table = metrics.class_table(counts_CC, labels)
            return table["classes"][labels[1]]["f1"] if count == 2 else table["averages"]["macro"]["f1"]

        return metrics.linearised(cells_EK, score)

    def baseline(self, train: Sequence[Example], dev: Sequence[Example], labels: tuple[str, ...]) -> dict[str, float]:
        often = labels.index(most_frequent([e.label for e in train]))
        return metrics.classification(np.array(self.label_values(dev, labels)), np.full(len(dev), often), labels)


class Regress(TextKind):
    """A number. It learns in standard units (tune.units); everything here is in the file's own."""

    name, metric, form = "regress", "spearman", "regress"

    def _label_names(self, table: Table) -> tuple[str, ...]:
        return ()

    def _check_labels(self, table: Table, labels: Sequence[str], whose: str) -> None:
        pass

    def _notes(self, train: Sequence[Example]) -> list[str]:
        first = train[0].label
        if any(e.label != first for e in train):
            return []
        return [f"all {len(train):,} training rows have the number {first:g}: there is nothing to learn from them"]

    def head(self, problem: Problem[Example]) -> dict[str, int | bool]:
        return {"num_classes": 1, "multilabel": False}

    def fits(self, heads: Heads) -> bool:
        return heads.num_classes == 1 and not heads.multilabel

    def loss(self, logits: torch.Tensor, batch: Batch, plan: TaskLoss) -> tuple[Sums, None]:
        """Squared error, as in GLUE's STS-B."""
        import torch.nn.functional as F

        assert batch.labels is not None
        if batch.weights_B is None:
            return {"task": F.mse_loss(logits[:, 0], batch.labels, reduction="sum")}, None
        return {"task": weighted(F.mse_loss(logits[:, 0], batch.labels, reduction="none"), batch)}, None

    def difference(self, one: torch.Tensor, other: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Squared."""
        return weighted((one[:, 0] - other[:, 0]).square(), batch)

    def label_values(self, items: Sequence[Example], labels: Sequence[str]) -> list[Target]:
        return [np.float32(e.label) for e in items]

    def row_values(self, logits_RC: Array) -> Array:
        return logits_RC[:, 0].astype(np.float64)

    def label(self, value: Array, labels: tuple[str, ...]) -> Label:
        return Label(None, float(value))

    def named(self, answer: Label, item: Example) -> Json:
        return {"prediction": answer.score}

    def _mean(self, outputs: Sequence[Array]) -> Array:
        return np.mean(outputs, axis=0)

    def _score(self, outputs: Sequence[Array], rows: Rows, items: Sequence[Example], labels: tuple[str, ...]) -> Json:
        numbers, truth = self.values(outputs, rows), np.array(self.label_values(items, labels))
        distance = np.abs(numbers - truth)
        mistakes = [(i, f"{truth[i]:g}", f"{numbers[i]:.3g}", distance[i]) for i in by_size(distance)]
        return {"metrics": metrics.regression(truth, numbers), **self.worst(mistakes, items, "distance")}

    def baseline(self, train: Sequence[Example], dev: Sequence[Example], labels: tuple[str, ...]) -> dict[str, float]:
        """The training data's mean for every text; a constant correlates with nothing."""
        mean = float(np.mean([e.label for e in train]))
        return metrics.regression(np.array(self.label_values(dev, labels)), np.full(len(dev), mean))


class MultiLabel(TextKind):
    """Any number of labels: each is said where its probability is at least one half."""

    name, metric, form = "multilabel", "f1", "multilabel"

    def head(self, problem: Problem[Example]) -> dict[str, int | bool]:
        return {"num_classes": len(problem.labels), "multilabel": True}

    def fits(self, heads: Heads) -> bool:
        return heads.num_classes is not None and heads.multilabel

    def num_labels(self, heads: Heads) -> int:
        return heads.num_classes or 0

    def counts(self, batch: Batch, plan: TaskLoss) -> dict[str, float]:
        assert batch.labels is not None
        return {"task": super().counts(batch, plan)["task"] * batch.labels.shape[1]}

    def loss(self, logits: torch.Tensor, batch: Batch, plan: TaskLoss) -> tuple[Sums, torch.Tensor]:
        import torch.nn.functional as F

        assert batch.labels is not None
        right_BC = (logits > 0) == (batch.labels > 0.5)
        if batch.weights_B is None:
            return {"task": F.binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum")}, right_BC.sum()
        losses_B = F.binary_cross_entropy_with_logits(logits, batch.labels, reduction="none").sum(1)
        return {"task": weighted(losses_B, batch)}, weighted(right_BC.sum(1), batch)

    def difference(self, one: torch.Tensor, other: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Of every label's own yes or no."""
        return weighted(0.5 * ((one.sigmoid() - other.sigmoid()) * (one - other)).sum(1), batch)

    def label_values(self, items: Sequence[Example], labels: Sequence[str]) -> list[Target]:
        index = {name: i for i, name in enumerate(labels)}
        values = np.zeros((len(items), len(labels)), np.float32)
        for row, example in enumerate(items):
            values[row, [index[name] for name in example.label]] = 1
        return list(values)

    def row_values(self, logits_RC: Array) -> Array:
        return 1 / (1 + np.exp(-logits_RC.astype(np.float64)))

    def label(self, value: Array, labels: tuple[str, ...]) -> Label:
        scores = dict(zip(labels, value.tolist(), strict=True))
        best = max(scores, key=scores.__getitem__)
        return Label(best, scores[best], scores, tuple(name for name in labels if scores[name] >= 0.5))

    def named(self, answer: Label, item: Example) -> Json:
        return {"prediction": list(answer.labels), "scores": _rounded(answer.scores)}

    def _mean(self, outputs: Sequence[Array]) -> Array:
        probability = np.mean([self.row_values(np.asarray(output)) for output in outputs], axis=0)
        return log_of(probability) - log_of(1 - probability)

    def _score(self, outputs: Sequence[Array], rows: Rows, items: Sequence[Example], labels: tuple[str, ...]) -> Json:
        probs_NC, truth = self.values(outputs, rows), np.stack(self.label_values(items, labels))
        chosen = probs_NC >= 0.5
        surest = np.where(chosen != (truth > 0.5), np.maximum(probs_NC, 1 - probs_NC), 0.0).max(1)
        mistakes = [
            (i, _names(truth[i] > 0.5, labels), _names(chosen[i], labels), surest[i])
            for i in by_size(surest)
            if surest[i] > 0
        ]
        return {
            "metrics": metrics.multilabel(truth, chosen, labels),
            "table": metrics.multilabel_table(truth, chosen, labels),
            **self.worst(mistakes, items, "confidence"),
        }

    def baseline(self, train: Sequence[Example], dev: Sequence[Example], labels: tuple[str, ...]) -> dict[str, float]:
        """The labels that most training texts have, or the most frequent one, for every text."""
        shares = np.stack(self.label_values(train, labels)).mean(0)
        always = (shares >= 0.5) if (shares >= 0.5).any() else shares == shares.max()
        truth = np.stack(self.label_values(dev, labels))
        return metrics.multilabel(truth, np.broadcast_to(always, truth.shape), labels)


def _names(chosen: Array, labels: Sequence[str]) -> str:
    return ", ".join(name for name, yes in zip(labels, chosen, strict=True) if yes) or "(none)"
