"""Inputs whose time could grow faster than their size: the shapes that make parsers and patterns go back.

In: a kind and a seed. Out: as many different inputs as asked for, each about `size` bytes: one piece again and again,
a piece that opens and never closes, two pieces in turn, a long run between two marks, many different names. The
pieces are those on which the grammars of each reader turn. Not here: what reads them (test_slow_inputs.py).
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

SIGNS = [" ", "\t", "\n", "\r", "\r\n", "\0", ".", "!", "?", "...", ",", ";", ":", "-", "'", '"', "(", ")", "[", "]"]
SIGNS += ["{", "}", "<", ">", "=", "|", "&", "#", "*", "_", "/", "\\", "«", "»", "“", "”", "„", "。", "！", "「", "」"]
LETTERS = ["a", "A", "1", "0", "é", "ß", "İ", "ﬃ", "ﷺ", "文", "あ", "한", "\u1100", "\u1161", "\u11a8", "ا", "ש", "😀"]
MARKS = ["\u0300", "\u0323", "\u0345", "\u0f74", "\u0334", "\u05b0", "\u3099", "\u200d", "\u200b", "\ufeff", "\u202e"]
WORDS = [
    "Mr. ",
    "e.g. ",
    "U.S.A. ",
    "http://a.b/c ",
    "[1]",
    "a. ",
    "1. ",
    "No. 1 ",
    "word ",
    "Dr.",
    "a@b.c ",
    " .",
    "?!",
]
TEXT = [*SIGNS, *LETTERS, *MARKS, *WORDS]
TAGS = "a b i p div span table tr td ul li dd dt h1 font nobr form button select option svg math template frameset body"
TAGS += " html script style textarea title pre code article main section header footer nav br hr img input iframe em x"
HTML = [*(f"<{tag}>" for tag in TAGS.split()), *(f"</{tag}>" for tag in TAGS.split())]
HTML += ["<!--", "-->", "<![CDATA[", "]]>", "<!DOCTYPE ", "<?", "&amp", "&#", "&notit;", "x", " ", "\n", "<", ">", '"']
MARKUP = ["{{", "}}", "{|", "\n|}", "[[", "]]", "[//", "[http://a ", "]", "''", "'''''", "=", "==", "\n=", "\n*", "\n|"]
MARKUP += [
    "\n!",
    "<ref>",
    "<ref ",
    "</ref>",
    "<math>",
    "<br ",
    "<a ",
    "<!--",
    "-->",
    "(",
    ")",
    "（",
    ",",
    "&amp;",
    "__A",
]
MARKUP += ["__A", "File:", ":", "|", "http://", "&#", "\n", " ", "\t", "\xa0", "x", "文", "/>", "<source", "__NOTOC__"]


def strings(pieces: list[str], count: int, size: int, seed: int) -> Iterator[str]:
    """`count` strings of about `size` bytes; every piece is repeated alone before they are mixed."""
    draw = random.Random(seed)
    for number in range(count):
        a, b, c = (draw.choice(pieces) for _ in range(3))
        if number < len(pieces):
            a, shape = pieces[number], 0
        else:
            shape = draw.randrange(6)
        repeated = size // max(1, len((a + b).encode())) + 1
        if shape == 0:
            yield (a * (size // max(1, len(a.encode())) + 1)) + "x"
        elif shape == 1:
            yield (a + b) * repeated
        elif shape == 2:
            yield a * (repeated // 2) + b * (repeated // 2)
        elif shape == 3:
            yield c + a * repeated + b
        elif shape == 4:
            yield "".join(f"{a}{i:x}{b}" for i in range(size // (len((a + b).encode()) + 5) + 1))
        else:
            some = draw.sample(pieces, 5)
            yield "".join(draw.choices(some, k=size // (sum(len(p.encode()) for p in some) // 5 + 1)))


def texts(count: int, size: int) -> Iterator[bytes]:
    for text in strings(TEXT, count, size, 1):
        yield text.encode()


def pages(count: int, size: int) -> Iterator[bytes]:
    """HTML. The first ones are those that are known to take the square of their size without a guard."""
    known: list[Callable[[int], str]] = [
        lambda n: "<p " + " ".join(f"a{i:x}=1" for i in range(n // 9)) + ">words</p>",
        lambda n: "<p " + " ".join(f'a{i:x}=">"' for i in range(n // 11)) + ">words</p>",
        lambda n: "<p " + " ".join(f"a{i:x}" for i in range(n // 7)) + ">words</p>",
        lambda n: "".join(f"<body a{i:x}=1>" for i in range(n // 15)) + "words",
        lambda n: "".join(f"<b id={i:x}>" for i in range(900)) + "<p>x" * (n // 4),
        lambda n: "<div>" * 900 + "</p>" * (n // 4),
        lambda n: "<p>x" * (n // 4),
        lambda n: ("<div>" * 900 + "x" + "</div>" * 900) * (n // 9900 + 1),
        lambda n: "<div>" * (n // 5),
    ]
    for page in known[:count]:
        yield page(size).encode()
    for page in strings(HTML, count - len(known), size, 2):
        yield b"<html><body><article><p>A page.</p>" + page.encode()


def dumps(count: int, size: int) -> Iterator[bytes]:
    """Wikipedia's XML with an article of such markup."""
    escape = str.maketrans({"<": "&lt;", ">": "&gt;", "&": "&amp;", "\0": "", "\ufffe": "", "\uffff": ""})
    for markup in strings(MARKUP, count, size, 3):
        page = f"<page><title>A</title><ns>0</ns><id>1</id><revision><text>{markup.translate(escape)}</text></revision>"
        yield f"<mediawiki>{page}</page></mediawiki>".encode()


