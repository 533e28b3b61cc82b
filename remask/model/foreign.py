"""Folders that strangers made: config, index and weights read so that nothing in them can run, reach out or crash us.

In: a Hugging Face folder (`model.safetensors`, shards with an index, or `pytorch_model.bin`). Out: JSON objects, and
weights whose names, dtypes and shapes are known before a byte of data is touched; a DataError for whatever is off.
Every file must be a regular file inside the folder (links included), every safetensors header is checked against its
file before it is mapped, and a `.bin` goes through `torch.load(weights_only=True)`, here and nowhere else.
Not here: what the names mean (interop), and remask's own layout (store).
"""

from __future__ import annotations

import json
import math
import re
import stat
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remask.errors import DataError, MissingInputError
from remask.schema import Json

if TYPE_CHECKING:
    from torch import Tensor

MAX_JSON_BYTES = 16_000_000
MAX_HEADER_BYTES = 16_000_000
MAX_TENSORS = 100_000

_ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
    "U16": 2, "U32": 4, "U64": 8, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
# Read by the tokenizer's own code, which trusts a folder: links among them are checked with the rest.
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "sentencepiece.bpe.model", "spiece.model", "encoder.json", "vocab.bpe", "dict.txt",
)  # fmt: skip
# The float types that a weight may have; integers appear only as buffers, which nothing reads.
WEIGHT_TYPES = ("F64", "F32", "F16", "BF16")
_SHARD = re.compile(r"[A-Za-z0-9_.\-]{1,200}\Z")


@dataclass(frozen=True)
class TensorEntry:
    """One tensor as its file announces it."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]


class ForeignFolder:
    """A folder of unknown origin; the only way in which its files are opened."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise MissingInputError(f"{folder}: no such folder")
        self.folder = folder
        self._inside = folder.resolve()
        # The hub's cache keeps the bytes in models--NAME/blobs and links to them from models--NAME/snapshots/HASH.
        repository = self._inside.parent.parent
        cached = self._inside.parent.name == "snapshots" and repository.name.startswith("models--")
        self._blobs = repository / "blobs" if cached else None

    def has(self, name: str) -> bool:
        return (self.folder / name).exists() or (self.folder / name).is_symlink()

    def path(self, name: str) -> Path:
        """A regular file of this folder by its plain name; links that lead out of it are refused."""
        path = self.folder / name
        if not _SHARD.match(name) or name in (".", ".."):
            raise DataError(f"{self.folder}: {name[:80]!r} is no name of a file inside the folder")
        try:
            real = path.resolve(strict=True)
            kind = real.stat().st_mode
        except FileNotFoundError:
            raise MissingInputError(f"{path}: no such file") from None
        except (OSError, RuntimeError) as error:
            raise DataError(f"{path}: cannot be opened: {error}") from error
        if not real.is_relative_to(self._inside) and not (self._blobs and real.is_relative_to(self._blobs)):
            raise DataError(f"{path}: is a link to {real}, outside the folder: refused")
        if not stat.S_ISREG(kind):
            raise DataError(f"{path}: is no regular file")
        return path

    def present(self, names: Iterable[str]) -> list[Path]:
        """Those of the files that are there, each checked."""
        return [self.path(name) for name in names if self.has(name)]

    def inner(self, name: str) -> ForeignFolder | None:
        """A folder inside this one, not by way of a link; None where there is none."""
        path = self.folder / name
        return ForeignFolder(path) if path.is_dir() and not path.is_symlink() else None

    def json(self, name: str) -> Json:
        """A JSON object, bounded in size; a key given twice is refused, since readers would disagree on it."""
        path = self.path(name)
        with path.open("rb") as file:
            data = file.read(MAX_JSON_BYTES + 1)
        if len(data) > MAX_JSON_BYTES:
            raise DataError(f"{path}: over {MAX_JSON_BYTES:,} bytes is no {name}")
        return parse_object(data, str(path))

    def weights(self) -> ForeignWeights:
        """The announced tensors: safetensors (whole or sharded) where there are any, else the `.bin` file."""
        if self.has("model.safetensors"):
            return SafetensorsWeights(self, [self.path("model.safetensors")], None)
        if self.has("model.safetensors.index.json"):
            index = self._index("model.safetensors.index.json", ".safetensors")
            return SafetensorsWeights(self, [self.path(name) for name in sorted(set(index.values()))], index)
        if self.has("pytorch_model.bin"):
            return BinWeights(self, [self.path("pytorch_model.bin")])
        if self.has("pytorch_model.bin.index.json"):
            index = self._index("pytorch_model.bin.index.json", ".bin")
            return BinWeights(self, [self.path(name) for name in sorted(set(index.values()))])
        raise MissingInputError(
            f"{self.folder}: has no weights; model.safetensors, model.safetensors.index.json or pytorch_model.bin"
            " is looked for"
        )

    def _index(self, name: str, ending: str) -> dict[str, str]:
        """Tensor -> shard. Every shard must be a plain file name of the right kind."""
        index = self.json(name).get("weight_map")
        if not isinstance(index, dict) or not index:
            raise DataError(f"{self.folder / name}: has no weight_map")
        bad = sorted({str(shard)[:80] for shard in index.values() if not _plain_name(shard, ending)})
        if bad:
            raise DataError(f"{self.folder / name}: names files that are not {ending} files of its folder: {bad}")
        return index


