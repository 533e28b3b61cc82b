"""LoRA: low-rank updates on resting matrices, merged for use, and written the way peft reads them.

In: an encoder and LoraSettings. Out: the same encoder whose chosen matrices have trainable updates (arXiv 2106.09685),
its merged weights under their plain names, and `adapter_config.json` + `adapter_model.safetensors` under transformers'
module names. Our query, key and value are rows of one matrix: each block has an update of its own, as if they were
three; in the modern form transformers has that one matrix too, so there one update spans it. Not here: who trains what
(commands).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor, nn

from remask.errors import ConfigError
from remask.model.encoder import Encoder, View
from remask.model.interop_config import family_for, no_class
from remask.model.interop_weights import BASE, export_kind, pairs
from remask.model.network import Network, empty_network
from remask.model.noise import Noise, Site
from remask.model.settings import LoraSettings, ModelSettings

ADAPTER = "adapter"  # the folder inside a model that holds peft's two files
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")

# Shapes: T tokens, R rank of an update, I and O width of what goes into and comes out of a matrix (or of a row block).

_BLOCKS = ("query", "key", "value")  # of `qkv`, in the order of its rows
_SITES = {
    "query": Site.LORA_QUERY, "key": Site.LORA_KEY, "value": Site.LORA_VALUE, "qkv": Site.LORA_QUERY,
    "output": Site.LORA_OUTPUT, "up": Site.LORA_UP, "down": Site.LORA_DOWN,
}  # fmt: skip
_PEFT_TASKS = {
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
}


class Update(nn.Module):
    """scale x B A, on the rows `start` to `end` of a matrix. B starts at zero: at first nothing changes."""

    def __init__(self, name: str, rows: range, matrix_OI: Tensor, settings: LoraSettings, seed: int) -> None:
        super().__init__()
        self.start, self.end = rows.start, rows.stop
        self.scale, self.dropout = settings.alpha / settings.rank, settings.dropout
        bound = 1 / math.sqrt(matrix_OI.shape[1])  # kaiming_uniform(a=sqrt 5), as LoRA's and peft's code have it
        digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
        narrow_RI = torch.empty(settings.rank, matrix_OI.shape[1], device="meta" if matrix_OI.is_meta else "cpu")
        if not narrow_RI.is_meta:
            narrow_RI.uniform_(-bound, bound, generator=generator)
        self.A = nn.Parameter(narrow_RI.to(matrix_OI))
        self.B = nn.Parameter(matrix_OI.new_zeros(len(rows), settings.rank))

    def forward(self, x_TI: Tensor) -> Tensor:
        return F.linear(F.linear(x_TI, self.A), self.B) * self.scale

    def matrix(self) -> Tensor:
        return (self.B.detach().float() @ self.A.detach().float()) * self.scale


class LoraLinear(nn.Linear):
    """A linear layer that rests, under its own names, with updates that learn."""

    def __init__(self, resting: nn.Linear, updates: dict[str, Update]) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = resting.in_features, resting.out_features
        self.weight, self.bias = resting.weight, resting.bias
        self.lora = nn.ModuleDict(updates)
        self.now: tuple[Noise, int, View] | None = None  # while in a layer

    def forward(self, input: Tensor) -> Tensor:
        y_TO = F.linear(input, self.weight, self.bias)
        for name, update in self.updates():
            x_TI = input
            if self.now is not None:
                noise, layer, view = self.now
                x_TI = noise.drop(input, update.dropout, layer, _SITES[name], view.per_row(len(input)))
            y_TO[:, update.start : update.end] += update(x_TI)
        return y_TO

    def updates(self) -> Iterator[tuple[str, Update]]:
        for name, update in self.lora.items():
            assert isinstance(update, Update)
            yield name, update

    def merged(self) -> Tensor:
        weight = self.weight.detach().clone()
        for _, update in self.updates():
            weight[update.start : update.end] += update.matrix().to(weight)
        return weight


# -------------------------------------------------------------------------------------------------- adding


def add_lora(encoder: Encoder, settings: LoraSettings, seed: int) -> None:
    """Give the encoder its updates, in place; its own weights rest from now on. A pure function of the seed."""
    encoder.requires_grad_(False)
    targets = _targets(settings, encoder.settings)
    for part, modules in (("attentions", encoder.attentions), ("ffns", encoder.ffns)):
        for number, module in enumerate(modules):
            changed = []
            for attribute, blocks in targets.items():
                if (linear := getattr(module, attribute, None)) is None:
                    continue
                rows = linear.out_features // (3 if attribute == "qkv" and blocks != ("qkv",) else 1)
                updates = {}
                for block in blocks:
                    start = rows * _BLOCKS.index(block) if rows < linear.out_features else 0
                    name = f"{part}.{number}.{attribute}.{block}"
                    updates[block] = Update(name, range(start, start + rows), linear.weight, settings, seed)
                changed.append(LoraLinear(linear, updates))
                setattr(module, attribute, changed[-1])
            if changed and settings.dropout:
                _hand_over_noise(module, changed)


def _targets(settings: LoraSettings, model: ModelSettings) -> dict[str, tuple[str, ...]]:
    """Our linear layer -> its updates by name."""
    fused = model.head_form == "modern"
    chosen = settings.modules or (_BLOCKS if fused else ("query", "value"))
    blocks = tuple(block for block in _BLOCKS if block in chosen)
    if fused and blocks and blocks != _BLOCKS:
        raise ConfigError(
            f"lora.modules = {', '.join(chosen)}: the modern form's query, key and value are one matrix in "
            "transformers (Wqkv); name all three or none of them"
        )
    targets: dict[str, tuple[str, ...]] = {}
    if blocks:
        targets["qkv"] = ("qkv",) if fused else blocks
    return targets | {name: (name,) for name in ("output", "up", "down") if name in chosen}


def _hand_over_noise(module: nn.Module, linears: list[LoraLinear]) -> None:
    """What a sub-layer is called with (x, layer, view, noise) its linear layers need for dropout, and only then: a
    pooler that is tied to one of them calls it from outside."""

    def enter(_: nn.Module, args: tuple[Any, ...]) -> None:
        _, layer, view, noise = args
        for linear in linears:
            linear.now = None if noise is None else (noise, layer, view)

    def leave(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        for linear in linears:
            linear.now = None

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)  # a layer that is computed again is left early


# ------------------------------------------------------------------------------------------ merging, writing


def _adapted(module: nn.Module) -> Iterator[tuple[str, LoraLinear]]:
    for name, inner in module.named_modules():
        if isinstance(inner, LoraLinear):
            yield name, inner


def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """All weights under their plain names, updates added to what they act on."""
    state = {name: tensor.detach() for name, tensor in module.state_dict().items() if ".lora." not in name}
    return state | {f"{name}.weight": linear.merged() for name, linear in _adapted(module)}


def merged_network(network: Network) -> Network:
    """A plain network that computes the same; resting weights are shared, not copied. Without updates: itself."""
    if not any(True for _ in _adapted(network)):
        return network
    plain = empty_network(network.settings, network.head_settings)
    plain.load_state_dict(merged_state(network), assign=True)
    return plain


def adapter_files(network: Network, settings: LoraSettings, base: str) -> dict[str, bytes]:
    """peft's two files: the updates, and the heads as `modules_to_save`, over the model `base` in transformers' form.

    Empty where transformers has no class for the network, so no names to write under."""
    model = network.settings
    if no_class(model, network.head_settings):
        return {}
    family, kind = family_for(model), export_kind(model, network.head_settings)
    table = pairs(family, model, network.head_settings, kind, model.position_offset)
    theirs = {pair.ours: pair.theirs for pair in table}
    tensors: dict[str, Tensor] = {}
    acted_on = set()
    for name, linear in _adapted(network):
        names = [foreign.removesuffix(".weight") for foreign in theirs[f"{name}.weight"]]
        for block, update in linear.updates():
            foreign = names[_BLOCKS.index(block)] if len(names) > 1 else names[0]
            tensors[f"{foreign}.lora_A.weight"], tensors[f"{foreign}.lora_B.weight"] = update.A, update.B
            acted_on.add(re.sub(r"\d+", lambda _: r"\d+", re.escape(foreign.removeprefix(BASE[family]))))
    merged = merged_state(network)  # a tied pooler is a merged matrix
    inside = tuple(BASE[family] + part for part in ("embeddings.", "encoder.", "layers.", "final_norm.", "LayerNorm."))
    heads = [pair for pair in table if not pair.theirs[0].startswith(inside)]
    for pair in heads:
        assert pair.ours is not None
        assert len(pair.theirs) == 1
        tensors[pair.theirs[0]] = merged[pair.ours]
    config = {
        "peft_type": "LORA",
        "task_type": _PEFT_TASKS.get(kind),
        "base_model_name_or_path": base,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": settings.dropout,
        # In full: by its ending alone `output.dense` would also be the attention's.
        "target_modules": rf"(.*\.)?({'|'.join(sorted(acted_on))})",
        "modules_to_save": sorted({p.theirs[0].removeprefix(BASE[family]).split(".")[0] for p in heads}) or None,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
    }
    named = {f"base_model.model.{name}": tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    contents = (json.dumps(config, indent=2) + "\n").encode(), save(named, metadata={"format": "pt"})
    return dict(zip(ADAPTER_FILES, contents, strict=True))
