"""Special tokens, cutting and windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from remask.errors import ConfigError, DataError
from remask.tasks.rows import encode_rows, frame_for, label_values
from remask.tasks.settings import RowSettings
from remask.tasks.tables import Example


@dataclass
class Words:
    """A tokenizer for tests: one id a character (100 + its code), specials 0 and 2."""

    kind: str = "byte-bpe"
    bos_id: int = 0
    eos_id: int = 2

    @property
    def special_names(self) -> dict[str, str]:
        return {"bos": "[CLS]" if self.kind == "wordpiece" else "<s>"}

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        return [np.array([100 + ord(c) for c in text if c != " "], np.int32) for text in texts]


def rows_of(*texts: str, length: int = 512, kind: str = "byte-bpe", long_texts: str = "cut", num_segments: int = 2):
    tokenizer, settings = Words(kind), RowSettings(max_length=length, long_texts=long_texts)
    frame = frame_for(tokenizer, settings, model_length=512, num_segments=num_segments)
    return encode_rows([Example(texts, None, "f:1")], tokenizer, frame, settings)


def letters(ids: np.ndarray) -> str:
    return "".join({0: "<", 2: ">"}.get(i, chr(max(i - 100, 0))) for i in ids)


def test_single_and_pair_in_both_forms() -> None:
    assert letters(rows_of("ab").ids[0]) == "<ab>"
    assert letters(rows_of("ab", "cd").ids[0]) == "<ab>>cd>"
    assert rows_of("ab", "cd").segments is None
    bert = rows_of("ab", "cd", kind="wordpiece")
    assert letters(bert.ids[0]) == "<ab>cd>"
    assert bert.segments is not None
    assert bert.segments[0].tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert rows_of("ab", "cd", kind="wordpiece", num_segments=1).segments is None


@pytest.mark.parametrize(
    "first, second, expected",
    [
        ("a" * 20, "b", "<aaaaa>>b>"),
        ("a", "b" * 20, "<a>>bbbbb>"),
        ("a" * 20, "b" * 20, "<aaa>>bbb>"),
        ("aa", "bb", "<aa>>bb>"),
    ],
)
def test_a_long_pair_loses_from_the_longer_text(first: str, second: str, expected: str) -> None:
    rows = rows_of(first, second, length=10)
    assert letters(rows.ids[0]) == expected
    assert rows.num_cut == (len(first) + len(second) > 6)


def test_cut_is_counted() -> None:
    rows = rows_of("abcdefghij", length=8)
    assert letters(rows.ids[0]) == "<abcdef>"
    assert rows.num_cut == 1


def test_windows_cover_every_token_and_are_full() -> None:
    rows = rows_of("abcdefghijklm", length=8, long_texts="windows")
    assert [letters(ids) for ids in rows.ids] == ["<abcdef>", "<ghijkl>", "<hijklm>"]
    assert rows.example_of_row.tolist() == [0, 0, 0]
    assert rows.num_cut == 0
    assert [letters(ids) for ids in rows_of("abc", length=8, long_texts="windows").ids] == ["<abc>"]
    pair = rows_of("q", "abcdefgh", length=9, long_texts="windows")
    assert [letters(ids) for ids in pair.ids] == ["<q>>abcd>", "<q>>efgh>"]
    long_first = rows_of("q" * 20, "abcdef", length=10, long_texts="windows")
    assert [letters(ids) for ids in long_first.ids] == ["<qqq>>abc>", "<qqq>>def>"]


def test_limits_and_empty_rows() -> None:
    tokenizer = Words()
    with pytest.raises(ConfigError, match="rows of 4 tokens"):
        frame_for(tokenizer, RowSettings(), model_length=4, num_segments=1)
    assert frame_for(tokenizer, RowSettings(), model_length=64, num_segments=1).max_length == 64
    with pytest.raises(DataError, match="f:1: a text without a single token"):
        rows_of("  ")


def test_labels() -> None:
    def values(kind, *labels):
        return label_values([Example(("x",), label, "f:1") for label in labels], kind, ("a", "b", "c"))

    assert values("classify", "b", "a") == [1, 0]
    assert values("regress", 0.5) == [np.float32(0.5)]
    assert [v.tolist() for v in values("multilabel", ("a", "c"), ())] == [[1, 0, 1], [0, 0, 0]]