def _plain_name(name: object, ending: str) -> bool:
    return isinstance(name, str) and bool(_SHARD.match(name)) and name.endswith(ending) and not name.startswith(".")


def parse_object(data: bytes, place: str) -> Json:
    """Bytes -> a JSON object; whatever goes wrong is one DataError."""

    def without_repeats(pairs: list[tuple[str, object]]) -> Json:
        values = dict(pairs)
        if len(values) != len(pairs):
            raise ValueError("a key is given twice")
        return values

    try:
        values = json.loads(data, object_pairs_hook=without_repeats)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: no valid JSON: {str(error)[:120]}") from error
    if not isinstance(values, dict):
        raise DataError(f"{place}: must be a JSON object")
    return values


# -------------------------------------------------------------------------------------------------- safetensors


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of a safetensors file, after checking that they tile its data exactly."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise DataError(f"{path}: {size} bytes are no safetensors file")
        (header_size,) = struct.unpack("<Q", start)
        if header_size > min(MAX_HEADER_BYTES, size - 8):
            raise DataError(f"{path}: announces a header of {header_size:,} bytes in a file of {size:,}: damaged")
        header = parse_object(file.read(header_size), f"{path}: header")
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise DataError(f"{path}: announces {len(header):,} tensors, over {MAX_TENSORS:,}")
    spans = []
    entries = {}
    for name, announced in header.items():
        entries[name], span = _entry(path, name, announced)
        spans.append((*span, name))
    reached = 0
    for begin, end, name in sorted(spans):
        if begin != reached:
            kind = "overlaps another one" if begin < reached else "leaves a gap before it"
            raise DataError(f"{path}: tensor {name[:80]!r} {kind}: damaged")
        reached = end
    if reached != size - 8 - header_size:
        raise DataError(f"{path}: holds {size - 8 - header_size:,} bytes of data, its header says {reached:,}: damaged")
    return entries


