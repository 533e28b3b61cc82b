"""Each task's loss by hand, on a fake network; micro-batches add up; padding and ignored labels do not count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from remask.model.settings import HeadSettings
from remask.schema import IGNORE, Batch
from remask.task_objectives import TaskObjective
from remask.tasks.kind import TaskLoss
from remask.tasks.kinds import KINDS


class Fake:
    """A network whose heads give fixed logits; remembers whether noise was handed in."""

    def __init__(self, logits: torch.Tensor, answerable: torch.Tensor | None = None) -> None:
        self.logits, self.answerable_logits, self.noises = logits, answerable, []
        self.head_settings = HeadSettings(span=True, answerable=answerable is not None)

    def first_positions(self, batch):
        return None

    def encode(self, batch, noise, wanted_M):
        self.noises.append(noise)
        return torch.zeros(batch.num_rows, batch.input_ids_BS.shape[1], 4)

    def classify(self, hidden, lengths, noise):
        return self.logits

    def choose(self, hidden, lengths, noise):
        return self.logits

    def answerable(self, hidden, lengths, noise):
        return self.answerable_logits

    def tag(self, hidden, noise):
        return self.logits

    def span(self, hidden, noise):
        return self.logits


def batch_of(labels, rows: int, width: int = 3, lengths: list[int] | None = None) -> Batch:
    return Batch(
        torch.zeros(rows, width, dtype=torch.int64),
        torch.tensor(lengths or [width] * rows),
        labels=torch.as_tensor(labels),
        example_ids_B=torch.arange(rows),
    )


def test_classification() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]))
    fake, batch = Fake(logits), batch_of([1, 1], 2)
    loss = TaskObjective(KINDS["classify"], 0)(fake, batch, None)
    assert float(loss.parts["task"].sum) == pytest.approx(-np.log(0.25) - np.log(0.8), rel=1e-5)
    assert loss.parts["task"].count == 2
    assert int(loss.metrics["accuracy"].sum) == 1
    assert fake.noises == [None]
    objective = TaskObjective(KINDS["classify"], 0)
    objective(fake, batch, 5)
    assert fake.noises[-1] is not None


def test_regression_and_several_labels() -> None:
    loss = TaskObjective(KINDS["regress"], 0)(Fake(torch.tensor([[1.0], [3.0]])), batch_of([0.5, 5.0], 2), None)
    assert float(loss.parts["task"].sum) == pytest.approx(0.25 + 4.0)
    assert loss.metrics == {}
    logits, labels = torch.tensor([[2.0, -1.0]]), torch.tensor([[1.0, 1.0]])
    loss = TaskObjective(KINDS["multilabel"], 0)(Fake(logits), batch_of(labels, 1), None)
    assert float(loss.parts["task"].sum) == pytest.approx(np.log1p(np.exp(-2)) + np.log1p(np.exp(1)), rel=1e-5)
    assert loss.parts["task"].count == 2
    assert int(loss.metrics["accuracy"].sum) == 1


def test_tags_ignore_what_is_no_first_token() -> None:
    logits = torch.log(torch.tensor([[[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]]]))
    objective, batch = TaskObjective(KINDS["tags"], 0), batch_of([[IGNORE, 0, 1]], 1)
    loss = objective(Fake(logits), batch, None)
    assert float(loss.parts["task"].sum) == pytest.approx(-np.log(0.9) - np.log(0.8), rel=1e-5)
    assert objective.counts(batch) == {"task": 2}
    assert int(loss.metrics["accuracy"].sum) == 2


def test_spans_never_fall_on_padding() -> None:
    logits = torch.zeros(1, 4, 2)
    logits[0, 3] = 100.0  # padding that shouts
    loss = TaskObjective(KINDS["spans"], 0)(Fake(logits), batch_of([[1, 2]], 1, width=4, lengths=[3]), None)
    assert float(loss.parts["task"].sum) == pytest.approx(2 * np.log(3), rel=1e-5)
    assert loss.parts["task"].count == 2


def test_answerable_is_a_second_loss_on_one_pass() -> None:
    fake = Fake(torch.zeros(2, 3, 2), torch.tensor([3.0, 3.0]))
    objective = TaskObjective(KINDS["spans"], 0, TaskLoss(answerable=True))
    loss = objective(fake, batch_of([[1, 2], [0, 0]], 2), None)
    expected = np.log1p(np.exp(-3)) + np.log1p(np.exp(3))
    assert float(loss.parts["answerable"].sum) == pytest.approx(expected, rel=1e-5)
    assert {name: part.count for name, part in loss.parts.items()} == {"task": 4, "answerable": 2}
    assert set(objective.weights) == {"task", "answerable"}
    assert len(fake.noises) == 1


def test_choices_compete_within_their_question() -> None:
    scores = torch.log(torch.tensor([0.7, 0.3, 0.4, 0.6]))
    loss = TaskObjective(KINDS["choice"], 0)(Fake(scores), batch_of([0, 0], 4), None)
    assert float(loss.parts["task"].sum) == pytest.approx(-np.log(0.7) - np.log(0.4), rel=1e-5)
    assert int(loss.metrics["accuracy"].sum) == 1


def test_counts_work_on_numpy_before_the_batch_moves() -> None:
    batch = Batch(np.zeros((2, 3), np.int64), np.array([3, 3]), labels=np.array([[IGNORE, 1, 1], [0, IGNORE, 1]]))
    assert TaskObjective(KINDS["tags"], 0).counts(batch) == {"task": 4}


def test_rare_classes_may_count_more() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.5], [0.2, 0.8]]))
    loss = TaskObjective(KINDS["classify"], 0, TaskLoss(class_weights=(0.5, 3.0)))(
        Fake(logits), batch_of([0, 1], 2), None
    )
    assert float(loss.parts["task"].sum) == pytest.approx(-0.5 * np.log(0.5) - 3 * np.log(0.8), rel=1e-5)
    assert loss.parts["task"].count == 2


def test_choices_ranked_by_a_margin() -> None:
    # First question: ahead by 3 and by 0.5, so 0.5 is missing; second: behind by 1, so 2 are, and nothing elsewhere.
    logits = torch.tensor([3.0, 0.0, 2.5, 1.0, 2.0, -5.0])
    loss = TaskObjective(KINDS["choice"], 0, TaskLoss(margin=True))(Fake(logits), batch_of([0, 0], 6), None)
    assert float(loss.parts["task"].sum) == pytest.approx(2.5)
    assert loss.parts["task"].count == 2
    assert int(loss.metrics["accuracy"].sum) == 1


@pytest.mark.parametrize("kind, labels", [("classify", [1, 1, 0]), ("regress", [0.5, 0.5, 2.0])])
def test_windows_of_one_text_count_as_one(kind: str, labels: list[float]) -> None:
    logits = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])[:, : 1 if kind == "regress" else 2]
    objective = TaskObjective(KINDS[kind], 0)
    rows = [objective(Fake(logits[i : i + 1]), batch_of(labels[i : i + 1], 1), None).parts["task"] for i in range(3)]
    # The first text has two windows, the second one: each text is worth one, whatever its windows.
    batch = replace(batch_of(labels, 3), weights_B=torch.tensor([0.5, 0.5, 1.0]))
    loss = objective(Fake(logits), batch, None)
    expected = (rows[0].sum + rows[1].sum) / 2 + rows[2].sum
    assert float(loss.parts["task"].sum) == pytest.approx(float(expected), rel=1e-6)
    assert loss.parts["task"].count == 2
    if kind == "classify":
        assert float(loss.metrics["accuracy"].sum) == 1.5  # one window of the first is right, and the second text


def test_windows_with_several_labels_count_as_one() -> None:
    objective = TaskObjective(KINDS["multilabel"], 0)
    logits, labels = torch.tensor([[2.0, -1.0], [0.0, 1.0]]), torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    rows = [objective(Fake(logits[i : i + 1]), batch_of(labels[i : i + 1], 1), None).parts["task"] for i in range(2)]
    loss = objective(Fake(logits), replace(batch_of(labels, 2), weights_B=torch.tensor([0.5, 0.5])), None)
    assert float(loss.parts["task"].sum) == pytest.approx(float((rows[0].sum + rows[1].sum) / 2), rel=1e-6)
    assert loss.parts["task"].count == rows[0].count
