"""Evaluation: the same rows and masks whatever the run, and the same bytes whatever the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remask import artifacts
from remask.data.batches import evaluation_batches, is_comparable, masked_bytes, open_batches, word_batches
from remask.data.settings import DataSettings, EvaluationSettings, MaskingSettings
from remask.data.tokens import STAGE, ShardWriter
from remask.errors import ConfigError, DataError
from remask.schema import Batch


def content(batches: list[Batch]) -> list[tuple[bytes, bytes, bytes]]:
    return [
        (batch.input_ids_BS.tobytes(), batch.masked_positions_M.tobytes(), batch.masked_labels_M.tobytes())
        for batch in batches
    ]


def test_nothing_of_the_run_matters(prepared: Path, vocabulary: Any) -> None:
    plain = evaluation_batches(prepared, DataSettings(length=32), vocabulary)
    for changes in (
        {"format": "doc-sentences", "pack_documents": True},
        {"format": "segment-pair", "sentence_loss": "nsp", "shorten_prob": 0.5},
        {"masking": MaskingSettings(unit="span", rate=0.4, repeat="static"), "source_weights": {"wiki": 1.0}},
    ):
        assert content(evaluation_batches(prepared, DataSettings(length=32, **changes), vocabulary)) == content(plain)
    fixed = DataSettings(length=64, evaluation=EvaluationSettings(length=32))
    assert content(evaluation_batches(prepared, fixed, vocabulary)) == content(plain)


def test_runs_of_any_row_length_meet_the_same_rows(prepared: Path, vocabulary: Any) -> None:
    """Unless theirs are shorter than an evaluation's: then they are said to be."""
    found = {}
    for length in (64, 128, 512):
        settings = DataSettings(length=length)
        found[length] = content(evaluation_batches(prepared, settings, vocabulary))
        facts = open_batches(prepared, settings, vocabulary, seed=1).describe()["evaluation"]
        assert facts == {"length": min(length, 128), "is_capped": length < 128}
    assert found[128] == found[512]
    assert found[64] != found[128]
    own = DataSettings(length=512, evaluation=EvaluationSettings(length=None))
    assert content(evaluation_batches(prepared, own, vocabulary)) != found[512]
    assert open_batches(prepared, own, vocabulary, seed=1).describe()["evaluation"] == {
        "length": 512,
        "is_capped": False,
    }


def test_rows_and_rate(prepared: Path, vocabulary: Any) -> None:
    settings = DataSettings(length=32, evaluation=EvaluationSettings(num_rows=100, batch_rows=16, rate=0.3))
    batches = evaluation_batches(prepared, settings, vocabulary)
    assert [batch.num_rows for batch in batches] == [16] * 6 + [4]
    ids = np.concatenate([batch.example_ids_B for batch in batches])
    assert len(np.unique(ids)) == 100
    assert set((ids >> 48).tolist()) == {0, 1}, "both sources must be in it"
    masked = sum(len(batch.masked_positions_M) for batch in batches)
    assert 0.25 < masked / sum(batch.num_tokens for batch in batches) < 0.3
    assert len(evaluation_batches(prepared, settings, vocabulary, max_rows=5, rows=2)) == 3
    few = evaluation_batches(prepared, settings, vocabulary, max_tokens=300)
    assert 250 < sum(batch.num_tokens for batch in few) <= 300
    everything = evaluation_batches(prepared, settings, vocabulary, max_rows=10**6)
    assert sum(batch.num_rows for batch in everything) > 100


def test_pairs_for_the_sentence_loss(prepared: Path, vocabulary: Any) -> None:
    for loss in ("nsp", "sop"):
        settings = DataSettings(length=32, format="segment-pair", sentence_loss=loss)
        batches = evaluation_batches(prepared, settings, vocabulary, pairs=True)
        labels = np.concatenate([batch.sentence_labels_B for batch in batches])
        assert 0.3 < (labels == 1).mean() < 0.7
    with pytest.raises(ConfigError, match="no pairs"):
        evaluation_batches(prepared, DataSettings(length=32), vocabulary, pairs=True)


def test_no_heldout_text(prepare: Callable[..., Path], vocabulary: Any) -> None:
    with pytest.raises(DataError, match="held-out"):
        evaluation_batches(prepare({"a.train.00000": [[[7, 8]]]}), DataSettings(length=32), vocabulary)


# ------------------------------------------------------------------------------------- across vocabularies

SPECIALS = 5


@dataclass(frozen=True)
class ByteVocabulary:
    """Tokens that are pieces of text, given as a list."""

    pieces: tuple[bytes, ...]
    kind: str = "byte-bpe"
    bos_id: int = 0
    pad_id: int = 1
    eos_id: int = 2

    @property
    def vocab_size(self) -> int:
        return len(self.pieces) + SPECIALS

    @property
    def mask_id(self) -> int:
        return 4

    @property
    def special_ids(self) -> list[int]:
        return list(range(SPECIALS))

    @property
    def token_bytes(self) -> list[bytes]:
        return [b""] * SPECIALS + list(self.pieces)

    @property
    def token_lengths(self) -> np.ndarray:
        return np.array([len(token) for token in self.token_bytes])

    def encode(self, text: bytes, longest: int) -> list[int]:
        """GPT-2's manner: a space goes with the word after it; then the longest pieces that are in the list."""
        index = {piece: number + SPECIALS for number, piece in enumerate(self.pieces)}
        found, at = [], 0
        while at < len(text):
            end = text.find(b" ", at + 1)
            stop = min(len(text) if end < 0 else end, at + longest)
            while text[at:stop] not in index:
                stop -= 1
            found.append(index[text[at:stop]])
            at = stop
        return found


