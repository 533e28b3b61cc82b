"""Documents -> vocabulary, the same one from any number of workers, hash seed and order of files.

Words (pre-tokens) are counted shard by shard into sorted files, added up in one streaming merge of bounded memory,
and the trainer sees nothing but that sorted table: each word as often as it occurred. Every table has a limit, whatever
the text: a worker's is written out when it is full, so that nothing is lost; of all words the most frequent go to the
trainer, up to `max_distinct_words` and DISTINCT_BYTES (text without spaces is made of long words that hardly repeat),
and what that drops is told; the text that they stand for is thinned to TRAINING_BYTES. The trainer of record is the
`tokenizers` library; gigatoken (extra `fast`) does the same merges faster and is used only after it agreed on a
sample of the user's own words. RoBERTa section 4.4 (bytes as base units); BERT's WordPiece for the baseline.
Not here: encoding (bulk.py) and who calls these tasks (preparation).
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import re
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from remask import artifacts
from remask.errors import DataError
from remask.schema import Json
from remask.tokenizer.bulk import Blocks, pieces_of
from remask.tokenizer.codec import BYTE_OF_LETTER, LETTER_OF_BYTE, Tokenizer
from remask.tokenizer.foreign import byte_bpe
from remask.tokenizer.settings import NUM_BYTES, NUM_SPECIALS, TokenizerSettings
from remask.tokenizer.words import has_odd_space

BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BERT_ALPHABET = 1000  # characters that a WordPiece vocabulary knows at least, where it has the room
BERT_COVERAGE = 0.9999  # of all characters of the text that it knows, where half of its room is enough for that
SAMPLE_BYTES = 200_000  # words on which gigatoken must agree before it trains
SAMPLE_MERGES = 300
# Beyond this much text all counts are divided alike: the trainers want words, not counts, and hold them in memory.
TRAINING_BYTES = 128_000_000
# Of all distinct words together: a trainer holds about 60 bytes for each of theirs.
DISTINCT_BYTES = 24_000_000
TABLE_WORDS = 500_000  # that a worker counts before it writes them out: about 100 MB, at most 256 bytes a word
_OPEN_FILES = 200  # merged at a time
_WHITE = re.compile(r"^\s|\s$")
_RUN = struct.Struct("<Q")
_RUN_WORDS = 4096
IN_MEMORY_BYTES = 48_000_000  # files of counts up to this size are added up in a table, which is faster


# ------------------------------------------------------------------------------------------- counting words


@dataclass(frozen=True)
class CountTask:
    """Count the words of some documents into the file `out`."""

    blocks: Blocks
    out: Path
    record: Path
    settings: TokenizerSettings
    fast: bool


def count_words(task: CountTask) -> int:
    """Writes (word, count) sorted by word, and then the record that makes them count; returns the bytes of text read.
    For run_tasks."""
    counts: Counter[bytes] = Counter()
    parts: list[Path] = []

    def write_out() -> None:
        parts.append(task.out.with_name(f"{task.out.name}-{len(parts)}"))
        write_counts(parts[-1], sorted(counts.items()))
        counts.clear()

    for data, offsets, _ in task.blocks:
        found = count_pieces(pieces_of(data, offsets, task.settings.newlines), task.settings, task.fast)
        counts.update(cut_words(found, task.settings.max_word_bytes))
        if len(counts) > TABLE_WORDS:
            write_out()
    if parts:
        write_out()
        write_counts(task.out, _summed(parts))
        for part in parts:
            part.unlink()
    else:
        write_counts(task.out, sorted(counts.items()))
    artifacts.finish(task.record, task.blocks.num_bytes, [task.out])
    return task.blocks.num_bytes


def count_pieces(pieces: Sequence[bytes], settings: TokenizerSettings, fast: bool) -> Counter[bytes]:
    """The words of texts that are encoded by themselves; `fast`: with gigatoken."""
    if settings.kind == "wordpiece":
        return _count_bert(pieces, settings)
    return _count_fast(pieces) if fast else _count_plain(pieces)


def _count_plain(pieces: Sequence[bytes]) -> Counter[bytes]:
    """With the pre-tokenizer of record. It is slow, but what stands between two single spaces is cut the same way
    wherever it occurs, so each distinct piece is cut once."""
    chunks: Counter[str] = Counter()
    for line in map(bytes.decode, pieces):
        if has_odd_space(line):
            chunks[line] += 1
        else:
            first, *rest = line.split(" ")
            chunks[first] += 1
            chunks.update([" " + word for word in rest])
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str
    counts: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for word, _ in cut(chunk):
            counts[word] += count
    return Counter({bytes(BYTE_OF_LETTER[c] for c in word): count for word, count in counts.items()})


def _count_fast(pieces: Sequence[bytes]) -> Counter[bytes]:
    from gigatoken.gigatoken_rs import pretokenized_counts

    with _silence():
        return Counter(dict(pretokenized_counts(b"\xff".join(pieces), b"\xff")))


def _count_bert(pieces: Sequence[bytes], settings: TokenizerSettings) -> Counter[bytes]:
    """BERT's normalisation and cutting look at one white-space word at a time: each distinct one is done once."""
    words: Counter[str] = Counter()
    for line in map(bytes.decode, pieces):
        words.update(line.split())
    normalize = _bert_normalizer(settings).normalize_str
    cut = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    counts: Counter[bytes] = Counter()
    for word, count in words.items():
        for piece, _ in cut(normalize(word)):
            counts[piece.encode()] += count
    return counts


