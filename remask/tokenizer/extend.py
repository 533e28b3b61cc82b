"""A vocabulary with more entries, learned on a text: those that make the text shortest, one after the other.

In: a tokenizer, a table of words and their counts, how many entries. Out: a tokenizer whose old entries keep their ids
and whose new ones follow. Byte-level BPE: its merges go on where they ended; the old ones come first, so a text is cut
as before and then joined further. WordPiece: whole words that it cut into pieces. Not here: vectors of the new entries
(start.py), counting words (training.py).
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from remask.errors import DataError
from remask.tokenizer.codec import Tokenizer

MAX_BYTES = 8_000_000  # of distinct words: the most frequent ones, which bounds memory and time
MIN_COUNT = 2  # what stands there once is no word of a language

Words = Sequence[tuple[bytes, int]]
Pair = tuple[int, int]


def extended(tokenizer: Tokenizer, words: Words, count: int) -> Tokenizer:
    """The tokenizer with `count` more entries."""
    frequent = _most_frequent(words)
    description = tokenizer.description
    if tokenizer.kind == "byte-bpe":
        merges = _next_merges(tokenizer, frequent, count)
        names = ["".join(pair) for pair in merges]
        description["model"]["merges"] += _as_written(description["model"]["merges"], merges)
    elif tokenizer.kind == "wordpiece":
        names = _whole_words(tokenizer, frequent, count)
    else:
        raise DataError(
            "the model's vocabulary can only be kept: extend works with byte-level BPE (RoBERTa) and WordPiece (BERT)"
        )
    if len(names) < count:
        raise DataError(f"the text gives {len(names):,} new tokens at most, not {count:,}: ask for fewer")
    # Special tokens that only stand beside the model would move behind the new entries.
    ids = {name: number for number, name in enumerate([*tokenizer.tokens, *names])}
    description["model"]["vocab"] = ids
    larger = Tokenizer(description, dict(tokenizer.special_names))
    if larger.tokens != [*tokenizer.tokens, *names]:
        raise DataError("the model's vocabulary cannot be extended: its entries would get other ids")
    return larger


def _most_frequent(words: Words) -> list[tuple[bytes, int]]:
    """As many as there is room for. Of those that are equally frequent it is their hashes that choose: text without
    spaces has whole clauses for words, most of which stand there once."""
    ordered = sorted(words, key=lambda entry: (-entry[1], hashlib.blake2b(entry[0], digest_size=8).digest()))
    ends = itertools.accumulate(len(word) for word, _ in ordered)
    return [entry for entry, end in zip(ordered, ends, strict=True) if end <= MAX_BYTES]


def _as_written(old: Sequence[object], merges: Sequence[tuple[str, str]]) -> list[object]:
    """Files have merges as "a b" or as ["a", "b"]; the library takes no mixture."""
    if old and isinstance(old[0], str):
        return [" ".join(pair) for pair in merges]
    return [list(pair) for pair in merges]


# ------------------------------------------------------------------------------------------- byte-level BPE


def _next_merges(tokenizer: Tokenizer, words: Words, count: int) -> list[tuple[str, str]]:
    """Always the pair of neighbours that stands there most often; of equal ones the first by its letters. A pair that
    spells an entry which is there already is left alone: old merges could go on from it."""
    rows, counts = _cut_words(tokenizer, words)
    names = list(tokenizer.tokens)
    taken = set(names)
    pairs: Counter[Pair] = Counter()
    places: defaultdict[Pair, set[int]] = defaultdict(set)
    for place, row in enumerate(rows):
        for pair in itertools.pairwise(row):
            pairs[pair] += counts[place]
            places[pair].add(place)

    def entry(pair: Pair) -> tuple[int, str, str, Pair]:
        return -pairs[pair], names[pair[0]], names[pair[1]], pair

    heap = [entry(pair) for pair in pairs]
    heapq.heapify(heap)
    merges: list[tuple[str, str]] = []
    while heap and len(merges) < count:
        known, left, right, pair = heapq.heappop(heap)
        if -known != pairs[pair]:  # changed since: it stands in the heap again
            continue
        if -known < MIN_COUNT:
            break
        if left + right in taken:
            continue
        new = len(names)
        names.append(left + right)
        taken.add(left + right)
        merges.append((left, right))
        changed: set[Pair] = set()
        for place in sorted(places.pop(pair)):
            changed |= _join(rows, place, pair, new, counts[place], pairs, places)
        for touched in changed - {pair}:
            if pairs[touched] > 0:
                heapq.heappush(heap, entry(touched))
        pairs[pair] = 0
    return merges


def _cut_words(tokenizer: Tokenizer, words: Words) -> tuple[list[list[int]], list[int]]:
    """Words of more than one token as the tokenizer cuts them, with their counts."""
    texts = [(word.decode(), count) for word, count in words if len(word) > 1]
    rows = [ids.tolist() for ids in tokenizer.encode_batch([text for text, _ in texts])]
    kept = [(row, count) for row, (_, count) in zip(rows, texts, strict=True) if len(row) > 1]
    return [row for row, _ in kept], [count for _, count in kept]


def _join(
    rows: list[list[int]],
    place: int,
    pair: Pair,
    new: int,
    count: int,
    pairs: Counter[Pair],
    places: Mapping[Pair, set[int]],
) -> set[Pair]:
    """One word with the pair joined, from the left; the counts of its pairs follow. Gives the pairs that changed."""
    row = rows[place]
    first, second = pair
    joined: list[int] = []
    gone: list[Pair] = []
    made: list[Pair] = []
    at, last = 0, len(row) - 1
    while at <= last:
        if at == last or row[at] != first or row[at + 1] != second:
            joined.append(row[at])
            at += 1
            continue
        if joined:
            gone.append((row[at - 1], first))
            made.append((joined[-1], new))
        joined.append(new)
        at += 2
        # What follows is told here, unless it is the next pair to be joined, which tells it itself.
        if at <= last and not (at < last and row[at] == first and row[at + 1] == second):
            gone.append((second, row[at]))
            made.append((new, row[at]))
    for before in gone:
        pairs[before] -= count
    for after in made:
        pairs[after] += count
        places[after].add(place)
    rows[place] = joined
    return {*gone, *made}


# ------------------------------------------------------------------------------------------------ WordPiece


def _whole_words(tokenizer: Tokenizer, words: Words, count: int) -> list[str]:
    """The longest entry that fits wins, so a word that is an entry is one token: what it saves is known."""
    texts = [(word.decode(), number) for word, number in words if number >= MIN_COUNT]
    rows = tokenizer.encode_batch([text for text, _ in texts])
    known = set(tokenizer.tokens)
    saved = [
        (-(len(row) - 1) * number, text)
        for row, (text, number) in zip(rows, texts, strict=True)
        if len(row) > 1 and text not in known and tokenizer.unk_id not in row
    ]
    return [text for _, text in sorted(saved)[:count]]
