"""Our masks beside those of transformers' DataCollatorForLanguageModeling: rates, shares, positions, replacements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from remask.data import order
from remask.data.masking import Masker
from remask.data.rows import BatchRows
from remask.data.settings import MaskingSettings

VOCAB_SIZE, NUM_ROWS, WIDTH, ROUNDS = 300, 400, 64, 5


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    words = {
        word: number for number, word in enumerate([*specials, *(f"w{i}" for i in range(VOCAB_SIZE - 5)), "<mask>"])
    }
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
    )


class OurVocabulary:
    vocab_size, kind = VOCAB_SIZE, "byte-bpe"
    bos_id, pad_id, eos_id, mask_id = 0, 1, 2, VOCAB_SIZE - 1
    special_ids = (0, 1, 2, 3, VOCAB_SIZE - 1)


def inputs() -> np.ndarray:
    ids = np.random.default_rng(0).integers(4, VOCAB_SIZE - 1, (NUM_ROWS, WIDTH))
    ids[:, 0], ids[:, -1] = 0, 2
    return ids


def theirs(tokenizer: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    from transformers import DataCollatorForLanguageModeling

    ids = inputs()
    special = np.isin(ids, OurVocabulary.special_ids).astype(int)
    rows = [
        {"input_ids": row.tolist(), "special_tokens_mask": flags.tolist()}
        for row, flags in zip(ids, special, strict=True)
    ]
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, seed=1)
    found = []
    for _ in range(ROUNDS):
        batch = collator([dict(row) for row in rows])
        found.append((batch["input_ids"].numpy(), batch["labels"].numpy()))
    return found


def ours(count: str) -> list[tuple[np.ndarray, np.ndarray]]:
    ids = inputs()
    text = np.flatnonzero(~np.isin(ids, OurVocabulary.special_ids))
    nothing = np.zeros(len(text), np.int64)
    lengths = np.full(NUM_ROWS, WIDTH)
    rows = BatchRows(ids, lengths, lengths - 2, text, nothing.astype(bool), nothing, nothing, None, None, None)
    masker = Masker(MaskingSettings(count=count), OurVocabulary())
    found = []
    for number in range(ROUNDS):
        masked = masker(rows, order.draw(order.key_of("pass", number), np.arange(NUM_ROWS)), 0.15, None)
        labels = np.full(ids.size, -100)
        labels[masked.positions_M] = masked.labels_M
        found.append((masked.ids_BS, labels.reshape(ids.shape)))
    return found


def facts(found: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    ids, labels = (np.stack(part) for part in zip(*found, strict=True))
    chosen = labels != -100
    seen, true = ids[chosen], labels[chosen]
    changed = (seen != true) & (seen != OurVocabulary.mask_id)
    assert np.array_equal(np.where(chosen, labels, ids), np.broadcast_to(inputs(), ids.shape))
    return {
        "positions": chosen.sum(axis=(0, 1))[1:-1],
        "shares": np.array([(seen == OurVocabulary.mask_id).sum(), changed.sum(), (seen == true).sum()]),
        "per row": np.bincount(chosen.sum(axis=2).ravel(), minlength=30)[:30],
        "random": np.bincount(seen[changed], minlength=VOCAB_SIZE),
    }


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Chi-square of two samples, within five standard deviations; rare cells are left out."""
    kept = one + other >= 10
    one, other = one[kept].astype(float), other[kept].astype(float)
    scale = np.sqrt(other.sum() / one.sum())
    value = ((scale * one - other / scale) ** 2 / (one + other)).sum()
    freedom = max(len(one) - 1, 1)
    return bool((value - freedom) / np.sqrt(2 * freedom) < 5)


def test_independent_draws_agree_with_the_collator(tokenizer: Any) -> None:
    their, our = facts(theirs(tokenizer)), facts(ours("independent"))
    for name in ("positions", "shares", "per row"):
        assert same(our[name], their[name]), name
    # Theirs may draw special tokens as replacements; ours never does.
    special = list(OurVocabulary.special_ids)
    assert our["random"][special].sum() == 0
    assert same(np.delete(our["random"], special), np.delete(their["random"], special))


def test_exact_counts_agree_in_all_but_the_spread(tokenizer: Any) -> None:
    their, our = facts(theirs(tokenizer)), facts(ours("exact"))
    for name in ("positions", "shares"):
        assert same(our[name], their[name]), name
    assert np.flatnonzero(our["per row"]).tolist() == [9, 10]
    assert not same(our["per row"], their["per row"])
