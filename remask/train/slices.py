"""Tensors of a checkpoint by rows: each rank writes its own, any number of ranks reads what it needs.

In: the rows that a rank holds of weights, optimizer state and averaged weights. Out: `rank-00000.safetensors` with a
JSON beside it (name, shape of the whole, offset), `model.safetensors` joined from them, and `Stored`, which gives any
rows of any tensor of a checkpoint, whether it was written whole or by many ranks. Not here: when a checkpoint is
published (checkpoint), what its state means (session).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from remask.artifacts import Artifact, sync_file
from remask.errors import DataError
from remask.train.checkpoint import model_tensors, tensor_file, write_tensors
from remask.train.sharding import Shards, own_rows

WEIGHTS, AVERAGE, OPTIMIZER = "weights", "average", "optimizer"
MODEL_FILE = "model.safetensors"
# Files of a checkpoint that was written whole. The averaged weights, where there are some, are the model that one uses.
WHOLE_FILES = {WEIGHTS: "weights.safetensors", AVERAGE: MODEL_FILE, OPTIMIZER: "optimizer.safetensors"}


@dataclass(frozen=True)
class Slice:
    """The rows of a tensor from `start` on that one rank holds; `shape` is that of the whole."""

    rows: Tensor
    shape: tuple[int, ...]
    start: int = 0


# ------------------------------------------------------------------------------------------------- writing


def model_slices(model: nn.Module, shards: Shards) -> dict[str, Slice]:
    """Own rows of the weights. What every rank has whole (buffers) is the first one's to write."""
    return _own({name: (own_rows(t), tuple(t.shape)) for name, t in model_tensors(model).items()}, shards)


def state_slices(
    state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], shards: Shards
) -> dict[str, Slice]:
    """Own rows of tensors called `{parameter}.{moment}`; `shapes` are those of the whole parameters."""
    return _own({name: (tensor, _whole_shape(name, tensor, shapes)) for name, tensor in state.items()}, shards)