def cut_words(counts: Counter[bytes], limit: int) -> Counter[bytes]:
    """Words over `limit` bytes in pieces of whole characters: training time and memory grow with a word's square."""
    for word in [word for word in counts if len(word) > limit]:
        count = counts.pop(word)
        text, piece, size = word.decode(), "", 0
        for letter in text:
            width = len(letter.encode())
            if size + width > limit:
                counts[piece.encode()] += count
                piece, size = "", 0
            piece += letter
            size += width
        counts[piece.encode()] += count
    return counts


def write_counts(path: Path, entries: Iterable[tuple[bytes, int]]) -> None:
    """In runs of a few thousand words: sizes, the words, 8 bytes a count."""
    remaining = iter(entries)
    with artifacts.output_errors(path), path.open("wb") as file:
        while some := list(islice(remaining, _RUN_WORDS)):
            words = b"\xff".join(word for word, _ in some)
            counts = np.array([count for _, count in some], "<i8").tobytes()
            file.write(_RUN.pack(len(words)) + words + _RUN.pack(len(counts)) + counts)


def read_counts(path: Path) -> Iterator[tuple[bytes, int]]:
    with path.open("rb") as file:
        while size := file.read(_RUN.size):
            words = file.read(_RUN.unpack(size)[0]).split(b"\xff")
            counts = np.frombuffer(file.read(_RUN.unpack(file.read(_RUN.size))[0]), "<i8").tolist()
            yield from zip(words, counts, strict=True)


@dataclass(frozen=True)
class WordCounts:
    """The most frequent words of a corpus, by count and word."""

    words: list[tuple[bytes, int]]
    num_distinct: int  # of the whole corpus
    kept_share: float  # of its text that these words make up


def merge_counts(paths: Sequence[Path], limit: int, limit_bytes: int = DISTINCT_BYTES) -> WordCounts:
    """The most frequent words over all files: at most `limit`, of `limit_bytes` together. Sorted files are merged as
    streams, so memory is bounded by these, not by the corpus."""
    if sum(path.stat().st_size for path in paths) <= IN_MEMORY_BYTES:
        together: Counter[bytes] = Counter()
        for path in paths:
            together.update(dict(read_counts(path)))
        return _most_frequent(together.items(), limit, limit_bytes)
    paths = list(paths)
    while len(paths) > _OPEN_FILES:
        group, paths = paths[:_OPEN_FILES], paths[_OPEN_FILES:]
        joined = group[0].with_name(f"{group[0].name}+")
        write_counts(joined, _summed(group))
        paths.append(joined)
    return _most_frequent(_summed(paths), limit, limit_bytes)


