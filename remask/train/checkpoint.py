"""Checkpoints: everything a run needs to go on, published whole, verified before anything older goes.

In: named tensors, a JSON state, and files that every checkpoint carries (model.json, tokenizer/). Out: folders
`checkpoints/step-000001000/` (stage "checkpoint": model.safetensors, optimizer.safetensors, state.json, ...), of which
the newest good one is found by verifying, never by a pointer. safetensors and JSON only. Not here: what the state
means (loop), and how a folder is published (artifacts).
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from remask.artifacts import Artifact, newest, open_artifact, publish
from remask.errors import DataError, RemaskError
from remask.schema import Json, Values

STAGE = "checkpoint"
STATE_VERSION = 1

# What safetensors calls the element types we write.
_TYPES = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

Files = Mapping[str, bytes | Path]


# --------------------------------------------------------------------------------------------- tensor files


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file, written tensor by tensor: no second copy of the model in memory, and a full disk shows as
    the OSError that it is."""
    shapes = {name: (_TYPES[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}
    with tensor_file(path, shapes) as write:
        for _, tensor in sorted(tensors.items()):
            write(tensor)


@contextlib.contextmanager
def tensor_file(path: Path, facts: Mapping[str, tuple[str, tuple[int, ...]]]) -> Iterator[Callable[[Tensor], None]]:
    """A safetensors file for tensors of these types and shapes, which are then written one by one, sorted by name."""
    sizes = {kind: dtype.itemsize for dtype, kind in _TYPES.items()}
    header: Json = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (kind, shape) in sorted(facts.items()):
        size = math.prod(shape) * sizes[kind]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)

        def write(tensor: Tensor) -> None:
            file.write(_raw(tensor))

        yield write


def _raw(tensor: Tensor) -> Any:
    """The tensor's bytes, without a copy where it lies in order on the CPU."""
    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy().data


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters (shared ones once) and persistent buffers by name, as the model gives them to files."""
    state = model.state_dict()
    own = {name for name, _ in model.named_parameters()}
    again = {name for name, _ in model.named_parameters(remove_duplicate=False)} - own
    return {name: tensor.detach() for name, tensor in state.items() if name not in again}


# --------------------------------------------------------------------------------------------- checkpoints


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path, carried: Files, keep: int, warn: Callable[[str], None]) -> None:
        self.folder = folder / "checkpoints"
        self._carried, self._keep, self._warn = carried, keep, warn
        self._verified: set[Path] = set()

    def save(
        self,
        step: int,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Values,
        needed: int | None = None,
        also: Callable[[Path], None] | None = None,
    ) -> Artifact:
        """Publish, read back, then delete what is no longer needed. `tensors`: file name -> its tensors; `needed`: the
        step of one that stays, however old; `also` puts further files into the folder before it is published."""
        folder = self._of(step)

        def fill(aside: Path) -> Json:
            for name, content in self._carried.items():
                target = aside / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, bytes):
                    target.write_bytes(content)
                else:
                    shutil.copyfile(content, target)
            for name, named in tensors.items():
                write_tensors(aside / name, named)
            if also is not None:
                also(aside)
            text = json.dumps({"version": STATE_VERSION, **state}, indent=1, sort_keys=True, allow_nan=False)
            (aside / "state.json").write_text(text + "\n", encoding="utf-8")
            return {"step": step}

        publish(folder, STAGE, fill, replace=True)  # a stop's own, once what it interrupted is done
        artifact = open_artifact(folder, STAGE, verify=True)
        self._verified.add(folder)
        self._prune(None if needed is None else self._of(needed))
        return artifact

    def _of(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}"

    def newest(self) -> Artifact | None:
        """The newest that verifies; damaged ones are set aside, with a word. What a kill left over is removed."""
        for left_over in [*self.folder.glob(".step-*"), *self.folder.glob(".deleted-*")]:
            shutil.rmtree(left_over, ignore_errors=True)
        artifact = newest(self.folder, "step-*", STAGE, self._warn)
        if artifact is not None:
            self._verified.add(artifact.folder)
        return artifact

    def drop_after(self, step: int) -> None:
        """The run goes back to `step`: later ones are not its past any more."""
        for folder in self.folder.glob("step-*"):
            if folder > self._of(step):
                self._delete(folder)

    def _prune(self, needed: Path | None) -> None:
        """Keep the newest verified ones; a damaged one never counts as kept."""
        good = 0
        for folder in sorted(self.folder.glob("step-*"), reverse=True):
            if good < self._keep:
                good += self._is_good(folder)
            elif folder != needed:
                self._delete(folder)

    def _delete(self, folder: Path) -> None:
        """Renamed first: a kill half-way through leaves nothing broken under a final name."""
        doomed = folder.with_name(f".deleted-{folder.name}")
        folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        self._verified.discard(folder)

    def _is_good(self, folder: Path) -> bool:
        if folder not in self._verified:
            try:
                open_artifact(folder, STAGE, verify=True)
            except RemaskError as error:
                self._warn(str(error))
                return False
            self._verified.add(folder)
        return True


def read_state(artifact: Artifact) -> Json:
    path = artifact.path("state.json")
    state = json.loads(path.read_text(encoding="utf-8"))
    if state.get("version") != STATE_VERSION:
        raise DataError(f"{path}: state version {state.get('version')}, this remask reads {STATE_VERSION}")
    return state
