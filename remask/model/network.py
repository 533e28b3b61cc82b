"""Encoder and heads as one network: Batch -> hidden states -> logits.

In: a Batch of tensors and, in training, Noise. Out: states and logits; what a head needs beyond the states (lengths for
the mean and for dropout) is passed along. `build_network` is a pure function of (settings, heads, seed): every weight
has a generator of its own, keyed by its name, so that adding a head does not change the encoder.
Not here: losses (objectives), files (store), other layouts (interop).
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from remask.errors import ConfigError
from remask.model.decoder import Source
from remask.model.encoder import Encoder, Ffn, Positions, SubLayer
from remask.model.heads import TaskHeads
from remask.model.loss import cross_entropy
from remask.model.noise import Noise, Site
from remask.model.settings import HeadSettings, ModelSettings, Pooling
from remask.model.shapes import round_size
from remask.schema import Batch

# Shapes: B rows, S positions, D width of a state, M predicted positions, V vocabulary, C classes or tags.


_MOST_GRAPHS = 64  # of compiled parts: some kinds of layers, each with and without one row, some sizes of 1
MAX_SCALE = 100.0  # of similarities: as in CLIP (arXiv 2103.00020, section 2.5), where larger ones made it unstable


class Network(nn.Module):
    """An encoder with heads. Every method takes what `encode` gave; `noise` None is evaluation."""

    def __init__(self, settings: ModelSettings, heads: HeadSettings) -> None:
        super().__init__()
        if settings.vocab_size < 1:
            raise ConfigError("model.vocab_size is 0: it must be the tokenizer's number of entries")
        self.settings = settings
        self.head_settings = heads
        self.encoder = Encoder(settings)
        self.heads = TaskHeads(settings, heads)

    def encode(
        self, batch: Batch, noise: Noise | None = None, causal: bool = False, wanted_M: Positions | None = None
    ) -> torch.Tensor:
        """hidden_BSD, zeros at padding. `causal`: no token sees those to its right. `wanted_M`: flat positions (row * S
        + column) outside of which nobody will look: zeros stand there, and most of the last layer is saved."""
        return self.encoder(batch, noise, causal, wanted_M)

    def first_positions(self, batch: Batch) -> np.ndarray | None:
        """What heads for texts look at, for `encode`; None: at all tokens."""
        if self.head_settings.pooling != "first":
            return None
        rows, columns = batch.input_ids_BS.shape
        return np.arange(0, rows * columns, columns)

    forward = encode  # the name by which wrappers call it

    def masked_lm(self, hidden_BSD: torch.Tensor, positions_M: torch.Tensor) -> torch.Tensor:
        """logits_MV at flat positions (row * S + column) only."""
        head = self.heads.masked_lm
        assert head is not None, "this network has no masked-LM head"
        hidden_MD = hidden_BSD.flatten(0, 1).index_select(0, positions_M)
        return head(hidden_MD, self.encoder.embeddings.tokens.weight)

    def masked_lm_loss(
        self, hidden_BSD: torch.Tensor, positions_M: torch.Tensor, labels_M: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(summed loss, how many were right) of the labels at these positions."""
        spare = round_size(len(positions_M)) - len(positions_M)
        return cross_entropy(self.masked_lm(hidden_BSD, F.pad(positions_M, (0, spare))), labels_M)

    def sentence(
        self, hidden_BSD: torch.Tensor, lengths_B: torch.Tensor | None = None, noise: Noise | None = None
    ) -> torch.Tensor:
        """logits_B2: 1 = the second part follows the first."""
        return self._on_text(self.heads.sentence, hidden_BSD, lengths_B, noise)

    def classify(
        self, hidden_BSD: torch.Tensor, lengths_B: torch.Tensor | None = None, noise: Noise | None = None
    ) -> torch.Tensor:
        """logits_BC; regression has one column."""
        return self._on_text(self.heads.classifier, hidden_BSD, lengths_B, noise)

    def choose(
        self, hidden_BSD: torch.Tensor, lengths_B: torch.Tensor | None = None, noise: Noise | None = None
    ) -> torch.Tensor:
        """scores_B, one for every row; the choices of a question are consecutive rows."""
        return self._on_text(self.heads.chooser, hidden_BSD, lengths_B, noise).squeeze(1)

    def answerable(
        self, hidden_BSD: torch.Tensor, lengths_B: torch.Tensor | None = None, noise: Noise | None = None
    ) -> torch.Tensor:
        """logit_B: above 0 = the passage has an answer."""
        return self._on_text(self.heads.answerable, hidden_BSD, lengths_B, noise).squeeze(1)

    def tag(self, hidden_BSD: torch.Tensor, noise: Noise | None = None) -> torch.Tensor:
        """logits_BSC."""
        return self._on_tokens(self.heads.tagger, hidden_BSD, noise, self.settings.head_dropout)

    def span(self, hidden_BSD: torch.Tensor, noise: Noise | None = None) -> torch.Tensor:
        """logits_BS2: start and end. No dropout here but in the modern form, as in the reference heads."""
        return self._on_tokens(self.heads.span, hidden_BSD, noise, 0.0)

    def write_loss(
        self, hidden_BSD: torch.Tensor, batch: Batch, noise: Noise | None = None, smoothing: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(summed loss, how many were right) of the targets in `batch.labels`, each token told those before it."""
        states_MD, labels_M = self._target_states(hidden_BSD, batch, noise)
        writer = self.heads.writer
        assert writer is not None
        return cross_entropy(writer.logits(self.encoder, states_MD), labels_M, smoothing)

    def write_losses(self, hidden_BSD: torch.Tensor, batch: Batch) -> torch.Tensor:
        """losses_B: what each target costs, in nats."""
        states_MD, labels_M = self._target_states(hidden_BSD, batch, None)
        assert batch.target_lengths_B is not None
        assert self.heads.writer is not None
        logits_MV = self.heads.writer.logits(self.encoder, states_MD)[: len(labels_M)].float()
        losses_M = F.cross_entropy(logits_MV, labels_M, reduction="none")
        return torch.stack([part.sum() for part in losses_M.split(batch.target_lengths_B.tolist())])

    def _target_states(
        self, hidden_BSD: torch.Tensor, batch: Batch, noise: Noise | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(states_MD of the target tokens, then others up to one of few sizes; labels_M)."""
        targets = self.targets(batch)
        source = Source.of(batch, hidden_BSD, self.settings.unpad)
        assert self.heads.writer is not None, "this network cannot write"
        states_TD, rows = self.heads.writer(self.encoder, targets, source, noise)
        columns_L = torch.arange(rows.num_positions, device=hidden_BSD.device)
        is_real_BL = columns_L < targets.lengths_B[:, None]
        real_M = rows.take(is_real_BL).nonzero().squeeze(1)
        spare = round_size(len(real_M)) - len(real_M)
        states_MD = states_TD.index_select(0, F.pad(real_M, (0, spare)))
        return states_MD, batch.labels[is_real_BL]  # pyrefly: ignore

    def targets(self, batch: Batch) -> Batch:
        """What the decoder is told: the start, then the target without its last token."""
        assert batch.labels is not None
        assert batch.target_lengths_B is not None
        writer = self.head_settings.writer
        assert writer is not None, "this network cannot write"
        ids_BL = F.pad(batch.labels[:, :-1].clamp(min=0), (1, 0), value=writer.start_id)
        return Batch(ids_BL, batch.target_lengths_B)

    def embed(
        self, hidden_BSD: torch.Tensor, lengths_B: torch.Tensor | None = None, pooling: Pooling | None = None
    ) -> torch.Tensor:
        """vectors_BD: the first token's state or the mean over the real tokens; by default as the heads have it."""
        if (pooling or self.head_settings.pooling) == "first":
            return hidden_BSD[:, 0]
        assert lengths_B is not None, "the mean needs the lengths"
        return hidden_BSD.sum(dim=1) / lengths_B[:, None].to(hidden_BSD.dtype)  # padding is zero

    def scale(self, temperature: float) -> torch.Tensor | float:
        """What similarities are multiplied with: 1 / temperature, times what was learned. The parameter counts
        hundredfold, since optimizers move every parameter by about the learning rate, which is made for matrices."""
        learned = self.heads.temperature
        if learned is None:
            return 1 / temperature
        return (100 * learned).exp().clamp(max=MAX_SCALE * temperature) / temperature

    def _on_text(
        self, linear: nn.Linear | None, hidden_BSD: torch.Tensor, lengths_B: torch.Tensor | None, noise: Noise | None
    ) -> torch.Tensor:
        assert linear is not None, "this network lacks that head"
        pooled_BD = self.embed(hidden_BSD, lengths_B)
        return linear(self._pool(pooled_BD, noise, 1, pooled_BD.shape[0]))

    def _on_tokens(
        self, linear: nn.Linear | None, hidden_BSD: torch.Tensor, noise: Noise | None, dropout: float
    ) -> torch.Tensor:
        assert linear is not None, "this network lacks that head"
        rows, columns, _ = hidden_BSD.shape
        x_TD = hidden_BSD.flatten(0, 1)
        if self.settings.head_form == "modern":
            x_TD = self._pool(x_TD, noise, columns, rows)
        elif noise is not None:
            x_TD = noise.drop(x_TD, dropout, 0, Site.HEAD_OUTPUT, [columns] * rows)
        return linear(x_TD).unflatten(0, (rows, columns))

    def _pool(self, x_RD: torch.Tensor, noise: Noise | None, columns: int, rows: int) -> torch.Tensor:
        pooler = self.heads.pooler
        assert pooler is not None
        # Only noise asks for the rows; a list of them would fix their number in an exported graph.
        tokens_per_row = [] if noise is None else [columns] * rows
        return pooler(x_RD, self.encoder.attentions[-1].output, noise, tokens_per_row)

    def learning_parameters(self, top_layers: int | None) -> list[nn.Parameter]:
        """What learns: all, or the top layers, the last norm and the heads; with no layer the heads alone. A tied
        output matrix rests with the embeddings."""
        settings = self.settings
        if top_layers is None:
            return list(self.parameters())
        if top_layers > settings.num_layers:
            raise ConfigError(
                f"train.trainable_top_layers = {top_layers}: the network has {settings.num_layers} layers; "
                f"0 to {settings.num_layers} of them can learn alone"
            )
        top = range(settings.num_layers - top_layers, settings.num_layers)
        learning = {f"encoder.attentions.{settings.attention_index(i)}." for i in top}
        learning |= {f"encoder.ffns.{settings.ffn_index(i)}." for i in top} | {"heads."}
        if top_layers:
            learning.add("encoder.norm.")
        return [p for name, p in self.named_parameters() if name.startswith(tuple(learning))]

    def train_top_layers(self, num_layers: int) -> None:
        """Of the encoder only these learn."""
        learning = set(self.learning_parameters(num_layers))
        for parameter in self.encoder.parameters():
            parameter.requires_grad_(parameter in learning)

    def layers_above(self, name: str) -> int:
        """How far below the heads a parameter stands: 0 heads and last norm, 1 the top layer, ..., then embeddings. A
        module that layers share counts where it is used last."""
        settings = self.settings
        part, _, rest = name.removeprefix("encoder.").partition(".")
        if part not in ("attentions", "ffns"):
            return settings.num_layers + 1 if part == "embeddings" else 0
        index_of = settings.attention_index if part == "attentions" else settings.ffn_index
        module = int(rest.partition(".")[0])
        return settings.num_layers - max(i for i in range(settings.num_layers) if index_of(i) == module)

    def parts_to_shard(self) -> list[nn.Module]:
        """Parts whose weights are needed only while their own `forward` runs (FSDP2 gathers them for that time). Not
        the embeddings, which the output layer may share, nor an attention whose matrix a pooler borrows, nor what a
        decoder uses piece by piece when it writes."""
        writer = self.heads.writer
        attentions = list(self.encoder.attentions)
        if self.heads.pooler is not None and self.heads.pooler.dense is None:
            attentions.pop()
        borrowed = set() if writer is None else {p for i in writer.layers for p in writer.parts(self.encoder, i)}
        return [part for part in [*attentions, *self.encoder.ffns] if part not in borrowed]

    def checkpoint_layers(self) -> None:
        """Keep only what goes in and out of a layer, and compute the inside again in the backward pass."""
        self.encoder.recompute = True

    def compile_layers(self, whole: bool, backend: Any = "inductor") -> None:
        """torch.compile, sizes left free: one compilation serves all batches. `whole`: attentions and FFNs with their
        norms and dropout, each as one graph, while they learn; else the inside of the FFNs, where element-wise work
        stands between products: on CPUs attention has kernels of its own, which are faster."""
        writer = self.heads.writer
        parts = [*self.encoder.attentions, *self.encoder.ffns]
        if writer is not None and writer.attentions is not None and writer.ffns is not None:
            parts += [*writer.attentions, *writer.ffns]
        if whole:
            limits = torch._dynamo.config
            limits.recompile_limit = max(limits.recompile_limit, _MOST_GRAPHS)
        for part in parts:
            assert isinstance(part, SubLayer)
            if whole:
                part.program = torch.compile(part.compute, backend=backend, dynamic=True, fullgraph=True)
            elif isinstance(part, Ffn):
                part.both = torch.compile(part.both, backend=backend, dynamic=True)


def with_heads(network: Network, heads: HeadSettings, seed: int, settings: ModelSettings | None = None) -> Network:
    """A network with other heads on the same encoder: weights that both have are copied, the others are fresh.

    `settings` may change what has no weights, such as dropout, and add what is trained beside the encoder."""
    changed = build_network(settings or network.settings, heads, seed)
    weights = network.state_dict()
    with torch.no_grad():
        for name, parameter in changed.named_parameters():
            if name in weights and weights[name].shape == parameter.shape:
                parameter.copy_(weights[name])
            else:
                known = not name.startswith("encoder.") or is_beside(name)
                assert known, f"the encoder's {name} does not fit the settings"
    return changed


def is_beside(name: str) -> bool:
    """Whether a weight of the encoder is of its adapters or prefixes, which other layouts do not have."""
    return ".bottleneck." in name or name.endswith(".prefix_2PD")


class _WithoutInitialising(TorchFunctionMode):
    """torch's own initial values are never used here; drawing them on the meta device imports its compiler (2 s)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return func(*args, **(kwargs or {}))


def empty_network(settings: ModelSettings, heads: HeadSettings) -> Network:
    """Names and shapes without memory, to be filled by load_state_dict(assign=True) or to_empty."""
    with torch.device("meta"), _WithoutInitialising():
        return Network(settings, heads)


def build_network(settings: ModelSettings, heads: HeadSettings, seed: int) -> Network:
    """A fresh network: weights as the papers draw them, biases 0, norms 1."""
    network = empty_network(settings, heads)  # nothing is drawn from torch's global generator
    network.to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            _initialise(name, parameter, settings, seed)
    return network


def _initialise(name: str, parameter: nn.Parameter, settings: ModelSettings, seed: int) -> None:
    if parameter.ndim < 2:
        parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
        return
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    std = settings.init_std
    if settings.init == "normal":
        parameter.normal_(0.0, std, generator=generator)
        return
    if name.endswith((".output.weight", ".down.weight")):
        std /= math.sqrt(2 * settings.num_layers)
    nn.init.trunc_normal_(parameter, 0.0, std, -2 * std, 2 * std, generator=generator)
