"""What is measured of a model before and after: held-out loss and bits per byte, fill-mask answers, closeness of pairs.

In: a network with its tokenizer, prepared data, sentences, a table of pairs. Out: plain numbers and words. Bits per
byte of whole words compare across vocabularies; the loss of tokens does not. Everything is drawn by hashes of the text,
so before and after see the same. Not here: training, what a report makes of it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from remask import signals
from remask.config import fingerprint
from remask.errors import DataError
from remask.schema import Batch, Json
from remask.tables import read_cells

if TYPE_CHECKING:
    from remask.adaptation.settings import PairsSettings
    from remask.answer.model import Model
    from remask.data.settings import DataSettings
    from remask.documents import Documents, DocumentShard
    from remask.model.network import Network
    from remask.tokenizer import Tokenizer

MAX_DOCUMENTS = 64  # of each held-out source, for bits per byte of whole words
MIN_PAIRS = 10
_WORD = re.compile(r"[^\W\d_]{3,14}")  # letters of any script
_NO_SPACES = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")  # kana and Chinese characters


def held_out_measures(
    network: Network, tokenizer: Tokenizer, prepared: Path, data: DataSettings, source: str
) -> dict[str, float | None]:
    """Loss, perplexity, accuracy and bits per byte of masked tokens, and bits per byte of whole words (None where the
    vocabulary does not keep the text), on the held-out text of one source."""
    import torch

    from remask.data.evaluation import evaluation_batches, is_comparable, word_batches
    from remask.objectives import held_out

    def until_stopped(batches: Sequence[Batch]) -> Iterator[Batch]:
        for batch in batches:
            signals.check()
            yield batch

    evaluation = data.evaluation.model_copy(update={"sources": (source,)})
    settings = data.model_copy(update={"evaluation": evaluation})
    network.eval()
    with torch.inference_mode():
        rows = evaluation_batches(prepared, settings, tokenizer)
        measures: dict[str, float | None] = dict(held_out(network, until_stopped(rows), tokenizer.token_lengths))
        measures["word_bits_per_byte"] = None
        if is_comparable(tokenizer):
            words = word_batches(prepared, settings, tokenizer, max_documents=MAX_DOCUMENTS)
            by_word = held_out(network, until_stopped(words), tokenizer.token_lengths)
            measures["word_bits_per_byte"] = by_word["bits_per_byte"]
    return measures


# --------------------------------------------------------------------------------------------- sentences


@dataclass(frozen=True)
class Hidden:
    """A held-out sentence without one of its words."""

    before: str
    word: str
    after: str

    def masked(self, mask: str) -> str:
        return f"{self.before}{mask}{self.after}"


def hidden_words(documents: Documents, source: str, seed: int, count: int = 6) -> list[Hidden]:
    """One word each of some held-out sentences, at most one sentence of a document."""
    drawn: list[tuple[str, Hidden]] = []
    for shard in documents.of("heldout"):
        if shard.source != source:
            continue
        for index in range(len(shard)):
            sentences = [text for text in _sentences(shard, index) if _choices(text)]
            if sentences:
                sentence = min(sentences, key=lambda text: fingerprint([seed, text]))
                drawn.append((fingerprint([seed, "sample", sentence]), _hide(sentence, seed)))
    return [hidden for _, hidden in sorted(drawn, key=lambda pair: pair[0])[:count]]


def _sentences(shard: DocumentShard, index: int) -> list[str]:
    """Of a length that can be shown and understood."""
    raw = shard.raw(index)
    starts = [*shard.sentence_starts(index).tolist(), len(raw)]
    texts = [raw[start:end].decode("utf-8", "replace").strip() for start, end in itertools.pairwise(starts)]
    return [text for text in texts if 24 <= len(text) <= 160 or (_NO_SPACES.search(text) and 12 <= len(text) <= 60)]


def _choices(sentence: str) -> list[re.Match[str]]:
    """Words that may be hidden: not the first, and in text without spaces single characters."""
    if _NO_SPACES.search(sentence):
        return [match for match in _NO_SPACES.finditer(sentence) if match.start() > 3]
    return [match for match in _WORD.finditer(sentence) if match.start() > 0 and sentence[match.start() - 1] == " "]


def _hide(sentence: str, seed: int) -> Hidden:
    match = min(_choices(sentence), key=lambda choice: fingerprint([seed, sentence, choice.start()]))
    return Hidden(sentence[: match.start()], match.group(), sentence[match.end() :])


def answers(model: Model, sentences: Sequence[Hidden], top: int = 5) -> list[list[Json]]:
    """The model's first words for each hidden one, with their probability."""
    if not sentences:
        return []
    mask = model.tokenizer.special_names["mask"]
    filled = model.fill_mask([sentence.masked(mask) for sentence in sentences], top=top)
    return [[{"word": fill.token_str.strip(), "score": round(fill.score, 4)} for fill in fills] for fills in filled]


# -------------------------------------------------------------------------------------------------- pairs


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs of texts with how alike they are."""

    first: list[str]
    second: list[str]
    likeness: np.ndarray


def read_pairs(settings: PairsSettings) -> ScoredPairs:
    assert settings.file is not None
    first, second, numbers = [], [], []
    for cells in read_cells(settings.file):
        values = [cells.values.get(column) for column in (settings.text, settings.text2, settings.label)]
        try:
            numbers.append(float(values[2]))  # pyrefly: ignore
            first.append(str(values[0] or ""))
            second.append(str(values[1] or ""))
        except (TypeError, ValueError):
            raise DataError(
                f"{cells.place}: {settings.label} = {values[2]!r}: is no number; the columns are "
                f"{', '.join(map(str, cells.values))} (pairs.text, pairs.text2 and pairs.label name them)"
            ) from None
        if not first[-1] or not second[-1]:
            raise DataError(f"{cells.place}: a pair needs a text in {settings.text} and in {settings.text2}")
    if len(first) < MIN_PAIRS:
        raise DataError(f"{settings.file}: {len(first)} pairs are too few to rank; at least {MIN_PAIRS}")
    return ScoredPairs(first, second, np.array(numbers))


def closeness(model: Model, pairs: ScoredPairs) -> float:
    """Spearman's correlation of the cosine of two texts' vectors with how alike they are."""
    from remask.tasks.metrics import spearman

    first, second = (model.embed(texts, long_texts="cut") for texts in (pairs.first, pairs.second))
    return float(spearman(pairs.likeness, (first * second).sum(axis=1)))
