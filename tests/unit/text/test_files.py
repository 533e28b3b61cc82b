"""Finding files: folders, globs, stdin, compressions; what cannot be found is said."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import sys
from pathlib import Path

import pytest
import zstandard

from remask.artifacts import publish
from remask.errors import DataError, MissingInputError
from remask.text import files
from remask.text.files import find_files, kind_of, open_stream
from remask.text.records import Damaged
from remask.text.settings import SourceSettings

PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstandard.compress}


def names(source: SourceSettings, tmp_path: Path) -> list[str]:
    return [Path(file.path).name for file in find_files(source, tmp_path / "spool")]


def test_kinds_by_name() -> None:
    assert kind_of("a/b.TXT") == ("text", "")
    assert kind_of("dump.xml.bz2") == ("wikipedia", "bz2")
    assert kind_of("x.warc.gz") == ("warc", "gz")
    assert kind_of("x.jsonl.zst") == ("jsonl", "zst")
    assert kind_of("x.pdf") == ("", "")


def test_folders_globs_and_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.jsonl", ".hidden.txt", "sub/.git/d.txt", "e.bin"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    folder = tmp_path / "data"
    assert names(SourceSettings(paths=(str(folder),)), tmp_path) == ["a.txt", "b.txt", "e.bin", "c.jsonl"]
    assert names(SourceSettings(paths=(f"{folder}/*.txt",)), tmp_path) == ["a.txt", "b.txt"]
    assert names(SourceSettings(paths=(f"{folder}/**/*.jsonl",)), tmp_path) == ["c.jsonl"]
    twice = SourceSettings(paths=(f"{folder}/b.txt", f"{folder}/a.txt", f"{folder}/*.txt"))
    assert names(twice, tmp_path) == ["a.txt", "b.txt"]
    kinds = {Path(f.path).name: f.kind for f in find_files(SourceSettings(paths=(str(folder),)), tmp_path)}
    assert kinds == {"a.txt": "text", "b.txt": "text", "e.bin": "unknown", "c.jsonl": "jsonl"}


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="no such file or folder, and no file matches"):
        find_files(SourceSettings(paths=(str(tmp_path / "nothing*"),)), tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingInputError, match="no files there"):
        find_files(SourceSettings(paths=(str(tmp_path / "empty"),)), tmp_path)


def test_several_streams_of_a_source_are_all_read(tmp_path: Path) -> None:
    """`remask prepare <(this) <(that)`: pipes can be read once, and none may take another's place."""
    pipes = []
    for number in range(3):
        reading, writing = os.pipe()
        os.write(writing, f"text of pipe {number}".encode())
        os.close(writing)
        pipes.append(reading)
    found = find_files(SourceSettings(paths=tuple(f"/dev/fd/{pipe}" for pipe in pipes)), tmp_path / "spool")
    for pipe in pipes:
        os.close(pipe)
    assert sorted(Path(file.path).read_text() for file in found) == [f"text of pipe {number}" for number in range(3)]


def test_what_remask_made_is_not_taken_for_text(tmp_path: Path) -> None:
    def fill(folder: Path) -> dict[str, int]:
        (folder / "corpus.train.00000.tokens").write_bytes(bytes(range(1, 100)))
        return {}

    publish(tmp_path / "data" / "prepared", "prepared", fill)
    with pytest.raises(DataError, match="was made by remask"):
        find_files(SourceSettings(paths=(str(tmp_path / "data" / "prepared"),)), tmp_path)
    (tmp_path / "data" / "a.txt").write_text("x")
    (tmp_path / "data" / "other").mkdir()
    (tmp_path / "data" / "other" / "manifest.json").write_text('{"text": "a record of somebody else"}')
    found = find_files(SourceSettings(paths=(str(tmp_path / "data"),)), tmp_path)
    assert [(Path(file.path).parent.name, file.kind) for file in found] == [
        ("data", "text"),
        ("other", "jsonl"),
        ("prepared", "unknown"),  # one drop with its place
    ]


