"""One vocabulary: text -> ids and back, its special ids, and its files.

In: a folder or file with an existing vocabulary (foreign.py reads the odd layouts), or what training made. Out: a
`Tokenizer` whose `encode` treats special words such as `<mask>` or `</s>` inside a text as text; only
`encode_marked`, for fill-mask, reads them. A text that it cannot get through in time is a DataError (timed.py). Saved,
`transformers.AutoTokenizer` loads it with the same ids.
Not here: training (training.py), whole corpora (bulk.py), word starts (words.py).
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
import tokenizers

from remask import artifacts
from remask.errors import DataError, MissingInputError
from remask.schema import Json, Values
from remask.tokenizer import foreign, shield, timed

Kind = Literal["byte-bpe", "wordpiece", "other"]
MAX_FILE_BYTES = 200_000_000
# role -> what it is called in the families that exist, likeliest first
SPECIAL_NAMES = {
    "bos": ("<s>", "[CLS]", "<|startoftext|>", "<|endoftext|>"),
    "pad": ("<pad>", "[PAD]", "<|padding|>", "<|endoftext|>"),
    "eos": ("</s>", "[SEP]", "<|endoftext|>"),
    "unk": ("<unk>", "[UNK]", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]"),
}
_CONFIG_KEYS = {"bos": ("bos_token", "cls_token"), "eos": ("eos_token", "sep_token")}


class Tokenizer:
    """A vocabulary in use. Picklable and cheap to hand to worker processes as its folder."""

    def __init__(self, description: Values, special_names: Mapping[str, str] | None = None) -> None:
        """`description` is the content of a tokenizer.json; `special_names` says which entries play which role."""
        self._description = _clean(description)
        try:
            self._json = orjson.dumps(self._description).decode()
            self._tokenizer = tokenizers.Tokenizer.from_str(self._json)
        except Exception as error:  # tokenizers raises bare Exception
            raise DataError(f"not a vocabulary that tokenizers can read: {str(error)[:200]}") from None
        self._tokenizer.encode_special_tokens = True
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        if sorted(ids.values()) != list(range(self.vocab_size)):
            raise DataError(
                f"the vocabulary's {self.vocab_size:,} ids are not 0 to {self.vocab_size - 1:,} without gaps"
            )
        self.tokens: list[str] = sorted(ids, key=ids.__getitem__)  # the entries' names in the file, by id
        self.special_names = _find_specials(ids, special_names or {})
        self.bos_id, self.pad_id, self.eos_id, self.unk_id, self.mask_id = (
            ids[self.special_names[role]] for role in SPECIAL_NAMES
        )
        self._added = self._tokenizer.get_added_tokens_decoder()
        added = {number for number, token in self._added.items() if token.special}
        roles = {self.bos_id, self.pad_id, self.eos_id, self.unk_id, self.mask_id}
        self.special_ids: tuple[int, ...] = tuple(sorted(added | roles))
        names = {self.tokens[number] for number in self.special_ids}
        self.kind: Kind = _kind(description, names)
        self._encoder_json, self._encoder = self._json, self._tokenizer
        if shielded := shield.without_special_words(self._description, names):
            self._encoder_json = orjson.dumps(shielded).decode()
            self._encoder = _shielded_library(self._encoder_json, self._tokenizer, names)
        self._explodes = bool(explosive := timed.explosive(self._description))
        self._timed = timed.TimedEncoder(self._encoder_json) if timed.is_slow(self._description) else None
        for pattern in explosive:
            warnings.warn(
                f"the tokenizer's pattern {pattern[:200]!r} can take very long over some texts; those are given up",
                stacklevel=2,
            )

    # ------------------------------------------------------------------------------------------ text -> ids

    def encode(self, text: str) -> np.ndarray:
        """Ids without special tokens; int32."""
        return np.array(self.library_encoding(text).ids, np.int32)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        texts = [self._safe(text) for text in texts]
        if self._timed is not None and (self._explodes or max(map(len, texts), default=0) > timed.SHORT):
            return [np.array(item.ids, np.int32) for item in self._timed.encode(texts)]
        with timed.panics():
            encoded = self._encoder.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(item.ids, np.int32) for item in encoded]

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Ids, and per token the characters [start, end) it stands for, without the space before a word."""
        encoding = self.library_encoding(text)
        spans = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        _trim_spaces(text, spans)
        return np.array(encoding.ids, np.int32), spans

    def library_encoding(self, text: str) -> tokenizers.Encoding | timed.PlainEncoding:
        """What the tokenizers library says about a text, without special tokens."""
        text = self._safe(text)
        if self._timed is not None and (self._explodes or len(text) > timed.SHORT):
            return self._timed.encode([text])[0]
        with timed.panics():
            return self._encoder.encode(text, add_special_tokens=False)

    def _safe(self, text: str) -> str:
        """The character that marks what no text may say, which a hostile text could hold, as U+FFFD."""
        return text if self._encoder is self._tokenizer else text.replace(shield.MARK, "\ufffd")

    def encode_marked(self, text: str) -> np.ndarray:
        """Ids of a text in which the mask's name, and the spaces before it, stand for the mask."""
        ids: list[np.ndarray] = []
        *before, last = text.split(self.special_names["mask"])
        for piece in before:
            ids += [self.encode(piece.rstrip()), np.array([self.mask_id], np.int32)]
        return np.concatenate([*ids, self.encode(last)])

    # ------------------------------------------------------------------------------------------ ids -> text

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text; exact for byte-level BPE. Special tokens are left out."""
        numbers = np.asarray(ids, np.int64).tolist()
        if self.kind == "byte-bpe":
            return b"".join(self.token_bytes[number] for number in numbers).decode("utf-8", "replace")
        return self._tokenizer.decode([n for n in numbers if n not in self.special_ids], skip_special_tokens=False)

    def token_text(self, token: int) -> str:
        """One entry for a person to read: special ones by name, pieces of characters as U+FFFD."""
        if token in self.special_ids:
            return self.tokens[token]
        return self.token_bytes[token].decode("utf-8", "replace")

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """What each id stands for in a text, as UTF-8; b"" for special ones."""
        byte_level = self.kind == "byte-bpe" or (
            (self._description.get("decoder") or {}).get("type") == "ByteLevel" and _is_byte_level(self.tokens)
        )
        token_bytes = [_token_bytes(name, byte_level, self.kind) for name in self.tokens]
        for number, token in self._added.items():
            token_bytes[number] = token.content.encode()
        for number in self.special_ids:
            token_bytes[number] = b""
        return token_bytes

    @cached_property
    def token_lengths(self) -> np.ndarray:
        return np.array([len(data) for data in self.token_bytes], np.int64)

    @cached_property
    def token_characters(self) -> np.ndarray:
        """Characters that begin in each token: one that is spread over several counts in the first of them."""
        return np.array([sum(byte & 0xC0 != 0x80 for byte in data) for data in self.token_bytes], np.int64)

    # ------------------------------------------------------------------------------------------------ files

    @property
    def description(self) -> Json:
        """The content of its tokenizer.json, a copy."""
        return orjson.loads(self._json)

    def without_added_tokens(self) -> str:
        """A tokenizer.json for which every text is just text."""
        description = orjson.loads(self._encoder_json)
        return orjson.dumps({**description, "added_tokens": [], "post_processor": None}).decode()

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of everything that decides an id."""
        identity = {"tokenizer": self.description, "specials": dict(self.special_names)}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """The files that this project and transformers read."""
        with artifacts.output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files().items():
            artifacts.write_bytes(folder / name, content)

    def files(self) -> dict[str, bytes]:
        """File name -> content: tokenizer.json, tokenizer_config.json, special_tokens_map.json and the plain tables."""
        description = self.description
        names = dict(self.special_names)
        roles = {f"{role}_token": name for role, name in names.items()}
        roles |= {"cls_token": names["bos"], "sep_token": names["eos"]}
        mask = {"content": names["mask"], "single_word": False, "lstrip": True, "rstrip": False, "normalized": False}
        config: Json = {**roles, "model_max_length": 512}
        special_map: Json = dict(roles)
        files: dict[str, bytes] = {}
        if self.kind == "byte-bpe":
            config |= {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": False, "trim_offsets": True}
            config["mask_token"] = special_map["mask_token"] = {"__type": "AddedToken", **mask}
            special_map["mask_token"] = mask
            merges = [m if isinstance(m, str) else " ".join(m) for m in description["model"]["merges"]]
            vocabulary = dict(sorted(description["model"]["vocab"].items(), key=lambda pair: pair[1]))
            files["vocab.json"] = json.dumps(vocabulary, ensure_ascii=False).encode()
            files["merges.txt"] = ("#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges)).encode()
        elif self.kind == "wordpiece":
            normalizer = description.get("normalizer") or {}
            config |= {"tokenizer_class": "BertTokenizer", "do_lower_case": bool(normalizer.get("lowercase", False))}
            config |= {"strip_accents": normalizer.get("strip_accents"), "tokenize_chinese_chars": True}
            files["vocab.txt"] = "".join(f"{token}\n" for token in self.tokens).encode()
        else:
            config["tokenizer_class"] = "PreTrainedTokenizerFast"
        files["tokenizer.json"] = (json.dumps(description, ensure_ascii=False, indent=1) + "\n").encode()
        files["tokenizer_config.json"] = (json.dumps(config, ensure_ascii=False, indent=1) + "\n").encode()
        files["special_tokens_map.json"] = (json.dumps(special_map, ensure_ascii=False, indent=1) + "\n").encode()
        return files

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self.description, dict(self.special_names))


def load_tokenizer(path: Path) -> Tokenizer:
    """From a folder (ours, Hugging Face's, GPT-2's, RoBERTa's or BERT's own files), a tokenizer.json or a vocab.txt."""
    if not path.exists():
        raise MissingInputError(f"{path}: no such vocabulary")
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        if file.is_file() and file.suffix == ".json" and file.name != "encoder.json":
            return Tokenizer(_read_json(file), _named_specials(file.parent))
        return Tokenizer(foreign.read_tables(path))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


# ------------------------------------------------------------------------------------------------- details


def _read_json(path: Path) -> Json:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise DataError(f"{path.name} has {path.stat().st_size:,} bytes: no vocabulary")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path.name} is not JSON: {str(error)[:100]}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path.name} is not a vocabulary")
    return content


