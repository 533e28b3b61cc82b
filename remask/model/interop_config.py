"""config.json <-> ModelSettings and HeadSettings, for the families that transformers knows. No torch.

In: the config.json of a Hugging Face folder, or our settings. Out: our settings, or a config.json with every value
written out (RobertaConfig's own defaults are BERT's). What one side cannot say is a DataError that lists every reason,
or, on the way out, a reason why there is no class (`no_class`). Not here: the weights (interop_weights).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from remask.errors import DataError
from remask.model.settings import MAX_LAYERS, MAX_SIZE, HeadSettings, ModelSettings, Pooling
from remask.schema import Json, Values

# model_type in a foreign config -> the family that reads it; all of RoBERTa's relatives have its weights and names.
FAMILY_OF = {
    "roberta": "roberta",
    "xlm-roberta": "roberta",
    "camembert": "roberta",
    "roberta-prelayernorm": "roberta-prelayernorm",
    "bert": "bert",
    "albert": "albert",
    "modernbert": "modernbert",
}
CLASS_PREFIX = {
    "roberta": "Roberta",
    "roberta-prelayernorm": "RobertaPreLayerNorm",
    "bert": "Bert",
    "albert": "Albert",
    "modernbert": "ModernBert",
}

# our field            their key
_BERT_LIKE = (
    ("vocab_size",         "vocab_size"),
    ("num_layers",         "num_hidden_layers"),
    ("hidden_size",        "hidden_size"),
    ("num_heads",          "num_attention_heads"),
    ("ffn_size",           "intermediate_size"),
    ("num_segments",       "type_vocab_size"),
    ("norm_eps",           "layer_norm_eps"),
    ("dropout",            "hidden_dropout_prob"),
    ("attention_dropout",  "attention_probs_dropout_prob"),
    ("init_std",           "initializer_range"),
    ("tied_embeddings",    "tie_word_embeddings"),
)  # fmt: skip
_MODERN = (
    ("vocab_size",         "vocab_size"),
    ("num_layers",         "num_hidden_layers"),
    ("hidden_size",        "hidden_size"),
    ("num_heads",          "num_attention_heads"),
    ("ffn_size",           "intermediate_size"),
    ("max_length",         "max_position_embeddings"),
    ("norm_eps",           "norm_eps"),
    ("norm_bias",          "norm_bias"),
    ("bias",               "attention_bias"),
    ("dropout",            "mlp_dropout"),
    ("attention_dropout",  "attention_dropout"),
    ("head_dropout",       "classifier_dropout"),
    ("init_std",           "initializer_range"),
    ("tied_embeddings",    "tie_word_embeddings"),
    ("global_every",       "global_attn_every_n_layers"),
    ("rotary_base",        "global_rope_theta"),
    ("rotary_base_local",  "local_rope_theta"),
)  # fmt: skip
_FIELDS = {"roberta": _BERT_LIKE, "roberta-prelayernorm": _BERT_LIKE, "bert": _BERT_LIKE, "albert": _BERT_LIKE,
           "modernbert": _MODERN}  # fmt: skip

# What a family is, beyond its numbers.
_FORM: dict[str, Json] = {
    "roberta": {"head_form": "roberta"},
    "roberta-prelayernorm": {"head_form": "roberta", "norm": "pre"},
    "bert": {"head_form": "bert", "position_offset": 0},
    "albert": {"head_form": "bert", "position_offset": 0},
    "modernbert": {
        "head_form": "modern", "position_offset": 0, "num_segments": 0, "positions": "rotary", "norm": "pre",
        "first_norm": False, "ffn": "gated", "init": "scaled",
    },
}  # fmt: skip

# What transformers takes where a key is absent.
_ROBERTA_DEFAULTS: Json = {
    "vocab_size": 50265, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512, "type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-12,
    "classifier_dropout": None, "pad_token_id": 1, "tie_word_embeddings": True,
}  # fmt: skip
_DEFAULTS: dict[str, Json] = {
    "roberta": _ROBERTA_DEFAULTS,
    "roberta-prelayernorm": _ROBERTA_DEFAULTS,
    "bert": {**_ROBERTA_DEFAULTS, "vocab_size": 30522, "pad_token_id": 0},
    "albert": {
        **_ROBERTA_DEFAULTS, "vocab_size": 30000, "pad_token_id": 0, "embedding_size": 128, "hidden_size": 4096,
        "num_hidden_groups": 1, "num_attention_heads": 64, "intermediate_size": 16384, "inner_group_num": 1,
        "hidden_act": "gelu_new", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.1,
    },
    "modernbert": {
        "vocab_size": 50368, "hidden_size": 768, "num_hidden_layers": 22, "num_attention_heads": 12,
        "intermediate_size": 1152, "hidden_activation": "gelu", "max_position_embeddings": 8192,
        "initializer_range": 0.02, "norm_eps": 1e-5, "norm_bias": False, "attention_bias": False, "mlp_bias": False,
        "classifier_bias": False, "decoder_bias": True, "attention_dropout": 0.0, "embedding_dropout": 0.0,
        "mlp_dropout": 0.0, "classifier_dropout": 0.0, "classifier_pooling": "cls", "classifier_activation": "gelu",
        "global_attn_every_n_layers": 3, "global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0,
        "local_attention": 128, "pad_token_id": 50283, "tie_word_embeddings": True,
    },
}  # fmt: skip
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh"}
_ACTIVATION_NAMES = {"gelu": "gelu", "gelu_tanh": "gelu_new"}


# ------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class ForeignConfig:
    """What a config.json says about the model and the head on it."""

    family: str
    settings: ModelSettings
    kind: str  # "Model", "ForMaskedLM", ...; "" where the file does not say
    labels: tuple[str, ...] | None
    pooling: Pooling
    multilabel: bool


def read_config(config: Values, place: str) -> ForeignConfig:
    """A DataError lists everything in the file that this encoder has no switch for."""
    family = _family(config, place)
    values = {**_DEFAULTS[family], **{key: value for key, value in config.items() if value is not None}}
    problems = _unsupported(values, family)
    problems += [
        f"{theirs} = {str(values.get(theirs))[:40]} is not {text}"
        for theirs, text in _kinds(family).items()
        if not _is_kind(values.get(theirs), text)
    ]
    if problems:
        raise DataError(f"{place}: {'; '.join(problems)}")
    ours = {**_FORM[family], **{field: values[key] for field, key in _FIELDS[family]}}
    ours |= _derived(values, family)
    if ours["num_layers"] > MAX_LAYERS:
        raise DataError(f"{place}: num_hidden_layers = {ours['num_layers']}, over {MAX_LAYERS:,}")
    try:
        settings = ModelSettings(**ours)
    except ValidationError as error:
        raise DataError(f"{place}: {'; '.join(problem['msg'] for problem in error.errors())}") from error
    pooling: Pooling = "mean" if values.get("classifier_pooling") == "mean" else "first"
    multilabel = config.get("problem_type") == "multi_label_classification"
    return ForeignConfig(family, settings, _class_kind(config), _labels(config, place), pooling, multilabel)


def _family(config: Values, place: str) -> str:
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILY_OF:
        raise DataError(f"{place}: model_type {str(model_type)[:40]!r} is not one of {', '.join(FAMILY_OF)}")
    return FAMILY_OF[model_type]


def _class_kind(config: Values) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        return ""
    match = re.search(r"(Model|For[A-Z]\w{0,60})\Z", names[0])
    return match[1] if match else ""


def _labels(config: Values, place: str) -> tuple[str, ...] | None:
    """The names in id2label, in order; None where there are none (LABEL_0 ... are no names)."""
    table = config.get("id2label")
    if table is None:
        return None
    good = isinstance(table, dict) and set(table) == {str(i) for i in range(len(table))}
    if not good or not all(isinstance(name, (str, int)) for name in table.values()):
        raise DataError(f"{place}: id2label must give a name to each of 0, 1, ...")
    names = tuple(str(table[str(i)]) for i in range(len(table)))
    return None if all(name == f"LABEL_{i}" for i, name in enumerate(names)) else names


_INTEGERS = ("vocab_size", "num_layers", "hidden_size", "num_heads", "ffn_size", "num_segments", "max_length",
             "global_every")  # fmt: skip
_FLAGS = ("tied_embeddings", "norm_bias", "bias")


def _kinds(family: str) -> dict[str, str]:
    """their key -> what its value must be, so that a hostile or broken number is named and not computed with."""
    kinds = {
        key: "a size" if field in _INTEGERS else "true or false" if field in _FLAGS else "a number"
        for field, key in _FIELDS[family]
    }
    sizes = ["max_position_embeddings", "pad_token_id"]
    sizes += {"albert": ["embedding_size", "num_hidden_groups"], "modernbert": ["local_attention"]}.get(family, [])
    return kinds | dict.fromkeys(sizes, "a size")


def _is_kind(value: Any, kind: str) -> bool:
    if kind == "true or false":
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, int) and 0 <= value <= MAX_SIZE if kind == "a size" else 0.0 <= value < 1e12


def _unsupported(values: Values, family: str) -> list[str]:
    allowed: dict[str, tuple[Any, ...]] = {"is_decoder": (False,), "add_cross_attention": (False,)}
    if family == "modernbert":
        allowed |= {
            "hidden_activation": ("gelu",), "classifier_activation": ("gelu",), "decoder_bias": (True,),
            "mlp_bias": (values["attention_bias"],), "classifier_bias": (values["attention_bias"],),
            "classifier_pooling": ("cls", "mean"),
        }  # fmt: skip
    else:
        allowed |= {"position_embedding_type": ("absolute",), "hidden_act": tuple(_ACTIVATIONS)}
    if family == "albert":
        allowed["inner_group_num"] = (1,)
    if family.startswith("roberta"):
        allowed["hidden_act"] = ("gelu",)  # its LM head is fixed to the exact form
    return [
        f"{key} = {str(values[key])[:40]} is not supported, only {' or '.join(str(choice) for choice in choices)}"
        for key, choices in allowed.items()
        if key in values and values[key] not in choices
    ]


def _derived(values: Values, family: str) -> Json:
    """The fields that are more than a rename."""
    if family == "modernbert":
        every, bases = _modern_layers(values)
        return {"attention_window": values["local_attention"] // 2, "global_every": every} | bases
    ours: Json = {"activation": _ACTIVATIONS[values["hidden_act"]]}
    dropout = values.get("classifier_dropout_prob" if family == "albert" else "classifier_dropout")
    ours["head_dropout"] = values["hidden_dropout_prob"] if dropout is None else dropout
    offset = values["pad_token_id"] + 1 if family.startswith("roberta") else 0
    ours |= {"position_offset": offset, "max_length": values["max_position_embeddings"] - offset}
    if family == "albert":
        groups, wide = values["num_hidden_groups"], values["embedding_size"] == values["hidden_size"]
        shared = groups != values["num_hidden_layers"]
        ours |= {"sharing": "all" if shared else "none", "num_groups": groups if shared else 1}
        ours["embedding_size"] = None if wide else values["embedding_size"]
    return ours


def _modern_layers(values: Values) -> tuple[int, dict[str, float]]:
    """How often a layer sees everything, and the rotary bases, in the old spelling or in that of transformers 5."""
    every, bases = values["global_attn_every_n_layers"], {}
    types = values.get("layer_types")
    if types is not None:
        count = values["num_hidden_layers"]
        pattern = {
            n: [("full" if i % n == 0 else "sliding") + "_attention" for i in range(count)] for n in range(1, 65)
        }
        every = next((n for n, expected in pattern.items() if types == expected), 0)
        if not every:
            raise DataError(
                "config.json: layer_types is not global attention in every n-th layer, beginning with the first"
            )
    for kind, field in (("full_attention", "rotary_base"), ("sliding_attention", "rotary_base_local")):
        rope = values.get("rope_parameters")
        part = rope.get(kind) if isinstance(rope, dict) else None
        if isinstance(part, dict):
            if part.get("rope_type", "default") != "default" or not _is_kind(part.get("rope_theta", 1.0), "a number"):
                raise DataError(f"config.json: rope_parameters of {kind} are not the plain ones")
            if "rope_theta" in part:
                bases[field] = float(part["rope_theta"])
    return every, bases


# ------------------------------------------------------------------------------------------------------- writing


def family_for(settings: ModelSettings) -> str:
    """The family that a model goes out as, if it has a class at all (see no_class)."""
    if settings.positions == "rotary":
        return "modernbert"
    if settings.norm == "pre":
        return "roberta-prelayernorm"
    if settings.embedding_width != settings.hidden_size or settings.sharing != "none":
        return "albert"
    # RoBERTa's LM head is fixed to the exact GELU; BERT's and RoBERTa's heads differ in training only.
    return "roberta" if settings.head_form == "roberta" and settings.activation == "gelu" else "bert"


def no_class(settings: ModelSettings, heads: HeadSettings) -> list[str]:
    """Why transformers has no class for this model; empty where it has one."""
    family = family_for(settings)
    window, mean = settings.attention_kind == "window", heads.pooling == "mean"
    conditions = {
        "sharing only attention or only the FFN": settings.sharing in ("attention", "ffn"),
        "hashed attention": settings.attention_kind == "hashed",
        "bottleneck adapters": settings.bottleneck_size > 0,
        "a learned prefix": settings.prefix_length > 0,
        "a head form other than the family's": (settings.head_form == "modern") != (family == "modernbert")
        and heads != HeadSettings(pooling=heads.pooling),
        "choices on the mean state": mean and heads.choice and family != "modernbert",
        "a sentence loss on the mean state": mean and heads.sentence and family in ("bert", "albert"),
        "a decoder in a family without one": heads.writer is not None and family not in ("roberta", "bert"),
        "classes on the mean state": mean and bool(heads.num_classes) and family != "modernbert",
    }
    if family == "modernbert":
        conditions |= {
            "rotary positions with norm after the sub-layer": settings.norm == "post",
            "rotary positions without a gated FFN": settings.ffn == "plain",
            "rotary positions with shared layers": settings.sharing != "none",
            "rotary positions with factorised embeddings": settings.embedding_width != settings.hidden_size,
            "rotary positions with a norm before the first attention": settings.first_norm,
            "rotary positions with segment embeddings": settings.num_segments > 0,
            "rotary positions with the tanh GELU": settings.activation != "gelu",
            "a window in the first layer too": window and settings.global_every == 0,
        }
    else:
        factorised = settings.embedding_width != settings.hidden_size or settings.sharing != "none"
        conditions |= {
            "an attention window with learned positions": window,
            "a gated FFN with learned positions": settings.ffn == "gated",
            "norm before the sub-layer with shared layers or factorised embeddings": settings.norm == "pre"
            and factorised,
            "norm before the sub-layer without one before the first attention": settings.norm == "pre"
            and not settings.first_norm,
            "norm before the sub-layer with the tanh GELU": settings.norm == "pre" and settings.activation != "gelu",
        }
    return [reason for reason, holds in conditions.items() if holds]


@dataclass(frozen=True)
class SpecialIds:
    """The ids that a config.json repeats from the tokenizer."""

    pad: int
    bos: int
    eos: int


def write_config(
    settings: ModelSettings,
    heads: HeadSettings,
    kind: str,
    ids: SpecialIds,
    dtype: str,
    labels: tuple[str, ...] | None,
) -> Json:
    """Every value explicit. `kind` is the class without its prefix."""
    assert not no_class(settings, heads)
    family = family_for(settings)
    config: Json = {
        "architectures": [CLASS_PREFIX[family] + kind],
        "model_type": family,
        **{key: getattr(settings, field) for field, key in _FIELDS[family]},
        "pad_token_id": ids.pad,
        "bos_token_id": ids.bos,
        "eos_token_id": ids.eos,
        # transformers 4 reads torch_dtype, 5 reads dtype.
        "torch_dtype": dtype,
        "dtype": dtype,
    }
    if family == "modernbert":
        window = settings.attention_window if settings.attention_kind == "window" else None
        config |= {
            "global_attn_every_n_layers": settings.global_every if window else 1,
            "local_attention": 2 * window if window else 128,
            "hidden_activation": "gelu", "classifier_activation": "gelu", "decoder_bias": True,
            "mlp_bias": settings.bias, "classifier_bias": settings.bias,
            "classifier_pooling": "mean" if heads.pooling == "mean" else "cls",
            "embedding_dropout": settings.dropout, "cls_token_id": ids.bos, "sep_token_id": ids.eos,
            "initializer_cutoff_factor": 2.0,
        }  # fmt: skip
    else:
        offset = ids.pad + 1 if family.startswith("roberta") else 0
        config |= {
            "hidden_act": _ACTIVATION_NAMES[settings.activation],
            "max_position_embeddings": settings.max_length + offset,
            "type_vocab_size": max(settings.num_segments, 1),
            "position_embedding_type": "absolute",
            "classifier_dropout_prob" if family == "albert" else "classifier_dropout": settings.head_dropout,
        }
    if family == "albert":
        shared = settings.sharing == "all"
        config |= {
            "embedding_size": settings.embedding_width, "inner_group_num": 1,
            "num_hidden_groups": settings.num_groups if shared else settings.num_layers,
        }  # fmt: skip
    num_labels = heads.num_classes if kind == "ForSequenceClassification" else heads.num_tags
    if kind in ("ForSequenceClassification", "ForTokenClassification") and num_labels is not None:
        names = labels or tuple(f"LABEL_{i}" for i in range(num_labels))
        if len(names) != num_labels:
            raise DataError(f"the model has {num_labels} labels but {len(names)} names for them")
        config["id2label"] = {str(i): name for i, name in enumerate(names)}
        config["label2id"] = {name: i for i, name in enumerate(names)}
    if kind == "ForSequenceClassification":
        many = "multi_label_classification" if heads.multilabel else "single_label_classification"
        config["problem_type"] = "regression" if num_labels == 1 and not heads.multilabel else many
    return config
