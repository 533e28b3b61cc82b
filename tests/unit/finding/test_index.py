"""Indexing and searching: the same bytes after a stop, growing and shrinking, bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import remask
from remask.artifacts import lock
from remask.errors import ConfigError, DataError, MissingInputError, OutputError, UnavailableError, UsageError
from remask.finding import build, encode
from remask.finding.index import open_index
from remask.finding.words import fused
from remask.progress import Progress

from .conftest import TOPICS, make_encoder, write_docs

QUIET = Progress(quiet=True)


def make(encoder: Path, docs: Path, out: Path, **more: Any) -> dict[str, Any]:
    settings = {"passages.length": 16, **more.pop("settings", {})}
    return remask.index(model=encoder, docs=[docs], out=out, settings=settings, progress=QUIET, **more)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def ids(index: Path, query: str, by: str = "words", top: int = 10) -> list[str]:
    return [hit["id"] for hit in remask.search(index, query, by=by, top=top, progress=QUIET)["hits"]]


def test_a_query_finds_by_vectors_words_and_both(encoder: Path, docs: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    made = make(encoder, docs, out, fields=["topic"])
    assert made["documents"] == 4
    assert made["passages"] > 8
    assert set(ids(out, "Shelley")) == {"book-2"}
    index = open_index(out, verify=True)
    text = index.hit(3, 0.0).text
    best = remask.search(out, text, by="vectors", top=2, progress=QUIET)["hits"][0]
    assert (best["row"], best["text"], best["fields"]) == (3, text, {"topic": best["id"].split("-")[0]})
    assert best["score"] == pytest.approx(1, abs=1e-5)
    both = remask.search(out, text, by="both", top=3, progress=QUIET)["hits"][0]
    assert both["row"] == 3
    assert both["rank_by"] == {"vectors": 1, "words": 1}
    assert both["score"] == pytest.approx(2 / 61)
    document = index.segments[0].passages
    whole = " ".join(document.text(row) for row in range(len(document)) if document.document_of(row) == 0)
    assert index.hit(1, 0.0, around=True).before == document.text(0)
    assert whole == f"{TOPICS['fox']} Number 0."


def test_a_stopped_run_goes_on_to_the_same_bytes(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "PIECE_ROWS", 8)
    docs = write_docs(tmp_path / "docs.jsonl", 12)
    make(encoder, docs, tmp_path / "whole")
    done: list[Any] = []

    def stops(task: encode.VectorTask) -> int:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(task.out)
        return encode.make_piece(task)

    with monkeypatch.context() as patch:
        patch.setattr(build, "make_piece", stops)
        with pytest.raises(KeyboardInterrupt):
            make(encoder, docs, tmp_path / "cut")
    assert not (tmp_path / "cut").exists()
    again: list[Any] = []
    monkeypatch.setattr(build, "make_piece", lambda task: again.append(task.out) or encode.make_piece(task))
    make(encoder, docs, tmp_path / "cut")
    assert again
    assert not set(again) & set(done), "what was done is not done again"
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_two_workers_make_the_same_bytes(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "PIECE_ROWS", 16)
    docs = write_docs(tmp_path / "docs.jsonl", 12)
    make(encoder, docs, tmp_path / "one")
    make(encoder, docs, tmp_path / "two", workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_an_index_grows_and_shrinks(encoder: Path, tmp_path: Path) -> None:
    docs = write_docs(tmp_path / "docs.jsonl")
    out = tmp_path / "index"
    make(encoder, docs, out, settings={"vectors.first_pass": "int8"})
    assert make(encoder, docs, out, settings={"vectors.first_pass": "int8"})["segments"] == 1, "it is there already"
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps({"id": "new", "text": "Zebras wrote nothing. Zebras run."}) + "\n")
    added = remask.index(model=encoder, docs=[more], out=out, add=True, progress=QUIET)
    assert (added["documents"], added["segments"]) == (5, 2)
    assert set(ids(out, "zebras")) == {"new"}
    assert remask.index(model=encoder, docs=[more], out=out, add=True, progress=QUIET)["segments"] == 2
    gone = remask.index(out=out, remove=["book-2", "new"], progress=QUIET)
    assert (gone["documents"], gone["removed"] > 1) == (3, True)
    assert ids(out, "zebras Shelley wrote") == []
    assert "book-2" not in ids(out, "Mary Shelley wrote the book", by="vectors", top=100)
    open_index(out, verify=True)
    assert remask.index(model=encoder, docs=[more], out=out, add=True, progress=QUIET)["documents"] == 4
    assert set(ids(out, "zebras")) == {"new"}, "what was removed may come back"
    with pytest.raises(MissingInputError, match="has no document 'book-2'; nothing was removed"):
        remask.index(out=out, remove=["dog-1", "book-2"], progress=QUIET)
    assert "dog-1" in ids(out, "lazy dog")


def test_a_model_of_pairs_puts_the_best_in_its_order(
    encoder: Path, docs: Path, tmp_path: Path, tiny_tokenizers: dict[str, Path]
) -> None:
    pairs = make_encoder(tmp_path / "pairs", tiny_tokenizers["byte-bpe"], labels=("no", "yes"))
    out, query = tmp_path / "index", "who wrote it?"
    make(encoder, docs, out)
    plain = remask.search(out, query, by="words", top=4, progress=QUIET)["hits"]
    settings = {"rerank_label": "yes", "rerank_top": len(plain)}
    hits = remask.search(out, query, by="words", top=4, rerank=pairs, settings=settings, progress=QUIET)["hits"]
    said = remask.load(pairs).classify([(query, hit["text"]) for hit in hits])
    assert [hit["score"] for hit in hits] == pytest.approx([one.scores["yes"] for one in said], abs=1e-5)
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
    assert {hit["row"] for hit in hits} == {hit["row"] for hit in plain}
    with pytest.raises(DataError, match="rerank_label must be the class that means a match, one of no, yes"):
        remask.search(out, query, rerank=pairs, progress=QUIET)
    with pytest.raises(DataError, match="cannot compare a query with a passage"):
        remask.search(out, query, rerank=encoder, progress=QUIET)


def test_faiss_finds_what_exact_search_finds(encoder: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    docs = write_docs(tmp_path / "docs.jsonl", 120)
    for kind in ("hnsw", "ivfpq"):
        out = tmp_path / kind
        settings = {"approximate.kind": kind, "approximate.lists": 4, "approximate.probes": 4}
        make(encoder, docs, out, settings=settings)
        index = open_index(out)
        asked = np.stack([index.vector(row) for row in range(0, 60, 7)])
        for near, exact in zip(index.by_vectors(asked, 3), index.by_vectors(asked, 3, exact=True), strict=True):
            np.testing.assert_allclose(near[0], exact[0], atol=1e-6)  # many passages are alike: rows may differ


def test_a_parquet_file_has_every_passage_with_its_vector(encoder: Path, docs: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    make(encoder, docs, out, fields=["topic"])
    make(encoder, docs, out, fields=["topic"], to="parquet")  # of an index that is there
    remask.index(out=out, remove=["fox-0"], progress=QUIET)
    index = open_index(out, verify=True)
    table = pq.read_table(out / "passages.parquet").to_pylist()
    assert len(table) == len(index)
    assert {row["id"] for row in table} == {"dog-1", "book-2", "river-3"}
    (row,) = [row for row in table if row["id"] == "book-2" and row["passage"] == 1]
    known = next(hit for hit in map(lambda r: index.hit(r, 0.0), range(index.num_rows)) if hit.text == row["text"])
    assert (row["field_topic"], row["start"]) == ("book", known.start)
    np.testing.assert_array_equal(np.array(row["vector"], np.float32), index.vector(known.row))


# ---------------------------------------------------------------------------------------------------- bad input


def test_ids_that_come_twice_are_refused_with_both_places(encoder: Path, docs: Path, tmp_path: Path) -> None:
    twice = tmp_path / "twice.jsonl"
    twice.write_text(docs.read_text() + docs.read_text().splitlines()[1] + "\n")
    with pytest.raises(DataError, match=r"twice\.jsonl: byte \d+: the id 'dog-1' is there twice, before in .*byte"):
        make(encoder, twice, tmp_path / "index")
    assert not (tmp_path / "index").exists()
    make(encoder, docs, tmp_path / "index")
    other = tmp_path / "other.jsonl"
    other.write_text(docs.read_text().splitlines()[1] + "\n")
    with pytest.raises(DataError, match=r"the id 'dog-1' is there twice, .*; remove it first \(--remove\)"):
        remask.index(model=encoder, docs=[other], out=tmp_path / "index", add=True, progress=QUIET)


def test_another_model_is_refused(encoder: Path, docs: Path, tmp_path: Path, tiny_tokenizers: dict[str, Path]) -> None:
    other = make_encoder(tmp_path / "other", tiny_tokenizers["byte-bpe"], seed=2)
    out = tmp_path / "index"
    make(encoder, docs, out)
    more = write_docs(tmp_path / "more.jsonl", 1)
    with pytest.raises(DataError, match="was made with another model"):
        remask.index(model=other, docs=[more], out=out, add=True, progress=QUIET)
    with pytest.raises(DataError, match="is another model than the one that this index was made with"):
        remask.search(out, "fox", settings={"model": str(other)}, progress=QUIET)
    moved = shutil.copytree(encoder, tmp_path / "moved")
    assert remask.search(out, "fox", settings={"model": str(moved)}, progress=QUIET)["hits"]
    gone = {"model": str(tmp_path / "gone")}
    with pytest.raises(MissingInputError, match=r"the model of this index is not there; say where it is \(--model"):
        remask.search(out, "fox", settings=gone, progress=QUIET)
    assert remask.search(out, "fox", by="words", settings=gone, progress=QUIET)["hits"], "words need no model"
    with pytest.raises(ConfigError, match=r"passages = .* was made with"):
        remask.index(model=encoder, docs=[more], out=out, add=True, settings={"passages.length": 32}, progress=QUIET)
    with pytest.raises(OutputError, match="holds an index of other documents or settings; choose another --out"):
        make(encoder, more, out)


def test_one_command_at_a_time_changes_an_index(encoder: Path, docs: Path, tmp_path: Path) -> None:
    with lock(tmp_path / ".index.work"), pytest.raises(UnavailableError, match="another remask is running there"):
        make(encoder, docs, tmp_path / "index")


def test_empty_texts_are_left_out_and_counted(encoder: Path, docs: Path, tmp_path: Path) -> None:
    some = tmp_path / "some.jsonl"
    some.write_text(docs.read_text() + '{"id": "e", "text": "  "}\n{"id": "n", "text": null}\n')
    assert make(encoder, some, tmp_path / "index")["dropped"] == {"empty text": 2}
    none = tmp_path / "none.jsonl"
    none.write_text('{"id": "e", "text": ""}\n')
    with pytest.raises(DataError, match="no text to index in these documents"):
        make(encoder, none, tmp_path / "nothing")
    with pytest.raises(UsageError, match="the query is empty"):
        remask.search(tmp_path / "index", " ", progress=QUIET)


@pytest.mark.parametrize("name", ["segment-0000/vectors", "segment-0000/texts", "words/data.csc.index.npy"])
def test_a_damaged_index_is_refused(encoder: Path, docs: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "index"
    make(encoder, docs, out)
    data = bytearray((out / name).read_bytes())
    data[-1] ^= 255
    (out / name).write_bytes(data)
    with pytest.raises(DataError, match="does not match its checksum: damaged"):
        open_index(out, verify=True)
    (out / name).write_bytes(data[:-1])
    with pytest.raises(DataError, match="damaged"):
        remask.search(out, "fox", progress=QUIET)


def test_a_model_that_gives_no_numbers_is_refused(
    encoder: Path, docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from remask.answer.model import Model

    monkeypatch.setattr(Model, "embed", lambda self, texts, **more: np.full((len(texts), 16), np.nan, np.float32))
    with pytest.raises(DataError, match=r"docs\.jsonl: byte 0 and what follows: the model gives \d+ of \d+ vectors"):
        make(encoder, docs, tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_fusion_adds_what_ranks_are_worth() -> None:
    assert fused([[5, 7], [7, 9]], 3) == [(1 / 62 + 1 / 61, 7), (1 / 61, 5), (1 / 62, 9)]
