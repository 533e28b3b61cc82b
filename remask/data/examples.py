"""Example boundaries: which tokens of a source make which row, as a pure function of (shards, recipe).

In: a source's mapped tokens and a Recipe. Out: Examples in parts: rows as lists of pieces (token ranges), 12 bytes a
row and 12 a piece; texts and masks are never copied here. `full-sentences` and `doc-sentences` are RoBERTa's (section
4.2; fairseq's `complete` and `complete_doc`), `fixed-blocks` is run_mlm.py's but for where it drops a remainder
(`block_parts`). Every format is one vectorised pass over the sentences plus one jump per row: about 0.2 microseconds a
sentence and 0.1 a row. Not here: pairs (pairs.py), several documents in a row (packing.py), the index (index.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from remask.data import order
from remask.data.settings import PAIRS, DataSettings
from remask.data.tokens import SourceTokens

CHUNK_SENTENCES = 1 << 20  # read at a time, so that memory does not grow with the corpus
CHUNK_BLOCKS = 1 << 18  # made at a time
NO_LABEL = -100
BOS, EOS = 1, 2  # flags of a piece in fixed-blocks: the document's start or end mark belongs to it


@dataclass(frozen=True)
class Recipe:
    """What example boundaries depend on, besides the shards."""

    format: str
    sentence_loss: str
    length: int
    bert_layout: bool
    pack_documents: bool
    shorten_prob: float
    shorten_to: int
    seed: int

    @classmethod
    def of(cls, settings: DataSettings, length: int, bert_layout: bool, seed: int) -> Recipe:
        draws = settings.shorten_prob > 0 or settings.format == "segment-pair" or settings.sentence_loss != "none"
        return cls(
            settings.format,
            settings.sentence_loss,
            length,
            bert_layout and settings.format in PAIRS,
            settings.pack_documents,
            settings.shorten_prob,
            min(settings.shorten_to, length) if settings.shorten_prob else length,
            seed if draws else 0,
        )

    @property
    def num_specials(self) -> int:
        """Marks of a row beside its text: <s> A </s>, <s> A </s></s> B </s> or [CLS] A [SEP] B [SEP]."""
        if self.format in PAIRS:
            return 3 if self.bert_layout else 4
        return 2

    @property
    def text_limit(self) -> int:
        return self.length - self.num_specials

    def key(self, purpose: str, source: str) -> int:
        return order.key_of("examples", purpose, source, self.seed)


@dataclass(frozen=True)
class Examples:
    """Rows of one source. Row r has the pieces rows[r]..rows[r+1]; a piece is `lengths` tokens from `starts` on."""

    rows: np.ndarray  # int64, N+1
    starts: np.ndarray  # int64, P
    lengths: np.ndarray  # int32, P
    sizes: np.ndarray  # int32, N: the row's length with its marks
    labels: np.ndarray | None = None  # int8, N: 1 follows or in order, 0 not, NO_LABEL no pair
    flags: np.ndarray | None = None  # uint8, P: BOS and EOS, fixed-blocks only
    counts: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows) - 1


@dataclass(frozen=True)
class Sentences:
    """A run of sentences of a source, long ones cut; `is_last` where it reaches the source's end."""

    starts: np.ndarray
    ends: np.ndarray
    opens_document: np.ndarray
    document_end: np.ndarray  # for each sentence: the index here at which its document ends
    is_cut: np.ndarray  # the first part of a sentence that had to be cut
    is_last: bool

    def __len__(self) -> int:
        return len(self.starts)


