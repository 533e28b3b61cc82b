"""Several models' outputs as one: the probabilities are the mean, whatever the kind."""

from __future__ import annotations

import numpy as np
import pytest

from remask.tasks.kinds import KINDS
from remask.tasks.numbers import softmax
from remask.tasks.rows import Rows


def rows_of(count: int, group_size: int = 1) -> Rows:
    return Rows([np.zeros(4, np.int64)] * count, None, None, np.arange(count) // group_size, group_size=group_size)


@pytest.mark.parametrize("kind, shape", [("classify", (3,)), ("tags", (4, 3))])
def test_classes_and_tags(kind, shape) -> None:
    rng = np.random.default_rng(0)
    models = [[rng.normal(size=shape) * 3 for _ in range(5)] for _ in range(3)]
    together = KINDS[kind].mean_outputs(models, rows_of(5))
    for row in range(5):
        expected = np.mean([softmax(model[row]) for model in models], axis=0)
        assert softmax(together[row]) == pytest.approx(expected)


def test_several_labels_numbers_and_spans() -> None:
    models = [[np.array([0.0, 2.0])], [np.array([100.0, 4.0])]]
    labels = 1 / (1 + np.exp(-KINDS["multilabel"].mean_outputs(models, rows_of(1))[0]))
    assert labels == pytest.approx([0.75, (1 / (1 + np.exp(-2)) + 1 / (1 + np.exp(-4))) / 2], abs=1e-6)
    assert KINDS["regress"].mean_outputs(models, rows_of(1))[0].tolist() == [50.0, 3.0]
    assert KINDS["spans"].mean_outputs(models, rows_of(1))[0].tolist() == [50.0, 3.0]


def test_choices_are_averaged_within_their_question() -> None:
    # One model is very sure of the first choice, two lean to the second: the mean of probabilities is for the first.
    models = [
        [np.float32(9.0), np.float32(0.0)],
        [np.float32(0.0), np.float32(0.2)],
        [np.float32(0.0), np.float32(0.2)],
    ]
    together = np.array(KINDS["choice"].mean_outputs(models, rows_of(2, 2)))
    expected = np.mean([softmax(np.array(model)[None])[0] for model in models], axis=0)
    assert np.exp(together) == pytest.approx(expected)
    assert together.argmax() == 0
