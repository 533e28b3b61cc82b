"""A Hugging Face folder -> settings, heads and weights of a Network.

In: a folder of the RoBERTa, BERT, ALBERT or ModernBERT kind, in safetensors (whole or sharded) or `.bin`. Out:
`Imported`, in the file's own dtype, after every name, shape and number was checked; weights that no head of ours uses
(a pooler beside a masked-LM head) are carried along, so that an export can hand them back. What our own exports put
beside the model (heads without a class there) is read too. Not here: writing such folders (export).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from remask.config import dump
from remask.errors import DataError
from remask.model.foreign import TOKENIZER_FILES, ForeignFolder, ForeignWeights, SafetensorsWeights, checked
from remask.model.interop_config import ForeignConfig, read_config
from remask.model.interop_weights import BASE, Pair, kinds, our_shapes, pairs, to_ours
from remask.model.settings import HeadSettings, ModelSettings, Pooling

SIDE_JSON = "remask.json"  # heads that have no class in transformers, and settings that its config cannot hold
SIDE_WEIGHTS = "remask_heads.safetensors"
TASK_JSON = "task.json"  # how a fine-tuned model was asked
PROMPTS_JSON = "config_sentence_transformers.json"  # prompts of an embedding model, where others look for them
CARRIED = "carried.safetensors"  # in our own layout: weights of the source that no head uses

# Never weights: buffers that old versions saved.
_BUFFERS = re.compile(r"(^|\.)(position_ids|token_type_ids|inv_freq|\w+_inv_freq)$")
# Weights of another head than the class's, which old checkpoints keep.
_OTHER_HEADS = re.compile(r"(^|\.)(pooler(\.dense)?|cls\.seq_relationship|sop_classifier\.classifier)\.(weight|bias)$")
# Output layers that repeat the embeddings when tied.
_DECODERS = {"roberta": "lm_head.decoder", "roberta-prelayernorm": "lm_head.decoder", "bert": "cls.predictions.decoder",
             "albert": "predictions.decoder", "modernbert": "decoder"}  # fmt: skip
_EMBEDDINGS = ("embeddings.word_embeddings.weight", "embeddings.tok_embeddings.weight")


@dataclass(frozen=True)
class Imported:
    """What a foreign folder holds, in our terms."""

    family: str
    settings: ModelSettings
    heads: HeadSettings
    state: dict[str, Tensor]  # named and shaped as Network.state_dict(), in the file's dtype
    labels: tuple[str, ...] | None
    carried: dict[str, Tensor] = field(default_factory=dict)  # under their own names


def read_hf_folder(path: Path) -> Imported:
    """Nothing is allocated before all names and shapes match; a DataError lists every mismatch."""
    folder = ForeignFolder(path)
    folder.present((*TOKENIZER_FILES, TASK_JSON))  # read by others, later: no link among them may lead out
    config = folder.json("config.json")
    if config.get("model_type") == "encoder-decoder":
        from remask.model.interop_writer import read_both  # only for models that write

        family, settings, heads, state = read_both(folder, config)
        return Imported(family, settings, heads, state, None)
    foreign = read_config(config, str(path / "config.json"))
    weights = folder.weights()
    weights.rename(_modern_spelling)
    based = any(name.startswith(BASE[foreign.family] + "embeddings.") for name in weights.entries)
    kind = _kind(foreign, weights)
    if kind == "Model" and based:  # a base model saved with the prefix of its heads
        weights.rename(lambda name: name.removeprefix(BASE[foreign.family]))
    elif kind != "Model" and not based:
        raise DataError(f"{path}: has the weights of the base model only, not those of {foreign.kind}")
    settings = _free_if_different(foreign, weights)
    heads = _heads(foreign, kind, weights)
    if kind == "Model":
        heads = _with_pooling(folder, heads)
    table = _present(pairs(foreign.family, settings, heads, kind, settings.position_offset), weights, kind)
    wanted = {name: shape for pair in table for name, shape in zip(pair.theirs, pair.shapes, strict=True)}
    loose = {n: e.shape for n, e in weights.entries.items() if n not in wanted and _OTHER_HEADS.search(n)}
    tensors = checked(weights, wanted | loose, _ignored(foreign.family, settings))
    _check_identity(tensors, settings, path)
    carried = {name: tensors[name] for name in loose}
    # A base model's pooler belongs to no head of ours.
    carried |= {name: tensors[name] for pair in table if kind == "Model" for name in pair.theirs if "pooler" in name}
    imported = Imported(foreign.family, settings, heads, to_ours(tensors, table), foreign.labels, carried)
    return _with_side_heads(folder, imported)


def _modern_spelling(name: str) -> str:
    return re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))


def _kind(foreign: ForeignConfig, weights: ForeignWeights) -> str:
    """The class of the weights: as the config says, else as the names tell."""
    known = kinds(foreign.family)
    present = set(weights.entries)
    lm = any(n.startswith(("lm_head.", "cls.predictions.", "predictions.", "decoder.")) for n in present)
    sentence = any(n.startswith(("cls.seq_relationship.", "sop_classifier.")) for n in present)
    if foreign.kind in ("", "ForMaskedLM", "ForPreTraining") and lm:
        pooled = any("pooler" in name for name in present)
        return "ForPreTraining" if sentence and pooled and "ForPreTraining" in known else "ForMaskedLM"
    if foreign.kind in known:
        return foreign.kind
    if foreign.kind in ("", "ForPreTraining"):
        return "Model"
    raise DataError(f"{weights.folder}: a class ending in {foreign.kind} is not one of {', '.join(known)}")


def _heads(foreign: ForeignConfig, kind: str, weights: ForeignWeights) -> HeadSettings:
    def num_labels() -> int:
        if foreign.labels is not None:
            return len(foreign.labels)
        for name in ("classifier.out_proj.weight", "classifier.weight"):
            if name in weights.entries and weights.entries[name].shape:
                return max(1, weights.entries[name].shape[0])
        return 2

    return HeadSettings(
        masked_lm=kind in ("ForMaskedLM", "ForPreTraining"),
        sentence=kind in ("ForPreTraining", "ForNextSentencePrediction"),
        num_classes=num_labels() if kind == "ForSequenceClassification" else None,
        multilabel=foreign.multilabel and kind == "ForSequenceClassification",
        num_tags=num_labels() if kind == "ForTokenClassification" else None,
        span=kind == "ForQuestionAnswering",
        choice=kind == "ForMultipleChoice",
        pooling=pooling_read_as(foreign.family, kind, foreign.pooling),
    )


def pooling_read_as(family: str, kind: str, written: Pooling) -> Pooling:
    """How a folder of this class pools if nothing else says so; only ModernBERT's config has a word for it. Nothing has
    trained the first token of a masked LM, and sentence-transformers opens it with the mean."""
    if kind == "ForMaskedLM":
        return "mean"
    return written if family == "modernbert" else "first"


def _with_pooling(folder: ForeignFolder, heads: HeadSettings) -> HeadSettings:
    """How sentence-transformers pools, where it left word of it."""
    inner = folder.inner("1_Pooling")
    if inner is None or not inner.has("config.json"):
        return heads
    values = inner.json("config.json")
    mean = values.get("pooling_mode_mean_tokens") is True or values.get("pooling_mode") == "mean"
    first = values.get("pooling_mode_cls_token") is True or values.get("pooling_mode") == "cls"
    if mean == first:
        raise DataError(f"{inner.folder / 'config.json'}: pools in another way than by the mean or the first token")
    return heads.model_copy(update={"pooling": "mean" if mean else "first"})


def read_prompts(path: Path) -> Mapping[str, str]:
    """What a folder says in sentence-transformers' way to put before a text, by name: query, document, ..."""
    folder = ForeignFolder(path)
    values = folder.json(PROMPTS_JSON).get("prompts") if folder.has(PROMPTS_JSON) else None
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(text, str) for text in values.values()):
        raise DataError(f"{path / PROMPTS_JSON}: prompts must be texts by name")
    return values


