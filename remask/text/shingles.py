"""Words of any script as 64-bit hashes, and n-grams of them: what near-duplicates and the Stories filter compare.

A word is a run of letters and digits in lower case; a character of a script without spaces between words is a word of
its own. Vectorised over the whole text; no use of Python's own hash, which changes from run to run.
"""

from __future__ import annotations

import functools

import numpy as np

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
# Scripts written without spaces: Thai to Khmer, Hangul excluded (it has spaces), kana, ideographs.
_ALONE = ((0x0E00, 0x0F00), (0x1000, 0x10A0), (0x1780, 0x1800), (0x3040, 0x3100), (0x3400, 0xA000), (0xF900, 0xFB00),
          (0x20000, 0x32400))  # fmt: skip
_TABLE_SIZE = 0x32400
_CHUNK = 1 << 17


@functools.cache
def _classes() -> np.ndarray:
    """0: no part of a word, 1: part of a word, 2: a word alone; for every character, the last entry for all beyond."""
    table = np.fromiter((chr(code).isalnum() for code in range(_TABLE_SIZE)), np.uint8, _TABLE_SIZE)
    for low, high in _ALONE:
        table[low:high] *= 2
    return np.append(table, np.uint8(0))


@functools.cache
def _powers() -> tuple[np.ndarray, np.ndarray]:
    """Powers of the multiplier and of its inverse, modulo 2^64, for every place of a chunk."""
    step, back = int(_MULTIPLIER), pow(int(_MULTIPLIER), -1, 1 << 64)
    powers, inverse = [1], [1]
    for _ in range(_CHUNK):
        powers.append(powers[-1] * step % (1 << 64))
        inverse.append(inverse[-1] * back % (1 << 64))
    return np.array(powers, np.uint64), np.array(inverse, np.uint64)


def mix(values: np.ndarray) -> np.ndarray:
    """Spreads 64-bit values (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def word_hashes(text: str) -> np.ndarray:
    """One uint64 for each word, in order. A word across the border of two chunks counts as two."""
    text = text.lower()
    if len(text) <= _CHUNK:
        return _chunk_hashes(text)
    return np.concatenate([_chunk_hashes(text[start : start + _CHUNK]) for start in range(0, len(text), _CHUNK)])


def _chunk_hashes(text: str) -> np.ndarray:
    codes, classes = _classified(text)
    inside = classes > 0
    # A word starts where a run of letters does, and at every character that is a word alone.
    starts = inside.copy()
    starts[1:] &= (classes[1:] == 2) | (classes[:-1] != 1)
    ends = inside.copy()
    ends[:-1] &= (classes[:-1] == 2) | (classes[1:] != 1)
    first, last = np.flatnonzero(starts), np.flatnonzero(ends)
    if len(first) == 0:
        return np.zeros(0, np.uint64)
    # The sum of code * m^place over a word, times m^-first: the same wherever the word stands.
    powers, inverse = _powers()
    sums = np.cumsum((codes + np.uint64(1)) * powers[: len(codes)])
    before = np.where(first > 0, sums[first - 1], np.uint64(0))
    return mix((sums[last] - before) * inverse[first])


def _classified(text: str) -> tuple[np.ndarray, np.ndarray]:
    """Code points and their classes."""
    if text.isascii():
        codes = np.frombuffer(text.encode(), np.uint8)
        return codes.astype(np.uint64), _classes()[:128][codes]
    wide = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return wide.astype(np.uint64), _classes()[np.minimum(wide, _TABLE_SIZE)]


def ngrams(words: np.ndarray, size: int) -> np.ndarray:
    """One uint64 for each run of `size` words; none if there are fewer."""
    count = len(words) - size + 1
    if count <= 0:
        return np.zeros(0, np.uint64)
    total = words[:count].copy()
    for shift in range(1, size):
        total = mix(total * _MULTIPLIER + words[shift : shift + count])
    return total


def share_of_symbols(text: str) -> float:
    """Which part of the visible characters is neither letter nor digit."""
    if text.isascii():
        codes = np.frombuffer(text.encode(), np.uint8)
        space = (codes <= 32).sum()
        letters = np.count_nonzero(_classes()[:128][codes])
    else:
        # Marks that combine with letters count as neither, so that no script is taken for symbols.
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        known = np.minimum(codes, _TABLE_SIZE)
        classes = _classes()[known]
        letters = np.count_nonzero(classes)
        space = np.count_nonzero((codes <= 32) | (codes == 0x3000) | (codes == 0xA0) | _marks()[known])
    visible = len(codes) - int(space)
    return 0.0 if visible == 0 else 1.0 - letters / visible


@functools.cache
def _marks() -> np.ndarray:
    import unicodedata

    kinds = (unicodedata.category(chr(code))[0] == "M" for code in range(_TABLE_SIZE))
    return np.append(np.fromiter(kinds, bool, _TABLE_SIZE), False)