def read_sentences(source: SourceTokens, position: int, limit: int) -> Sentences:
    """Sentences from a token position on; those longer than `limit` tokens become several."""
    bounds = source.sentences_from(position, CHUNK_SENTENCES + 1)
    is_last = len(bounds) <= CHUNK_SENTENCES
    if is_last:
        bounds = np.append(bounds, source.num_tokens)
    bounds[0] = position  # a sentence that the run before cut and only used in part
    # A sentence over the limit is cut into parts of `limit` tokens and a remainder; `which` is each part's sentence,
    # `within` its number in it. Most sentences are one part.
    parts = -(-np.diff(bounds) // limit)
    which = np.repeat(np.arange(len(parts)), parts)
    within = np.arange(len(which)) - np.repeat(np.cumsum(parts) - parts, parts)
    starts = bounds[which] + within * limit
    ends = np.append(starts[1:], bounds[-1])
    offsets = source.document_offsets
    document = np.searchsorted(offsets, starts, side="right") - 1
    opens_document = offsets[document] == starts
    whole_start = np.ones(len(parts), bool)
    whole_start[0] = source.sentences_from(position, 1)[0] == position
    is_cut = (within == 0) & (parts[which] > 1) & whole_start[which]
    first = np.append(np.flatnonzero(opens_document), len(starts))
    document_end = first[np.searchsorted(first, np.arange(len(starts)), side="right")]
    return Sentences(starts, ends, opens_document, document_end, is_cut, is_last)


def follow(jumps: np.ndarray, reach: np.ndarray, is_last: bool) -> tuple[np.ndarray, int]:
    """Row starts reached from sentence 0 by jumping, and where the first row starts that is not settled yet.

    `reach`: the sentences a row looked at end there. Rows that looked up to the end of this run of sentences might
    look further in the next one, which starts with them.
    """
    # Where a row starts depends on where the one before ended, so this chain cannot be one array operation. A Python
    # list is faster here than single elements of an array.
    steps, end = jumps.tolist(), len(jumps)
    starts: list[int] = []
    here = 0
    while here < end:
        starts.append(here)
        here = steps[here]
    rows = np.array(starts, np.int64)
    if is_last:
        return rows, end
    open_rows = np.flatnonzero(reach[rows] >= end)
    assert len(open_rows) == 0 or open_rows[0] > 0, "a run of sentences is shorter than a row"
    settled = int(open_rows[0]) if len(open_rows) else len(rows) - 1
    return rows[:settled], int(rows[settled])


def aims(recipe: Recipe, source: SourceTokens, starts: np.ndarray) -> np.ndarray:
    """How many text tokens a row that starts here aims at: the limit, or less for randomly shortened rows."""
    full = np.full(len(starts), recipe.text_limit)
    if not recipe.shorten_prob:
        return full
    chosen = order.uniform(order.draw(recipe.key("shorten", source.name), starts)) < recipe.shorten_prob
    sizes = order.below(
        order.draw(recipe.key("short size", source.name), starts), recipe.length - recipe.shorten_to + 1
    )
    return np.where(chosen, np.maximum(recipe.shorten_to + sizes - recipe.num_specials, 1), full)


def _packed_rows(source: SourceTokens, recipe: Recipe) -> Iterator[tuple[Sentences, np.ndarray, int]]:
    """Greedy rows of whole sentences, chunk by chunk: (sentences, row starts, end of the last row)."""
    crossing = recipe.format == "full-sentences"
    position = 0
    while position < source.num_tokens:
        sentences = read_sentences(source, position, recipe.text_limit)
        # For every sentence at once: where would a row end that starts with it? `follow` keeps those that come about.
        # A separator is due before every document's first sentence, unless a row starts there.
        separators = np.cumsum(sentences.opens_document) if crossing else 0
        room = sentences.starts + separators + aims(recipe, source, sentences.starts)
        jumps = np.searchsorted(sentences.ends + separators, room, side="right")
        jumps = np.maximum(jumps, np.arange(1, len(sentences) + 1))
        if not crossing:
            jumps = np.minimum(jumps, sentences.document_end)
        starts, end = follow(jumps, jumps, sentences.is_last)
        yield sentences, starts, end
        position = source.num_tokens if sentences.is_last else int(sentences.starts[end])


def sentence_parts(source: SourceTokens, recipe: Recipe) -> Iterator[Examples]:
    """full-sentences and doc-sentences. In the first a row has one piece for each document it touches."""
    for sentences, first_sentences, end in _packed_rows(source, recipe):
        is_start = np.zeros(end, bool)
        is_start[first_sentences] = True
        pieces = np.flatnonzero(is_start | sentences.opens_document[:end])
        starts = sentences.starts[pieces]
        lengths = np.diff(np.append(starts, sentences.ends[end - 1]))
        rows = np.append(np.searchsorted(pieces, first_sentences), len(pieces))
        sizes = _row_sums(lengths, rows) + np.diff(rows) + 1
        counts = {"cut_sentences": int(sentences.is_cut[:end].sum())}
        yield Examples(rows, starts, lengths.astype(np.int32), sizes.astype(np.int32), counts=counts)


def block_parts(source: SourceTokens, recipe: Recipe) -> Iterator[Examples]:
    """fixed-blocks: documents with their marks in one long line, cut every `length` tokens, the remainder dropped.

    The line is a whole source, so that at most one remainder a source is lost. run_mlm.py makes a line of every 1,000
    documents (a batch of datasets.map) and drops the remainder of each: up to `length` - 1 tokens a thousand documents
    more than here, and blocks that start elsewhere from the second thousand on.
    """
    offsets = source.document_offsets
    documents = np.flatnonzero(np.diff(offsets) > 0)
    # Where each document begins in the line that has a mark before and one after every document: two more a document.
    # Blocks are cut at multiples of the length; a piece ends at a cut or at a document's edge, whichever comes first.
    edges = np.append(offsets[documents], offsets[-1]) + 2 * np.arange(len(documents) + 1)
    total = int(edges[-1])
    num_rows = max(total // recipe.length, int(total > 0))
    end = min(num_rows * recipe.length, total)
    for low in range(0, end, CHUNK_BLOCKS * recipe.length):
        high = min(low + CHUNK_BLOCKS * recipe.length, end)
        cuts = np.append(np.arange(low, high, recipe.length), high)
        bounds = np.union1d(cuts, edges[np.searchsorted(edges, low) : np.searchsorted(edges, high, side="right")])
        begin, stop = bounds[:-1], bounds[1:]
        document = np.searchsorted(edges, begin, side="right") - 1
        opens, closes = begin == edges[document], stop == edges[document + 1]
        shift = 1 + 2 * document  # marks before this document's text in the line
        lengths = (stop - begin - opens - closes).astype(np.int32)
        rows = np.searchsorted(begin, cuts)
        flags = (opens * BOS + closes * EOS).astype(np.uint8)
        sizes = _row_sums(stop - begin, rows).astype(np.int32)
        counts = {"dropped_tokens": total - end if high == end else 0}
        yield Examples(rows, begin - shift + opens, lengths, sizes, flags=flags, counts=counts)


def no_examples(recipe: Recipe) -> Examples:
    """None at all, with the arrays and counts that the recipe's have."""
    is_pair, is_block = recipe.sentence_loss != "none", recipe.format == "fixed-blocks"
    counts = {"cut_sentences": 0}
    counts |= {"dropped_tokens": 0} if is_block else {}
    counts |= {"real_pairs": 0, "false_pairs": 0, "cut_negatives": 0} if is_pair else {}
    return Examples(
        np.zeros(1, np.int64),
        np.zeros(0, np.int64),
        np.zeros(0, np.int32),
        np.zeros(0, np.int32),
        np.zeros(0, np.int8) if is_pair else None,
        np.zeros(0, np.uint8) if is_block else None,
        counts,
    )


def join(parts: Iterable[Examples]) -> Examples:
    """Rows of several parts, one after the other."""
    pieces = list(parts)
    bases = np.cumsum([0, *(len(part.starts) for part in pieces)])
    rows = [np.zeros(1, np.int64), *(part.rows[1:] + base for part, base in zip(pieces, bases, strict=False))]
    counts: Counter[str] = Counter()
    for part in pieces:
        counts.update(part.counts)
    return Examples(
        np.concatenate(rows),
        np.concatenate([part.starts for part in pieces]),
        np.concatenate([part.lengths for part in pieces]),
        np.concatenate([part.sizes for part in pieces]),
        None if pieces[0].labels is None else np.concatenate([p.labels for p in pieces if p.labels is not None]),
        None if pieces[0].flags is None else np.concatenate([p.flags for p in pieces if p.flags is not None]),
        dict(counts),
    )


def _row_sums(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    sums = np.concatenate(([0], np.cumsum(values, dtype=np.int64)))
    return np.diff(sums[rows])
