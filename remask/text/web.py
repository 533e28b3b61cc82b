"""Web pages -> their main text: HTML files, and the responses in WARC files (CC-News is such).

Pages come as bytes of any encoding. The extractor is a choice: resiliparse is fast, trafilatura (an extra) precise.
Neither is made for pages that were written to hold it up: what would take the square of its size is refused before.
WARC also carries plain text (WET files). Not here: language and date filters, which all sources share.
"""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

from remask.errors import needs_extra
from remask.streams import Stream, open_stream
from remask.text.records import TOO_SLOW, Damaged, Document, Drop, Portion, Reading

# Extraction takes time quadratic in the depth, in the attributes of a tag, and in the number of paragraphs, so pages
# that are nothing but these are refused. A tag's attributes are compared with each other, those of all <body> too.
_MAX_DEPTH = 1000
_MAX_TAGS = 250_000
_MAX_ATTRIBUTES = 1000
_MAX_PAGE_BYTES = 16 << 20
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
_INSIDE_TAG = re.compile(r"""<[a-zA-Z](?:[^>=]++|=\s*+(?:"[^"]*+"|'[^']*+')?+)*+""")
_QUOTED = re.compile(r"""=\s*+(?:"[^"]*+"|'[^']*+')|/""")
_MERGED_TAG = re.compile(r"<(?:html|body)\b", re.I)
# Elements that are empty, or that close by themselves when the next one opens.
_NO_DEPTH = re.compile(
    r"(?i:area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr|p|li|dt|dd|option|tr|td|th|tbody|thead|tfoot"
    r"|colgroup|html|head|body|script|style)"
)
_RECORD_MARK = b"WARC/1."
_RECENT_BYTES = 1 << 18
_MAX_RESUMES = 100  # in one file
_PAGE_TYPES = ("text/html", "application/xhtml+xml")


def read_html(portion: Portion, reading: Reading) -> Iterator[Document | Drop]:
    """One file, one page."""
    with open_stream(portion.path, portion.compression, reading.source.max_expansion) as stream:
        data = stream.block(_MAX_PAGE_BYTES + 1)
    yield from page(data, "", portion.place, reading)


def page(data: bytes, charset: str, place: str, reading: Reading) -> Iterator[Document | Drop]:
    """The main text of a page as a document."""
    if len(data) > _MAX_PAGE_BYTES:
        yield Drop("too long", place, f"a page over {_MAX_PAGE_BYTES:,} bytes")
        return
    if reading.steps.is_passed_over(len(data)):
        yield Drop(TOO_SLOW, place)
        return
    html = _decoded(data, charset)
    if reason := _reason_to_refuse(html):
        yield Drop(reason, place)
        return
    text = EXTRACTORS[reading.settings.extractor](html)
    if not text.strip():
        yield Drop("no main text", place)
        return
    yield from reading.fitted(text, place)


def _decoded(data: bytes, charset: str) -> str:
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding  # pyrefly: ignore[missing-import]

    return bytes_to_str(data, charset or detect_encoding(data), "replace", ("utf-8", "windows-1252"))


def _reason_to_refuse(html: str) -> str:
    num_tags = html.count("<")
    if num_tags > _MAX_TAGS:
        return "too many tags"
    if num_tags > _MAX_DEPTH and _depth(html) > _MAX_DEPTH:
        return "too deeply nested"
    if len(html) > 2 * _MAX_ATTRIBUTES and _most_attributes(html) > _MAX_ATTRIBUTES:
        return "too many attributes"
    return ""


def _most_attributes(html: str) -> int:
    """Of one tag, or of all that are merged into one, as far as they are long enough to have so many."""
    most = merged = 0
    for match in _INSIDE_TAG.finditer(html):
        is_merged = bool(_MERGED_TAG.match(match[0]))
        if is_merged or len(match[0]) > 2 * _MAX_ATTRIBUTES:
            count = len(_QUOTED.sub("= ", match[0]).split()) - 1
            merged += count if is_merged else 0
            most = max(most, count, merged)
    return most


def _depth(html: str) -> int:
    depth = deepest = 0
    for match in _TAG.finditer(html):
        if not _NO_DEPTH.fullmatch(match[2]):
            depth += -1 if match[1] else 1
            deepest = max(deepest, depth)
    return deepest


