"""Rows of a file in pieces, the columns that are asked about, lines that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remask.answer.stream import chunks
from remask.tasks.kinds import KINDS
from remask.tasks.settings import TableSettings
from remask.tasks.tables import Cells, read_cells


def cells(*texts: str) -> list[Cells]:
    return [Cells({"text": text}, f"f:{number}", number) for number, text in enumerate(texts, 1)]


def test_pieces_depend_on_the_rows_alone() -> None:
    rows = cells("aaaa", "b", "cccccccccc", "d", "e", "f", "g")
    pieces = [[row.values["text"] for row in piece] for piece in chunks(iter(rows), 3, 10)]
    assert pieces == [["aaaa", "b", "cccccccccc"], ["d", "e", "f"], ["g"]]
    pieces = [[row.values["text"] for row in piece] for piece in chunks(iter(rows), 100, 5)]
    assert pieces == [["aaaa", "b"], ["cccccccccc"], ["d", "e", "f", "g"]]
    assert list(chunks(iter([]), 3, 10)) == []


def test_columns_follow_the_kind_unless_given() -> None:
    table = TableSettings(text="body", text2="more")

    def asked(kind: str, text: str | None = None, text2: str | None = None) -> tuple[list[str], list[str]]:
        columns = KINDS[kind].columns(table, text, text2)
        return list(columns), list(KINDS[kind].required(columns))

    for kind in ("classify", "regress", "multilabel"):
        assert asked(kind) == (["body", "more"], ["body", "more"])
        assert asked(kind, "x")[0] == ["x", "more"]
    assert asked("tags") == (["body"], ["body"])
    assert asked("spans")[0] == ["question", "context"]
    assert asked("spans", None, "passage")[1] == ["question", "passage"]
    assert asked("choice")[1] == ["question", "options"]
    assert asked("choice", "story", "what") == (["what", "options", "story"], ["what", "options"])


def test_lines_that_cannot_be_read_are_told_and_passed(tmp_path: Path) -> None:
    bad: list[tuple[int, str]] = []

    def read(name: str, content: bytes) -> list[Any]:
        bad.clear()
        (tmp_path / name).write_bytes(content)
        rows = KINDS["classify"].file_rows(
            tmp_path / name, TableSettings(), lambda number, reason: bad.append((number, reason))
        )
        return [(row.number, *row.values.values()) for row in rows]

    assert read("a.tsv", b"text\tn\na\t1\nb\n\xff\t2\nc\t3\n") == [(2, "a", "1"), (5, "c", "3")]
    assert [number for number, _ in bad] == [3, 4]
    assert read("b.csv", b'text,n\n"a""b\nc",1\nd,2,3\n"e"f,4\ng,5\n"open,6\n') == [(2, 'a"b\nc', "1"), (6, "g", "5")]
    assert [number for number, _ in bad] == [4, 5, 7]
    assert read("c.jsonl", b'{"text": "a"}\n{"text":\n') == [(1, "a")]
    with pytest.raises(Exception, match="not UTF-8"):
        read("d.csv", b"t\xffext\na\n")  # without its header a table is nothing


def test_a_line_without_end_is_passed_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remask.tables.form.MAX_LINE_BYTES", 20)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "' + "x" * 90 + '"}\n{"text": "b"}\n')
    bad: list[int] = []
    found = read_cells(tmp_path / "a.jsonl", on_bad=lambda number, _: bad.append(number))
    assert [row.number for row in found] == [1, 3]
    assert bad == [2]


def test_files_in_a_kinds_own_layout_are_rows_with_its_columns(tmp_path: Path) -> None:
    (tmp_path / "t.conll").write_text("EU B-ORG\nsays O\n\nx O\n")
    (tmp_path / "q.json").write_text(
        '{"data": [{"paragraphs": [{"context": "red", "qas": [{"id": "7", "question": "?", "answers": []}]}]}]}'
    )
    (tmp_path / "c.txt").write_text('{"article": "a", "question": "b", "options": ["c", "d"], "answer": 0}\n')

    def read(kind: str, name: str) -> list[tuple[int, dict[str, Any]]]:
        rows = KINDS[kind].file_rows(tmp_path / name, TableSettings(), lambda number, reason: None)
        return [(row.number, dict(row.values)) for row in rows]

    assert read("tags", "t.conll") == [(1, {"text": ["EU", "says"]}), (2, {"text": ["x"]})]
    assert read("spans", "q.json") == [(1, {"id": "7", "question": "?", "context": "red"})]
