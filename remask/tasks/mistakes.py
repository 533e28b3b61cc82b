"""The mistakes that tell most about a model, with their text, for results.json and the report.

In: items, what is true and what was said. Out: up to 20 records {text, label, prediction, confidence, place}, worst
first, and under `worst_by` what `confidence` is: for classes, labels and choices how sure the model was, for numbers
the distance, for tags how many entities differ, for answers the score of the text that was said. Not here: metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from remask.tasks.conll import Sentence
from remask.tasks.entities import entities
from remask.tasks.predict import softmax, worst
from remask.tasks.race import ChoiceQuestion, parts_of
from remask.tasks.settings import Kind
from remask.tasks.squad import Question, Said
from remask.tasks.squad_scores import f1
from remask.tasks.tables import Example

Array = np.ndarray
NUM_SHOWN = 20
MAX_TEXT = 500
NO_ANSWER = "(no answer)"


def of_texts(
    items: Sequence[Example], answer: Array, truth: Array, kind: Kind, labels: Sequence[str]
) -> dict[str, Any]:
    """Of a classifier, a regression or a model of several labels."""
    if kind == "classify":
        rows = [(i, labels[truth[i]], labels[int(answer[i].argmax())], answer[i].max()) for i in worst(answer, truth)]
        return _worst(rows, items, "confidence")
    if kind == "regress":
        distance = np.abs(answer - truth)
        rows = [(int(i), f"{truth[i]:g}", f"{answer[i]:.3g}", distance[i]) for i in _first(distance)]
        return _worst(rows, items, "distance")
    wrong = np.where((answer >= 0.5) != (truth > 0.5), np.maximum(answer, 1 - answer), 0.0).max(1)
    rows = [
        (int(i), _names(truth[i] > 0.5, labels), _names(answer[i] >= 0.5, labels), wrong[i])
        for i in _first(wrong)
        if wrong[i] > 0
    ]
    return _worst(rows, items, "confidence")


def of_tags(items: Sequence[Sentence], said: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Sentences with the most entities that were missed or made up."""
    missed, made_up = [], []
    for sentence, tags in zip(items, said, strict=True):
        true, found = set(entities(sentence.tags or ())), set(entities(tags))
        missed.append(sorted(true - found, key=lambda e: e[1:]))
        made_up.append(sorted(found - true, key=lambda e: e[1:]))
    count = np.array([len(a) + len(b) for a, b in zip(missed, made_up, strict=True)])
    rows = [
        (int(i), _entities(missed[i], items[i]), _entities(made_up[i], items[i]), count[i])
        for i in _first(count)
        if count[i]
    ]
    return _worst(rows, items, "entities that differ")


def of_answers(items: Sequence[Question], said: Sequence[Said], can_refuse: bool) -> dict[str, Any]:
    """Answers that share no word with any right one, the surest first."""
    rows = []
    for number, (question, one) in enumerate(zip(items, said, strict=True)):
        text = "" if can_refuse and one.null_odds > 0 else one.text
        golds = [gold for gold, _ in question.answers] or [""]
        if max(f1(text, gold) for gold in golds) == 0.0:
            rows.append((number, golds[0] or NO_ANSWER, text or NO_ANSWER, one.score))
    rows.sort(key=lambda row: -row[3])
    return _worst(rows[:NUM_SHOWN], items, "score")


def of_choices(items: Sequence[ChoiceQuestion], scores: Sequence[float]) -> dict[str, Any]:
    """Wrong choices, the surest first."""
    sure = softmax(np.asarray(scores, np.float64).reshape(len(items), -1))
    truth = np.array([question.answer for question in items])
    rows = [
        (i, items[i].options[truth[i]], items[i].options[int(sure[i].argmax())], sure[i].max())
        for i in worst(sure, truth)
    ]
    return _worst(rows, items, "confidence")


def _first(values: Array) -> Array:
    return np.argsort(-values, kind="stable")[:NUM_SHOWN]


def _names(chosen: Array, labels: Sequence[str]) -> str:
    return ", ".join(name for name, yes in zip(labels, chosen, strict=True) if yes) or "(none)"


def _entities(found: Sequence[tuple[str, int, int]], sentence: Sentence) -> str:
    return "; ".join(f"{kind} {' '.join(sentence.words[a : b + 1])}" for kind, a, b in found) or "(none)"


def _worst(rows: Sequence[tuple[int, str, str, Any]], items: Sequence[Any], by: str) -> dict[str, Any]:
    records = [
        {
            "text": _text(items[i])[:MAX_TEXT],
            "label": label,
            "prediction": prediction,
            "confidence": round(float(value), 4),
            "place": items[i].place,
        }
        for i, label, prediction, value in rows
    ]
    return {"worst": records, "worst_by": by}


def _text(item: Any) -> str:
    if isinstance(item, Sentence):
        return " ".join(item.words)
    if isinstance(item, Question):
        return f"{item.question.strip()} / {item.context}"
    if isinstance(item, ChoiceQuestion):
        return " / ".join(part for part in (item.question or parts_of(item, item.options[0])[0], item.article) if part)
    return " / ".join(item.texts)
