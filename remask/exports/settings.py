"""What an export says: the model, the form, the bounds it must keep. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from remask.config import Config, setting
from remask.model.settings import Pooling


class ExportRun(Config):
    """What goes out, and as what."""

    model: Path = setting(..., "a run, checkpoint, model or Hugging Face folder")
    to: Literal["hf", "onnx", "int8"] = setting(
        "hf", "hf: for transformers; onnx: an fp32 graph; int8: 8-bit, for CPUs"
    )
    embedding: bool = setting(False, "only the encoder, as a sentence-transformers model")
    pooling: Pooling | None = setting(
        None, "of an embedding: the first token's state or the mean; None: as the model has"
    )
    eval_file: Path | None = setting(None, "int8: a set with labels on which both forms are scored")
    text: str | None = setting(None, "column with the text of eval_file; null: as in training")
    text2: str | None = setting(None, "column with its second text; null: as in training")
    label: str | None = setting(None, "column with its label; null: as in training")
    max_drop: float = setting(0.01, "int8: refused where the metric on eval_file falls by more", ge=0)
    min_agreement: float = setting(
        0.9, "int8 without eval_file: refused where fewer answers to real sentences stay the same", ge=0, le=1
    )
    keep: tuple[str, ...] = setting((), "int8: parts that stay fp32, such as down or qkv")
    title: str = setting("An encoder made with remask", "first line of the model card")
    description: str | None = setting(None, "what the card says about the model")
    language: str | None = setting(None, "for the card, such as en")
    license: str | None = setting(None, "for the card, such as apache-2.0")
    base_model: str | None = setting(None, "for the card: the model that this one started from, as the hub calls it")
    datasets: tuple[str, ...] = setting((), "for the card: the data that it learned from, as the hub calls them")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.pooling and not self.embedding:
            raise ValueError("pooling is for embedding: a model with a task pools as it was trained")
        if self.to != "int8" and (self.eval_file or self.keep):
            raise ValueError(f"eval_file and keep are for to: int8, not {self.to}")
        if self.eval_file and self.embedding:
            raise ValueError("eval_file needs a head to score, but embedding leaves only the encoder")
        return self

    def columns(self) -> dict[str, str]:
        """Columns of eval_file that are given."""
        names = ("text", "text2", "label")
        return {name: value for name in names if (value := getattr(self, name)) is not None}
