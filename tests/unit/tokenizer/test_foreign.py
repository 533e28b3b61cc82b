"""GPT-2's and RoBERTa's own files."""

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
