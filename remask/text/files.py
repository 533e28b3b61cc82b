"""Paths, folders, globs, stdin -> the sorted list of files of a source; and files -> streams of bytes.

Kind and compression go by the name. A stream gives what it can of a damaged file and then raises `Damaged`; it never
holds more than a few megabytes, whatever the compressed bytes claim to hold. Not here: what the bytes mean.
"""

from __future__ import annotations

import bz2
import codecs
import glob
import gzip
import hashlib
import io
import json
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import zstandard

from remask.artifacts import MANIFEST, sha256_of
from remask.documents import one_line
from remask.errors import DataError, MissingInputError
from remask.text.records import Damaged
from remask.text.settings import SourceSettings

KINDS = {
    ".txt": "text", ".text": "text", ".md": "text", ".rst": "text", ".tokens": "text", ".raw": "text",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".csv": "csv", ".tsv": "tsv",
    ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow",
    ".html": "html", ".htm": "html", ".xhtml": "html",
    ".xml": "wikipedia", ".warc": "warc",
}  # fmt: skip
COMPRESSIONS = {".gz": "gz", ".bgz": "gz", ".bz2": "bz2", ".xz": "xz", ".lzma": "xz", ".zst": "zst", ".zstd": "zst"}
BLOCK = 1 << 20
WHOLE_BYTES, END_BYTES = 1 << 20, 1 << 16  # read for a fingerprint: of a small file, of each end of a large one
_XZ_MEMORY = 200 << 20
_ZSTD_WINDOW = 1 << 27
# A zstd block of 4 bytes can stand for 128 KiB, so this much input is at most 64 MiB of output.
_ZSTD_INPUT = 2048
# Growth is judged only beyond this many bytes: short files of one repeated word are no attack.
_EXPANSION_FROM = 16 << 20


@dataclass(frozen=True)
class InputFile:
    """A file of a source. `place` is how it is called in counts and drops."""

    path: str
    place: str
    kind: str
    compression: str
    size: int

    def fingerprint(self) -> str:
        """Of the contents, the same on any machine: all of a small file, and size and both ends of a large one."""
        digest = hashlib.sha256(str(self.size).encode())
        if os.path.isfile(self.path):
            with open(self.path, "rb") as file:
                if self.size <= WHOLE_BYTES:
                    digest.update(file.read(WHOLE_BYTES))
                else:
                    digest.update(file.read(END_BYTES))
                    file.seek(self.size - END_BYTES)
                    digest.update(file.read(END_BYTES))
        return digest.hexdigest()[:32]

    def stamp(self, spool: Path) -> str:
        """By which the same machine notices any edit, also in the middle of a large file. What was copied from a
        stream into `spool` is new in every attempt, so there all of the contents must answer for it."""
        if not os.path.isfile(self.path):
            return ""
        if Path(self.path).parent == spool:
            return sha256_of(Path(self.path))
        return str(os.stat(self.path).st_mtime_ns)


def kind_of(name: str) -> tuple[str, str]:
    """(kind, compression) by a file's name; kind is empty where the ending says nothing."""
    stem, ending = os.path.splitext(name.lower())
    compression = COMPRESSIONS.get(ending, "")
    if compression:
        ending = os.path.splitext(stem)[1]
    return KINDS.get(ending, ""), compression


def find_files(source: SourceSettings, spool: Path) -> list[InputFile]:
    """All files of a source, sorted, each once; kind "unknown" marks those whose ending says nothing."""
    found: dict[str, InputFile] = {}
    for path in sorted(set(source.paths)):
        for file in _expand(path, source, spool):
            found.setdefault(file.path, file)
    if not found:
        raise MissingInputError(f"{', '.join(source.paths)}: no files there")
    return [found[path] for path in sorted(found)]


def is_stream(path: str) -> bool:
    """Whether what stands there can be read only once."""
    path = os.path.expanduser(path)
    return path == "-" or (os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path))


def _expand(path: str, source: SourceSettings, spool: Path) -> Iterator[InputFile]:
    path = os.path.expanduser(path)
    if path == "-":
        yield _spooled(sys.stdin.buffer, "stdin", source, spool)
    elif path.startswith("hf:") or (path.startswith("pydocs:") and source.kind in ("auto", "pydocs")):
        kind, _, name = path.partition(":")
        yield InputFile(path, name or kind, kind, "", 0)
    elif source.kind == "hf":
        yield InputFile(f"hf:{path}", path, "hf", "", 0)
    elif os.path.isdir(path):
        yield from _folder(path, source)
    elif os.path.exists(path):
        if stat.S_ISREG(os.stat(path).st_mode):
            yield _file(path, source, "text")
        else:
            with open(path, "rb") as stream:
                yield _spooled(stream, path, source, spool)
    else:
        matches = sorted(glob.glob(path, recursive=True))
        if not matches:
            raise MissingInputError(f"{path}: no such file or folder, and no file matches it")
        for match in matches:
            if os.path.isdir(match):
                yield from _folder(match, source)
            elif os.path.isfile(match):
                yield _file(match, source, "unknown")


