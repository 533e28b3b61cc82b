"""What the user says about a task's data. No torch at import.

In: the `task` and `batch` parts of a fine-tuning run. Out: frozen settings that tables, rows and batches read.
Not here: the recipe (train/settings) and what each named task is (specs).
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from remask.config import Config, setting, switch
from remask.errors import ConfigError
from remask.tables.form import ColumnName, TableForm
from remask.tasks.patterns import TEXT2, check_pattern


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
    query: ColumnName = setting("query", "retrieve: the column with the query")
    positive: ColumnName = setting("positive", "retrieve: the column with the text that answers it, or a list of them")
    negative: ColumnName | None = setting(
        None, "retrieve: the column with a text that looks like an answer and is none, or a list of them"
    )
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


DecodeBy = Literal["beams", "sampling", "sentences"]


class DecodeSettings(Config):
    """How a text is written, token by token."""

    by: DecodeBy = switch(
        "beams", "keep the likeliest beginnings, draw every token by chance, or take the likeliest of the source's own "
        "sentences, word for word", effect="math",
    )  # fmt: skip
    beams: int = switch(
        1,
        "by beams: beginnings that are kept; 1: the likeliest token each time",
        effect="math",
        samples=[3],
        ge=1,
        le=64,
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

    @property
    def num_beams(self) -> int:
        """Texts about a source that are written side by side."""
        return self.beams if self.by == "beams" else 1


MaskOrder = Literal["left", "certainty"]  # in which an encoder alone fills the masks of a text that it continues


class DecodeChanges(Config):
    """How to write otherwise than a model was scored; null: as it was."""

    by: DecodeBy | None = setting(None, "keep the likeliest beginnings, draw by chance, or take a sentence")
    beams: int | None = setting(None, "beginnings that are kept; 1: the likeliest token each time", ge=1, le=64)
    length_penalty: float | None = setting(None, "above 1: longer texts", ge=-100, le=100)
    no_repeat: int | None = setting(None, "no sequence of so many tokens comes twice", ge=0)
    temperature: float | None = setting(None, "sampling: below 1: likely tokens more often", gt=0)
    top_k: int | None = setting(None, "sampling: only the so many likeliest tokens; 0: all", ge=0)
    top_p: float | None = setting(None, "sampling: only tokens that together have this probability", gt=0, le=1)
    seed: int | None = setting(None, "sampling: what is drawn follows from it and the source", ge=0)
    max_length: int | None = setting(None, "most tokens of a text", ge=1)

    def over(self, decode: DecodeSettings) -> DecodeSettings:
        """The settings with what is said here."""
        by = self.by or decode.by
        if by != "beams" and (self.beams or 1) > 1:
            raise ConfigError(f"decode: beams = {self.beams} goes with by = beams: there are none with {by}")
        return DecodeSettings.model_validate(decode.model_dump() | self.model_dump(exclude_none=True))


class PromptSettings(Config):
    """A text in a sentence with a mask, and the words that mean each label (tasks.prompts)."""

    patterns: tuple[str, ...] = setting(
        (), "sentences with {text}, for pairs also {text2}, and one <mask>; several are averaged"
    )
    words: dict[str, tuple[str, ...]] = setting({}, "for each label the words that mean it in the place of the mask")
    calibrate: bool = switch(
        True, "scores of words are taken against those around an empty text, so that frequent words do not win by that",
        effect="math",
    )  # fmt: skip
    search_words: int = setting(
        0, "words for each label that are looked for in the training data, beside `words`", ge=0
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for pattern in self.patterns:
            check_pattern(pattern)
        if self.words and len(self.words) < 2:
            raise ValueError(f"words: only one label, {next(iter(self.words))!r}; give words for at least two")
        owner: dict[str, str] = {}
        for label, words in self.words.items():
            if not words or not all(word.strip() for word in words):
                raise ValueError(f"words: the label {label!r} has an empty word or none")
            for word in words:
                if owner.setdefault(word, label) != label:
                    raise ValueError(f"words: {word!r} is given for {owner[word]!r} and for {label!r}")
        return self

    @property
    def takes_pairs(self) -> bool:
        return any(TEXT2 in pattern for pattern in self.patterns)

    def check_pair(self, text2: str | None) -> None:
        """Columns and patterns must speak of the same texts."""
        if self.takes_pairs and text2 is None:
            raise ConfigError("pattern: has {text2}, but no column is named for it: --text2 COL")
        if text2 is not None and not all(TEXT2 in pattern for pattern in self.patterns):
            raise ConfigError(f"--text2 {text2}: a pattern has no {{text2}} where this text would go")


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


class RetrieveSettings(Config):
    """Task retrieve: where pairs come from and how they are learned."""

    query_prompt: str = switch(
        "", "stands before every query, and is stored with the model", effect="data", samples=["query: "]
    )
    document_prompt: str = switch(
        "", "stands before every document, and is stored with the model", effect="data", samples=["text: "]
    )
    temperature: float = switch(
        0.05, "cosines are divided by this; the smaller, the more the nearest negatives count", effect="math",
        samples=[0.02], gt=0,
    )  # fmt: skip
    learned_temperature: bool = switch(False, "the temperature learns, starting from the given one", effect="math")
    symmetric: bool = switch(False, "documents also choose among the queries of a step", effect="math")
    widths: tuple[int, ...] = switch(
        (), "Matryoshka: the first so many numbers of a vector are taught to stand for it, too", effect="math",
        samples=[[4, 8]],
    )  # fmt: skip
    negatives: Literal["given", "words", "model"] = switch(
        "given", "hard negatives: the file's own, or other documents of the file that are near by words (BM25) or by "
        "the vectors of a model", effect="data",
    )  # fmt: skip
    num_negatives: int = switch(
        1, "hard negatives that a pair brings into a step, drawn anew each epoch", effect="data", samples=[0, 2], ge=0
    )
    pool: int = switch(20, "mined negatives that a pair has to draw from", effect="data", samples=[2], ge=1)
    below: float = switch(
        0.95, "mined by a model: only documents whose cosine is below this share of the positive's; those above are "
        "often answers that nobody marked", effect="data", samples=[0.5], gt=0,
    )  # fmt: skip
    miner: str | None = setting(None, "the model that mines; null: the one to start from. The last run's model: fresh")
    distil: str | None = setting(
        None, "a cross-encoder (task pair or regress): the margin between positive and negative follows its own"
    )
    distil_weight: float = setting(0.05, "how much the margins count beside the choice among documents", ge=0)
    unsupervised: str | None = setting(None, "text to make pairs from, in place of train_file")
    pairs: Literal["context", "neighbours", "title", "dropout"] = switch(
        "context", "unsupervised: a sentence and what stands around it, neighbouring paragraphs, title and paragraph, "
        "or the same text under two dropouts", effect="data",
    )  # fmt: skip

    @property
    def prompts(self) -> dict[str, str]:
        """By name, as stored with the model; none where both are empty."""
        both = {"query": self.query_prompt, "document": self.document_prompt}
        return both if any(both.values()) else {}


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
