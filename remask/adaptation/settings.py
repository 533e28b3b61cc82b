"""What `remask adapt` may be told: the model, the text, how long, what learns, which vocabulary, what is measured.

In: a run file or options. Out: a frozen AdaptRun. Also here: the rate, row length and batch that it takes where none is
given. No torch at import. Not here: what is done with it (run).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from remask.config import Config, setting, switch
from remask.data.settings import BatchSettings, DataSettings
from remask.model.settings import LoraSettings, ModelSettings
from remask.start import StartSettings
from remask.text.settings import SourceSettings, TextSettings
from remask.train.settings import TrainSettings
from remask.tune.settings import FinetuneRun

DEFAULT_MINUTES = 20.0
BASE_WIDTH, BASE_RATE = 768, 1e-4  # arXiv 2004.10964: going on with RoBERTa base on a task's own text
HEAD_RATE = 1e-2  # a head that starts at word frequencies has far to go: at BASE_RATE it stayed there for 62 steps
LORA_FACTOR = 10.0  # low-rank updates start at zero and move little
SHORTEST_ROW, LONGEST_ROW = 128, 512
TOKENS_A_STEP = 4096


class PlaceSettings(SourceSettings):
    """Where a text is and how it is read; none: there is no such text."""

    paths: tuple[str, ...] = setting((), "files, folders, globs, hf:NAME")


class PairsSettings(Config):
    """A table of pairs of texts with a number each that says how alike they are."""

    file: Path | None = setting(None, "CSV, TSV, JSONL or Parquet; null: none")
    text: str = setting("text", "the column with the first text")
    text2: str = setting("text2", "the column with the second text")
    label: str = setting("label", "the column with the number")


class AdaptTextSettings(TextSettings):
    """How texts are read and cleaned."""

    heldout_fraction: float = switch(
        0.05, "share of the documents that is only measured on, by their hash", effect="data", samples=[0.2], gt=0, lt=1
    )


class AdaptBatchSettings(BatchSettings):
    """Batches that a small machine gets through often enough."""

    num_tokens: int | None = switch(TOKENS_A_STEP, "tokens per optimizer step", effect="data", samples=[8192], ge=1)
    micro_rows: int = switch(16, "rows of full length per forward pass", effect="speed", samples=[4], ge=1)


class AdaptDataSettings(DataSettings):
    """Rows, masks and batches."""

    batch: AdaptBatchSettings = AdaptBatchSettings()  # pyrefly: ignore


class AdaptTrainSettings(TrainSettings):
    """The loop's settings with defaults for going on with a trained model."""

    learning_rate: float | None = switch(  # pyrefly: ignore
        None, "peak learning rate; null: 1e-4 at width 768, more for narrow networks; ten times as much for LoRA",
        effect="math", samples=[5e-5, 3e-4], gt=0,
    )  # fmt: skip
    warmup: float = switch(0.06, "linear warmup: a share of all steps, or steps", effect="math", samples=[0.0], ge=0)


class AdaptRun(Config):
    """Somebody's model, and text of one's own."""

    seed: int = setting(0, "the one seed that everything random follows from", ge=0)
    model: str = setting("", "the model to go on with: a run, a checkpoint or a Hugging Face folder")
    corpus: PlaceSettings = setting(PlaceSettings(), "the text to adapt to")
    general: PlaceSettings = setting(PlaceSettings(), "general text that is mixed in against forgetting")
    general_share: float = switch(
        0.2, "share of the rows that come from the general text, where there is some", effect="data",
        samples=[0.5], gt=0, lt=1,
    )  # fmt: skip
    validation: str | None = setting(None, "a text that is measured on; null: a part of the corpus is held out for it")
    vocabulary: Literal["keep", "extend", "replace"] = switch(
        "keep", "the model's tokens; with more tokens learned on the text; or others learned on the text", effect="data"
    )
    tokens: int | None = setting(None, "extend: how many more; replace: entries of the new vocabulary", ge=1)
    learn: Literal["all", "lora"] = switch(
        "all", "what learns: all (or train.trainable_top_layers), or LoRA and the masked-LM head", effect="math"
    )
    lora: LoraSettings = setting(LoraSettings(), "learn: lora")
    head_share: float = switch(
        0.3, "share of the budget in which a masked-LM head that the model came without learns alone", effect="math",
        samples=[0.5], gt=0, lt=1,
    )  # fmt: skip
    task: FinetuneRun | None = setting(None, "a labelled file that the model is fine-tuned on before and after")
    pairs: PairsSettings = setting(PairsSettings(), "pairs of texts whose closeness is measured before and after")
    text: AdaptTextSettings = setting(AdaptTextSettings(), "how texts are read and cleaned")
    length: int | None = setting(None, "tokens in a row; null: by the length of the documents, 128 to 512", ge=8)
    data: AdaptDataSettings = setting(AdaptDataSettings(), "rows, masks and batches")
    start: StartSettings = setting(StartSettings(), "where new tokens start")
    train: AdaptTrainSettings = setting(AdaptTrainSettings(), f"the recipe; no budget: {DEFAULT_MINUTES:g} minutes")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.vocabulary == "keep") != (self.tokens is None):
            wanted = "takes no number" if self.vocabulary == "keep" else "needs a number of tokens"
            raise ValueError(f"vocabulary: {self.vocabulary} {wanted}")
        if self.vocabulary != "keep" and (self.learn == "lora" or self.train.trainable_top_layers is not None):
            raise ValueError(f"vocabulary: {self.vocabulary} needs learn: all, since new tokens' vectors must learn")
        if self.learn == "lora" and self.train.trainable_top_layers is not None:
            raise ValueError("learn: lora already says what learns, and so does train.trainable_top_layers")
        if self.text.sources:
            raise ValueError("text.sources: the texts are corpus and general")
        if "length" in self.data.model_fields_set:
            raise ValueError(f"data.length = {self.data.length}: say it as length")
        if self.data.source_weights:
            raise ValueError("data.source_weights: general_share says how much of the rows is general text")
        if self.task is not None and self.task.init:
            raise ValueError("task.init: the task is fine-tuned from the model before and after")
        return self


def rate_for(run: AdaptRun, model: ModelSettings) -> float:
    """The peak learning rate: narrow networks bear more."""
    if run.train.learning_rate is not None:
        return run.train.learning_rate
    rate = BASE_RATE * BASE_WIDTH / model.hidden_size
    return rate * LORA_FACTOR if run.learn == "lora" else rate


def length_for(run: AdaptRun, model: ModelSettings, tokens_a_document: float) -> int:
    """Tokens in a row: long enough for a usual document, as far as the model reads."""
    if run.length is not None:
        return run.length
    length = SHORTEST_ROW
    while length < min(tokens_a_document, LONGEST_ROW):
        length *= 2
    return min(length, model.max_length)
