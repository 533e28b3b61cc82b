"""One document: normalised, then kept or dropped by what can be seen in it alone.

Normalisation keeps the text: newlines become \\n, the rest is by choice (CleanSettings). The filters answer with the
reason for a drop. Not here: duplicates and what else needs to know other documents (choose.py).
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
import zlib
from typing import Any

from remask.errors import needs_extra
from remask.text.plain import is_wrapped
from remask.text.settings import CleanSettings, LanguageSettings
from remask.text.shingles import share_of_symbols

# C0 and C1 controls but tab and newline, and the byte order mark; U+0085 is a newline in some old files.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff]")
_SPACES = re.compile(r"[^\S\n]{2,}|[^\S\n ]")
_EMPTY_LINES = re.compile(r"\n\s*\n")
# What a joined line must not swallow: list items, indented lines, table rows, prompts.
_OWN_LINE = re.compile(r"(?:\s|[-*•+|>=~#]|\d+[.)]\s|:)")
_LANGUAGE_SAMPLE = 2_000
_MIN_REPETITION_CHARS = 200
_REPETITION_SAMPLE = 4_000
_MAX_MARKS = 256  # on one letter, or not many more; Unicode's own stream-safe format has at most 30


@functools.cache
def _marks() -> frozenset[str]:
    """Combining marks, and what normalisation takes apart into nothing but them."""
    codes = (code for code in range(0x300, 0x20000) if not 0xD800 <= code < 0xE000)
    return frozenset(c for c in map(chr, codes) if unicodedata.combining(unicodedata.normalize("NFKD", c)[0]))


def reason_not_to_clean(text: str) -> str:
    """Empty, or why the document is dropped as it came: marks without end, which normalisation sorts, in time that
    grows with the square of their number. A run of more than the maximum covers two neighbours of every half of it."""
    if text.isascii():
        return ""
    marks, step = _marks(), _MAX_MARKS // 2
    sample = text[::step]
    if not marks.isdisjoint(sample):
        for index, (line, other) in enumerate(itertools.pairwise(sample)):
            if line in marks and other in marks and marks.issuperset(text[index * step : (index + 1) * step]):
                return "too many combining marks"
    return ""


def normalise(text: str, settings: CleanSettings) -> str:
    """The text as it is stored, without space around it."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if settings.controls == "remove" and _CONTROLS.search(text):
        text = _CONTROLS.sub("", text)
    if settings.unicode != "none" and not text.isascii() and not unicodedata.is_normalized(settings.unicode, text):
        text = unicodedata.normalize(settings.unicode, text)
    if settings.chinese != "keep" and not text.isascii():
        text = _folding(settings.chinese).convert(text)
    if settings.wrapped_lines == "join" and is_wrapped(text):
        text = join_lines(text)
    if settings.whitespace != "keep":
        text = "\n".join([line.rstrip() for line in text.split("\n")])
    if settings.whitespace == "collapse":
        text = _EMPTY_LINES.sub("\n", _SPACES.sub(" ", text))
    return text.strip() if settings.whitespace != "keep" else text.strip("\n")


def check_folding(settings: CleanSettings) -> None:
    """A missing OpenCC is better known before text is read."""
    if settings.chinese != "keep":
        _folding(settings.chinese)


@functools.cache
def _folding(script: str) -> Any:
    """OpenCC's converter between the scripts, character by character and by phrases (頭髮 -> 头发)."""
    with needs_extra("zh", f"text.cleaning.chinese = {script}: needs the zh extra"):
        from opencc import OpenCC
    return OpenCC({"simplified": "t2s", "traditional": "s2t"}[script])


def join_lines(text: str) -> str:
    """Lines of one paragraph joined by a space; a hyphen at a line's end stays, since it may belong to the word."""
    lines: list[str] = []
    open_paragraph = False
    for line in text.split("\n"):
        if not line.strip():
            open_paragraph = False
            lines.append("")
        elif open_paragraph and not _OWN_LINE.match(line):
            lines[-1] = f"{lines[-1].rstrip()} {line.strip()}"
        else:
            lines.append(line)
            open_paragraph = True
    return "\n".join(lines)


def reason_to_drop(text: str, settings: CleanSettings) -> str:
    """Empty, or why the document is of no use."""
    if not text or text.isspace():
        return "empty"
    if len(text) < settings.min_chars:
        return "too short"
    if len(text) >= _MIN_REPETITION_CHARS:
        if settings.max_compression and _compression(text) > settings.max_compression:
            return "repetition"
        if settings.max_repeated_lines < 1 and _share_of_repeated_lines(text) > settings.max_repeated_lines:
            return "repeated lines"
    if settings.max_symbols < 1 and share_of_symbols(text) > settings.max_symbols:
        return "too many symbols"
    return ""


def _share_of_repeated_lines(text: str) -> float:
    lines = text.split("\n")
    if len(lines) < 4:
        return 0.0
    unique = set(lines)
    if len(unique) == len(lines):
        return 0.0
    total = sum(map(len, lines))
    return 1 - sum(map(len, unique)) / total if total else 0.0


def _compression(text: str) -> float:
    """How many times zlib shrinks the text, judged by the middle of a long one."""
    middle = max(0, len(text) - _REPETITION_SAMPLE) // 2
    data = text[middle : middle + _REPETITION_SAMPLE].encode()
    return len(data) / len(zlib.compress(data, 1))


# ------------------------------------------------------------------------------------------------- language


@functools.cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def known_languages() -> list[str]:
    return sorted(_identifier().labels)


def wrong_language(text: str, keep: tuple[str, ...], settings: LanguageSettings) -> str:
    """Empty, or the language found where it is not one of `keep`. The middle of the text is looked at."""
    start = max(0, (len(text) - _LANGUAGE_SAMPLE) // 2)
    code, prob = _identifier().classify(text[start : start + _LANGUAGE_SAMPLE])
    if code not in keep:
        return str(code)
    return f"{code} with {prob:.2f}" if prob < settings.min_prob else ""
