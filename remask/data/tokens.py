"""Token shards on disk: the writer that `prepare` fills and the memory-mapped reader that everything else uses.

A shard `{source}.{split}.{nnnnn}` is four little-endian files: `.tokens` (2 bytes an id, 4 where the vocabulary needs
it), `.offsets` (int64, D+1 token offsets of documents), `.sentences` (int64, token index of each sentence start;
every document's first token is one) and `.words` (a bit per token, lowest bit first: 1 where a word unit starts).
A PREPARED folder is an artifact of stage `prepared` whose manifest lists its shards. Several shards of a source read
as one sequence. Not here: who makes the ids (tokenizer/), and examples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from remask import artifacts
from remask.errors import DataError
from remask.schema import Json

STAGE = "prepared"
SPLITS = ("train", "heldout")
_FLUSH_TOKENS = 1 << 20


def token_type(vocab_size: int) -> np.dtype:
    """The narrowest type that holds every id."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


class ShardWriter:
    """Writes one shard, document by document or many at once; memory stays bounded by the offsets."""

    def __init__(self, folder: Path, name: str, vocab_size: int) -> None:
        self.name, self._folder, self._type = name, folder, token_type(vocab_size)
        self._vocab_size = vocab_size
        self._documents = self._sentences = self._tokens = self._bytes = 0
        self._ids: list[np.ndarray] = []
        self._words: list[np.ndarray] = []
        self._offsets: list[np.ndarray] = [np.zeros(1, "<i8")]
        self._starts: list[np.ndarray] = []
        self._held = 0
        with artifacts.output_errors(folder):
            self._files = {suffix: (folder / f"{name}.{suffix}").open("wb") for suffix in _SUFFIXES}

    def add(self, ids: np.ndarray, sentence_starts: ArrayLike, word_starts: ArrayLike, num_bytes: int = 0) -> None:
        """One document: its ids, the token index of each sentence's start in it, and a bool per token for words."""
        self.add_many(ids, [0, len(ids)], sentence_starts, word_starts, num_bytes)

    def add_many(
        self,
        ids: np.ndarray,
        document_offsets: ArrayLike,
        sentence_starts: ArrayLike,
        word_starts: ArrayLike,
        num_bytes: int = 0,
    ) -> None:
        """Documents that stand one after the other in `ids`, every index counted from the start of `ids`."""
        offsets, starts = np.asarray(document_offsets, "<i8"), np.asarray(sentence_starts, "<i8")
        words = np.asarray(word_starts, bool)
        assert (len(words), offsets[0], offsets[-1]) == (len(ids), 0, len(ids)), "documents and words cover the ids"
        assert len(starts) == 0 or (starts[0] == 0 and starts[-1] < len(ids)), "a sentence starts outside"
        self._ids.append(np.asarray(ids))
        self._words.append(words)
        self._offsets.append(offsets[1:] + self._tokens)
        self._starts.append(starts + self._tokens)
        self._documents += len(offsets) - 1
        self._sentences += len(starts)
        self._tokens += len(ids)
        self._bytes += num_bytes
        self._held += len(ids)
        if self._held >= _FLUSH_TOKENS:
            self._flush(last=False)

    def _flush(self, last: bool) -> None:
        ids = np.concatenate(self._ids) if self._ids else np.zeros(0, self._type)
        assert len(ids) == 0 or (ids.min() >= 0 and ids.max() < self._vocab_size), "an id outside the vocabulary"
        words = np.concatenate(self._words) if self._words else np.zeros(0, bool)
        whole = len(words) if last else len(words) // 8 * 8
        pieces = {
            "tokens": ids.astype(self._type),
            "offsets": np.concatenate(self._offsets) if self._offsets else np.zeros(0, "<i8"),
            "sentences": np.concatenate(self._starts) if self._starts else np.zeros(0, "<i8"),
            "words": np.packbits(words[:whole], bitorder="little"),
        }
        with artifacts.output_errors(self._folder):
            for suffix, piece in pieces.items():
                self._files[suffix].write(piece.tobytes())
        self._ids, self._words, self._offsets, self._starts = [], [words[whole:]], [], []
        self._held = 0

    def close(self) -> Json:
        """The shard's line of the manifest."""
        self._flush(last=True)
        with artifacts.output_errors(self._folder):
            for file in self._files.values():
                file.close()
        source, split, _ = self.name.rsplit(".", 2)
        return {
            "name": self.name,
            "source": source,
            "split": split,
            "documents": self._documents,
            "sentences": self._sentences,
            "tokens": self._tokens,
            "bytes": self._bytes,
        }


