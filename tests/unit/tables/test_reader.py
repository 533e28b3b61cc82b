"""One reader for every file of rows: layouts, encodings, delimiters, headers, and what is said about mistakes."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
import zstandard
from pydantic import ValidationError

from remask.errors import DataError, MissingInputError
from remask.streams import Damaged
from remask.tables import Fault, Record, TableForm, about_rows, read_cells, read_records
from remask.tables.delimited import byte_lines
from remask.tables.json_rows import array_records
from remask.tables.reader import Whole

ROWS = [{"id": "1", "text": "one, two"}, {"id": "2", "text": "three; 'four'"}, {"id": "3", "text": "fünf"}]


def rows_of(path: Path, form: TableForm | None = None) -> list[dict[str, Any]]:
    return [dict(cells.values) for cells in read_cells(path, form)]


def write_layouts(folder: Path) -> dict[str, Path]:
    table = pyarrow.Table.from_pylist(ROWS)
    delimited = {
        mark: "".join(mark.join(f'"{v}"' for v in row) + "\n" for row in [("id", "text"), *(r.values() for r in ROWS)])
        for mark in (",", ";", "|")
    }
    files = {
        "a.csv": delimited[","],
        "semicolons.csv": delimited[";"],
        "bars.csv": delimited["|"],
        "a.tsv": "id\ttext\n" + "".join("\t".join(row.values()) + "\n" for row in ROWS),
        "a.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
        "carriage.jsonl": "\r".join(json.dumps(row) for row in ROWS),
        "array.json": json.dumps(ROWS, indent=2),
        "dense.json": json.dumps(ROWS),
        "object.json": json.dumps({"name": "x [", "of": {"more": [1]}, "rows": ROWS, "count": 3}),
        "lines.json": "".join(json.dumps(row) + "\n" for row in ROWS),
    }
    paths = {}
    for name, text in files.items():
        paths[name] = folder / name
        paths[name].write_text(text, encoding="utf-8")
    paths["a.parquet"] = folder / "a.parquet"
    pyarrow.parquet.write_table(table, paths["a.parquet"])
    paths["a.feather"] = folder / "a.feather"
    pyarrow.feather.write_feather(table, paths["a.feather"])
    return paths


def test_every_layout_gives_the_same_rows(tmp_path: Path) -> None:
    paths = write_layouts(tmp_path)
    for name, path in paths.items():
        assert rows_of(path) == ROWS, name
    packers = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": zstandard.compress}
    for ending, pack in packers.items():
        for name in ("a.csv", "array.json", "a.parquet", "a.feather"):
            packed = tmp_path / f"{name}{ending}"
            packed.write_bytes(pack(paths[name].read_bytes()))
            assert rows_of(packed) == ROWS, packed
    assert about_rows(paths["a.parquet"]) == about_rows(paths["a.csv"]) == about_rows(paths["a.jsonl"]) == 3


def test_folders_of_save_to_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the hf extra is not installed")
    datasets.disable_progress_bars()
    data = datasets.Dataset.from_list(ROWS)
    data.save_to_disk(str(tmp_path / "one"), num_shards=2)
    assert rows_of(tmp_path / "one") == ROWS
    assert [cells.place for cells in read_cells(tmp_path / "one")][-1] == f"{tmp_path / 'one'}: row 3"
    datasets.DatasetDict({"train": data, "dev": data}).save_to_disk(str(tmp_path / "parts"))
    with pytest.raises(DataError, match=r"with the parts train, dev: give .*parts/train or .*parts/dev"):
        rows_of(tmp_path / "parts")
    assert rows_of(tmp_path / "parts" / "dev") == ROWS
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="is a folder, and no data set"):
        rows_of(tmp_path / "empty")


def test_a_guessed_delimiter_is_said_and_a_given_one_holds(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id;text\n1;a, b\n2;c\n")
    notes: list[str] = []
    assert [row.values["text"] for row in read_cells(path, on_note=notes.append)] == ["a, b", "c"]
    assert notes == ["a.csv: cells are divided by semicolons (guessed; the setting `delimiter` says otherwise)"]
    with pytest.raises(DataError, match=r"a\.csv:2: 2 cells, but the table has 1 columns"):
        rows_of(path, TableForm(delimiter=","))
    path.write_text("text\na; b\nc, d\n")
    with pytest.raises(DataError, match=r"a\.csv:3: 2 cells, but the table has 1 columns"):
        rows_of(path)  # one column: nothing is guessed into it
    path.write_text("id\ttext\n1\ta\n")
    assert rows_of(path) == rows_of(path, TableForm(delimiter="tab")) == [{"id": "1", "text": "a"}]
    with pytest.raises(ValidationError, match="must be one character"):
        TableForm(delimiter=";;")


def test_files_without_a_header_have_columns_by_number(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,good\n2,bad\n")
    assert rows_of(tmp_path / "a.csv", TableForm(header=False)) == [{"1": "1", "2": "good"}, {"1": "2", "2": "bad"}]


def test_an_encoding_is_named_and_never_applied_silently(tmp_path: Path) -> None:
    text = "Der Bär fraß süße Äpfel, während die Möwen über den Fluß flogen und schöne Lieder hörten."
    path = tmp_path / "a.csv"
    path.write_bytes(f'text,n\nplain,0\n"{text}",1\n'.encode("cp1252"))
    with pytest.raises(DataError, match=r"a\.csv:3: not UTF-8 \(byte 6 of the line\); the file looks like cp125\d"):
        rows_of(path)
    assert rows_of(path, TableForm(encoding="cp1252"))[1]["text"] == text
    assert rows_of(path, TableForm(encoding="latin-1"))[1]["text"] == text
    bad: list[tuple[int, str]] = []
    assert len(list(read_cells(path, on_bad=lambda *what: bad.append(what)))) == 1
    assert bad[0][0] == 3
    path.write_bytes("größe,n\nx,1\n".encode("cp1252"))
    with pytest.raises(DataError, match=r"a\.csv:1: not UTF-8"):
        list(read_cells(path, on_bad=lambda *_: None))
    path.write_bytes("text,n\nü,1\n".encode("utf-16"))
    assert rows_of(path) == [{"text": "ü", "n": "1"}]
    path.write_bytes("text,n\nü,1\n".encode("utf-8-sig"))
    assert rows_of(path) == [{"text": "ü", "n": "1"}]
    for wrong in ("klingon", "utf-16", "base64"):
        with pytest.raises(ValidationError):
            TableForm(encoding=wrong)


def test_a_bad_byte_inside_a_quoted_row_takes_that_row_only(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'text,n\n"a\nb\xff\nc",1\nd,2\n')
    bad: list[int] = []
    assert [row.values["n"] for row in read_cells(tmp_path / "a.csv", on_bad=lambda n, _: bad.append(n))] == ["2"]
    assert bad == [2]


def test_text_that_is_none_in_parquet_is_a_bad_row(tmp_path: Path) -> None:
    column = pyarrow.array([b"good", b"\xff bad"]).view(pyarrow.utf8())
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: row 2: not UTF-8 \(byte 0 of column text\)"):
        rows_of(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    "content, message",
    [
        ('[{"a": 1}, 5]', "an element must be a JSON object, not '5'"),
        ('["a", "b"]', "an element must be a JSON object"),
        ("[[1]]", "an element must be a JSON object"),
        ('[{"a": 1}, {"a": 2}', "the file ends in the middle"),
        ('[{"a": "x}]', "a text that is never closed"),
        ('{"a": [{"b": 1}], "c": [{"b": 2}]}', r"holds several lists \(a, c\)"),
        ('{\n"a": 1, "b": ["x", "{"], "c": [[1, {"d": 2}]]\n}', "holds no list of objects"),
        ('[{"a": 1}}]', "closes nothing"),
        ('[{"a" 1}]', "row 1: not JSON"),
    ],
)
def test_json_that_is_no_table(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(DataError, match=message):
        rows_of(tmp_path / "a.json")


def test_json_arrays_come_in_pieces_of_any_size() -> None:
    rows = [{"text": 'a "quoted" [text] {of} \\ all, kinds', "n": [1, {"m": 2}]}, {"text": "ü", "n": []}] * 3
    data = json.dumps({"x": "]", "rows": rows}).encode()
    for size in (1, 2, 3, 7, 1000):
        blocks = (data[i : i + size] for i in range(0, len(data), size))
        assert [r.values for r in array_records(blocks, 10_000, None) if isinstance(r, Record)] == rows, size
    long = json.dumps([{"t": "x" * 500, "u": "y" * 500}, {"t": "z"}]).encode()
    found = list(array_records((long[i : i + 64] for i in range(0, len(long), 64)), 900, None))
    assert [type(one) for one in found] == [Fault, Record]
    assert isinstance(found[0], Fault)
    assert "over 900 bytes" in found[0].detail
    with pytest.raises(Damaged, match="a text of over 100 bytes"):
        list(array_records((long[i : i + 64] for i in range(0, len(long), 64)), 100, None))


def test_lines_come_out_the_same_whatever_the_blocks() -> None:
    data = b"a\r\nb\rc\n\n" + b"d" * 40 + b"\r\ne\r"
    for size in (1, 2, 3, 5, 100):
        blocks = [data[i : i + size] for i in range(0, len(data), size)]
        assert list(byte_lines(blocks, 30, any_newline=True)) == [
            (1, 0, b"a"), (2, 3, b"b"), (3, 5, b"c"), (4, 7, b""), (5, 8, None), (6, 50, b"e"),
        ], size  # fmt: skip
        assert [line for _, _, line in byte_lines(blocks, 30)] == [b"a", b"b\rc", b"", None, b"e"]


def test_only_the_columns_asked_for_in_their_order(tmp_path: Path) -> None:
    for name, path in write_layouts(tmp_path).items():
        kind = {"json": "json", "jsonl": "jsonl", "csv": "csv", "tsv": "tsv", "parquet": "parquet", "feather": "arrow"}
        whole = Whole(str(path), kind[path.suffix[1:]])
        found = list(read_records(whole, TableForm(), limit=10_000, columns=["text", "id"]))
        assert [list(record.values.items()) for record in found if isinstance(record, Record)] == [
            [("text", row["text"]), ("id", row["id"])] for row in ROWS
        ], name


def test_what_is_not_there_and_what_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="no such file"):
        rows_of(tmp_path / "a.csv")
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"a table is one of \.csv.*save_to_disk"):
        rows_of(tmp_path / "a.xlsx")
