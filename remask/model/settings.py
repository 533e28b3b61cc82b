"""What an encoder and its heads look like: every design decision of model/, without torch.

In: the `model:` part of a run file. Out: frozen settings that encoder, attention and heads read. RoBERTa, BERT, ALBERT,
the pre-norm RoBERTa and the modern form are nothing but values of these fields (runs/bases); the defaults are
RoBERTa base (arXiv 1907.11692, section 3). Not here: which Hugging Face class a combination goes out as (interop).
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from remask.config import Config, setting, switch

# Beyond every model there is: a number above can only be a mistake, or a file that means harm.
MAX_LAYERS = 1_000
MAX_SIZE = 1 << 24


class ModelSettings(Config):
    """The encoder. Defaults: RoBERTa base."""

    vocab_size: int = setting(0, "entries of the vocabulary; 0: as many as the tokenizer has", ge=0, le=MAX_SIZE)
    num_layers: int = switch(
        12, "how often attention and FFN are applied", effect="math", samples=[2, 3], ge=1, le=MAX_LAYERS
    )
    hidden_size: int = switch(768, "width of a token's state", effect="math", samples=[32, 64], ge=1, le=MAX_SIZE)
    num_heads: int = switch(12, "attention heads; each is hidden_size / num_heads wide", effect="math", samples=[2, 4])
    ffn_size: int = switch(
        3072, "width inside the FFN (of each half when gated)", effect="math", samples=[48, 96], le=MAX_SIZE
    )
    max_length: int = setting(512, "the longest input in tokens, <s> and </s> included", ge=1, le=MAX_SIZE)
    position_offset: int = setting(
        2, "unused rows at the start of the position table: 2 in RoBERTa's layout, 0 in BERT's", ge=0, le=MAX_SIZE
    )
    num_segments: int = switch(
        1,
        "rows of the segment table; below 2 segment ids are not read, as in RoBERTa",
        effect="math",
        samples=[0, 1, 2],
        le=MAX_SIZE,
    )

    # ALBERT (arXiv 1909.11942, section 3.1)
    embedding_size: int | None = switch(
        None,
        "width of the embeddings, projected up to hidden_size; None: hidden_size",
        effect="math",
        samples=[16],
        le=MAX_SIZE,
    )
    sharing: Literal["none", "attention", "ffn", "all"] = switch(
        "none", "which sub-layers the layers of a group share", effect="math"
    )
    num_groups: int = switch(1, "groups of consecutive layers that share", effect="math", samples=[1, 2], ge=1)

    positions: Literal["learned", "rotary"] = switch("learned", "how a token knows where it stands", effect="math")
    rotary_base: float = switch(
        160_000.0, "wavelength base of rotary positions in layers that see everything", effect="math", samples=[1e4]
    )
    rotary_base_local: float = switch(
        10_000.0, "wavelength base of rotary positions in layers with a window", effect="math", samples=[1e3]
    )
    norm: Literal["post", "pre"] = switch("post", "LayerNorm after or before a sub-layer", effect="math")
    first_norm: bool = switch(
        True, "pre-norm: whether the first attention has its own norm after that of the embeddings", effect="math"
    )
    norm_eps: float = switch(1e-5, "added to the variance: 1e-5 RoBERTa, 1e-12 BERT", effect="math", samples=[1e-2])
    norm_bias: bool = switch(True, "LayerNorms have a bias", effect="math")
    bias: bool = switch(True, "linear layers of encoder and heads have a bias (label outputs always do)", effect="math")
    activation: Literal["gelu", "gelu_tanh"] = switch(
        "gelu", "exact GELU, or the tanh form that ALBERT was trained with", effect="math"
    )
    ffn: Literal["plain", "gated"] = switch("plain", "down(act(up x)), or down(act(up x) * gate x)", effect="math")
    tied_embeddings: bool = switch(True, "the masked-LM output uses the input embeddings", effect="math")

    dropout: float = switch(
        0.1, "chance to drop a value of the embeddings or of a sub-layer's output", effect="math", samples=[0.0, 0.3]
    )
    attention_dropout: float = switch(0.1, "chance to drop an attention probability", effect="math", samples=[0.0, 0.3])
    head_dropout: float = switch(0.1, "dropout inside the task heads", effect="math", samples=[0.0, 0.3])

    # Claims that circulate about RoBERTa, as switches (the window is also half of the modern form's attention)
    attention_kind: Literal["full", "window", "hashed"] = switch(
        "full",
        "whom a token sees: all, its neighbours (attention_window, which says so by itself), or those of its bucket",
        effect="math",
    )
    attention_window: int | None = switch(
        None, "tokens to the left and right that a token sees; None: all", effect="math", samples=[1, 12], le=MAX_SIZE
    )
    global_every: int = switch(
        0, "with a window or buckets: layers 0, n, 2n, ... see everything; 0: none does", effect="math",
        samples=[0, 2], ge=0,
    )  # fmt: skip
    bucket_size: int = switch(
        64, "hashed: tokens of a bucket, on average; shorter rows are seen whole", effect="math", samples=[4], ge=1,
        le=MAX_SIZE,
    )  # fmt: skip
    hash_rounds: int = switch(
        2, "hashed: how often tokens are dealt to buckets", effect="math", samples=[1], ge=1, le=64
    )
    hash_seed: int = switch(0, "hashed: the rotations follow from it", effect="math", samples=[1], ge=0)
    attention_mask_prob: float = switch(
        0.0, "chance in training that a token (never the first) is hidden from all others", effect="math", samples=[0.3]
    )
    # Trained beside a model that rests (`learn` in fine-tuning); they stay beside it, since nothing can absorb them
    bottleneck_size: int = switch(
        0, "width of the adapters behind attention and FFN (arXiv 1902.00751); 0: none", effect="math", samples=[4],
        ge=0, le=MAX_SIZE,
    )  # fmt: skip
    prefix_length: int = switch(
        0, "learned keys and values before those of the tokens, in every layer (arXiv 2101.00190)", effect="math",
        samples=[3], ge=0, le=MAX_SIZE,
    )  # fmt: skip
    pooler_tied: bool = switch(False, "the pooler is the last layer's attention output projection", effect="math")

    head_form: Literal["roberta", "bert", "modern"] = switch(
        "roberta",
        "heads: dropout-dense-tanh-dropout-linear, dense-tanh-dropout-linear, or dense-GELU-norm-dropout-linear",
        effect="math",
    )
    attention_kernel: Literal["auto", "products", "sdpa", "varlen"] = switch(
        "auto",
        "Explicit products, torch's fused kernel, or one for rows laid end to end (flash); auto: the faster one here.",
        effect="speed",
    )
    unpad: bool = switch(True, "linear layers run on real tokens only, where a batch has much padding", effect="speed")
    init: Literal["normal", "scaled"] = switch(
        "normal",
        "normal(0, init_std); or cut at 2 deviations, with output projections divided by sqrt(2 x layers)",
        effect="math",
    )
    init_std: float = switch(0.02, "standard deviation of the initial weights", effect="math", samples=[0.1], gt=0)

    @model_validator(mode="before")
    @classmethod
    def _window_says_so(cls, values: object) -> object:
        """A window alone means attention by windows, as it did before there were other kinds."""
        if isinstance(values, dict) and values.get("attention_window") is not None:
            return {"attention_kind": "window"} | values
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.attention_kind == "window" and self.attention_window is None:
            raise ValueError("attention_kind window needs attention_window: how many tokens to either side?")
        if self.num_heads < 1 or self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} must be a multiple of num_heads {self.num_heads}")
        if self.positions == "rotary" and self.head_size % 2:
            raise ValueError(f"rotary positions need an even width per head, not {self.head_size}")
        if self.num_groups > self.num_layers:
            raise ValueError(f"num_groups {self.num_groups} is more than num_layers {self.num_layers}")
        for name in ("dropout", "attention_dropout", "head_dropout", "attention_mask_prob"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be at least 0 and below 1")
        for name in ("ffn_size", "embedding_size", "attention_window"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.num_segments < 0:
            raise ValueError("num_segments must be at least 0")
        if self.prefix_length and self.attention_kind != "full":
            raise ValueError(
                f"prefix_length needs attention_kind full: tokens with {self.attention_kind} miss a prefix"
            )
        return self

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def embedding_width(self) -> int:
        return self.embedding_size or self.hidden_size

    @property
    def num_positions(self) -> int:
        """Rows of the position table: the one place that knows RoBERTa's offset."""
        return self.max_length + self.position_offset

    def attention_index(self, layer: int) -> int:
        """Which attention module a layer uses."""
        return self._group(layer) if self.sharing in ("attention", "all") else layer

    def ffn_index(self, layer: int) -> int:
        """Which FFN module a layer uses."""
        return self._group(layer) if self.sharing in ("ffn", "all") else layer

    def _group(self, layer: int) -> int:
        # In floating point as ALBERT's code has it: 18 layers in 14 groups fall otherwise in exact numbers.
        return int(layer / (self.num_layers / self.num_groups))

    def window(self, layer: int) -> int | None:
        """How far a layer sees to either side; None: everything."""
        return self.attention_window if self.attention_kind == "window" and not self._sees_all(layer) else None

    def is_hashed(self, layer: int) -> bool:
        """Whether its tokens see those of their bucket."""
        return self.attention_kind == "hashed" and not self._sees_all(layer)

    def _sees_all(self, layer: int) -> bool:
        return self.global_every > 0 and layer % self.global_every == 0

    def has_attention_norm(self, layer: int) -> bool:
        return self.first_norm or self.norm == "post" or layer > 0


