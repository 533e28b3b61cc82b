"""Fixed rows and masks of the held-out split, the same for every model with the same vocabulary.

In: a PREPARED folder, the evaluation settings, a tokenizer. Out: lists of Batches. They do not depend on a run's
seed, input format, masking or row length: rows have `evaluation.length` tokens, and fewer only in a run whose own rows
are shorter, since its model may know no later positions (`evaluation_length`). `word_batches` serves comparisons
across vocabularies (bits per byte): it masks words between white spaces, picked by (document, bytes of text before the
word), so every vocabulary predicts the same bytes. Not here: running a model over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from remask.data import order
from remask.data.corpus import Chosen, Corpus, uses_bert_layout
from remask.data.examples import Recipe
from remask.data.index import open_index
from remask.data.masking import Masked, Masker
from remask.data.rows import BatchRows, Vocabulary, padded_width
from remask.data.settings import PAIRS, DataSettings, MaskingSettings
from remask.data.tokens import Tokens
from remask.errors import ConfigError, DataError
from remask.schema import Batch

SEED = 0x0EA1  # of all evaluation masks, for ever
_PAD_MULTIPLE = 8


class ByteVocabulary(Vocabulary, Protocol):
    """A vocabulary that knows the bytes of its tokens."""

    @property
    def token_bytes(self) -> Sequence[bytes]: ...


def evaluation_length(settings: DataSettings) -> int:
    """The row length that a run is evaluated at."""
    return min(settings.evaluation.length or settings.length, settings.length)


def evaluation_batches(
    prepared: Path,
    settings: DataSettings,
    tokenizer: Vocabulary,
    *,
    max_rows: int | None = None,
    max_tokens: int | None = None,
    rows: int | None = None,
    pairs: bool = False,
) -> list[Batch]:
    """Rows of full sentences with 15 % of their tokens masked 80/10/10, spread over the held-out text.

    `rows` is the number of rows a batch. `pairs`: rows in the run's own pair format and sentence loss instead, for the
    accuracy of NSP and SOP.
    """
    chosen, corpus = _fixed(prepared, settings, tokenizer, max_rows, max_tokens, pairs)
    return [
        corpus.read(part, _width(part, corpus), settings.evaluation.rate, tokenizer)
        for part in _parts(chosen, rows or settings.evaluation.batch_rows)
    ]


def _fixed(
    prepared: Path,
    settings: DataSettings,
    tokenizer: Vocabulary,
    max_rows: int | None,
    max_tokens: int | None,
    pairs: bool,
) -> tuple[Chosen, Corpus]:
    if pairs and settings.format not in PAIRS:
        raise ConfigError(f"data.format = {settings.format}: has no pairs to evaluate")
    fixed = DataSettings(
        format=settings.format if pairs else "full-sentences",
        sentence_loss=settings.sentence_loss if pairs else "none",
        length=evaluation_length(settings),
        layout="bert" if uses_bert_layout(settings, tokenizer) else "roberta",
    )
    corpus = _heldout(prepared, fixed, tokenizer, settings.evaluation.sources)
    count = min(max_rows or settings.evaluation.num_rows, corpus.num_examples)
    chosen = corpus.choose(order.permute(np.arange(count), corpus.num_examples, SEED))
    if max_tokens is not None:
        chosen = chosen.take(slice(0, max(int(np.searchsorted(np.cumsum(chosen.sizes), max_tokens, side="right")), 1)))
    chosen = chosen.take(np.argsort(chosen.sizes, kind="stable")[::-1])  # like lengths together: little padding
    return chosen, corpus


def _heldout(prepared: Path, settings: DataSettings, tokenizer: Vocabulary, sources: Sequence[str]) -> Corpus:
    tokens = Tokens.open(prepared, "heldout")
    if sources:
        tokens = replace(tokens, sources={name: tokens.sources[name] for name in sources if name in tokens.sources})
    if not tokens.num_tokens:
        where = f" of {', '.join(sources)}" if sources else ""
        raise DataError(
            f"{prepared}: holds no held-out text{where}; prepare two sentences at least, with text.heldout_fraction "
            "above 0"
        )
    recipe = Recipe.of(settings, settings.length, uses_bert_layout(settings, tokenizer), SEED)
    examples = open_index(tokens, recipe, None)
    masker = Masker(MaskingSettings(repeat="static"), tokenizer)
    return Corpus(recipe, tokens, examples, masker, weights={}, seed=SEED)


def _parts(chosen: Chosen, size: int) -> list[Chosen]:
    return [chosen.take(slice(at, at + size)) for at in range(0, len(chosen.rows), size)]


def _width(chosen: Chosen, corpus: Corpus) -> int:
    return padded_width(int(chosen.sizes.max()), _PAD_MULTIPLE, corpus.recipe.length)


# --------------------------------------------------------------------------------------- across vocabularies


def word_batches(
    prepared: Path,
    settings: DataSettings,
    tokenizer: ByteVocabulary,
    *,
    max_documents: int | None = None,
    max_bytes: int | None = None,
    rows: int | None = None,
) -> list[Batch]:
    """Rows of the first documents (or bytes) of each held-out source, words masked whole, for bits per byte.

    A word stands between white spaces; it is picked by (source, document, bytes that are no white space before it),
    which is the same in every vocabulary that keeps the text as it is. All its tokens show the mask token.
    """
    fixed = DataSettings(format="doc-sentences", length=evaluation_length(settings))
    corpus = _heldout(prepared, fixed, tokenizer, settings.evaluation.sources)
    words = [
        _WordPicks(corpus, number, tokenizer, settings.evaluation.rate, max_documents, max_bytes)
        for number in range(len(corpus.sources))
    ]
    inside = [
        np.flatnonzero(examples.starts < picks.end) for examples, picks in zip(corpus.examples, words, strict=True)
    ]
    sources = np.repeat(np.arange(len(inside)), [len(rows_inside) for rows_inside in inside])
    chosen = corpus.rows_of(sources, np.zeros_like(sources), np.concatenate(inside))
    chosen = chosen.take(np.argsort(chosen.sizes, kind="stable")[::-1])
    batches = []
    for part in _parts(chosen, rows or settings.evaluation.batch_rows):
        laid_out, blocks = corpus.layout(part, _width(part, corpus), tokenizer)
        block_sources = [corpus.sources.index(block.source) for block in blocks]
        batches.append(corpus.batch(part, laid_out, _mask_words(laid_out, block_sources, words, tokenizer)))
    return batches


def _mask_words(rows: BatchRows, sources: list[int], words: list[_WordPicks], tokenizer: Vocabulary) -> Masked:
    picked = np.zeros(len(rows.text_T), bool)
    for number, source in enumerate(sources):
        at = rows.source_T == number
        picked[at] = words[source].picked[rows.token_T[at]]
    positions = rows.text_T[picked]
    ids = rows.ids_BS.reshape(-1).copy()
    labels = ids[positions]
    ids[positions] = tokenizer.mask_id
    return Masked(ids.reshape(rows.ids_BS.shape), positions, labels)


class _WordPicks:
    """Which tokens of a source's first documents belong to a picked word."""

    def __init__(
        self,
        corpus: Corpus,
        number: int,
        tokenizer: ByteVocabulary,
        rate: float,
        max_documents: int | None,
        max_bytes: int | None,
    ) -> None:
        source = corpus.sources[number]
        offsets = source.document_offsets[: None if max_documents is None else max_documents + 1]
        self.end = int(offsets[-1])
        ids = source.gather(np.arange(self.end))
        opens, closes, solid = _white_space(tokenizer.token_bytes)
        before = np.concatenate(([0], np.cumsum(solid[ids])))
        if tokenizer.kind == "byte-bpe":
            starts = opens[ids].copy()
            starts[1:] |= closes[ids[:-1]]
        else:  # such tokens do not say where white space was, nor do they keep the text: see `is_comparable`
            starts = source.starts_word(np.arange(self.end))
        sentences = source.sentences_from(0, source.num_sentences)
        starts[sentences[sentences < self.end]] = True  # a line break leaves no token, but it is white space
        first = np.flatnonzero(starts)
        document = np.searchsorted(offsets, first, side="right") - 1
        key = order.key_of("words", corpus.names[number], SEED)
        bits = order.draw(order.draw(key, document), before[first] - before[offsets[document]])
        taken = order.uniform(bits) < rate
        if max_bytes is not None:  # counted without white space: the same words in every vocabulary
            taken &= before[first] < max_bytes
            self.end = int(np.searchsorted(before, max_bytes))  # no row that begins behind it is read
        # White space before a word goes with it, in one token or in its own: the bytes are the same either way.
        self.picked = taken[np.cumsum(starts) - 1] if len(first) else np.zeros(0, bool)


def _white_space(token_bytes: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every token: does it begin with white space, end with it, and how many of its bytes are none."""
    opens = np.array([token[:1].isspace() for token in token_bytes], bool)
    closes = np.array([token[-1:].isspace() for token in token_bytes], bool)
    solid = np.array(
        [sum(not token[i : i + 1].isspace() for i in range(len(token))) for token in token_bytes], np.int64
    )
    return opens, closes, solid


def is_comparable(tokenizer: Vocabulary) -> bool:
    """Whether bits per byte of `word_batches` compare with other vocabularies: the tokens spell the text itself."""
    return tokenizer.kind == "byte-bpe"


def masked_bytes(batch: Batch, token_lengths: np.ndarray) -> int:
    """Bytes of the tokens that a batch predicts: what a sum of -log2 p is divided by."""
    return int(np.asarray(token_lengths)[np.asarray(batch.masked_labels_M)].sum())
