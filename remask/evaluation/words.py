"""Bits per byte of whole words: the one measure that compares models with different vocabularies.

In: a run's model and the data it was trained on. Out: the number, or why there is none. The words are the same for
every vocabulary that keeps the text as it is (data/evaluation.word_batches). Not here: what is made of the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

MAX_DOCUMENTS = 64  # of each held-out source


def word_bits_per_byte(models: Sequence[Path], prepared: Sequence[Path]) -> tuple[list[float], str]:
    """A number for each model, all on rows of the same length, each on its own tokens of the same text. Where a
    vocabulary does not keep the text: no numbers, and the reason."""
    import torch

    from remask.data.evaluation import is_comparable, word_batches
    from remask.data.settings import DataSettings
    from remask.model.store import open_model
    from remask.objectives import held_out
    from remask.tokenizer import load_tokenizer

    tokenizers = [load_tokenizer(folder / "tokenizer") for folder in prepared]
    for folder, tokenizer in zip(prepared, tokenizers, strict=True):
        if not is_comparable(tokenizer):
            return [], f"the vocabulary of {folder} changes the text"
    loaded = [open_model(folder) for folder in models]
    length = min(512, *(model.settings.max_length for model in loaded))
    bits = []
    for model, folder, tokenizer in zip(loaded, prepared, tokenizers, strict=True):
        batches = word_batches(folder, DataSettings(length=length), tokenizer, max_documents=MAX_DOCUMENTS)
        with torch.inference_mode():
            bits.append(held_out(model.network.eval(), batches, tokenizer.token_lengths)["bits_per_byte"])
    return bits, ""