def _most_frequent(entries: Iterable[tuple[bytes, int]], limit: int, limit_bytes: int) -> WordCounts:
    """By rank down to the first that does not fit, whatever the order of the entries."""
    best: list[tuple[int, bytes]] = []
    highest_dropped = (0, b"")
    num_distinct = all_bytes = best_bytes = 0
    for word, count in entries:
        num_distinct += 1
        all_bytes += count * len(word)
        if (count, word) < highest_dropped:  # as most of a large corpus: its words are rare
            continue
        heapq.heappush(best, (count, word))
        best_bytes += len(word)
        while len(best) > limit or best_bytes > limit_bytes:
            dropped = heapq.heappop(best)
            best_bytes -= len(dropped[1])
            highest_dropped = max(highest_dropped, dropped)
    # One that was dropped to make room for more frequent ones may rank before others that are shorter.
    ranked = [(word, count) for count, word in sorted(best, reverse=True) if (count, word) > highest_dropped]
    kept_bytes = sum(count * len(word) for word, count in ranked)
    return WordCounts(ranked, num_distinct, kept_bytes / all_bytes if all_bytes else 1.0)


def _summed(paths: Sequence[Path]) -> Iterator[tuple[bytes, int]]:
    word, total = b"", 0
    for following, count in heapq.merge(*map(read_counts, paths)):
        if following != word:
            if total:
                yield word, total
            word, total = following, 0
        total += count
    if total:
        yield word, total