_SUFFIXES = ("tokens", "offsets", "sentences", "words")


@dataclass(frozen=True)
class Shard:
    """One shard, memory-mapped. The bases say how many tokens and documents of its source come before it."""

    name: str
    ids: np.ndarray
    document_offsets: np.ndarray
    sentence_starts: np.ndarray
    words: np.ndarray
    token_base: int
    document_base: int

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def num_documents(self) -> int:
        return len(self.document_offsets) - 1


class SourceTokens:
    """All shards of one source and split as one sequence of tokens, documents and sentences."""

    def __init__(self, name: str, shards: list[Shard]) -> None:
        self.name, self.shards = name, shards
        self._bases = np.array([shard.token_base for shard in shards], np.int64)
        self.num_tokens = sum(shard.num_tokens for shard in shards)
        self.num_documents = sum(shard.num_documents for shard in shards)
        self.num_sentences = sum(len(shard.sentence_starts) for shard in shards)

    def __len__(self) -> int:
        return self.num_tokens

    @cached_property
    def ids(self) -> np.ndarray:
        """The whole sequence: mapped where one shard holds it, copied into memory otherwise. See `gather`."""
        return _joined([shard.ids for shard in self.shards], np.dtype("<u2"))

    @cached_property
    def document_offsets(self) -> np.ndarray:
        """D+1 token offsets over the whole source."""
        ends = [shard.document_offsets[1:] + shard.token_base for shard in self.shards[1:]]
        return _joined([self.shards[0].document_offsets, *ends], np.dtype("<i8")) if self.shards else np.zeros(1, "<i8")

    @cached_property
    def sentence_starts(self) -> np.ndarray:
        later = [shard.sentence_starts + shard.token_base for shard in self.shards[1:]]
        return _joined([self.shards[0].sentence_starts, *later], np.dtype("<i8")) if self.shards else np.zeros(0, "<i8")

    def sentences_from(self, position: int, count: int) -> np.ndarray:
        """The starts of up to `count` sentences, from the one that holds this token on; reads only those."""
        parts: list[np.ndarray] = []
        for shard in self.shards:
            local = position - shard.token_base
            if count == 0 or local >= shard.num_tokens:
                continue
            first = int(np.searchsorted(shard.sentence_starts, local, side="right")) - 1 if local > 0 else 0
            parts.append(shard.sentence_starts[first : first + count] + shard.token_base)
            count -= len(parts[-1])
        return _joined(parts, np.dtype("<i8"))

    def gather(self, positions: np.ndarray) -> np.ndarray:
        """The ids at these token positions of the source, without reading anything else; int64."""
        if len(self.shards) == 1:
            return self.shards[0].ids[positions].astype(np.int64)
        values = np.empty(positions.shape, np.int64)
        for shard, at, local in self._by_shard(positions):
            values[at] = shard.ids[local]
        return values

    def starts_word(self, positions: np.ndarray) -> np.ndarray:
        """Whether a word unit starts at each of these token positions."""
        values = np.empty(positions.shape, bool)
        for shard, at, local in self._by_shard(positions):
            values[at] = (shard.words[local >> 3] >> (local & 7).astype(np.uint8)) & 1
        return values

    def _by_shard(self, positions: np.ndarray):
        if len(self.shards) == 1:
            yield self.shards[0], ..., positions
            return
        owner = np.searchsorted(self._bases, positions, side="right") - 1
        for number in np.unique(owner):
            shard = self.shards[number]
            at = owner == number
            yield shard, at, positions[at] - shard.token_base


def _joined(parts: list[np.ndarray], empty: np.dtype) -> np.ndarray:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.zeros(0, empty)