Pooling = Literal["first", "mean"]


class DecoderSettings(Config):
    """The decoder of a network that writes, started from its encoder (arXiv 1907.12461)."""

    weights: Literal["shared", "copied"] = switch(
        "shared", "the decoder's layers are the encoder's own, or begin as copies of them", effect="math"
    )
    num_layers: int | None = switch(
        None, "layers of the decoder: so many of the encoder's top ones; null: all", effect="math", samples=[1], ge=1,
        le=MAX_LAYERS,
    )  # fmt: skip


class WriterSettings(DecoderSettings):
    """A decoder with what it must know of its vocabulary."""

    vocab_size: int | None = setting(None, "entries of its own vocabulary; null: the encoder's", ge=1, le=MAX_SIZE)
    start_id: int = setting(0, "the token that every text begins with, never written", ge=0, le=MAX_SIZE)
    end_id: int = setting(2, "the token that ends a text", ge=0, le=MAX_SIZE)


class HeadSettings(Config):
    """Which heads sit on the encoder. The embedding of a text needs no weights: every network has it."""

    masked_lm: bool = setting(False, "predict masked tokens")
    sentence: bool = setting(False, "NSP or SOP: does the second part follow?")
    num_classes: int | None = setting(None, "classification (1: regression)", ge=1, le=MAX_SIZE)
    multilabel: bool = setting(False, "the classes do not exclude each other")
    num_tags: int | None = setting(None, "token classification", ge=1, le=MAX_SIZE)
    span: bool = setting(False, "start and end of an answer")
    answerable: bool = setting(False, "SQuAD 2.0: is there an answer?")
    choice: bool = setting(False, "multiple choice: one score a row")
    writer: WriterSettings | None = setting(None, "a decoder that writes about what the encoder reads")
    temperature: bool = setting(False, "while an embedding learns: a learned temperature of its similarities")
    pooling: Pooling = switch("first", "what stands for a text: its first token's state, or the mean", effect="math")