def _entry(path: Path, name: str, announced: Any) -> tuple[TensorEntry, tuple[int, int]]:
    place = f"{path}: tensor {name[:80]!r}"
    if not isinstance(announced, dict) or not {"dtype", "shape", "data_offsets"} <= announced.keys():
        raise DataError(f"{place}: needs dtype, shape and data_offsets")
    dtype, shape, offsets = announced["dtype"], announced["shape"], announced["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise DataError(f"{place}: unknown dtype {str(dtype)[:20]!r}")
    if not _counts(shape) or len(shape) > 8:
        raise DataError(f"{place}: {str(shape)[:60]} is no shape")
    if not _counts(offsets) or len(offsets) != 2 or offsets[1] < offsets[0]:
        raise DataError(f"{place}: {str(offsets)[:60]} are no data_offsets")
    needed = math.prod(shape) * _ITEM_BYTES[dtype]
    if offsets[1] - offsets[0] != needed:
        raise DataError(f"{place}: shape {shape} of {dtype} needs {needed:,} bytes, it has {offsets[1] - offsets[0]:,}")
    return TensorEntry(name, path, dtype, tuple(shape)), (offsets[0], offsets[1])


def _counts(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 48 for value in values)


class ForeignWeights:
    """Names, dtypes and shapes of a folder's tensors, and their data on request."""

    def __init__(self, owner: ForeignFolder) -> None:
        self.folder = owner.folder
        self.entries: dict[str, TensorEntry] = {}

    def rename(self, change: Callable[[str], str]) -> None:
        """Go by other names from here on; two tensors under one name are refused."""
        entries = {change(name): entry for name, entry in self.entries.items()}
        if len(entries) != len(self.entries):
            raise DataError(f"{self.folder}: holds tensors in an old and a new spelling at once")
        self.entries = entries

    def load(self, names: Iterable[str]) -> dict[str, Tensor]:
        raise NotImplementedError


class SafetensorsWeights(ForeignWeights):
    """Mapped, not read: pages come in when a tensor is used."""

    def __init__(self, owner: ForeignFolder, files: list[Path], index: Mapping[str, str] | None) -> None:
        super().__init__(owner)
        for file in files:
            for name, entry in read_header(file).items():
                if name in self.entries:
                    raise DataError(f"{file}: tensor {name[:80]!r} is also in {self.entries[name].file.name}")
                self.entries[name] = entry
        if index is not None:
            in_shards = {name: entry.file.name for name, entry in self.entries.items()}
            wrong = sorted({*index.items()} ^ {*in_shards.items()})
            if wrong:
                lines = [f"{name[:120]} ({shard})" for name, shard in wrong]
                raise DataError(f"{owner.folder}: the index and the shards disagree on {len(wrong)} tensors:", *lines)

    def load(self, names: Iterable[str]) -> dict[str, Tensor]:
        from safetensors import SafetensorError, safe_open

        wanted: dict[Path, list[str]] = {}
        for name in names:
            wanted.setdefault(self.entries[name].file, []).append(name)
        tensors = {}
        for file, inside in wanted.items():
            try:
                with safe_open(file, framework="pt") as opened:
                    tensors.update({name: opened.get_tensor(self.entries[name].name) for name in inside})
            except SafetensorError as error:
                raise DataError(f"{file}: damaged: {error}") from error
        return tensors


# --------------------------------------------------------------------------------------------------------- .bin

_TORCH_TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


class BinWeights(ForeignWeights):
    """The one place where a pickle is opened: only tensors are allowed in it, and no program of its own can run."""

    def __init__(self, owner: ForeignFolder, files: list[Path]) -> None:
        super().__init__(owner)
        self._tensors: dict[str, Tensor] = {}
        for file in files:
            for name, tensor in _read_bin(file).items():
                if name in self._tensors:
                    raise DataError(f"{file}: tensor {name[:80]!r} is also in {self.entries[name].file.name}")
                dtype = _TORCH_TYPES.get(str(tensor.dtype).removeprefix("torch."), str(tensor.dtype))
                self._tensors[name] = tensor
                self.entries[name] = TensorEntry(name, file, dtype, tuple(tensor.shape))

    def load(self, names: Iterable[str]) -> dict[str, Tensor]:
        return {name: self._tensors[self.entries[name].name] for name in names}


def _read_bin(path: Path) -> dict[str, Tensor]:
    import torch

    zipped = zipfile.is_zipfile(path)
    if zipped:
        _refuse_packed(path)
    try:
        values = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:  # foreign bytes fail in every way there is; none of them is ours
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise DataError(f"{path}: refused: not a plain file of tensors ({reason})") from error
    if not isinstance(values, dict) or len(values) > MAX_TENSORS:
        raise DataError(f"{path}: refused: holds a {type(values).__name__}, not named tensors")
    size = path.stat().st_size
    for name, tensor in values.items():
        # A stride of 0 makes a giant out of a few bytes, and a sparse one may name places that it does not have.
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            raise DataError(f"{path}: refused: {str(name)[:80]!r} is no plain tensor")
        if tensor.is_quantized or tensor.device.type != "cpu" or tensor.numel() * tensor.element_size() > size:
            raise DataError(f"{path}: refused: tensor {name[:80]!r} of shape {list(tensor.shape)} is not in the file")
    return {name: tensor.detach() for name, tensor in values.items()}


def _refuse_packed(path: Path) -> None:
    """torch stores without compression; a compressed entry can only be a bomb."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise DataError(f"{path}: damaged: {str(error)[:120]}") from error
    packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
    if packed or len(entries) > MAX_TENSORS or sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise DataError(f"{path}: refused: its entries are compressed or larger than the file")


# ----------------------------------------------------------------------------------------------------- checking


def checked(
    weights: ForeignWeights, expected: Mapping[str, tuple[int, ...]], ignored: re.Pattern[str]
) -> dict[str, Tensor]:
    """The expected tensors, or one DataError that lists every missing, unexpected, misshapen or non-finite one.

    Names, types and shapes are compared before any data is read, so that a wrong file costs nothing.
    """
    problems = []
    for name in sorted({*weights.entries, *expected}):
        entry = weights.entries.get(name)
        if entry is None:
            problems.append(f"  missing: {name}")
        elif name not in expected:
            if not ignored.search(name):
                problems.append(f"  unexpected: {name[:200]!r}")
        elif entry.shape != tuple(expected[name]):
            problems.append(f"shape: {name} is {list(entry.shape)}, should be {list(expected[name])}")
        elif entry.dtype not in WEIGHT_TYPES:
            problems.append(f"type: {name} is {entry.dtype}, should be one of {', '.join(WEIGHT_TYPES)}")
    if not problems:
        tensors = weights.load(expected)
        problems = [f"not finite: {name}" for name, tensor in tensors.items() if not _finite(tensor)]
        if not problems:
            return tensors
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    raise DataError(f"{weights.folder}: the weights do not fit its config ({count}):", *problems)


def _finite(tensor: Tensor) -> bool:
    import torch

    # A sum carries any NaN or infinity; only where it is not finite need every number be looked at.
    return bool(torch.isfinite(tensor.sum(dtype=torch.float32))) or bool(torch.isfinite(tensor.float()).all())
