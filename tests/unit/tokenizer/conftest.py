"""A small corpus of several scripts and the vocabularies that come of it."""

from __future__ import annotations

from collections import Counter

import pytest

from remask.tokenizer import Tokenizer, training
from remask.tokenizer.settings import TokenizerSettings

LINES = (
    "The quick brown fox doesn't jump over the lazy dog; it's resting.",
    'She said, "state-of-the-art models (such as these) aren\'t magic!"',
    "In 1984 the price was $3.50, up 7% on 1983.",
    "敏捷的棕色狐狸跳过懒狗。今天天气很好，我们去公园玩。",
    "日本語の文章も、すこし入れます。カタカナ。",
    "हिन्दी में एक छोटा वाक्य।",
    "สวัสดีครับ วันนี้อากาศดี",
    "Ein Satz über Käse, Öl und Füße.",
    "emoji 😀 and naïve café",
)


@pytest.fixture(scope="session")
def word_table() -> list[tuple[bytes, int]]:
    pieces = [line.encode() for line in LINES for _ in range(4)]
    counts: Counter[bytes] = training.count_pieces(pieces, TokenizerSettings(), False)
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


@pytest.fixture(scope="session")
def small_bpe(word_table: list[tuple[bytes, int]]) -> Tokenizer:
    return training.train_tokenizer(word_table, TokenizerSettings(vocab_size=420), False)


@pytest.fixture(scope="session")
def small_wordpiece() -> Tokenizer:
    settings = TokenizerSettings(kind="wordpiece", vocab_size=400)
    counts = training.count_pieces([line.encode() for line in LINES for _ in range(4)], settings, False)
    words = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return training.train_tokenizer(words, settings, False)
