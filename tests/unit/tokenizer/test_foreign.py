"""GPT-2's, RoBERTa's and BERT's own files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remask.errors import DataError
from remask.tokenizer import Tokenizer, load_tokenizer


def _write_tables(folder: Path, tokenizer: Tokenizer, with_dict: bool) -> list[str]:
    """Tables in GPT-2's layout, its ids in another order than dict.txt's, as in the real files."""
    entries = tokenizer.tokens[4:-1]
    ids = {name: number for number, name in enumerate(reversed(entries))}
    (folder / "encoder.json").write_text(json.dumps(ids))
    merges = [" ".join(pair) for pair in tokenizer.description["model"]["merges"]]
    (folder / "vocab.bpe").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    if with_dict:
        lines = [f"{ids[name]} {1000 - n}" for n, name in enumerate(entries)]
        (folder / "dict.txt").write_text("\n".join([*lines, "madeupword0000 0"]) + "\n")
    return entries


def test_robertas_files_give_robertas_ids(small_bpe: Tokenizer, tmp_path: Path) -> None:
    entries = _write_tables(tmp_path, small_bpe, with_dict=True)
    loaded = load_tokenizer(tmp_path)
    assert loaded.tokens == ["<s>", "<pad>", "</s>", "<unk>", *entries, "madeupword0000", "<mask>"]
    assert loaded.encode("The lazy dog.").tolist() == small_bpe.encode("The lazy dog.").tolist()


def test_gpt2s_files_alone_keep_gpt2s_order(small_bpe: Tokenizer, tmp_path: Path) -> None:
    entries = _write_tables(tmp_path, small_bpe, with_dict=False)
    loaded = load_tokenizer(tmp_path / "encoder.json")
    assert loaded.tokens[4:-1] == entries[::-1]
    assert loaded.decode(loaded.encode("The lazy dog.")) == "The lazy dog."


def test_damaged_tables_are_refused(small_bpe: Tokenizer, tmp_path: Path) -> None:
    _write_tables(tmp_path, small_bpe, with_dict=True)
    lines = (tmp_path / "dict.txt").read_text().splitlines()
    (tmp_path / "dict.txt").write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(DataError, match="1 entries are missing"):
        load_tokenizer(tmp_path)
    (tmp_path / "dict.txt").unlink()
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\na b c\n")
    with pytest.raises(DataError, match="a merge is two entries"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\nqq zz\n")
    with pytest.raises(DataError, match="no merge of entries"):
        load_tokenizer(tmp_path)
    (tmp_path / "encoder.json").write_text('{"a": 5}')
    with pytest.raises(DataError, match="from 0 on"):
        load_tokenizer(tmp_path)


TEXTS = ["The Quick brown-fox, naïve café!", "Who wrote [MASK] it? 中文 字", "##ed xyzzy\u0301"]


@pytest.mark.parametrize("config", [None, {"do_lower_case": False}, {"do_lower_case": True, "strip_accents": False}])
def test_berts_vocab_txt_alone_gives_berts_ids(
    config: dict[str, bool] | None, small_wordpiece: Tokenizer, tmp_path: Path
) -> None:
    from tokenizers.implementations import BertWordPieceTokenizer

    (tmp_path / "vocab.txt").write_bytes(small_wordpiece.files()["vocab.txt"])
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    config = config or {"do_lower_case": True}
    reference = BertWordPieceTokenizer(
        str(tmp_path / "vocab.txt"),
        lowercase=config["do_lower_case"],
        strip_accents=config.get("strip_accents"),
    )
    reference._tokenizer.encode_special_tokens = True
    for path in (tmp_path, tmp_path / "vocab.txt"):
        tokenizer = load_tokenizer(path)
        assert tokenizer.kind == "wordpiece"
        assert tokenizer.special_ids == small_wordpiece.special_ids
        for text in TEXTS:
            assert tokenizer.encode(text).tolist() == reference.encode(text, add_special_tokens=False).ids


def test_a_vocab_txt_with_capitals_is_a_cased_one_and_damage_is_refused(tmp_path: Path) -> None:
    specials = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
    (tmp_path / "vocab.txt").write_text(specials + "Paris\nparis\n")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("Paris paris").tolist() == [5, 6]
    (tmp_path / "vocab.txt").write_text(specials + "a\na\n")
    with pytest.raises(DataError, match=r"vocab.txt: the entry 'a' stands twice"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\na\n")
    with pytest.raises(DataError, match=r"has no \[CLS\], \[SEP\], \[MASK\]"):
        load_tokenizer(tmp_path)
