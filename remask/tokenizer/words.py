"""Where words start among tokens, for whole-word masking, and where pre-tokens start, for sentence boundaries.

A word is what stands between two white spaces, with leading and trailing punctuation split off; in scripts written
without spaces (Chinese, Japanese, Thai, ...) every character is a word, unless a segmenter is asked for the words of
Chinese (`join_chinese`). A word owns the one space before it, as
GPT-2's pre-tokens do. `unit_starts` says this for the characters of a text and serves any tokenizer; `TokenStarts`
says the same for byte-level BPE from tables by id, vectorised over millions of tokens. Here a pre-token is GPT-2's:
a run of letters, of numbers or of other characters with the space before it, or a contraction such as 's.
Not here: which words get masked (data/masking).
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

import numpy as np
from tokenizers import pre_tokenizers

from remask.errors import needs_extra

# Classes of characters. OTHER is punctuation and symbols; BARE are letters of scripts without spaces. GPT-2's pattern
# knows letters, numbers and the rest, marks being the rest: that class is in the two lowest bits.
SPACE, LETTER, NUMBER, OTHER, BARE, MARK, BARE_MARK = 0, 1, 2, 3, 4 | 1, 4 | 3, 8 | 3
INSIDE, UNKNOWN = 12, 13  # a token that starts within a character, one that holds only a part of it
_LEADING, _APOSTROPHE, _LONE_SPACE = 1 << 8, 1 << 9, 1 << 10  # flags of a token
WHITE = frozenset("\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {
    chr(c) for c in range(0x2000, 0x200B)
}
_BARE_RANGES = (
    (0x0E00, 0x0FFF),  # Thai, Lao, Tibetan
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19FF),  # Tai Le, New Tai Lue, Khmer symbols
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x2E80, 0x312F),  # radicals, kana, Bopomofo
    (0x31A0, 0x31FF),
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0xA4CF),  # Han, Yi
    (0xA980, 0xA9FF),  # Javanese, Myanmar
    (0xAA60, 0xAADF),  # Myanmar, Tai Viet
    (0xF900, 0xFAFF),  # Han
    (0xFF66, 0xFF9F),  # half-width kana
    (0x1AFF0, 0x1B16F),  # kana
    (0x20000, 0x3FFFF),  # Han
)
# Spaces that may not be cut at: only single plain ones between words are sure to start a pre-token.
_ODD_SPACE = re.compile(r"\s\s|[^\S ]|^ | $")
_CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")


@lru_cache(maxsize=1 << 16)
def character_class(character: str) -> int:
    if character in WHITE:
        return SPACE
    category = unicodedata.category(character)[0]
    if category not in "LM":
        return NUMBER if category == "N" else OTHER
    bare = any(low <= ord(character) <= high for low, high in _BARE_RANGES)
    if category == "L":
        return BARE if bare else LETTER
    return BARE_MARK if bare else MARK


# Class by code point, looked up a page of 256 at a time as texts need them: all of Unicode would take a worker longer
# to list than to encode a few megabytes.
_CLASSES = np.full(0x110000, OTHER, np.uint8)
_PAGE_IS_KNOWN = np.zeros(0x1100, bool)


def _class_of_codes(codes: np.ndarray) -> np.ndarray:
    pages = np.bincount(codes >> 8, minlength=len(_PAGE_IS_KNOWN)) > 0
    for page in np.flatnonzero(pages & ~_PAGE_IS_KNOWN).tolist():
        _CLASSES[page << 8 : (page + 1) << 8] = [character_class(chr(page << 8 | low)) for low in range(256)]
        _PAGE_IS_KNOWN[page] = True
    return _CLASSES[codes]


def has_odd_space(text: str) -> bool:
    """Whether there is white space at which a text may not be cut."""
    if text.isprintable():  # then a plain space is all the white space there is
        return "  " in text or text[:1] == " " or text[-1:] == " "
    return _ODD_SPACE.search(text) is not None


# ------------------------------------------------------------------------------- any tokenizer, by characters


def unit_starts(text: str) -> np.ndarray:
    """A bool per character: whether a word, or white space between words, starts there."""
    if not text or has_odd_space(text):
        return _unit_starts(text)
    # Words between single spaces do not know of each other, and most were seen before.
    return np.concatenate([_known_unit_starts(word) for word in text.replace(" ", "\n ").split("\n")])


def _unit_starts(text: str) -> np.ndarray:
    classes = [character_class(character) for character in text]
    starts = np.zeros(len(text), bool)
    cuts = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str(text)
    pieces: list[tuple[int, bool]] = []  # of one stretch: where each piece starts, and whether it is punctuation

    def end_stretch() -> None:
        for number, (place, punctuation) in enumerate(pieces):
            after_leading = number == 1 and pieces[0][1]
            trailing = punctuation and number == len(pieces) - 1
            starts[place] |= number == 0 or after_leading or trailing
        pieces.clear()

    for _, (begin, end) in cuts:
        contraction = text[begin:end] in _CONTRACTIONS
        new_piece = True
        for place in range(begin, end):
            kind = classes[place]
            if kind == SPACE:
                end_stretch()
                # White space is a unit of its own, but for the one space that belongs to the word after it.
                starts[place] |= place == 0 or classes[place - 1] != SPACE
                continue
            owner = place - 1 if place > begin and classes[place - 1] == SPACE else place
            if kind == BARE:
                end_stretch()
                starts[owner] = True
            elif kind == BARE_MARK:
                end_stretch()
                starts[owner] |= owner == 0 or classes[place - 1] == SPACE
            elif new_piece or classes[place - 1] in (BARE, BARE_MARK):
                pieces.append((owner, kind == OTHER and not contraction))
            new_piece = False
    end_stretch()
    return starts


_known_unit_starts = lru_cache(maxsize=100_000)(_unit_starts)


def token_word_starts(text: str, spans: np.ndarray) -> np.ndarray:
    """A bool per token, from the characters [start, end) of each: whether a word starts with it."""
    if len(spans) == 0:
        return np.zeros(0, bool)
    units = np.cumsum(unit_starts(text))
    first = units[np.minimum(spans[:, 0], len(text) - 1)]
    last = units[np.clip(spans[:, 1] - 1, spans[:, 0].clip(max=len(text) - 1), len(text) - 1)]
    return np.concatenate([[True], first[1:] != last[:-1]])


# ----------------------------------------------------------------------------------- Chinese, by a segmenter

_HAN_RUN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]{2,}")


def check_segmenter() -> None:
    with needs_extra("zh", "tokenizer.words = jieba: needs the zh extra"):
        import rjieba  # noqa: F401


def join_chinese(text: np.ndarray, begins: np.ndarray, starts: np.ndarray) -> None:
    """Tokens that begin within a Chinese word, as jieba cuts the text, start no word any more. `text` is valid UTF-8
    (uint8), `begins` each token's first byte in it; changes `starts`."""
    import rjieba

    decoded = text.tobytes().decode()
    places = np.flatnonzero((text & 0xC0) != 0x80)  # first byte of every character
    is_inside = np.zeros(len(text) + 1, bool)
    for run in _HAN_RUN.finditer(decoded):
        lengths = np.array([len(word) for word in rjieba.cut(run.group())])
        inside = np.ones(run.end() - run.start(), bool)
        inside[np.cumsum(lengths) - lengths] = False
        is_inside[places[run.start() : run.end()][inside]] = True
    starts &= ~is_inside[begins]


