"""CoNLL files and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from remask.errors import ConfigError, DataError, MissingInputError
from remask.tasks.conll import check_tags, read_sentences, tag_names
from remask.tasks.settings import TableSettings

COLUMNS = TableSettings(text="tokens", label="tags")
SAMPLE = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
British JJ I-NP B-MISC

Peter NNP I-NP I-PER
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_iob1_columns_become_iob2(tmp_path: Path) -> None:
    path = write(tmp_path / "eng.train", SAMPLE)
    found = read_sentences(path, COLUMNS)
    assert [s.words for s in found] == [("EU", "rejects", "German", "British"), ("Peter",)]
    assert [s.tags for s in found] == [("B-ORG", "O", "B-MISC", "B-MISC"), ("B-PER",)]
    assert [s.place for s in found] == [f"{path}:3", f"{path}:8"]
    assert tag_names(found, path) == ("O", "B-MISC", "I-MISC", "B-ORG", "I-ORG", "B-PER", "I-PER")
    assert read_sentences(path, COLUMNS, labelled=False)[0].tags is None


def test_json_lines_and_bioes(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl", '{"tokens": ["New", "York", "x", "Rome"], "tags": ["B-LOC", "E-LOC", "O", "S-LOC"]}\n'
    )
    assert read_sentences(path, COLUMNS)[0].tags == ("B-LOC", "I-LOC", "O", "B-LOC")


@pytest.mark.parametrize(
    "text, message",
    [
        ("EU X\n", r"t\.txt:1: 'X' is no tag"),
        ("EU B-\n", r"t\.txt:1: 'B-' is no tag"),
        ("EU\n", r"t\.txt:1: a word without a tag"),
        ("a NN O\nb O\n", r"t\.txt:2: 2 columns, but 3 in the lines before"),
        ("-DOCSTART- O\n\n", r"t\.txt: no sentences"),
        ("a S-X\n\nb B-X\nc O\n", r"t\.txt:3: tags with S- and E- are BIOES, but that is broken at 'c'"),
    ],
)
def test_bad_column_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_sentences(write(tmp_path / "t.txt", text), COLUMNS)


@pytest.mark.parametrize(
    "line, kind, message",
    [
        ('{"tokens": ["a"], "tags": ["O", "O"]}', DataError, "1 words but 2 tags"),
        ('{"tokens": "a b", "tags": ["O"]}', DataError, "must be a list of words"),
        ('{"tokens": ["a", " "], "tags": ["O", "O"]}', DataError, "must be a list of words"),
        ('{"words": ["a"], "tags": ["O"]}', ConfigError, "no column 'tokens'; there are words, tags"),
    ],
)
def test_bad_json_files(tmp_path: Path, line: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=rf"t\.jsonl:1: .*{message}"):
        read_sentences(write(tmp_path / "t.jsonl", line + "\n"), COLUMNS)


def test_missing_file_unseen_types_and_nothing_tagged(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError):
        read_sentences(tmp_path / "none", COLUMNS)
    path = write(tmp_path / "dev.txt", "a O\nb B-NEW\n")
    with pytest.raises(DataError, match=r"types that are not in the training data: 'NEW' \(.*dev\.txt:1\)"):
        check_tags(read_sentences(path, COLUMNS), ("O", "B-LOC", "I-LOC"), path)
    plain = write(tmp_path / "o.txt", "a O\n")
    with pytest.raises(DataError, match="every word is tagged O"):
        tag_names(read_sentences(plain, COLUMNS), plain)


def test_real_training_file_mixes_schemes(shared_data: Path) -> None:
    sentences = read_sentences(shared_data / "conll2003" / "eng.train", COLUMNS)
    assert len(sentences) == 14041
    assert sum(tag.startswith("B-") for s in sentences for tag in s.tags or ()) == 23499


def test_real_file(shared_data: Path) -> None:
    sentences = read_sentences(shared_data / "conll2003" / "eng.testa", COLUMNS)
    assert len(sentences) == 3250
    assert tag_names(sentences, Path("f"))[1:] == tuple(f"{p}-{t}" for t in ("LOC", "MISC", "ORG", "PER") for p in "BI")
    assert sum(tag.startswith("B-") for s in sentences for tag in s.tags or ()) == 5942
