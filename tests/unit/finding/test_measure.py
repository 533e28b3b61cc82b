"""Scores of rankings, their files, and queries that cannot be scored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import remask
from remask.errors import ConfigError, DataError, UsageError
from remask.finding.index import Hit
from remask.finding.measure import Query, documents_of, measured, read_qrels
from remask.progress import Progress

QUIET = Progress(quiet=True)


def test_a_document_stands_where_its_best_passage_does() -> None:
    hits = [Hit(name, 0, score, "", 0, "", {}, 0) for name, score in (("a", 0.9), ("b", 0.8), ("a", 0.7), ("c", 0.1))]
    assert documents_of(hits, 2) == [("a", 0.9), ("b", 0.8)]


def test_measures_of_a_small_case_by_hand() -> None:
    queries = [Query("1", "x"), Query("2", "y"), Query("3", "z")]
    rankings = {"words": [[("a", 2.0), ("b", 1.0)], [("c", 1.0)], []], "vectors": [[("b", 1.0)], [("d", 1.0)], []]}
    result = measured(queries, rankings, {"1": {"b": 1}, "2": {"d": 1, "c": 0}}, QUIET, 0)
    assert (result["queries"], result["left_out"]) == (2, 1)
    words, vectors = result["metrics"]["words"], result["metrics"]["vectors"]
    assert words["mrr@10"]["mean"] == pytest.approx(0.25)
    assert words["recall@5"]["mean"] == pytest.approx(0.5)
    assert words["recall@1"]["mean"] == 0
    assert vectors["ndcg@10"]["mean"] == pytest.approx(1)
    assert result["against_words"]["vectors"]["recall@1"]["mean"] == pytest.approx(1)
    with pytest.raises(DataError, match=r"none of 3 queries has a right document .*ids do not match"):
        measured(queries, rankings, {"9": {"b": 1}}, QUIET, 0)


def test_qrels_as_trec_and_as_a_table(tmp_path: Path) -> None:
    trec, table = tmp_path / "qrels.txt", tmp_path / "qrels.tsv"
    trec.write_text("q1 0 d1 1\nq1 0 d2 0\n")
    table.write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\n")
    assert read_qrels(trec) == read_qrels(table) == {"q1": {"d1": 1.0, "d2": 0.0}}
    trec.write_text("q1 d1 1\n")
    with pytest.raises(DataError, match=r"qrels\.txt:1: 3 words; a line of qrels has 4"):
        read_qrels(trec)
    trec.write_text("q1 0 d1 0\n")
    with pytest.raises(DataError, match="names no right document for any query"):
        read_qrels(trec)
    table.write_text("a\tb\n1\t2\n")
    with pytest.raises(ConfigError, match="qrels need a column for the query"):
        read_qrels(table)


def test_all_ways_side_by_side(encoder: Path, docs: Path, tmp_path: Path) -> None:
    index, out = tmp_path / "index", tmp_path / "scores"
    remask.index(model=encoder, docs=[docs], out=index, settings={"passages.length": 16}, progress=QUIET)
    queries, qrels = tmp_path / "queries.jsonl", tmp_path / "qrels.txt"
    asked = {"a": ("Mary Shelley", "book-2"), "b": ("lazy dog sleeps", "dog-1"), "c": ("unjudged", "")}
    queries.write_text("".join(json.dumps({"id": k, "text": v[0]}) + "\n" for k, v in asked.items()))
    qrels.write_text("".join(f"{k} 0 {v[1]} 1\n" for k, v in asked.items() if v[1]))
    result = remask.search(index, queries=queries, qrels=qrels, out=out, progress=QUIET)
    assert list(result["metrics"]) == ["vectors", "words", "both"]
    assert result["metrics"]["words"]["recall@1"]["mean"] == 1
    assert result["left_out"] == 1
    first = (out / "run-words.trec").read_text().splitlines()[0].split()
    assert first[:4] == ["a", "Q0", "book-2", "1"]
    assert first[5] == "remask-words"
    assert json.loads((out / "results.json").read_text())["metrics"] == result["metrics"]
    assert "recall@100" in (out / "report.html").read_text()
    assert remask.search(index, queries=queries, qrels=qrels, out=out, progress=QUIET)["files"]  # its own folder again
    with pytest.raises(UsageError, match="needs --out"):
        remask.search(index, queries=queries, progress=QUIET)
    with pytest.raises(UsageError, match="one of them"):
        remask.search(index, progress=QUIET)
    queries.write_text('{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}\n')
    with pytest.raises(DataError, match=r"queries\.jsonl:2: the query id 'a' is there twice"):
        remask.search(index, queries=queries, qrels=qrels, progress=QUIET)
