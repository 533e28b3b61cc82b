"""Our rows beside a plain transcription of the rules of fairseq's `complete` and `complete_doc` block modes.

There a corpus is a list of sentences in which a separator, a sentence of one token, ends every document. `complete`
adds sentences to a block while they fit, whatever the documents; `complete_doc` also ends a block at a separator,
which belongs to no block. Ours differ where it makes no difference to a row: a separator at the edge of a block is
dropped, since the row's own marks stand there, and a sentence longer than a block is cut beforehand.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remask.data.examples import Examples, Recipe
from remask.data.index import build_examples
from remask.data.tokens import Shard, SourceTokens, Tokens

SEPARATOR = -1


def fairseq_blocks(sentences: list[list[int]], size: int, mode: str) -> list[list[int]]:
    """One sentence after the other; a sentence that is [SEPARATOR] ends a document."""
    blocks, block = [], []
    for sentence in sentences:
        is_separator = sentence == [SEPARATOR]
        if mode == "complete_doc" and is_separator:
            blocks.append(block)
            block = []
            continue
        # A separator may not open a block in our reading: it is dropped there, so it takes no room either.
        if is_separator and not block:
            continue
        if block and len(block) + len(sentence) > size:
            blocks.append(block)
            block = [] if is_separator else list(sentence)
        else:
            block = block + sentence
    blocks.append(block)
    trimmed = [b[:-1] if b and b[-1] == SEPARATOR else b for b in blocks]
    return [b for b in trimmed if b]


def our_rows(examples: Examples) -> list[list[int]]:
    """Token positions, with a separator between pieces."""
    rows = []
    for number in range(len(examples)):
        row: list[int] = []
        for piece in range(examples.rows[number], examples.rows[number + 1]):
            start, length = int(examples.starts[piece]), int(examples.lengths[piece])
            row += ([SEPARATOR] if row else []) + list(range(start, start + length))
        rows.append(row)
    return rows


def as_sentences(source: SourceTokens, limit: int) -> list[list[int]]:
    bounds = {0, *source.sentence_starts.tolist(), *source.document_offsets.tolist()}
    ends = set(source.document_offsets.tolist())
    ordered = sorted(bounds)
    sentences: list[list[int]] = []
    for first, last in pairwise(ordered):
        sentences += [list(range(at, min(at + limit, last))) for at in range(first, last, limit)]
        if last in ends:
            sentences.append([SEPARATOR])
    return sentences


def recipe_of(format: str, length: int) -> Recipe:
    return Recipe(format, "none", length, False, False, 0.0, length, 0)


def check(source: SourceTokens, length: int) -> None:
    sentences = as_sentences(source, length - 2)
    for format, mode in (("full-sentences", "complete"), ("doc-sentences", "complete_doc")):
        ours = our_rows(build_examples(source, recipe_of(format, length)))
        assert ours == fairseq_blocks(sentences, length - 2, mode)


@pytest.mark.parametrize("seed", range(20))
def test_random_corpora(seed: int) -> None:
    generator = np.random.default_rng(seed)
    documents = [generator.integers(1, 30, generator.integers(0, 12)) for _ in range(60)]
    starts = np.cumsum([0, *np.concatenate(documents).tolist()])[:-1]
    offsets = np.cumsum([0, *[int(d.sum()) for d in documents]])
    ids = np.arange(offsets[-1])
    words = np.zeros(-(-len(ids) // 8), np.uint8)
    source = SourceTokens("a", [Shard("a", ids, offsets, starts, words, 0, 0)])
    check(source, int(generator.integers(8, 80)))


def test_a_real_prepared_folder(tiny_prepared: Any) -> None:
    folder = Path(getattr(tiny_prepared, "folder", tiny_prepared))
    for source in Tokens.open(folder).sources.values():
        check(source, 64)