# --------------------------------------------------------------------------- byte-level BPE, by tables over ids


class TokenStarts:
    """Pre-token and word starts of byte-level tokens. Tables by id answer for whole characters; only tokens that cut
    a character apart, and apostrophes, are looked up in the text."""

    def __init__(self, token_bytes: list[bytes]) -> None:
        # One number an id: first class, last class, and flags. One look-up per token is what this costs.
        self._facts = np.full(len(token_bytes), OTHER | OTHER << 4, np.uint16)
        for token, data in enumerate(token_bytes):
            if data:
                leading = len(data) > 1 and data[:1] == b" " and data[1:2] != b" "
                first, last = _edge_classes(data[1:] if leading else data)
                flags = _LEADING * leading | _APOSTROPHE * (data[:1] == b"'") | _LONE_SPACE * (data == b" ")
                self._facts[token] = first | last << 4 | flags

    def find(
        self, ids: np.ndarray, begins: np.ndarray, text: np.ndarray, line_starts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Bools per token: pre-token starts, word starts. `begins` is each token's first byte in `text` (uint8),
        `line_starts` the index of each first token of what was encoded by itself."""
        bits = self._facts[ids]
        first, last = (bits & 15).astype(np.uint8), (bits >> 4 & 15).astype(np.uint8)
        leading, lone = (bits & _LEADING) != 0, (bits & _LONE_SPACE) != 0
        _look_up(first, last, leading, begins, text)
        previous = np.empty_like(last)
        previous[0:1] = SPACE
        previous[1:] = last[:-1]
        previous[line_starts] = SPACE
        white = first == SPACE
        pre = leading | ((first ^ previous) & 3 != 0)
        pre &= first != INSIDE
        pre[line_starts] = True
        after_lone = np.zeros(len(ids), bool)  # there the space belongs to the apostrophe's own pre-token
        after_lone[1:] = lone[:-1]
        after_lone[line_starts] = False
        apostrophe = ((bits & _APOSTROPHE) != 0) & pre & ~after_lone
        contraction = _contractions(apostrophe, begins, text, line_starts, pre)
        stretch = leading | white | (previous == SPACE) | (first == BARE)
        stretch |= ((previous == BARE) | (previous == BARE_MARK)) & (first != BARE_MARK)
        stretch &= first != INSIDE
        stretch[line_starts] = True
        stretch &= ~(white & (previous == SPACE))
        stretch[line_starts] = True
        starts = self._words(pre | stretch, stretch, (first == OTHER) & ~contraction, white)
        _join_lone_spaces(lone, white | leading, line_starts, pre, starts)
        return pre, starts

    @staticmethod
    def _words(piece: np.ndarray, stretch: np.ndarray, punctuation: np.ndarray, white: np.ndarray) -> np.ndarray:
        """In each stretch without space: its first piece, what follows leading punctuation, trailing punctuation."""
        places = np.flatnonzero(piece)
        begins = stretch[places]
        marks = punctuation[places]
        after_leading = np.zeros(len(places), bool)
        after_leading[1:] = begins[:-1] & marks[:-1]
        trailing = marks & np.append(begins[1:], True)
        starts = np.zeros(len(piece), bool)
        starts[places] = begins | ((after_leading | trailing) & ~white[places])
        return starts


def _join_lone_spaces(
    lone: np.ndarray, spaced: np.ndarray, line_starts: np.ndarray, pre: np.ndarray, starts: np.ndarray
) -> None:
    """Where the space before a word is a token of its own, the word and its pre-token start with it."""
    places = np.flatnonzero(lone[:-1])
    if len(places) == 0:
        return
    is_line_start = np.zeros(len(lone), bool)
    is_line_start[line_starts] = True
    places = places[~spaced[places + 1] & ~is_line_start[places + 1]]
    pre[places] = starts[places] = True
    pre[places + 1] = starts[places + 1] = False


def _edge_classes(data: bytes) -> tuple[int, int]:
    """Classes of a token's first and last character; UNKNOWN where the token holds only a part of it."""
    text = data.decode("utf-8", "surrogateescape")
    first = INSIDE if data[0] & 0xC0 == 0x80 else _known_class(text[0])
    return first, _known_class(text[-1])


def _known_class(character: str) -> int:
    return UNKNOWN if 0xD800 <= ord(character) < 0xE000 else character_class(character)


def _look_up(first: np.ndarray, last: np.ndarray, leading: np.ndarray, begins: np.ndarray, text: np.ndarray) -> None:
    """Replace UNKNOWN by the class of the whole character that stands in the text there."""
    unknown = np.flatnonzero(first == UNKNOWN)
    if len(unknown):
        first[unknown] = _classes_at(text, begins[unknown] + leading[unknown])
    unknown = np.flatnonzero(last == UNKNOWN)
    if len(unknown):
        ends = np.append(begins[1:], len(text))
        # The next token may stand in another line, but the character reaches over into it or ends before it.
        places = ends[unknown] - 1
        for _ in range(3):
            places -= (text[places] & 0xC0) == 0x80
        last[unknown] = _classes_at(text, places)


def _classes_at(text: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Classes of the characters whose first byte stands at these places of valid UTF-8."""
    at = [text[np.minimum(places + n, len(text) - 1)].astype(np.int64) for n in range(4)]
    low = [byte & 0x3F for byte in at]
    code = np.where(at[0] < 0x80, at[0], (at[0] & 0x1F) << 6 | low[1])
    code = np.where(at[0] >= 0xE0, (at[0] & 0x0F) << 12 | low[1] << 6 | low[2], code)
    code = np.where(at[0] >= 0xF0, (at[0] & 0x07) << 18 | low[1] << 12 | low[2] << 6 | low[3], code)
    return _class_of_codes(np.minimum(code, 0x10FFFF))


def _contractions(
    candidates: np.ndarray, begins: np.ndarray, text: np.ndarray, line_starts: np.ndarray, pre: np.ndarray
) -> np.ndarray:
    """Tokens that start a contraction; moves the pre-token starts to its two ends in `pre`."""
    is_word = np.zeros(len(candidates), bool)
    tokens = np.flatnonzero(candidates)
    if len(tokens) == 0:
        return is_word
    # A line's end: the first token of the next line starts beyond it.
    line_of = np.searchsorted(line_starts, tokens, side="right")
    limits = np.append(begins[line_starts[1:]], len(text))[line_of - 1]
    places = begins[tokens]
    second, third = (text[np.minimum(places + n, len(text) - 1)] for n in (1, 2))
    pair = second.astype(np.int64) << 8 | third
    long = np.isin(pair, [ord(w[0]) << 8 | ord(w[1]) for w in ("re", "ve", "ll")]) & (places + 2 < limits)
    short = np.isin(second, [ord(w) for w in "stmd"]) & (places + 1 < limits)
    lengths = np.where(short, 2, np.where(long, 3, 0))
    is_word[tokens[lengths > 0]] = True
    tokens, ends = tokens[lengths > 0], np.minimum(places + lengths, limits)[lengths > 0]
    for step in (1, 2, 3):  # a contraction has at most three tokens
        following = tokens + step
        inside = following < len(begins)
        following, upto = following[inside], ends[inside]
        pre[following[begins[following] < upto]] = False
        pre[following[begins[following] == upto]] = True
    return is_word
