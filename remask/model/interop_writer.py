"""transformers' EncoderDecoderModel <-> a network that writes: settings and weights, both ways.

In: our settings and weights, or the config.json and the tensors of such a folder. Out: the other side's. The decoder is
seen as a model of its own with a masked-LM head, for which the tables of interop_config and interop_weights hold; only
the attention over the source has names of its own here. Shared weights are written twice; read back, a decoder whose
weights are all the encoder's shares them. RoBERTa and BERT only: the other families have no decoder there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from remask.errors import DataError
from remask.model.foreign import ForeignFolder, checked
from remask.model.interop_config import SpecialIds, family_for, read_config, write_config
from remask.model.interop_weights import BASE, Pair, pairs, to_ours, to_theirs
from remask.model.network import empty_network
from remask.model.settings import HeadSettings, ModelSettings, WriterSettings
from remask.schema import Json, Values

MODEL_TYPE = "encoder-decoder"
FAMILIES = ("roberta", "bert")
_LM = HeadSettings(masked_lm=True)
_CLASSES = {"roberta": "RobertaForCausalLM", "bert": "BertLMHeadModel"}
_BUFFERS = re.compile(r"(^|\.)(position_ids|token_type_ids)$|\.(lm_head|cls\.predictions)\.decoder\.(weight|bias)$")

# Modules: ours inside `heads.writer.crosses.{i}.`, theirs inside a layer's `crossattention.`.
_CROSS = (
    ("query",      ("self.query",)),
    ("key_value",  ("self.key", "self.value")),
    ("output",     ("output.dense",)),
    ("norm",       ("output.LayerNorm",)),
)  # fmt: skip


def decoder_settings(settings: ModelSettings, writer: WriterSettings) -> ModelSettings:
    """The decoder as a model of its own."""
    count = settings.num_layers if writer.num_layers is None else writer.num_layers
    size = settings.vocab_size if writer.vocab_size is None else writer.vocab_size
    return settings.model_copy(update={"num_layers": count, "vocab_size": size})


def _cross_pairs(settings: ModelSettings, num_layers: int, base: str) -> list[Pair]:
    width, found = settings.hidden_size, []
    for i in range(num_layers):
        for ours, theirs in _CROSS:
            names = [f"{base}encoder.layer.{i}.crossattention.{name}" for name in theirs]
            shape = (width,) if ours == "norm" else (width, width)
            place = f"heads.writer.crosses.{i}.{ours}"
            found.append(Pair(f"{place}.weight", tuple(f"{n}.weight" for n in names), (shape,) * len(names)))
            with_bias = settings.norm_bias if ours == "norm" else settings.bias
            bias = f"{place}.bias" if with_bias else None
            found.append(Pair(bias, tuple(f"{n}.bias" for n in names), ((width,),) * len(names)))
    return found


def _renamed(settings: ModelSettings, writer: WriterSettings) -> dict[str, str]:
    """The decoder's weights as those of a model of its own -> where they are in the network that writes."""
    own = decoder_settings(settings, writer)
    first = settings.num_layers - own.num_layers
    found = {}
    for name in empty_network(own, _LM).state_dict():
        if name.startswith("heads.masked_lm."):
            found[name] = name.replace("heads.masked_lm.", "heads.writer.lm.", 1)
        elif name.startswith("encoder.embeddings."):
            place = "encoder." if writer.vocab_size is None else "heads.writer."
            found[name] = place + name.removeprefix("encoder.")
        elif writer.weights == "copied":
            found[name] = "heads.writer." + name.removeprefix("encoder.")
        else:
            part, number, rest = name.removeprefix("encoder.").split(".", 2)
            found[name] = f"encoder.{part}.{int(number) + first}.{rest}"
    return found


# ------------------------------------------------------------------------------------------------------- writing


def write_both(
    settings: ModelSettings,
    writer: WriterSettings,
    state: Mapping[str, Tensor],
    ids: tuple[SpecialIds, SpecialIds],
    dtype: str,
) -> tuple[Json, dict[str, Tensor]]:
    """config.json and the tensors. `ids`: the special ones of the sources and of the targets."""
    family = family_for(settings)
    assert family in FAMILIES
    own, bare = decoder_settings(settings, writer), HeadSettings()
    offsets = [id_.pad + 1 if family == "roberta" else 0 for id_ in ids]
    encoder = to_theirs(state, pairs(family, settings, bare, "Model", offsets[0]), settings.position_offset)
    apart = {name: state[place] for name, place in _renamed(settings, writer).items()}
    decoder = to_theirs(apart, pairs(family, own, _LM, "ForMaskedLM", offsets[1]), settings.position_offset)
    crosses = {name: t for name, t in state.items() if name.startswith("heads.writer.crosses.")}
    example = {"encoder.embeddings.tokens.weight": state["encoder.embeddings.tokens.weight"]}
    decoder |= to_theirs({**crosses, **example}, _cross_pairs(settings, own.num_layers, BASE[family]), 0)
    reading = write_config(settings, bare, "Model", ids[0], dtype, None)
    writing = write_config(own, _LM, "ForMaskedLM", ids[1], dtype, None)
    writing |= {"architectures": [_CLASSES[family]], "is_decoder": True, "add_cross_attention": True}
    config = {
        "architectures": ["EncoderDecoderModel"],
        "model_type": MODEL_TYPE,
        "is_encoder_decoder": True,
        "encoder": reading,
        "decoder": writing,
        "decoder_start_token_id": writer.start_id,
        "eos_token_id": writer.end_id,
        "bos_token_id": ids[1].bos,
        "pad_token_id": ids[1].pad,
        "tie_word_embeddings": False,  # the decoder's own config ties its output
        "torch_dtype": dtype,
        "dtype": dtype,
    }
    tensors = {f"encoder.{name}": tensor for name, tensor in encoder.items()}
    return config, tensors | {f"decoder.{name}": tensor for name, tensor in decoder.items()}


