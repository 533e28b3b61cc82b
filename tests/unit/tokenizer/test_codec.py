"""Text <-> ids, special ids, files, and what is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from remask.errors import DataError, MissingInputError
from remask.tokenizer import Tokenizer, load_tokenizer, shield

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")


def test_special_ids_are_in_robertas_places(small_bpe: Tokenizer) -> None:
    specials = (small_bpe.bos_id, small_bpe.pad_id, small_bpe.eos_id, small_bpe.unk_id, small_bpe.mask_id)
    assert specials == (0, 1, 2, 3, small_bpe.vocab_size - 1)
    assert small_bpe.special_ids == specials
    assert small_bpe.tokens[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert small_bpe.tokens[-1] == "<mask>"
    assert (small_bpe.kind, small_bpe.vocab_size) == ("byte-bpe", 420)


def test_special_words_in_a_text_stay_text(small_bpe: Tokenizer) -> None:
    text = "a <mask> b </s><s> <pad> <unk>"
    ids = small_bpe.encode(text)
    assert not set(ids.tolist()) & set(small_bpe.special_ids)
    assert small_bpe.decode(ids) == text
    assert [item.tolist() for item in small_bpe.encode_batch([text])] == [ids.tolist()]


def _unigram() -> dict[str, Any]:
    """A vocabulary as SentencePiece's converters write it: special tokens are pieces of the model too."""
    letters = "▁abcdefghijklmnopqrstuvwxyz</>."
    pieces = [(name, 0.0) for name in SPECIALS] + [(letter, -5.0) for letter in letters] + [("▁the", -3.0)]
    library = Library(models.Unigram([*pieces, ("<mask>", 0.0)], 3))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.add_special_tokens([*SPECIALS, "<mask>"])
    return json.loads(library.to_str())