def _file(path: str, source: SourceSettings, otherwise: str) -> InputFile:
    kind, compression = kind_of(path)
    if source.kind != "auto":
        kind = source.kind
    # Absolute, since workers on other machines start elsewhere; its place is what the user called it.
    return InputFile(os.path.abspath(path), one_line(path), kind or otherwise, compression, os.stat(path).st_size)


def _folder(folder: str, source: SourceSettings) -> Iterator[InputFile]:
    for parent, folders, names in os.walk(folder):
        # A folder written by datasets' save_to_disk: its JSON files are no data.
        saved = "dataset_info.json" in names and "state.json" in names
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if _is_ours(parent, names):
            if parent == folder:
                raise DataError(
                    f"{folder}: was made by remask and holds no text to read; give the files it was made of"
                )
            # One record that is counted as a drop: tokens and weights read as text would be nonsense.
            yield replace(_file(os.path.join(parent, MANIFEST), source, "unknown"), kind="unknown")
            folders.clear()
            continue
        for name in sorted(names):
            path = os.path.join(parent, name)
            if name.startswith(".") or not os.path.isfile(path) or name == "dataset_dict.json":
                continue
            if saved and not name.endswith(".arrow"):
                continue
            yield _file(path, source, "unknown")


def _is_ours(folder: str, names: list[str]) -> bool:
    """Whether remask published this folder: prepared data, documents, a model."""
    if MANIFEST not in names:
        return False
    try:
        with open(os.path.join(folder, MANIFEST), "rb") as file:
            manifest = json.load(file)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and {"stage", "files", "fingerprint"} <= manifest.keys()


def _spooled(stream: BinaryIO, name: str, source: SourceSettings, spool: Path) -> InputFile:
    """A stream can be read once; copied to disk it can be guessed at, read again after a kill, and split."""
    spool.mkdir(parents=True, exist_ok=True)
    kind, compression = kind_of(name)
    head = stream.read(8)
    for mark, packed in ((b"\x1f\x8b", "gz"), (b"BZh", "bz2"), (b"\xfd7zXZ", "xz"), (b"\x28\xb5\x2f\xfd", "zst")):
        compression = packed if head.startswith(mark) else compression
    # A source may name several streams (two pipes of a shell, say); each has a file of its own.
    path = spool / f"{source.name}.{hashlib.sha256(name.encode(errors='backslashreplace')).hexdigest()[:12]}.spooled"
    with path.open("wb") as file:
        file.write(head)
        while block := stream.read(BLOCK):
            file.write(block)
    if source.kind != "auto":
        kind = source.kind
    return InputFile(str(path), name, kind or "text", compression, path.stat().st_size)


# -------------------------------------------------------------------------------------------------- streams


class _Decompressor(Protocol):
    eof: bool
    needs_input: bool
    unused_data: bytes

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class Stream(io.RawIOBase):
    """Decompressed bytes of a file; faults of the file come as `Damaged`, after everything before them."""

    def __init__(self, raw: BinaryIO, compression: str, max_expansion: float, length: int | None = None) -> None:
        self._raw = raw
        self._blocks: Iterator[bytes] = _BLOCKS[compression](raw)
        if length is not None:
            self._blocks = _first_bytes(self._blocks, length)
        self._max_expansion = max_expansion if compression else None
        self._rest = b""
        self._given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = self._next()
        part = self._rest[: len(buffer)]
        self._rest = self._rest[len(part) :]
        buffer[: len(part)] = part
        return len(part)

    def tell(self) -> int:
        """Where the next byte stands in what the file unpacks to."""
        return self._given - len(self._rest)

    def block(self, size: int = BLOCK) -> bytes:
        """The next bytes, at least `size` unless the file ends; empty at its end."""
        parts = [self._rest] if self._rest else []
        have = len(self._rest)
        self._rest = b""
        while have < size:
            try:
                part = self._next()
            except Damaged:
                if not parts:
                    raise
                self._blocks = _again(sys.exc_info()[1])
                break
            if not part:
                break
            parts.append(part)
            have += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _next(self) -> bytes:
        try:
            block = next(self._blocks, b"")
        except (EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError, MemoryError, ValueError) as error:
            raise Damaged("damaged file", f"{type(error).__name__}: {error}"[:200]) from error
        self._given += len(block)
        if self._max_expansion and self._given > _EXPANSION_FROM:
            packed = max(1, self._raw.tell())
            if self._given > self._max_expansion * packed:
                raise Damaged("compression bomb", f"{self._given:,} bytes from {packed:,}")
        return block

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


