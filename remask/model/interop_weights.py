"""The names of weights, ours and theirs, both ways.

In: a family, settings and heads. Out: `Pair`s of our parameter and the foreign ones it is made of, from which follow
the shapes that a foreign file must have, our state dict from its tensors, and theirs from ours. Where theirs has a
weight that ours lacks, it is written as what it amounts to: zeros for a bias, one zero segment, the identity for a
projection or pooler. Not here: settings (interop_config), files (foreign, export).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from remask.model.interop_config import family_for
from remask.model.network import empty_network
from remask.model.settings import HeadSettings, ModelSettings

BASE = {
    "roberta": "roberta.",
    "roberta-prelayernorm": "roberta_prelayernorm.",
    "bert": "bert.",
    "albert": "albert.",
    "modernbert": "model.",
}

# Modules: each stands for its weight and bias. Ours are inside `encoder.`, theirs inside the base model. {i} is the
# layer (ALBERT: the group). Three of theirs are laid end to end: query, key, value.
_BERT = (
    ("attentions.{i}.qkv",     ("encoder.layer.{i}.attention.self.query",
                                "encoder.layer.{i}.attention.self.key",
                                "encoder.layer.{i}.attention.self.value")),
    ("attentions.{i}.output",  ("encoder.layer.{i}.attention.output.dense",)),
    ("attentions.{i}.norm",    ("encoder.layer.{i}.attention.output.LayerNorm",)),
    ("ffns.{i}.up",            ("encoder.layer.{i}.intermediate.dense",)),
    ("ffns.{i}.down",          ("encoder.layer.{i}.output.dense",)),
    ("ffns.{i}.norm",          ("encoder.layer.{i}.output.LayerNorm",)),
)  # fmt: skip
_PRE_NORM = (
    *_BERT[:2],
    ("attentions.{i}.norm",    ("encoder.layer.{i}.attention.LayerNorm",)),
    *_BERT[3:5],
    ("ffns.{i}.norm",          ("encoder.layer.{i}.intermediate.LayerNorm",)),
)  # fmt: skip
_GROUP = "encoder.albert_layer_groups.{i}.albert_layers.0."
_ALBERT = (
    ("attentions.{i}.qkv",     (_GROUP + "attention.query", _GROUP + "attention.key", _GROUP + "attention.value")),
    ("attentions.{i}.output",  (_GROUP + "attention.dense",)),
    ("attentions.{i}.norm",    (_GROUP + "attention.LayerNorm",)),
    ("ffns.{i}.up",            (_GROUP + "ffn",)),
    ("ffns.{i}.down",          (_GROUP + "ffn_output",)),
    ("ffns.{i}.norm",          (_GROUP + "full_layer_layer_norm",)),
)  # fmt: skip
_MODERN = (
    ("attentions.{i}.qkv",     ("layers.{i}.attn.Wqkv",)),
    ("attentions.{i}.output",  ("layers.{i}.attn.Wo",)),
    ("attentions.{i}.norm",    ("layers.{i}.attn_norm",)),
    ("ffns.{i}.up",            ("layers.{i}.mlp.Wi",)),
    ("ffns.{i}.down",          ("layers.{i}.mlp.Wo",)),
    ("ffns.{i}.norm",          ("layers.{i}.mlp_norm",)),
)  # fmt: skip
_LAYER = {"roberta": _BERT, "roberta-prelayernorm": _PRE_NORM, "bert": _BERT, "albert": _ALBERT, "modernbert": _MODERN}

# Once per model: embeddings and what follows the layers.
_BERT_ONCE = (
    ("embeddings.tokens",      ("embeddings.word_embeddings",)),
    ("embeddings.positions",   ("embeddings.position_embeddings",)),
    ("embeddings.segments",    ("embeddings.token_type_embeddings",)),
    ("embeddings.norm",        ("embeddings.LayerNorm",)),
)  # fmt: skip
_ONCE = {
    "roberta":              _BERT_ONCE,
    "roberta-prelayernorm": (*_BERT_ONCE, ("norm", ("LayerNorm",))),
    "bert":                 _BERT_ONCE,
    "albert":               (*_BERT_ONCE, ("embeddings.project", ("encoder.embedding_hidden_mapping_in",))),
    "modernbert":           (("embeddings.tokens", ("embeddings.tok_embeddings",)),
                             ("embeddings.norm",   ("embeddings.norm",)),
                             ("norm",              ("final_norm",))),
}  # fmt: skip

# Heads by kind of class; {base} is the base model's prefix. Ours are inside `heads.`.
_ROBERTA_LM = (("masked_lm.dense", "lm_head.dense"), ("masked_lm.norm", "lm_head.layer_norm"),
               ("masked_lm.bias", "lm_head.bias"), ("masked_lm.decoder", "lm_head.decoder"))  # fmt: skip
_BERT_LM = (("masked_lm.dense", "cls.predictions.transform.dense"),
            ("masked_lm.norm", "cls.predictions.transform.LayerNorm"),
            ("masked_lm.bias", "cls.predictions.bias"), ("masked_lm.decoder", "cls.predictions.decoder"))  # fmt: skip
_ALBERT_LM = (("masked_lm.dense", "predictions.dense"), ("masked_lm.norm", "predictions.LayerNorm"),
              ("masked_lm.bias", "predictions.bias"), ("masked_lm.decoder", "predictions.decoder"))  # fmt: skip
_POOLER = ("pooler.dense", "{base}pooler.dense")
_ALBERT_POOLER = ("pooler.dense", "{base}pooler")
_SEQ_RELATIONSHIP = ("sentence", "cls.seq_relationship")
_MODERN_POOLER = (("pooler.dense", "head.dense"), ("pooler.norm", "head.norm"))
_ROBERTA_HEADS: dict[str, tuple[tuple[str, str], ...]] = {
    "Model":                     (_POOLER,),
    "ForMaskedLM":               _ROBERTA_LM,
    "ForSequenceClassification": (("pooler.dense", "classifier.dense"), ("classifier", "classifier.out_proj")),
    "ForTokenClassification":    (("tagger", "classifier"),),
    "ForQuestionAnswering":      (("span", "qa_outputs"),),
    "ForMultipleChoice":         (_POOLER, ("chooser", "classifier")),
}  # fmt: skip
_HEADS: dict[str, dict[str, tuple[tuple[str, str], ...]]] = {
    "roberta":              _ROBERTA_HEADS,
    "roberta-prelayernorm": _ROBERTA_HEADS,
    "bert": {
        "Model":                     (_POOLER,),
        "ForMaskedLM":               _BERT_LM,
        "ForPreTraining":            (*_BERT_LM, _POOLER, _SEQ_RELATIONSHIP),
        "ForNextSentencePrediction": (_POOLER, _SEQ_RELATIONSHIP),
        "ForSequenceClassification": (_POOLER, ("classifier", "classifier")),
        "ForTokenClassification":    (("tagger", "classifier"),),
        "ForQuestionAnswering":      (("span", "qa_outputs"),),
        "ForMultipleChoice":         (_POOLER, ("chooser", "classifier")),
    },
    "albert": {
        "Model":                     (_ALBERT_POOLER,),
        "ForMaskedLM":               _ALBERT_LM,
        "ForPreTraining":            (*_ALBERT_LM, _ALBERT_POOLER, ("sentence", "sop_classifier.classifier")),
        "ForSequenceClassification": (_ALBERT_POOLER, ("classifier", "classifier")),
        "ForTokenClassification":    (("tagger", "classifier"),),
        "ForQuestionAnswering":      (("span", "qa_outputs"),),
        "ForMultipleChoice":         (_ALBERT_POOLER, ("chooser", "classifier")),
    },
    "modernbert": {
        "Model":                     (),
        "ForMaskedLM":               (("masked_lm.dense", "head.dense"), ("masked_lm.norm", "head.norm"),
                                      ("masked_lm.bias", "decoder.bias"), ("masked_lm.decoder", "decoder")),
        "ForSequenceClassification": (*_MODERN_POOLER, ("classifier", "classifier")),
        "ForTokenClassification":    (*_MODERN_POOLER, ("tagger", "classifier")),
        "ForQuestionAnswering":      (*_MODERN_POOLER, ("span", "classifier")),
        "ForMultipleChoice":         (*_MODERN_POOLER, ("chooser", "classifier")),
    },
}  # fmt: skip

Way = Literal["same", "positions", "swapped"]


@dataclass(frozen=True)
class Pair:
    """One of our parameters (None: we have none) and theirs, whose shapes are known."""

    ours: str | None
    theirs: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    way: Way = "same"


def kinds(family: str) -> tuple[str, ...]:
    return tuple(_HEADS[family])


def our_shapes(settings: ModelSettings, heads: HeadSettings) -> dict[str, tuple[int, ...]]:
    """Our parameters without making them."""
    return {name: tuple(tensor.shape) for name, tensor in empty_network(settings, heads).state_dict().items()}


def export_kind(settings: ModelSettings, heads: HeadSettings) -> str:
    """The class that a model goes out as: that of its task, else of its pretraining."""
    if heads.num_classes is not None:
        return "ForSequenceClassification"
    if heads.num_tags is not None:
        return "ForTokenClassification"
    if heads.span:
        return "ForQuestionAnswering"
    if heads.choice:
        return "ForMultipleChoice"
    known = _HEADS[family_for(settings)]
    if heads.masked_lm:
        return "ForPreTraining" if heads.sentence and "ForPreTraining" in known else "ForMaskedLM"
    return "ForNextSentencePrediction" if heads.sentence and "ForNextSentencePrediction" in known else "Model"


def pairs(family: str, settings: ModelSettings, heads: HeadSettings, kind: str, offset: int) -> list[Pair]:
    """Every weight of that class. `offset`: unused rows at the start of their position table."""
    shapes = our_shapes(settings, heads)
    base = "" if kind == "Model" else BASE[family]
    pairs: list[Pair] = []
    for ours, theirs in _ONCE[family]:
        pairs += _module(f"encoder.{ours}", tuple(base + name for name in theirs), family, settings, shapes, offset)
    groups = settings.num_groups if family == "albert" and settings.sharing == "all" else settings.num_layers
    for i in range(groups):
        for ours, theirs in _LAYER[family]:
            if ours == "attentions.{i}.norm" and not settings.has_attention_norm(i):
                continue
            names = tuple(base + name.format(i=i) for name in theirs)
            pairs += _module(f"encoder.{ours.format(i=i)}", names, family, settings, shapes, offset)
    for ours, name in _HEADS[family][kind]:
        their = name.format(base=base)
        if ours == "masked_lm.bias":
            pairs.append(Pair("heads.masked_lm.bias", (their,), (shapes["heads.masked_lm.bias"],)))
        elif ours == "masked_lm.decoder":
            if not settings.tied_embeddings:
                pairs += _free_decoder(their, family, shapes)
        else:
            pairs += _module(f"heads.{ours}", (their,), family, settings, shapes, offset)
    return pairs


def _free_decoder(their: str, family: str, shapes: Mapping[str, tuple[int, ...]]) -> list[Pair]:
    """An output matrix of its own; in transformers 5 its bias is then no longer tied to the head's."""
    weight = "heads.masked_lm.decoder.weight"
    pairs = [Pair(weight, (f"{their}.weight",), (shapes[weight],))]
    if family != "modernbert":
        pairs.append(Pair("heads.masked_lm.bias", (f"{their}.bias",), (shapes["heads.masked_lm.bias"],)))
    return pairs


