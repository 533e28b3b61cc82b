"""Rows of ids: the pieces of chosen examples read from the shards and put between their marks, a batch at a time.

In: row numbers of a source's Examples. Out: padded ids with where the text stands in them. A layout says which marks
go where: `<s> A </s></s> B </s>` (RoBERTa), `[CLS] A [SEP] B [SEP]` with segment ids (BERT), one separator between
documents, or each document with its own marks (packed). Not here: masks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from remask.data.examples import BOS, EOS, Examples, Recipe
from remask.data.settings import PAIRS
from remask.data.tokens import SourceTokens


class Vocabulary(Protocol):
    """What data needs to know of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def bos_id(self) -> int: ...
    @property
    def eos_id(self) -> int: ...
    @property
    def pad_id(self) -> int: ...
    @property
    def mask_id(self) -> int: ...
    @property
    def special_ids(self) -> Collection[int]: ...
    @property
    def kind(self) -> str: ...


@dataclass(frozen=True)
class Block:
    """Rows of one source, and where they go in a batch."""

    source: SourceTokens
    examples: Examples
    rows: np.ndarray  # numbers of examples
    places: np.ndarray  # their rows in the batch


@dataclass
class BatchRows:
    """A batch before masking. T text tokens in reading order, B rows, S positions."""

    ids_BS: np.ndarray
    lengths_B: np.ndarray
    text_lengths_B: np.ndarray
    text_T: np.ndarray  # flat position of every text token, ascending
    starts_piece_T: np.ndarray
    source_T: np.ndarray  # number of the block a text token is from
    token_T: np.ndarray  # its position in its source
    segment_ids_BS: np.ndarray | None
    document_ids_BS: np.ndarray | None
    position_ids_BS: np.ndarray | None


def padded_width(longest: int, multiple: int, length: int) -> int:
    """A multiple where the model's length allows it."""
    return min(-(-longest // multiple) * multiple, length)


def assemble(blocks: Sequence[Block], num_rows: int, width: int, recipe: Recipe, vocabulary: Vocabulary) -> BatchRows:
    """Read and lay out all rows of a batch."""
    ids = np.full(num_rows * width, vocabulary.pad_id, np.int64)
    lengths = np.zeros(num_rows, np.int64)
    text_lengths = np.zeros(num_rows, np.int64)
    segments = np.zeros(num_rows * width, np.int64) if recipe.bert_layout else None
    documents = np.full(num_rows * width, -1, np.int64) if recipe.pack_documents else None
    positions = np.zeros(num_rows * width, np.int64) if recipe.pack_documents else None
    placed: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for block in blocks:
        part = _layout(block, width, recipe, vocabulary)
        destination, token = _spread(part.text_at, part.lengths, part.starts)
        ids[destination] = block.source.gather(token)
        ids[part.marks_at] = part.marks
        lengths[block.places] = block.examples.sizes[block.rows]
        text_lengths[block.places] = np.add.reduceat(part.lengths, np.flatnonzero(part.number == 0))
        starts_piece = np.zeros(len(token), bool)
        starts_piece[(np.cumsum(part.lengths) - part.lengths)[part.lengths > 0]] = True
        placed.append((destination, token, starts_piece))
        if segments is not None:
            second = np.flatnonzero(part.number == 1)
            at, _ = _spread(part.at[second], part.sizes[second], part.at[second])
            segments[at] = 1
        if documents is not None and positions is not None:
            at, inside = _spread(part.at, part.sizes, np.zeros(len(part.at), np.int64))
            positions[at] = inside
            documents[at] = np.repeat(part.number, part.sizes)
    text, token, starts_piece, source = _in_reading_order(placed)
    shape = (num_rows, width)
    return BatchRows(
        ids.reshape(shape),
        lengths,
        text_lengths,
        text,
        starts_piece,
        source,
        token,
        *(None if array is None else array.reshape(shape) for array in (segments, documents, positions)),
    )


@dataclass(frozen=True)
class _Layout:
    """Pieces of a block: where each stands with its marks (`at`, `sizes`), its text, and the marks themselves."""

    number: np.ndarray  # of the piece in its row
    at: np.ndarray
    sizes: np.ndarray
    text_at: np.ndarray
    lengths: np.ndarray
    starts: np.ndarray
    marks_at: np.ndarray
    marks: np.ndarray


def _layout(block: Block, width: int, recipe: Recipe, vocabulary: Vocabulary) -> _Layout:
    examples = block.examples
    first, last = examples.rows[block.rows], examples.rows[block.rows + 1]
    per_row = last - first
    before_row = np.cumsum(per_row) - per_row
    number = np.arange(int(per_row.sum())) - np.repeat(before_row, per_row)
    piece = np.repeat(first, per_row) + number
    lengths, starts = examples.lengths[piece].astype(np.int64), examples.starts[piece]
    before, after = _marks(examples, piece, number, recipe, vocabulary)
    opened, closed = before >= 0, after >= 0
    sizes = lengths + opened + closed
    begins = np.cumsum(sizes) - sizes
    at = begins + np.repeat(block.places * width - begins[before_row], per_row)
    text_at = at + opened
    marks_at = np.concatenate((at[opened], (text_at + lengths)[closed]))
    marks = np.concatenate((before[opened], after[closed]))
    return _Layout(number, at, sizes, text_at, lengths, starts, marks_at, marks)


def _marks(
    examples: Examples, piece: np.ndarray, number: np.ndarray, recipe: Recipe, vocabulary: Vocabulary
) -> tuple[np.ndarray, np.ndarray]:
    """The id before and after each piece, -1 for none."""
    bos, eos = vocabulary.bos_id, vocabulary.eos_id
    after = np.full(len(piece), eos)
    if examples.flags is not None:
        flags = examples.flags[piece]
        return np.where(flags & BOS, bos, -1), np.where(flags & EOS, eos, -1)
    if recipe.pack_documents:
        return np.full(len(piece), bos), after
    doubled = recipe.format in PAIRS and not recipe.bert_layout
    return np.where(number == 0, bos, eos if doubled else -1), after


def _spread(at: np.ndarray, lengths: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For runs of `lengths`: every place from `at` on, and every value from `starts` on."""
    before = np.cumsum(lengths) - lengths
    steps = np.arange(int(lengths.sum()))
    return np.repeat(at - before, lengths) + steps, np.repeat(starts - before, lengths) + steps


def _in_reading_order(
    placed: list[tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Text positions of all blocks, ascending, with their tokens and block numbers."""
    if len(placed) == 1:  # rows are in order inside a block
        text, token, starts_piece = placed[0]
        return text, token, starts_piece, np.zeros(len(text), np.int64)
    text = np.concatenate([part[0] for part in placed])
    token = np.concatenate([part[1] for part in placed])
    starts_piece = np.concatenate([part[2] for part in placed])
    source = np.repeat(np.arange(len(placed)), [len(part[0]) for part in placed])
    order = np.argsort(text)
    return text[order], token[order], starts_piece[order], source[order]