@dataclass(frozen=True)
class Tokens:
    """One split of a PREPARED folder."""

    folder: Path
    split: str
    sources: dict[str, SourceTokens]
    fingerprint: str
    counts: Json

    @property
    def tokenizer_folder(self) -> Path:
        return self.folder / "tokenizer"

    @property
    def num_tokens(self) -> int:
        return sum(source.num_tokens for source in self.sources.values())

    def first(self, max_tokens: int | None) -> Tokens:
        """The first documents of every source, of its size its share of `max_tokens`, at least one each; None: all."""
        if max_tokens is None or max_tokens >= self.num_tokens:
            return self
        from remask.config import fingerprint  # not above: its libraries take 0.1 s of every worker that writes shards

        share = max_tokens / self.num_tokens
        sources = {name: _first(source, round(share * len(source))) for name, source in self.sources.items()}
        return replace(self, sources=sources, fingerprint=fingerprint([self.fingerprint, max_tokens]))

    def log_frequencies(self, vocab_size: int, most: int = 50_000_000) -> np.ndarray:
        """Natural logarithm of every id's share of the tokens, each counted once more than it is there.

        Of a corpus with more than about `most` tokens, the start of every shard is counted."""
        shards = [shard for source in self.sources.values() for shard in source.shards]
        counts = np.ones(vocab_size, np.int64)
        for shard in shards:
            counts += np.bincount(shard.ids[: -(-most // len(shards))], minlength=vocab_size)
        return np.log(counts / counts.sum())

    @classmethod
    def open(cls, prepared: Path, split: str = "train", verify: bool = False) -> Tokens:
        """Map a split; damaged shards are refused. `verify` reads every byte as well."""
        artifact = artifacts.open_artifact(prepared, STAGE, verify=verify)
        by_source: dict[str, list[Shard]] = {}
        for counts in artifact.counts.get("shards", []):
            if counts["split"] != split:
                continue
            before = by_source.setdefault(counts["source"], [])
            token_base = sum(shard.num_tokens for shard in before)
            document_base = sum(shard.num_documents for shard in before)
            shard = _open_shard(artifact, counts, token_base, document_base)
            if verify:
                _verify_shard(shard, prepared)
            before.append(shard)
        sources = {name: SourceTokens(name, shards) for name, shards in by_source.items()}
        return cls(prepared, split, sources, artifact.fingerprint, dict(artifact.counts))


def _first(source: SourceTokens, max_tokens: int) -> SourceTokens:
    shards = []
    for shard in source.shards:
        room = max_tokens - shard.token_base
        if shards and room <= 0:
            break
        num_documents = max(1 if not shards else 0, int(np.searchsorted(shard.document_offsets, room, "right")) - 1)
        end = int(shard.document_offsets[min(num_documents, shard.num_documents)])
        cut = replace(
            shard,
            ids=shard.ids[:end],
            document_offsets=shard.document_offsets[: num_documents + 1],
            sentence_starts=shard.sentence_starts[: int(np.searchsorted(shard.sentence_starts, end))],
            words=shard.words[: -(-end // 8)],
        )
        shards.append(cut)
    return SourceTokens(source.name, shards)


def _open_shard(artifact: artifacts.Artifact, counts: Json, token_base: int, document_base: int) -> Shard:
    name, tokens = counts["name"], counts["tokens"]
    paths = {suffix: artifact.path(f"{name}.{suffix}") for suffix in _SUFFIXES}
    size = paths["tokens"].stat().st_size
    if tokens and size not in (2 * tokens, 4 * tokens):
        raise DataError(f"{paths['tokens']}: {size:,} bytes do not hold {tokens:,} tokens: damaged")
    kind = np.dtype("<u4") if tokens and size == 4 * tokens else np.dtype("<u2")
    shard = Shard(
        name,
        _map(paths["tokens"], kind),
        _map(paths["offsets"], np.dtype("<i8")),
        _map(paths["sentences"], np.dtype("<i8")),
        _map(paths["words"], np.dtype("u1")),
        token_base,
        document_base,
    )
    offsets = shard.document_offsets
    sound = (
        len(offsets) == counts["documents"] + 1
        and offsets[0] == 0
        and offsets[-1] == tokens
        and len(shard.sentence_starts) == counts["sentences"]
        and len(shard.words) == -(-tokens // 8)
    )
    if not sound:
        raise DataError(f"{artifact.folder}: shard {name} contradicts its manifest: damaged")
    return shard


def _verify_shard(shard: Shard, folder: Path) -> None:
    """What checksums cannot say: that the writer itself kept the rules of the format."""
    offsets, starts = shard.document_offsets, shard.sentence_starts
    first = offsets[:-1][np.diff(offsets) > 0]
    ascending = bool((np.diff(offsets) >= 0).all() and (np.diff(starts) > 0).all())
    if not ascending or not np.isin(first, starts).all() or (len(starts) and starts[-1] >= shard.num_tokens):
        raise DataError(f"{folder}: shard {shard.name} has offsets out of order: damaged")


def _map(path: Path, kind: np.dtype) -> np.ndarray:
    size = path.stat().st_size
    if size % kind.itemsize:
        raise DataError(f"{path}: {size:,} bytes are not a whole number of entries: damaged")
    if size == 0:
        return np.zeros(0, kind)
    # A plain array over the mapping: np.memmap's own class makes every slice several times slower.
    return np.memmap(path, kind, mode="r").view(np.ndarray)
