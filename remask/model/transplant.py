"""Start a network from another one: continued pretraining with a longer position table or another vocabulary.

In: a fresh network, a trained one of the same form, and which old entry each new vocabulary entry is. Out: the fresh
network with every weight that fits; kept tokens keep their vectors and output biases, positions beyond the old table
repeat it. What stays fresh is named to the caller. Not here: reading the trained one (store), comparing vocabularies.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from remask.errors import ConfigError
from remask.model.network import Network

# May differ without changing what a weight means.
FREE = frozenset(
    {"vocab_size", "max_length", "dropout", "attention_dropout", "head_dropout", "attention_mask_prob"}
    | {"attention_kernel", "unpad", "init", "init_std", "head_form", "pooler_tied"}
)


@torch.no_grad()
def transplant(network: Network, source: Network, old_ids_V: Sequence[int]) -> list[str]:
    """Fill `network` from `source`; `old_ids_V[i]` is the source's id of entry i, or -1. Gives what stayed fresh."""
    _check_form(network, source)
    old = dict(source.named_parameters())
    new_V = torch.tensor([i for i, was in enumerate(old_ids_V) if was >= 0])
    old_V = torch.tensor([was for was in old_ids_V if was >= 0])
    fresh = []
    for name, parameter in network.named_parameters():
        if name not in old:
            fresh.append(name)
        elif name.endswith(("embeddings.tokens.weight", "decoder.weight", "masked_lm.bias")):
            parameter[new_V] = old[name][old_V].to(parameter.dtype)
        elif name.endswith("embeddings.positions.weight"):
            _positions(parameter, old[name], network.settings.position_offset)
        elif old[name].shape == parameter.shape:
            parameter.copy_(old[name])
        else:
            fresh.append(name)
    return fresh


def _check_form(network: Network, source: Network) -> None:
    wanted, given = network.settings.model_dump(), source.settings.model_dump()
    different = [key for key in wanted if key not in FREE and wanted[key] != given[key]]
    if different:
        words = " ".join(f"--set model.{key}={'null' if given[key] is None else given[key]}" for key in different)
        raise ConfigError(f"init_from: the model there has another form; take it over with {words}")


def _positions(table_PD: Tensor, old_PD: Tensor, offset: int) -> None:
    """Old rows where they are; rows beyond repeat the old ones, which is nearer to a trained table than noise."""
    size = len(old_PD) - offset
    rows = torch.arange(len(table_PD) - offset) % size + offset
    table_PD[:offset] = old_PD[:offset]
    table_PD[offset:] = old_PD[rows]
