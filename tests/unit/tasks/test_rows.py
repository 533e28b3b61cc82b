"""Special tokens, cutting and windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from remask.errors import ConfigError, DataError
from remask.tasks.kinds import KINDS
from remask.tasks.rows import Rows, encode_rows, frame_for
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


def rows_of(
    *texts: str, length: int = 512, kind: str = "byte-bpe", num_segments: int = 2, **settings_given: Any
) -> Rows:
    tokenizer, settings = Words(kind), RowSettings(max_length=length, **settings_given)
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


def test_windows_overlap_are_capped_and_count_as_one_text() -> None:
    rows = rows_of("abcdefghijklm", length=8, long_texts="windows", overlap=2)
    assert [letters(ids) for ids in rows.ids] == ["<abcdef>", "<efghij>", "<hijklm>"]
    assert rows.weights is not None
    assert rows.weights.tolist() == pytest.approx([1 / 3] * 3)
    most = rows_of("abcdefghijklmnopqrstuvwxyz", length=8, long_texts="windows", max_windows=3)
    assert [letters(ids) for ids in most.ids] == ["<abcdef>", "<klmnop>", "<uvwxyz>"]
    assert rows_of("abc", length=8, long_texts="windows").weights is None
    tokenizer, settings = Words(), RowSettings(max_length=8, long_texts="windows")
    frame = frame_for(tokenizer, settings, model_length=512, num_segments=1)
    mixed = encode_rows([Example((text,), None, "f") for text in ("abc", "abcdefghijkl")], tokenizer, frame, settings)
    assert mixed.weights is not None
    assert mixed.weights.tolist() == [1.0, 0.5, 0.5]


def test_texts_and_pairs_may_be_mixed() -> None:
    tokenizer, settings = Words(), RowSettings(max_length=10)
    frame = frame_for(tokenizer, settings, model_length=512, num_segments=1)
    examples = [Example(texts, None, "f") for texts in (("abcdefghij",), ("ab", "cd"), ("e",))]
    for order in (examples, examples[::-1], [examples[1], examples[0], examples[2]]):
        rows = encode_rows(order, tokenizer, frame, settings)
        assert {letters(ids) for ids in rows.ids} == {"<abcdefgh>", "<ab>>cd>", "<e>"}
        assert rows.num_cut == 1


def test_limits_and_empty_rows() -> None:
    tokenizer = Words()
    with pytest.raises(ConfigError, match="rows of 4 tokens"):
        frame_for(tokenizer, RowSettings(), model_length=4, num_segments=1)
    assert frame_for(tokenizer, RowSettings(), model_length=64, num_segments=1).max_length == 64
    with pytest.raises(DataError, match="f:1: a text without a single token"):
        rows_of("  ")


def test_labels() -> None:
    def values(kind, *labels):
        examples = [Example(("x",), label, "f:1") for label in labels]
        rows = KINDS[kind].encode(
            examples, ("a", "b", "c"), Words(), frame_for(Words(), RowSettings(), model_length=64, num_segments=1),
            RowSettings(),
        )  # fmt: skip
        return rows.labels

    assert values("classify", "b", "a") == [1, 0]
    assert values("regress", 0.5) == [np.float32(0.5)]
    assert [v.tolist() for v in values("multilabel", ("a", "c"), ())] == [[1, 0, 1], [0, 0, 0]]