def _whole_shape(name: str, tensor: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """A moment has its parameter's shape, but for counters, which every rank has."""
    return shapes[name.rpartition(".")[0]] if tensor.ndim else ()


def _own(tensors: Mapping[str, tuple[Tensor, tuple[int, ...]]], shards: Shards) -> dict[str, Slice]:
    slices_by_name = {}
    for name, (tensor, shape) in tensors.items():
        divided = tuple(tensor.shape) != shape
        if tensor.numel() if divided else shards.rank == 0:
            slices_by_name[name] = Slice(tensor, shape, shards.rows(shape[0]).start if divided else 0)
    return slices_by_name


def _rank_file(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def write_rank(folder: Path, rank: int, slices: Mapping[str, Mapping[str, Slice]]) -> None:
    """Own slices by kind and name, on the disk when this returns."""
    named = {f"{kind}/{name}": part for kind, of_kind in slices.items() for name, part in of_kind.items()}
    path = folder / _rank_file(rank)
    write_tensors(path, {name: part.rows for name, part in named.items()})
    table = {
        name: {"shape": list(part.shape), "offset": [part.start, *(0 for _ in part.shape[1:])] if part.shape else []}
        for name, part in named.items()
    }
    path.with_suffix(".json").write_text(json.dumps(table, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    sync_file(path)
    sync_file(path.with_suffix(".json"))


def join(folder: Path, num_ranks: int, kind: str) -> None:
    """model.safetensors from the slices of one kind, tensor by tensor, for every reader that knows nothing of ranks."""
    stored = Stored(folder, [_rank_file(rank) for rank in range(num_ranks)])
    with tensor_file(folder / MODEL_FILE, {name: stored.facts(kind, name) for name in stored.names(kind)}) as write:
        for name in stored.names(kind):
            write(stored.read(kind, name))


# ------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class _Place:
    """Where some rows of a tensor are."""

    path: Path
    name: str
    shape: tuple[int, ...]  # of the whole
    start: int
    stop: int


class Stored:
    """Tensors of a checkpoint folder by kind and name, any rows of them."""

    def __init__(self, folder: Path, files: Iterable[str]) -> None:
        self.folder = folder
        self._files: dict[Path, Any] = {}
        self._places: dict[str, dict[str, list[_Place]]] = {kind: {} for kind in WHOLE_FILES}
        names = set(files)
        ranks = sorted(name for name in names if name.startswith("rank-") and name.endswith(".safetensors"))
        for name in ranks:
            self._add_rank(folder / name)
        if not ranks:
            for kind, name in WHOLE_FILES.items():
                self._add_whole(kind, folder / (MODEL_FILE if name not in names else name))

    @classmethod
    def of(cls, artifact: Artifact) -> Stored:
        return cls(artifact.folder, artifact.manifest["files"])

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            try:
                self._files[path] = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise DataError(f"{path}: cannot be read: {error}") from error
        return self._files[path]

    def _add_whole(self, kind: str, path: Path) -> None:
        file = self._open(path)
        for name in file.keys():  # noqa: SIM118 (not a dict)
            shape = tuple(file.get_slice(name).get_shape())
            self._places[kind][name] = [_Place(path, name, shape, 0, shape[0] if shape else 0)]

    def _add_rank(self, path: Path) -> None:
        table = path.with_suffix(".json")
        try:
            slices = json.loads(table.read_bytes())
            for full_name, part in slices.items():
                kind, _, name = full_name.partition("/")
                rows = self._open(path).get_slice(full_name).get_shape()
                start = part["offset"][0] if part["offset"] else 0
                place = _Place(path, full_name, tuple(part["shape"]), start, start + (rows[0] if rows else 0))
                if tuple(rows[1:]) != place.shape[1:] or len(rows) != len(place.shape):
                    raise DataError(f"{path}: {full_name} does not have the shape that {table.name} gives")
                self._places[kind].setdefault(name, []).append(place)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, SafetensorError) as error:
            raise DataError(f"{table}: damaged: {error!r}") from error

    def names(self, kind: str) -> list[str]:
        return sorted(self._places[kind])

    def shape(self, kind: str, name: str) -> tuple[int, ...]:
        return self._places[kind][name][0].shape

    def facts(self, kind: str, name: str) -> tuple[str, tuple[int, ...]]:
        """Element type (as safetensors calls it) and shape, without reading the values."""
        place = self._places[kind][name][0]
        return self._open(place.path).get_slice(place.name).get_dtype(), place.shape

    def read(self, kind: str, name: str, rows: slice | None = None) -> Tensor:
        """Some rows of a tensor, or all of it, whoever wrote them."""
        places = sorted(self._places[kind][name], key=lambda place: place.start)
        if not places[0].shape:
            return self._open(places[0].path).get_tensor(places[0].name)
        wanted = slice(0, places[0].shape[0]) if rows is None else rows
        parts, at = [], wanted.start
        for place in places:
            first, last = max(place.start, at), min(place.stop, wanted.stop)
            if first == at and last > first:
                parts.append(self._open(place.path).get_slice(place.name)[first - place.start : last - place.start])
                at = last
        if at < wanted.stop:
            raise DataError(f"{self.folder}: rows {at:,} to {wanted.stop:,} of {kind} {name} are in no file")
        if not parts:
            parts = [self._open(places[0].path).get_slice(places[0].name)[:0]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


@torch.no_grad()
def load_model(model: nn.Module, stored: Stored, kind: str, shards: Shards) -> None:
    """Fill the model, or this rank's rows of it; every name and shape must fit."""
    own = model_tensors(model)
    shapes = {name: stored.shape(kind, name) for name in stored.names(kind)}
    problems = [f"{name} is missing" for name in own if name not in shapes]
    problems += [f"{name} is not part of this model" for name in shapes if name not in own]
    problems += [
        f"{name} is {shapes[name]}, the model has {tuple(own[name].shape)}"
        for name in own
        if name in shapes and shapes[name] != tuple(own[name].shape)
    ]
    if problems:
        raise DataError(f"{stored.folder}: does not fit the model: {'; '.join(problems[:8])}")
    for name, tensor in own.items():
        rows = own_rows(tensor)
        rows.copy_(stored.read(kind, name, None if rows is tensor else shards.rows(tensor.shape[0])))
    model.load_state_dict(own, strict=False)  # for modules that hold their weights in another form than files


def load_state(stored: Stored, kind: str, shards: Shards) -> dict[str, Tensor]:
    """All tensors of a kind, of each the rows that are this rank's."""
    tensors = {}
    for name in stored.names(kind):
        shape = stored.shape(kind, name)
        tensors[name] = stored.read(kind, name, shards.rows(shape[0]) if shape else None)
    return tensors
