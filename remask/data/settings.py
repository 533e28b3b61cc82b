"""How token shards become batches: input format, masking and batches. No torch, no numpy.

Definitions: RoBERTa (arXiv 1907.11692) sections 3 and 4, BERT's data recipe for the baseline, ALBERT (arXiv
1909.11942) for n-grams and sentence order. `evaluation` fixes the rows and masks that models are compared on.
"""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from remask.config import Config, setting, switch

Format = Literal["full-sentences", "doc-sentences", "segment-pair", "sentence-pair", "fixed-blocks"]
PAIRS = ("segment-pair", "sentence-pair")
MIN_LENGTH = 8


class MaskingSettings(Config):
    """Which positions are predicted, and what the model sees there."""

    unit: Literal["token", "word", "ngram", "span"] = switch(
        "token",
        "What is masked as a whole: tokens, words, 1 to max_ngram words, or spans of words; longer words less often",
        effect="data",
    )
    repeat: Literal["dynamic", "copies", "static"] = switch(
        "dynamic", "A new mask every pass, num_copies masks in turn, or one mask for ever", effect="data"
    )
    num_copies: int = switch(
        10, "How many masks an example has where repeat is copies", effect="data", samples=[2], ge=1
    )
    rate: float = switch(0.15, "Share of the text tokens that is predicted", effect="data", samples=[0.3], gt=0, lt=1)
    schedule: Literal["constant", "linear", "cosine"] = switch(
        "constant", "How the rate moves over training, from rate to final_rate", effect="data"
    )
    final_rate: float = switch(
        0.15, "The rate at the end, where schedule is not constant", effect="data", samples=[0.05], gt=0, lt=1
    )
    mask_share: float = switch(
        0.8, "Share of the predicted positions that show the mask token", effect="data", samples=[1.0], ge=0, le=1
    )
    random_share: float = switch(
        0.1, "Share that shows a random token; the rest shows the true one", effect="data", samples=[0.0], ge=0, le=1
    )
    count: Literal["exact", "independent"] = switch(
        "exact", "As many as the rate says in every row, or each unit by its own draw", effect="data"
    )
    max_ngram: int = switch(3, "Longest n-gram in words, length n with weight 1/n", effect="data", samples=[2], ge=1)
    span_stop_prob: float = switch(
        0.2, "A span ends after each word with this probability", effect="data", samples=[0.5], gt=0, le=1
    )
    max_span: int = switch(10, "Longest span in words", effect="data", samples=[4], ge=1)

    @model_validator(mode="after")
    def _shares(self) -> MaskingSettings:
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ValueError(f"mask_share {self.mask_share} and random_share {self.random_share} add up to more than 1")
        return self


class BatchSettings(Config):
    """How many rows or tokens an optimizer step sees, over all ranks, and how they are laid out."""

    num_rows: int = switch(256, "Rows per optimizer step, over all ranks", effect="data", samples=[8], ge=1)
    num_tokens: int | None = switch(
        None,
        "Tokens per optimizer step instead of rows: the number of rows follows",
        effect="data",
        samples=[4096],
        ge=1,
    )
    ramp_from: int | None = switch(
        None,
        "Rows of the first steps; the batch grows by as many at a time up to num_rows; null: it does not grow",
        effect="data",
        samples=[2],
        ge=1,
    )
    ramp_steps: float = switch(
        0.1, "Share of the steps, from the first, in which it grows", effect="data", samples=[0.5], gt=0, le=1
    )
    micro_rows: int = switch(
        32, "Rows of full length per forward pass; the step's gradient is the same", effect="speed", samples=[4], ge=1
    )
    bucket_steps: int = switch(
        1, "Rows of this many steps are sorted by length, so that a batch pads little", effect="data", samples=[8], ge=1
    )
    pad_multiple: int = switch(8, "Rows are padded to a multiple of this", effect="speed", samples=[1, 64], ge=1)
    pad: Literal["longest", "length"] = switch(
        "longest", "Pad to the longest row of the micro-batch, or always to the full length", effect="speed"
    )

    @model_validator(mode="after")
    def _growing(self) -> BatchSettings:
        if self.ramp_from is not None and self.num_tokens is not None:
            raise ValueError("ramp_from goes with a number of rows a step, not with num_tokens")
        if self.ramp_from is not None and self.num_rows % self.ramp_from:
            raise ValueError(
                f"ramp_from {self.ramp_from} must divide num_rows {self.num_rows}: every stair adds as many"
            )
        return self


