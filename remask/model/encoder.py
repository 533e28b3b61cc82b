"""The encoder: token ids in, one state per token out (arXiv 1907.11692 section 2; 1909.11942 section 3 for ALBERT).

A layer is attention and FFN, each with its norm; which module a layer uses is `settings.attention_index(layer)` and
`ffn_index(layer)`, so sharing is a matter of indices. Rows of different lengths are laid end to end for everything
but attention (`Rows`), so that linear layers never run on padding. Not here: masks and kernels (attention), randomness
(noise), what the states are used for (heads), names in other layouts (interop).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from remask.errors import DataError
from remask.model.adalora import Ration
from remask.model.attention import Sight, attend, hidden_tokens, rotary_angles, rotate
from remask.model.compiled import ready
from remask.model.gathered import ByHead, is_faster
from remask.model.hashed import attend_hashed
from remask.model.noise import Noise, Site
from remask.model.settings import ModelSettings
from remask.model.shapes import round_size, to_device
from remask.model.varlen import Runs, attend_runs, has_kernel
from remask.schema import Batch

# Shapes: B rows, S positions of a row, T tokens laid end to end (all B x S, or only the real ones), V vocabulary,
# E width of the embeddings, D width of a state, N heads, K width of a head, F width inside the FFN, P prefix.

_WORTH_KEEPING = 0.75  # of all tokens, above which all of them go through the whole last layer

Positions = np.ndarray | torch.Tensor  # flat: row * S + column

ACTIVATIONS = {"gelu": "none", "gelu_tanh": "tanh"}  # -> F.gelu's `approximate`


@dataclass(frozen=True)
class Rows:
    """Where the tokens of a batch stand: B rows of S positions, of which `tokens_T` (None: all) are computed. Made from
    lengths that the host knows, so that a GPU is never waited for."""

    lengths: list[int]  # real tokens of every row
    computed: list[int]  # of every row, from its first position on: the real ones, and padding up to one of few sizes
    num_positions: int
    tokens_T: torch.Tensor | None
    places: np.ndarray | None = None  # the host's tokens_T

    @classmethod
    def of(cls, batch: Batch, unpad: bool) -> Rows:
        num_positions = batch.input_ids_BS.shape[1]
        lengths = batch.known.lengths_B.tolist()
        assert 1 <= min(lengths) <= max(lengths) <= num_positions, "lengths do not fit the rows"
        spare = round_size(sum(lengths)) - sum(lengths)
        if not unpad or sum(lengths) + spare >= len(lengths) * num_positions:
            return cls(lengths, [num_positions] * len(lengths), num_positions, None)
        computed = []
        for length in lengths:
            extra = min(spare, num_positions - length)
            computed.append(length + extra)
            spare -= extra
        places = np.flatnonzero(np.arange(num_positions) < np.array(computed)[:, None])
        return cls(lengths, computed, num_positions, to_device(places, batch.input_ids_BS.device), places)

    def take(self, ids_BS: torch.Tensor) -> torch.Tensor:
        """ids_T."""
        return ids_BS.flatten() if self.tokens_T is None else ids_BS.flatten()[self.tokens_T]

    def pad(self, x_TD: torch.Tensor) -> torch.Tensor:
        """x_BSD, with zeros at positions that are not computed."""
        shape = (len(self.lengths), self.num_positions, x_TD.shape[1])
        return x_TD.view(shape) if self.tokens_T is None else _Pad.apply(x_TD, self.tokens_T, shape)

    def unpad(self, x_BSD: torch.Tensor) -> torch.Tensor:
        """x_TD."""
        return x_BSD.flatten(0, 1) if self.tokens_T is None else _Unpad.apply(x_BSD, self.tokens_T)


@dataclass(frozen=True)
class Kept:
    """The tokens whose last states are wanted: above the last attention nothing else is computed."""

    positions_K: torch.Tensor  # flat (row * S + column), the wanted ones first, then others up to one of few sizes
    tokens_K: torch.Tensor  # the same as places among the T tokens
    num_wanted: int
    per_row: list[int]  # wanted of every row; the others count with the last row, behind all of its own

    @classmethod
    def of(cls, wanted: np.ndarray, rows: Rows, device: torch.device) -> Kept | None:
        """None: none is wanted, or so many that leaving the others out saves nothing."""
        is_wanted = np.zeros(len(rows.lengths) * rows.num_positions, bool)
        is_wanted[wanted] = True
        per_row = is_wanted.reshape(len(rows.lengths), -1).sum(1).tolist()
        num_wanted = sum(per_row)
        if rows.places is not None:
            is_wanted = is_wanted[rows.places]
        if not 0 < num_wanted <= _WORTH_KEEPING * len(is_wanted):
            return None
        others = np.flatnonzero(~is_wanted)[: round_size(num_wanted) - num_wanted]
        per_row[-1] += len(others)
        tokens = np.concatenate([np.flatnonzero(is_wanted), others])
        positions = tokens if rows.places is None else rows.places[tokens]
        return cls(to_device(positions, device), to_device(tokens, device), num_wanted, per_row)


class _Pad(torch.autograd.Function):
    """Its gradient is _Unpad: positions are distinct, which index_select's own gradient cannot know."""

    @staticmethod
    def forward(ctx: Any, x_TD: torch.Tensor, tokens_T: torch.Tensor, shape: tuple[int, int, int]) -> torch.Tensor:
        ctx.save_for_backward(tokens_T)
        return _padded(x_TD, tokens_T, shape)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return grads[0].flatten(0, 1).index_select(0, ctx.saved_tensors[0]), None, None