# ------------------------------------------------------------------------------------------------------- reading


def read_both(folder: ForeignFolder, config: Values) -> tuple[str, ModelSettings, HeadSettings, dict[str, Tensor]]:
    """(family, settings, heads, state) of such a folder."""
    place = str(folder.folder / "config.json")
    encoder_part, decoder_part = config.get("encoder"), config.get("decoder")
    if not isinstance(encoder_part, dict) or not isinstance(decoder_part, dict):
        raise DataError(f"{place}: has no settings of an encoder and a decoder")
    plain = {key: value for key, value in decoder_part.items() if key not in ("is_decoder", "add_cross_attention")}
    if decoder_part.get("add_cross_attention") is not True:
        raise DataError(f"{place}: decoder.add_cross_attention is not true: a decoder that does not see its source")
    reading = read_config(encoder_part, f"{place}: encoder")
    writing = read_config(plain, f"{place}: decoder")
    family, settings, own = reading.family, reading.settings, writing.settings
    changed = {"num_layers": own.num_layers, "vocab_size": own.vocab_size}
    same = own.model_copy(update={"num_layers": settings.num_layers, "vocab_size": settings.vocab_size})
    if family not in FAMILIES or writing.family != family or same != settings:
        raise DataError(
            f"{place}: the decoder must be of the encoder's kind and sizes ({' or '.join(FAMILIES)}); only its number "
            "of layers and its vocabulary may differ"
        )
    start_id, end_id = config.get("decoder_start_token_id"), config.get("eos_token_id")
    if not (isinstance(start_id, int) and isinstance(end_id, int) and 0 <= start_id < own.vocab_size > end_id >= 0):
        raise DataError(f"{place}: decoder_start_token_id and eos_token_id must be ids of the decoder's vocabulary")
    tables = [
        pairs(family, settings, HeadSettings(), "Model", settings.position_offset),
        pairs(family, own, _LM, "ForMaskedLM", own.position_offset),
        _cross_pairs(settings, own.num_layers, BASE[family]),
    ]
    weights = folder.weights()
    poolers = "encoder.pooler.dense.weight" in weights.entries  # a folder may have one or none
    tables[0] = [pair for pair in tables[0] if poolers or "pooler" not in pair.theirs[0]]
    wanted = {}
    for side, table in zip(("encoder", "decoder", "decoder"), tables, strict=True):
        wanted |= {f"{side}.{n}": s for pair in table for n, s in zip(pair.theirs, pair.shapes, strict=True)}
    tensors = checked(weights, wanted, _BUFFERS)
    encoder = to_ours(_inside(tensors, "encoder."), tables[0])
    apart = to_ours(_inside(tensors, "decoder."), tables[1])
    crosses = to_ours(_inside(tensors, "decoder."), tables[2])
    writer = WriterSettings(
        weights="copied", num_layers=changed["num_layers"], vocab_size=changed["vocab_size"],
        start_id=start_id, end_id=end_id,
    )  # fmt: skip
    writer = _shared_where_equal(settings, writer, encoder, apart)
    state = {**encoder, **crosses}
    state |= {place: apart[name] for name, place in _renamed(settings, writer).items() if place not in encoder}
    state = {name: tensor for name, tensor in state.items() if not name.startswith("heads.pooler.")}
    return family, settings, HeadSettings(writer=writer), state


def _inside(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _shared_where_equal(
    settings: ModelSettings, writer: WriterSettings, encoder: Mapping[str, Tensor], apart: Mapping[str, Tensor]
) -> WriterSettings:
    """One vocabulary where both tables are the same, shared layers where all of them are."""
    for change in ({"vocab_size": None}, {"weights": "shared"}):
        tried = writer.model_copy(update=change)
        places = {n: p for n, p in _renamed(settings, tried).items() if p in encoder}
        if all(encoder[p].shape == apart[n].shape and torch.equal(encoder[p], apart[n]) for n, p in places.items()):
            writer = tried
    if writer.num_layers == settings.num_layers:
        writer = writer.model_copy(update={"num_layers": None})
    return writer
