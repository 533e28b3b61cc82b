"""SQuAD files and their faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remask.errors import DataError, MissingInputError
from remask.tasks import squad


def question(context: str, *answers: tuple[str, int], asked: str = "q?") -> squad.Question:
    return squad.Question("1", asked, context, answers, "title", "f")


def write(path: Path, qas: list[dict[str, Any]], context: str = "Rome is old.") -> Path:
    data = [{"title": "T", "paragraphs": [{"context": context, "qas": qas}]}]
    path.write_text(json.dumps({"version": "1.1", "data": data}))
    return path


GOOD = {"id": "1", "question": "What?", "answers": [{"text": "Rome", "answer_start": 0}]}


def test_files(tmp_path: Path) -> None:
    impossible = {"id": "2", "question": "Why?", "answers": [], "is_impossible": True}
    plausible = {**GOOD, "id": "3", "is_impossible": True}
    found = squad.read_squad(write(tmp_path / "f.json", [GOOD, impossible, plausible]))
    assert [q.answers for q in found] == [(("Rome", 0),), (), ()]
    assert found[0].article == "T"


@pytest.mark.parametrize(
    "qas, message",
    [
        ([GOOD, GOOD], "the id '1' is there 2 times"),
        ([{**GOOD, "answers": [{"text": "x", "answer_start": "0"}]}], "question 1: answer_start = '0' is no place"),
        ([{**GOOD, "answers": [{"answer_start": 0}]}], "question 1: has no text 'text'"),
        ([{"id": "1", "answers": []}], "question 1: has no text 'question'"),
        ([{"question": "x"}], "paragraph 1: has no text 'id'"),
        ([], "no questions"),
    ],
)
def test_faults_are_named_by_place(tmp_path: Path, qas: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        squad.read_squad(write(tmp_path / "f.json", qas))


def test_what_is_no_squad_file(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    with pytest.raises(MissingInputError):
        squad.read_squad(path)
    for text, message in (
        ("{", "not a SQuAD file"),
        ("[]", "no list under `data`"),
        ('{"data": [5]}', "no list 'paragraphs'"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            squad.read_squad(path)


def test_answers_out_of_place_are_counted() -> None:
    kept, dropped = squad.with_answers_in_place([question("abc", ("b", 1)), question("abc", ("b", 0)), question("abc")])
    assert (len(kept), len(dropped)) == (2, 1)
