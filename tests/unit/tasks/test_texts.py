"""Classes, numbers and several labels: from logits to answers, scores, baselines and mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from remask.errors import DataError
from remask.tasks.kinds import KINDS
from remask.tasks.numbers import softmax, surest_mistakes
from remask.tasks.rows import Rows
from remask.tasks.tables import Example
from remask.tasks.texts import TextKind

TEXTS = ("one", "two", "three", "four")


def make_rows(lengths: list[int], example_of_row: list[int] | None = None) -> Rows:
    ids = [np.full(n, i, np.int64) for i, n in enumerate(lengths)]
    return Rows(ids, None, None, np.array(example_of_row or range(len(lengths))))


def kind(name: str) -> TextKind:
    found = KINDS[name]
    assert isinstance(found, TextKind)
    return found


def examples(*labels: Any) -> list[Example]:
    return [Example((text,), label, f"f:{i}") for i, (text, label) in enumerate(zip(TEXTS, labels, strict=False))]


def score(name: str, outputs: Any, labels: Any, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """The score of one row an example."""
    return kind(name).score(list(outputs), make_rows([3] * len(labels)), examples(*labels), names)


def shown(scored: dict[str, Any]) -> list[tuple[str, str, str, float]]:
    return [(m["text"], m["label"], m["prediction"], m["confidence"]) for m in scored["worst"]]


def log_odds(probabilities: Any) -> np.ndarray:
    p = np.array(probabilities)
    return np.log(p / (1 - p))


def test_windows_are_averaged() -> None:
    rows = make_rows([3, 3, 3], [0, 0, 1])
    logits = np.log(np.array([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]]))
    assert kind("classify").values(logits, rows) == pytest.approx(np.array([[0.7, 0.3], [0.2, 0.8]]))
    assert kind("regress").values(np.array([[1.0], [2.0], [5.0]]), rows).tolist() == [1.5, 5.0]
    both = kind("multilabel").values(np.array([[0.0, 50.0], [0.0, 50.0], [-50.0, 0.0]]), rows)
    assert both == pytest.approx(np.array([[0.5, 1.0], [0.0, 0.5]]), abs=1e-9)


def test_softmax_of_large_logits() -> None:
    assert softmax(np.array([[1000.0, 0.0], [-1000.0, -1000.0]])) == pytest.approx(np.array([[1, 0], [0.5, 0.5]]))


def test_scores_of_classes() -> None:
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.99, 0.01]])
    result = score("classify", np.log(probabilities), ["no", "yes", "yes", "yes"], ("no", "yes"))
    assert result["metrics"]["accuracy"] == 0.5
    assert result["confusion"] == [[1, 0], [2, 1]]
    items = examples("no", "yes", "yes", "yes")
    for metric in ("accuracy", "matthews", "f1"):
        outputs, rows = list(np.log(probabilities)), make_rows([3] * 4)
        values = kind("classify").example_values(outputs, rows, items, ("no", "yes"), metric)
        assert values.mean() == pytest.approx(result["metrics"][metric]), metric
    assert result["table"]["classes"]["yes"]["support"] == 3
    assert result["calibration"]["expected_calibration_error"] > 0.3
    assert surest_mistakes(probabilities, np.array([0, 1, 1, 1])) == [3, 1]
    assert [m["place"] for m in result["worst"]] == ["f:3", "f:1"]


def test_scores_of_numbers_and_several_labels() -> None:
    assert score("regress", [np.array([1.0]), np.array([2.0])], [1.0, 2.0])["metrics"]["pearson"] == pytest.approx(1)
    multi = score("multilabel", log_odds([[0.9, 0.1]]), [("a",)], ("a", "b"))
    assert multi["metrics"] == {"accuracy": 1.0, "f1": 1.0, "macro_f1": 0.5}


def named(name: str, logits: Any, labels: tuple[str, ...]) -> dict[str, Any]:
    outputs, rows, items = [np.array(logits)], make_rows([3]), examples(None)
    (answer,) = kind(name).answers(outputs, rows, items, labels, refuses=True)
    return kind(name).named(answer, items[0])


def test_answers_as_columns_of_a_file() -> None:
    assert named("classify", np.log([0.2, 0.8]), ("no", "yes")) == {
        "prediction": "yes", "score": 0.8, "scores": {"no": 0.2, "yes": 0.8},
    }  # fmt: skip
    several = named("multilabel", log_odds([0.5, 0.4]), ("a", "b"))
    assert several == {"prediction": ["a"], "scores": {"a": 0.5, "b": 0.4}}
    assert named("multilabel", log_odds([0.1, 0.4]), ("a", "b"))["prediction"] == []
    assert named("regress", [1.25], ()) == {"prediction": 1.25}


def test_mistakes_that_tell_most() -> None:
    sure = np.log([[0.4, 0.6], [0.1, 0.9], [0.2, 0.8]])
    classes = score("classify", sure, ["a", "a", "b"], ("a", "b"))
    assert shown(classes) == [("two", "a", "b", 0.9), ("one", "a", "b", 0.6)]
    assert classes["worst"][0]["place"] == "f:1"
    assert classes["worst_by"] == "confidence"
    numbers = score("regress", np.array([[1.0], [5.0], [2.5]]), [1.0, 2.0, 2.0])
    assert shown(numbers)[:2] == [("two", "2", "5", 3.0), ("three", "2", "2.5", 0.5)]
    assert numbers["worst_by"] == "distance"
    several = log_odds([[0.9, 0.1], [0.2, 0.9], [0.4, 0.4]])
    labels = score("multilabel", several, [("a",), ("a",), ("a", "b")], ("a", "b"))
    assert shown(labels) == [("two", "a", "b", 0.9), ("three", "a, b", "(none)", 0.6)]


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["classify", "regress", "multilabel"])
def test_outputs_that_are_no_numbers_are_not_scored(name: str, value: float) -> None:
    width = 1 if name == "regress" else 2
    outputs = [np.zeros(width), np.full(width, value), np.ones(width)]
    labels = {"classify": ["a", "b", "a"], "regress": [1.0, 2.0, 3.0], "multilabel": [("a",), (), ("b",)]}[name]
    with pytest.raises(DataError, match=r"the model's outputs are no numbers \(NaN\) for 1 of 3 rows"):
        score(name, outputs, labels, () if name == "regress" else ("a", "b"))


def test_the_baseline_is_learned_from_the_training_data() -> None:
    train, dev = examples("a", "b", "b"), examples("a", "a", "b")
    assert kind("classify").baseline(train, dev, ("a", "b"))["accuracy"] == pytest.approx(1 / 3)
    numbers = kind("regress").baseline(examples(1.0, 2.0, 3.0), examples(0.0, 1.0, 5.0), ())
    assert numbers["spearman"] == 0.0  # a constant correlates with nothing
    several = kind("multilabel").baseline(
        examples(("a",), ("a", "b"), ("a",)), examples(("a",), ("b",), ("a",)), ("a", "b")
    )
    assert several["accuracy"] == pytest.approx(2 / 3)
