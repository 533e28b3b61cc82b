"""Tags of words: where they sit in rows, how they come back, and the mistakes that tell most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from remask.schema import IGNORE
from remask.tasks.conll import Sentence
from remask.tasks.rows import Frame, Rows
from remask.tasks.settings import RowSettings, TableSettings
from remask.tasks.tables import BadRow, Cells
from remask.tasks.tags import Tags

TAGS = Tags()
NAMES = ("O", "B-X", "I-X")


@dataclass
class Letters:
    """One id a character, spaces too."""

    kind: str = "byte-bpe"
    bos_id: int = 0
    eos_id: int = 2

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        return [np.array([ord(c) for c in text], np.int32) for text in texts]


def said(rows: Rows, fill: int) -> list[np.ndarray]:
    """Logits that are for the row's labels, and at positions without one for tag `fill`."""
    assert rows.labels is not None
    return [10.0 * np.eye(3)[np.where(label == IGNORE, fill, label)] for label in rows.labels]


def tags_of(outputs: Sequence[np.ndarray], rows: Rows, items: Sequence[Sentence]) -> list[tuple[str, ...]]:
    return [answer.tags for answer in TAGS.answers(outputs, rows, items, NAMES, refuses=True)]


def test_tags_sit_on_first_tokens_and_come_back() -> None:
    sentences = [Sentence(("ab", "c", "def"), ("B-X", "O", "I-X"), "f:1"), Sentence(("g",), ("O",), "f:5")]
    names = ("O", "B-X", "I-X")
    frame = Frame(0, 2, True, False, 512)
    rows = TAGS.encode(sentences, names, Letters(), frame, RowSettings())
    assert "".join(chr(i) for i in rows.ids[0][1:-1]) == "ab c def"
    assert rows.labels is not None
    assert rows.labels[0].tolist() == [IGNORE, 1, IGNORE, 0, IGNORE, 2, IGNORE, IGNORE, IGNORE, IGNORE]
    assert tags_of(said(rows, fill=0), rows, sentences) == [("B-X", "O", "I-X"), ("O",)]


def test_long_sentences_go_on_in_further_rows() -> None:
    words = ("abc", "de", "fg", "hijkl", "m")
    sentence = Sentence(words, ("O", "B-X", "O", "B-X", "O"), "f:1")
    names = ("O", "B-X", "I-X")
    rows = TAGS.encode([sentence], names, Letters(), Frame(0, 2, True, False, 8), RowSettings())
    assert [len(ids) for ids in rows.ids] == [8, 5, 8, 4]
    assert rows.labels is not None
    assert tags_of(said(rows, fill=2), rows, [sentence])[0] == sentence.tags
    unlabelled = TAGS.encode(
        [Sentence(words, None, "f:1")], names, Letters(), Frame(0, 2, True, False, 8), RowSettings()
    )
    assert unlabelled.labels is None
    giant = TAGS.encode(
        [Sentence(("x" * 50,), ("O",), "f:1")], names, Letters(), Frame(0, 2, True, False, 8), RowSettings()
    )
    assert giant.num_cut == 1


def test_mistakes_are_entities_that_differ() -> None:
    names = ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-PER", "I-PER")
    items = [Sentence(("EU", "says"), ("B-ORG", "O"), "f:1"), Sentence(("New", "York"), ("B-LOC", "I-LOC"), "f:3")]
    rows = TAGS.encode(items, names, Letters(), Frame(0, 2, True, False, 64), RowSettings())
    outputs = []
    for (_, _, starts), tags in zip(rows.origins, [("B-ORG", "O"), ("B-LOC", "B-PER")], strict=True):
        outputs.append(np.zeros((starts.max() + 10, len(names))))
        outputs[-1][starts, [names.index(tag) for tag in tags]] = 9.0
    scored = TAGS.score(outputs, rows, items, names)
    (worst,) = scored["worst"]
    assert (worst["text"], worst["label"], worst["prediction"]) == ("New York", "LOC New York", "LOC New; PER York")
    assert (worst["confidence"], worst["place"]) == (3.0, "f:3")
    assert scored["worst_by"] == "entities that differ"
    assert scored["metrics"]["f1"] == pytest.approx(2 * 1 / (2 + 3))  # of two entities one is found, of three made
    assert TAGS.example_values(outputs, rows, items, names, "f1").mean() == pytest.approx(scored["metrics"]["f1"])


def test_words_get_tags_and_texts_entities() -> None:
    def asked(value: Any) -> Sentence:
        return TAGS.item(Cells({"text": value}, "f:1"), ("text",), TableSettings())

    def named(item: Sentence) -> dict[str, Any]:
        rows = TAGS.encode([item], NAMES, Letters(), Frame(0, 2, True, False, 64), RowSettings(), labelled=False)
        outputs = [np.zeros((len(ids), 3)) for ids in rows.ids]
        outputs[0][rows.origins[0][2], [1, 2, 0]] = 20.0
        (answer,) = TAGS.answers(outputs, rows, [item], NAMES, refuses=True)
        return TAGS.named(answer, item)

    assert named(asked(["ab", "c", "d"])) == {"tags": ["B-X", "I-X", "O"]}
    (entity,) = named(asked(" ab  c!"))["entities"]
    assert (entity["text"], entity["start"], entity["end"]) == ("ab  c", 1, 6)
    assert entity["score"] == pytest.approx(1.0, abs=1e-6)
    for value in ([], ["a", " "], [1], "  ", None):
        with pytest.raises(BadRow):
            asked(value)