def _wordpiece() -> dict[str, Any]:
    """Cut at spaces alone, `[MASK]` is a word like any other to the model."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcehtMASK[", *(f"##{c}" for c in "abceht[]MASKSEPUN")]
    library = Library(models.WordPiece({name: n for n, name in enumerate(dict.fromkeys(names))}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return json.loads(library.to_str())


def _merged() -> dict[str, Any]:
    """A BPE whose merges make a special word, and one that looks whole words up before any merge."""
    names = [*SPECIALS, *"abmask<>/ ", "<m", "as", "k>", "<mas", "<mask>"]
    merges = [("<", "m"), ("a", "s"), ("k", ">"), ("<m", "as"), ("<mas", "k>")]
    library = Library(models.BPE({name: n for n, name in enumerate(dict.fromkeys(names))}, merges, unk_token="<unk>"))
    return json.loads(library.to_str())


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("make", [_unigram, _wordpiece, _merged])
def test_special_words_stay_text_where_the_model_holds_them_as_pieces(
    make: Callable[[], dict[str, Any]], special: bool, tmp_path: Path
) -> None:
    description = make()
    for token in description["added_tokens"]:
        token["special"] = special
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    tokenizer = load_tokenizer(tmp_path)
    forbidden = set(tokenizer.special_ids) - {tokenizer.unk_id}
    hostile = f"{shield.MARK}{tokenizer.special_names['mask']}{shield.MARK}"
    for name in (*tokenizer.special_names.values(), hostile):
        text = f"the {name} a{name}b {name}"
        ids = tokenizer.encode(text)
        assert len(ids) > 3
        assert not forbidden & set(ids.tolist()), name
        assert [item.tolist() for item in tokenizer.encode_batch([text])] == [ids.tolist()]
        assert tokenizer.encode_with_offsets(text)[0].tolist() == ids.tolist()
    assert tokenizer.mask_id in tokenizer.encode_marked(f"the {tokenizer.special_names['mask']}")
    plain = Library.from_str(json.dumps(description))
    for text in ("the cat", "a beta", "b ☃ a"):  # nothing else changes; what is unknown stays unknown
        assert tokenizer.encode(text).tolist() == plain.encode(text, add_special_tokens=False).ids
    assert tokenizer.unk_id in tokenizer.encode("☃")
    tokenizer.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert (again.tokens, again.fingerprint) == (tokenizer.tokens, tokenizer.fingerprint)
    assert pickle.loads(pickle.dumps(tokenizer)).encode("a </s>").tolist() == tokenizer.encode("a </s>").tolist()


def test_the_shield_leaves_alone_what_needs_none(small_bpe: Tokenizer) -> None:
    assert shield.without_special_words(small_bpe.description, set(small_bpe.special_names.values())) is None


def test_added_tokens_that_are_not_special_are_found_as_the_library_finds_them(small_bpe: Tokenizer) -> None:
    """They stand before the cutting into words, so the shorter ways of byte-level BPE would miss them."""
    library = Library.from_str(json.dumps(small_bpe.description))
    library.add_tokens(["New York"])
    tokenizer = Tokenizer(json.loads(library.to_str()))
    assert tokenizer.kind == "other"
    text = "The fox in New York rests. Füße 狐狸"
    ids = tokenizer.encode(text)
    assert ids.tolist() == library.encode(text, add_special_tokens=False).ids
    assert tokenizer.vocab_size - 1 in ids
    assert b"".join(tokenizer.token_bytes[number] for number in ids).decode() == text
    assert tokenizer.decode(ids) == text


def test_only_marked_text_reads_the_mask_and_it_takes_the_space_before_it(small_bpe: Tokenizer) -> None:
    ids = small_bpe.encode_marked("The quick <mask> fox </s>")
    expected = [*small_bpe.encode("The quick"), small_bpe.mask_id, *small_bpe.encode(" fox </s>")]
    assert ids.tolist() == expected
    assert small_bpe.encode_marked("no mark").tolist() == small_bpe.encode("no mark").tolist()


@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}])
def test_offsets_are_characters_without_the_space_before_a_word(
    normalizer: dict[str, str] | None, small_bpe: Tokenizer
) -> None:
    small_bpe = Tokenizer({**small_bpe.description, "normalizer": normalizer, "post_processor": None})
    text = "The fox, 狐狸 it's"
    ids, spans = small_bpe.encode_with_offsets(text)
    assert ids.tolist() == small_bpe.encode(text).tolist()
    assert spans[0].tolist()[0] == 0
    assert not any(text[start:end].startswith(" ") and end - start > 1 for start, end in spans.tolist())
    covered = "".join(text[start:end] for start, end in dict.fromkeys(map(tuple, spans.tolist())))
    assert covered.replace(" ", "") == text.replace(" ", "")


def test_characters_are_counted_where_they_begin(small_bpe: Tokenizer) -> None:
    text = "a 漢字 😀 é"
    ids = small_bpe.encode(text)
    assert small_bpe.token_characters[ids].sum() == len(text)
    assert small_bpe.token_lengths[ids].sum() == len(text.encode())


def test_token_bytes_say_what_each_id_stands_for(small_bpe: Tokenizer) -> None:
    ids = small_bpe.encode("Füße 狐狸")
    assert b"".join(small_bpe.token_bytes[i] for i in ids).decode() == "Füße 狐狸"
    assert small_bpe.token_lengths[ids].sum() == len("Füße 狐狸".encode())
    assert all(small_bpe.token_bytes[i] == b"" for i in small_bpe.special_ids)
    assert small_bpe.token_text(small_bpe.mask_id) == "<mask>"


def test_saved_and_loaded_it_is_the_same(small_bpe: Tokenizer, small_wordpiece: Tokenizer, tmp_path: Path) -> None:
    for name, tokenizer in (("bpe", small_bpe), ("wordpiece", small_wordpiece)):
        tokenizer.save(tmp_path / name)
        for path in (tmp_path / name, tmp_path / name / "tokenizer.json"):
            again = load_tokenizer(path)
            assert again.fingerprint == tokenizer.fingerprint
            assert again.encode("The fox").tolist() == tokenizer.encode("The fox").tolist()
    assert pickle.loads(pickle.dumps(small_bpe)).fingerprint == small_bpe.fingerprint


def test_wordpiece_has_berts_roles(small_wordpiece: Tokenizer) -> None:
    assert small_wordpiece.kind == "wordpiece"
    names = [small_wordpiece.tokens[i] for i in (small_wordpiece.bos_id, small_wordpiece.eos_id)]
    assert names == ["[CLS]", "[SEP]"]
    assert small_wordpiece.decode(small_wordpiece.encode("The lazy dog")) == "the lazy dog"


def test_truncation_padding_and_dropout_of_a_file_are_left_behind(small_bpe: Tokenizer, tmp_path: Path) -> None:
    description = small_bpe.description
    description["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    description["model"]["dropout"] = 0.9
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    again = load_tokenizer(tmp_path)
    text = "The quick brown fox " * 20
    assert again.encode(text).tolist() == small_bpe.encode(text).tolist()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "not a vocabulary"),
        ('{"model": {"type": "BPE"}}', "not a vocabulary"),
        ('{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}', "has no bos token"),
        ('{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 7}, "merges": []}}', "without gaps"),
    ],
)
def test_what_is_no_vocabulary_is_refused_in_one_line(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_path_is_missing_input(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError):
        load_tokenizer(tmp_path / "nothing")
    with pytest.raises(DataError, match="no vocabulary here"):
        load_tokenizer(tmp_path)


def test_ids_are_int32_arrays(small_bpe: Tokenizer) -> None:
    assert small_bpe.encode("").dtype == small_bpe.encode("a").dtype == np.int32
    assert len(small_bpe.encode("")) == 0
