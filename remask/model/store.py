"""A model on disk in our own layout, and finding the model that a path means.

In and out: a folder with `model.json` (settings, heads, labels), `model.safetensors` (weights named as in Network)
and `tokenizer/`; it is an artifact of stage `model`, or a checkpoint, which holds more. A path may also be a run folder
(its published `model/`, else its newest checkpoint that verifies) or a Hugging Face folder. Names and shapes are
compared before any weight is read. Not here: other layouts (interop), the optimizer's state (train).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import save_file

from remask.artifacts import MANIFEST, Artifact, open_artifact, publish, sha256_of
from remask.config import dump, fingerprint
from remask.errors import DataError, MissingInputError, RemaskError
from remask.model.foreign import TOKENIZER_FILES, ForeignFolder, SafetensorsWeights, checked
from remask.model.network import Network, empty_network
from remask.model.settings import UPDATES, HeadSettings, ModelSettings, Updates
from remask.schema import Json

LAYOUT = 1
MODEL_JSON = "model.json"
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer"
TARGETS = "target_tokenizer"  # of a decoder with a vocabulary of its own
STAGES = ("model", "checkpoint")


@dataclass(frozen=True)
class Loaded:
    """An opened model. `folder` is where its files are (for a run: the checkpoint that was chosen)."""

    network: Network
    settings: ModelSettings
    heads: HeadSettings
    tokenizer_folder: Path | None
    labels: tuple[str, ...] | None
    folder: Path


# ------------------------------------------------------------------------------------------------- writing


def model_json(
    settings: ModelSettings,
    heads: HeadSettings,
    labels: Sequence[str] | None = None,
    updates: Updates | None = None,
) -> bytes:
    values = {
        "layout": LAYOUT,
        "model": dump(settings),
        "heads": dump(heads),
        "labels": None if labels is None else list(labels),
        **{name: dump(updates) for name, kind in UPDATES.items() if type(updates) is kind},
    }
    return json.dumps(values, indent=1, ensure_ascii=False).encode()


def model_files(
    settings: ModelSettings,
    heads: HeadSettings,
    tokenizer_folder: Path | None,
    labels: Sequence[str] | None = None,
    updates: Updates | None = None,
) -> dict[str, bytes | Path]:
    """The files of a model besides its weights, for whoever writes a checkpoint: name -> contents or source. `updates`:
    the weights have them beside them (a finished model has them merged)."""
    files: dict[str, bytes | Path] = {MODEL_JSON: model_json(settings, heads, labels, updates)}
    if tokenizer_folder is not None:
        # A Hugging Face folder is its own tokenizer folder: only those files of it, and none through a link outside.
        for path in ForeignFolder(tokenizer_folder).present(sorted(TOKENIZER_FILES)):
            files[f"{TOKENIZER}/{path.name}"] = path
    return files


def save_model(
    folder: Path,
    network: Network,
    tokenizer_folder: Path | None,
    labels: Sequence[str] | None = None,
    *,
    inputs: Mapping[str, str] | None = None,
    extra: Mapping[str, bytes] | None = None,
    replace: bool = False,
) -> Artifact:
    """Publish a finished model (stage `model`). `inputs`: fingerprints of its sources; `extra`: more files."""

    def fill(aside: Path) -> Json:
        files = model_files(network.settings, network.head_settings, tokenizer_folder, labels) | dict(extra or {})
        for name, contents in files.items():
            target = aside / name
            target.parent.mkdir(exist_ok=True)
            if isinstance(contents, Path):
                shutil.copyfile(contents, target)
            else:
                target.write_bytes(contents)
        weights = {name: tensor.detach() for name, tensor in network.state_dict().items()}
        write_weights(aside / WEIGHTS, weights)
        return {"parameters": sum(tensor.numel() for tensor in weights.values())}

    return publish(folder, "model", fill, config=dump(network.settings), inputs=inputs, replace=replace)


def write_weights(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """safetensors, with the rights that any new file has here (the library makes its files private)."""
    own = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    try:
        save_file(own, path, metadata={"format": "pt"})
    except SafetensorError as error:  # a full disk is said as text only
        if (number := re.search(r"os error (\d+)", str(error))) is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


# ------------------------------------------------------------------------------------------------- reading


def open_model(path: Path, *, dtype: torch.dtype | None = torch.float32) -> Loaded:
    """The model that a path means, on the CPU. `dtype` None: as the file has it."""
    folder = find_model(path)
    if not (folder / MODEL_JSON).is_file():
        return _open_foreign(folder, dtype)
    settings, heads, labels, updates = read_model_json(folder / MODEL_JSON)
    network = empty_network(settings, heads)
    guarded = ForeignFolder(folder)  # an artifact may come from a stranger, too
    if updates is None:
        network.load_state_dict(_read_weights(guarded, network), assign=True)
    else:
        network = _merged(guarded, network, updates)
    tokenizer = guarded.inner(TOKENIZER)
    if tokenizer is not None:
        tokenizer.present(TOKENIZER_FILES)
    network.to(dtype=dtype)
    return Loaded(network, settings, heads, None if tokenizer is None else tokenizer.folder, labels, folder)


def model_fingerprint(folder: Path) -> str:
    """What tells a model from all others: the contents of its weights, settings and vocabulary."""
    inside = [*folder.iterdir(), *(folder / TOKENIZER).glob("*")]
    files = sorted(path for path in inside if path.suffix in (".safetensors", ".bin", ".json", ".txt"))
    kept = [path for path in files if path.name != MANIFEST]
    return fingerprint([[str(path.relative_to(folder)), sha256_of(path)] for path in kept])


def find_model(path: Path) -> Path:
    """The folder with the model's own files: a published model, a checkpoint or a Hugging Face folder."""
    if not path.is_dir():
        raise MissingInputError(f"{path}: no such model folder")
    if (path / MODEL_JSON).is_file():
        _check_manifest(path)
        return path
    if (path / "config.json").is_file():
        if (path / "onnx").is_dir() and not any(path.glob("*.safetensors")) and not any(path.glob("*.bin")):
            raise DataError(
                f"{path}: holds an ONNX graph, not the weights; its README.md shows how to run it with onnxruntime, "
                "remask itself opens the model that it was exported from"
            )
        return path
    if (path / "model" / MODEL_JSON).is_file():
        _check_manifest(path / "model")
        return path / "model"
    if (path / "model" / "config.json").is_file():
        return path / "model"  # the folder of a quickstart
    if (path / "checkpoints").is_dir():
        return _newest_checkpoint(path)
    if tasks := sorted(inner.parent for inner in (path / "tasks").glob(f"*/{MODEL_JSON}")):
        raise DataError(f"{path}: has a model for each of its tasks; name one: {', '.join(map(str, tasks))}")
    raise DataError(
        f"{path}: is no model: neither {MODEL_JSON} (remask) nor config.json (Hugging Face) nor checkpoints/ (a run)"
    )


