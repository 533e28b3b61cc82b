"""The byte-level BPE against the real RoBERTa vocabulary, an independent encoder, and transformers.

Ours is what prepare writes into token shards (both ways to it); theirs are `transformers` with the vocabulary's own
file, and a small encoder written here from the definition: bytes, GPT-2's pattern, lowest-ranked pair first.
"""

from __future__ import annotations

import json
import lzma
import unicodedata
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from remask.tokenizer import Tokenizer, load_tokenizer, training
from remask.tokenizer.bulk import BlockEncoder
from remask.tokenizer.settings import TokenizerSettings

AWKWARD = [
    "",
    " ",
    "  leading and trailing  ",
    "tabs\tand\rreturns",
    "don't can't I'LL we've 'tis 's ''s ' s",
    "x </s> y <mask> z <s><pad><unk> <|endoftext|>",
    "1234567890 3.14159 1,000,000 ½ ² Ⅷ ٣",
    "ÀÉÎõü ß ſ ŉ ǆ İ",
    "e\u0301 o\u0308 (combining)",
    "中文字符，测试。日本語テスト 한국어",
    "สวัสดี हिन्दी العربية עברית",
    "👩‍👩‍👧‍👦 🏳️‍🌈 😀😃 \U0001f9ff",
    "\u00a0nbsp\u2003em\u3000ideographic\u200bzero\ufeffbom",
    "\x00\x01\x7f control",
    "\ue000 private \U0010ffff last",
    "a" * 300,
    "!?" * 100,
    "http://example.org/a_b?c=d&e=%20#f",
    "snake_case CamelCase __init__ a-b-c …— “quotes” ‘single’",
    "\u2028line\u2029paragraph\x85next",
    "mixed中english文",
]


class PlainEncoder:
    """Byte-level BPE as its paper and GPT-2's description define it; slow and short."""

    def __init__(self, description: dict) -> None:
        model = description["model"]
        self.ids = model["vocab"]
        merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        letters = {byte: chr(byte) for byte in kept}
        for byte in range(256):
            letters.setdefault(byte, chr(256 + len(letters) - len(kept)))
        self.letters = letters
        self.word_ids = cache(self._word_ids)

    def encode(self, text: str) -> list[int]:
        return [number for word in _gpt2_words(text) for number in self.word_ids(word)]

    def _word_ids(self, word: str) -> list[int]:
        parts = [self.letters[byte] for byte in word.encode()]
        while len(parts) > 1:
            best = min(pairwise(parts), key=lambda pair: self.ranks.get(pair, float("inf")))
            if best not in self.ranks:
                break
            merged, place = [], 0
            while place < len(parts):
                if tuple(parts[place : place + 2]) == best:
                    merged.append(parts[place] + parts[place + 1])
                    place += 2
                else:
                    merged.append(parts[place])
                    place += 1
            parts = merged
        return [self.ids[part] for part in parts]


@cache
def _group(letter: str) -> str:
    if letter in "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" or "\u2000" <= letter <= "\u200a":
        return "space"
    return {"L": "letter", "N": "number"}.get(unicodedata.category(letter)[0], "other")


def _gpt2_words(text: str) -> list[str]:
    """GPT-2's pattern by hand: contractions, then runs with one space before them, then white space."""
    words, place = [], 0
    while place < len(text):
        for ending in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d"):
            if text.startswith(ending, place):
                words.append(ending)
                break
        else:
            start = place + (text[place] == " " and place + 1 < len(text) and _group(text[place + 1]) != "space")
            kind = _group(text[start])
            end = start
            while end < len(text) and _group(text[end]) == kind:
                end += 1
            if kind == "space" and end < len(text) and end - place > 1:
                end -= 1  # the last one is left to the word after it
            words.append(text[place:end])
        place += len(words[-1])
    return words


def _lines(path: Path, limit: int | None = None) -> list[str]:
    with (lzma.open if path.suffix == ".xz" else open)(path, "rb") as file:
        text = file.read(limit or -1).decode("utf-8", "ignore")
    return [line for line in (part.strip(" \t\r\x0b\x0c") for part in text.split("\n")) if line]


