"""Blocks of documents: the same ids as the tokenizer alone, three ways, with documents, sentences and words."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers

from remask.documents import DocumentShard, DocumentWriter
from remask.errors import DataError
from remask.tokenizer import Tokenizer, bulk, words

NEWLINES = ("none", "token", "space")
TEXT = st.text(st.sampled_from(list("ab c.'s,5 \n\t中。é😀  ")), min_size=1, max_size=60)


def _block(texts: list[str]) -> tuple[bytes, np.ndarray]:
    data = [text.encode() for text in texts]
    return b"".join(data), np.cumsum([0, *(len(item) for item in data)])


def _expected_pieces(text: str, newlines: str) -> list[str]:
    space = " \t\n\r\x0b\x0c"
    if newlines == "none":
        return [line.strip(space) for line in text.split("\n") if line.strip(space)]
    if newlines == "space":
        return [text.replace("\n", " ").strip(space)] if text.strip(space) else []
    return [text]


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=5), st.sampled_from(NEWLINES))
def test_every_piece_gets_the_ids_it_gets_alone(small_bpe: Tokenizer, texts: list[str], newlines: str) -> None:
    data, offsets = _block(texts)
    expected = [
        np.concatenate([np.zeros(0, int), *(small_bpe.encode(piece) for piece in _expected_pieces(text, newlines))])
        for text in texts
    ]
    assert bulk.pieces_of(data, offsets, newlines) == [
        piece.encode() for text in texts for piece in _expected_pieces(text, newlines)
    ]
    for fast in _ways():
        block = bulk.BlockEncoder(small_bpe, newlines, fast).encode(data, offsets, offsets[:-1])
        assert block.document_offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
        assert block.ids.tolist() == np.concatenate(expected).tolist()
        assert len(block.word_starts) == len(block.ids)
        assert set(block.sentence_starts) >= {
            o for o, d in zip(block.document_offsets, expected, strict=False) if len(d)
        }


def _ways() -> list[bool]:
    try:
        import gigatoken  # noqa: F401
    except ImportError:
        return [False]
    return [False, True]


def test_newlines_is_a_live_switch(small_bpe: Tokenizer) -> None:
    data, offsets = _block(["The fox.\nThe dog."])
    sizes = {}
    for newlines in NEWLINES:
        block = bulk.BlockEncoder(small_bpe, newlines, False).encode(data, offsets, np.array([0, 9]))
        sizes[newlines] = small_bpe.decode(block.ids)
        assert block.sentence_starts.tolist()[0] == 0
        assert len(block.sentence_starts) == 2
    assert sizes == {"none": "The fox.The dog.", "token": "The fox.\nThe dog.", "space": "The fox. The dog."}


def test_a_sentence_starts_with_the_token_of_its_first_word(small_bpe: Tokenizer, small_wordpiece: Tokenizer) -> None:
    text = "The fox jumps. It's resting! 今天天气很好。我们去公园玩。\n  (The dog.)"
    starts = [0, text.index("It's"), text.index("今"), text.index("我"), text.index("(The")]
    data, offsets = _block(["First one.", text])
    places = np.array([0, *(10 + len(text[:start].encode()) for start in starts)])
    for tokenizer in (small_bpe, small_wordpiece):
        block = bulk.BlockEncoder(tokenizer, "none", False).encode(data, offsets, places)
        assert len(block.sentence_starts) == 6
        parts = np.split(block.ids, block.sentence_starts[1:])
        if tokenizer is small_bpe:
            assert [tokenizer.decode(part) for part in parts] == [
                "First one.",
                "The fox jumps.",
                " It's resting!",
                " 今天天气很好。",
                "我们去公园玩。",
                "(The dog.)",
            ]


def _other_kinds(small_bpe: Tokenizer) -> dict[str, Tokenizer]:
    """The same entries with what makes them no plain byte-level BPE; spans with the space before a word or without."""
    normalised = {**small_bpe.description, "normalizer": {"type": "NFC"}}
    untrimmed = {**normalised, "post_processor": None}
    library = Library.from_str(json.dumps(small_bpe.description))
    library.add_tokens(["New York"])
    pieces = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")]
    letters = Library(models.Unigram([*pieces, *((letter, -1.0) for letter in "▁OneTwohrabNYk.")], 3))
    letters.pre_tokenizer = pre_tokenizers.Metaspace()
    whole = Library(models.Unigram([*pieces, *((letter, -1.0) for letter in " OneTwohrabNYk.")], 3))
    return {
        "normalised": Tokenizer(normalised),
        "untrimmed": Tokenizer(untrimmed),
        "added": Tokenizer(json.loads(library.to_str())),
        "metaspace": Tokenizer(json.loads(letters.to_str())),
        "uncut": Tokenizer(json.loads(whole.to_str())),
    }


@pytest.mark.parametrize("kind", ["normalised", "untrimmed", "added", "metaspace", "uncut"])
def test_sentences_of_any_vocabulary_start_with_their_first_word(kind: str, small_bpe: Tokenizer) -> None:
    tokenizer = _other_kinds(small_bpe)[kind]
    assert tokenizer.kind == "other"
    text = "One a. Two b. Three. New York New York. b.\nTwo a."
    starts = [text.index(word) for word in ("One", "Two b", "Three", "New", "b.\n", "Two a")]
    data, offsets = _block([text])
    block = bulk.BlockEncoder(tokenizer, "none", False).encode(data, offsets, np.array(starts))
    parts = [tokenizer.decode(part).strip("▁ ") for part in np.split(block.ids, block.sentence_starts[1:])]
    parts = [part.replace(" ", "").replace("▁", "") for part in parts]
    assert parts == ["Onea.", "Twob.", "Three.", "NewYorkNewYork.", "b.", "Twoa."]
    lines = [tokenizer.encode(line).tolist() for line in text.split("\n")]
    assert block.ids.tolist() == [*lines[0], *lines[1]]


def test_a_space_that_is_a_token_of_its_own_starts_the_sentence_of_its_word(small_bpe: Tokenizer) -> None:
    description = small_bpe.description
    description |= {"normalizer": {"type": "NFC"}, "post_processor": None}
    description["model"]["merges"] = []
    tokenizer = Tokenizer(description)
    data, offsets = _block(["One a. Two b."])
    block = bulk.BlockEncoder(tokenizer, "none", False).encode(data, offsets, np.array([0, 7]))
    assert block.sentence_starts.tolist() == [0, 6]


class _Counted(np.ndarray):
    """Counts how often it is looked into."""

    looks = 0

    def __getitem__(self, key: object) -> np.ndarray:
        _Counted.looks += 1
        return np.asarray(super().__getitem__(key))  # pyrefly: ignore[no-matching-overload]


def test_long_runs_of_space_are_cut_off_in_one_go() -> None:
    data = b"\n".join([b" " * 500_000 + b"a b" + b"\t" * 500_000, b" " * 9, b"c"])
    _Counted.looks = 0
    text = np.frombuffer(data, np.uint8).view(_Counted)
    begins, ends = bulk.cut_pieces(text, np.array([0, len(data)]), "none")
    assert [data[a:b] for a, b in zip(begins, ends, strict=True)] == [b"a b", b"c"]
    assert _Counted.looks < 10


def test_a_sentence_in_the_middle_of_a_pre_token_waits_for_the_next(small_bpe: Tokenizer) -> None:
    data, offsets = _block(['He left."Then" it'])
    block = bulk.BlockEncoder(small_bpe, "none", False).encode(data, offsets, np.array([0, 8]))
    first, second = np.split(block.ids, block.sentence_starts[1:])
    assert small_bpe.decode(first) == 'He left."'
    assert small_bpe.decode(second) == 'Then" it'


def test_a_sentence_without_tokens_is_none(small_bpe: Tokenizer) -> None:
    data, offsets = _block(['End."', "Next."])
    block = bulk.BlockEncoder(small_bpe, "none", False).encode(data, offsets, np.array([0, 4, 5]))
    assert block.sentence_starts.tolist() == block.document_offsets[:-1].tolist()


def test_words_of_any_vocabulary_follow_the_rule_by_character(small_wordpiece: Tokenizer) -> None:
    line = 'The fox (it\'s "state-of-the-art") 狐狸跳。'
    data, offsets = _block([line])
    block = bulk.BlockEncoder(small_wordpiece, "none", False).encode(data, offsets, np.array([0]))
    _, spans = small_wordpiece.encode_with_offsets(line)
    assert block.word_starts.tolist() == words.token_word_starts(line, spans).tolist()


def test_gigatoken_that_gives_other_ids_is_found_out(small_bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [b"The quick brown fox", b"jumps"]
    pytest.importorskip("gigatoken")
    assert bulk.agrees(small_bpe, pieces)
    right = bulk.Gigatoken.encode
    monkeypatch.setattr(bulk.Gigatoken, "encode", lambda self, p: (right(self, p)[0][::-1], right(self, p)[1]))
    assert not bulk.agrees(small_bpe, pieces)


def test_a_vocabulary_that_loses_bytes_is_refused(small_bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = bulk.BlockEncoder(small_bpe, "none", False)
    encoder._lengths = encoder._lengths + 1
    data, offsets = _block(["The fox"])
    with pytest.raises(DataError, match="does not give back the bytes"):
        encoder.encode(data, offsets, np.array([0]))


def test_the_word_table_forgets_rather_than_grows(small_bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MAX_WORDS_SEEN", 3)
    table = bulk.WordTable(small_bpe)
    for number in range(5):
        text = f"word{number} the fox".encode()
        ids, counts = table.encode(text, np.array([0]), np.array([len(text)]))
        assert small_bpe.decode(ids) == f"word{number} the fox"
        assert counts.tolist() == [len(ids)]
    assert len(table._seen) <= 3 + 3


def test_portions_cover_every_document_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MIN_PORTION_BYTES", 300)
    monkeypatch.setattr(bulk, "BLOCK_BYTES", 100)
    sizes = [1, 50, 120, 700, 10, 10, 99, 100, 101, 5]
    with DocumentWriter(tmp_path, "corpus.train.00000") as writer:
        for size in sizes:
            writer.add("x" * size, [0])
        writer.close()
    shard = DocumentShard(tmp_path, "corpus.train.00000")
    portions = bulk.plan_blocks([shard])
    assert portions[0].first == 0
    assert all(one.last == two.first for one, two in pairwise(portions))
    assert portions[-1].last == len(sizes)
    assert len(portions) > 2
    seen = [np.diff(offsets) for portion in portions for _, offsets, _ in portion]
    assert np.concatenate(seen).tolist() == sizes
    assert sum(len(starts) for portion in portions for _, _, starts in portion) == len(sizes)
    assert sum(portion.num_bytes for portion in portions) == sum(sizes)