@pytest.mark.parametrize("ending", ["", *PACK])
def test_stdin_plain_or_compressed(ending: str, tmp_path: Path, texts, build, all_texts, monkeypatch) -> None:
    wanted = [next(texts), next(texts)]
    data = "\n\n".join(wanted).encode()
    data = PACK[ending](data) if ending else data

    class Stdin:
        buffer = io.BytesIO(data)

    monkeypatch.setattr(sys, "stdin", Stdin)
    documents = build("-")
    assert all_texts(documents) == wanted
    assert documents.shards[0].place(0) == "stdin:byte 0"


@pytest.mark.parametrize("ending", PACK)
def test_compressed_files(ending: str, tmp_path: Path, texts, build, all_texts) -> None:
    wanted = [next(texts) for _ in range(3)]
    half = "\n\n".join(wanted[:2]).encode() + b"\n\n"
    path = tmp_path / f"a.txt.{ending}"
    path.write_bytes(PACK[ending](half) + PACK[ending](wanted[2].encode()))
    assert all_texts(build(path)) == wanted


@pytest.mark.parametrize("ending", PACK)
def test_a_file_cut_off_gives_what_it_has_and_then_says_so(ending: str, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4000
    path = tmp_path / "a"
    packed = PACK[ending](data)
    path.write_bytes(packed[: len(packed) - 10])
    found: list[bytes] = []
    with open_stream(str(path), ending, 1e9) as stream, pytest.raises(Damaged, match="damaged file"):
        found.extend(iter(stream.block, b""))
    assert data.startswith(b"".join(found))


def test_growth_is_bounded_by_the_setting(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"\0" * (40 << 20)))
    with open_stream(str(path), "gz", 200) as stream, pytest.raises(Damaged, match="compression bomb"):
        list(iter(stream.block, b""))
    with open_stream(str(path), "gz", 2000) as stream:
        assert sum(len(block) for block in iter(stream.block, b"")) == 40 << 20


def test_a_damaged_file_among_good_ones_is_one_drop(tmp_path: Path, texts, build) -> None:
    (tmp_path / "a.txt").write_text(next(texts))
    (tmp_path / "b.txt.gz").write_bytes(b"no gzip at all")
    counts = build(tmp_path).counts
    assert (counts["documents"], counts["dropped"], counts["read"]) == (1, {"damaged file": 1}, 2)


def test_fingerprints_are_of_contents_and_stamps_of_the_last_write(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(files, "WHOLE_BYTES", 100)
    monkeypatch.setattr(files, "END_BYTES", 10)
    source = SourceSettings(paths=(str(tmp_path / "*.txt"),))
    for name, middle in (("small", b"a" * 50), ("large", b"a" * 500)):
        path = tmp_path / f"{name}.txt"
        path.write_bytes(b"begin" * 3 + middle + b"end" * 5)
    large, small = find_files(source, tmp_path / "spool")
    marks = [(file.fingerprint(), file.stamp(tmp_path / "spool")) for file in (large, small)]
    for name in ("small", "large"):
        os.utime(tmp_path / f"{name}.txt", ns=(5, 5))
    assert [file.fingerprint() for file in (large, small)] == [mark for mark, _ in marks], "a copy is the same"
    assert large.stamp(tmp_path / "spool") != marks[0][1]
    for name in ("small", "large"):
        content = bytearray((tmp_path / f"{name}.txt").read_bytes())
        content[30] ^= 1
        (tmp_path / f"{name}.txt").write_bytes(content)
    assert small.fingerprint() != marks[1][0]
    assert large.fingerprint() == marks[0][0], "only the stamp notices this"
    # In the spool, where every attempt writes anew, it is the other way round.
    before = large.stamp(tmp_path)
    os.utime(tmp_path / "large.txt", ns=(7, 7))
    assert large.stamp(tmp_path) == before
