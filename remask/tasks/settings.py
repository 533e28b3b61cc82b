"""What the user says about a task's data. No torch at import.

In: the `task` and `batch` parts of a fine-tuning run. Out: frozen settings that tables, rows and batches read.
Not here: the recipe (train/settings) and what each named task is (specs).
"""

from __future__ import annotations

from typing import Literal

from remask.config import Config, setting, switch
from remask.tables.form import ColumnName, TableForm


class TableSettings(TableForm):
    """Which columns of the user's own table hold what, and how the file is written."""

    text: ColumnName = setting("text", "the column with the text")
    text2: ColumnName | None = setting(None, "the column with the second text of a pair")
    label: ColumnName = setting("label", "the column with the class, number or list of labels")
    id: ColumnName | None = setting(None, "a column whose values must all differ; null: none is looked at")
    separator: str = setting("|", "between the labels of a multi-label cell, where the file has no lists", min_length=1)
    bad_rows: Literal["error", "drop"] = switch(
        "error", "a row with an empty text or without a label: stop there, or leave it out and count it", effect="data"
    )
    skip_articles: tuple[str, ...] = setting(
        ("Chloroplast", "Imperialism", "Oxygen"),
        "SQuAD: articles that are not scored, because Wikipedia corpora for pretraining hold them; []: all are",
    )


class RowSettings(Config):
    """How texts become rows of ids."""

    max_length: int = setting(
        512, "most tokens in a row, special ones included; the model's own limit also holds", ge=8
    )
    long_texts: Literal["cut", "windows"] = switch(
        "cut", "texts beyond max_length: cut (counted), or in windows whose answers are averaged", effect="data"
    )
    overlap: int = switch(
        0, "windows of a long text: tokens that a window shares with the next; at most half of them", effect="data",
        samples=[16], ge=0,
    )  # fmt: skip
    max_windows: int = switch(
        16, "windows of a long text at most; a longer one is looked at in so many places, spread evenly", effect="data",
        samples=[2], ge=1,
    )  # fmt: skip
    stride: int = switch(
        128, "passages with questions: tokens from the start of a window to that of the next; less where windows are "
        "narrow, so that they overlap by an answer", effect="data",
        samples=[16, 64], ge=1,
    )  # fmt: skip


class LossSettings(Config):
    """What fine-tuning minimises, where there is a choice."""

    class_weights: Literal["none", "balanced"] = switch(
        "none", "balanced: rare classes count more, by one over their share of the training data", effect="math"
    )
    choice: Literal["softmax", "margin"] = switch(
        "softmax", "several choices: cross entropy over them, or a margin between the right one and each other",
        effect="math",
    )  # fmt: skip
    consistency: float = switch(
        0.0, "weight of the difference between two passes with other dropout (R-Drop, arXiv 2106.14448); 0: one pass",
        effect="math", samples=[1.0], ge=0,
    )  # fmt: skip
    adversarial: int = switch(
        0, "further passes over embeddings that were moved to raise the loss (as in FreeLB, arXiv 1909.11764); 0: none",
        effect="math", samples=[1, 2], ge=0,
    )  # fmt: skip
    adversarial_step: float = switch(
        0.05, "how far each such pass moves a text's embeddings further, as a share of their norm", effect="math",
        samples=[0.2], gt=0,
    )  # fmt: skip

    @property
    def num_passes(self) -> int:
        """Forward and backward passes over every batch."""
        return 1 + self.adversarial + bool(self.consistency)


class TaskBatchSettings(Config):
    """How rows become batches."""

    num_rows: int = switch(32, "examples in an optimizer step, over all ranks", effect="math", samples=[16, 32], ge=1)
    bucket_batches: int = switch(
        32, "this many batches are sorted by length together, so that rows of a batch are alike", effect="data",
        samples=[1, 32], ge=1,
    )  # fmt: skip
    micro_tokens: int = switch(
        8192, "most padded tokens in one forward pass; larger batches run in pieces", effect="speed",
        samples=[64, 8192], ge=16,
    )  # fmt: skip