def thin(words: list[tuple[bytes, int]], limit: int = TRAINING_BYTES) -> list[tuple[bytes, int]]:
    """All counts divided by the number that makes the text they stand for fit; rounded to the nearest, zeros out.
    Where most words are rare, all of them would go, or all stay: there each is rounded up or down by its hash."""
    divisor = -(-_text_bytes(words) // limit)
    if divisor <= 1:
        return words
    nearest = [(word, count) for word, full in words if (count := (full + divisor // 2) // divisor)]
    if limit / 2 <= _text_bytes(nearest) <= limit * 4 / 3:
        return nearest
    by_hash = [(word, (full + zlib.crc32(word) % divisor) // divisor) for word, full in words]
    return [(word, count) for word, count in by_hash if count]


def _text_bytes(words: Iterable[tuple[bytes, int]]) -> int:
    """With a space for each."""
    return sum((len(word) + 1) * count for word, count in words)


# ------------------------------------------------------------------------------------------------- training


def train_tokenizer(words: list[tuple[bytes, int]], settings: TokenizerSettings, use_gigatoken: bool) -> Tokenizer:
    """From a table of words. The result may be smaller than asked where the words give no more merges."""
    if not words:
        raise DataError(
            "no words to train a vocabulary on: no document is left for training; more text, or less of it held out"
        )
    words = thin(words)
    if settings.kind == "wordpiece":
        return _train_wordpiece(words, settings)
    merges = (gigatoken_merges if use_gigatoken else library_merges)(words, settings.vocab_size)
    entries = [LETTER_OF_BYTE[byte] for byte in sorted(range(NUM_BYTES), key=lambda b: LETTER_OF_BYTE[b])]
    known = set(entries)
    used: list[tuple[str, str]] = []
    for left, right in merges:
        if len(entries) + NUM_SPECIALS == settings.vocab_size:
            break
        used.append((_letters(left), _letters(right)))
        product = used[-1][0] + used[-1][1]
        if product not in known:
            known.add(product)
            entries.append(product)
    return Tokenizer(byte_bpe(entries, used))


def _letters(data: bytes) -> str:
    return "".join(LETTER_OF_BYTE[byte] for byte in data)


def library_merges(words: list[tuple[bytes, int]], vocab_size: int) -> list[tuple[bytes, bytes]]:
    """By `tokenizers`, the trainer of record."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - NUM_SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        special_tokens=[],
    )
    library.train_from_iterator(_as_texts(words), trainer)
    merges = _model_of(library)["merges"]
    return [(_bytes(left), _bytes(right)) for left, right in merges]


def _bytes(letters: str) -> bytes:
    return bytes(BYTE_OF_LETTER[letter] for letter in letters)


def _model_of(library: Library) -> Json:
    return json.loads(library.to_str())["model"]


def _as_texts(words: list[tuple[bytes, int]], characters: int = 1_000_000) -> Iterator[str]:
    """Each word as often as it counts, in texts that are cut into just these words again. A newline between them
    is a word of one byte, which takes part in no merge; words with white space at an end go one by one."""
    lines: list[str] = []
    size = 0
    for word, count in words:
        text = word.decode()
        if _WHITE.search(text[1:] if text.startswith(" ") and text[1:2].strip() else text):
            yield from (text for _ in range(count))
            continue
        while count:
            many = min(count, max(1, (characters - size) // (len(text) + 1)))
            lines += [text] * many
            size += many * (len(text) + 1)
            count -= many
            if size >= characters - 100:
                yield "\n".join(lines)
                lines, size = [], 0
    if lines:
        yield "\n".join(lines)


def gigatoken_merges(words: list[tuple[bytes, int]], vocab_size: int) -> list[tuple[bytes, bytes]]:
    import gigatoken

    data = b"".join((word + b"\xff") * count for word, count in words)
    with _silence():
        _, merges = gigatoken.train_bpe(data, vocab_size - NUM_SPECIALS, [], separator=b"\xff")
    return merges[: _last_useful(words, merges)]


def _last_useful(words: list[tuple[bytes, int]], merges: list[tuple[bytes, bytes]]) -> int:
    """gigatoken goes on with pairs that no longer occur once every word is one token; the library stops there."""
    ranks: dict[bytes, int] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank)
    last = 0
    for word, _ in words:
        if len(word) > 1:
            if word not in ranks:
                return len(merges)
            last = max(last, ranks[word] + 1)
    return last


def gigatoken_agrees(words: list[tuple[bytes, int]]) -> bool:
    """Whether both trainers make the same merges of a sample of these words: the frequent, and some of the rare."""
    sample: list[tuple[bytes, int]] = []
    size = 0
    step = max(1, len(words) // 5000)
    for word, count in words[:2000] + words[2000::step]:
        few = min(count, 20)
        size += (len(word) + 1) * few
        sample.append((word, few))
        if size > SAMPLE_BYTES:
            break
    vocab_size = NUM_BYTES + NUM_SPECIALS + SAMPLE_MERGES
    try:
        return gigatoken_merges(sample, vocab_size) == library_merges(sample, vocab_size)
    except Exception:  # another library's panic of any kind means: do not use it
        return False


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """gigatoken prints while it works, past Python's own streams, and stdout is for results."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(1), os.dup(2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        yield
    finally:
        for number, handle in enumerate(saved, start=1):
            os.dup2(handle, number)
            os.close(handle)
        os.close(nowhere)


# ----------------------------------------------------------------------------------------------- BERT's kind


def _bert_normalizer(settings: TokenizerSettings) -> normalizers.BertNormalizer:
    return normalizers.BertNormalizer(lowercase=settings.lowercase, strip_accents=settings.lowercase)


def _train_wordpiece(words: list[tuple[bytes, int]], settings: TokenizerSettings) -> Tokenizer:
    """The trainer numbers characters, and breaks ties by those numbers, in hash order; so it is handed all of them,
    at a word's start and inside (`##`), as if they were special tokens."""
    letters: Counter[str] = Counter()
    inside: set[str] = set()
    for word, count in words:
        text = word.decode()
        inside.update(text[1:])
        for letter in text:
            letters[letter] += count
    kept = _alphabet(letters, inside, (settings.vocab_size - len(BERT_SPECIALS)) // 2)
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.vocab_size,
        initial_alphabet=kept,
        limit_alphabet=len(kept),
        special_tokens=[*BERT_SPECIALS, *kept, *(f"##{letter}" for letter in kept if letter in inside)],
        show_progress=False,
    )
    library.train_from_iterator(_as_texts(words), trainer)
    library.normalizer = _bert_normalizer(settings)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    library.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    description = json.loads(library.to_str())
    description["added_tokens"] = [token for token in description["added_tokens"] if token["content"] in BERT_SPECIALS]
    return Tokenizer(description)


def _alphabet(letters: Counter[str], inside: Collection[str], room: int) -> list[str]:
    """The most frequent characters, sorted: a thousand, and on until they cover the text. That ends soon after for
    European text; Chinese, where BERT's own vocabularies hold some 7,300 characters, goes on to several thousand."""
    kept: list[str] = []
    entries, covered, enough = 0, 0, BERT_COVERAGE * letters.total()
    for letter in sorted(letters, key=lambda letter: (-letters[letter], letter)):
        entries += 2 if letter in inside else 1
        if len(kept) >= min(BERT_ALPHABET, room) and (covered >= enough or entries > room):
            break
        kept.append(letter)
        covered += letters[letter]
    return sorted(kept)
