"""FAULTS row 14: a corpus of damaged, hostile and odd files. Kept + dropped = read, every drop has reason and place,
memory stays under 512 MB, nothing crashes or hangs. Every file says how many records it should give."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import json
import lzma
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from remask.data.tokens import Tokens
from remask.documents import one_line, read_documents

TEXT = (
    "river stone window garden letter winter morning silver engine harbour village doctor summer market bridge forest "
    "mountain question answer teacher brother captain island journey kitchen library machine number painter shadow"
)
WORDS = TEXT.split()
MAX_MEGABYTES = 512

# (name, contents, documents kept, records dropped); None: not fixed by the format, but at least one record is counted.
File = tuple[str, bytes, int | None, int | None]


class Maker:
    """Text that is never the same twice."""

    def __init__(self) -> None:
        self.random = random.Random(7)
        self.count = 0

    def text(self, num_words: int = 60) -> str:
        self.count += 1
        return f"record {self.count} " + " ".join(self.random.choice(WORDS) for _ in range(num_words)) + "."

    def noise(self, size: int) -> bytes:
        return self.random.randbytes(size)


def plain_files(make: Maker) -> Iterator[File]:
    t = make.text
    yield "empty.txt", b"", 0, 1
    yield "only_newlines.txt", b"\n" * 5000, 0, 1
    yield "only_spaces.txt", b" " * 50_000, 0, 1
    yield "only_nul.txt", b"\0" * 100_000, 0, 1
    yield "nul_inside.txt", (t() + "\0\0" + t()).encode(), 1, 0
    yield "bad_utf8.txt", t().encode() + b"\xff\xfe\xfa" + t().encode(), 1, 0
    yield "cut_utf8.txt", t().encode() + "é".encode()[:1], 1, 0
    yield "overlong_utf8.txt", t().encode() + b"\xc0\xaf\xed\xa0\x80" + t().encode(), 1, 0
    yield "latin1.txt", (t() + " caf\u00e9 ").encode("latin-1"), 1, 0
    yield "noise.txt", make.noise(60_000).replace(b"\n", b"?").replace(b"\r", b"?"), None, None
    yield "bom.txt", b"\xef\xbb\xbf" + t().encode(), 1, 0
    yield "utf16.txt", (t() + "\n\n" + t()).encode("utf-16"), 2, 0
    yield "utf32.txt", t().encode("utf-32"), 1, 0
    yield "crlf.txt", (t() + "\r\n" + t() + "\r\n\r\n" + t()).encode(), 2, 0
    yield "cr.txt", (t() + "\r\r" + t()).encode(), 2, 0
    yield "mixed_newlines.txt", (t() + "\n\r\n" + t() + "\r\n \t\r\n" + t() + "\r\r" + t()).encode(), 4, 0
    yield "no_last_newline.txt", (t() + "\n\n" + t()).encode(), 2, 0
    yield "symbols.txt", b"#$%^&*()!@ " * 300 + make.noise(300).hex().encode()[:40], 0, 1
    yield "one_letter.txt", b"a" * 3_000_000, 0, 1
    yield "one_word.txt", b"word " * 400_000, 0, 1
    yield "same_line.txt", (t(12) + "\n").encode() * 400, 0, 1
    yield "duplicate_a.txt", b"This very text stands in two files, so one of them has to go, whoever reads it.", 1, 0
    yield "duplicate_b.txt", b"This very text stands in two files, so one of them has to go, whoever reads it.", 0, 1
    yield "quotes.txt", b'"' * 300_000 + b"\n" + b"(" * 300_000, 0, 1
    yield "spaces_in_lines.txt", b"\n\n".join(b" " * 100_000 + t().encode() for _ in range(3)), 3, 0
    yield "long_document.txt", "\n".join(t() for _ in range(9000)).encode(), 1, 0
    yield (
        "odd\nname\udcff.txt".encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape"),
        t().encode(),
        1,
        0,
    )
    yield "zero_width.txt", ("\u200b\u200d\u2060" * 50 + t()).encode(), 1, 0
    yield "right_to_left.txt", ("\u202e" + t() + " שלום עולם").encode(), 1, 0
    yield "combining.txt", (t() + "e" + "\u0301" * 20_000).encode(), 0, 1
    yield "unknown.pdf", b"%PDF-1.4 " + make.noise(300), 0, 1
    yield "no_ending", t().encode(), 0, 1


def compressed_files(make: Maker) -> Iterator[File]:
    t = make.text
    two = (t() + "\n\n" + t()).encode()
    yield "good.txt.gz", gzip.compress(two), 2, 0
    yield "members.txt.gz", gzip.compress((t() + "\n\n").encode()) + gzip.compress(t().encode()), 2, 0

    def long() -> bytes:
        return "\n\n".join(t() for _ in range(200)).encode()

    for name, pack in (
        ("gz", gzip.compress),
        ("bz2", bz2.compress),
        ("xz", lzma.compress),
        ("zst", zstandard.compress),
    ):
        packed = pack(long())
        yield f"whole.txt.{name}", pack("\n\n".join(t() for _ in range(3)).encode()), 3, 0
        yield f"truncated.txt.{name}", packed[: len(packed) // 2], None, None
        yield f"empty.txt.{name}", pack(b""), 0, 1
        yield f"no_bytes.txt.{name}", b"", 0, 1
        yield f"not_packed.txt.{name}", t().encode(), 0, 1
        yield f"bomb.txt.{name}", pack(b"\0" * (40 << 20)), None, None
    flipped = bytearray(gzip.compress(long()))
    flipped[len(flipped) // 2] ^= 0xFF
    yield "flipped.txt.gz", bytes(flipped), None, None
    yield "bad_checksum.txt.gz", gzip.compress((t() + t()).encode())[:-8] + b"\0" * 8, None, None
    yield "garbage_behind.txt.gz", gzip.compress((t() + t()).encode()) + b"garbage", None, None
    yield "wide_window.txt.zst", b"\x28\xb5\x2f\xfd\x00\xf8\x00\x00\x00", 0, 1


def table_files(make: Maker) -> Iterator[File]:
    t = make.text
    good = json.dumps({"text": t()})
    yield "good.jsonl", f"{good}\n{json.dumps({'text': t()})}\n".encode(), 2, 0
    bad_lines = [
        "{",
        "[]",
        "12",
        "null",
        '{"text": 5}',
        '{"text": null}',
        '{"text": "\\ud800"}',
        "not json",
        '{"a": 1}',
    ]
    yield "bad.jsonl", "\n".join([json.dumps({"text": t()}), *bad_lines]).encode(), 1, 9
    yield "deep.jsonl", b"[" * 200_000 + b"\n" + json.dumps({"text": t()}).encode(), 1, 1
    yield "bad_utf8.jsonl", b'{"text": "' + t().encode() + b'\xff"}\n', 1, 0
    yield "wrong_columns.jsonl", b"".join(json.dumps({"body": t()}).encode() + b"\n" for _ in range(3)), 0, 3
    yield "cut.jsonl", json.dumps({"text": t()}).encode()[:50], 0, 1
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["id", "text"])
    for number in range(3):
        writer.writerow([number, f'{t()} "quoted", with\nnewline {t()}'])
    yield "good.csv", table.getvalue().encode(), 3, 0
    yield "wrong_columns.csv", b"id,body\n1,x\n", 0, 1
    yield "ragged.csv", f"id,text\n1,{t()}\n2\n3,{t()},4\n".encode(), 1, 2
    yield "open_quote.csv", f'id,text\n1,"{t()}\n2,{t()}\n'.encode(), 1, 0
    yield "nul.csv", f"id,text\n1,{t()}\0\0{t()}\n".encode(), 1, 0
    yield "good.tsv", f'text\tlabel\n{t()}\t1\n"{t()}\t0\n'.encode(), 2, 0
    yield "header_only.csv", b"id,text\n", 0, 1
    rows = pa.table({"text": [t() for _ in range(4)], "n": [1, 2, 3, 4]})
    buffer = io.BytesIO()
    pq.write_table(rows, buffer)
    yield "good.parquet", buffer.getvalue(), 4, 0
    other = io.BytesIO()
    pq.write_table(pa.table({"text": [t() for _ in range(4)]}), other)
    yield "truncated.parquet", other.getvalue()[:-20], 0, 1
    yield "head_only.parquet", other.getvalue()[:4], 0, 1
    yield "noise.parquet", b"PAR1" + make.noise(4000) + b"PAR1", 0, 1
    wrong = io.BytesIO()
    pq.write_table(pa.table({"body": ["x"]}), wrong)
    yield "wrong_columns.parquet", wrong.getvalue(), 0, 1
    numbers = io.BytesIO()
    pq.write_table(pa.table({"text": [1, 2]}), numbers)
    yield "numbers.parquet", numbers.getvalue(), 0, 1
    strings = pa.array([t().encode(), b"\xff\xfe bad " + t().encode(), None, b""], pa.binary())
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, pa.schema([("text", pa.binary())])) as stream:
        stream.write_batch(pa.record_batch([strings], names=["text"]))
    yield "bad_utf8.arrow", sink.getvalue(), 2, 2
    yield "truncated.arrow", sink.getvalue()[: len(sink.getvalue()) // 2], 0, 1
    yield "noise.arrow", make.noise(3000), 0, 1


def web_files(make: Maker) -> Iterator[File]:
    t = make.text

    def html(body: str) -> bytes:
        return f"<html><body><article><p>{body}</p></article></body></html>".encode()

    def record(body: bytes, kind: str = "response", length: int | None = None, date: str = "2017-01-02") -> bytes:
        head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:1>\r\nWARC-Target-URI: http://a.b/\r\n"
        head += f"WARC-Date: {date}T00:00:00Z\r\nContent-Type: application/http; msgtype=response\r\n"
        return f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body + b"\r\n\r\n"

    ok = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
    yield "good.html", html(t()), 1, 0
    yield "empty.html", b"", 0, 1
    yield "script_only.html", b"<html><script>alert(1)</script></html>", 0, 1
    yield "deep.html", b"<div>" * 100_000 + t().encode(), 0, 1
    yield "unclosed.html", b"<html><body><p>" + t().encode() + b"<a <b <<<", 1, 0
    yield "noise.html", make.noise(20_000), None, None
    yield "good.warc", record(b"x", "warcinfo") + record(ok + html(t())) + record(ok + html(t())), 2, 0
    yield "members.warc.gz", gzip.compress(record(ok + html(t()))) + gzip.compress(record(ok + html(t()))), 2, 0
    yield "garbage.warc", record(ok + html(t())) + make.noise(2000) + record(ok + html(t())), 2, 1
    yield "marks.warc", record(ok + html(t())) + b"WARC/1.0 x " * 20, None, None
    yield "noise.warc", make.noise(50_000), 0, 1
    yield "wrong_length.warc", record(ok + html(t()), length=10**12), None, None
    yield "negative_length.warc", record(ok + html(t()), length=-5), None, None
    not_found = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\n\r\n"
    image = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n"
    yield "other_types.warc", record(not_found + html(t())) + record(image + b"\x89PNG"), 0, 2
    gzipped = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\n\r\n"
    yield "encoded.warc", record(gzipped + gzip.compress(html(t()))) + record(gzipped + b"\x1f\x8bbroken"), 1, 1
    page = "<page><title>{}</title><ns>{}</ns><id>{}</id>{}<revision><id>9</id><text>{}</text></revision></page>"
    pages = page.format("A", 0, 1, "", t()) + page.format("B", 0, 2, '<redirect title="A" />', "#REDIRECT [[A]]")
    pages += page.format("Talk:A", 1, 3, "", t())
    yield "good.xml.bz2", bz2.compress(f"<mediawiki>{pages}</mediawiki>".encode()), 1, 2
    yield "cut.xml", f"<mediawiki>{page.format('C', 0, 4, '', t())}<page><title>D".encode(), 1, 1
    laughs = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><mediawiki>&b;</mediawiki>'
    yield "entities.xml", laughs.encode(), 0, 1
    nested = "{{" * 50_000 + t() + "}}" * 10 + "[[" * 50_000
    yield "nested.xml", f"<mediawiki>{page.format('E', 0, 5, '', nested)}</mediawiki>".encode(), 0, 1


RUNNER = """
import json, sys
from pathlib import Path
from remask.text.build import build_documents
from remask.text.settings import TextSettings
settings, out = TextSettings.model_validate_json(sys.argv[1]), Path(sys.argv[2])
build_documents(settings, out, workers=int(sys.argv[3]))
# Not getrusage: that counts what the parent held when it forked.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"megabytes": int(peak.split()[1]) // 1024}))
"""


def run(settings: dict, out: Path, workers: int = 1) -> int:
    """Build in a process of its own, so that its memory can be measured; the number is its peak in megabytes."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUNNER, json.dumps(settings), str(out), str(workers)],
        capture_output=True, text=True, timeout=280, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)["megabytes"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[File]]:
    folder = tmp_path_factory.mktemp("torture") / "corpus"
    folder.mkdir()
    make = Maker()
    files = [*plain_files(make), *compressed_files(make), *table_files(make), *web_files(make)]
    for name, data, _, _ in files:
        (folder / name).write_bytes(data)
    os.symlink(folder / "missing", folder / "dangling.txt")
    os.symlink(folder, folder / "loop")
    os.mkfifo(folder / "pipe.txt")
    return folder, files


