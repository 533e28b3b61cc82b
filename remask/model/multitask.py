"""Several heads over one encoder: what the loop trains when a run has several tasks.

In: a Network for each task, all of the same form. Out: one module that holds the first one's encoder and everybody's
heads, in which each network is a view: `of(task)` answers with the shared encoder and that task's heads. Names of
weights are `encoder.…` and `heads.task-NAME.…`. Not here: which task a batch is of (task_objectives).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from remask.model.network import Network


class TaskNetworks(nn.Module):
    """One encoder, one set of heads a task."""

    def __init__(self, networks: Mapping[str, Network]) -> None:
        super().__init__()
        self._first = next(iter(networks))
        self.encoder = networks[self._first].encoder
        # Prefixed: a ModuleDict has methods, whose names tasks may have.
        self.heads = nn.ModuleDict({f"task-{name}": network.heads for name, network in networks.items()})
        for network in networks.values():
            network.encoder = self.encoder
        self._networks = dict(networks)  # a plain dict: the views' modules are registered above, once

    def of(self, task: str) -> Network:
        return self._networks[task]

    def train_top_layers(self, num_layers: int) -> None:
        self.of(self._first).train_top_layers(num_layers)

    def layers_above(self, name: str) -> int:
        return self.of(self._first).layers_above(name)

    def parts_to_shard(self) -> list[nn.Module]:
        """Those of the encoder that no task's heads borrow from."""
        each = [network.parts_to_shard() for network in self._networks.values()]
        return [part for part in each[0] if all(part in parts for parts in each)]

    def checkpoint_layers(self) -> None:
        self.of(self._first).checkpoint_layers()

    def compile_layers(self, whole: bool) -> None:
        self.of(self._first).compile_layers(whole)
