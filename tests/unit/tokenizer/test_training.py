"""Counting words and training from the table of counts."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import ByteLevelBPETokenizer, pre_tokenizers

from remask.errors import ConfigError, DataError
from remask.tokenizer import training
from remask.tokenizer.codec import BYTE_OF_LETTER
from remask.tokenizer.settings import TokenizerSettings

TEXT = st.text(st.sampled_from(list("abc '.,!5 \t\n  \u00a0\u3000中文ह́é😀'st")), max_size=40)


def _reference_counts(pieces: list[bytes]) -> Counter[bytes]:
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    words = Counter(word for piece in pieces for word, _ in cut(piece.decode()))
    return Counter({bytes(BYTE_OF_LETTER[c] for c in word): n for word, n in words.items()})


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXT.map(str.encode).filter(bool), min_size=1, max_size=4))
def test_words_are_those_of_the_pre_tokenizer_of_record(pieces: list[bytes]) -> None:
    expected = _reference_counts(pieces)
    assert training.count_pieces(pieces, TokenizerSettings(), False) == expected
    pytest.importorskip("gigatoken")
    assert training.count_pieces(pieces, TokenizerSettings(), True) == expected


def test_training_from_counts_equals_training_on_the_text() -> None:
    """Both trainers, against the library fed with the raw lines."""
    words = ["the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "with", "be", "this", "have"]
    lines = [" ".join(words[(7 * i + j * j) % len(words)] for j in range(12)) + ", don't stop." for i in range(200)]
    library = ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    library.train_from_iterator(lines, vocab_size=349, min_frequency=0, special_tokens=specials, show_progress=False)
    expected = json.loads(library.to_str())["model"]
    pieces = [line.encode() for line in lines]
    for fast in (False, True):
        if fast:
            pytest.importorskip("gigatoken")
        table = training.count_pieces(pieces, TokenizerSettings(), fast)
        tokenizer = training.train_tokenizer(sorted(table.items()), TokenizerSettings(vocab_size=350), fast)
        assert tokenizer.description["model"]["merges"] == expected["merges"]
        assert all(tokenizer.tokens[number] == name for name, number in expected["vocab"].items())


def test_gigatoken_agrees_on_a_sample(word_table: list[tuple[bytes, int]]) -> None:
    pytest.importorskip("gigatoken")
    assert training.gigatoken_agrees(word_table)


def test_a_trainer_that_disagrees_is_found_out(
    word_table: list[tuple[bytes, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "gigatoken_merges", lambda words, size: training.library_merges(words, size)[::-1])
    assert not training.gigatoken_agrees(word_table)


def test_a_trainer_that_breaks_is_not_used(
    word_table: list[tuple[bytes, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(words: object, size: int) -> None:
        raise RuntimeError("panic")

    monkeypatch.setattr(training, "gigatoken_merges", breaks)
    assert not training.gigatoken_agrees(word_table)


def test_gigatoken_prints_nothing(word_table: list[tuple[bytes, int]], capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gigatoken")
    training.gigatoken_merges(word_table, 300)
    training.count_pieces([b"one two"], TokenizerSettings(), True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("in_memory", [False, True])
def test_counts_of_many_files_add_up_whatever_their_order(
    in_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_OPEN_FILES", 3)
    monkeypatch.setattr(training, "_RUN_WORDS", 2)
    monkeypatch.setattr(training, "IN_MEMORY_BYTES", 10**6 if in_memory else 0)
    tables = [Counter({b"a": n, b"word%d" % (n % 4): 2, b"z": 1}) for n in range(1, 9)]
    paths = []
    for number, table in enumerate(tables):
        paths.append(tmp_path / f"{number}")
        training.write_counts(paths[-1], sorted(table.items()))
    total = sum(tables, Counter())
    expected = sorted(total.items(), key=lambda pair: (pair[1], pair[0]), reverse=True)
    assert training.merge_counts(paths, 100) == training.WordCounts(expected, len(total), 1.0)
    assert training.merge_counts(paths[::-1], 100) == training.WordCounts(expected, len(total), 1.0)
    few = training.merge_counts(paths, 2)
    assert (few.words, few.num_distinct) == (expected[:2], len(total))
    sizes = [len(word) * count for word, count in expected]
    assert few.kept_share == pytest.approx(sum(sizes[:2]) / sum(sizes))


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.binary(min_size=1, max_size=9), st.integers(1, 5), max_size=30),
    st.integers(1, 30), st.integers(0, 80), st.randoms(),
)  # fmt: skip
def test_the_most_frequent_words_that_fit_are_kept_whatever_their_order(
    table: dict[bytes, int], limit: int, limit_bytes: int, shuffler: random.Random
) -> None:
    ranked = sorted(table.items(), key=lambda pair: (pair[1], pair[0]), reverse=True)
    ends = list(accumulate(len(word) for word, _ in ranked))
    expected = ranked[: min(limit, sum(end <= limit_bytes for end in ends))]
    entries = list(table.items())
    shuffler.shuffle(entries)
    assert training._most_frequent(entries, limit, limit_bytes).words == expected


LETTERS = [chr(0x4E00 + i) for i in range(40)]


def unspaced(draw: random.Random, num_clauses: int) -> bytes:
    """Clauses as Chinese has them: hardly any comes twice, and no space anywhere."""
    words = ["".join(draw.choices(LETTERS, k=draw.randint(1, 3))) for _ in range(60)]
    clauses = ["".join(draw.choices(words, k=draw.randint(3, 8))) for _ in range(num_clauses)]
    return "，".join(clauses).encode()


@dataclass(frozen=True)
class Given:
    """Blocks of documents that are there already."""

    blocks: list[bytes]
    num_bytes: int = 0

    def __iter__(self) -> Iterator[tuple[bytes, np.ndarray, np.ndarray]]:
        for data in self.blocks:
            yield data, np.array([0, len(data)]), np.zeros(0, np.int64)


def test_a_table_that_is_written_out_when_full_counts_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text without spaces in a table of 50 words, and in one without a limit: the same files, the same merges."""
    draw = random.Random(1)
    blocks = Given([unspaced(draw, 100) for _ in range(5)] + [("中" * 400).encode()])
    options = TokenizerSettings(vocab_size=400, max_word_bytes=32)
    most, plain = [], training.write_counts

    def write_counts(path: Path, entries: Any) -> None:
        if "-" in path.name:
            entries = list(entries)
            most.append(len(entries))
        plain(path, entries)

    monkeypatch.setattr(training, "write_counts", write_counts)
    files, merges = {}, {}
    for name, limit in (("bounded", 50), ("free", 10**9)):
        monkeypatch.setattr(training, "TABLE_WORDS", limit)
        task = training.CountTask(blocks, tmp_path / name, tmp_path / f"{name}.json", options, False)  # type: ignore[arg-type]
        training.count_words(task)
        files[name] = task.out.read_bytes()
        table = training.merge_counts([task.out], 10**6)
        assert table.kept_share == 1.0
        assert max(len(word) for word, _ in table.words) <= 32
        merges[name] = training.train_tokenizer(table.words, options, False).description["model"]["merges"]
    assert files["bounded"] == files["free"]
    assert merges["bounded"] == merges["free"]
    assert len(merges["free"]) == 400 - 261
    assert len(most) > 3
    assert max(most) < table.num_distinct / 3  # what was there, and one block's words
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bounded", "bounded.json", "free", "free.json"]


