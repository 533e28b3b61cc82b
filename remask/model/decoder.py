"""A decoder that starts from an encoder: it reads the encoder's states and writes one token after the other.

In: states of the sources, and targets (all at once in training, one token at a time when writing). Out: states of the
target tokens, or logits of the next one. A layer is the encoder's attention (shared or copied, here with a causal
view), a fresh attention over the source, and the encoder's FFN (Rothe et al., arXiv 1907.12461: RoBERTaShare is
`weights: shared`). Embeddings and output are the encoder's, unless the target side has a vocabulary of its own.
Not here: the choice of tokens (answer/decoding), losses (network), names in other layouts (interop_writer).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from remask.errors import ConfigError
from remask.model.attention import probabilities, rotary_angles, rotate, weighed, weighed_backward
from remask.model.encoder import Attention, Embeddings, Encoder, Ffn, Rows, SubLayer, View, layer_norm
from remask.model.heads import MaskedLm
from remask.model.noise import Noise, Site, keep_scale, marked
from remask.model.settings import ModelSettings, WriterSettings
from remask.schema import Batch

# Shapes: B sources, S positions of a source, U source tokens end to end, L positions of a target, T target tokens end
# to end, R texts being written (the W beams of every source side by side), D width, N heads, K width of a head,
# V vocabulary.

_FIRST_ROOM = 32  # positions that a memory holds at first; it doubles


@dataclass(frozen=True)
class Source:
    """What the encoder made of a batch."""

    rows: Rows
    states_UD: torch.Tensor

    @classmethod
    def of(cls, batch: Batch, hidden_BSD: torch.Tensor, unpad: bool) -> Source:
        rows = Rows.of(batch, unpad)
        return cls(rows, rows.unpad(hidden_BSD))

    def bias(self, dtype: torch.dtype) -> torch.Tensor | None:
        """bias_B11S: very low at padding, which nobody may look at; None: there is none."""
        if min(self.rows.lengths) == self.rows.num_positions:
            return None
        device = self.states_UD.device
        columns_S = torch.arange(self.rows.num_positions, device=device)
        hidden_BS = columns_S >= torch.tensor(self.rows.lengths, device=device)[:, None]
        zeros_BS = torch.zeros(hidden_BS.shape, dtype=dtype, device=device)
        return zeros_BS.masked_fill_(hidden_BS, torch.finfo(dtype).min / 2)[:, None, None]


@dataclass
class TargetView(View):
    """How the decoder's layers see a batch of targets."""

    source: Source | None = None
    seen: list[torch.Tensor] | None = None  # given: every layer's probs_BNLS over the source are put here


