"""CoNLL files, tag alignment and what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from remask.errors import ConfigError, DataError, MissingInputError
from remask.schema import IGNORE
from remask.tasks.conll import Sentence, check_tags, encode_sentences, read_sentences, tag_names, tags_from_rows
from remask.tasks.rows import Frame
from remask.tasks.settings import TableSettings

COLUMNS = TableSettings(text="tokens", label="tags")
SAMPLE = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
British JJ I-NP B-MISC

Peter NNP I-NP I-PER
"""


@dataclass
class Letters:
    """One id a character, spaces too."""

    kind: str = "byte-bpe"
    bos_id: int = 0
    eos_id: int = 2

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        return [np.array([ord(c) for c in text], np.int32) for text in texts]


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


def test_tags_sit_on_first_tokens_and_come_back() -> None:
    sentences = [Sentence(("ab", "c", "def"), ("B-X", "O", "I-X"), "f:1"), Sentence(("g",), ("O",), "f:5")]
    names = ("O", "B-X", "I-X")
    frame = Frame(0, 2, True, False, 512)
    rows = encode_sentences(sentences, Letters(), frame, names)
    assert "".join(chr(i) for i in rows.ids[0][1:-1]) == "ab c def"
    assert rows.labels is not None
    assert rows.labels[0].tolist() == [IGNORE, 1, IGNORE, 0, IGNORE, 2, IGNORE, IGNORE, IGNORE, IGNORE]
    best = [np.where(label == IGNORE, 0, label) for label in rows.labels]
    assert tags_from_rows(best, rows, sentences, names) == [["B-X", "O", "I-X"], ["O"]]


def test_long_sentences_go_on_in_further_rows() -> None:
    words = ("abc", "de", "fg", "hijkl", "m")
    sentence = Sentence(words, ("O", "B-X", "O", "B-X", "O"), "f:1")
    names = ("O", "B-X", "I-X")
    rows = encode_sentences([sentence], Letters(), Frame(0, 2, True, False, 8), names)
    assert [len(ids) for ids in rows.ids] == [8, 5, 8, 4]
    assert rows.labels is not None
    best = [np.where(label == IGNORE, 2, label) for label in rows.labels]
    assert tags_from_rows(best, rows, [sentence], names)[0] == list(sentence.tags or ())
    unlabelled = encode_sentences([Sentence(words, None, "f:1")], Letters(), Frame(0, 2, True, False, 8), names)
    assert unlabelled.labels is None
    giant = encode_sentences([Sentence(("x" * 50,), ("O",), "f:1")], Letters(), Frame(0, 2, True, False, 8), names)
    assert giant.num_cut == 1


def test_real_training_file_mixes_schemes(shared_data: Path) -> None:
    sentences = read_sentences(shared_data / "conll2003" / "eng.train", COLUMNS)
    assert len(sentences) == 14041
    assert sum(tag.startswith("B-") for s in sentences for tag in s.tags or ()) == 23499


def test_real_file(shared_data: Path) -> None:
    sentences = read_sentences(shared_data / "conll2003" / "eng.testa", COLUMNS)
    assert len(sentences) == 3250
    assert tag_names(sentences, Path("f"))[1:] == tuple(f"{p}-{t}" for t in ("LOC", "MISC", "ORG", "PER") for p in "BI")
    assert sum(tag.startswith("B-") for s in sentences for tag in s.tags or ()) == 5942
