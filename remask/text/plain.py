"""Plain text -> documents: a blank line ends one, a line is one, a file is one, or a WikiText title begins one.

Bytes come in blocks and go out as documents; neither a line nor a document is ever held beyond the maximum size.
Where the layout is not said it is guessed from the beginnings of the files, the same way every time. Places are byte
offsets in the (decompressed) file, so they do not depend on how the file was split over workers.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from remask.streams import UTF8, as_utf8, open_stream
from remask.text.files import InputFile
from remask.text.records import Damaged, Document, Drop, Portion, Reading, cut_point
from remask.text.settings import Layout

_NEWLINE = rb"(?>\r\n|\r|\n)"
# One newline and at least one line of nothing but space; possessive groups keep \r\n from being two newlines.
BLANK_LINE = re.compile(_NEWLINE + rb"(?:[ \t\x0b\x0c]*" + _NEWLINE + rb")+")
LINE_END = re.compile(_NEWLINE)
# The same where there is no \r: a fixed first byte is found ten times faster.
_ONLY_NEWLINES = {BLANK_LINE: re.compile(rb"\n(?:[ \t\x0b\x0c]*\n)+"), LINE_END: re.compile(rb"\n")}
_BLANK_ONLY = re.compile(rb"(?:[ \t\x0b\x0c]*" + _NEWLINE + rb")*")
_SPACE = b" \t\x0b\x0c\r\n"
# WikiText: ` = Title = ` between blank lines begins an article; ` = = Section = = ` stands inside one. The title itself
# belongs to what follows.
_TITLE = rb"[ \t]*= [^=\s](?:[^\r\n]*[^=\s])? =[ \t]*" + _NEWLINE + rb"[ \t]*" + _NEWLINE
WIKITEXT_TITLE = re.compile(BLANK_LINE.pattern + rb"(?=" + _TITLE + rb")")
_FIRST_TITLE = re.compile(rb"\s*" + _TITLE)
_HEADING = re.compile(rb"^[ \t]*(?:= )+([^=\s](?:[^\r\n]*[^=\s])?)(?: =)+[ \t]*$", re.MULTILINE)
_SEPARATORS = {"blank": BLANK_LINE, "line": LINE_END, "file": None, "wikitext": WIKITEXT_TITLE}
_SAMPLE_BYTES = 1 << 20
_TAIL_BYTES = 4096
_WRAP_SAMPLE = 1 << 16  # characters that show whether a text is wrapped
_SAMPLE_FILES = 8

LAYOUT_LINES = {
    "blank": "a blank line ends a document",
    "line": "a line is a document",
    "file": "a file is a document",
    "wikitext": "a line = Title = begins a document, and headings lose their marks",
}


def read_text(portion: Portion, reading: Reading) -> Iterator[Document | Drop]:
    """The documents of a plain-text file or of a byte range of one."""
    separator = _SEPARATORS[reading.layout]
    dropping = reading.settings.long_documents == "drop"
    blocks = portion_blocks(portion, reading)
    for offset, data in split_records(blocks, separator, reading.max_bytes, dropping, reading.changed):
        place = portion.at(f"byte {portion.start + offset}")
        if data is None:
            yield Drop("too long", place, f"over {reading.max_bytes:,} bytes")
        else:
            yield reading.decode(_HEADING.sub(rb"\1", data) if reading.layout == "wikitext" else data, place)


def portion_blocks(portion: Portion, reading: Reading) -> Iterator[bytes]:
    """UTF-8 blocks of a portion."""
    length = portion.end - portion.start if portion.end is not None else None
    expansion = reading.source.max_expansion
    with open_stream(portion.path, portion.compression, expansion, portion.start, length) as stream:
        plain = portion.start and reading.source.encoding == UTF8
        yield from iter(stream.block, b"") if plain else as_utf8(stream, reading.source.encoding)


def split_records(
    blocks: Iterable[bytes],
    separator: re.Pattern[bytes] | None,
    limit: int,
    dropping: bool,
    changed: Counter[str],
) -> Iterator[tuple[int, bytes | None]]:
    """(offset, bytes) of everything between separators, blank ones left out. Those over the limit come once as
    (offset, None) if `dropping`, else cut into several. Damage of the file is raised after what came before it."""
    buffer, offset, skipping, in_pieces = b"", 0, False, False
    blocks = iter(blocks)
    damage: Damaged | None = None
    while True:
        try:
            block = next(blocks, None)
        except Damaged as error:
            block, damage = None, error
        # What was searched is not searched again, but for the space at its end, where a blank line may begin.
        searched = len(buffer.rstrip(_SPACE))
        if separator is WIKITEXT_TITLE:  # and but for its last line, which may be a title, and the blank one before it
            last_line = len(buffer[:searched].rpartition(b"\n")[0])
            searched = len(buffer[:last_line].rstrip(_SPACE))
        buffer += block or b""
        position = 0
        pattern = _ONLY_NEWLINES.get(separator, separator) if separator and b"\r" not in buffer else separator
        for match in pattern.finditer(buffer, searched) if pattern else ():
            end, after = match.span()
            # A separator at the end of the buffer may go on in the next block; what follows then is blank.
            if not skipping:
                yield from _whole(buffer[position:end], offset + position, limit, dropping, changed, in_pieces)
            skipping = in_pieces = False
            position = after
        if position == 0 and (blank := _BLANK_ONLY.match(buffer)) and not in_pieces and not skipping:
            position = blank.end()
        offset += position
        buffer = buffer[position:]
        # Space at the end may be the beginning of a separator: it is not what makes a record too long.
        while len(buffer) > limit and (len(buffer) > 2 * limit or len(buffer.rstrip(_SPACE)) > limit):
            if dropping:
                if not skipping:
                    yield offset, None
                skipping = True
                # Blank lines end a document: keep the last newline and what follows it, if that is short.
                keep = max(buffer.rfind(b"\n"), buffer.rfind(b"\r"))
                cut = keep if 0 < len(buffer) - keep < limit and keep > 0 else len(buffer)
            else:
                if not in_pieces:
                    changed["too long: cut"] += 1
                in_pieces = True
                cut = cut_point(buffer, limit)
                yield offset, buffer[:cut]
            offset += cut
            buffer = buffer[cut:]
        if block is None:
            if buffer and not skipping:
                yield from _whole(buffer, offset, limit, dropping, changed, in_pieces)
            if damage:
                raise damage
            return


def _whole(
    data: bytes, offset: int, limit: int, dropping: bool, changed: Counter[str], in_pieces: bool
) -> Iterator[tuple[int, bytes | None]]:
    """A finished record, cut or dropped if it is too long after all."""
    if not in_pieces and (blank := _BLANK_ONLY.match(data)):
        offset += blank.end()
        data = data[blank.end() :]
    if not data or data.isspace():
        return
    if len(data) > limit and dropping:
        yield offset, None
        return
    if len(data) > limit and not in_pieces:
        changed["too long: cut"] += 1
    while len(data) > limit:
        cut = cut_point(data, limit)
        yield offset, data[:cut]
        offset += cut
        data = data[cut:]
    if data and not data.isspace():
        yield offset, data


# ------------------------------------------------------------------------------------------------- guessing


def guess_layout(files: list[InputFile], max_expansion: float) -> Layout:
    """Many small files: a file is a document. Text wrapped at a fixed width: too (a book). Files that all start with a
    title of WikiText: its articles. Else blank lines if there are any (one at the end of a file counts: it ends the
    last document), else lines."""
    sizes = [file.size for file in files]
    if len(files) >= 16 and sum(sizes) < len(files) * (64 << 10):
        return "file"
    samples = [_sample(file, max_expansion) for file in files[:_SAMPLE_FILES]]
    shown = [sample.decode(errors="replace") for sample in samples if sample.strip()]
    if shown and all(is_wrapped(sample) for sample in shown):
        return "file"
    if shown and all(_FIRST_TITLE.match(sample) for sample in samples if sample.strip()):
        return "wikitext"
    tails = [_tail(file) for file in files[:_SAMPLE_FILES] if not file.compression]
    return "blank" if any(BLANK_LINE.search(part.lstrip()) for part in (*samples, *tails)) else "line"


def _sample(file: InputFile, max_expansion: float) -> bytes:
    try:
        with open_stream(file.path, file.compression, max_expansion) as stream:
            return next(as_utf8(stream), b"")[:_SAMPLE_BYTES]
    except Damaged:
        return b""


def _tail(file: InputFile) -> bytes:
    try:
        with open(file.path, "rb") as stream:
            stream.seek(max(0, file.size - _TAIL_BYTES))
            return stream.read(_TAIL_BYTES)
    except OSError:
        return b""


def is_wrapped(text: str, min_lines: int = 20) -> bool:
    """Was the text wrapped at a fixed width? Then the next line's first word would not have fitted onto the line."""
    if text.count("\n") < min_lines:
        return False
    lines = text[:_WRAP_SAMPLE].splitlines()
    pairs = [(a, b) for a, b in itertools.pairwise(lines) if a.strip() and b.strip()]
    if len(pairs) < min_lines:
        return False
    lengths = sorted(len(a.rstrip()) for a, _ in pairs)
    width = lengths[int(0.98 * (len(lengths) - 1))]
    if not 40 <= width <= 120:
        return False
    full = sum(len(a.rstrip()) + 1 + len(b.split(None, 1)[0]) > width - 2 for a, b in pairs)
    return full >= 0.85 * len(pairs)
