"""A table of embeddings of which only the rows that the training data uses learn; the others rest as they are.

In: an embedding table and the ids that occur. Out: a module in its place whose parameter is just those rows, so that
gradients, their norm and the optimizer cost what the data's own vocabulary costs: a task sees a fraction of the 50,000
or 250,000 entries of a pretrained one. A row without a gradient would only decay; here it stays what pretraining made
of it. Files do not show it: `state_dict` has the whole table, and takes one.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from remask.model.encoder import Embeddings
from remask.schema import Json, Values

# Shapes: V vocabulary, U rows in use, E width of the embeddings.

_WORTH_IT = 0.75  # share of the rows in use above which a table of its own saves nothing


class UsedRows(nn.Module):
    """Looks up like nn.Embedding; ids that are not in use have no gradient."""

    places_V: torch.Tensor
    used_U: torch.Tensor
    table_VE: torch.Tensor

    def __init__(self, table: nn.Embedding, used_U: torch.Tensor) -> None:
        super().__init__()
        self.num_embeddings = table.num_embeddings
        self.weight = nn.Parameter(table.weight.detach()[used_U])
        places_V = torch.full((table.num_embeddings,), -1, device=used_U.device)
        places_V[used_U] = torch.arange(len(used_U), device=used_U.device)
        self.register_buffer("places_V", places_V, persistent=False)
        self.register_buffer("used_U", used_U, persistent=False)
        self.register_buffer("table_VE", table.weight.detach(), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = self.places_V[ids]
        if torch.is_grad_enabled():
            return F.embedding(places, self.weight)  # refuses -1: an id that was said not to occur
        vectors = F.embedding(places.clamp(min=0), self.weight)
        return torch.where((places < 0)[..., None], F.embedding(ids, self.table_VE), vectors)

    def _save_to_state_dict(self, destination: Json, prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.table_VE.index_copy(0, self.used_U, _whole(self.weight.detach()))

    def _load_from_state_dict(self, state_dict: Values, prefix: str, *rest: object, **more: object) -> None:
        whole_VE = state_dict[f"{prefix}weight"]
        with torch.no_grad():
            self.table_VE.copy_(whole_VE)
            self.weight.copy_(_divided_like(self.weight, whole_VE[self.used_U]))


def _whole(tensor: Any) -> torch.Tensor:
    """All rows, from all ranks where they have divided it among themselves (FSDP2)."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _divided_like(parameter: Any, whole: torch.Tensor) -> torch.Tensor:
    """What `_whole` is the other way of."""
    if not hasattr(parameter, "full_tensor"):
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, parameter.device_mesh, parameter.placements)


def learn_used_rows(embeddings: Embeddings, ids: torch.Tensor) -> None:
    """Let only the rows of these ids learn, in place, where that saves something."""
    used_U = ids.unique()
    if len(used_U) < _WORTH_IT * embeddings.tokens.num_embeddings:
        embeddings.add_module("tokens", UsedRows(embeddings.tokens, used_U.to(embeddings.tokens.weight.device)))
