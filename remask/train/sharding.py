"""Parameters divided among the ranks (FSDP2): every rank keeps some rows of each, and has whole ones only while a part
of the network is computed.

In: a network that names its parts (`parts_to_shard`). Out: `Shards`, which knows the rows of this rank and what only
whole tensors can tell (norms for LAMB and clipping, matrices for Muon). A world in which nothing is divided is the same
class with one share, so optimizers have one form. Not here: files (slices), sums of whole gradients (overlap).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from remask.train.distributed import World, peers


class Shards:
    """Which rows of every parameter this rank holds: all, or one of `size` even runs in the order of the ranks."""

    def __init__(self, world: World | None = None) -> None:
        """Without a world nothing is divided."""
        self._world = world or World()
        self.rank, self.size = self._world.rank, self._world.size

    def rows(self, num_rows: int) -> slice:
        """Own rows of so many. The last ranks may have fewer, or none."""
        share = -(-num_rows // self.size)
        return slice(min(self.rank * share, num_rows), min((self.rank + 1) * share, num_rows))

    def norms(self, tensors: Sequence[Tensor]) -> list[float]:
        """Of the whole tensors of which these are the own rows."""
        own = [float(tensor.norm()) for tensor in tensors]
        return own if self.size == 1 else [math.sqrt(s) for s in self._world.sums([norm * norm for norm in own])]

    def whole(self, matrices: Sequence[Tensor], num_rows: int) -> Tensor:
        """Whole matrices of one shape, stacked, from the own rows of each."""
        own_NRC = torch.stack(list(matrices))
        if self.size == 1:
            return own_NRC
        count, _, columns = own_NRC.shape
        even_NRC = own_NRC.new_zeros(count, -(-num_rows // self.size), columns)  # messages of one size
        even_NRC[:, : own_NRC.shape[1]] = own_NRC
        parts = [torch.empty_like(even_NRC) for _ in range(self.size)]
        with peers():
            dist.all_gather(parts, even_NRC)
        return torch.cat(parts, dim=1)[:, :num_rows]


def own_rows(tensor: Tensor) -> Tensor:
    """This rank's rows of a parameter or gradient, in the same memory; all of it where it is not divided."""
    to_local: Callable[[], Tensor] | None = getattr(tensor, "to_local", None)
    if to_local is None:
        return tensor
    with torch.no_grad():
        return to_local().detach()


def whole_tensors(model: nn.Module, keep: bool) -> dict[str, Tensor]:
    """What files hold of a divided model, on the CPU of the ranks that keep it. All ranks must call this."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        gather: Callable[[], Tensor] | None = getattr(tensor, "full_tensor", None)
        with peers():
            whole = tensor if gather is None else gather()
        if keep:
            tensors[name] = whole.detach().cpu()
    return tensors


class Gathered(nn.Module):
    """The root that FSDP2 sees: whatever is computed with a divided model is one call of this."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[Any], Any]) -> Any:
        return work(self.model)

    def release(self, failed: bool = False) -> None:
        """Drop the whole parameters that a call without a backward pass, or one that failed half-way, has left: only
        then are the own rows the model's, and may change."""
        if failed:
            self.reset_iter_state()  # type: ignore[operator]  # fully_shard made this an FSDPModule
        else:
            self.reshard()  # type: ignore[operator]


def shard(model: Any, world: World, device: torch.device) -> Gathered:
    """Divide the parameters of every part, and what is left as one more part, which stays whole from the forward to
    the backward pass. Each part reduces its own gradients in every backward pass, by adding: the loss is divided by
    the count of all ranks already."""
    from torch.distributed.device_mesh import init_device_mesh  # a second of imports that only this needs
    from torch.distributed.fsdp import fully_shard

    root = Gathered(model)
    mesh = init_device_mesh(device.type, (world.size,))
    for part in (*model.parts_to_shard(), root):
        sharded = fully_shard(part, mesh=mesh)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    return root
