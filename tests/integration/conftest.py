"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from pathlib import Path

import pytest

# Every one of them is a token of the little vocabulary.
TASK_WORDS = ("red green blue cold warm big small old new fast slow dark light good bad fine").split()  # noqa: SIM905


@pytest.fixture(scope="session")
def task_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of two narrow layers with its vocabulary, never trained."""
    from remask.model.network import build_network
    from remask.model.settings import HeadSettings, ModelSettings
    from remask.model.store import save_model
    from remask.tokenizer.settings import TokenizerSettings
    from remask.tokenizer.training import count_pieces, train_tokenizer

    folder = tmp_path_factory.mktemp("task-model")
    settings = TokenizerSettings(vocab_size=400)
    counts = count_pieces([f" {word}".encode() for word in TASK_WORDS] * 5, settings, fast=False)
    tokenizer = train_tokenizer(sorted(counts.items()), settings, use_gigatoken=False)
    tokenizer.save(folder / "tokenizer")
    small = ModelSettings(
        vocab_size=tokenizer.vocab_size, num_layers=2, hidden_size=32, num_heads=2, ffn_size=64, max_length=64,
        dropout=0.0, attention_dropout=0.0, head_dropout=0.0, norm="pre",
    )  # fmt: skip
    save_model(folder / "init", build_network(small, HeadSettings(masked_lm=True), seed=0), folder / "tokenizer")
    return folder / "init"
