"""Where documents are cut, and what becomes of their ids and fields."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from remask.config import build_run
from remask.finding.passages import Found, cut_passages, read_found
from remask.finding.settings import IndexRun, PassageSettings
from remask.text.records import Drop, Portion
from remask.tokenizer import Tokenizer, load_tokenizer

TEXT = "One fox runs. Two foxes run over there! Three dogs sleep by the river, and nobody wakes them. Four."


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizers: dict[str, Path]) -> Tokenizer:
    return load_tokenizer(tiny_tokenizers["byte-bpe"])


def test_whole_sentences_fill_a_passage(tokenizer: Tokenizer) -> None:
    whole = cut_passages(TEXT, tokenizer, PassageSettings(), 1_000)
    assert whole == [(0, TEXT)]
    cut = cut_passages(TEXT, tokenizer, PassageSettings(), 40)
    assert len(cut) > 1
    assert " ".join(text for _, text in cut) == TEXT
    for start, text in cut:
        assert TEXT[start:].startswith(text)
        assert len(tokenizer.encode(text)) <= 40
        assert text.endswith((".", "!"))


def test_a_sentence_beyond_the_length_is_cut_by_itself(tokenizer: Tokenizer) -> None:
    text = "Short. " + "x y z " * 60 + "end."
    cut = cut_passages(text, tokenizer, PassageSettings(), 24)
    assert all(len(tokenizer.encode(piece)) <= 24 for _, piece in cut)
    assert "".join(piece for _, piece in cut).replace(" ", "") == text.replace(" ", "")


def test_overlap_begins_with_the_last_sentence_before(tokenizer: Tokenizer) -> None:
    text = " ".join(f"Sentence {i} here." for i in range(8))
    plain = cut_passages(text, tokenizer, PassageSettings(), 40)
    both = cut_passages(text, tokenizer, PassageSettings(overlap=1), 40)
    assert len(both) > len(plain)
    for (_, first), (start, second) in itertools.pairwise(both):
        last = first.split(". ")[-1]
        assert second.startswith(last.rstrip("."))
        assert text[start:].startswith(second)


def found(path: Path, **options: object) -> list[Found | Drop]:
    run = build_run(IndexRun, options={"model": "m", "docs.paths": [str(path)], **options}).run
    kind = {".jsonl": "jsonl", ".csv": "csv", ".txt": "text"}[path.suffix]
    return list(read_found(Portion(0, str(path), path.name, kind), run, "blank"))


def test_ids_and_fields_come_from_the_table(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,title,text\n7,A,first\n8,B,second\n,C,third\n")
    first, second, third = found(path, fields=["title"])
    assert first == Found("7", "t.csv:2", "first", {"title": "A"})
    assert isinstance(second, Found)
    assert second.id == "8"
    assert third == Drop("no id", "t.csv:4", "nothing in the column 'id'")
    (by_title, *_) = found(path, id="title")
    assert isinstance(by_title, Found)
    assert by_title.id == "A"
    (lacking, *_) = found(path, **{"docs.text_columns": ["body"]})
    assert isinstance(lacking, Drop)
    assert lacking.detail == "no column 'body'; there are id, title, text"


def test_a_text_has_its_place_as_its_id(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("first document\n\nsecond document\n")
    assert [(one.id, one.text.strip()) for one in found(path) if isinstance(one, Found)] == [
        ("t.txt:byte 0", "first document"),
        ("t.txt:byte 16", "second document"),
    ]
