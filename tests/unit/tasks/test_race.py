"""Multiple choice: the layouts of files, and their faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remask.errors import DataError, MissingInputError
from remask.tasks.race import read_choices

PASSAGE = {
    "id": "1", "article": "abc", "questions": ["who?", "it is _ ."],
    "options": [["p", "q", "r", "s"], ["t", "u", "v", "w"]], "answers": ["B", "D"],
}  # fmt: skip


def write(path: Path, *lines: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_lines_of_passages_and_of_questions(tmp_path: Path) -> None:
    found = read_choices([write(tmp_path / "dev.high.jsonl", PASSAGE)])
    assert [(q.question, q.answer, q.group) for q in found] == [("who?", 1, "high"), ("it is _ .", 3, "high")]
    single = {"question": "x?", "options": ["a", "b"], "answer": 1}
    found = read_choices([write(tmp_path / "own.jsonl", single, {**single, "answer": "a", "article": "z"})])
    assert [(q.article, q.answer, q.group) for q in found] == [("", 1, ""), ("z", 0, "")]


def test_races_own_folders(tmp_path: Path) -> None:
    write(tmp_path / "dev" / "high" / "1.txt", PASSAGE)
    write(tmp_path / "dev" / "middle" / "2.txt", PASSAGE)
    assert [q.group for q in read_choices([tmp_path / "dev"])] == ["high", "high", "middle", "middle"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingInputError, match="no RACE files"):
        read_choices([tmp_path / "empty"])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"answers": ["B"]}, "lists of one length"),
        ({"answers": ["B", "E"]}, "answer = 4 is none of the 4 options"),
        ({"answers": ["B", ""]}, "answer = '' is none of the 4 options"),
        ({"options": [["p", "q"], ["t"]]}, "options must be a list of two texts or more"),
        ({"options": [["p", "q", "r", "s"], ["t", "u", "v", "w", "x"]]}, "5 options, the first has 4"),
        ({"questions": ["who?", 5]}, "a question that is no text"),
        ({"article": None}, "`article` is no text"),
    ],
)
def test_faults_have_a_place(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "f.jsonl", {**PASSAGE, **change})
    with pytest.raises(DataError, match=rf"f\.jsonl:1: .*{message}"):
        read_choices([path])


def test_real_files(shared_data: Path) -> None:
    found = read_choices([shared_data / "race" / f"dev.{name}.jsonl" for name in ("middle", "high")])
    assert sum(q.group == "middle" for q in found) == 1436
    assert sum(q.group == "high" for q in found) == 3451
