"""Text <-> ids, special ids, files, and what is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from remask.errors import DataError, MissingInputError
from remask.tokenizer import Tokenizer, load_tokenizer


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


def test_only_marked_text_reads_the_mask_and_it_takes_the_space_before_it(small_bpe: Tokenizer) -> None:
    ids = small_bpe.encode_marked("The quick <mask> fox </s>")
    expected = [*small_bpe.encode("The quick"), small_bpe.mask_id, *small_bpe.encode(" fox </s>")]
    assert ids.tolist() == expected
    assert small_bpe.encode_marked("no mark").tolist() == small_bpe.encode("no mark").tolist()


def test_offsets_are_characters_without_the_space_before_a_word(small_bpe: Tokenizer) -> None:
    text = "The fox, 狐狸 it's"
    ids, spans = small_bpe.encode_with_offsets(text)
    assert ids.tolist() == small_bpe.encode(text).tolist()
    assert spans[0].tolist()[0] == 0
    assert not any(text[start:end].startswith(" ") and end - start > 1 for start, end in spans.tolist())
    covered = "".join(text[start:end] for start, end in dict.fromkeys(map(tuple, spans.tolist())))
    assert covered.replace(" ", "") == text.replace(" ", "")


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
