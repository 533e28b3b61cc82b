"""Rows of two parts: BERT's segment pairs and sentence pairs, with next-sentence or sentence-order labels.

In: a source's mapped tokens and a Recipe. Out: Examples with two pieces a row. NSP: the second part really follows
or comes from another document, half and half; what really followed then starts the next row, so that no text is
lost. SOP (ALBERT, section 3.1): two parts that follow each other, swapped half of the time. A document's last
sentence that finds no partner is a negative under NSP and a row of one part (NO_LABEL) otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from remask.data import order
from remask.data.examples import NO_LABEL, Examples, Recipe, Sentences, aims, follow, read_sentences
from remask.data.tokens import SourceTokens
from remask.errors import DataError

_TRIES = 8
_CALIBRATION_SENTENCES = 200_000
_CALIBRATION_ROUNDS = 20


@dataclass(frozen=True)
class _Plan:
    """For every sentence: the row that would start there covers [i, ends), its first part ends at `cuts`."""

    ends: np.ndarray
    cuts: np.ndarray
    coins: np.ndarray
    aims: np.ndarray

    @property
    def is_pair(self) -> np.ndarray:
        return self.ends - np.arange(len(self.ends)) > 1


def _plan(source: SourceTokens, recipe: Recipe, sentences: Sentences) -> _Plan:
    here = np.arange(len(sentences))
    at_most = np.minimum(here + 2, sentences.document_end)
    aim = aims(recipe, source, sentences.starts)
    ends = at_most
    if recipe.format == "segment-pair":
        reached = np.searchsorted(sentences.ends, sentences.starts + aim, side="right")
        # Sentences are cut at half the limit, so any two of them fit even where the aim is shorter.
        ends = np.minimum(np.maximum(reached, at_most), sentences.document_end)
    cut_bits = order.draw(recipe.key("cut", source.name), sentences.starts)
    cuts = here + 1 + np.where(ends - here > 1, order.below(cut_bits, np.maximum(ends - here - 1, 1)), 0)
    coins = order.uniform(order.draw(recipe.key("coin", source.name), sentences.starts))
    return _Plan(ends, cuts, coins, aim)


def pair_parts(source: SourceTokens, recipe: Recipe) -> Iterator[Examples]:
    """All rows of a source, a run of sentences at a time."""
    nsp = recipe.sentence_loss == "nsp"
    documents = np.flatnonzero(np.diff(source.document_offsets) > 0)
    if nsp and len(documents) < 2:
        raise DataError(
            f"source {source.name}: next-sentence pairs need at least two documents, it has {len(documents)}"
        )
    real_prob = None
    position = 0
    while position < source.num_tokens:
        sentences = read_sentences(source, position, recipe.text_limit // 2)
        plan = _plan(source, recipe, sentences)
        if nsp:
            real_prob = _calibrate(plan) if real_prob is None else real_prob
            real = plan.is_pair & (plan.coins < real_prob)
            rows, end = follow(np.where(real, plan.ends, plan.cuts), plan.ends, sentences.is_last)
            part = _next_sentence(source, recipe, sentences, plan, rows, real[rows], documents)
        else:
            rows, end = follow(plan.ends, plan.ends, sentences.is_last)
            part = _consecutive(recipe, sentences, plan, rows)
        part.counts["cut_sentences"] += int(sentences.is_cut[:end].sum())
        yield part
        position = source.num_tokens if sentences.is_last else int(sentences.starts[end])


def _calibrate(plan: _Plan) -> float:
    """How often a possible continuation must be taken so that half of all rows are real ones.

    Documents end: their last sentences can only be negatives, which would tip the balance where documents are short.
    """
    end = min(len(plan.ends), _CALIBRATION_SENTENCES)
    is_pair, coins = plan.is_pair[:end], plan.coins[:end]
    ends, cuts = np.minimum(plan.ends[:end], end), np.minimum(plan.cuts[:end], end)
    low, high = 0.5, 1.0
    for _ in range(_CALIBRATION_ROUNDS):
        middle = (low + high) / 2
        real = is_pair & (coins < middle)
        rows, _ = follow(np.where(real, ends, cuts), ends, True)
        low, high = (middle, high) if real[rows].mean() < 0.5 else (low, middle)
    return (low + high) / 2


def _consecutive(recipe: Recipe, sentences: Sentences, plan: _Plan, rows: np.ndarray) -> Examples:
    """Pairs whose parts follow each other; under SOP swapped where the coin says so."""
    first, cut, end = sentences.starts[rows], sentences.ends[plan.cuts[rows] - 1], sentences.ends[plan.ends[rows] - 1]
    pair = plan.is_pair[rows]
    swapped = pair & (plan.coins[rows] < 0.5) & (recipe.sentence_loss == "sop")
    starts = np.stack([np.where(swapped, cut, first), np.where(swapped, first, cut)], axis=1)
    lengths = np.stack([np.where(swapped, end - cut, cut - first), np.where(swapped, cut - first, end - cut)], axis=1)
    kept = np.stack([np.ones(len(rows), bool), pair], axis=1)
    labels = np.where(pair, np.where(swapped, 0, 1), NO_LABEL)
    return _examples(recipe, starts, lengths, kept, labels, 0)


def _next_sentence(
    source: SourceTokens,
    recipe: Recipe,
    sentences: Sentences,
    plan: _Plan,
    rows: np.ndarray,
    real: np.ndarray,
    documents: np.ndarray,
) -> Examples:
    """Pairs whose second part follows (`real`) or comes from another document."""
    first, cut, end = sentences.starts[rows], sentences.ends[plan.cuts[rows] - 1], sentences.ends[plan.ends[rows] - 1]
    starts, lengths = np.stack([first, cut], axis=1), np.stack([cut - first, end - cut], axis=1)
    false = np.flatnonzero(~real)
    space = recipe.text_limit - lengths[false, 0]
    aim = np.clip(plan.aims[rows[false]] - lengths[false, 0], 1, space)
    starts[false, 1], lengths[false, 1], num_cut = _elsewhere(source, recipe, documents, first[false], aim, space)
    return _examples(recipe, starts, lengths, np.ones((len(rows), 2), bool), real.astype(np.int64), num_cut)


def _elsewhere(
    source: SourceTokens, recipe: Recipe, documents: np.ndarray, anchors: np.ndarray, aim: np.ndarray, space: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int]:
    """For each anchor a part from another document: the document evenly, a sentence of it evenly, and on from there.

    Up to `aim` tokens of whole sentences; where none of some draws fits, one sentence of up to `space` tokens; where
    that fails too (a long sentence in a small space), its beginning, which is counted (`cut_negatives`).
    """
    own = np.searchsorted(documents, np.searchsorted(source.document_offsets, anchors, side="right") - 1)
    single = recipe.format == "sentence-pair"
    starts, lengths = np.zeros(len(anchors), np.int64), np.zeros(len(anchors), np.int64)
    waiting = np.arange(len(anchors))
    for number in range(2 * _TRIES):
        if not len(waiting):
            return starts, lengths, 0
        key = recipe.key(f"elsewhere {number % _TRIES}", source.name)
        bits = order.draw(key, anchors[waiting])
        other = order.below(bits, len(documents) - 1)
        other += other >= own[waiting]
        room, alone = (aim, single) if number < _TRIES else (space, True)
        begin, size, whole = _run_of_sentences(source, documents[other], order.draw(key, bits), room[waiting], alone)
        starts[waiting], lengths[waiting] = begin, np.minimum(size, space[waiting])
        waiting = waiting[~whole]
    return starts, lengths, len(waiting)


def _run_of_sentences(
    source: SourceTokens, documents: np.ndarray, bits: np.ndarray, room: np.ndarray, single: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A drawn sentence of each document and as many after it as fit: (start, tokens, whether it fits at all)."""
    begin, size, whole = np.zeros_like(room), np.zeros_like(room), np.zeros(len(room), bool)
    bases = np.array([shard.document_base for shard in source.shards])
    owner = np.searchsorted(bases, documents, side="right") - 1
    for number in np.unique(owner):
        at = owner == number
        shard = source.shards[number]
        local = documents[at] - shard.document_base
        start, stop = shard.document_offsets[local], shard.document_offsets[local + 1]
        low, high = np.searchsorted(shard.sentence_starts, start), np.searchsorted(shard.sentence_starts, stop)
        drawn = low + order.below(bits[at], high - low)
        first = shard.sentence_starts[drawn]
        last = len(shard.sentence_starts) - 1
        bounds = np.where(drawn < last, shard.sentence_starts[np.minimum(drawn + 1, last)], shard.num_tokens)
        if not single:
            reached = np.searchsorted(shard.sentence_starts, first + room[at], side="right") - 1
            far = np.where(first + room[at] >= stop, stop, shard.sentence_starts[reached])
            bounds = np.where(far > first, far, bounds)
        begin[at], size[at] = first + shard.token_base, bounds - first
        whole[at] = size[at] <= room[at]
    return begin, size, whole


def _examples(
    recipe: Recipe, starts: np.ndarray, lengths: np.ndarray, kept: np.ndarray, labels: np.ndarray, num_cut: int
) -> Examples:
    """Rows of the parts that are `kept`; a row of one part has two marks."""
    rows = np.concatenate(([0], np.cumsum(kept.sum(axis=1))))
    sizes = (lengths * kept).sum(axis=1) + np.where(kept.all(axis=1), recipe.num_specials, 2)
    counts = {"cut_sentences": 0}
    has_labels = recipe.sentence_loss != "none"
    if has_labels:
        counts |= {"real_pairs": int((labels == 1).sum()), "false_pairs": int((labels == 0).sum())}
        counts |= {"cut_negatives": num_cut}  # drawn sentences, many times the same one, that stand there in part
    return Examples(
        rows,
        starts[kept],
        lengths[kept].astype(np.int32),
        sizes.astype(np.int32),
        labels.astype(np.int8) if has_labels else None,
        counts=counts,
    )
