"""Documents -> token shards: the task that prepare hands to its workers, one portion of documents each.

In: a portion of a documents folder and a tokenizer folder. Out: one shard's files (tokens.py), a histogram of its ids,
and its facts, written last, with the checksums by which a later attempt knows a finished shard. Imports as little as
it can, since every worker process pays for it. Not here: which portions there are (tokenizer/bulk), and publishing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from remask import artifacts
from remask.data.tokens import ShardWriter
from remask.schema import Json
from remask.tokenizer import Tokenizer, load_tokenizer
from remask.tokenizer.bulk import BlockEncoder, Blocks, ChineseWords, Newlines, agrees, pieces_of

CHECK_BYTES = 4_000  # of every shard, on which gigatoken must agree again


@dataclass(frozen=True)
class ShardTask:
    """One portion of documents into one token shard in `folder`; its facts in the file `facts`."""

    blocks: Blocks
    name: str
    tokenizer_folder: Path
    folder: Path
    facts: Path
    newlines: Newlines
    fast: bool
    chinese_words: ChineseWords = "characters"


def make_shard(task: ShardTask) -> Json:
    """Writes the shard, then its facts, which make it count. For run_tasks."""
    encoder, fell_back = _encoder(task.tokenizer_folder, task.newlines, task.fast, task.chinese_words), False
    vocab_size = encoder.tokenizer.vocab_size
    writer = ShardWriter(task.folder, task.name, vocab_size)
    histogram = np.zeros(vocab_size, np.int64)
    if task.fast and not agrees(encoder.tokenizer, first_pieces(task.blocks, task.newlines, CHECK_BYTES)):
        encoder, fell_back = _encoder(task.tokenizer_folder, task.newlines, False, task.chinese_words), True
    for data, offsets, sentences in task.blocks:
        block = encoder.encode(data, offsets, sentences)
        writer.add_many(block.ids, block.document_offsets, block.sentence_starts, block.word_starts, len(data))
        histogram += np.bincount(block.ids, minlength=vocab_size)
    counts = writer.close()
    with artifacts.output_errors(task.facts):
        np.save(task.facts.with_suffix(".npy"), histogram)
    files = [*sorted(task.folder.glob(f"{task.name}.*")), task.facts.with_suffix(".npy")]
    artifacts.finish(task.facts, counts, files)
    return {**counts, "fell_back": fell_back}


def is_made(task: ShardTask) -> bool:
    """Whether an earlier attempt finished this shard and all of it is still there."""
    return artifacts.finished(task.facts) is not None


def read_facts(task: ShardTask) -> Json:
    """The line of a shard that was just made, or found made, in the manifest."""
    counts = artifacts.finished(task.facts, verify=False)
    assert counts is not None
    return counts


def read_histogram(task: ShardTask) -> np.ndarray:
    return np.load(task.facts.with_suffix(".npy"))


def first_pieces(blocks: Blocks, newlines: Newlines, num_bytes: int) -> list[bytes]:
    """The first texts that are encoded by themselves: at least one where there is one, then as many as fit."""
    pieces = [piece for data, offsets, _ in blocks.head(num_bytes) for piece in pieces_of(data, offsets, newlines)]
    total = np.cumsum([len(piece) for piece in pieces])
    return pieces[: int(np.searchsorted(total, num_bytes)) + 1]


@lru_cache(maxsize=1)
def _tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@lru_cache(maxsize=2)
def _encoder(folder: Path, newlines: Newlines, fast: bool, chinese_words: ChineseWords) -> BlockEncoder:
    """Kept between a worker's tasks: reading a vocabulary takes longer than encoding a megabyte."""
    return BlockEncoder(_tokenizer(folder), newlines, fast, chinese_words)


def forget() -> None:
    """For a process that goes on to other vocabularies in the same place."""
    _tokenizer.cache_clear()
    _encoder.cache_clear()
