"""A classifier that reads its answer from the text, so that a monitor runs without a model."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from remask.monitoring.run import Classifier
from remask.monitoring.shares import Corrector
from remask.tables import Cells, require_columns
from remask.tasks.settings import TableSettings

CLASSES = ("bad", "fine")


class FakeAsker:
    """`bad …` is bad, anything else fine; an empty text has no answer."""

    columns = ("text",)
    model = SimpleNamespace(reader=SimpleNamespace(task=SimpleNamespace(table=TableSettings())))

    def check_columns(self, first: Cells) -> None:
        require_columns(first, self.columns)

    def answer(self, rows: Sequence[Cells]) -> tuple[list[dict[str, Any]], int]:
        answers: list[dict[str, Any]] = []
        for row in rows:
            text = str(row.values["text"])
            if not text:
                answers.append({"bad": "an empty text"})
            else:
                score = 0.5 + (len(text) % 50) / 100
                answers.append({"prediction": "bad" if text.startswith("bad") else "fine", "score": score})
        return answers, 0


def fake_classifier() -> Classifier:
    asker: Any = FakeAsker()
    return Classifier(asker, CLASSES, Corrector([[95, 5], [5, 95]], 2), "fake")
