"""Rows in pieces, items from cells, and the files that answers go to."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from remask.tasks.stream import Columns, chunks, read_rows

from remask.errors import UsageError
from remask.tasks.answer_files import check_name, write_rows
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
    assert Columns.of("classify", table, None, None) == Columns("body", "more")
    assert Columns.of("classify", table, "x", None) == Columns("x", "more")
    assert Columns.of("spans", table, None, None) == Columns("question", "context")
    assert Columns.of("spans", table, None, "passage").required("spans") == ["question", "passage"]
    assert Columns.of("choice", table, None, None).required("choice") == ["question", "options"]


def test_lines_that_cannot_be_read_are_told_and_passed(tmp_path: Path) -> None:
    bad: list[tuple[int, str]] = []

    def read(name: str, content: bytes) -> list[Any]:
        bad.clear()
        (tmp_path / name).write_bytes(content)
        rows = read_rows(
            tmp_path / name, "classify", TableSettings(), lambda number, reason: bad.append((number, reason))
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
    monkeypatch.setattr("remask.tasks.tables.MAX_LINE_BYTES", 20)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "' + "x" * 90 + '"}\n{"text": "b"}\n')
    bad: list[int] = []
    found = read_cells(tmp_path / "a.jsonl", on_bad=lambda number, _: bad.append(number))
    assert [row.number for row in found] == [1, 3]
    assert bad == [2]


@pytest.mark.parametrize("name", ["a.csv", "a.TSV", "a.jsonl.gz", "a.csv.zst", "a.parquet"])
def test_names_that_can_be_written(name: str) -> None:
    check_name(Path(name))


@pytest.mark.parametrize("name", ["a", "a.txt", "a.gz", "a.parquet.gz", "a.csv.bz2", "a.json"])
def test_names_that_cannot(name: str) -> None:
    with pytest.raises(UsageError, match="must end in one of"):
        check_name(Path(name))


def test_the_same_rows_are_the_same_bytes(tmp_path: Path) -> None:
    rows = [{"a": "x,\ty\nz", "b": [1, {"c": None}], "said": ["k", "l"]}, {"a": None, "b": [], "said": []}]
    for ending in ("csv", "tsv", "jsonl", "jsonl.gz", "csv.zst", "parquet"):
        wanted = rows[1:] if ending == "parquet" else rows  # a list of one type
        for number in (1, 2):
            target = tmp_path / f"{number}.{ending}"
            write_rows(
                target, Path(f"out.{ending}"), partial(iter, wanted), list(rows[0]), scores=None, source=tmp_path
            )
        assert (tmp_path / f"1.{ending}").read_bytes() == (tmp_path / f"2.{ending}").read_bytes()
    assert (tmp_path / "1.csv").read_text() == 'a,b,said\n"x,\ty\nz","[1,{""c"":null}]",k|l\n,,\n'
    assert (tmp_path / "1.tsv").read_text() == 'a\tb\tsaid\nx, y z\t[1,{"c":null}]\tk|l\n\t\t\n'
