"""Settings of the vocabulary and of how documents become ids. Read by training, bulk and preparation."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import model_validator

from remask.config import Config, setting, switch

NUM_BYTES = 256
NUM_SPECIALS = 5


class TokenizerSettings(Config):
    """Train a vocabulary on the documents, or take an existing one from `path`."""

    path: Path | None = setting(
        None,
        "an existing vocabulary instead of training one: a folder, a tokenizer.json, BERT's vocab.txt, or a "
        "folder with GPT-2's encoder.json and vocab.bpe, with RoBERTa's dict.txt or without",
    )
    kind: Literal["byte-bpe", "wordpiece"] = switch(
        "byte-bpe", "RoBERTa's byte-level BPE (section 4.4), or BERT's WordPiece on normalised text", effect="data"
    )
    vocab_size: int = switch(
        50265, "entries of a trained vocabulary, the five special ones included", effect="data", samples=[1024, 16384]
    )
    lowercase: bool = switch(
        True, "WordPiece only: fold case and strip accents, as BERT's uncased models", effect="data"
    )
    newlines: Literal["none", "token", "space"] = switch(
        "none",
        "a newline inside a document yields no token (each line is encoded by itself, as RoBERTa's preprocessing "
        "did), is encoded like any other character, or reads as a space",
        effect="data",
    )
    chinese_words: Literal["characters", "jieba"] = setting(
        "characters",
        "what whole-word masking takes for a word of Chinese: every character, or the words of jieba (extra `zh`)",
    )
    accelerator: Literal["auto", "none"] = switch(
        "auto",
        "auto: train and encode with gigatoken (extra `fast`) where it is installed and agrees on your own text",
        effect="speed",
    )
    max_word_bytes: int = setting(
        256, "longer runs without a break are cut into such pieces while training, which bounds its memory", ge=16
    )
    max_distinct_words: int = setting(
        1_000_000, "training keeps the most frequent distinct words up to this many, which bounds its memory", ge=1000
    )

    @model_validator(mode="after")
    def _sizes(self) -> TokenizerSettings:
        least = NUM_BYTES + NUM_SPECIALS if self.kind == "byte-bpe" else 32
        if self.vocab_size < least:
            raise ValueError(f"vocab_size = {self.vocab_size}: {self.kind} needs at least {least}")
        return self
