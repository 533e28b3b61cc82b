"""Word units: the rule by example, and the vectorised form against the plain one."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from remask.errors import UnavailableError
from remask.tokenizer import Tokenizer
from remask.tokenizer.bulk import BlockEncoder
from remask.tokenizer.words import (
    SPACE,
    TokenStarts,
    _unit_starts,
    character_class,
    check_segmenter,
    join_chinese,
    token_word_starts,
    unit_starts,
)

PIECES = st.sampled_from(
    [
        *"ab.,(!5 -\n\t中国あ。，สีहि́é—😀’\u3000\u00a0",
        *"'stmdvle r",
        "'s",
        "'re",
        "'ll",
        " '",
        "  ",
        " the",
        "don't",
        "1984",
    ]
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He didn't go", "|He| didn't| go"),
        ('("Hello," he', '|("|Hello|,"| he'),
        ("state-of-the-art.", "|state-of-the-art|."),
        ("the U.S.A. $3.50!", "|the| U.S.A|.| $|3.50|!"),
        ("wait - ... no", "|wait| -| ...| no"),
        ("dogs' it's 'tis", "|dogs|'| it's| '|tis"),
        ("中文字。", "|中|文|字|。"),
        ("用Python写 代码", "|用|Python|写| 代|码"),
        ("สวัสดี ครับ", "|ส|วั|ส|ดี| ค|รั|บ"),
        ("हिन्दी भाषा", "|हिन्दी| भाषा"),
        ("a  b\n\nc", "|a| | b|\n\n|c"),
    ],
)
def test_a_word_stands_between_spaces_without_the_punctuation_around_it(text: str, expected: str) -> None:
    starts = unit_starts(text)
    assert "".join(("|" if start else "") + letter for letter, start in zip(text, starts, strict=True)) == expected


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=12).map("".join))
def test_words_seen_before_are_cut_as_the_whole_text_is(text: str) -> None:
    assert unit_starts(text).tolist() == _unit_starts(text).tolist()


def _places(tokenizer: Tokenizer, text: str) -> tuple[np.ndarray, np.ndarray]:
    ids = tokenizer.encode(text)
    lengths = tokenizer.token_lengths[ids]
    return ids, np.cumsum(lengths) - lengths


def _spans(text: str, begins: np.ndarray) -> np.ndarray:
    """Characters of each token; a character that tokens share belongs to all of them."""
    edges = np.cumsum([0, *(len(letter.encode()) for letter in text)])
    first = np.searchsorted(edges, begins, side="right") - 1
    last = np.searchsorted(edges, np.append(begins[1:], edges[-1]) - 1, side="right")
    return np.stack([first, last], axis=1)


@settings(max_examples=600, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=14).map("".join))
def test_tables_by_id_say_the_same_as_the_rule_by_character(small_bpe: Tokenizer, text: str) -> None:
    ids, begins = _places(small_bpe, text)
    data = np.frombuffer(text.encode(), np.uint8)
    starts = TokenStarts(small_bpe.token_bytes)
    pre, words = starts.find(ids, begins, data, np.zeros(1, np.int64))
    assert words.tolist() == token_word_starts(text, _spans(text, begins)).tolist()
    # Pre-tokens: GPT-2's own, but where white space is cut, which no sentence start depends on.
    cuts = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    edges = np.cumsum([0, *(len(letter.encode()) for letter in text)])
    expected = {int(edges[begin]) for _, (begin, _) in cuts}
    spans = _spans(text, begins)
    black = np.array([character_class(text[min(b + (text[b] == " "), len(text) - 1)]) != SPACE for b, _ in spans])
    assert (pre == np.isin(begins, list(expected)))[black].all()


def test_lines_are_apart(small_bpe: Tokenizer) -> None:
    """Two lines encoded by themselves: what ends the one says nothing about the other."""
    lines = ["it", "'s", "(", "fox"]
    encoded = [small_bpe.encode(line) for line in lines]
    ids = np.concatenate(encoded)
    lengths = small_bpe.token_lengths[ids]
    begins = np.cumsum(lengths) - lengths
    first = np.cumsum([0, *(len(item) for item in encoded)])[:-1]
    data = np.frombuffer("".join(lines).encode(), np.uint8)
    pre, words = TokenStarts(small_bpe.token_bytes).find(ids, begins, data, first)
    assert pre[first].all()
    assert words[first].all()
    assert words.sum() == 4


def test_no_tokens_no_words(small_bpe: Tokenizer) -> None:
    nothing = np.zeros(0, np.int64)
    pre, words = TokenStarts(small_bpe.token_bytes).find(nothing, nothing, np.zeros(0, np.uint8), nothing)
    assert (len(pre), len(words)) == (0, 0)
    assert len(token_word_starts("", np.zeros((0, 2), np.int64))) == 0


def test_chinese_words_of_a_segmenter(monkeypatch: pytest.MonkeyPatch) -> None:
    """自然 and 语言 are words of two characters here, 爱 is one; other scripts stay as they are."""
    monkeypatch.setitem(sys.modules, "rjieba", SimpleNamespace(cut=lambda run: re.findall("自然|语言|.", run)))
    text = "Use 自然语言 or 爱自然。"
    letters = list(text)
    begins = np.cumsum([0, *(len(letter.encode()) for letter in letters[:-1])])
    starts = unit_starts(text)
    join_chinese(np.frombuffer(text.encode(), np.uint8), begins, starts)
    assert "".join(("|" if start else "") + letter for letter, start in zip(text, starts, strict=True)) == (
        "|Use| 自然|语言| or| 爱|自然|。"
    )


def test_every_way_to_ids_knows_chinese_words(
    monkeypatch: pytest.MonkeyPatch, small_bpe: Tokenizer, small_wordpiece: Tokenizer
) -> None:
    monkeypatch.setitem(sys.modules, "rjieba", SimpleNamespace(cut=lambda run: re.findall("自然|语言|.", run)))
    data = "爱自然语言".encode()
    offsets = np.array([0, len(data)])
    by_bytes = BlockEncoder(small_bpe, "none", False, "jieba").encode(data, offsets, np.array([0]))
    places = np.cumsum(small_bpe.token_lengths[by_bytes.ids]) - small_bpe.token_lengths[by_bytes.ids]
    assert places[by_bytes.word_starts].tolist() == [0, 3, 9]
    by_library = BlockEncoder(small_wordpiece, "none", False, "jieba").encode(data, offsets, np.array([0]))
    assert by_library.word_starts.tolist() == [True, True, False, True, False]
    plain = BlockEncoder(small_wordpiece, "none", False).encode(data, offsets, np.array([0]))
    assert plain.word_starts.tolist() == [True] * 5


def test_the_segmenter_itself() -> None:
    pytest.importorskip("rjieba", reason="the zh extra is not installed")
    text = "我们在北京大学学习自然语言处理。"
    begins = np.arange(len(text)) * 3
    starts = unit_starts(text)
    join_chinese(np.frombuffer(text.encode(), np.uint8), begins, starts)
    assert "|北京大学|" in "".join(("|" if start else "") + letter for letter, start in zip(text, starts, strict=True))


def test_a_missing_segmenter_is_said_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rjieba", None)
    with pytest.raises(UnavailableError, match=r"pip install .*\[zh\]"):
        check_segmenter()