LoraModule = Literal["query", "key", "value", "output", "up", "down"]


class LoraSettings(Config):
    """Low-rank updates of chosen matrices (arXiv 2106.09685); the rest of the encoder stays frozen."""

    rank: int = switch(8, "width of an update", effect="math", samples=[2], ge=1, le=MAX_SIZE)
    alpha: float = switch(16.0, "an update is scaled by alpha / rank", effect="math", samples=[4.0], gt=0)
    dropout: float = switch(
        0.0, "chance to drop a value on its way into an update", effect="math", samples=[0.3], ge=0, lt=1
    )
    modules: tuple[LoraModule, ...] | None = switch(
        None,
        "matrices that get an update; null: query and value as in the paper, in the modern form query, key and value",
        effect="math",
        samples=[["query", "key", "value", "output", "up", "down"], ["down"]],
        min_length=1,
    )


class AdaLoraSettings(Config):
    """Low-rank updates whose ranks are rationed while they learn (arXiv 2303.10512)."""

    start_rank: int = switch(12, "width of every update at first", effect="math", samples=[4], ge=1, le=MAX_SIZE)
    rank: int = switch(8, "width at the end, on average over the updates", effect="math", samples=[2], ge=1)
    alpha: float = switch(16.0, "an update is scaled by alpha / start_rank", effect="math", samples=[4.0], gt=0)
    dropout: float = switch(
        0.0, "chance to drop a value on its way into an update", effect="math", samples=[0.3], ge=0, lt=1
    )
    modules: tuple[LoraModule, ...] | None = switch(
        None,
        "matrices that get an update; null: all of them, so that there is something to choose from",
        effect="math",
        samples=[["query", "value"]],
        min_length=1,
    )
    begin: float = switch(0.1, "share of the steps before ranks fall", effect="math", samples=[0.4], ge=0, lt=1)
    settle: float = switch(0.4, "share of the steps after the last choice", effect="math", samples=[0.0], ge=0, lt=1)
    every: int = switch(10, "steps between two choices", effect="math", samples=[1], ge=1)
    smoothing: float = switch(
        0.85, "how much of the importance so far each step keeps", effect="math", samples=[0.5], ge=0, lt=1
    )
    orthogonality: float = switch(
        0.5, "weight of the loss that keeps an update's directions apart", effect="math", samples=[0.0], ge=0
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rank > self.start_rank:
            raise ValueError(f"rank {self.rank} is more than start_rank {self.start_rank}: ranks only fall")
        if self.begin + self.settle >= 1:
            raise ValueError(f"begin {self.begin} and settle {self.settle} leave no steps in which ranks fall")
        return self


class Ia3Settings(Config):
    """One factor per value of keys, values and the FFN's inside (arXiv 2205.05638)."""

    modules: tuple[LoraModule, ...] | None = switch(
        None,
        "what is scaled: outputs of query, key, value, output, up; the input of down; null: key, value and down, in "
        "the modern form the one matrix of query, key and value, and down",
        effect="math",
        samples=[["query", "key", "value", "output", "up", "down"], ["down"]],
        min_length=1,
    )


# What `learn` calls them -> settings of changes that can be merged into the matrices they act on.
Updates = LoraSettings | AdaLoraSettings | Ia3Settings
UPDATES: dict[str, type[LoraSettings] | type[AdaLoraSettings] | type[Ia3Settings]] = {
    "lora": LoraSettings,
    "adalora": AdaLoraSettings,
    "ia3": Ia3Settings,
}
