"""Records with columns: JSON lines, CSV, TSV, Parquet, Arrow, data sets on disk."""

from __future__ import annotations

import csv
import datetime
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from remask.errors import ConfigError, DataError, MissingInputError
from remask.text import sources
from remask.text.settings import ReadSettings, SourceSettings


def write_all(folder: Path, rows: list[dict]) -> dict[str, Path]:
    """The same rows in every format."""
    paths = {kind: folder / f"rows.{kind}" for kind in ("jsonl", "csv", "tsv", "parquet", "arrow")}
    paths["jsonl"].write_text("\n".join(json.dumps(row) for row in rows))
    for kind, delimiter in (("csv", ","), ("tsv", "\t")):
        with paths[kind].open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, paths["parquet"], row_group_size=2)
    with pa.OSFile(str(paths["arrow"]), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return paths


def test_every_format_gives_the_same_documents(tmp_path: Path, texts, build, all_texts) -> None:
    rows = [{"id": str(n), "title": f"Title {n}", "text": next(texts)} for n in range(5)]
    for kind, path in write_all(tmp_path, rows).items():
        assert all_texts(build(path)) == [row["text"] for row in rows], kind
        both = build(SourceSettings(paths=(str(path),), text_columns=("title", "text")))
        assert all_texts(both)[0] == f"Title 0\n{rows[0]['text']}", kind


def test_wrong_columns_are_an_error_that_lists_what_is_there(tmp_path: Path, build) -> None:
    rows = [{"id": str(n), "body": "x"} for n in range(3)]
    for kind, path in write_all(tmp_path, rows).items():
        with pytest.raises(DataError, match=r"has no column text; there are: id, body"):
            build(path)
        assert kind


def test_a_file_that_never_has_the_column_is_not_read_to_its_end(tmp_path: Path, texts, build) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"body": n}) for n in range(5000)))
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": next(texts)}))
    with pytest.raises(DataError, match=r"there are: body; 5,000 of 5,001 records of corpus .*lacking_columns=drop"):
        build(tmp_path)
    documents = build(tmp_path, reading=ReadSettings(lacking_columns="drop"))
    counts = documents.counts
    assert counts["documents"] == 1
    assert counts["dropped"]["no such column"] < 200
    assert counts["dropped"]["no such column"] + counts["unread"] == 5000
    drops = [json.loads(line) for line in (documents.artifact.folder / "drops.jsonl").read_text().splitlines()]
    assert [drop["place"] for drop in drops if drop.get("is_file")] == [str(tmp_path / "a.jsonl")]


def test_files_that_give_no_text_are_named_with_what_would_read_them(tmp_path: Path, texts, build, capsys) -> None:
    """A table without a header, one without the column, a file of unknown kind: none is lost in a count."""
    for number in range(120):
        (tmp_path / f"{number:03d}.log").write_text("a log")
    (tmp_path / "bare.csv").write_text("".join(f"{next(texts)},1\n" for _ in range(3)))
    pq.write_table(pa.table({"body": ["a", "b", "c"]}), tmp_path / "c.parquet")
    (tmp_path / "z.txt").write_text("\n".join(next(texts) for _ in range(140)))
    documents = build(SourceSettings(paths=(str(tmp_path),), layout="line"))
    assert documents.counts["documents"] == 140
    assert documents.counts["unread"] == 1 + 2  # of two rows under what was taken for a header, and of three
    drops = [json.loads(line) for line in (documents.artifact.folder / "drops.jsonl").read_text().splitlines()]
    assert sum(drop["reason"] == "unknown kind of file" for drop in drops) == 120
    warnings = capsys.readouterr().err
    assert "120 files given up, unknown kind of file" in warnings
    assert "ending .log; text.sources.kind=text reads it" in warnings
    assert "bare.csv (2 rows not read): has no column text" in warnings
    assert "text.sources.header=false with text_columns=['1'] reads it" in warnings
    assert "c.parquet (3 rows not read)" in warnings


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "arrow"])
def test_dates(kind: str, tmp_path: Path, texts, build, all_texts) -> None:
    days = ["2016-08-31", "2016-09-01T10:00:00Z", "2019-02-28", "2019-03-01", "yesterday"]
    rows = [{"day": day, "text": next(texts)} for day in days]
    path = write_all(tmp_path, rows)[kind]
    source = SourceSettings(paths=(str(path),), date_column="day", date_from="2016-09-01", date_to="2019-02-28")
    documents = build(source)
    assert all_texts(documents) == [rows[1]["text"], rows[2]["text"]]
    assert documents.counts["dropped"] == {"no date": 1, "outside the dates": 2}


def test_dates_as_dates(tmp_path: Path, texts, build, all_texts) -> None:
    days = [datetime.datetime(2017, 1, 1, 12), datetime.datetime(2020, 1, 1)]
    rows = pa.table({"text": [next(texts), next(texts)], "day": days})
    pq.write_table(rows, tmp_path / "a.parquet")
    source = SourceSettings(paths=(str(tmp_path / "a.parquet"),), date_column="day", date_to="2019-02-28")
    assert all_texts(build(source)) == [rows["text"][0].as_py()]


