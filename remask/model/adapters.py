"""Changes of resting matrices that learn, and are merged into them for use: LoRA, AdaLoRA's part of it, IA3.

In: an encoder and settings of one of them. Out: the same encoder whose chosen matrices have low-rank updates (LoRA,
arXiv 2106.09685) or factors (IA3, arXiv 2205.05638) that learn, and its merged weights under their plain names. Our
query, key and value are rows of one matrix: each block has a change of its own, as if they were three; in the modern
form transformers has that one matrix too, so there one change spans it. Not here: which ranks AdaLoRA keeps (adalora),
the files for peft (peft_files), who trains what (tune).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remask.errors import ConfigError
from remask.model.adalora import Ration, RationedUpdate
from remask.model.encoder import Encoder, View
from remask.model.network import Network, empty_network
from remask.model.noise import Noise, Site
from remask.model.settings import AdaLoraSettings, Ia3Settings, LoraSettings, ModelSettings, Updates

# Shapes: T tokens, R rank of an update, I and O width of what goes into and comes out of a matrix (or of a row block).

BLOCKS = ("query", "key", "value")  # of `qkv`, in the order of its rows
_SITES = {
    "query": Site.LORA_QUERY, "key": Site.LORA_KEY, "value": Site.LORA_VALUE, "qkv": Site.LORA_QUERY,
    "output": Site.LORA_OUTPUT, "up": Site.LORA_UP, "down": Site.LORA_DOWN,
}  # fmt: skip


class Update(nn.Module):
    """scale x B A, on the rows `start` to `end` of a matrix. B starts at zero: at first nothing changes."""

    def __init__(self, name: str, rows: range, matrix_OI: Tensor, settings: LoraSettings, seed: int) -> None:
        super().__init__()
        self.start, self.end = rows.start, rows.stop
        self.scale, self.dropout = settings.alpha / settings.rank, settings.dropout
        bound = 1 / math.sqrt(matrix_OI.shape[1])  # kaiming_uniform(a=sqrt 5), as LoRA's and peft's code have it
        generator = _generator(seed, name)
        narrow_RI = torch.empty(settings.rank, matrix_OI.shape[1], device="meta" if matrix_OI.is_meta else "cpu")
        if not narrow_RI.is_meta:
            narrow_RI.uniform_(-bound, bound, generator=generator)
        self.A = nn.Parameter(narrow_RI.to(matrix_OI))
        self.B = nn.Parameter(matrix_OI.new_zeros(len(rows), settings.rank))

    def forward(self, x_TI: Tensor) -> Tensor:
        return F.linear(F.linear(x_TI, self.A), self.B) * self.scale

    def matrix(self) -> Tensor:
        return (self.B.detach().float() @ self.A.detach().float()) * self.scale


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


class ChangedLinear(nn.Linear):
    """A linear layer that rests, under its own names, with a change that learns under `lora` or `ia3`."""

    def __init__(self, resting: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = resting.in_features, resting.out_features
        self.weight, self.bias = resting.weight, resting.bias

    def merged(self) -> dict[str, Tensor]:
        """The tensors of the plain layer that computes the same."""
        raise NotImplementedError


class LoraLinear(ChangedLinear):
    """With low-rank updates."""

    def __init__(self, resting: nn.Linear, updates: dict[str, Update | RationedUpdate]) -> None:
        super().__init__(resting)
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

    def updates(self) -> Iterator[tuple[str, Update | RationedUpdate]]:
        for name, update in self.lora.items():
            assert isinstance(update, Update | RationedUpdate)
            yield name, update

    def merged(self) -> dict[str, Tensor]:
        weight = self.weight.detach().clone()
        for _, update in self.updates():
            weight[update.start : update.end] += update.matrix().to(weight)
        return {"weight": weight}


class ScaledLinear(ChangedLinear):
    """With a factor for every value that it gives, or (`of_input`) takes. Factors start at 1: at first nothing changes.
    Of the row blocks of `qkv` those without factors of their own stay as they are."""

    def __init__(self, resting: nn.Linear, blocks: tuple[str, ...], *, of_input: bool) -> None:
        super().__init__(resting)
        self.of_input = of_input
        self.in_thirds = not of_input and blocks[0] in BLOCKS
        size = self.in_features if of_input else self.out_features // (3 if self.in_thirds else 1)
        self.ia3 = nn.ParameterDict({block: nn.Parameter(self.weight.new_ones(size)) for block in blocks})

    def factors(self) -> Tensor:
        if not self.in_thirds:
            (only,) = self.ia3.values()
            return only
        ones = self.weight.new_ones(self.out_features // 3)
        return torch.cat([self.ia3.get(block, ones) for block in BLOCKS])

    def forward(self, input: Tensor) -> Tensor:
        if self.of_input:
            return F.linear(input * self.factors(), self.weight, self.bias)
        return F.linear(input, self.weight, self.bias) * self.factors()

    def merged(self) -> dict[str, Tensor]:
        factors = self.factors().detach()
        if self.of_input:
            return {"weight": self.weight.detach() * factors}
        tensors = {"weight": self.weight.detach() * factors[:, None]}
        return tensors if self.bias is None else {**tensors, "bias": self.bias.detach() * factors}


# -------------------------------------------------------------------------------------------------- adding


def add_updates(encoder: Encoder, settings: Updates, seed: int) -> None:
    """Give the encoder its changes, in place; its own weights rest from now on. A pure function of the seed."""
    encoder.requires_grad_(False)
    targets = _targets(settings, encoder.settings)
    for part, modules in (("attentions", encoder.attentions), ("ffns", encoder.ffns)):
        for number, module in enumerate(modules):
            changed = []
            for attribute, blocks in targets.items():
                if (linear := getattr(module, attribute, None)) is None:
                    continue
                if isinstance(settings, Ia3Settings):
                    setattr(module, attribute, ScaledLinear(linear, blocks, of_input=attribute == "down"))
                    continue
                changed.append(_with_updates(linear, f"{part}.{number}.{attribute}", blocks, settings, seed))
                setattr(module, attribute, changed[-1])
            if changed and not isinstance(settings, Ia3Settings) and settings.dropout:
                _hand_over_noise(module, changed)
    if isinstance(settings, AdaLoraSettings):
        linears = [linear for _, linear in changed_linears(encoder) if isinstance(linear, LoraLinear)]
        updates = [update for linear in linears for _, update in linear.updates()]
        encoder.ration = Ration([update for update in updates if isinstance(update, RationedUpdate)], settings)


def _with_updates(
    linear: nn.Linear, name: str, blocks: tuple[str, ...], settings: LoraSettings | AdaLoraSettings, seed: int
) -> LoraLinear:
    size = linear.out_features // (3 if blocks[0] in BLOCKS else 1)
    updates: dict[str, Update | RationedUpdate] = {}
    for block in blocks:
        start = size * BLOCKS.index(block) if block in BLOCKS else 0
        rows = range(start, start + size)
        if isinstance(settings, LoraSettings):
            updates[block] = Update(f"{name}.{block}", rows, linear.weight, settings, seed)
        else:
            generator = _generator(seed, f"{name}.{block}")
            updates[block] = RationedUpdate(rows, linear.weight, settings, generator)
    return LoraLinear(linear, updates)


def _targets(settings: Updates, model: ModelSettings) -> dict[str, tuple[str, ...]]:
    """Our linear layer -> its changes by name."""
    fused = model.head_form == "modern"
    every = (*BLOCKS, "output", "up", "down")
    name, usual = {
        LoraSettings: ("lora", BLOCKS if fused else ("query", "value")),
        AdaLoraSettings: ("adalora", every),
        Ia3Settings: ("ia3", (*BLOCKS, "down") if fused else ("key", "value", "down")),
    }[type(settings)]
    chosen = settings.modules or usual
    blocks = tuple(block for block in BLOCKS if block in chosen)
    if fused and blocks and blocks != BLOCKS:
        raise ConfigError(
            f"{name}.modules = {', '.join(chosen)}: the modern form's query, key and value are one matrix in "
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

    def leave(_: nn.Module, args: object, output: object) -> None:
        for linear in linears:
            linear.now = None

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)  # a layer that is computed again is left early


# ------------------------------------------------------------------------------------------------- merging


def changed_linears(module: nn.Module) -> Iterator[tuple[str, ChangedLinear]]:
    for name, inner in module.named_modules():
        if isinstance(inner, ChangedLinear):
            yield name, inner


def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """All weights under their plain names, changes merged into what they act on."""
    own = {name: tensor.detach() for name, tensor in module.state_dict().items()}
    state = {name: tensor for name, tensor in own.items() if ".lora." not in name and ".ia3." not in name}
    for name, linear in changed_linears(module):
        state |= {f"{name}.{tensor_name}": tensor for tensor_name, tensor in linear.merged().items()}
    return state


def merged_network(network: Network) -> Network:
    """A plain network that computes the same; resting weights are shared, not copied. Without changes: itself."""
    if not any(True for _ in changed_linears(network)):
        return network
    plain = empty_network(network.settings, network.head_settings)
    plain.load_state_dict(merged_state(network), assign=True)
    return plain