class _Unpad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BSD: torch.Tensor, tokens_T: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(tokens_T)
        ctx.shape = x_BSD.shape
        return x_BSD.flatten(0, 1).index_select(0, tokens_T)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _padded(grads[0], ctx.saved_tensors[0], ctx.shape), None


def _taken(x_TD: torch.Tensor, tokens_K: torch.Tensor) -> torch.Tensor:
    """The states of these tokens, none of which comes twice."""
    return x_TD.index_select(0, tokens_K) if torch.compiler.is_compiling() else _Unpad.apply(x_TD[None], tokens_K)


def _padded(x_TD: torch.Tensor, tokens_T: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return x_TD.new_zeros(shape[0] * shape[1], shape[2]).index_copy_(0, tokens_T, x_TD).view(shape)


def layer_norm(settings: ModelSettings, size: int) -> nn.LayerNorm:
    return nn.LayerNorm(size, eps=settings.norm_eps, bias=settings.norm_bias)


class Embeddings(nn.Module):
    """Token + position + segment, normed; projected up to the hidden size when they are narrower."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        width = settings.embedding_width
        self.offset = settings.position_offset
        self.tokens = nn.Embedding(settings.vocab_size, width)
        self.positions = nn.Embedding(settings.num_positions, width) if settings.positions == "learned" else None
        self.segments = nn.Embedding(settings.num_segments, width) if settings.num_segments else None
        self.norm = layer_norm(settings, width)
        self.project = None
        if width != settings.hidden_size:
            self.project = nn.Linear(width, settings.hidden_size, bias=settings.bias)
        self.dropout = settings.dropout

    def forward(
        self,
        ids_T: torch.Tensor,
        positions_T: torch.Tensor,
        segments_T: torch.Tensor | None,
        rows: Rows,
        noise: Noise | None,
    ) -> torch.Tensor:
        x_TE = self.tokens(ids_T)
        if self.positions is not None:
            x_TE = x_TE + self.positions(positions_T + self.offset)
        if self.segments is not None:
            # RoBERTa has one segment, whatever the input says.
            several = segments_T is not None and self.segments.num_embeddings > 1
            x_TE = x_TE + (self.segments(segments_T) if several else self.segments.weight[0])
        x_TE = self.norm(x_TE)
        if noise is not None:
            x_TE = noise.drop(x_TE, self.dropout, 0, Site.EMBEDDING, rows.computed)
        return x_TE if self.project is None else self.project(x_TE)


class Bottleneck(nn.Module):
    """What an adapter adds to a sub-layer's output: through a narrow layer and back, near zero at first."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.narrow = nn.Linear(settings.hidden_size, settings.bottleneck_size)
        self.widen = nn.Linear(settings.bottleneck_size, settings.hidden_size)

    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        return self.widen(F.gelu(self.narrow(x_TD)))


class SubLayer(nn.Module):
    """x + inner(x), normed before `inner` or after the sum: what attention and FFN have in common."""

    site: Site
    attends = False

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.settings = settings
        self.program: Callable[..., torch.Tensor] | None = None  # `compute`, compiled (network.compile_layers)
        self.norm: nn.Module = layer_norm(settings, settings.hidden_size)
        self.bottleneck = Bottleneck(settings) if settings.bottleneck_size else None

    def forward(self, x_TD: torch.Tensor, layer: int, view: View, noise: Noise | None) -> torch.Tensor:
        if self.program is None or not torch.is_grad_enabled() or self.settings.is_hashed(layer):
            return self.compute(x_TD, layer, view, noise)
        return self.program(*ready(self, x_TD, layer, view, noise))

    def compute(self, x_TD: torch.Tensor, layer: int, view: View, noise: Noise | None) -> torch.Tensor:
        settings = self.settings
        pre = settings.norm == "pre"
        y_TD = self.inner(self.norm(x_TD) if pre and self.is_normed(layer) else x_TD, layer, view, noise)
        if len(y_TD) < len(x_TD):
            assert view.kept is not None
            x_TD = _taken(x_TD, view.kept.tokens_K)
        if noise is not None:
            y_TD = noise.drop(y_TD, settings.dropout, layer, self.site, view.per_row(len(y_TD)))
        if self.bottleneck is not None:
            y_TD = y_TD + self.bottleneck(y_TD)
        # Under autocast y is bf16 and x fp32: torch adds tensors of one format far sooner (CPU; EXPERIMENTS.md).
        x_TD = x_TD + y_TD.to(x_TD.dtype)
        return x_TD if pre else self.norm(x_TD)

    def inner(self, x_TD: torch.Tensor, layer: int, view: View, noise: Noise | None) -> torch.Tensor:
        raise NotImplementedError

    def is_normed(self, layer: int) -> bool:
        return True

    def first_alike(self, layer: int) -> int:
        """The first layer that computes the same with such a part."""
        return 0


class Attention(SubLayer):
    """Self-attention over padded rows; its linear layers run on the tokens laid end to end."""

    site = Site.ATTENTION
    attends = True

    def __init__(self, settings: ModelSettings, with_norm: bool) -> None:
        super().__init__(settings)
        self.qkv = nn.Linear(settings.hidden_size, 3 * settings.hidden_size, bias=settings.bias)  # rows: q, k, v
        self.output = nn.Linear(settings.hidden_size, settings.hidden_size, bias=settings.bias)
        if not with_norm:
            self.norm = nn.Identity()
        self.prefix_2PD: nn.Parameter | None = None
        if settings.prefix_length:
            shape = (2, settings.prefix_length, settings.hidden_size)
            self.prefix_2PD = nn.Parameter(torch.empty(shape))  # keys, values

    def is_normed(self, layer: int) -> bool:
        return self.settings.has_attention_norm(layer)

    def first_alike(self, layer: int) -> int:
        form = (self.settings.window(layer), self.is_normed(layer))
        return next(i for i in range(layer + 1) if (self.settings.window(i), self.is_normed(i)) == form)

    def inner(self, x_TD: torch.Tensor, layer: int, view: View, noise: Noise | None) -> torch.Tensor:
        settings = self.settings
        window = settings.window(layer)
        qkv_TM = self.qkv(x_TD)
        gathers = view.is_gathered(settings, layer, qkv_TM, noise)
        if gathers or view.is_end_to_end(settings, layer, qkv_TM.device, qkv_TM.dtype, noise):
            x_TD = view.gathered(qkv_TM, settings) if gathers else self._end_to_end(qkv_TM, layer, view, noise)
            if view.kept is not None and layer == settings.num_layers - 1:
                x_TD = _taken(x_TD, view.kept.tokens_K)
            return self.output(x_TD)
        qkv_BSM = view.rows.pad(qkv_TM)
        qkv_BS3NK = qkv_BSM.unflatten(2, (3, settings.num_heads, settings.head_size))
        qkv_3BNSK = qkv_BS3NK.permute(2, 0, 3, 1, 4)
        if settings.positions == "rotary":
            base = settings.rotary_base if window is None else settings.rotary_base_local
            qkv_3BNSK = rotate(qkv_3BNSK, view.angles(base, settings.head_size))
        if settings.is_hashed(layer):
            x_BNSK = attend_hashed(
                qkv_3BNSK[:2], qkv_3BNSK[2], view.sight, rounds=settings.hash_rounds,
                bucket_size=settings.bucket_size, seed=settings.hash_seed, layer=layer, noise=noise,
                dropout=settings.attention_dropout,
            )  # fmt: skip
        else:
            sight = view.sight
            if self.prefix_2PD is not None:
                qkv_3BNSK, sight = self._behind_prefix(qkv_3BNSK, self.prefix_2PD, view)
            x_BNSK = attend(
                qkv_3BNSK, sight, window, settings.attention_kernel, noise, settings.attention_dropout, layer
            )[:, :, settings.prefix_length :]
        x_BSD = x_BNSK.transpose(1, 2).flatten(2, 3)
        if view.kept is not None and layer == settings.num_layers - 1:
            return self.output(_taken(x_BSD.flatten(0, 1), view.kept.positions_K))
        return self.output(view.rows.unpad(x_BSD))

    def _end_to_end(self, qkv_TM: torch.Tensor, layer: int, view: View, noise: Noise | None) -> torch.Tensor:
        """attended_TD of tokens laid end to end, as one long row of which every token sees its own run."""
        settings = self.settings
        window = settings.window(layer)
        qkv_3NTK = qkv_TM.unflatten(1, (3, settings.num_heads, settings.head_size)).permute(1, 2, 0, 3)
        if settings.positions == "rotary":
            base = settings.rotary_base if window is None else settings.rotary_base_local
            angles = view.angles(base, settings.head_size, end_to_end=True)
            qkv_3NTK = rotate(qkv_3NTK[:, None], angles)[:, 0]
        dropout = settings.attention_dropout
        return attend_runs(qkv_3NTK, view.runs, window, view.sight.causal, noise, dropout, layer).flatten(1)

    def _behind_prefix(
        self, qkv_3BNSK: torch.Tensor, prefix_2PD: torch.Tensor, view: View
    ) -> tuple[torch.Tensor, Sight]:
        """Rows that begin with the prefix. It stands there with empty queries, whose answers nobody reads: a few rows
        more cost less than a second form of every kernel."""
        settings = self.settings
        prefix_2NPK = prefix_2PD.to(qkv_3BNSK.dtype).unflatten(2, (settings.num_heads, -1)).transpose(1, 2)
        prefix_3NPK = torch.cat([torch.zeros_like(prefix_2NPK[:1]), prefix_2NPK])
        prefix_3BNPK = prefix_3NPK[:, None].expand(-1, qkv_3BNSK.shape[1], -1, -1, -1)
        return torch.cat([prefix_3BNPK, qkv_3BNSK], dim=3), view.sight.behind(settings.prefix_length)


class Ffn(SubLayer):
    """down(act(up x)); gated: up gives two halves, the activated one is multiplied by the other."""

    site = Site.FFN

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        up_size = settings.ffn_size * (2 if settings.ffn == "gated" else 1)
        self.up = nn.Linear(settings.hidden_size, up_size, bias=settings.bias)
        self.down = nn.Linear(settings.ffn_size, settings.hidden_size, bias=settings.bias)

    def inner(self, x_TD: torch.Tensor, layer: int, view: View, noise: Noise | None) -> torch.Tensor:
        return self.both(x_TD)

    def both(self, x_TD: torch.Tensor) -> torch.Tensor:
        """The two products and what stands between them; `compile_layers` compiles just this."""
        approximate = ACTIVATIONS[self.settings.activation]
        x_TF = self.up(x_TD)
        if self.settings.ffn == "plain":
            if self._forgets_gelu():
                return _GeluLinear.apply(x_TF, self.down.weight, self.down.bias, approximate)
            return self.down(F.gelu(x_TF, approximate=approximate))
        x_TF, gate_TF = x_TF.chunk(2, dim=-1)
        return self.down(F.gelu(x_TF, approximate=approximate) * gate_TF)

    def _forgets_gelu(self) -> bool:
        """Whether GELU's output is computed again in the backward pass. Where layers share a matrix, autocast adds the
        gradients of all its uses up in bf16, which only the plain operations do."""
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        return type(self.down) is nn.Linear and self.settings.sharing in ("none", "attention")


class _GeluLinear(torch.autograd.Function):
    """linear(gelu(x)) that keeps x alone: GELU is computed once more in the backward pass, which costs little and saves
    the largest tensor of a layer. The numbers are those of the two operations."""

    @staticmethod
    def forward(
        ctx: Any, x_TF: torch.Tensor, weight_DF: torch.Tensor, bias_D: torch.Tensor | None, approximate: str
    ) -> torch.Tensor:
        weight = weight_DF.to(x_TF.dtype)
        ctx.save_for_backward(x_TF, weight)
        ctx.approximate, ctx.dtype = approximate, weight_DF.dtype
        bias = None if bias_D is None else bias_D.to(x_TF.dtype)
        return F.linear(F.gelu(x_TF, approximate=approximate), weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x_TF, weight = ctx.saved_tensors
        grad_TD = grads[0].to(x_TF.dtype)
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.ops.aten.gelu_backward(grad_TD @ weight, x_TF, approximate=ctx.approximate)
        if ctx.needs_input_grad[1]:
            grad_weight = (grad_TD.T @ F.gelu(x_TF, approximate=ctx.approximate)).to(ctx.dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = grad_TD.sum(0).to(ctx.dtype)
        return grad_x, grad_weight, grad_bias, None


@dataclass
class View:
    """What all layers share while a batch passes: where tokens stand, what they see, the rotary angles."""

    rows: Rows
    sight: Sight
    positions_BS: torch.Tensor
    kept: Kept | None = None

    document_ids: np.ndarray | None = None  # of packed rows, as the host knows them

    def __post_init__(self) -> None:
        self._angles: dict[tuple[float, bool], tuple[torch.Tensor, torch.Tensor]] = {}
        self._by_head: ByHead | None = None

    def angles(self, base: float, head_size: int, end_to_end: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """`end_to_end`: of the computed tokens as one row."""
        if (base, end_to_end) not in self._angles:
            positions_BS = self.positions_BS
            if end_to_end:
                positions_BS = self.rows.take(positions_BS.expand(len(self.rows.lengths), -1))[None]
            self._angles[base, end_to_end] = rotary_angles(positions_BS, head_size, base)
        return self._angles[base, end_to_end]

    @cached_property
    def runs(self) -> Runs:
        return Runs.of(self.rows.lengths, self.rows.computed, self.document_ids, self.positions_BS.device)

    def is_end_to_end(
        self, settings: ModelSettings, layer: int, device: torch.device, dtype: torch.dtype, noise: Noise | None
    ) -> bool:
        """Whether a layer attends without padding: where the flash kernel is, or where that is asked for. Tokens
        hidden at random, buckets, and dropout outside of the kernel have only the padded form."""
        if settings.attention_kernel not in ("auto", "varlen") or settings.is_hashed(layer):
            return False
        if self.sight.hidden_tokens_BS is not None or settings.prefix_length or torch.compiler.is_exporting():
            return False
        if device.type != "cpu" and has_kernel(device, dtype):
            return True
        return settings.attention_kernel == "varlen" and (noise is None or settings.attention_dropout == 0.0)

    def is_gathered(self, settings: ModelSettings, layer: int, qkv_TM: torch.Tensor, noise: Noise | None) -> bool:
        """Whether a layer attends by gathered rows: on CPUs in bf16, where nothing learns or is hidden but padding."""
        if settings.attention_kernel != "auto" or noise is not None or settings.is_hashed(layer):
            return False
        if settings.window(layer) is not None or settings.positions == "rotary" or settings.prefix_length:
            return False
        return self.sight.hides_padding_alone and is_faster(qkv_TM, self.sight.num_positions)

    def gathered(self, qkv_TM: torch.Tensor, settings: ModelSettings) -> torch.Tensor:
        """attended_TD."""
        if self._by_head is None:
            self._by_head = ByHead.of(self.rows.lengths, self.rows.computed, settings.num_heads, qkv_TM.dtype)
        return self._by_head.attend(qkv_TM)

    def per_row(self, num_tokens: int) -> list[int]:
        """How many of so many tokens laid end to end are of which row."""
        if self.kept is not None and num_tokens < sum(self.rows.computed):
            return self.kept.per_row
        return self.rows.computed


class Encoder(nn.Module):
    """Embeddings, then the layers, then (pre-norm) a last norm."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.settings = settings
        self.embeddings = Embeddings(settings)
        layers = range(settings.num_layers)
        normed = {settings.attention_index(i) for i in layers if settings.has_attention_norm(i)}
        num_attentions = 1 + max(settings.attention_index(i) for i in layers)
        self.attentions = nn.ModuleList(Attention(settings, a in normed) for a in range(num_attentions))
        self.ffns = nn.ModuleList(Ffn(settings) for _ in range(1 + max(settings.ffn_index(i) for i in layers)))
        self.norm = layer_norm(settings, settings.hidden_size) if settings.norm == "pre" else None
        self.ration: Ration | None = None  # of AdaLoRA's ranks
        self.recompute = False  # activation checkpointing: noise has no state, so a second pass is the same

    def forward(
        self, batch: Batch, noise: Noise | None = None, causal: bool = False, wanted_M: Positions | None = None
    ) -> torch.Tensor:
        """hidden_BSD, zeros at padding. `noise` None: evaluation. `wanted_M`: flat positions whose states are asked
        for (as an array, so that no device is waited for); the others are zeros, too."""
        view = self.view(batch, noise, causal)
        rows = view.rows
        if wanted_M is not None:
            wanted = wanted_M if isinstance(wanted_M, np.ndarray) else wanted_M.cpu().numpy()
            view.kept = Kept.of(wanted, rows, batch.input_ids_BS.device)
        segments_T = None if batch.segment_ids_BS is None else rows.take(batch.segment_ids_BS)
        positions_T = rows.take(view.positions_BS.expand(batch.input_ids_BS.shape))
        x_TD = self.embeddings(rows.take(batch.input_ids_BS), positions_T, segments_T, rows, noise)
        for layer in range(self.settings.num_layers):
            if self.recompute and torch.is_grad_enabled():
                x_TD = checkpoint(self.layer, x_TD, layer, view, noise, use_reentrant=False, preserve_rng_state=False)
            else:
                x_TD = self.layer(x_TD, layer, view, noise)
        if self.norm is not None:
            x_TD = self.norm(x_TD)
        if (kept := view.kept) is not None:
            shape = (len(rows.lengths), rows.num_positions, x_TD.shape[1])
            return _Pad.apply(x_TD[: kept.num_wanted], kept.positions_K[: kept.num_wanted], shape)
        hidden_BSD = rows.pad(x_TD)
        if rows.computed != rows.lengths:
            columns_S = torch.arange(rows.num_positions, device=hidden_BSD.device)
            hidden_BSD = hidden_BSD.masked_fill((columns_S >= batch.lengths_B[:, None])[:, :, None], 0.0)
        return hidden_BSD

    def layer(self, x_TD: torch.Tensor, layer: int, view: View, noise: Noise | None) -> torch.Tensor:
        x_TD = self.attentions[self.settings.attention_index(layer)](x_TD, layer, view, noise)
        return self.ffns[self.settings.ffn_index(layer)](x_TD, layer, view, noise)

    def view(self, batch: Batch, noise: Noise | None, causal: bool) -> View:
        """How the layers see a batch; export puts one in its place that holds for any lengths."""
        settings = self.settings
        rows = Rows.of(batch, settings.unpad)
        device = batch.input_ids_BS.device
        if (known_BS := batch.known.position_ids_BS) is not None:
            assert batch.position_ids_BS is not None
            positions_BS = batch.position_ids_BS
            longest = int(known_BS.max()) + 1
        else:
            positions_BS = torch.arange(rows.num_positions, device=device)[None]
            longest = max(rows.lengths)
            # Padding beyond the last position is never used; it only has to have a row in the table.
            positions_BS = positions_BS.clamp(max=settings.max_length - 1)
        if longest > settings.max_length:
            raise DataError(
                f"an input of {longest} tokens is longer than the {settings.max_length} positions of this model "
                "(model.max_length); cut it, or train a model with more positions"
            )
        hidden_BS = None
        if noise is not None and settings.attention_mask_prob > 0.0:
            hidden_BS = hidden_tokens(noise, settings.attention_mask_prob, rows.lengths, rows.num_positions, device)
        sight = Sight(rows.lengths, rows.num_positions, device, causal, batch.document_ids_BS, hidden_BS)
        document_ids = batch.known.document_ids_BS
        if isinstance(document_ids, torch.Tensor):
            document_ids = document_ids.cpu().numpy()
        return View(rows, sight, positions_BS, document_ids=document_ids)
