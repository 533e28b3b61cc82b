"""The worst mistakes of every kind of task: which ones, in which order, with their text."""

from __future__ import annotations

from typing import Any

import numpy as np

from remask.tasks import mistakes
from remask.tasks.conll import Sentence
from remask.tasks.race import ChoiceQuestion
from remask.tasks.squad import Question, Said
from remask.tasks.tables import Example


def shown(found: dict[str, Any]) -> list[tuple[str, str, str, float]]:
    return [(m["text"], m["label"], m["prediction"], m["confidence"]) for m in found["worst"]]


def examples(*texts: str) -> list[Example]:
    return [Example((text,), None, f"f:{i}") for i, text in enumerate(texts)]


def test_classes_numbers_and_several_labels() -> None:
    items = examples("one", "two", "three")
    sure = np.array([[0.4, 0.6], [0.1, 0.9], [0.2, 0.8]])
    found = mistakes.of_texts(items, sure, np.array([0, 0, 1]), "classify", ("a", "b"))
    assert shown(found) == [("two", "a", "b", 0.9), ("one", "a", "b", 0.6)]
    assert found["worst"][0]["place"] == "f:1"
    found = mistakes.of_texts(items, np.array([1.0, 5.0, 2.5]), np.array([1.0, 2.0, 2.0]), "regress", ())
    assert shown(found)[:2] == [("two", "2", "5", 3.0), ("three", "2", "2.5", 0.5)]
    assert found["worst_by"] == "distance"
    said = np.array([[0.9, 0.1], [0.2, 0.9], [0.4, 0.4]])
    found = mistakes.of_texts(items, said, np.array([[1, 0], [1, 0], [1, 1]]), "multilabel", ("a", "b"))
    assert shown(found) == [("two", "a", "b", 0.9), ("three", "a, b", "(none)", 0.6)]


def test_entities() -> None:
    items = [Sentence(("EU", "says"), ("B-ORG", "O"), "f:1"), Sentence(("New", "York"), ("B-LOC", "I-LOC"), "f:3")]
    found = mistakes.of_tags(items, [["B-ORG", "O"], ["B-LOC", "B-PER"]])
    assert shown(found) == [("New York", "LOC New York", "LOC New; PER York", 3.0)]


def test_answers() -> None:
    def asked(name: str, *answers: tuple[str, int]) -> Question:
        return Question(name, f"{name}?", "red green", answers, "t", f"f:{name}")

    items = [asked("a", ("red", 0)), asked("b"), asked("c", ("green", 4)), asked("d", ("red", 0))]
    said = [
        Said("green", 4, 5.0, -1.0),
        Said("red", 0, 7.0, -1.0),
        Said("the green", 0, 9.0, -1.0),
        Said("red", 0, 1.0, 2.0),
    ]
    assert shown(mistakes.of_answers(items, said, True)) == [
        ("b? / red green", "(no answer)", "red", 7.0), ("a? / red green", "red", "green", 5.0),
        ("d? / red green", "red", "(no answer)", 1.0),
    ]  # fmt: skip
    # Where every question has an answer, odds are not looked at.
    assert len(mistakes.of_answers(items[3:], said[3:], False)["worst"]) == 0


def test_choices() -> None:
    items = [ChoiceQuestion("abc", "who?", ("p", "q"), answer, "", f"f:{answer}") for answer in (0, 1)]
    items.append(ChoiceQuestion("", "", ("it p", "it q"), 1, "", "f:2"))
    found = mistakes.of_choices(items, [0.0, np.log(4.0), 0.0, 1.0, 1.0, 0.0])
    assert shown(found) == [("who? / abc", "p", "q", 0.8), ("it p", "it q", "it p", 0.7311)]