def archives(count: int, size: int) -> Iterator[bytes]:
    """WARC: pages as above, headers without end, marks of records in garbage."""
    head = "WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.b/\r\nWARC-Date: 2017-01-02T00:00:00Z\r\n"
    ok = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
    known = [
        head.encode() + b"A: b\r\n" * (size // 6),
        head.encode() + b"A:" + b" " * size + b"b\r\n\r\n",
        b"WARC/1." * (size // 7),
        b"WARC/1.0\r\n" * (size // 10),
        (head + "Content-Length: 0\r\n\r\n\r\n\r\n").encode() * (size // 130),
        (head + "Content-Length: -1\r\n\r\n").encode() * (size // 130),
        b"\r\n" * (size // 2),
    ]
    yield from known[:count]
    for body in pages(count - len(known), size):
        body = ok + body
        yield (
            f"{head}Content-Type: application/http; msgtype=response\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )


def tables(count: int, size: int) -> Iterator[bytes]:
    """CSV: quotes that open and close, and columns without end."""
    yield from (
        b"text\n" + text.encode() for text in strings([*SIGNS, '""', '","', '"\n', "a", ",", '"'], count, size, 4)
    )


def json_lines(count: int, size: int) -> Iterator[bytes]:
    """JSON lines: depth, long numbers, escapes, many keys."""
    pieces = [
        "[",
        "{",
        '{"a":',
        '"',
        "\\",
        "\\u",
        "\\ud800",
        "1",
        "1e",
        "-",
        ".",
        ",",
        ":",
        "}",
        "]",
        "\n",
        " ",
        '"a":1,',
    ]
    for text in strings(pieces, count, size, 5):
        yield b'{"text": "some words", "other": ' + text.encode() + b"}\n" + b'{"text": "the words after it"}\n'


def parquet_files(count: int, size: int) -> Iterator[bytes]:
    """Columns that pack well: one value many times, nothing at all, many short pages."""
    draw = random.Random(6)
    for text in strings(TEXT, count, size // 8, 6):
        rows = draw.choice([1, 8, 100, 10_000])
        values = [draw.choice([text, None, "", text[:8]])] * rows if draw.random() < 0.5 else [text[:8]] * rows
        buffer = io.BytesIO()
        pages_of = draw.choice([1024, 1 << 20])
        table = pa.table({"text": pa.array(values, pa.large_string())})
        pq.write_table(table, buffer, compression=draw.choice(["none", "snappy", "zstd"]), data_page_size=pages_of)
        yield buffer.getvalue()


KINDS: dict[str, tuple[str, Callable[[int, int], Iterator[bytes]]]] = {
    "text": (".txt", texts),
    "html": (".html", pages),
    "wikipedia": (".xml", dumps),
    "warc": (".warc", archives),
    "csv": (".csv", tables),
    "jsonl": (".jsonl", json_lines),
    "parquet": (".parquet", parquet_files),
}
