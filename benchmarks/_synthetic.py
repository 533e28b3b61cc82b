"""Text of any size that is made while it is read: words with spaces as English has them, or none as Chinese has.

Frequencies fall as those of words do (Zipf), and new words never end. A `Stream` stands for the blocks of documents
that remask.tokenizer counts: portion N of a text is a function of N, so that worker processes make their own, and
nothing but counts is written to the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

BLOCK_BYTES = 1_000_000
PORTION_BYTES = 32_000_000
KNOWN = 200_000  # words with a name of their own; rarer ones are a known one and a number
EXPONENT = 1.25
KINDS = {"spaces": "with spaces", "none": "without spaces"}


@dataclass(frozen=True)
class Stream:
    """One portion: its blocks are made anew by every pass over them."""

    kind: str
    portion: int
    num_bytes: int

    def __iter__(self) -> Iterator[tuple[bytes, np.ndarray, np.ndarray]]:
        """(bytes, offsets of the documents in them, sentences, which counting does not ask for)"""
        left, number = self.num_bytes, 0
        while left > 0:
            data = block(self.kind, self.portion, number)[:left]
            data = data.decode(errors="ignore").encode()  # no half letters
            if not data:
                return
            yield data, np.array([0, len(data)]), np.zeros(0, np.int64)
            left, number = left - BLOCK_BYTES, number + 1


def portions(kind: str, num_bytes: int) -> list[Stream]:
    starts = range(0, num_bytes, PORTION_BYTES)
    return [Stream(kind, n, min(PORTION_BYTES, num_bytes - start)) for n, start in enumerate(starts)]


def block(kind: str, portion: int, number: int) -> bytes:
    """A million bytes in lines of 40 words."""
    draw = np.random.default_rng([portion, number])
    table, width = names(kind), 5  # bytes of a word at least, on average
    ranks = np.floor(draw.random(BLOCK_BYTES // width) ** (-1 / (EXPONENT - 1))).clip(max=1e15).astype(np.int64) - 1
    new = ranks >= KNOWN
    words = table[np.where(new, ranks % KNOWN, ranks)]
    if kind == "spaces":
        words = [f"{w}{rank}" if is_new else w for w, rank, is_new in zip(words, ranks.tolist(), new, strict=True)]
        lines = [" ".join(words[i : i + 40]) + "." for i in range(0, len(words), 40)]
        return "\n".join(lines).encode()[:BLOCK_BYTES]
    ends = draw.random(len(words)) < 1 / 6  # of a clause
    parts = [f"{w}，" if is_end else w for w, is_end in zip(words, ends, strict=True)]
    return "\n".join("".join(parts[i : i + 240]) for i in range(0, len(parts), 240)).encode()[:BLOCK_BYTES]


@cache
def names(kind: str) -> np.ndarray:
    """Of the known words, the frequent ones short."""
    draw = np.random.default_rng(7)
    if kind == "spaces":
        letters, longest = "etaoinshrdlucmfwypvbgk", 9
    else:
        letters, longest = "".join(chr(0x4E00 + i) for i in range(6000)), 3
    shares = 1 / np.arange(1, len(letters) + 1) ** 0.7
    sizes = np.clip(np.log10(np.arange(KNOWN) + 1) * longest / 4 + draw.random(KNOWN) * 2, 1, longest).astype(int)
    drawn = draw.choice(len(letters), (KNOWN, longest), p=shares / shares.sum())
    return np.array(["".join(letters[i] for i in row[:size]) for row, size in zip(drawn, sizes, strict=True)], object)
