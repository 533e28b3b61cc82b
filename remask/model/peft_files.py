"""Trained changes in the form that peft reads: `adapter_config.json` and `adapter_model.safetensors`.

In: a network whose matrices have LoRA, AdaLoRA or IA3 beside them, or that has prefixes, and where it started. Out:
the two files, under transformers' module names, with the heads as `modules_to_save`; peft loads them over the start.
Empty where transformers has no class for the network, or peft no form: bottleneck adapters, and prefixes where
transformers' class takes no past keys (ALBERT, ModernBERT). Not here: the changes (adapters, adalora, encoder).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import torch
from safetensors.torch import save
from torch import Tensor

from remask.model.adalora import RationedUpdate
from remask.model.adapters import BLOCKS, LoraLinear, ScaledLinear, changed_linears, merged_state
from remask.model.interop_config import family_for, no_class
from remask.model.interop_weights import BASE, export_kind, pairs
from remask.model.network import Network
from remask.model.settings import HeadSettings, Ia3Settings, LoraSettings, ModelSettings, Updates
from remask.schema import Json

ADAPTER = "adapter"  # the folder inside a model that holds peft's two files
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")

_TASKS = {
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
}
_WITH_PREFIX = ("roberta", "bert")  # families whose classes take past keys and values


def plain_settings(model: ModelSettings) -> ModelSettings:
    """Of the model without its prefix, which took the first positions."""
    moved = model.prefix_length
    return model.model_copy(
        update={
            "prefix_length": 0,
            "max_length": model.max_length + moved,
            "position_offset": model.position_offset - moved,
        }
    )


def no_peft(model: ModelSettings, heads: HeadSettings) -> list[str]:
    """Why there is no form for peft; empty where there is one."""
    if model.bottleneck_size:
        return ["peft has no bottleneck adapters"]
    plain = plain_settings(model)
    if reasons := no_class(plain, heads):
        return [f"transformers has no class for this network ({', '.join(reasons)})"]
    if not model.prefix_length:
        return []
    if family_for(plain) not in _WITH_PREFIX:
        return [f"transformers' classes for {family_for(plain)} take no prefix"]
    if export_kind(plain, heads) not in _TASKS:
        return ["peft has prefixes for classes, tags and answers only"]
    return []


def adapter_files(network: Network, settings: Updates | None, base: str) -> dict[str, bytes]:
    """peft's two files over the model `base` in transformers' form. `settings`: of what is beside the matrices; None:
    the network has prefixes."""
    model, head_settings = network.settings, network.head_settings
    if no_peft(model, head_settings):
        return {}
    model = plain_settings(model)
    family, kind = family_for(model), export_kind(model, head_settings)
    table = [pair for pair in pairs(family, model, head_settings, kind, model.position_offset) if pair.ours]
    inside = tuple(BASE[family] + part for part in ("embeddings.", "encoder.", "layers.", "final_norm.", "LayerNorm."))
    heads = [pair for pair in table if not pair.theirs[0].startswith(inside)]
    theirs = {pair.ours.removesuffix(".weight"): pair.theirs for pair in table if pair.ours is not None}
    if settings is None:
        tensors, config, before = *_prefixes(network), "base_model."
    else:
        tensors, config = _changes(network, settings, theirs, BASE[family])
        before = "base_model.model."
    tensors = {f"{before}{name}" if settings else name: tensor for name, tensor in tensors.items()}
    merged = merged_state(network)  # a tied pooler is a merged matrix
    for pair in heads:
        assert pair.ours is not None
        assert len(pair.theirs) == 1
        tensors[before + pair.theirs[0]] = merged[pair.ours]
    config |= {
        "task_type": _TASKS.get(kind),
        "base_model_name_or_path": base,
        "modules_to_save": sorted({pair.theirs[0].removeprefix(BASE[family]).split(".")[0] for pair in heads}) or None,
        "inference_mode": True,
    }
    named = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    contents = (json.dumps(config, indent=2) + "\n").encode(), save(named, metadata={"format": "pt"})
    return dict(zip(ADAPTER_FILES, contents, strict=True))


def _changes(
    network: Network, settings: Updates, theirs: Mapping[str, tuple[str, ...]], base: str
) -> tuple[dict[str, Tensor], Json]:
    """Tensors under transformers' names, and what the config says of them."""
    tensors: dict[str, Tensor] = {}
    acted_on: set[str] = set()
    on_input: set[str] = set()
    for name, linear in changed_linears(network):
        names = [foreign.removesuffix(".weight") for foreign in theirs[name]]

        def foreign(block: str, names: list[str] = names) -> str:
            """In full and with any number: by its ending alone `output.dense` would also be the attention's."""
            own = names[BLOCKS.index(block)] if len(names) > 1 else names[0]
            acted_on.add(_pattern(own, base))
            return own

        if isinstance(linear, LoraLinear):
            for block, update in linear.updates():
                own = foreign(block)
                end = "" if isinstance(update, RationedUpdate) else ".weight"
                tensors |= {f"{own}.lora_A{end}": update.A, f"{own}.lora_B{end}": update.B}
                if isinstance(update, RationedUpdate):
                    tensors[f"{own}.lora_E"] = update.E[:, None]
        elif isinstance(linear, ScaledLinear):
            for block, factors in linear.ia3.items():
                own = foreign(block)
                tensors[f"{own}.ia3_l"] = factors[None] if linear.of_input else factors[:, None]
                if linear.of_input:
                    on_input.add(_pattern(own, base))
    config: Json = {"target_modules": _any_of(acted_on), "fan_in_fan_out": False}
    if isinstance(settings, Ia3Settings):
        return tensors, config | {"peft_type": "IA3", "feedforward_modules": _any_of(on_input) if on_input else []}
    config |= {"lora_alpha": settings.alpha, "lora_dropout": settings.dropout, "bias": "none"}
    if isinstance(settings, LoraSettings):
        return tensors, config | {"peft_type": "LORA", "r": settings.rank, "init_lora_weights": True}
    # AdaLoRA: peft divides by the first rank, as we do; what was taken away is zero in E.
    ranks = {"init_r": settings.start_rank, "target_r": settings.rank, "total_step": 1}
    return tensors, config | {"peft_type": "ADALORA", "orth_reg_weight": settings.orthogonality, **ranks}


def _pattern(foreign: str, base: str) -> str:
    return re.sub(r"\d+", lambda _: r"\d+", re.escape(foreign.removeprefix(base)))


def _any_of(patterns: set[str]) -> str:
    return rf"(.*\.)?({'|'.join(sorted(patterns))})"


def _prefixes(network: Network) -> tuple[dict[str, Tensor], Json]:
    """peft has one row for every place of the prefix: keys and values of all layers, one after the other."""
    model = network.settings
    layers = [network.encoder.attentions[model.attention_index(i)].prefix_2PD for i in range(model.num_layers)]
    rows = [tensor for prefix_2PD in layers if isinstance(prefix_2PD, Tensor) for tensor in prefix_2PD]
    config = {
        "peft_type": "PREFIX_TUNING",
        "num_virtual_tokens": model.prefix_length,
        "token_dim": model.hidden_size,
        "num_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_transformer_submodules": 1,
        "prefix_projection": False,
        "encoder_hidden_size": model.hidden_size,
    }
    return {"prompt_embeddings": torch.cat(rows, dim=1)}, config
