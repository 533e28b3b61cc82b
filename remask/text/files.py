"""Paths, folders, globs, stdin -> the sorted list of files of a source.

Kind and compression go by the name. Not here: the bytes of a file (streams) and what they mean (plain, tables, web).
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from remask.artifacts import MANIFEST, sha256_of
from remask.documents import one_line
from remask.errors import DataError, MissingInputError
from remask.streams import BLOCK, Damaged, open_stream, split_name
from remask.tables import TABLE_KINDS, is_json_lines, is_saved_dataset
from remask.text.settings import SourceSettings

KINDS = {
    ".txt": "text", ".text": "text", ".md": "text", ".rst": "text", ".tokens": "text", ".raw": "text",
    **TABLE_KINDS,
    ".html": "html", ".htm": "html", ".xhtml": "html",
    ".xml": "wikipedia", ".warc": "warc",
}  # fmt: skip
WHOLE_BYTES, END_BYTES = 1 << 20, 1 << 16  # read for a fingerprint: of a small file, of each end of a large one


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
    ending, compression = split_name(name)
    return KINDS.get(ending, ""), compression


def find_files(source: SourceSettings, spool: Path) -> list[InputFile]:
    """All files of a source, sorted, each once; kind "unknown" marks those whose ending says nothing."""
    files: dict[str, InputFile] = {}
    for path in sorted(set(source.paths)):
        for file in _expand(path, source, spool):
            files.setdefault(file.path, file)
    if not files:
        raise MissingInputError(f"{', '.join(source.paths)}: no files there")
    return [files[path] for path in sorted(files)]


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
    if kind == "json" and is_json_lines(path, compression, source.max_expansion):
        kind = "jsonl"  # which can be split
    # Absolute, since workers on other machines start elsewhere; its place is what the user called it.
    return InputFile(os.path.abspath(path), one_line(path), kind or otherwise, compression, os.stat(path).st_size)


def _folder(folder: str, source: SourceSettings) -> Iterator[InputFile]:
    for parent, folders, names in os.walk(folder):
        saved = is_saved_dataset(parent)  # its JSON files are no data
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
