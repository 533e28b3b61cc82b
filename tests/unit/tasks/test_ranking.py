"""QNLI and WSC as rankings: which pairs are made, what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remask.errors import DataError
from remask.tasks.ranking import candidate_pairs, read_wsc
from remask.tasks.tables import Example


def test_candidates_of_one_question_meet() -> None:
    rows = [
        ("Q1?", "yes it is", "entailment"), ("Q1?", "no", "not_entailment"), ("Q1?", "never", "not_entailment"),
        ("Q2?", "alone", "entailment"), ("Q3?", "right", "entailment"), ("Q3?", "wrong", "not_entailment"),
    ]  # fmt: skip
    examples = [Example((q, s), label, f"f:{i}") for i, (q, s, label) in enumerate(rows)]
    pairs, alone = candidate_pairs(examples, "entailment")
    assert alone == 1
    assert {(p.question, p.options[p.answer], p.options[1 - p.answer]) for p in pairs} == {
        ("Q1?", "yes it is", "no"), ("Q1?", "yes it is", "never"), ("Q3?", "right", "wrong"),
    }  # fmt: skip
    assert {p.answer for p in pairs} == {0, 1}


WSC = {
    "text": "The city councilmen refused the demonstrators a permit because they feared violence.",
    "target": {
        "span1_text": "The city councilmen", "span1_index": 0, "span2_text": "they", "span2_index": 9,
    },
    "label": True,
    "idx": 0,
}  # fmt: skip


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def with_target(**changes: Any) -> dict[str, Any]:
    return {**WSC, "target": {**WSC["target"], **changes}}


def test_the_pronoun_is_replaced_by_each_candidate(tmp_path: Path) -> None:
    wrong = {**with_target(span1_text="the demonstrators", span1_index=4), "label": False}
    path = write(tmp_path / "train.jsonl", WSC, wrong)
    trained, left_out = read_wsc(path, training=True)
    assert left_out == 1  # the false one
    assert all(q.answer == 0 and q.claim is None for q in trained)
    assert trained[0].options == (
        "The city councilmen refused the demonstrators a permit because The city councilmen feared violence.",
        "The city councilmen refused the demonstrators a permit because the demonstrators feared violence.",
    )
    assert any(" because a permit feared" in q.options[1] for q in trained)
    scored, left_out = read_wsc(path, training=False)
    assert left_out == 0
    assert {q.claim for q in scored} == {("0", True), ("1", False)}


@pytest.mark.parametrize(
    "line, message",
    [
        ({"text": "x"}, "a WSC line has"),
        (with_target(span2_index=2), "'they' is not word 2 of the text"),
        (with_target(span1_text=None), "target needs span1_text"),
        ({**WSC, "label": "yes"}, "label = 'yes': must be true or false"),
    ],
)
def test_faults_have_a_line(tmp_path: Path, line: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "val.jsonl", WSC, line)
    with pytest.raises(DataError, match=rf"val\.jsonl:2: .*{message}"):
        read_wsc(path, training=False)