def test_what_the_trainer_sees_is_bounded_and_what_is_dropped_is_told(tmp_path: Path) -> None:
    draw = random.Random(2)
    blocks = Given([unspaced(draw, 300) for _ in range(3)])
    task = training.CountTask(blocks, tmp_path / "counts", tmp_path / "r.json", TokenizerSettings(), False)  # type: ignore[arg-type]
    training.count_words(task)
    whole = training.merge_counts([task.out], 10**6)
    table = training.merge_counts([task.out], 10**6, 4_000)
    assert sum(len(word) for word, _ in whole.words) > 8_000
    assert 3_900 < sum(len(word) for word, _ in table.words) <= 4_000
    assert table.words == whole.words[: len(table.words)]
    assert table.num_distinct == whole.num_distinct
    assert 0.1 < table.kept_share < 0.9


@pytest.mark.parametrize("divisor", [2, 3, 7])
def test_rare_words_are_thinned_by_their_hash(divisor: int) -> None:
    """Rounded to the nearest, words that all come once would all stay, or all go: DNA was no text at all."""
    words = [(bytes(f"word{i}", "ascii"), 1) for i in range(9000)]
    total = sum(len(word) + 1 for word, _ in words)
    thinned = training.thin(words, total // divisor + 1)
    assert set(thinned) < set(words)
    assert sum(len(word) + 1 for word, _ in thinned) == pytest.approx(total / divisor, rel=0.05)
    assert training.thin(words[::-1], total // divisor + 1) == thinned[::-1]


def test_counts_are_thinned_alike_when_there_is_too_much_text() -> None:
    words = [(b"the", 1000), (b"rare", 10), (b"once", 1)]
    assert training.thin(words, 10**6) == words
    assert training.thin(words, 500) == [(b"the", 111), (b"rare", 1)]


def test_long_runs_are_cut_between_characters() -> None:
    word = "中" * 100
    cut = training.cut_words(Counter({word.encode(): 3, b"short": 1}), 16)
    assert cut == Counter({b"short": 1, ("中" * 5).encode(): 60})
    assert "".join(piece.decode() * (count // 3) for piece, count in cut.items() if piece != b"short") == word


def test_words_as_texts_are_cut_into_the_same_words() -> None:
    words = [(b" the", 70), (b"the", 3), (b"  ", 2), (b"\n\n", 1), (b"'s", 2), (" 中文".encode(), 5), (b"!?", 4)]
    texts = [text.encode() for text in training._as_texts(words, characters=50)]
    counts = _reference_counts(texts)
    counts.pop(b"\n")
    assert counts == Counter(dict(words))


def test_wordpiece_folds_case_only_when_asked() -> None:
    pieces = [b"The THE the caf\xc3\xa9"] * 3
    folded = training.count_pieces(pieces, TokenizerSettings(kind="wordpiece"), False)
    kept = training.count_pieces(pieces, TokenizerSettings(kind="wordpiece", lowercase=False), False)
    assert folded == Counter({b"the": 9, b"cafe": 3})
    assert kept == Counter({b"The": 3, b"THE": 3, b"the": 3, "café".encode(): 3})


def test_wordpiece_knows_the_characters_of_chinese_and_no_more_than_a_thousand_where_they_are_enough() -> None:
    chinese = [(chr(0x4E00 + n).encode(), max(1, 200_000 // (n + 1))) for n in range(3000)]
    tokenizer = training.train_tokenizer(chinese, TokenizerSettings(kind="wordpiece", vocab_size=8000), False)
    total = sum(count for _, count in chinese)
    ids = tokenizer.encode_batch([word.decode() for word, _ in chinese])
    unknown = sum(count for found, (_, count) in zip(ids, chinese, strict=True) if tokenizer.unk_id in found)
    assert unknown <= 2e-4 * total
    small = training.train_tokenizer(chinese, TokenizerSettings(kind="wordpiece", vocab_size=1005), False)
    assert len(small.tokens) == 505, "half of a small vocabulary stays for words"
    european = [(chr(ord("a") + n % 26).encode() * 2, 30_000) for n in range(26)] + [
        (word, 1) for word, _ in chinese[:1100]
    ]
    plain = training.train_tokenizer(european, TokenizerSettings(kind="wordpiece", vocab_size=8000), False)
    assert sum(len(token) == 1 for token in plain.tokens) == training.BERT_ALPHABET


WORDPIECE = """
import random
from collections import Counter
from remask.tokenizer import training
from remask.tokenizer.settings import TokenizerSettings
settings = TokenizerSettings(kind="wordpiece", vocab_size=900)
chance = random.Random(5)
letters = "abcdefghijklmnopqrstuvwxyzéß山水火木金土"
lines = [" ".join("".join(chance.choices(letters, k=chance.randrange(1, 7))) for _ in range(30)) for _ in range(60)]
words = sorted(training.count_pieces([line.encode() for line in lines], settings, False).items())
print(training.train_tokenizer(words, settings, False).fingerprint)
"""


def test_wordpiece_is_one_vocabulary_over_hash_seeds_and_threads() -> None:
    """The words are full of ties, which the library's trainer by itself breaks in the order of a hash table."""
    found = set()
    for hash_seed, threads in (("1", "1"), ("2", "2"), ("3", "1"), ("4", "2")):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "RAYON_NUM_THREADS": threads}
        done = subprocess.run([sys.executable, "-c", WORDPIECE], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1


def test_a_vocabulary_is_as_large_as_the_words_allow(word_table: list[tuple[bytes, int]]) -> None:
    tokenizer = training.train_tokenizer([(b"ab", 3)], TokenizerSettings(vocab_size=1000), False)
    assert tokenizer.tokens[-2:] == ["ab", "<mask>"]
    assert tokenizer.vocab_size == 262
    with pytest.raises(DataError, match="no words"):
        training.train_tokenizer([], TokenizerSettings(), False)


def test_a_size_below_the_bytes_is_refused() -> None:
    from remask.config import build_run
    from remask.preparation.settings import PrepareRun

    with pytest.raises(ConfigError, match="at least 261"):
        build_run(PrepareRun, assignments=["tokenizer.vocab_size=100"])