def _named_specials(folder: Path) -> dict[str, str]:
    """Roles as the files beside a tokenizer.json name them."""
    named: dict[str, str] = {}
    for file in (folder / "special_tokens_map.json", folder / "tokenizer_config.json"):
        if not file.is_file():
            continue
        content = _read_json(file)
        for role in SPECIAL_NAMES:
            for key in reversed(_CONFIG_KEYS.get(role, (f"{role}_token",))):
                value = content.get(key)
                value = value.get("content") if isinstance(value, dict) else value
                if isinstance(value, str):
                    named.setdefault(role, value)
    return named


def _find_specials(ids: Mapping[str, int], named: Mapping[str, str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for role, candidates in SPECIAL_NAMES.items():
        known = [name for name in (named.get(role), *candidates) if name is not None and name in ids]
        if not known:
            raise DataError(f"the vocabulary has no {role} token (one of {', '.join(candidates)})")
        names[role] = known[0]
    return names


def _clean(description: Values) -> Json:
    """Without what would cut, pad or randomise a text behind the caller's back."""
    cleaned = {**description, "truncation": None, "padding": None}
    if isinstance(model := description.get("model"), Mapping) and model.get("dropout") is not None:
        cleaned["model"] = {**model, "dropout": None}
    return cleaned


def _shielded_library(content: str, plain: tokenizers.Tokenizer, names: Collection[str]) -> tokenizers.Tokenizer:
    """The library with the model that cannot say a special word; every other entry must keep its id."""
    library = tokenizers.Tokenizer.from_str(content)
    library.encode_special_tokens = True
    before, after = plain.get_vocab(with_added_tokens=True), library.get_vocab(with_added_tokens=True)
    if len(before) != len(after) or any(after.get(name) != before[name] for name in before.keys() - names):
        raise DataError(
            f"words such as {min(names)} in a text would become special tokens: the vocabulary's model holds them as "
            "ordinary entries, and they cannot be told apart in it"
        )
    return library


def _kind(description: Values, special_names: Collection[str]) -> Kind:
    """byte-bpe promises more than the model's type: bytes in, the same bytes out, words as GPT-2 cuts them. Added
    tokens that are no special ones are found in a text before it is cut into words, so they break that promise."""
    model = (description.get("model") or {}).get("type")
    before = description.get("pre_tokenizer") or {}
    plain = before.get("type") == "ByteLevel" and not before.get("add_prefix_space") and before.get("use_regex", True)
    added = any(token["content"] not in special_names for token in description.get("added_tokens") or ())
    if model == "BPE" and plain and not added and description.get("normalizer") is None:
        return "byte-bpe"
    return "wordpiece" if model == "WordPiece" else "other"


def _is_byte_level(entries: Sequence[str]) -> bool:
    """Whether all are written in the letters that stand for bytes; an added token may hold a space besides."""
    return not set().union(*entries) - BYTE_OF_LETTER.keys() - {" "}


def _byte_letters() -> dict[str, int]:
    """The letter that stands for each byte in a byte-level vocabulary: itself where printable, else from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(rest)}


BYTE_OF_LETTER = _byte_letters()
LETTER_OF_BYTE = {byte: letter for letter, byte in BYTE_OF_LETTER.items()}


def _token_bytes(name: str, byte_level: bool, kind: Kind) -> bytes:
    if byte_level:
        return name.translate(_LETTER_TABLE).encode("latin-1")
    return name.removeprefix("##").encode() if kind == "wordpiece" else name.encode()


_LETTER_TABLE = {ord(letter): byte for letter, byte in BYTE_OF_LETTER.items()}


def _trim_spaces(text: str, spans: np.ndarray) -> None:
    """The file decides whether spans hold the space before a word; here they never do."""
    for row in range(len(spans)):
        start, end = spans[row]
        if end - start > 1 and text[start] == " ":
            spans[row, 0] = start + 1
