"""From logits to answers, whatever the batches were."""

from __future__ import annotations

import numpy as np
import pytest
from remask.tasks.predict import answers, describe, row_outputs, score, softmax, worst

from remask import signals
from remask.errors import Stopped
from remask.tasks.rows import Rows


def make_rows(lengths: list[int], example_of_row: list[int] | None = None) -> Rows:
    ids = [np.full(n, i, np.int64) for i, n in enumerate(lengths)]
    return Rows(ids, None, None, np.array(example_of_row or range(len(lengths))))


def test_answers_come_in_the_examples_order() -> None:
    rows = make_rows([9, 3, 7, 3, 5])
    seen = []

    def forward(batch):
        seen.append(batch.num_rows)
        return np.stack([batch.input_ids_BS[:, 0], -batch.input_ids_BS[:, 0]], 1)

    logits = row_outputs(forward, rows, pad_id=99, num_tokens=12)
    assert [row[0] for row in logits] == [0, 1, 2, 3, 4]
    assert len(seen) > 2


def test_outputs_by_token_are_cut_to_the_row() -> None:
    rows = make_rows([4, 2, 3])
    said = row_outputs(lambda batch: np.repeat(batch.input_ids_BS[:, :, None], 2, 2), rows, pad_id=99)
    assert [row.shape for row in said] == [(4, 2), (2, 2), (3, 2)]
    assert all((row == number).all() for number, row in enumerate(said))


def test_a_signal_ends_it_or_what_else_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "requested", lambda: True)
    rows = make_rows([4, 2, 3])
    with pytest.raises(Stopped):
        row_outputs(lambda batch: batch.lengths_B, rows, pad_id=99)
    checks: list[int] = []
    said = row_outputs(lambda batch: batch.lengths_B, rows, pad_id=99, num_tokens=4, check=lambda: checks.append(1))
    assert said == [4, 2, 3]
    assert len(checks) == 3


def test_windows_are_averaged() -> None:
    rows = make_rows([3, 3, 3], [0, 0, 1])
    logits = np.log(np.array([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]]))
    assert answers(logits, rows, "classify") == pytest.approx(np.array([[0.7, 0.3], [0.2, 0.8]]))
    assert answers(np.array([[1.0], [2.0], [5.0]]), rows, "regress").tolist() == [1.5, 5.0]
    both = answers(np.array([[0.0, 50.0], [0.0, 50.0], [-50.0, 0.0]]), rows, "multilabel")
    assert both == pytest.approx(np.array([[0.5, 1.0], [0.0, 0.5]]), abs=1e-9)


def test_softmax_of_large_logits() -> None:
    assert softmax(np.array([[1000.0, 0.0], [-1000.0, -1000.0]])) == pytest.approx(np.array([[1, 0], [0.5, 0.5]]))


def test_scores_worst_and_descriptions() -> None:
    answer = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.99, 0.01]])
    truth = np.array([0, 1, 1, 1])
    result = score(answer, truth, "classify", ("no", "yes"))
    assert result["metrics"]["accuracy"] == 0.5
    assert result["confusion"] == [[1, 0], [2, 1]]
    assert result["table"]["classes"]["yes"]["support"] == 3
    assert result["calibration"]["expected_calibration_error"] > 0.3
    assert worst(answer, truth) == [3, 1]
    assert describe(answer[2], "classify", ("no", "yes")) == {"prediction": "yes", "scores": {"no": 0.2, "yes": 0.8}}
    assert describe(np.array([0.5, 0.4]), "multilabel", ("a", "b"))["prediction"] == ["a"]
    assert describe(np.float64(1.25), "regress", ()) == {"prediction": 1.25}
    assert score(np.array([1.0, 2.0]), np.array([1.0, 2.0]), "regress", ())["metrics"]["pearson"] == pytest.approx(1)
    multi = score(np.array([[0.9, 0.1]]), np.array([[1, 0]]), "multilabel", ("a", "b"))
    assert multi["metrics"] == {"accuracy": 1.0, "f1": 1.0, "macro_f1": 0.5}