def test_no_day_of_the_calendar_is_refused() -> None:
    with pytest.raises(ValueError, match="date_from"):
        SourceSettings(paths=("x",), date_from="2016-13-01")
    assert ConfigError.exit_code == 78


def test_quotes_newlines_and_tabs(tmp_path: Path, texts, build, all_texts) -> None:
    wanted = f'{next(texts)} "quoted", and\n\nnew lines {next(texts)}'
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text"], [wanted]])
    assert all_texts(build(tmp_path / "a.csv")) == [wanted]
    odd = f'"{next(texts)} with one quote'
    (tmp_path / "a.tsv").write_text(f"text\tlabel\n{odd}\t1\n")
    assert all_texts(build(tmp_path / "a.tsv")) == [odd]


def test_a_large_parquet_file_is_split_and_the_same(tmp_path: Path, texts, build, monkeypatch) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [next(texts) for _ in range(60)]}), path, row_group_size=5)
    whole = build(path)
    monkeypatch.setattr(sources, "PORTION_BYTES", 2000)
    split = build(path)
    assert split.artifact.fingerprint == whole.artifact.fingerprint
    assert split.shards[0].place(59).endswith("row 60")


def test_compressed_parquet_and_long_texts(tmp_path: Path, texts, build) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": [" ".join(next(texts) for _ in range(30)), next(texts)]}), sink)
    (tmp_path / "a.parquet.xz").write_bytes(lzma.compress(sink.getvalue().to_pybytes()))
    assert build(tmp_path / "a.parquet.xz").counts["documents"] == 2
    cut = build(tmp_path / "a.parquet.xz", reading=ReadSettings(max_document_bytes=4000))
    assert cut.counts["documents"] > 3
    drop = build(tmp_path / "a.parquet.xz", reading=ReadSettings(max_document_bytes=4000, long_documents="drop"))
    assert (drop.counts["documents"], drop.counts["dropped"]) == (1, {"too long": 1})


def test_data_sets_on_disk(tmp_path: Path, texts, build, all_texts) -> None:
    datasets = pytest.importorskip("datasets", reason="the hf extra is not installed")
    datasets.disable_progress_bars()
    wanted = [next(texts) for _ in range(3)]
    datasets.Dataset.from_dict({"text": wanted}).save_to_disk(str(tmp_path / "one"))
    assert all_texts(build(tmp_path / "one")) == wanted
    assert all_texts(build(f"hf:{tmp_path / 'one'}")) == wanted
    parts = {"train": datasets.Dataset.from_dict({"text": wanted[:2]})}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "parts"))
    assert all_texts(build(f"hf:{tmp_path / 'parts'}")) == wanted[:2]
    assert all_texts(build(SourceSettings(paths=(str(tmp_path / "parts"),), kind="hf"))) == wanted[:2]
    with pytest.raises(MissingInputError, match="has no split dev; there are: train"):
        build(SourceSettings(paths=(f"hf:{tmp_path / 'parts'}",), hf_split="dev"))


def test_the_one_reader_of_tables_serves_prepare_too(tmp_path: Path, texts, build, all_texts) -> None:
    """JSON arrays, other delimiters and encodings, files without a header: as in finetune and predict."""
    wanted = [f"{next(texts)} café" for _ in range(3)]
    (tmp_path / "a.json").write_text(json.dumps({"version": 1, "rows": [{"text": text} for text in wanted]}, indent=1))
    assert all_texts(build(tmp_path / "a.json")) == wanted
    (tmp_path / "lines.json").write_text("\n".join(json.dumps({"text": text}) for text in wanted))
    assert all_texts(build(tmp_path / "lines.json")) == wanted
    (tmp_path / "b.csv").write_text("id;text\n" + "".join(f"{n};{text}\n" for n, text in enumerate(wanted)))
    semicolons = build(tmp_path / "b.csv")
    assert all_texts(semicolons) == wanted
    assert semicolons.counts["changed"] == {"file with cells divided by semicolons (guessed)": 1}
    (tmp_path / "c.csv").write_bytes("".join(f"{n},{text}\n" for n, text in enumerate(wanted)).encode("cp1252"))
    source = SourceSettings(paths=(str(tmp_path / "c.csv"),), header=False, text_columns=("2",), encoding="cp1252")
    assert all_texts(build(source)) == wanted
    assert SourceSettings(paths=("c.csv",), header=False, text_columns=(2,)).text_columns == ("2",)  # as YAML has it
    (tmp_path / "d.txt").write_bytes("\n".join(wanted).encode("latin-1"))
    plain = SourceSettings(paths=(str(tmp_path / "d.txt"),), encoding="latin-1", layout="line")
    assert all_texts(build(plain)) == wanted


def test_a_table_without_a_header_is_read_as_the_warning_says(tmp_path: Path, texts, build, all_texts) -> None:
    rows = [next(texts) for _ in range(3)]
    (tmp_path / "bare.csv").write_text("".join(f"{row},1\n" for row in rows))
    with pytest.raises(DataError, match=r"has no column text; .* text.sources.header=false with text_columns=\['1'\]"):
        build(tmp_path / "bare.csv")
    source = SourceSettings(paths=(str(tmp_path / "bare.csv"),), header=False, text_columns=("1",))
    assert all_texts(build(source)) == rows