class EvaluationSettings(Config):
    """The fixed rows and masks of the held-out split. They do not depend on the run's seed, format, masking or, from
    `length` on, row length. A run of shorter rows than `length` is evaluated on its own, which only compares with runs
    of that row length; `Batches.describe` says where that is so."""

    length: int | None = setting(
        128, "Row length, but never above the length of the data; none: the length of the data", ge=MIN_LENGTH
    )
    num_rows: int = setting(256, "How many rows, drawn evenly over the held-out text", ge=1)
    batch_rows: int = setting(32, "Rows per forward pass", ge=1)
    rate: float = setting(0.15, "Share of the text tokens that is predicted", gt=0, lt=1)
    sources: tuple[str, ...] = setting((), "Only the held-out text of these sources; none given: of all")


class DataSettings(Config):
    """From token shards to batches. `fixed-blocks` drops the remainder of its line of documents once a source, where
    run_mlm.py does it for every 1,000 documents."""

    format: Format = switch("full-sentences", "What a row is made of (RoBERTa, Table 2)", effect="data")
    sentence_loss: Literal["none", "nsp", "sop"] = switch(
        "none", "Pairs: next sentence (half from another document) or sentence order (half swapped)", effect="data"
    )
    length: int = switch(
        512, "Longest row in tokens, specials included", effect="data", samples=[64, 128], ge=MIN_LENGTH, le=1 << 20
    )
    layout: Literal["auto", "roberta", "bert"] = switch(
        "auto", "<s> A </s></s> B </s>, or [CLS] A [SEP] B [SEP] with segment ids; auto: the tokenizer's", effect="data"
    )
    pack_documents: bool = switch(
        False, "doc-sentences: fill a row with several documents that do not see each other", effect="data"
    )
    short_steps: float = switch(
        0.0,
        "Share of the steps, from the first, with rows of short_length (BERT: 0.9)",
        effect="data",
        samples=[0.5],
        ge=0,
        le=1,
    )
    short_length: int = switch(128, "Row length during those steps", effect="data", samples=[32], ge=MIN_LENGTH)
    shorten_prob: float = switch(
        0.0,
        "Probability that a row aims at a random shorter length (BERT: 0.1)",
        effect="data",
        samples=[0.5],
        ge=0,
        le=1,
    )
    shorten_to: int = switch(
        MIN_LENGTH, "The shortest length such a row aims at", effect="data", samples=[16], ge=MIN_LENGTH
    )
    source_weights: dict[str, float] = setting(
        {}, "Share of the rows by source; none given: every source passes equally often"
    )
    max_tokens: int | None = switch(
        None,
        "Training text that is read at most, in tokens: the first documents of every source; null: all of it",
        effect="data",
        samples=[1500],
        ge=1,
    )
    masking: MaskingSettings = MaskingSettings()
    batch: BatchSettings = BatchSettings()
    evaluation: EvaluationSettings = EvaluationSettings()

    @model_validator(mode="after")
    def _fitting(self) -> DataSettings:
        if self.sentence_loss != "none" and self.format not in PAIRS:
            raise ValueError(f"sentence_loss {self.sentence_loss} needs a pair format ({', '.join(PAIRS)})")
        if self.pack_documents and self.format != "doc-sentences":
            raise ValueError(f"pack_documents goes with format doc-sentences, not {self.format}")
        if self.shorten_prob and self.format == "fixed-blocks":
            raise ValueError("shorten_prob: blocks of format fixed-blocks have one length")
        if self.shorten_to > self.length:
            raise ValueError(f"shorten_to {self.shorten_to} is above length {self.length}")
        if self.short_steps and self.short_length > self.length:
            raise ValueError(f"short_length {self.short_length} is above length {self.length}")
        if any(weight < 0 for weight in self.source_weights.values()):
            raise ValueError("source_weights must not be negative")
        if self.source_weights and not any(self.source_weights.values()):
            raise ValueError("source_weights: at least one must be above 0")
        return self