def _newest_checkpoint(run: Path) -> Path:
    """The last checkpoint that verifies byte by byte. Damaged ones are passed over with a word; the run's own next
    start sets them aside."""
    for folder in sorted((run / "checkpoints").glob("step-*"), reverse=True):
        try:
            return open_artifact(folder, "checkpoint", verify=True).folder
        except RemaskError as error:
            warnings.warn(f"{error}; using the checkpoint before it", stacklevel=3)
    raise DataError(f"{run}: has no whole checkpoint yet")


def _check_manifest(folder: Path) -> None:
    """Sizes as the manifest says, and of a stage that holds a model."""
    try:
        stage = json.loads((folder / MANIFEST).read_bytes())["stage"]
    except FileNotFoundError:
        raise DataError(f"{folder}: has no {MANIFEST}: not finished, or not made by remask") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / MANIFEST}: damaged: {error!r}") from error
    if stage not in STAGES:
        raise DataError(f"{folder}: holds {stage}, but a model is needed here")
    open_artifact(folder, stage)


def read_model_json(
    path: Path,
) -> tuple[ModelSettings, HeadSettings, tuple[str, ...] | None, Updates | None]:
    try:
        values = json.loads(path.read_bytes())
        if values["layout"] != LAYOUT:
            raise DataError(f"{path}: layout {values['layout']!r}, this remask reads {LAYOUT}")
        settings = ModelSettings.model_validate_json(json.dumps(values["model"]))
        heads = HeadSettings.model_validate_json(json.dumps(values["heads"]))
        labels = None if values["labels"] is None else tuple(str(label) for label in values["labels"])
        updates = None
        for name, kind in UPDATES.items():
            if name in values:
                updates = kind.model_validate_json(json.dumps(values[name]))
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise DataError(f"{path}: damaged: {str(error).splitlines()[0]}") from error
    return settings, heads, labels, updates


def _read_weights(folder: ForeignFolder, network: Network) -> dict[str, torch.Tensor]:
    """All weights in the file's dtype, or one error that lists every missing, unexpected, misshapen or wrong one."""
    try:
        weights = SafetensorsWeights(folder, [folder.path(WEIGHTS)], None)
    except MissingInputError:
        raise DataError(f"{folder.folder / WEIGHTS}: is missing") from None
    wanted = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    return checked(weights, wanted, re.compile(r"(?!)"))


def _merged(folder: ForeignFolder, network: Network, updates: Updates) -> Network:
    """A checkpoint of a run that trains changes of matrices, as the plain network that it amounts to."""
    from remask.model.adapters import add_updates, merged_network  # only for such checkpoints

    add_updates(network.encoder, updates, seed=0)
    network.load_state_dict(_read_weights(folder, network), assign=True)
    return merged_network(network)


def _open_foreign(folder: Path, dtype: torch.dtype | None) -> Loaded:
    from remask.model.interop import read_hf_folder  # only for folders of others

    imported = read_hf_folder(folder)
    network = empty_network(imported.settings, imported.heads)
    network.load_state_dict(imported.state, assign=True)
    network.to(dtype=dtype)
    labels = None if imported.labels is None else tuple(imported.labels)
    return Loaded(network, imported.settings, imported.heads, folder, labels, folder)
