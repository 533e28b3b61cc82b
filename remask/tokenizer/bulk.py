"""Blocks of documents -> ids with document, sentence and word starts, as fast as the machine allows.

A document's pieces are its lines (newlines = none, the default: what RoBERTa's preprocessing fed its encoder) or the
whole document; each piece gets exactly the ids that the tokenizer gives it alone. Three ways to the same ids:
gigatoken (extra `fast`, used only after it agreed on the user's own text), a table of words already seen (what stands
between two single spaces is encoded alike wherever it occurs), and the tokenizers library itself for any other kind
of vocabulary. Not here: files and processes (preparation), and the rule for words (words.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from remask.documents import DocumentShard
from remask.errors import DataError
from remask.tokenizer import words
from remask.tokenizer.codec import Tokenizer

Newlines = Literal["none", "token", "space"]
ChineseWords = Literal["characters", "jieba"]
BLOCK_BYTES = 1_000_000  # encoded at a time: small enough for the arrays to stay in the cache
MIN_PORTION_BYTES, MAX_PORTION_BYTES = 4_000_000, 64_000_000  # of a task, and of a token shard
MAX_WORDS_SEEN = 400_000  # about 100 MB
_SPACES = b"\t\n\x0b\x0c\r "


@dataclass(frozen=True)
class EncodedDocuments:
    """Documents that stand one after the other in `ids`; every index counts from its start."""

    ids: np.ndarray
    document_offsets: np.ndarray
    sentence_starts: np.ndarray
    word_starts: np.ndarray


@dataclass(frozen=True)
class Blocks:
    """Documents `first` to `last` of a shard, some megabytes at a time. Pickles as names, for worker processes."""

    shard: DocumentShard
    first: int
    last: int

    def __iter__(self) -> Iterator[tuple[bytes, np.ndarray, np.ndarray]]:
        """(bytes, D+1 byte offsets of the documents in them, byte offsets of the sentences)"""
        offsets, sentences = self.shard.offsets, self.shard.all_sentence_starts
        low = self.first
        while low < self.last:
            high = int(np.searchsorted(offsets, offsets[low] + BLOCK_BYTES, side="right")) - 1
            high = min(max(high, low + 1), self.last)
            begin, end = int(offsets[low]), int(offsets[high])
            inside = slice(*np.searchsorted(sentences, [begin, end]))
            data = self.shard.data[begin:end].tobytes()
            yield data, np.asarray(offsets[low : high + 1]) - begin, np.asarray(sentences[inside]) - begin
            low = high

    def head(self, num_bytes: int) -> Blocks:
        """The first documents, as many as it takes to have that much."""
        offsets = self.shard.offsets
        last = int(np.searchsorted(offsets, offsets[self.first] + num_bytes))
        return Blocks(self.shard, self.first, min(max(last, self.first), self.last))

    @property
    def num_bytes(self) -> int:
        return int(self.shard.offsets[self.last] - self.shard.offsets[self.first])


def plan_blocks(shards: Sequence[DocumentShard]) -> list[Blocks]:
    """Portions of work: enough of them to share out evenly, cut the same way whoever does the work."""
    total = sum(shard.num_bytes for shard in shards)
    size = min(MAX_PORTION_BYTES, max(MIN_PORTION_BYTES, total // 64))
    portions: list[Blocks] = []
    for shard in shards:
        first = 0
        while first < len(shard):
            last = int(np.searchsorted(shard.offsets, shard.offsets[first] + size, side="left"))
            last = min(max(last, first + 1), len(shard))
            portions.append(Blocks(shard, first, last))
            first = last
    return portions


# ---------------------------------------------------------------------------------------- pieces -> ids, three ways


class WordTable:
    """Byte-level BPE by looking words up; words not seen before are asked of the tokenizers library."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._type = np.dtype("<u2") if tokenizer.vocab_size <= 1 << 16 else np.dtype("<u4")
        self._tokenizer = tokenizer
        self._seen: dict[str, bytes] = {}

    def encode(self, data: bytes, begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all pieces, one after the other, and how many each has."""
        texts = [piece.decode() for piece in _slices(data, begins, ends)]
        # No merge crosses the space before a word, so a text's ids are those of its words one after the other. Words
        # repeat: most are in the table, and their ids are kept as bytes, which Python joins faster than arrays.
        cut = [[text] if words.has_odd_space(text) else text.replace(" ", "\n ").split("\n") for text in texts]
        if len(self._seen) > MAX_WORDS_SEEN:
            self._seen.clear()
        new = list(set().union(*cut).difference(self._seen))
        for word, ids in zip(new, self._tokenizer.encode_batch(new), strict=True):
            self._seen[word] = ids.astype(self._type).tobytes()
        look_up = self._seen.__getitem__
        encoded = [b"".join(map(look_up, words)) for words in cut]
        counts = np.fromiter(map(len, encoded), np.int64, len(encoded)) // self._type.itemsize
        return np.frombuffer(b"".join(encoded), self._type), counts


class Gigatoken:
    """The same by gigatoken, on one thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        import gigatoken

        self._tokenizer = gigatoken.Tokenizer.from_json(tokenizer.without_added_tokens())
        self._newline = int(tokenizer.encode("\n")[0])

    def encode(self, data: bytes, begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One call for many pieces with newlines between them: where no white space touches it, a newline is a
        pre-token of its own and changes nothing before or after it."""
        if not len(begins):
            return np.zeros(0, np.uint32), np.zeros(0, np.int64)
        text = np.frombuffer(data, np.uint8)
        # Lines that follow each other in the data stand there as they are wanted here.
        apart = np.flatnonzero((begins[1:] != ends[:-1] + 1) | (text[ends[:-1]] != 10))
        runs = _slices(data, begins[np.append(0, apart + 1)], ends[np.append(apart, len(ends) - 1)])
        joined = b"\n".join(runs)
        if joined.count(b"\n") == len(begins) - 1 and not _any_space_at_an_end(text, begins, ends):
            ids = self._tokenizer.encode(joined)
            breaks = np.flatnonzero(ids == self._newline)
            counts = np.diff(breaks, prepend=-1, append=len(ids)) - 1
            return np.delete(ids, breaks), counts
        parts = [self._tokenizer.encode(piece) for piece in _slices(data, begins, ends)]
        return np.concatenate([np.zeros(0, np.uint32), *parts]), np.array([len(part) for part in parts], np.int64)


def _any_space_at_an_end(text: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> bool:
    """Whether a piece is empty or begins or ends with white space, as Unicode has it."""
    if np.any(begins >= ends):
        return True
    maybe = np.flatnonzero(_SPACE_BEGINS[text[begins]] | _SPACE_ENDS[text[ends - 1]])
    for begin, end in zip(begins[maybe].tolist(), ends[maybe].tolist(), strict=True):
        first = text[begin : min(begin + 4, end)].tobytes().decode(errors="ignore")
        last = text[max(begin, end - 6) : end].tobytes().decode(errors="ignore")
        if not first or not last or first[0] in words.WHITE or last[-1] in words.WHITE:
            return True
    return False


def _bytes_table(values: Iterable[int]) -> np.ndarray:
    table = np.zeros(256, bool)
    table[list(values)] = True
    return table


_IS_SPACE = _bytes_table(_SPACES)
_SPACE_BEGINS = _bytes_table(character.encode()[0] for character in words.WHITE)
_SPACE_ENDS = _bytes_table(character.encode()[-1] for character in words.WHITE)


@lru_cache(maxsize=1)
def _gigatoken(tokenizer: Tokenizer) -> Gigatoken:
    """Reading a vocabulary into it takes a while, and checking and encoding both want one."""
    return Gigatoken(tokenizer)


def agrees(tokenizer: Tokenizer, pieces: Sequence[bytes]) -> bool:
    """Whether gigatoken gives these pieces the ids that the tokenizers library gives them."""
    ends = np.cumsum([len(piece) + 1 for piece in pieces], dtype=np.int64) - 1
    try:
        ids, counts = _gigatoken(tokenizer).encode(b"\n".join(pieces), ends - [len(piece) for piece in pieces], ends)
    except Exception:  # another library's panic of any kind, or its absence, means: do not use it
        return False
    expected = tokenizer.encode_batch([piece.decode() for piece in pieces])
    whole = np.concatenate([np.zeros(0, np.int32), *expected])
    return np.array_equal(counts, [len(item) for item in expected]) and np.array_equal(ids, whole)


# ----------------------------------------------------------------------------------------------- blocks of documents


class BlockEncoder:
    """Documents as bytes -> Encoded. `fast`: through gigatoken, for byte-level BPE only."""

    def __init__(
        self, tokenizer: Tokenizer, newlines: Newlines, fast: bool, chinese_words: ChineseWords = "characters"
    ) -> None:
        self.tokenizer, self._newlines, self._chinese_words = tokenizer, newlines, chinese_words
        assert not fast or tokenizer.kind == "byte-bpe"
        if tokenizer.kind == "byte-bpe":
            self._pieces = _gigatoken(tokenizer) if fast else WordTable(tokenizer)
            self._starts = words.TokenStarts(tokenizer.token_bytes)
            self._lengths = tokenizer.token_lengths
        before = tokenizer.description.get("pre_tokenizer") or {"split": False}
        self._cuts = before.get("split") is not False  # Metaspace may be told not to

    def encode(self, data: bytes, offsets: np.ndarray, sentences: np.ndarray) -> EncodedDocuments:
        """`offsets`: D+1 byte offsets of documents in `data`; `sentences`: byte offsets of their first characters."""
        if self._newlines == "space":
            data = data.replace(b"\n", b" ")
        text = np.frombuffer(data, np.uint8)
        begins, ends = cut_pieces(text, offsets, self._newlines)
        if self.tokenizer.kind != "byte-bpe":
            return self._by_library(_slices(data, begins, ends), begins, offsets, sentences, text)
        ids, counts = self._pieces.encode(data, begins, ends)
        # Tokens of a byte-level vocabulary cover every byte once, so a running sum of their lengths says where each
        # begins in its piece; `places` moves that to where the piece stands in the data.
        firsts = np.cumsum(counts) - counts
        lengths = self._lengths[ids]
        ahead = np.cumsum(lengths)
        before = ahead - lengths
        if not np.array_equal(ahead[firsts + counts - 1] - before[firsts], ends - begins):
            raise DataError("the vocabulary does not give back the bytes of a text: not a byte-level one")
        places = before
        places += np.repeat(begins - before[firsts], counts)
        pre, starts = self._starts.find(ids, places, text, firsts)
        if self._chinese_words == "jieba":
            words.join_chinese(text, places, starts)
        return _assemble(
            ids=ids, counts=counts, begins=begins, offsets=offsets, places=places, pre=pre, starts=starts,
            sentences=_word_places(sentences, text),
        )  # fmt: skip

    def _by_library(
        self, pieces: list[bytes], begins: np.ndarray, offsets: np.ndarray, sentences: np.ndarray, text: np.ndarray
    ) -> EncodedDocuments:
        ids, counts, places, pre, starts = [], [], [], [], []
        for piece, begin in zip(pieces, begins.tolist(), strict=True):
            line = piece.decode()
            encoding = self.tokenizer.library_encoding(line)
            spans = np.array(encoding.offsets, np.int64).reshape(-1, 2)
            # Byte place of every character, and of the end.
            place = np.append(np.flatnonzero((np.frombuffer(piece, np.uint8) & 0xC0) != 0x80), len(piece)) + begin
            firsts = self._pre_token_starts(encoding.word_ids)
            ids.append(np.array(encoding.ids, np.int64))
            counts.append(len(encoding.ids))
            places.append(place[_visible_begins(line, spans, firsts)])
            pre.append(firsts)
            starts.append(words.token_word_starts(line, spans))
        all_places, word_starts = _joined(places, np.int64), _joined(starts, bool)
        if self._chinese_words == "jieba":
            words.join_chinese(text, all_places, word_starts)
        return _assemble(
            ids=_joined(ids, np.int64),
            counts=np.array(counts, np.int64),
            begins=begins,
            offsets=offsets,
            places=all_places,
            pre=_joined(pre, bool),
            starts=word_starts,
            sentences=sentences,
        )

    def _pre_token_starts(self, numbers: list[int | None]) -> np.ndarray:
        """A bool per token from the library's number of its pre-token. An added token has none: it stands by itself;
        and where the vocabulary cuts no text beforehand, every token does."""
        if not self._cuts:
            return np.ones(len(numbers), bool)
        plain = np.array([-1 if number is None else number for number in numbers], np.int64)
        return (np.diff(plain, prepend=-1) != 0) | (plain == -1)


def _joined(parts: Sequence[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate(parts).astype(kind) if parts else np.zeros(0, kind)


def _visible_begins(line: str, spans: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """Per token the character it starts at, not before the first visible one of its pre-token: the space that a
    word owns is part of the span or not as the vocabulary's file pleases, and may be a token of its own."""
    begins = spans[:, 0].copy()
    groups = np.append(np.flatnonzero(firsts), len(begins))
    spaced = [n for n, begin in enumerate(begins[groups[:-1]].tolist()) if line[begin : begin + 1].isspace()]
    for low, high in zip(groups[spaced].tolist(), groups[1:][spaced].tolist(), strict=True):
        end = int(spans[high - 1, 1])
        if owned := line[begins[low] : end].lstrip():
            begins[low:high] = np.maximum(begins[low:high], end - len(owned))
    return begins


def cut_pieces(text: np.ndarray, offsets: np.ndarray, newlines: Newlines) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of what is encoded by itself, without the ASCII white space around it, empty ones left out."""
    begins, ends = np.asarray(offsets[:-1], np.int64), np.asarray(offsets[1:], np.int64)
    if newlines == "none":
        breaks = np.flatnonzero(text == 10)
        begins = _marked(len(text), breaks[breaks < len(text) - 1] + 1, begins[begins < len(text)])
        # The next newline, or the end of the document: the end of the one before stands where this one begins.
        next_break = np.append(breaks, len(text))[np.searchsorted(breaks, begins)]
        ends = np.minimum(next_break, ends[np.searchsorted(ends, begins, side="right")])
    begins, ends = begins[begins < ends], ends[begins < ends]
    if newlines == "token":
        return begins, ends
    # One pass over all finds the few that begin with white space, and those are cut one by one.
    for piece in np.flatnonzero(_IS_SPACE[text[begins]]).tolist():
        begins[piece] = ends[piece] - len(text[begins[piece] : ends[piece]].tobytes().lstrip(_SPACES))
    for piece in np.flatnonzero((begins < ends) & _IS_SPACE[text[ends - 1]]).tolist():
        ends[piece] = begins[piece] + len(text[begins[piece] : ends[piece]].tobytes().rstrip(_SPACES))
    return begins[begins < ends], ends[begins < ends]


def pieces_of(data: bytes, offsets: np.ndarray, newlines: Newlines) -> list[bytes]:
    """What is encoded by itself, as BlockEncoder does it."""
    data = data.replace(b"\n", b" ") if newlines == "space" else data
    return _slices(data, *cut_pieces(np.frombuffer(data, np.uint8), offsets, newlines))


def _slices(data: bytes, begins: np.ndarray, ends: np.ndarray) -> list[bytes]:
    return [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def _word_places(sentences: np.ndarray, text: np.ndarray) -> np.ndarray:
    """A word owns the space before it, so that is where its first token stands."""
    spaced = (sentences > 0) & (text[np.maximum(sentences - 1, 0)] == 32)
    return sentences - spaced


def _assemble(
    ids: np.ndarray,
    counts: np.ndarray,
    begins: np.ndarray,
    offsets: np.ndarray,
    places: np.ndarray,
    pre: np.ndarray,
    starts: np.ndarray,
    sentences: np.ndarray,
) -> EncodedDocuments:
    """A sentence starts at the first pre-token at or after its first character, in its own document."""
    ahead = np.concatenate([[0], np.cumsum(counts)])
    documents = ahead[np.searchsorted(begins, offsets)]
    tokens = np.searchsorted(places, sentences)
    owner = np.searchsorted(offsets, sentences, side="right") - 1
    if len(waiting := np.flatnonzero(~np.append(pre, True)[tokens])):  # not at a pre-token's start yet
        candidates = np.append(np.flatnonzero(pre), len(ids))
        tokens[waiting] = candidates[np.searchsorted(candidates, tokens[waiting])]
    tokens = tokens[tokens < documents[np.minimum(owner + 1, len(documents) - 1)]]
    firsts = documents[:-1][np.diff(documents) > 0]
    return EncodedDocuments(ids, documents, _marked(len(ids), firsts, tokens), starts)


def _marked(size: int, *places: np.ndarray) -> np.ndarray:
    """All these places below `size`, in order, each once."""
    marks = np.zeros(size, bool)
    for some in places:
        marks[some] = True
    return np.flatnonzero(marks)
