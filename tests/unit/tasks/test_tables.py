"""The user's own table: every format gives the same examples; what is wrong is said with file and line."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from remask.errors import ConfigError, DataError, MissingInputError
from remask.tables import read_cells, read_lines, table_kind
from remask.tasks.settings import TableSettings
from remask.tasks.tables import check_labels, label_names, read_table

COLUMNS = TableSettings(text="body", label="topic")
CSV = 'id,body,topic\n1,"one, two",a\n2,"line\nbreak",b\n3,plain,a\n'


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_all_formats_give_the_same_examples(tmp_path: Path) -> None:
    rows = [("one, two", "a"), ("three", "b")]
    files = [
        write(tmp_path / "t.csv", 'body,topic\n"one, two",a\nthree,b\n'),
        write(tmp_path / "t.tsv", "body\ttopic\none, two\ta\nthree\tb\n"),
        write(tmp_path / "t.jsonl", '{"body": "one, two", "topic": "a"}\n\n{"body": "three", "topic": "b"}\n'),
    ]
    table = pyarrow.table({"body": [r[0] for r in rows], "topic": [r[1] for r in rows]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    for path in [*files, tmp_path / "t.parquet"]:
        got = read_table(path, "classify", COLUMNS)
        assert [(e.texts[0], e.label) for e in got.examples] == rows, path
        assert str(path) in got.examples[0].place


@pytest.mark.parametrize(
    "suffix, pack",
    [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress), (".zst", zstandard.compress)],
)
def test_compressed_files_and_their_damage(tmp_path: Path, suffix: str, pack) -> None:
    path = tmp_path / f"t.csv{suffix}"
    body = "body,topic\n" + "".join(f"text {i * 7919 % 1000} {i},a\n" for i in range(2000))
    path.write_bytes(pack(body.encode()))
    assert len(read_table(path, "classify", COLUMNS).examples) == 2000
    path.write_bytes(path.read_bytes()[: len(path.read_bytes()) // 2])
    with pytest.raises(DataError, match="cannot be read"):
        read_table(path, "classify", COLUMNS)


def test_quoted_line_breaks_keep_the_place(tmp_path: Path) -> None:
    got = read_table(write(tmp_path / "t.csv", CSV), "classify", COLUMNS)
    assert [e.place.rsplit(":", 1)[1] for e in got.examples] == ["2", "3", "5"]
    assert got.examples[1].texts == ("line\nbreak",)


def test_tsv_quotes_are_text_unless_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tsv", 'body\ttopic\n"so" he said\ta\n"x"\tb\n')
    assert [e.texts[0] for e in read_table(path, "classify", COLUMNS).examples] == ['"so" he said', '"x"']
    path = write(tmp_path / "t.tsv", 'body\ttopic\n"a ""b"""\ta\n')
    quoted = TableSettings(text="body", label="topic", quoted=True)
    assert read_table(path, "classify", quoted).examples[0].texts == ('a "b"',)


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_bytes("\ufeffbody\ttopic\r\nx\ta\r\n".encode())
    assert [c.values for c in read_cells(path)] == [{"body": "x", "topic": "a"}]


@pytest.mark.parametrize(
    "text, message",
    [
        ("body,topic\nx,a\ny\n", r"t\.csv:3: 1 cells, but the table has 2 columns"),
        ("body,topic\nx,a\n ,b\n", r"t\.csv:3: column 'body' has no text"),
        ("body,topic\nx,a\ny,\n", r"t\.csv:3: column 'topic' has no label"),
        ("body,topic\nx,a\ny,NaN\n", r"t\.csv:3: column 'topic' has no label"),
        ('body,topic\nx,a\n"y,b\n', r"t\.csv:3: unexpected end of data"),
        ("body,body\nx,a\n", r"t\.csv:1: column 'body' is there twice"),
        ("body,topic\n", r"t\.csv: no usable rows"),
        ("", r"t\.csv: no usable rows"),
    ],
)
def test_bad_rows_are_named_by_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_table(write(tmp_path / "t.csv", text), "classify", COLUMNS)


@pytest.mark.parametrize(
    "line, message",
    [
        ("{oops", "not JSON"),
        ("[1, 2]", "must be a JSON object, not list"),
        ('{"body": 5, "topic": "a"}', "column 'body' holds 5, not text"),
        ('{"body": "x", "topic": ["a"]}', r"column 'topic' holds \['a'\], not one class"),
        ('{"body": "x", "topic": null}', "column 'topic' has no label"),
        ('{"body": "x"}', "no label"),
    ],
)
def test_bad_json_rows(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "t.jsonl", '{"body": "x", "topic": "a"}\n' + line + "\n")
    with pytest.raises(DataError, match=rf"t\.jsonl:2: .*{message}"):
        read_table(path, "classify", COLUMNS)


