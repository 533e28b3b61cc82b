"""Vocabularies in the layouts of others: GPT-2's `encoder.json` + `vocab.bpe`, and RoBERTa's (the same two files with
fairseq's `dict.txt`), or `vocab.json` + `merges.txt`; and BERT's `vocab.txt`.

Out: the content of a tokenizer.json. Byte-level ones have RoBERTa's special tokens in RoBERTa's places: `<s>` 0,
`<pad>` 1, `</s>` 2, `<unk>` 3, then the entries in dict.txt's order (or GPT-2's own), `<mask>` last. BERT's keep their
ids. Not here: tokenizer.json itself.
"""

from __future__ import annotations

import json
from pathlib import Path

from remask.errors import DataError
from remask.schema import Json

FIRST_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
MASK = "<mask>"
MAX_FILE_BYTES = 100_000_000
WORDS = "vocab.txt"
_WORDPIECE_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def byte_bpe(entries: list[str], merges: list[tuple[str, str]]) -> Json:
    """A RoBERTa tokenizer.json: `entries` by id without the five special tokens, `merges` by rank."""
    vocabulary = {name: number for number, name in enumerate([*FIRST_SPECIALS, *entries, MASK])}
    if len(vocabulary) != len(entries) + len(FIRST_SPECIALS) + 1:
        raise DataError("an entry stands twice in the vocabulary")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": vocabulary[name],
                "content": name,
                "single_word": False,
                "lstrip": name == MASK,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for name in (*FIRST_SPECIALS, MASK)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {
            "type": "RobertaProcessing",
            "sep": ["</s>", 2],
            "cls": ["<s>", 0],
            "trim_offsets": True,
            "add_prefix_space": False,
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [list(pair) for pair in merges],
        },
    }


def read_tables(path: Path) -> Json:
    """From a folder with the tables, or one of its files."""
    if path.name == WORDS and path.is_file():
        return _read_wordpiece(path)
    folder = path if path.is_dir() else path.parent
    for tables in (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")):
        if all((folder / name).is_file() for name in tables):
            ids = _read_ids(folder / tables[0])
            merges = _read_merges(folder / tables[1])
            dictionary = folder / "dict.txt"
            order = _read_order(dictionary, ids) if dictionary.is_file() else sorted(ids, key=ids.__getitem__)
            entries = [name for name in order if name not in (*FIRST_SPECIALS, MASK)]
            known = set(entries)
            for left, right in merges:
                if not {left, right, left + right} <= known:
                    raise DataError(f"{tables[1]}: {left} {right} is no merge of entries of {tables[0]}")
            return byte_bpe(entries, merges)
    if (folder / WORDS).is_file():
        return _read_wordpiece(folder / WORDS)
    raise DataError(
        "no vocabulary here: tokenizer.json, encoder.json + vocab.bpe (with or without dict.txt), "
        "vocab.json + merges.txt or vocab.txt is needed"
    )


def _read_wordpiece(path: Path) -> Json:
    """BERT's table: the line's number is the id. tokenizer_config.json beside it says how text is normalised; where
    there is none, a table with capital letters is a cased one."""
    entries = [line.rstrip("\r") for line in _read(path).removesuffix("\n").split("\n")]
    vocabulary = {name: number for number, name in enumerate(entries)}
    if len(vocabulary) != len(entries):
        twice = next(name for number, name in enumerate(entries) if vocabulary[name] != number)
        raise DataError(f"{path.name}: the entry {twice[:40]!r} stands twice")
    if missing := [name for name in _WORDPIECE_SPECIALS if name not in vocabulary]:
        raise DataError(f"{path.name}: has no {', '.join(missing)}")
    config = _read_object(path.with_name("tokenizer_config.json"))
    if added := sorted(_read_object(path.with_name("added_tokens.json")).keys() - vocabulary.keys()):
        raise DataError(f"added_tokens.json adds {added[0][:40]!r} to {path.name}: only a tokenizer.json can hold it")
    has_capitals = any(name != name.lower() for name in entries if not (name.startswith("[") and name.endswith("]")))
    flags = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": vocabulary[name], "content": name, **flags}
            for name in sorted(_WORDPIECE_SPECIALS, key=vocabulary.__getitem__)
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": bool(config.get("tokenize_chinese_chars", True)),
            "strip_accents": config.get("strip_accents"),
            "lowercase": bool(config.get("do_lower_case", not has_capitals)),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "BertProcessing",
            "sep": ["[SEP]", vocabulary["[SEP]"]],
            "cls": ["[CLS]", vocabulary["[CLS]"]],
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }


def _read_object(path: Path) -> Json:
    """A JSON object; an empty one where there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path.name} is not JSON: {str(error)[:100]}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path.name} is not a JSON object")
    return content


def _read(path: Path) -> str:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise DataError(f"{path.name} has {path.stat().st_size:,} bytes: no vocabulary")
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} is not UTF-8 (byte {error.start})") from None


def _read_ids(path: Path) -> dict[str, int]:
    try:
        ids = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path.name} is not JSON: {str(error)[:100]}") from None
    if not isinstance(ids, dict) or sorted(map(str, ids.values())) != sorted(map(str, range(len(ids)))):
        raise DataError(f"{path.name} does not give each entry an id from 0 on")
    return ids


def _read_merges(path: Path) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(_read(path).split("\n")):
        if not line or (number == 0 and line.startswith("#version")):
            continue
        parts = line.split(" ")
        if len(parts) != 2 or not all(parts):
            raise DataError(f"{path.name}:{number + 1}: a merge is two entries, not {line[:40]!r}")
        merges.append((parts[0], parts[1]))
    return merges


def _read_order(path: Path, ids: dict[str, int]) -> list[str]:
    """dict.txt names GPT-2's ids by how often they occurred; words that are no ids fill the table up."""
    names = {number: name for name, number in ids.items()}
    order: list[str] = []
    for number, line in enumerate(_read(path).splitlines()):
        word = line.rsplit(" ", 1)[0]
        if word.isascii() and word.isdigit() and int(word) in names:
            order.append(names[int(word)])
        elif word.isascii() and word.isdigit():
            raise DataError(f"{path.name}:{number + 1}: there is no entry with id {word}")
        else:
            order.append(word)
    missing = len(set(names.values()) - set(order))
    if missing or len(set(order)) != len(order):
        raise DataError(f"{path.name}: {missing} entries are missing, or one stands twice")
    return order
