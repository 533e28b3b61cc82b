"""The fine-tuning page: what it shows for each kind, and that texts cannot break out of it."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np

from remask.reports.task_report import finetune_report


def results(**best: Any) -> dict[str, Any]:
    run = {"seed": 3, "history": [{"step": 1, "accuracy": 0.5}, {"step": 2, "accuracy": 0.75}], **best}
    return {
        "task": "classify", "metric": "accuracy", "runs": [run], "init": "m", "init_weights": True,
        "labels": ["a", "b"],
        "spread": {"accuracy": {"median": 0.75, "low": 0.5, "high": 0.8, "seeds": [0.75]}},
        "seeds": {"count": 1, "best": 3, "seeds": [3]}, "notes": ["a note"],
        "data": {"train": 1200, "dev": 40, "baseline": {"accuracy": 0.625}},
    }  # fmt: skip


class Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.add(tag)

    def handle_data(self, data) -> None:
        self.words.append(data)


def read(page: str) -> Text:
    parser = Text()
    parser.feed(page)
    return parser


def test_a_classifier_has_everything_and_texts_stay_text() -> None:
    row = {"precision": 0.5, "recall": 0.25, "f1": 0.333, "support": 4}
    worst = {"text": "<script>alert(1)</script>" + "x" * 900, "label": "a", "prediction": "b", "confidence": 0.99}
    page = read(
        finetune_report(
            results(
                table={"classes": {"a": row, "b": row}, "averages": {"micro": row}},
                confusion=[[3, 1], [2, 2]],
                calibration={
                    "expected_calibration_error": 0.12,
                    "bins": [{"confidence": 0.9, "accuracy": 0.5, "count": 4}],
                },
                worst=[worst],
            ),
            "my topics",
        )
    )
    text = " ".join(page.words)
    assert "remask serve 'my topics'" in text
    assert "0.625 accuracy of always giving the same answer" in text
    for words in ("By class (seed 3)", "What was taken for what", "surest of", "a note", "1,200 / 40", "0.120"):
        assert words in text
    assert "script" not in page.tags
    assert "<script>alert(1)</script>" in text
    assert "x" * 300 not in text


def test_a_regression_leaves_out_what_it_has_not() -> None:
    values = results()
    values["init_weights"] = False
    text = " ".join(read(finetune_report(values, "mine")).words)
    assert "By class" not in text
    assert "Is it as sure" not in text
    assert "with random weights" in text


def test_many_classes_become_a_list_of_confusions() -> None:
    counts = np.zeros((30, 30), int)
    counts[4, 7] = 9
    values = results(confusion=counts.tolist())
    values["labels"] = [f"class{i}" for i in range(30)]
    text = " ".join(read(finetune_report(values, "mine")).words)
    assert "most frequent confusions of 30 classes" in text
    assert "9 class4 class7" in text
