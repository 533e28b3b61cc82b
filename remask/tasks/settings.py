"""What the user says about a task's data. No torch at import.

In: the `task` and `batch` parts of a fine-tuning run. Out: frozen settings that tables, rows and batches read.
Not here: the recipe (train/settings) and what each named task is (specs).
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import ValidationError, model_validator

from remask.config import Config, setting, switch
from remask.errors import ConfigError
from remask.tables.form import ColumnName, TableForm


class TableSettings(TableForm):
    """Which columns of the user's own table hold what, and how the file is written."""

    text: ColumnName = setting("text", "the column with the text")
    text2: ColumnName | None = setting(None, "the column with the second text of a pair")
    label: ColumnName = setting("label", "the column with the class, number or list of labels")
    source: ColumnName = setting("source", "writing: the column with what is read, a text or a list of texts")
    target: ColumnName = setting("target", "writing: the column with what is written, a text or a list of references")
    turns: int = switch(
        4, "replies: a source that is a list of turns is read from this many turns before its end", effect="data",
        samples=[1], ge=1,
    )  # fmt: skip
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
    target_length: int = setting(128, "writing: most tokens of a target, its end included; longer ones are cut", ge=2)


class DecodeSettings(Config):
    """How a text is written, token by token."""

    by: Literal["beams", "sampling"] = switch(
        "beams", "keep the likeliest beginnings, or draw every token by chance", effect="math"
    )
    beams: int = switch(
        1, "beginnings that are kept; 1: the likeliest token each time", effect="math", samples=[3], ge=1, le=64
    )
    length_penalty: float = switch(
        1.0, "a text's log probability is divided by its length to this power; above 1: longer texts", effect="math",
        samples=[0.0],
    )  # fmt: skip
    no_repeat: int = switch(
        0, "no sequence of so many tokens comes twice in a text; 0: anything may", effect="math", samples=[1], ge=0
    )
    temperature: float = switch(
        1.0, "sampling: logits are divided by it; below 1: likely tokens more often", effect="math", samples=[0.1], gt=0
    )
    top_k: int = switch(0, "sampling: only the so many likeliest tokens; 0: all", effect="math", samples=[1], ge=0)
    top_p: float = switch(
        1.0, "sampling: only the likeliest tokens that together have this probability", effect="math", samples=[0.1],
        gt=0, le=1,
    )  # fmt: skip
    seed: int = switch(0, "sampling: what is drawn follows from it and the source", effect="math", samples=[1], ge=0)
    max_length: int | None = setting(
        None, "most tokens of a text, its end included; null: as in training (rows.target_length)", ge=1
    )
    cached: bool = switch(
        True, "keep keys and values of what is written; false: compute all anew for every token", effect="speed"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.by == "sampling" and self.beams > 1:
            raise ValueError(f"beams = {self.beams} goes with by = beams: sampling draws one text")
        return self


MaskOrder = Literal["left", "certainty"]  # in which an encoder alone fills the masks of a text that it continues


class DecodeChanges(Config):
    """How to write otherwise than a model was scored; null: as it was."""

    by: Literal["beams", "sampling"] | None = setting(None, "keep the likeliest beginnings, or draw by chance")
    beams: int | None = setting(None, "beginnings that are kept; 1: the likeliest token each time", ge=1, le=64)
    length_penalty: float | None = setting(None, "above 1: longer texts", ge=-100, le=100)
    no_repeat: int | None = setting(None, "no sequence of so many tokens comes twice", ge=0)
    temperature: float | None = setting(None, "sampling: below 1: likely tokens more often", gt=0)
    top_k: int | None = setting(None, "sampling: only the so many likeliest tokens; 0: all", ge=0)
    top_p: float | None = setting(None, "sampling: only tokens that together have this probability", gt=0, le=1)
    seed: int | None = setting(None, "sampling: what is drawn follows from it and the source", ge=0)
    max_length: int | None = setting(None, "most tokens of a text", ge=1)

    def over(self, decode: DecodeSettings) -> DecodeSettings:
        """The settings with what is said here. Asked to sample and nothing else, it draws one text."""
        given = self.model_dump(exclude_none=True)
        if given.get("by") == "sampling":
            given.setdefault("beams", 1)
        try:
            return DecodeSettings.model_validate(decode.model_dump() | given)
        except ValidationError as error:
            raise ConfigError(f"decode: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error


class LossSettings(Config):
    """What fine-tuning minimises, where there is a choice."""

    class_weights: Literal["none", "balanced"] = switch(
        "none", "balanced: rare classes count more, by one over their share of the training data", effect="math"
    )
    label_smoothing: float = switch(
        0.1, "writing: the share of every target token that is spread over the vocabulary", effect="math",
        samples=[0.0, 0.3], ge=0, lt=1,
    )  # fmt: skip
    choice: Literal["softmax", "margin"] = switch(
        "softmax", "several choices: cross entropy over them, or a margin between the right one and each other",
        effect="math",
    )  # fmt: skip


class TaskBatchSettings(Config):
    """How rows become batches."""

    num_rows: int = switch(32, "examples in an optimizer step, over all ranks", effect="math", samples=[16, 32], ge=1)
    num_tokens: int | None = switch(
        None, "about so many tokens in an optimizer step, sources and targets, in place of num_rows", effect="math",
        samples=[256], ge=1,
    )  # fmt: skip
    bucket_batches: int = switch(
        32, "this many batches are sorted by length together, so that rows of a batch are alike", effect="data",
        samples=[1, 32], ge=1,
    )  # fmt: skip
    micro_tokens: int = switch(
        8192, "most padded tokens in one forward pass; larger batches run in pieces", effect="speed",
        samples=[64, 8192], ge=16,
    )  # fmt: skip
