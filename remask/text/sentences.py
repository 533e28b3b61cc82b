"""Where sentences start in a document: by sentencex's rules (any script), and at newlines by choice.

A sentence starts at its first character that is no space; the first such character of a document always starts one.
"""

from __future__ import annotations

import re

import numpy as np
import sentencex

from remask.text.settings import SentenceSettings

_LINE_START = re.compile(r"(?:\A|\n)[^\S\n]*+(?=\S)")
_SPACE = re.compile(r"\s*")


def sentence_starts(text: str, settings: SentenceSettings) -> np.ndarray:
    """Character offsets, ascending."""
    starts: set[int] = set()
    if settings.newline == "boundary":
        starts.update(match.end() for match in _LINE_START.finditer(text))
    if settings.splitter == "sentencex":
        # Newlines as spaces: an empty line would end a sentence whatever the setting says.
        flat = text.replace("\n", " ")
        found_in = sentencex.get_sentence_boundaries  # pyrefly: ignore[missing-attribute]
        for found in found_in(settings.language, flat):
            start = found["start_index"]
            if start < len(text) and text[start].isspace():
                start = _SPACE.match(text, start).end()  # pyrefly: ignore[missing-attribute]
            starts.add(start)
    starts.add(_SPACE.match(text).end())  # pyrefly: ignore[missing-attribute]
    starts.discard(len(text))
    return np.array(sorted(starts), np.int64)