def _module(
    ours: str,
    theirs: tuple[str, ...],
    family: str,
    settings: ModelSettings,
    shapes: Mapping[str, tuple[int, ...]],
    offset: int,
) -> list[Pair]:
    """Weight and bias of a module, with the foreign shapes."""
    way: Way = "swapped" if ours == "heads.sentence" else "same"
    if ours == "heads.pooler.dense" and settings.pooler_tied:
        ours = f"encoder.attentions.{settings.attention_index(settings.num_layers - 1)}.output"
    weight, bias = f"{ours}.weight", f"{ours}.bias"
    if (shape := shapes.get(weight)) is not None:
        their_shape = (shape[0] // len(theirs), *shape[1:])
    else:  # what we do not have and they do
        width = settings.embedding_width if ".embeddings." in ours else settings.hidden_size
        their_shape = (1, width) if ours.endswith("segments") else (settings.hidden_size, width)
    if ours == "encoder.embeddings.positions":
        way, their_shape = "positions", (settings.max_length + offset, settings.embedding_width)
    pairs = [Pair(weight if shape else None, tuple(f"{t}.weight" for t in theirs), (their_shape,) * len(theirs), way)]
    norm = ours.endswith("norm")
    table = ours.removeprefix("encoder.embeddings.") in ("tokens", "positions", "segments")
    label = ours.removeprefix("heads.") in ("sentence", "classifier", "tagger", "span", "chooser")
    with_bias = family != "modernbert" or label or (settings.norm_bias if norm else settings.bias)
    if with_bias and not table:
        names = tuple(f"{t}.bias" for t in theirs)
        pairs.append(Pair(bias if bias in shapes else None, names, ((their_shape[0],),) * len(theirs), way))
    return pairs


# ------------------------------------------------------------------------------------------------------- moving


def to_ours(tensors: Mapping[str, Tensor], table: list[Pair]) -> dict[str, Tensor]:
    """Our state dict; of two foreign copies of one weight the later in the table counts."""
    state = {}
    for pair in table:
        if pair.ours is not None:
            parts = [tensors[name] for name in pair.theirs]
            joined = parts[0] if len(parts) == 1 else torch.cat(parts)
            state[pair.ours] = joined.flip(0) if pair.way == "swapped" else joined
    return state


def to_theirs(state: Mapping[str, Tensor], table: list[Pair], our_offset: int) -> dict[str, Tensor]:
    """Their tensors; those that we lack as what does nothing."""
    example = state["encoder.embeddings.tokens.weight"]
    tensors = {}
    for pair in table:
        if pair.ours is None:
            for name, shape in zip(pair.theirs, pair.shapes, strict=True):
                tensors[name] = _neutral(name, shape, example)
            continue
        ours = state[pair.ours]
        if pair.way == "positions":
            ours = _shifted(ours, our_offset, pair.shapes[0][0])
        elif pair.way == "swapped":
            ours = ours.flip(0)
        for name, part in zip(pair.theirs, ours.chunk(len(pair.theirs)), strict=True):
            tensors[name] = part
    return tensors


def _neutral(name: str, shape: tuple[int, ...], example: Tensor) -> Tensor:
    """What does nothing: a zero bias or segment, or a matrix that hands its input on."""
    if len(shape) == 2 and shape[0] == shape[1] and "token_type" not in name:
        return torch.eye(shape[0], dtype=example.dtype)
    return torch.zeros(shape, dtype=example.dtype)


def _shifted(table: Tensor, our_offset: int, num_rows: int) -> Tensor:
    """A position table with another number of unused rows at its start."""
    used = table[our_offset:]
    missing = num_rows - used.shape[0]
    if missing == our_offset:
        return table
    return torch.cat([table.new_zeros(missing, table.shape[1]), used])
