"""Files -> streams of bytes, plain or compressed; compression goes by the name.

A stream gives what it can of a damaged file and then raises `Damaged`; it never holds more than a few megabytes,
whatever the compressed bytes claim to hold. Also here: text in other encodings as UTF-8. Not here: what the bytes mean
(tables, text/), which files there are (text/files).
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO

import zstandard

COMPRESSIONS = {".gz": "gz", ".bgz": "gz", ".bz2": "bz2", ".xz": "xz", ".lzma": "xz", ".zst": "zst", ".zstd": "zst"}
BLOCK = 1 << 20
UTF8 = "utf-8"
_XZ_MEMORY = 200 << 20
_ZSTD_WINDOW = 1 << 27
# A zstd block of 4 bytes can stand for 128 KiB, so this much input is at most 64 MiB of output.
_ZSTD_INPUT = 2048
# Growth is judged only beyond this many bytes: short files of one repeated word are no attack.
_EXPANSION_FROM = 16 << 20


class Damaged(Exception):
    """A file that cannot be read on from here; what came before it stands."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


def split_name(name: str) -> tuple[str, str]:
    """(ending, compression) of a file's name, in small letters; the ending is the one under a compressing one."""
    stem, ending = os.path.splitext(name.lower())
    compression = COMPRESSIONS.get(ending, "")
    return (os.path.splitext(stem)[1] if compression else ending), compression


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


def _member_blocks(raw: BinaryIO, make: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]) -> Iterator[bytes]:
    """bz2 and xz: members one after the other, each block of output bounded."""
    data = raw.read(1 << 16)
    while data:
        unpacker = make()
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


_BLOCKS: dict[str, Callable[[BinaryIO], Iterator[bytes]]] = {
    "": _plain_blocks,
    "gz": _gzip_blocks,
    "bz2": partial(_member_blocks, make=bz2.BZ2Decompressor),
    "xz": partial(_member_blocks, make=partial(lzma.LZMADecompressor, lzma.FORMAT_AUTO, memlimit=_XZ_MEMORY)),
    "zst": _zstd_blocks,
}


def open_stream(path: str, compression: str, max_expansion: float, start: int = 0, length: int | None = None) -> Stream:
    """The bytes of a file, or `length` of them from `start`; for text in UTF-16 and the like see `as_utf8`."""
    try:
        raw = open(path, "rb", buffering=0 if not compression else -1)  # noqa: SIM115
    except OSError as error:
        raise Damaged("cannot be read", error.strerror or str(error)) from error
    raw.seek(start)
    return Stream(raw, compression, max_expansion, length)


def as_utf8(stream: Stream, encoding: str = UTF8) -> Iterator[bytes]:
    """Blocks of text as UTF-8: by the byte order mark that the file starts with, else from `encoding`. UTF-8's own mark
    is left to the reader, so that offsets are those of the file. Bytes that are no text in `encoding` stay as they
    are, which is no UTF-8 either: the reader of the records decides about them."""
    first = stream.block()
    errors = "surrogateescape"
    for mark, wide in _WIDE_MARKS:
        if first.startswith(mark):
            encoding, errors = wide, "replace"
            break
    if encoding == UTF8:
        yield first
        yield from iter(stream.block, b"")
        return
    decoder = codecs.getincrementaldecoder(encoding)(errors=errors)
    while first:
        yield decoder.decode(first).encode(UTF8, errors)
        first = stream.block()
    yield decoder.decode(b"", final=True).encode(UTF8, errors)


# UTF-32's little-endian mark begins with UTF-16's: it must be tried first.
_WIDE_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