def _resiliparse(html: str, main_content: bool = True) -> str:
    from resiliparse.extract.html2text import extract_plain_text  # pyrefly: ignore[missing-import]

    return extract_plain_text(html, main_content=main_content, list_bullets=False, links=False, alt_texts=False)


def _trafilatura(html: str) -> str:
    with needs_extra("html", "reading.extractor trafilatura needs the html extra"):
        import trafilatura
    return trafilatura.extract(html) or ""


EXTRACTORS = {
    "resiliparse": _resiliparse,
    "trafilatura": _trafilatura,
    "all": partial(_resiliparse, main_content=False),
}


# ----------------------------------------------------------------------------------------------------- WARC


def read_warc(portion: Portion, reading: Reading) -> Iterator[Document | Drop]:
    """Responses and conversions (plain text); other records are about the crawl, not of it."""
    warc = _fastwarc()
    wanted = warc.WarcRecordType.response | warc.WarcRecordType.conversion
    with open_stream(portion.path, portion.compression, reading.source.max_expansion) as stream:
        source, passed = _Readable(stream), -1
        for _ in range(_MAX_RESUMES):
            try:
                for record in warc.ArchiveIterator(source, record_types=wanted, stream_detect=False):
                    passed = max(passed, record.stream_pos)
                    yield from _record(record, portion, reading)
                return
            except (OSError, ValueError, RuntimeError) as error:
                where = portion.at(f"after byte {max(0, passed)}")
                yield Drop("damaged record", where, f"{type(error).__name__}: {error}"[:200])
            passed = source.resume(passed + 1)
            if passed < 0:
                return
        raise Damaged("damaged file", f"over {_MAX_RESUMES} damaged records")


def _fastwarc() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of its own old names, while it is imported
        import fastwarc.warc

    return fastwarc.warc


class _Readable:
    """The three calls that fastwarc makes (it stops hard on a stream that cannot say where it is), and going on after
    garbage, where it gives up."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._queue = self._recent = b""  # still to be given again; given last
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        size = size if size > 0 else 1 << 16
        if self._queue:
            data, self._queue = self._queue[:size], self._queue[size:]
        else:
            data = self._stream.read(size) or b""
        self._position += len(data)
        self._recent = (self._recent + data)[-_RECENT_BYTES:]
        return data

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._position

    def resume(self, after: int) -> int:
        """Go to the next thing that looks like a record at or past `after`; where it stands, or -1."""
        data, start = self._recent + self._queue, self._position - len(self._recent)
        place = data.find(_RECORD_MARK, max(0, after - start))
        while place < 0:
            more = self._stream.read(1 << 16)
            if not more:
                return -1
            kept = data[1 - len(_RECORD_MARK) :]
            start += len(data) - len(kept)
            data = kept + more
            place = data.find(_RECORD_MARK)
        self._queue, self._recent, self._position = data[place:], b"", start + place
        return self._position


def _record(record: Any, portion: Portion, reading: Reading) -> Iterator[Document | Drop]:
    address = record.headers.get("WARC-Target-URI") or ""
    place = portion.at(f"byte {record.stream_pos}" + (f" {address}" if address else ""))
    if reason := reading.outside_dates(record.headers.get("WARC-Date")):
        yield Drop(reason, place, str(record.headers.get("WARC-Date"))[:40])
        return
    kind = (record.http_content_type or record.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
    status = record.http_headers.status_code if record.http_headers else None
    if kind not in (*_PAGE_TYPES, "text/plain") or status not in (None, 200):
        yield Drop("not a page", place, f"{kind or 'no type'}, status {status}")
        return
    data = record.reader.read(_MAX_PAGE_BYTES + 1)
    encoding = (record.http_headers.get("Content-Encoding") or "" if record.http_headers else "").lower()
    if encoding in ("gzip", "x-gzip", "deflate") and data.lstrip()[:1] != b"<":
        try:
            data = zlib.decompressobj(47).decompress(data, _MAX_PAGE_BYTES + 1)
        except zlib.error as error:
            yield Drop("damaged page", place, str(error))
            return
    if kind == "text/plain":
        decoded = reading.decode(data, place)
        yield from [decoded] if isinstance(decoded, Drop) else reading.fitted(decoded.text, place)
    else:
        yield from page(data, record.http_charset or "", place, reading)