def _again(error: BaseException | None) -> Iterator[bytes]:
    """An iterator that raises what was held back."""
    assert error is not None
    raise error
    yield b""


def _first_bytes(blocks: Iterator[bytes], length: int) -> Iterator[bytes]:
    while length > 0 and (block := next(blocks, b"")):
        yield block[:length]
        length -= len(block)


def _plain_blocks(raw: BinaryIO) -> Iterator[bytes]:
    while block := raw.read(BLOCK):
        yield block


def _gzip_blocks(raw: BinaryIO) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=raw) as file:
        while block := file.read1(BLOCK):
            yield block


def _member_blocks(raw: BinaryIO, make: Any) -> Iterator[bytes]:
    """bz2 and xz: members one after the other, each block of output bounded."""
    data = raw.read(1 << 16)
    while data:
        unpacker: _Decompressor = make()
        while not unpacker.eof:
            if unpacker.needs_input and not data:
                data = raw.read(1 << 16)
                if not data:
                    raise EOFError("the file ends in the middle")
            block = unpacker.decompress(data, BLOCK)
            data = b""
            if block:
                yield block
        data = unpacker.unused_data.lstrip(b"\0") or raw.read(1 << 16)


def _bz2_blocks(raw: BinaryIO) -> Iterator[bytes]:
    return _member_blocks(raw, bz2.BZ2Decompressor)


def _xz_blocks(raw: BinaryIO) -> Iterator[bytes]:
    return _member_blocks(raw, lambda: lzma.LZMADecompressor(lzma.FORMAT_AUTO, memlimit=_XZ_MEMORY))


def _zstd_blocks(raw: BinaryIO) -> Iterator[bytes]:
    """Frames one after the other. The library's own reader takes a cut-off file for a finished one."""
    factory = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    data = raw.read(_ZSTD_INPUT)
    while data:
        unpacker = factory.decompressobj()
        while not unpacker.eof:
            if not data:
                data = raw.read(_ZSTD_INPUT)
                if not data:
                    raise EOFError("the file ends in the middle")
            unpacked = unpacker.decompress(data)
            data = b""
            for start in range(0, len(unpacked), BLOCK):
                yield unpacked[start : start + BLOCK]
        data = unpacker.unused_data or raw.read(_ZSTD_INPUT)


_BLOCKS = {"": _plain_blocks, "gz": _gzip_blocks, "bz2": _bz2_blocks, "xz": _xz_blocks, "zst": _zstd_blocks}


def open_stream(path: str, compression: str, max_expansion: float, start: int = 0, length: int | None = None) -> Stream:
    """The bytes of a file, or `length` of them from `start`; for text in UTF-16 and the like see `as_utf8`."""
    try:
        raw = open(path, "rb", buffering=0 if not compression else -1)  # noqa: SIM115
    except OSError as error:
        raise Damaged("cannot be read", error.strerror or str(error)) from error
    raw.seek(start)
    return Stream(raw, compression, max_expansion, length)


def as_utf8(stream: Stream) -> Iterator[bytes]:
    """Blocks of text as UTF-8, whichever byte order mark the file starts with (UTF-8's own is left to the reader, so
    that offsets are those of the file)."""
    first = stream.block()
    for mark, encoding in (
        (codecs.BOM_UTF32_LE, "utf-32"),
        (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if first.startswith(mark):
            decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
            while first:
                yield decoder.decode(first).encode("utf-8", "replace")
                first = stream.block()
            yield decoder.decode(b"", final=True).encode("utf-8", "replace")
            return
    yield first
    while block := stream.block():
        yield block


def unpack(job: tuple[InputFile, float, Path]) -> InputFile:
    """A compressed file unpacked on disk, so that it can be split; one that is damaged stays as it is."""
    file, max_expansion, out = job
    if not out.is_file():
        aside = out.with_name(f".{out.name}.partial")
        try:
            with open_stream(file.path, file.compression, max_expansion) as stream, aside.open("wb") as unpacked:
                while block := stream.block():
                    unpacked.write(block)
        except Damaged:
            aside.unlink(missing_ok=True)
            return file
        aside.rename(out)
    return replace(file, path=str(out), compression="", size=out.stat().st_size)