def _free_if_different(foreign: ForeignConfig, weights: ForeignWeights) -> ModelSettings:
    """A config that says tied and a file with an output matrix that differs: the file counts, as in transformers 5."""
    name = f"{_DECODERS[foreign.family]}.weight"
    embeddings = next((n for n in weights.entries if n.endswith(_EMBEDDINGS)), None)
    if not foreign.settings.tied_embeddings or name not in weights.entries or embeddings is None:
        return foreign.settings
    if weights.entries[name].shape != weights.entries[embeddings].shape:
        return foreign.settings.model_copy(update={"tied_embeddings": False})
    both = weights.load([name, embeddings])
    tied = torch.equal(both[name], both[embeddings])
    return foreign.settings.model_copy(update={"tied_embeddings": tied})


def _present(table: list[Pair], weights: ForeignWeights, kind: str) -> list[Pair]:
    """Without what a file of that class may lack: a base model's pooler, and the second copy of the output bias."""
    optional = {"pooler"} if kind == "Model" else {"lm_head.decoder.bias", "predictions.decoder.bias"}
    return [
        pair
        for pair in table
        if pair.theirs[0] in weights.entries or not any(part in pair.theirs[0] for part in optional)
    ]


def _ignored(family: str, settings: ModelSettings) -> re.Pattern[str]:
    if not settings.tied_embeddings:
        return _BUFFERS
    copies = "weight" if family == "modernbert" else "(weight|bias)"
    return re.compile(rf"{_BUFFERS.pattern}|^{re.escape(_DECODERS[family])}\.{copies}$")


def _check_identity(tensors: dict[str, Tensor], settings: ModelSettings, path: Path) -> None:
    """ALBERT always has a projection; at E = H ours has none, so theirs must do nothing."""
    for name, tensor in tensors.items():
        if not name.endswith(("embedding_hidden_mapping_in.weight", "embedding_hidden_mapping_in.bias")):
            continue
        if settings.embedding_width == settings.hidden_size:
            nothing = torch.eye(len(tensor)) if tensor.ndim == 2 else torch.zeros(len(tensor))
            if not torch.equal(tensor.float(), nothing):
                raise DataError(
                    f"{path}: {name} is not the identity; embedding_size = hidden_size has no projection here"
                )


def _with_side_heads(folder: ForeignFolder, imported: Imported) -> Imported:
    """Heads that our own export put beside the model."""
    if not folder.has(SIDE_JSON):
        return imported
    values = folder.json(SIDE_JSON)
    try:
        heads = HeadSettings(**values.get("heads", {}))
    except (ValidationError, TypeError) as error:
        raise DataError(f"{folder.folder / SIDE_JSON}: heads: {str(error).splitlines()[0]}") from error
    merged = HeadSettings(**{**dump(heads), **{k: v for k, v in dump(imported.heads).items() if v and k != "pooling"}})
    shapes = our_shapes(imported.settings, merged)
    missing = {name: shape for name, shape in shapes.items() if name not in imported.state}
    state = imported.state
    if missing:
        side = SafetensorsWeights(folder, [folder.path(SIDE_WEIGHTS)], None)
        state = state | checked(side, missing, re.compile(_OTHER_HEADS.pattern))
    return Imported(imported.family, imported.settings, merged, state, imported.labels, imported.carried)
