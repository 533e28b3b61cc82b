"""Which tokens stand near which: counts of neighbours over training shards, and their pointwise mutual information.

In: Tokens (of the training split), a weight for every distance, at most how many tokens to read. Out: a sparse matrix
of whole numbers, symmetric or of what follows what, and the positive part of its PMI. Pairs never cross the border of a
document. Counts are whole numbers and their sum is exact, so neither order nor number of threads shows in them. Memory
holds the pairs of a few stretches and one matrix. Not here: turning the matrix into vectors (model/factors.py) and
keeping them (start.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from remask import signals
from remask.data.tokens import Shard, Tokens

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# Shapes: T tokens of a stretch, V vocabulary.

WEIGHT_UNIT = 1000  # weights by distance count in thousandths, so that sums are exact
_STRETCH = 1 << 16  # tokens that are read or left out together
_PAIRS_AT_ONCE = 8_000_000  # of one thread; 8 bytes each, and as much again while they are sorted
_PMI_AT_ONCE = 1 << 17  # pairs


def neighbour_counts(
    tokens: Tokens, vocab_size: int, weights: Sequence[float], most_tokens: int, threads: int = 1
) -> csr_array:
    """counts_VV in thousandths: how often two tokens stand 1, 2, ... apart, each distance by its weight."""
    units = np.array([round(weight * WEIGHT_UNIT) for weight in weights], np.int64)
    upper = _counts(tokens, vocab_size, units, most_tokens, threads, ordered=False)
    return (upper + upper.T.tocsr()).tocsr()


def following_counts(tokens: Tokens, vocab_size: int, most_tokens: int, threads: int = 1) -> csr_array:
    """counts_VV in thousandths: how often the token of the row stands right before that of the column."""
    return _counts(tokens, vocab_size, np.array([WEIGHT_UNIT], np.int64), most_tokens, threads, ordered=True)


def _counts(
    tokens: Tokens, vocab_size: int, units: np.ndarray, most_tokens: int, threads: int, ordered: bool
) -> csr_array:
    """Pairs with the smaller id as the row, or (`ordered`) the left token."""
    from scipy.sparse import csr_array

    size = max(1, _PAIRS_AT_ONCE // (_STRETCH * len(units)))
    places = stretches(tokens, most_tokens)
    portions = [places[at : at + size] for at in range(0, len(places), size)]
    total = csr_array((vocab_size, vocab_size), dtype=np.int64)
    with ThreadPoolExecutor(threads) as pool:
        # One portion more than there are threads: while it is counted, this thread adds up what is done.
        counted: deque[Future[csr_array]] = deque()
        for portion in portions:
            signals.check()
            counted.append(pool.submit(_count, portion, vocab_size, units, ordered))
            if len(counted) > threads:
                total = total + counted.popleft().result()
        for rest in counted:
            total = total + rest.result()
    return total


def stretches(tokens: Tokens, most_tokens: int) -> list[tuple[Shard, int, int]]:
    """(shard, first token, end) of what is read: everything, or stretches spread evenly over the whole text."""
    places = [
        (shard, start, min(start + _STRETCH, shard.num_tokens))
        for source in tokens.sources.values()
        for shard in source.shards
        for start in range(0, shard.num_tokens, _STRETCH)
    ]
    total = sum(end - start for _, start, end in places)
    if total <= most_tokens:
        return places
    wanted = max(1, most_tokens // _STRETCH)
    chosen = [places[number * len(places) // wanted] for number in range(wanted)]
    return [(shard, start, min(end, start + most_tokens)) for shard, start, end in chosen]


def _count(portion: Sequence[tuple[Shard, int, int]], vocab_size: int, units: np.ndarray, ordered: bool) -> csr_array:
    """Pairs of some stretches: sorted keys, equal ones summed."""
    from scipy.sparse import csr_array

    bits, id_bits = max(1, (len(units) - 1).bit_length()), vocab_size.bit_length()
    pieces = [key for place in portion for key in _keys(*place, id_bits, len(units), bits, ordered)]
    keys = np.concatenate([np.zeros(0, np.int64), *pieces])  # stretches of one token have no pairs
    del pieces
    keys.sort()
    pairs = keys >> bits
    is_first = np.ones(len(keys), bool)
    np.not_equal(pairs[1:], pairs[:-1], out=is_first[1:])
    starts = np.flatnonzero(is_first)
    pairs = pairs[starts]
    counts = np.add.reduceat(units[keys & ((1 << bits) - 1)], starts) if len(starts) else np.zeros(0, np.int64)
    rows, columns = pairs >> id_bits, pairs & ((1 << id_bits) - 1)
    ends_V = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=vocab_size))])
    return csr_array((counts, columns.astype(np.int32), ends_V.astype(np.int32)), shape=(vocab_size, vocab_size))


def _keys(
    shard: Shard, start: int, end: int, id_bits: int, window: int, bits: int, ordered: bool
) -> Iterator[np.ndarray]:
    """For every distance, the pairs of a stretch that lie in one document: left, right and distance - 1 as the bits of
    one number."""
    ids_T = shard.ids[start:end].astype(np.int64)
    offsets = shard.document_offsets
    first, last = np.searchsorted(offsets, [start, end])
    borders_T = np.zeros(end - start, np.int32)
    np.add.at(borders_T, offsets[first:last] - start, 1)
    document_T = np.cumsum(borders_T)
    for distance in range(1, min(window + 1, end - start)):
        left, right = ids_T[:-distance], ids_T[distance:]
        together = document_T[:-distance] == document_T[distance:]
        left, right = left[together], right[together]
        if not ordered:
            left, right = np.minimum(left, right), np.maximum(left, right)
        yield (((left << id_bits) | right) << bits) | (distance - 1)


def positive_pmi(counts_VV: csr_array, smoothing: float, shift: float, least: float = 0.0) -> csr_array:
    """max(0, log p(context | token) / p(context) - log shift), contexts smoothed by a power (Levy and Goldberg 2014,
    Levy, Goldberg and Dagan 2015); fp32. Pairs with a count below `least` are left out."""
    from scipy.sparse import csr_array

    sums_V = np.asarray(counts_VV.sum(axis=1)).astype(np.float64)
    contexts_V = np.asarray(counts_VV.sum(axis=0)).astype(np.float64) ** smoothing
    with np.errstate(divide="ignore"):
        log_token_V = np.log(sums_V)
        log_context_V = np.log(contexts_V) - np.log(contexts_V.sum())
    # Some rows at a time: what is computed of them stays in the cache.
    ends_V, size = counts_VV.indptr, len(sums_V)
    cuts = np.searchsorted(ends_V, np.arange(_PMI_AT_ONCE, counts_VV.nnz, _PMI_AT_ONCE))
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for first, end in pairwise(np.unique([0, *cuts, size]).tolist()):
        counts, columns = (whole[ends_V[first] : ends_V[end]] for whole in (counts_VV.data, counts_VV.indices))
        rows = np.repeat(np.arange(end - first), np.diff(ends_V[first : end + 1]))
        pmi = np.log(counts.astype(np.float64))
        pmi -= log_token_V[first:end][rows]
        pmi -= log_context_V[columns]
        pmi -= np.log(shift)
        kept = (pmi > 0) & (counts >= least * WEIGHT_UNIT)
        parts.append((pmi[kept].astype(np.float32), columns[kept], np.bincount(rows[kept], minlength=end - first)))
    values, columns, numbers_V = (np.concatenate(whole) for whole in zip(*parts, strict=True))
    return csr_array((values, columns, np.concatenate([[0], numbers_V.cumsum()]).astype(np.int32)), shape=(size, size))
