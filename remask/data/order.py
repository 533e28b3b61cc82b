"""Everything random about data, as pure functions of keys: no generator, no state.

A draw is a hash of (key, counter): the splitmix64 stream of that key at that place, over whole arrays. `permute` is
a keyed permutation of 0..N-1 in O(1) memory: a Feistel network over two digits of radix about sqrt(N), walking on
where it leaves the range. `Mixture` deals a stream of slots to sources by weight in closed form. So any worker, rank
or resumed run finds the same example in the same place. Not here: what an example is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

_GAMMA = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_ROUNDS = 8
_SORTED_BELOW = 1 << 10  # so few that sorting hashes is cheap, and exactly uniform where two digits are coarse
_MAX_SHARE = 1 << 31


@lru_cache(maxsize=4096)
def key_of(*parts: int | str) -> int:
    """One 64-bit key from numbers and words, the same on every machine."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def draw(key: int | np.ndarray, counter: np.ndarray) -> np.ndarray:
    """64 random bits for each (key, counter); the two broadcast. The result is itself good as a key."""
    bits = np.asarray(counter).astype(np.uint64)
    bits = (bits + np.uint64(1)) * np.uint64(_GAMMA) + np.asarray(key, np.uint64)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(_FIRST)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(_SECOND)
    bits ^= bits >> np.uint64(31)
    return bits


def uniform(bits: np.ndarray) -> np.ndarray:
    """[0, 1) with 53 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(bits: np.ndarray, bound: np.ndarray | int) -> np.ndarray:
    """0..bound-1 without division; bound up to 2^32 (the bias, bound / 2^32, is far below what can be measured)."""
    return (((bits >> np.uint64(32)) * np.asarray(bound, np.uint64)) >> np.uint64(32)).astype(np.int64)


def permute(index: np.ndarray, size: int, key: int) -> np.ndarray:
    """Where each index of 0..size-1 goes under the permutation of this key."""
    if size <= _SORTED_BELOW:
        return np.argsort(draw(key, np.arange(size)), kind="stable")[index]
    wide = math.isqrt(size - 1) + 1
    high = -(-size // wide)
    permuted = _feistel(index, wide, high, key)
    while (outside := np.flatnonzero(permuted >= size)).size:
        permuted[outside] = _feistel(permuted[outside], wide, high, key)
    return permuted


def _feistel(index: np.ndarray, wide: int, high: int, key: int) -> np.ndarray:
    """A bijection of 0..wide*high-1: each round moves one digit by a hash of the other."""
    left, right = np.divmod(index, wide)
    for number in range(_ROUNDS):
        # The round is folded into the counter's upper half: digits stay below 2^32.
        if number % 2:
            right = (right + below(draw(key, left + (number << 32)), wide)) % wide
        else:
            left = (left + below(draw(key, right + (number << 32)), high)) % high
    return left * wide + right


class Mixture:
    """Slot n of an endless stream -> (source, how many slots that source had before), evenly spread by weight."""

    def __init__(self, weights: Sequence[int]) -> None:
        """Whole weights: after sum(weights) slots every source had exactly its weight of them."""
        assert weights
        assert min(weights) >= 0
        total = sum(weights)
        if total > _MAX_SHARE:
            weights = [round(weight * _MAX_SHARE / total) or (weight > 0) for weight in weights]
        self.weights = [int(weight) for weight in weights]

    def locate(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Source numbers and serials of slots: one two-way split after the other, each exact."""
        rest = np.asarray(slots, np.int64)
        sources, serials = np.zeros(rest.shape, np.int64), np.zeros(rest.shape, np.int64)
        where = np.arange(rest.size)
        left = sum(self.weights)
        for number, weight in enumerate(self.weights):
            before, after = _share(rest, weight, left), _share(rest + 1, weight, left)
            mine = after > before
            sources[where[mine]], serials[where[mine]] = number, before[mine]
            where, rest = where[~mine], (rest - before)[~mine]
            left -= weight
            if left == 0:
                break
        return sources, serials


def _share(count: np.ndarray, weight: int, total: int) -> np.ndarray:
    """How many of the first `count` slots go to a source of this weight."""
    whole, part = np.divmod(count, total)
    return whole * weight + (part * weight + total // 2) // total


def whole_weights(shares: Sequence[float]) -> list[int]:
    """Shares as whole weights for a Mixture, to about seven digits."""
    total = sum(shares)
    return [max(round(share / total * (1 << 24)), int(share > 0)) for share in shares]