def test_bad_rows_can_be_dropped_and_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "body,topic\nx,a\n,a\ny,\nz,b\n,\n")
    kept = read_table(path, "classify", TableSettings(text="body", label="topic", bad_rows="drop"))
    assert [e.texts[0] for e in kept.examples] == ["x", "z"]
    assert kept.dropped == {"empty text": 2, "no label": 1}


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"body,topic\nx,a\n\xff\xfe,b\n")
    with pytest.raises(DataError, match=r"t\.csv:3: not UTF-8"):
        read_table(path, "classify", COLUMNS)
    (tmp_path / "t.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        read_table(tmp_path / "t.parquet", "classify", COLUMNS)


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remask.tables.form.MAX_LINE_BYTES", 100)
    with pytest.raises(DataError, match=r"t\.txt:2: a line of over 100 bytes"):
        list(read_lines(write(tmp_path / "t.txt", "short\n" + "x" * 200)))


def test_wrong_column_or_file(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "boddy,topic\nx,a\n")
    with pytest.raises(ConfigError, match=r"no column 'body'; there are boddy, topic; did you mean 'boddy'\?"):
        read_table(path, "classify", COLUMNS)
    with pytest.raises(MissingInputError, match="no such file"):
        read_table(tmp_path / "none.csv", "classify", COLUMNS)
    with pytest.raises(DataError, match=r"a table is one of \.csv"):
        table_kind(tmp_path / "t.xlsx")


def test_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "body,topic\nx,1.5\ny,-2\n")
    assert [e.label for e in read_table(path, "regress", COLUMNS).examples] == [1.5, -2.0]
    for bad in ("abc", "inf", "1e999"):
        with pytest.raises(DataError, match=r"t\.csv:2: column 'topic' holds .*, not a finite number"):
            read_table(write(tmp_path / "t.csv", f"body,topic\nx,{bad}\n"), "regress", COLUMNS)


def test_several_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "body,topic\nx,b|a\ny,\nz,a\n")
    table = read_table(path, "multilabel", COLUMNS)
    assert [e.label for e in table.examples] == [("a", "b"), (), ("a",)]
    path = write(tmp_path / "t.jsonl", '{"body": "x", "topic": [2, 1]}\n{"body": "y", "topic": []}\n')
    assert [e.label for e in read_table(path, "multilabel", COLUMNS).examples] == [("1", "2"), ()]
    assert label_names(read_table(path, "multilabel", COLUMNS), "multilabel") == ("1", "2")


def test_one_spelling_of_a_class_across_formats(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"body": ["x", "y"], "topic": [1.0, 2.0]}), tmp_path / "t.parquet")
    assert [e.label for e in read_table(tmp_path / "t.parquet", "classify", COLUMNS).examples] == ["1", "2"]
    path = write(tmp_path / "t.jsonl", '{"body": "x", "topic": 1}\n{"body": "y", "topic": true}\n')
    assert [e.label for e in read_table(path, "classify", COLUMNS).examples] == ["1", "true"]


def test_classes_in_order_and_unseen_ones_listed(tmp_path: Path) -> None:
    train = read_table(write(tmp_path / "a.csv", "body,topic\nx,10\ny,9\nz,10\n"), "classify", COLUMNS)
    assert label_names(train, "classify") == ("9", "10")
    dev = read_table(write(tmp_path / "b.csv", "body,topic\nx,9\ny,7\nz,7\nw,8\n"), "classify", COLUMNS)
    with pytest.raises(DataError, match=r"not in the training data: '7' \(.*b\.csv:3\), '8' \(.*b\.csv:5\)$"):
        check_labels(dev, label_names(train, "classify"), "classify")
    check_labels(train, label_names(train, "classify"), "classify")


def test_one_class_or_an_id_column_is_no_label(tmp_path: Path) -> None:
    one = read_table(write(tmp_path / "a.csv", "body,topic\nx,a\ny,a\n"), "classify", COLUMNS)
    with pytest.raises(DataError, match="only one class, 'a'"):
        label_names(one, "classify")
    many = "".join(f"x,id{i}\n" for i in range(80))
    ids = read_table(write(tmp_path / "b.csv", "body,topic\n" + many), "classify", COLUMNS)
    with pytest.raises(DataError, match="80 classes in 80 rows"):
        label_names(ids, "classify")


def test_pairs_and_unlabelled_files(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "a,b\nx,y\n")
    pair = TableSettings(text="a", text2="b")
    assert read_table(path, "classify", pair, labelled=False).examples[0].texts == ("x", "y")
    with pytest.raises(ConfigError, match="no column 'label'"):
        read_table(path, "classify", pair)
