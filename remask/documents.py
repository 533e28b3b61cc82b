"""Documents on disk: what text/ writes and tokenizer/ reads.

A published folder (stage "documents") with shards per source and split, named `{source}.{split}.{nnnnn}`:
`.text` (UTF-8 of all documents, one after the other), `.documents` (int64 little-endian, D+1 byte offsets),
`.sentences` (int64 little-endian, byte offset in the shard of every sentence's first character, ascending) and
`.places` (one line a document: where it came from). Everything is read through memory maps. Not here: how documents
are read, cleaned or chosen (text/).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Literal

import numpy as np

from remask.artifacts import Artifact, open_artifact, output_errors
from remask.errors import DataError
from remask.schema import Json, Values
from remask.visible import visible

STAGE = "documents"
SUFFIXES = (".text", ".documents", ".sentences", ".places")
OFFSETS = np.dtype("<i8")
Split = Literal["train", "heldout"]


def byte_positions(data: bytes, characters: np.ndarray) -> np.ndarray:
    """Byte offsets in UTF-8 `data` of the given character offsets."""
    array = np.frombuffer(data, np.uint8)
    if len(characters) == 0 or not (array & 0x80).any():
        return characters.astype(OFFSETS)
    return np.flatnonzero((array & 0xC0) != 0x80)[characters].astype(OFFSETS)


def one_line(place: str) -> str:
    """A place as it stands in `.places`: file names may hold newlines and stray bytes."""
    return visible(place)


class DocumentWriter:
    """Writes one shard. Nothing is promised before `close`; who publishes the folder makes it count."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._files = {}
        with output_errors(folder):
            for suffix in SUFFIXES:
                self._files[suffix] = (folder / f"{name}{suffix}").open("wb", buffering=1 << 20)
        self.num_documents = self.num_sentences = self.num_bytes = 0
        self._files[".documents"].write(np.zeros(1, OFFSETS).tobytes())

    def add(self, text: str, sentence_starts: Sequence[int] | np.ndarray, place: str = "") -> None:
        """A document and the character offsets of its sentences' first characters, ascending."""
        data = text.encode()
        starts = byte_positions(data, np.asarray(sentence_starts, np.int64))
        self.add_bytes(data, np.array([len(data)], np.int64), starts, (one_line(place) + "\n").encode(), 1)

    def add_bytes(
        self, data: bytes | np.ndarray, ends: np.ndarray, sentences: np.ndarray, places: bytes, num_documents: int
    ) -> None:
        """A run of documents at once: bytes, and byte offsets of document ends and sentence starts within them."""
        assert len(ends) == num_documents
        with output_errors(self.folder):
            self._files[".text"].write(data)
            self._files[".documents"].write((ends + self.num_bytes).astype(OFFSETS).tobytes())
            self._files[".sentences"].write((sentences + self.num_bytes).astype(OFFSETS).tobytes())
            self._files[".places"].write(places)
        self.num_documents += num_documents
        self.num_sentences += len(sentences)
        self.num_bytes += len(data)

    def close(self) -> dict[str, int]:
        with output_errors(self.folder):
            for file in self._files.values():
                file.close()
        return {"documents": self.num_documents, "sentences": self.num_sentences, "bytes": self.num_bytes}

    def __enter__(self) -> DocumentWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for file in self._files.values():
            if not file.closed:
                file.close()


def _map(path: Path, dtype: np.dtype) -> np.ndarray:
    """A read-only memory map; an empty file, which cannot be mapped, is an empty array."""
    size = path.stat().st_size
    if size % dtype.itemsize:
        raise DataError(f"{path}: {size:,} bytes is no whole number of entries: damaged")
    return np.memmap(path, dtype, "r") if size else np.zeros(0, dtype)


@dataclass(frozen=True)
class DocumentShard:
    """One shard, mapped when first touched (so it pickles to worker processes as its name)."""

    folder: Path
    name: str

    @property
    def source(self) -> str:
        return self.name.rsplit(".", 2)[0]

    @property
    def split(self) -> str:
        return self.name.rsplit(".", 2)[1]

    @cached_property
    def data(self) -> np.ndarray:
        return _map(self.folder / f"{self.name}.text", np.dtype(np.uint8))

    @cached_property
    def offsets(self) -> np.ndarray:
        offsets = _map(self.folder / f"{self.name}.documents", OFFSETS)
        if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(self.data):
            raise DataError(f"{self.folder / self.name}.documents: does not match the text beside it: damaged")
        return offsets

    @cached_property
    def all_sentence_starts(self) -> np.ndarray:
        """Byte offsets in the shard."""
        return _map(self.folder / f"{self.name}.sentences", OFFSETS)

    @cached_property
    def _places(self) -> np.ndarray:
        return _map(self.folder / f"{self.name}.places", np.dtype(np.uint8))

    @cached_property
    def _place_ends(self) -> np.ndarray:
        """Where each place's line ends, its newline included; a zero before the first."""
        return np.append(0, np.flatnonzero(self._places == ord("\n")) + 1)

    def __getstate__(self) -> Json:
        return {"folder": self.folder, "name": self.name}

    def __setstate__(self, state: Json) -> None:
        self.__dict__.update(state)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_bytes(self) -> int:
        return len(self.data)

    def raw(self, index: int) -> bytes:
        """The UTF-8 of one document."""
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def text(self, index: int) -> str:
        return self.raw(index).decode()

    def sentence_starts(self, index: int) -> np.ndarray:
        """Byte offsets within the document."""
        start, end = self.offsets[index], self.offsets[index + 1]
        low, high = np.searchsorted(self.all_sentence_starts, [start, end])
        return np.asarray(self.all_sentence_starts[low:high]) - start

    def place(self, index: int) -> str:
        """Where the document came from: file and record, or package.module."""
        return self.place_lines(index, index + 1).decode().rstrip("\n")

    def place_lines(self, first: int, last: int) -> bytes:
        """The lines of documents [first, last) as they stand in the file."""
        return self._places[self._place_ends[first] : self._place_ends[last]].tobytes()

    def texts(self) -> Iterator[str]:
        return (self.text(index) for index in range(len(self)))


@dataclass(frozen=True)
class Documents:
    """A published folder of documents, shards in the order source (as the run names them), split, number."""

    artifact: Artifact
    shards: list[DocumentShard]

    @property
    def counts(self) -> Values:
        return self.artifact.counts

    def of(self, split: Split) -> list[DocumentShard]:
        return [shard for shard in self.shards if shard.split == split]


def read_documents(folder: Path, *, verify: bool = False) -> Documents:
    """Open a published documents folder; damaged or unfinished ones are refused."""
    artifact = open_artifact(folder, STAGE, verify=verify)
    shards = [DocumentShard(folder, str(counts["name"])) for counts in artifact.counts["shards"]]
    for shard in shards:
        for suffix in SUFFIXES:
            artifact.path(f"{shard.name}{suffix}")
    return Documents(artifact, shards)
