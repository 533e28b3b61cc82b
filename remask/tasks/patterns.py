"""Patterns and words of a prompt: as the user writes them, and in the ids of a vocabulary.

A pattern is a sentence with {text}, perhaps {text2}, and one mask; words stand for labels in its place. A word of
several tokens needs as many masks, so every pattern has a row for each length that its words have (a "form"). The
space before a text belongs to the text's first word, and the one before the mask to the word in its place. No torch.
Not here: what is made of a network's scores (prompts).

Shapes: P patterns, W words, C classes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from remask.errors import DataError, UsageError

if TYPE_CHECKING:
    from remask.tasks.settings import PromptSettings
    from remask.tokenizer import Tokenizer

Array = np.ndarray
MASKS = ("<mask>", "[MASK]")  # either stands for the mask, whatever the vocabulary calls it
TEXT, TEXT2 = "{text}", "{text2}"
_PARTS = re.compile("|".join(map(re.escape, (*MASKS, TEXT, TEXT2))))


def read_words(entries: Sequence[str]) -> dict[str, list[str]]:
    """`--words`: "positive=great,good negative=bad"; a word may hold spaces, a label may not."""
    words: dict[str, list[str]] = {}
    for entry in (piece for text in entries for piece in re.split(r"\s+(?=[^\s=]+=)", text.strip())):
        label, equals, listed = entry.partition("=")
        if not equals or not label:
            raise UsageError(f"--words: {entry!r}: write LABEL=WORD,WORD for every label, with spaces between labels")
        if label in words:
            raise UsageError(f"--words: the label {label!r} is given twice")
        words[label] = [word.strip() for word in listed.split(",")]
    return words


@dataclass(frozen=True)
class Piece:
    """A stretch of a pattern: one of the texts, the mask, or ids that stand there as they are."""

    ids: Array | None = None
    text: int | None = None  # 0, 1; None with no ids: the mask
    after_space: bool = False


@dataclass(frozen=True)
class Spelled:
    """Patterns and words in the ids of one vocabulary."""

    mask_id: int
    patterns: tuple[tuple[Piece, ...], ...]
    spellings: tuple[tuple[int, ...], ...]  # S: all that a word is spelled as, in one pattern or another
    forms: tuple[tuple[int, int], ...]  # F: (pattern, number of masks), a row each
    form_PW: Array
    spelling_PW: Array
    share_WC: Array  # a word's part of its label


def check_pattern(pattern: str) -> None:
    """One mask, one {text}, perhaps a {text2}."""
    parts = _PARTS.findall(pattern)
    masks = sum(part in MASKS for part in parts)
    where = f"pattern {pattern!r}"
    if masks != 1:
        has = "has no" if masks == 0 else f"has {masks} times a"
        raise ValueError(f"{where}: {has} {MASKS[0]}; write it once, where the word belongs")
    if parts.count(TEXT) != 1 or parts.count(TEXT2) > 1:
        raise ValueError(f"{where}: write {TEXT} once, where the text belongs, and {TEXT2} once at most")
    if strange := re.findall(r"\{\w*\}", _PARTS.sub("", pattern)):
        raise ValueError(f"{where}: {strange[0]} is neither {TEXT} nor {TEXT2}")


def _pieces(pattern: str, tokenizer: Tokenizer) -> tuple[Piece, ...]:
    """The space before a text belongs to the text's first word, the one before the mask to the word in its place."""
    pieces: list[Piece] = []
    start = 0
    for part in [*_PARTS.finditer(pattern), None]:
        literal = pattern[start : part.start() if part else None]
        spaced = literal.endswith(" ") and part is not None
        if ids := tokenizer.encode(literal.removesuffix(" ") if spaced else literal).tolist():
            pieces.append(Piece(np.array(ids, np.int32)))
        if part:
            number = {TEXT: 0, TEXT2: 1}.get(part.group())
            pieces.append(Piece(text=number, after_space=spaced))
            start = part.end()
    return tuple(pieces)


def spell(settings: PromptSettings, labels: Sequence[str], tokenizer: Tokenizer) -> Spelled:
    """Patterns and words for a vocabulary; a word that it cannot spell is refused. No labels: one mask a pattern."""
    patterns = tuple(_pieces(pattern, tokenizer) for pattern in settings.patterns)
    words = [(number, word) for number, label in enumerate(labels) for word in settings.words[label]]
    spellings: dict[tuple[int, ...], int] = {}
    forms: dict[tuple[int, int], int] = {}
    form_PW = np.zeros((len(patterns), len(words)), np.int64)
    spelling_PW = np.zeros_like(form_PW)
    for p, pieces in enumerate(patterns):
        spaced = next(piece.after_space for piece in pieces if piece.ids is None and piece.text is None)
        for w, (_, word) in enumerate(words):
            ids = tuple(tokenizer.encode(f" {word}" if spaced else word).tolist())
            if not ids or tokenizer.unk_id in ids:
                raise DataError(f"words: {word!r} (of {labels[words[w][0]]!r}) cannot be spelled in this vocabulary")
            spelling_PW[p, w] = spellings.setdefault(ids, len(spellings))
            form_PW[p, w] = forms.setdefault((p, len(ids)), len(forms))
    if not words:
        forms = {(p, 1): p for p in range(len(patterns))}
    owner_W = np.array([number for number, _ in words])
    share_WC = (owner_W.reshape(-1, 1) == np.arange(len(labels))).astype(np.float64)
    share_WC /= np.maximum(share_WC.sum(0), 1)
    return Spelled(tokenizer.mask_id, patterns, tuple(spellings), tuple(forms), form_PW, spelling_PW, share_WC)