@pytest.fixture(scope="module")
def roberta(shared_data: Path) -> Tokenizer:
    return load_tokenizer(shared_data / "bpe" / "roberta.tokenizer.json")


@pytest.fixture(scope="module")
def theirs(shared_data: Path):
    from transformers import PreTrainedTokenizerFast

    loaded = PreTrainedTokenizerFast(tokenizer_file=str(shared_data / "bpe" / "roberta.tokenizer.json"))
    return loaded


def _ours(tokenizer: Tokenizer, lines: list[str], fast: bool) -> list[list[int]]:
    """Each line a document, as prepare encodes them."""
    data = [line.encode() for line in lines]
    offsets = np.cumsum([0, *(len(item) for item in data)])
    block = BlockEncoder(tokenizer, "token", fast).encode(b"".join(data), offsets, offsets[:-1])
    return [part.tolist() for part in np.split(block.ids, block.document_offsets[1:-1])]


@pytest.mark.parametrize("fast", [False, True], ids=["tokenizers", "gigatoken"])
@pytest.mark.parametrize("corpus", ["wiki", "chinese", "awkward"])
def test_shards_hold_the_ids_of_the_real_roberta(
    corpus: str, fast: bool, roberta: Tokenizer, theirs, shared_data: Path
) -> None:
    if fast:
        pytest.importorskip("gigatoken")
    if corpus == "wiki":
        lines = _lines(shared_data / "wiki" / "wiki.test.txt")
    elif corpus == "chinese":
        lines = _lines(next((shared_data / "zhwiki").glob("*.xz")), 400_000)
    else:
        lines = [text for text in AWKWARD if text]
    # Special words in a text are text here, and control tokens in transformers by default.
    expected = theirs(lines, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert _ours(roberta, lines, fast) == expected


def test_an_encoder_written_from_the_definition_agrees(roberta: Tokenizer, shared_data: Path) -> None:
    plain = PlainEncoder(roberta.description)
    wiki = _lines(shared_data / "wiki" / "wiki.test.txt")[:600]
    chinese = _lines(next((shared_data / "zhwiki").glob("*.xz")), 60_000)
    for line in [*AWKWARD, *wiki, *chinese]:
        assert roberta.encode(line).tolist() == plain.encode(line), line


def test_robertas_own_files_are_the_same_vocabulary(roberta: Tokenizer, shared_data: Path) -> None:
    tables = load_tokenizer(shared_data / "bpe")
    assert tables.tokens == roberta.tokens
    text = " ".join(AWKWARD)
    assert tables.encode(text).tolist() == roberta.encode(text).tolist()


def _trained(kind: str) -> Tokenizer:
    lines = [text for text in AWKWARD if text.strip()] * 3
    settings = TokenizerSettings(kind=kind, vocab_size=600)
    table = training.count_pieces([line.encode() for line in lines], settings, False)
    return training.train_tokenizer(sorted(table.items()), settings, False)


@pytest.mark.parametrize("kind", ["byte-bpe", "wordpiece", "roberta"])
def test_auto_tokenizer_loads_the_saved_folder_with_the_same_ids(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    from transformers import AutoTokenizer

    ours = request.getfixturevalue("roberta") if kind == "roberta" else _trained(kind)
    ours.save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert" if kind == "wordpiece" else "roberta"}))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded).__name__ in ("RobertaTokenizer", "RobertaTokenizerFast", "BertTokenizer", "BertTokenizerFast")
    assert len(loaded) == ours.vocab_size
    roles = (loaded.cls_token_id, loaded.pad_token_id, loaded.sep_token_id, loaded.unk_token_id, loaded.mask_token_id)
    assert roles == (ours.bos_id, ours.pad_id, ours.eos_id, ours.unk_id, ours.mask_id)
    for text in [*AWKWARD, "The Café naïve."]:
        ids = loaded(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert ids == ours.encode(text).tolist(), text
    with_specials = loaded("a b")["input_ids"]
    assert with_specials == [ours.bos_id, *ours.encode("a b").tolist(), ours.eos_id]
    marked = f"The {loaded.mask_token} cat"
    assert loaded(marked, add_special_tokens=False)["input_ids"] == ours.encode_marked(marked).tolist()
