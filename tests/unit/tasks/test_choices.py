"""Questions with options: the rows of a question, scores by group and by claim, and the mistakes that tell most."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remask.tasks.choices import Choices
from remask.tasks.race import ChoiceQuestion, filled, read_choices
from remask.tasks.rows import Frame
from remask.tasks.settings import RowSettings

CHOICES = Choices()
PASSAGE = {
    "id": "1", "article": "abc", "questions": ["who?", "it is _ ."],
    "options": [["p", "q", "r", "s"], ["t", "u", "v", "w"]], "answers": ["B", "D"],
}  # fmt: skip


class Letters:
    def encode_batch(self, texts):
        return [np.array([ord(c) for c in text if c != " "], np.int32) for text in texts]


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def scored(logits_QC: np.ndarray, questions: list[ChoiceQuestion]) -> dict[str, Any]:
    rows = CHOICES.encode(questions, (), Letters(), Frame(0, 2, True, False, 64), RowSettings())
    return CHOICES.score(list(logits_QC.reshape(-1)), rows, questions, ())


def test_rows_of_a_question(tmp_path: Path) -> None:
    questions = read_choices([write(tmp_path / "f.jsonl", PASSAGE)])
    rows = CHOICES.encode(questions, (), Letters(), Frame(0, 2, True, False, 64), RowSettings())
    shown = ["".join({0: "<", 2: ">"}.get(i, chr(i)) for i in ids) for ids in rows.ids]
    assert shown[:2] == ["<who?p>>abc>", "<who?q>>abc>"]
    assert shown[4] == "<itist.>>abc>"
    assert rows.group_size == 4
    assert rows.num_groups == 2
    assert rows.labels == [1, 3]
    cut = CHOICES.encode(questions, (), Letters(), Frame(0, 2, True, False, 11), RowSettings())
    assert "".join({0: "<", 2: ">"}.get(i, chr(i)) for i in cut.ids[0]) == "<who>>abc>"
    assert filled("a _ b _", "x") == "a x b _"


def test_scores_apart(tmp_path: Path) -> None:
    questions = read_choices(
        [write(tmp_path / "dev.high.jsonl", PASSAGE), write(tmp_path / "dev.middle.jsonl", PASSAGE)]
    )
    scores = np.zeros((4, 4))
    scores[0, 1] = scores[1, 0] = scores[2, 1] = scores[3, 3] = 1.0
    assert scored(scores, questions)["metrics"] == {"accuracy": 0.75, "high_accuracy": 0.5, "middle_accuracy": 1.0}
    rows = CHOICES.encode(questions, (), Letters(), Frame(0, 2, True, False, 64), RowSettings())
    answers = CHOICES.answers(list(scores.reshape(-1)), rows, questions, (), refuses=True)
    assert [answer.index for answer in answers] == [1, 0, 1, 3]
    assert all(sum(answer.scores) == pytest.approx(1.0) for answer in answers)


def test_rows_without_a_passage() -> None:
    def shown(question: str) -> list[str]:
        asked = [ChoiceQuestion("", question, ("p", "q"), 0, "", "f:1")]
        rows = CHOICES.encode(asked, (), Letters(), Frame(0, 2, True, False, 32), RowSettings())
        return ["".join({0: "<", 2: ">"}.get(i, chr(i)) for i in ids) for ids in rows.ids]

    assert shown("who?") == ["<who?>>p>", "<who?>>q>"]
    assert shown("it is _.") == ["<itisp.>", "<itisq.>"]
    assert shown("") == ["<p>", "<q>"]


def test_a_claim_holds_if_it_wins_everywhere() -> None:
    def asked(name: str, truth: bool) -> ChoiceQuestion:
        return ChoiceQuestion("", "", ("a", "b"), 0 if truth else 1, "", "f:1", (name, truth))

    questions = [asked("0", True), asked("0", True), asked("1", False), asked("1", False), asked("2", True)]
    # 0: wins both; 1: wins one, so it is held to be false, rightly; 2: loses.
    said = np.array([[2, 1], [2, 1], [2, 1], [1, 2], [1, 2]], float)
    metrics = scored(said, questions)["metrics"]
    assert metrics["accuracy"] == pytest.approx(2 / 3)
    assert metrics["pair_accuracy"] == pytest.approx(3 / 5)


def test_mistakes_are_the_surest_wrong_choices() -> None:
    items = [ChoiceQuestion("abc", "who?", ("p", "q"), answer, "", f"f:{answer}") for answer in (0, 1)]
    items.append(ChoiceQuestion("", "", ("it p", "it q"), 1, "", "f:2"))
    result = scored(np.array([[0.0, np.log(4.0)], [0.0, 1.0], [1.0, 0.0]]), items)
    assert [(m["text"], m["label"], m["prediction"], m["confidence"]) for m in result["worst"]] == [
        ("who? / abc", "p", "q", 0.8), ("it p", "it q", "it p", 0.7311),
    ]  # fmt: skip
    assert result["worst_by"] == "confidence"


def test_questions_with_as_many_options_are_asked_together() -> None:
    items = [ChoiceQuestion("", "?", tuple("abcd"[:count]), 0, "", "f") for count in (2, 3, 2, 4, 3)]
    assert CHOICES.alike(items) == [[0, 2], [1, 4], [3]]
