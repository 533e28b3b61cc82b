"""Tiny prepared folders and a vocabulary, made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remask import artifacts
from remask.data.tokens import STAGE, ShardWriter

Document = Sequence[Sequence[int]]  # sentences of ids
FIRST_TEXT_ID = 5


@dataclass(frozen=True)
class TinyVocabulary:
    """0-3 and the last are special, as in RoBERTa; 4 is an unused special among the words."""

    vocab_size: int = 200
    kind: str = "byte-bpe"
    bos_id: int = 0
    pad_id: int = 1
    eos_id: int = 2
    unk_id: int = 3

    @property
    def mask_id(self) -> int:
        return self.vocab_size - 1

    @property
    def special_ids(self) -> list[int]:
        return [0, 1, 2, 3, 4, self.mask_id]


def write_prepared(folder: Path, shards: dict[str, Sequence[Document]], vocab_size: int = 200) -> Path:
    """Shards by name. A word starts at every token whose id is even, and at every sentence."""

    def fill(aside: Path) -> dict[str, Any]:
        facts = []
        for name, documents in shards.items():
            writer = ShardWriter(aside, name, vocab_size)
            for document in documents:
                ids = np.array([i for sentence in document for i in sentence], np.int32)
                starts = np.cumsum([0, *[len(sentence) for sentence in document]])[:-1]
                words = ids % 2 == 0
                words[starts] = True
                writer.add(ids, starts, words, num_bytes=len(ids))
            facts.append(writer.close())
        return {"shards": facts}

    artifacts.publish(folder, STAGE, fill)
    return folder


def random_documents(seed: int, count: int, max_sentences: int = 12, max_words: int = 20) -> list[list[list[int]]]:
    generator = np.random.default_rng(seed)
    return [
        [
            generator.integers(FIRST_TEXT_ID, 199, generator.integers(1, max_words + 1)).tolist()
            for _ in range(generator.integers(1, max_sentences + 1))
        ]
        for _ in range(count)
    ]


@pytest.fixture
def vocabulary() -> TinyVocabulary:
    return TinyVocabulary()


@pytest.fixture
def prepare(tmp_path: Path) -> Callable[..., Path]:
    """prepare({"a.train.00000": documents}) -> a prepared folder."""
    made: list[Path] = []

    def make(shards: dict[str, Sequence[Document]], vocab_size: int = 200) -> Path:
        made.append(write_prepared(tmp_path / f"prepared{len(made)}", shards, vocab_size))
        return made[-1]

    return make


@pytest.fixture
def documents_of() -> Callable[..., list[list[list[int]]]]:
    return random_documents


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources, one of them in two shards, and held-out text."""
    return write_prepared(
        tmp_path_factory.mktemp("data") / "prepared",
        {
            "wiki.train.00000": random_documents(0, 60),
            "wiki.train.00001": random_documents(1, 40),
            "novels.train.00000": random_documents(2, 30, max_sentences=40),
            "wiki.heldout.00000": random_documents(3, 40),
            "novels.heldout.00000": random_documents(4, 20),
        },
    )