def sentences(seed: int) -> list[list[bytes]]:
    generator = np.random.default_rng(seed)
    letters = b"abcdefgh.,"
    return [
        [
            b" ".join(
                bytes(letters[i] for i in generator.integers(0, 10, generator.integers(1, 9)))
                for _ in range(generator.integers(3, 12))
            )
            for _ in range(generator.integers(1, 8))
        ]
        for _ in range(80)
    ]


def vocabularies(documents: list[list[bytes]]) -> list[tuple[ByteVocabulary, int]]:
    single = [bytes([b]) for b in b"abcdefgh., "]
    text = b"".join(s for d in documents for s in d)
    pairs = sorted({text[i : i + 3] for i in range(len(text) - 3) if b" " not in text[i + 1 : i + 3]})
    return [(ByteVocabulary(tuple(single)), 1), (ByteVocabulary((*single, *pairs)), 3)]


def write(folder: Path, documents: list[list[bytes]], vocabulary: ByteVocabulary, longest: int) -> Path:
    """Half of the sentence breaks are line breaks, which leave no token; the others are spaces."""

    def fill(aside: Path) -> dict[str, Any]:
        facts = []
        for split in ("train", "heldout"):
            writer = ShardWriter(aside, f"a.{split}.00000", vocabulary.vocab_size)
            for document in documents:
                ids: list[int] = []
                starts = []
                for number, sentence in enumerate(document):
                    starts.append(len(ids))
                    ids += vocabulary.encode((b" " if number % 2 else b"") + sentence, longest)
                writer.add(np.array(ids), starts, np.ones(len(ids), bool))
            facts.append(writer.close())
        return {"shards": facts}

    artifacts.publish(folder, STAGE, fill)
    return folder


def test_every_vocabulary_predicts_the_same_words(tmp_path: Path) -> None:
    documents = sentences(0)
    predicted, totals = [], []
    for number, (vocabulary, longest) in enumerate(vocabularies(documents)):
        assert is_comparable(vocabulary)
        folder = write(tmp_path / str(number), documents, vocabulary, longest)
        # Long rows, so that no sentence is cut in either vocabulary.
        settings = DataSettings(length=512, evaluation=EvaluationSettings(length=512))
        batches = word_batches(folder, settings, vocabulary, rows=7)
        words, num_bytes = [], 0
        for batch in batches:
            ids = batch.input_ids_BS.reshape(-1)
            assert (ids[batch.masked_positions_M] == vocabulary.mask_id).all()
            tokens = [vocabulary.token_bytes[i] for i in batch.masked_labels_M]
            breaks = np.append(True, np.diff(batch.masked_positions_M) > 1)
            for token, new in zip(tokens, breaks, strict=True):
                if new or token[:1] == b" ":
                    words.append(token)
                else:
                    words[-1] += token
            num_bytes += masked_bytes(batch, vocabulary.token_lengths)
        predicted.append(sorted(word.strip() for word in words))
        totals.append(num_bytes)
    assert predicted[0] == predicted[1]
    assert totals[0] == totals[1]
    count = sum(len(sentence.split()) for document in documents for sentence in document)
    assert abs(len(predicted[0]) - 0.15 * count) < 5 * np.sqrt(0.15 * 0.85 * count)


def test_first_documents_only(tmp_path: Path) -> None:
    documents = sentences(1)
    vocabulary, longest = vocabularies(documents)[0]
    folder = write(tmp_path / "p", documents, vocabulary, longest)
    settings = DataSettings(length=512, evaluation=EvaluationSettings(length=512))  # a document is a row
    few = word_batches(folder, settings, vocabulary, max_documents=10)
    assert sum(batch.num_rows for batch in few) == 10
    everything = word_batches(folder, settings, vocabulary)
    assert sum(batch.num_rows for batch in everything) == 80
    predicted = [sorted(np.concatenate([b.masked_labels_M for b in batches]).tolist()) for batches in (few, everything)]
    assert 0 < len(predicted[0]) < 0.3 * len(predicted[1])


def test_first_bytes_only_are_the_same_words_in_every_vocabulary(tmp_path: Path) -> None:
    documents = sentences(1)
    predicted = []
    for number, (vocabulary, longest) in enumerate(vocabularies(documents)):
        folder = write(tmp_path / str(number), documents, vocabulary, longest)
        settings = DataSettings(length=32, evaluation=EvaluationSettings(length=32))
        few, everything = (word_batches(folder, settings, vocabulary, max_bytes=most) for most in (900, None))
        assert sum(batch.num_rows for batch in few) < 0.5 * sum(batch.num_rows for batch in everything)
        tokens = [vocabulary.token_bytes[i] for batch in few for i in batch.masked_labels_M]
        predicted.append(sorted(b"".join(tokens).replace(b" ", b"")))
    assert predicted[0] == predicted[1]
    assert predicted[0]


def test_other_kinds_go_by_their_own_words(tmp_path: Path) -> None:
    documents = sentences(2)
    bytewise, longest = vocabularies(documents)[0]
    vocabulary = ByteVocabulary(bytewise.pieces, kind="wordpiece")
    folder = write(tmp_path / "p", documents, vocabulary, longest)
    assert not is_comparable(vocabulary)
    masked = sum(len(b.masked_labels_M) for b in word_batches(folder, DataSettings(length=512), vocabulary))
    assert masked > 100
