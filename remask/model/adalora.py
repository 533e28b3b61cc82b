"""AdaLoRA: low-rank updates as B diag(E) A, and a budget of ranks that goes where it matters (arXiv 2303.10512).

In: the updates of an encoder and, after every step, their gradients. Out: singular values E of which fewer and fewer
stay: all at first, then by a cubic schedule down to `rank` an update on average, then the last choice for good. A
direction's importance is smoothed |weight x gradient| times its smoothed variation, of E and, on average, of its row
of A and column of B. All of it lies in buffers, so a resumed run is the same run. Not here: where updates act
(adapters), the loss that adds `orthogonality` (task_objectives).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remask.model.settings import AdaLoraSettings

# Shapes: T tokens, R rank, I and O width of what goes into and comes out of a matrix (or of a row block).

_PARTS = ("A", "B", "E")
_INIT_STD = 0.02  # of A and B, as in the authors' code; E starts at 0


class RationedUpdate(nn.Module):
    """scale x B diag(E) A, on the rows `start` to `end` of a matrix. E starts at zero: at first nothing changes."""

    A: nn.Parameter
    B: nn.Parameter
    kept_R: Tensor

    def __init__(self, rows: range, matrix_OI: Tensor, settings: AdaLoraSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.start, self.end = rows.start, rows.stop
        rank = settings.start_rank
        self.scale, self.dropout = settings.alpha / rank, settings.dropout
        shapes = {"A": (rank, matrix_OI.shape[1]), "B": (len(rows), rank)}
        for name, shape in shapes.items():
            drawn = torch.empty(shape, device="meta" if matrix_OI.is_meta else "cpu")
            if not drawn.is_meta:
                drawn.normal_(0.0, _INIT_STD, generator=generator)
            setattr(self, name, nn.Parameter(drawn.to(matrix_OI)))
        self.E = nn.Parameter(matrix_OI.new_zeros(rank))
        for name in _PARTS:
            for what in ("sensitivity", "variation"):
                self.register_buffer(f"{name}_{what}", torch.zeros_like(getattr(self, name).detach()))
        self.register_buffer("kept_R", matrix_OI.new_ones(rank))

    def forward(self, x_TI: Tensor) -> Tensor:
        return F.linear(F.linear(x_TI, self.A) * self.E, self.B) * self.scale

    def matrix(self) -> Tensor:
        return (self.B.detach().float() * self.E.detach().float() @ self.A.detach().float()) * self.scale

    def tangle(self) -> Tensor:
        """How far A's rows and B's columns are from being orthogonal."""
        identity_RR = torch.eye(len(self.E), device=self.E.device, dtype=self.E.dtype)
        return torch.linalg.norm(self.A @ self.A.T - identity_RR) + torch.linalg.norm(self.B.T @ self.B - identity_RR)

    @torch.no_grad()
    def watch(self, smoothing: float) -> None:
        """Take this step's gradients into the importance."""
        for name in _PARTS:
            parameter = getattr(self, name)
            if parameter.grad is None:
                continue
            sensitivity, variation = getattr(self, f"{name}_sensitivity"), getattr(self, f"{name}_variation")
            now = (parameter * parameter.grad).abs()
            sensitivity.lerp_(now, 1 - smoothing)
            variation.lerp_((now - sensitivity).abs(), 1 - smoothing)

    def importance(self) -> Tensor:
        """importance_R."""
        by_part = [getattr(self, f"{name}_sensitivity") * getattr(self, f"{name}_variation") for name in _PARTS]
        return by_part[0].mean(1) + by_part[1].mean(0) + by_part[2]


class Ration(nn.Module):
    """Which directions of all updates stay. `after_update` is called by the loop after every step."""

    def __init__(self, updates: Sequence[RationedUpdate], settings: AdaLoraSettings) -> None:
        super().__init__()
        self._updates = list(updates)  # a plain list: their modules are registered where they act
        self.settings = settings

    @property
    def ranks(self) -> list[int]:
        """Directions that stay, of every update."""
        return [int(update.kept_R.sum()) for update in self._updates]

    def tangle(self) -> Tensor:
        """The mean over all A and B; its weight is `settings.orthogonality`."""
        return torch.stack([update.tangle() for update in self._updates]).sum() / (2 * len(self._updates))

    def budget(self, step: int, num_steps: int) -> int:
        """How many directions may stay after this step, of all updates together."""
        settings = self.settings
        first = len(self._updates) * settings.start_rank
        last = len(self._updates) * settings.rank
        begin, end = round(settings.begin * num_steps), num_steps - round(settings.settle * num_steps)
        if step >= end:
            return last
        if step <= begin:
            return first
        return int(last + (first - last) * (1 - (step - begin) / (end - begin)) ** 3)

    @torch.no_grad()
    def after_update(self, step: int, num_steps: int) -> None:
        settings, budget = self.settings, self.budget(step, num_steps)
        settled = step >= num_steps - round(settings.settle * num_steps)
        for update in self._updates:
            update.watch(settings.smoothing)
        if sum(self.ranks) > budget if settled else step % settings.every == 0:
            self._choose(budget)
        if settled:  # the last choice holds; before it, what was set to zero may grow again
            for update in self._updates:
                update.E.mul_(update.kept_R)

    def _choose(self, budget: int) -> None:
        importance = torch.cat([update.importance() for update in self._updates])
        kept = torch.zeros_like(importance)
        kept[torch.argsort(importance, descending=True, stable=True)[:budget]] = 1
        for update, kept_R in zip(self._updates, kept.split(self.settings.start_rank), strict=True):
            update.kept_R.copy_(kept_R)
            update.E.mul_(kept_R)