def settings_for(folder: Path) -> dict:
    return {"sources": [{"name": "torture", "paths": [str(folder)], "layout": "blank"}], "heldout_fraction": 0.2}


@pytest.fixture(scope="module")
def built(corpus: tuple[Path, list[File]], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    out = tmp_path_factory.mktemp("built") / "documents"
    return out, run(settings_for(corpus[0]), out)


def file_of(place: str, names: set[str], folder: Path) -> str:
    """The file that a place names."""
    for name in sorted(names, key=len, reverse=True):
        if place.startswith(str(folder / name)):
            return name
    raise AssertionError(f"{place!r} names no file of the corpus")


def test_everything_is_kept_or_dropped_with_a_reason_and_a_place(corpus, built) -> None:
    folder, files = corpus
    out, _ = built
    assert len(files) >= 60
    documents = read_documents(out, verify=True)
    names = {one_line(name) for name, _, _, _ in files}
    kept = Counter(
        file_of(shard.place(index), names, folder) for shard in documents.shards for index in range(len(shard))
    )
    drops = [json.loads(line) for line in (out / "drops.jsonl").read_text().splitlines()]
    assert all(drop["reason"] and drop["place"] for drop in drops)
    dropped = Counter(file_of(drop["place"], names, folder) for drop in drops)
    counts = documents.counts
    assert kept.total() == counts["documents"]
    assert dropped.total() == sum(counts["dropped"].values())
    assert counts["documents"] + sum(counts["dropped"].values()) == counts["read"]
    found = {name: (kept[one_line(name)], dropped[one_line(name)]) for name, _, _, _ in files}
    assert all(sum(pair) >= 1 for pair in found.values()), "a file is not accounted for"
    expected = {name: (num_kept, num_dropped) for name, _, num_kept, num_dropped in files if num_kept is not None}
    assert {name: found[name] for name in expected} == expected


def test_memory_is_bounded(built) -> None:
    assert built[1] < MAX_MEGABYTES


def test_the_same_bytes_from_two_workers(corpus, built, tmp_path: Path) -> None:
    run(settings_for(corpus[0]), tmp_path / "documents", workers=2)
    assert (tmp_path / "documents" / "manifest.json").read_bytes() == (built[0] / "manifest.json").read_bytes()


def test_kept_and_dropped_are_read_through_the_whole_of_prepare(corpus, built, tmp_path: Path) -> None:
    """From the command line to token shards: the same counts as of the text stage alone, and every kept document is
    there in tokens."""
    words = [str(corpus[0]), "--out", str(tmp_path / "out"), "--vocab-size", "400", "--workers", "1", "--json"]
    words += ["--set", "text.sources.layout=blank", "--set", "text.heldout_fraction=0.2"]
    done = subprocess.run(
        [sys.executable, "-m", "remask", "prepare", *words],
        capture_output=True, text=True, timeout=280, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert result["documents"] + sum(result["dropped"].values()) == result["read"]
    expected = read_documents(built[0]).counts
    assert {key: result[key] for key in ("read", "documents", "dropped")} == {
        key: expected[key] for key in ("read", "documents", "dropped")
    }
    drops = [json.loads(line) for line in (tmp_path / "out" / "drops.jsonl").read_text().splitlines()]
    assert Counter(drop["reason"] for drop in drops) == result["dropped"]
    assert all(drop["place"] for drop in drops)
    lengths = []
    for split in ("train", "heldout"):
        for source in Tokens.open(tmp_path / "out", split, verify=True).sources.values():
            lengths += [int(b - a) for a, b in itertools.pairwise(source.document_offsets)]
    assert len(lengths) == result["documents"]
    assert min(lengths) > 0


GIBIBYTE = 1 << 30


@pytest.fixture(scope="module")
def long_line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made as a stream."""
    path = tmp_path_factory.mktemp("long") / "line.txt.zst"
    block = " ".join(random.Random(1).choice(WORDS) for _ in range(30_000)).encode() + b" "
    with path.open("wb") as raw, zstandard.ZstdCompressor(level=1).stream_writer(raw) as file:
        for _ in range(GIBIBYTE // len(block) + 1):
            file.write(block)
        file.write(b"\nThe line after it is an ordinary one and has to come through all the same.")
    return path


@pytest.mark.parametrize("choice", ["cut", "drop"])
def test_a_line_of_a_gibibyte(choice: str, long_line: Path, tmp_path: Path) -> None:
    """1 GiB comes out of some kilobytes, so the guard against such files is set aside here."""
    source = {"name": "long", "paths": [str(long_line)], "layout": "line", "max_expansion": 1e9}
    settings = {
        "sources": [source],
        "reading": {"long_documents": choice},
        "cleaning": {"max_compression": 2.0},
        "heldout_fraction": 0.0,
    }
    assert run(settings, tmp_path / "out") < MAX_MEGABYTES
    documents = read_documents(tmp_path / "out")
    assert documents.counts["documents"] == 1
    assert documents.shards[0].text(0).startswith("The line after it")
    if choice == "drop":
        assert documents.counts["dropped"] == {"too long": 1}
    else:
        assert documents.counts["dropped"] == {"repetition": documents.counts["read"] - 1}
        assert documents.counts["read"] - 1 >= GIBIBYTE / 8_000_000
        assert documents.counts["changed"] == {"too long: cut": 1}
