"""What a sub-layer needs besides its weights, as tensors, so that torch.compile takes the whole of it as one graph.

In: the view and the noise of a batch, which hold lists and numbers of the host. Out: stand-ins for both that hold only
what one sub-layer asks of them, made before it is computed: masks, dropout, angles, where tokens stand. Layers that
compute the same are told the same layer number, and sizes stay free, so that a few graphs serve all layers and all
batches. Not here: what is compiled, and when (network).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from remask.model.noise import Noise, dropped_out
from remask.model.shapes import round_size
from remask.model.varlen import has_kernel

if TYPE_CHECKING:
    from remask.model.encoder import Kept, SubLayer, View

# Shapes: as in encoder.


@dataclass(frozen=True)
class ReadyRows:
    """Rows of a batch: how many, how long, and which of their positions are computed."""

    num_rows: int
    num_positions: int
    tokens_T: torch.Tensor | None

    def pad(self, x_TD: torch.Tensor) -> torch.Tensor:
        width = x_TD.shape[1]
        if self.tokens_T is not None:
            empty = x_TD.new_zeros(self.num_rows * self.num_positions, width)
            x_TD = empty.index_copy(0, self.tokens_T, x_TD)
        return x_TD.view(self.num_rows, self.num_positions, width)

    def unpad(self, x_BSD: torch.Tensor) -> torch.Tensor:
        x_TD = x_BSD.flatten(0, 1)
        return x_TD if self.tokens_T is None else x_TD.index_select(0, self.tokens_T)


@dataclass(frozen=True)
class ReadySight:
    """A Sight for one window and number format, behind the prefix where there is one."""

    causal: bool
    block_size: int | None
    bias_BNXQL: torch.Tensor | None
    dropped_BNXQL: torch.Tensor | None

    def block(self, window: int | None) -> int | None:
        return self.block_size

    def bias(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        return self.bias_BNXQL

    def dropped(self, *_: Any) -> torch.Tensor | None:
        return self.dropped_BNXQL

    def behind(self, prefix_length: int) -> ReadySight:
        return self


@dataclass(frozen=True)
class ReadyRuns:
    ends_U: torch.Tensor
    longest: int


@dataclass(frozen=True)
class ReadyView:
    """A View for one sub-layer."""

    rows: ReadyRows
    sight: ReadySight
    kept: Kept | None
    turns: tuple[torch.Tensor, torch.Tensor] | None
    runs: ReadyRuns | None

    def angles(self, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
        return self.turns

    def is_end_to_end(self, *_: Any) -> bool:
        return self.runs is not None

    def is_gathered(self, *_: Any) -> bool:
        return False  # that is for answers, which are not compiled

    def per_row(self, num_tokens: int) -> list[int]:
        return []  # what is dropped is known


@dataclass(frozen=True)
class DrawnNoise:
    """What the noise of a batch drops from the output of one sub-layer."""

    kept_TD: torch.Tensor | None

    def drop(self, x_TD: torch.Tensor, prob: float, *_: Any) -> torch.Tensor:
        return x_TD if self.kept_TD is None else dropped_out(x_TD, self.kept_TD, prob)

    def seed_kernel(self, layer: int) -> None:
        """Done when this was made."""


def ready(
    part: SubLayer, x_TD: torch.Tensor, layer: int, view: View, noise: Noise | None
) -> tuple[torch.Tensor, int, ReadyView, DrawnNoise | None]:
    """What SubLayer.compute takes, with nothing left in it that is no tensor program."""
    settings = part.settings
    is_last = part.attends and view.kept is not None and layer == settings.num_layers - 1
    same = layer if is_last else part.first_alike(layer)
    rows = ReadyRows(len(view.rows.lengths), view.rows.num_positions, view.rows.tokens_T)
    num_tokens = len(x_TD)
    nothing = ReadySight(view.sight.causal, None, None, None)
    found = ReadyView(rows, nothing, view.kept if is_last else None, None, None)
    if part.attends:
        found = _for_attention(part, x_TD, layer, view, noise, found)
        num_tokens = len(view.kept.tokens_K) if is_last and view.kept is not None else num_tokens
    if noise is None:
        return x_TD, same, found, None
    kept_TD = None
    if settings.dropout > 0.0:
        counts = [count * settings.hidden_size for count in view.per_row(num_tokens)]
        dropped = noise.dropped(layer, part.site, settings.dropout, counts, x_TD.device)
        kept_TD = dropped.view(num_tokens, settings.hidden_size).sub_(1)
    return x_TD, same, found, DrawnNoise(kept_TD)


def _for_attention(
    part: SubLayer, x_TD: torch.Tensor, layer: int, view: View, noise: Noise | None, found: ReadyView
) -> ReadyView:
    settings, device = part.settings, x_TD.device
    window = settings.window(layer)
    dtype = x_TD.dtype
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    runs = None
    if has_kernel(device, dtype) and view.is_end_to_end(settings, layer, device, dtype, noise):
        # The kernel is told a length that is at least the longest run's; few of them make few graphs.
        runs = ReadyRuns(view.runs.ends_U, round_size(max(view.runs.sizes)))
        if noise is not None and settings.attention_dropout > 0.0:
            noise.seed_kernel(layer)
    turns = None
    if settings.positions == "rotary":
        base = settings.rotary_base if window is None else settings.rotary_base_local
        turns = view.angles(base, settings.head_size, end_to_end=runs is not None)
    sight = found.sight
    if runs is None:
        whole = view.sight.behind(settings.prefix_length) if settings.prefix_length else view.sight
        dropped = None
        if noise is not None and settings.attention_dropout > 0.0:
            dropped = whole.dropped(window, noise, settings.attention_dropout, layer, settings.num_heads)
        sight = ReadySight(whole.causal, whole.block(window), whole.bias(window, dtype), dropped)
    return ReadyView(found.rows, sight, found.kept, turns, runs)