class CrossAttention(SubLayer):
    """Target tokens look at the source."""

    site = Site.CROSS

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        size = settings.hidden_size
        self.query = nn.Linear(size, size, bias=settings.bias)
        self.key_value = nn.Linear(size, 2 * size, bias=settings.bias)  # rows: k, v
        self.output = nn.Linear(size, size, bias=settings.bias)

    def inner(self, x_TD: torch.Tensor, layer: int, view: View, noise: Noise | None) -> torch.Tensor:
        assert isinstance(view, TargetView)
        assert view.source is not None
        source, settings = view.source, self.settings
        q_BNLK = self.heads(view.rows.pad(self.query(x_TD)))
        kv_2BNSK = self.remember(source).contiguous()
        dropped_BNLS = None
        if noise is not None and settings.attention_dropout > 0.0:
            dropped_BNLS = noise.dropped_pairs(
                layer, settings.attention_dropout, view.rows.lengths, source.rows.lengths, settings.num_heads,
                (view.rows.num_positions, source.rows.num_positions), q_BNLK.device,
            )  # fmt: skip
        bias_B11S = source.bias(q_BNLK.dtype)
        if view.seen is not None:
            view.seen.append(probabilities(q_BNLK, kv_2BNSK[0], bias_B11S))
        with torch.autocast(q_BNLK.device.type, enabled=False):
            scale = keep_scale(settings.attention_dropout)
            x_BNLK = _Across.apply(q_BNLK, kv_2BNSK, bias_B11S, dropped_BNLS, scale)
        return self.output(view.rows.unpad(x_BNLK.transpose(1, 2).flatten(2, 3)))

    def heads(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """x_BNLK."""
        return x_BLD.unflatten(2, (self.settings.num_heads, self.settings.head_size)).transpose(1, 2)

    def remember(self, source: Source) -> torch.Tensor:
        """kv_2BNSK of a source, the same for all that is written about it."""
        kv_BSM = source.rows.pad(self.key_value(source.states_UD))
        return kv_BSM.unflatten(2, (2, self.settings.num_heads, self.settings.head_size)).permute(2, 0, 3, 1, 4)


class _Across(torch.autograd.Function):
    """attention._Products for queries and keys of different places and numbers."""

    @staticmethod
    def forward(
        ctx: Any,
        q_BNLK: torch.Tensor,
        kv_2BNSK: torch.Tensor,
        bias: torch.Tensor | None,
        dropped: torch.Tensor | None,
        scale: float,
    ) -> torch.Tensor:
        probs_BNLS = probabilities(q_BNLK, kv_2BNSK[0], bias)
        ctx.scale = None if dropped is None else scale
        if dropped is not None:
            probs_BNLS = marked(probs_BNLS, dropped)
        ctx.save_for_backward(q_BNLK, kv_2BNSK, probs_BNLS)
        return weighed(probs_BNLS, kv_2BNSK[1], ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None, None]:
        q_BNLK, kv_2BNSK, probs = ctx.saved_tensors
        k_BNSK, v_BNSK = kv_2BNSK
        grad_kv_2BNSK = torch.empty_like(kv_2BNSK)
        grad_kv_2BNSK[1], grad_scores = weighed_backward(grads[0], probs, v_BNSK, ctx.scale)
        factor = q_BNLK.shape[-1] ** -0.5
        grad_kv_2BNSK[0] = torch.matmul(grad_scores.transpose(-1, -2), q_BNLK * factor)
        return torch.matmul(grad_scores, k_BNSK) * factor, grad_kv_2BNSK, None, None, None


class Decoder(nn.Module):
    """What a network that writes has beside its encoder, whose layers it uses or copies."""

    def __init__(self, settings: ModelSettings, writer: WriterSettings) -> None:
        super().__init__()
        if settings.attention_kind == "hashed":
            raise ConfigError("attention_kind = hashed: a model with buckets cannot write; full or window can")
        if settings.bottleneck_size or settings.prefix_length:
            raise ConfigError("a model with a bottleneck or a prefix cannot write: start from the model before it")
        count = settings.num_layers if writer.num_layers is None else writer.num_layers
        if count > settings.num_layers:
            raise ConfigError(
                f"decoder.num_layers = {count}: the encoder has {settings.num_layers} layers; 1 to "
                f"{settings.num_layers} of them can be its decoder's"
            )
        self.settings, self.writer = settings, writer
        self.layers = range(settings.num_layers - count, settings.num_layers)  # numbers of the encoder's layers
        own = settings.model_copy(update={"vocab_size": writer.vocab_size or settings.vocab_size})
        self.embeddings = None if writer.vocab_size is None else Embeddings(own)
        self.crosses = nn.ModuleList(CrossAttention(settings) for _ in self._used(settings.attention_index))
        self.attentions = self.ffns = self.norm = None
        if writer.weights == "copied":
            attentions = self._used(settings.attention_index)
            normed = {settings.attention_index(i) for i in range(settings.num_layers) if settings.has_attention_norm(i)}
            self.attentions = nn.ModuleList(Attention(settings, index in normed) for index in attentions)
            self.ffns = nn.ModuleList(Ffn(settings) for _ in self._used(settings.ffn_index))
            self.norm = layer_norm(settings, settings.hidden_size) if settings.norm == "pre" else None
        self.lm = MaskedLm(own)
        self.packed: nn.Module | None = None  # the output matrix once more, as products want it (model/packed)

    def _used(self, index_of: Callable[[int], int]) -> list[int]:
        """The encoder's modules that the decoder's layers have a counterpart of."""
        return sorted({index_of(layer) for layer in self.layers})

    def tokens(self, encoder: Encoder) -> nn.Module:
        """The table of its vocabulary."""
        return (self.embeddings or encoder.embeddings).tokens

    def parts(self, encoder: Encoder, layer: int) -> tuple[Attention, CrossAttention, Ffn]:
        """The modules of one of its layers, by the number of the encoder's layer that it is or was."""
        attention, ffn = self.settings.attention_index(layer), self.settings.ffn_index(layer)
        place = self._used(self.settings.attention_index).index(attention)
        if self.attentions is None or self.ffns is None:
            own = encoder.attentions[attention], encoder.ffns[ffn]
        else:
            own = self.attentions[place], self.ffns[self._used(self.settings.ffn_index).index(ffn)]
        return own[0], self.crosses[place], own[1]  # pyrefly: ignore

    def start_from(self, encoder: Encoder, lm: MaskedLm | None) -> None:
        """Begin with the encoder's weights, and with those of its masked LM where it has one."""
        with torch.no_grad():
            if self.embeddings is not None:
                _copy(encoder.embeddings, self.embeddings)
            if self.attentions is not None and self.ffns is not None:
                for index, own in zip(self._used(self.settings.attention_index), self.attentions, strict=True):
                    _copy(encoder.attentions[index], own)
                for index, own in zip(self._used(self.settings.ffn_index), self.ffns, strict=True):
                    _copy(encoder.ffns[index], own)
                if self.norm is not None and encoder.norm is not None:
                    _copy(encoder.norm, self.norm)
            if lm is not None:
                _copy(lm, self.lm)

    # ---------------------------------------------------------------------------------- whole targets at once

    def forward(
        self,
        encoder: Encoder,
        targets: Batch,
        source: Source,
        noise: Noise | None = None,
        seen: list[torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, Rows]:
        """(states_TD of the target tokens, where they stand). Every token sees those before it, and the source."""
        noise = None if noise is None else noise.apart()
        view = encoder.view(targets, noise, causal=True)
        view = TargetView(view.rows, view.sight, view.positions_BS, source=source, seen=seen)
        positions_T = view.rows.take(view.positions_BS.expand(targets.input_ids_BS.shape))
        embeddings = self.embeddings or encoder.embeddings
        x_TD = embeddings(view.rows.take(targets.input_ids_BS), positions_T, None, view.rows, noise)
        for layer in self.layers:
            if encoder.recompute and torch.is_grad_enabled():
                x_TD = checkpoint(
                    self._layer, encoder, x_TD, layer, view, noise, use_reentrant=False, preserve_rng_state=False
                )
            else:
                x_TD = self._layer(encoder, x_TD, layer, view, noise)
        return self._last_norm(encoder, x_TD), view.rows

    def _layer(
        self, encoder: Encoder, x_TD: torch.Tensor, layer: int, view: TargetView, noise: Noise | None
    ) -> torch.Tensor:
        for part in self.parts(encoder, layer):
            x_TD = part(x_TD, layer, view, noise)
        return x_TD

    def _last_norm(self, encoder: Encoder, x_TD: torch.Tensor) -> torch.Tensor:
        norm = self.norm or encoder.norm
        return x_TD if norm is None else norm(x_TD)

    def logits(self, encoder: Encoder, x_TD: torch.Tensor) -> torch.Tensor:
        """logits_TV."""
        if self.packed is not None:
            return self.packed(self.lm.features(x_TD))
        return self.lm(x_TD, self.tokens(encoder).weight)

    # -------------------------------------------------------------------------------- one token after the other

    def memory(self, source: Source, num_beams: int = 1) -> Memory:
        """What a text about each source begins with: nothing written, the source's keys and values."""
        crosses: dict[int, torch.Tensor] = {}
        for place, cross in enumerate(self.crosses):
            assert isinstance(cross, CrossAttention)
            crosses[place] = cross.remember(source).contiguous()
        first = next(iter(crosses.values()))
        return Memory(num_beams, crosses, source.bias(first.dtype))

    def step(self, encoder: Encoder, ids_R: torch.Tensor, memory: Memory) -> torch.Tensor:
        """logits_RV of the next token, after `ids_R` were written; `memory` holds all before, and them from now on."""
        settings, length = self.settings, memory.length
        positions_R = torch.full_like(ids_R, min(length, settings.max_length - 1))
        embeddings = self.embeddings or encoder.embeddings
        x_RD = embeddings(ids_R, positions_R, None, _ROWS, None)
        places = self._used(settings.attention_index)
        for layer in self.layers:
            attention, cross, ffn = self.parts(encoder, layer)
            x_RD = _around(attention, x_RD, layer, lambda x, a=attention, n=layer: _look_back(a, x, n, memory))
            place = places.index(settings.attention_index(layer))
            x_RD = _around(cross, x_RD, layer, lambda x, c=cross, p=place: _look_across(c, x, p, memory))
            x_RD = _around(ffn, x_RD, layer, ffn.both)
        memory.length += 1
        return self.logits(encoder, self._last_norm(encoder, x_RD))


_ROWS = Rows([], [], 0, None)  # embeddings ask it only for noise


@dataclass
class Memory:
    """Keys and values of texts that are being written: R = B x W of them, W for every source."""

    num_beams: int
    crosses: dict[int, torch.Tensor]  # kv_2BNSK by module
    bias_B11S: torch.Tensor | None
    length: int = 0
    past: dict[int, torch.Tensor] = field(default_factory=dict)  # by layer: kv_L2RNK, of which `length` are filled

    def add(self, layer: int, kv_2RNK: torch.Tensor) -> torch.Tensor:
        """Put the newest token's keys and values after the others: kv_L2RNK up to and with it."""
        past = self.past.get(layer)
        if past is None or len(past) <= self.length:
            room = _FIRST_ROOM if past is None else 2 * len(past)
            wider = kv_2RNK.new_empty((room, *kv_2RNK.shape))
            if past is not None:
                wider[: self.length] = past[: self.length]
            past = self.past[layer] = wider
        past[self.length] = kv_2RNK
        return past[: self.length + 1]

    def choose(self, texts_R: torch.Tensor) -> None:
        """Go on with these of the texts, in this order; a text may go on more than once."""
        for layer, past in self.past.items():
            chosen = past.new_empty((len(past), 2, len(texts_R), *past.shape[3:]))
            torch.index_select(past[: self.length], 2, texts_R, out=chosen[: self.length])
            self.past[layer] = chosen

    def keep(self, sources_B: torch.Tensor) -> None:
        """Go on with these sources alone, each with its texts."""
        self.crosses = {place: kv.index_select(1, sources_B) for place, kv in self.crosses.items()}
        if self.bias_B11S is not None:
            self.bias_B11S = self.bias_B11S[sources_B]
        beams_W = torch.arange(self.num_beams, device=sources_B.device)
        self.choose((sources_B[:, None] * self.num_beams + beams_W).flatten())


def _around(
    part: SubLayer, x_RD: torch.Tensor, layer: int, inner: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """SubLayer.forward where nothing is dropped, around another way to compute the inside."""
    if part.settings.norm == "pre":
        return x_RD + inner(part.norm(x_RD) if part.is_normed(layer) else x_RD)
    return part.norm(x_RD + inner(x_RD))


def _look_back(attention: Attention, x_RD: torch.Tensor, layer: int, memory: Memory) -> torch.Tensor:
    """The newest tokens look at themselves and at what was written before."""
    settings = attention.settings
    window = settings.window(layer)
    qkv_3RNK = attention.qkv(x_RD).unflatten(1, (3, settings.num_heads, settings.head_size)).transpose(0, 1)
    if settings.positions == "rotary":
        base = settings.rotary_base if window is None else settings.rotary_base_local
        now_11 = torch.full((1, 1), memory.length, device=x_RD.device)
        angles = rotary_angles(now_11, settings.head_size, base)
        qkv_3RNK = rotate(qkv_3RNK[:, :, :, None], angles)[:, :, :, 0]
    kv_L2RNK = memory.add(layer, qkv_3RNK[1:])
    if window is not None:
        kv_L2RNK = kv_L2RNK[-window - 1 :]
    # One query a text: plain products where the keys lie are many times faster than torch's kernel (EXPERIMENTS.md).
    k_LRNK, v_LRNK = kv_L2RNK.unbind(1)
    scores_LRN = (k_LRNK * (qkv_3RNK[0] * settings.head_size**-0.5)).sum(-1, dtype=torch.float32)
    probs_LRN1 = scores_LRN.softmax(0).to(v_LRNK.dtype)[..., None]
    return attention.output((probs_LRN1 * v_LRNK).sum(0).flatten(1))


def _look_across(cross: CrossAttention, x_RD: torch.Tensor, place: int, memory: Memory) -> torch.Tensor:
    """The newest tokens look at the source; the beams of one source are its queries, so nothing is repeated."""
    q_BNWK = cross.heads(cross.query(x_RD).unflatten(0, (-1, memory.num_beams)))
    k_BNSK, v_BNSK = memory.crosses[place]
    attended_BNWK = torch.matmul(probabilities(q_BNWK, k_BNSK, memory.bias_B11S), v_BNSK)
    return cross.output(attended_BNWK.transpose(1, 2).flatten(2, 3).flatten(0, 1))


def _copy(source: nn.Module, target: nn.Module) -> None:
    """All weights that both have in the same shape."""
    weights = source.state_dict()
    for name, parameter in target.named_parameters():
        if name in weights and weights[name].shape == parameter.shape:
            parameter.copy_(weights[name])
