"""The files that answers go to."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from remask.errors import UsageError
from remask.tasks.answer_files import check_name, write_rows


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
