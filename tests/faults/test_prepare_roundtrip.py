"""FAULTS row 18: every valid text comes back exactly from its ids, and a long run without a space is no trap.

`make soak ROWS=18` takes a million random strings.
"""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest

from remask.tokenizer import Tokenizer, training
from remask.tokenizer.bulk import BlockEncoder
from remask.tokenizer.settings import TokenizerSettings

from .soak import tries

NUM_STRINGS = tries(18, 20_000, 1_000_000)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    lines = ["The quick brown fox doesn't jump.", "敏捷的棕色狐狸", "naïve café 😀 हिन्दी", "1984, 3.50 %$"] * 5
    table = training.count_pieces([line.encode() for line in lines], TokenizerSettings(), False)
    return training.train_tokenizer(sorted(table.items()), TokenizerSettings(vocab_size=400), False)


def _both_ways(tokenizer: Tokenizer) -> list[BlockEncoder]:
    encoders = [BlockEncoder(tokenizer, "token", False)]
    with contextlib.suppress(ImportError):
        encoders.append(BlockEncoder(tokenizer, "token", True))
    return encoders


def _check(tokenizer: Tokenizer, encoders: list[BlockEncoder], texts: list[str]) -> None:
    data = [text.encode() for text in texts]
    offsets = np.cumsum([0, *(len(item) for item in data)])
    for encoder in encoders:
        block = encoder.encode(b"".join(data), offsets, offsets[:-1])
        assert b"".join(tokenizer.token_bytes[i] for i in block.ids.tolist()) == b"".join(data)
        assert not np.isin(block.ids, tokenizer.special_ids).any(), "an unknown or control token"
        for text, low, high in zip(texts, block.document_offsets, block.document_offsets[1:], strict=False):
            assert tokenizer.decode(block.ids[low:high]) == text


def test_all_scalar_values_come_back(tokenizer: Tokenizer) -> None:
    letters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assert len(letters) == 1_112_064
    texts = ["".join(letters[first : first + 4096]) for first in range(0, len(letters), 4096)]
    _check(tokenizer, _both_ways(tokenizer), texts)


@pytest.mark.timeout(3600)
def test_random_strings_come_back(tokenizer: Tokenizer) -> None:
    """Of all planes, of the characters that pre-tokenizers trip over, and of words that look special."""
    chance = random.Random(18)
    tricky = [
        *" \t\n\r'’sStTrReEvVlLmMdD.,!?-_",
        "\u00a0",
        "\u3000",
        "\u200d",
        "\u0301",
        "</s>",
        "<mask>",
        "<s>",
        "\x00",
    ]

    def letter() -> str:
        kind = chance.random()
        if kind < 0.4:
            return chance.choice(tricky)
        if kind < 0.6:
            return chr(chance.randrange(0x20, 0x7F))
        code = chance.randrange(0x110000 if kind > 0.8 else 0x3000)
        return chr(code) if not 0xD800 <= code < 0xE000 else "中"

    texts = ["".join(letter() for _ in range(chance.randrange(1, 30))) for _ in range(NUM_STRINGS)]
    encoders = _both_ways(tokenizer)
    for first in range(0, len(texts), 10_000):
        _check(tokenizer, encoders, texts[first : first + 10_000])


@pytest.mark.parametrize("unit", ["a", "中", "ab!", "😀"])
def test_a_run_of_a_million_bytes_without_a_space_ends(tokenizer: Tokenizer, unit: str) -> None:
    """Work that grew with the square of a run's length would take hours here."""
    _check(tokenizer, _both_ways(tokenizer), [unit * (1_000_000 // len(unit.encode()))])
