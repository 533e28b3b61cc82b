"""Where sentences start in a document: by sentencex's rules (any script), and at newlines by choice.

A sentence starts at its first character that is no space; the first such character of a document always starts one.
Where a newline ends a sentence the lines are looked at one by one: that is four times faster than the whole text at
once, and a quotation mark left open in one paragraph does not confuse the next. A very long line is looked at through
a window: the splitter's time grows with the square of a line that is nothing but quotation marks.
"""

from __future__ import annotations

import re
from itertools import accumulate

import numpy as np
import sentencex

from remask.text.settings import SentenceSettings

_SPACE = re.compile(r"\s*")
_STOP_BEFORE_DIGIT = re.compile(r"(?<=。)(?=\d)")
_WINDOW = 16_384  # characters


def sentence_starts(text: str, settings: SentenceSettings) -> np.ndarray:
    """Character offsets, ascending."""
    parts = text.split("\n") if settings.newline == "boundary" else [text.replace("\n", " ")]
    starts: list[int] = []
    offset = 0
    for part in parts:
        if part and not part.isspace():
            for start in _starts_in_windows(part, settings.language) if settings.splitter == "sentencex" else [0]:
                if part[start : start + 1].isspace():
                    start = _SPACE.match(part, start).end()  # pyrefly: ignore[missing-attribute]
                if start < len(part):
                    starts.append(offset + start)
        offset += len(part) + 1
    return np.unique(np.array(starts, np.int64))


def _starts_in_windows(line: str, language: str) -> list[int]:
    """The last sentence of a window is the first of the next one, since it may go on there."""
    starts, begin = [0], 0
    while len(line) - begin > _WINDOW:
        inside = [start for start in _starts_in(line[begin : begin + _WINDOW], language) if 0 < start < _WINDOW]
        starts += [begin + start for start in inside]
        begin = begin + max(inside) if inside and max(inside) > _WINDOW // 2 else begin + _WINDOW
    return [*starts, *(begin + start for start in _starts_in(line[begin:], language) if start or begin in starts)]


def _starts_in(line: str, language: str) -> list[int]:
    pieces: list[str] = sentencex.segment(language, line)  # pyrefly: ignore[missing-attribute]
    # It takes an ideographic full stop before a digit for a decimal point; a year often starts a sentence there.
    missed = [match.start() for match in _STOP_BEFORE_DIGIT.finditer(line)] if "。" in line else []
    ends = list(accumulate(map(len, pieces)))
    if len(pieces) <= 1 or ends[-1] == len(line):
        return [0, *ends[:-1], *missed]
    # It leaves some separators out of its pieces; then only the slower call says where they stand.
    boundaries = sentencex.get_sentence_boundaries(language, line)  # pyrefly: ignore[missing-attribute]
    return [0, *(piece["start_index"] for piece in boundaries), *missed]
