"""A tiny encoder, never trained, and a little collection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

TOPICS = {
    "fox": "The quick brown fox jumps over the lazy dog. A fox runs by the river.",
    "dog": "The lazy dog sleeps by the river. Nobody wakes the dog.",
    "book": "Mary Shelley wrote the book. Who wrote it? Mary wrote it by the river.",
    "river": "The river is long. The river is quick. Over the river jumps the brown dog.",
}


def make_encoder(folder: Path, tokenizer: Path, seed: int = 1, labels: tuple[str, ...] | None = None) -> Path:
    from remask.model.network import build_network
    from remask.model.settings import HeadSettings, ModelSettings
    from remask.model.store import save_model
    from remask.tokenizer import load_tokenizer

    settings = ModelSettings(
        vocab_size=load_tokenizer(tokenizer).vocab_size, num_layers=1, hidden_size=16, num_heads=2, ffn_size=32,
        max_length=64, init_std=0.3,
    )  # fmt: skip
    heads = HeadSettings(num_classes=len(labels)) if labels else HeadSettings()
    save_model(folder, build_network(settings, heads, seed), tokenizer, labels)
    return folder


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizers: dict[str, Path]) -> Path:
    return make_encoder(tmp_path_factory.mktemp("finding") / "encoder", tiny_tokenizers["byte-bpe"])


def write_docs(path: Path, count: int = 4, **more: Any) -> Path:
    names = list(TOPICS)
    rows = [
        {"id": f"{names[i % 4]}-{i}", "topic": names[i % 4], "text": f"{TOPICS[names[i % 4]]} Number {i}.", **more}
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return write_docs(tmp_path / "docs.jsonl")
