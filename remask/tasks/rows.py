"""Texts -> rows of ids with their special tokens, as the model saw them in pretraining.

In: examples and a tokenizer. Out: `Rows`: ids, labels, and which example each row is of (a long text may become
several). RoBERTa's form is <s> A </s> and <s> A </s></s> B </s>; BERT's is [CLS] A [SEP] B [SEP] with segment 1 for B.
A pair that is too long loses tokens from the end of the longer text first. Not here: batches, tags and spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from remask.errors import ConfigError, DataError
from remask.tasks.settings import RowSettings
from remask.tasks.tables import Example
from remask.tokenizer import Tokenizer

Array = np.ndarray
Target = np.number | Array  # what Batch.labels holds of one group


@dataclass(frozen=True)
class Rows:
    """Encoded rows. `labels` holds what Batch.labels will: one entry a group of `group_size` rows."""

    ids: list[Array]
    segments: list[Array] | None
    labels: Sequence[Target] | None  # None: not known
    example_of_row: Array
    group_size: int = 1
    label_per_token: bool = False
    label_per_target: bool = False  # writing: labels are targets, each of its own length
    num_cut: int = 0
    origins: list[Any] = field(default_factory=list)  # what turns a row's output back into text, as the kind has it
    weights: Array | None = None  # how much a row counts in training: the windows of one text count as one; None: 1

    @property
    def lengths(self) -> Array:
        return np.array([len(ids) for ids in self.ids], np.int64)

    @property
    def sizes(self) -> Array:
        """Tokens of each row, with those of its target."""
        if not self.label_per_target or self.labels is None:
            return self.lengths
        return self.lengths + np.array([np.size(label) for label in self.labels], np.int64)

    @property
    def num_groups(self) -> int:
        return len(self.ids) // self.group_size


@dataclass(frozen=True)
class Frame:
    """The special tokens around texts, and the room they leave."""

    bos_id: int
    eos_id: int
    double_separator: bool
    segments: bool
    max_length: int
    targets: Tokenizer | None = None  # writing: the other side's vocabulary, where it has one

    def room(self, num_texts: int) -> int:
        return self.max_length - (2 if num_texts == 1 else 4 if self.double_separator else 3)

    def join(self, parts: Sequence[Array]) -> tuple[Array, Array]:
        """(ids, segment ids) of one or two texts."""
        assert 1 <= len(parts) <= 2
        bos, eos = np.array([self.bos_id]), np.array([self.eos_id])
        pieces = [bos, parts[0], eos]
        if len(parts) == 2:
            first = len(parts[0]) + 2
            pieces += [*([eos] if self.double_separator else []), parts[1], eos]
            ids = np.concatenate(pieces).astype(np.int64)
            return ids, (np.arange(len(ids)) >= first).astype(np.int64)
        ids = np.concatenate(pieces).astype(np.int64)
        return ids, np.zeros(len(ids), np.int64)

    def second_start(self, first_length: int) -> int:
        """The position of the second text's first token."""
        return first_length + (3 if self.double_separator else 2)


def frame_for(tokenizer: Tokenizer, settings: RowSettings, *, model_length: int, num_segments: int) -> Frame:
    """The frame for a tokenizer and a model: vocabularies with a [CLS] (BERT's, ALBERT's, ModernBERT's) come with
    BERT's single separator."""
    length = min(settings.max_length, model_length)
    if length < 8:
        raise ConfigError(f"rows of {length} tokens hold no text; raise the model's length or task.max_length")
    bert = tokenizer.special_names["bos"] == "[CLS]"
    return Frame(tokenizer.bos_id, tokenizer.eos_id, not bert, bert and num_segments > 1, length)


def encode_rows(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    frame: Frame,
    settings: RowSettings,
    labels: Sequence[Target] | None = None,
) -> Rows:
    """Rows of one or two texts; `labels` by example."""
    encoded = iter(tokenizer.encode_batch([text for example in examples for text in example.texts]))
    ids: list[Array] = []
    segments: list[Array] = []
    example_of_row: list[int] = []
    weights: list[float] = []
    num_cut = 0
    for index, example in enumerate(examples):
        parts = [next(encoded) for _ in example.texts]
        room = frame.room(len(parts))
        if any(len(part) == 0 for part in parts):
            raise DataError(f"{example.place}: a text without a single token")
        pieces = [cut(parts, room)]
        if sum(len(part) for part in parts) > room:
            if settings.long_texts == "windows":
                pieces = _windows(parts, room, settings)
            else:
                num_cut += 1
        for piece in pieces:
            row, segment = frame.join(piece)
            ids.append(row)
            segments.append(segment)
            example_of_row.append(index)
            weights.append(1 / len(pieces))
    return Rows(
        ids,
        segments if frame.segments else None,
        None if labels is None else [labels[i] for i in example_of_row],
        np.array(example_of_row, np.int64),
        num_cut=num_cut,
        weights=np.array(weights, np.float32) if len(ids) > len(examples) else None,
    )


def cut(parts: Sequence[Array], room: int) -> list[Array]:
    """At most `room` tokens in all: the longer text gives way first."""
    if len(parts) == 1:
        return [parts[0][:room]]
    first, second = len(parts[0]), len(parts[1])
    if first + second > room:
        half = room // 2
        if second <= half:
            first = room - second
        elif first <= room - half:
            second = room - first
        else:
            first, second = room - half, half
    return [parts[0][:first], parts[1][:second]]


def _windows(parts: Sequence[Array], room: int, settings: RowSettings) -> list[list[Array]]:
    """Pieces of the last text, each beside the whole first one. All are full: the last is drawn back to the text's end.
    A text that would need more than `max_windows` is looked at in as many, spread evenly over it."""
    before = list(parts[:-1])
    if before and len(before[0]) > room // 2:
        before = [before[0][: room // 2]]
    text = parts[-1]
    width = room - sum(len(part) for part in before)
    last = len(text) - width
    step = max(1, width - min(settings.overlap, width // 2))
    starts = [*range(0, last, step), last]
    if len(starts) > settings.max_windows:
        starts = np.linspace(0, last, settings.max_windows).round().astype(int).tolist()
    return [[*before, text[start : start + width]] for start in starts]
