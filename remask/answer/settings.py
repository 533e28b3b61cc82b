"""In which number format a model answers, and what int8 may cost. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from remask.config import Config, setting
from remask.schema import Values

AnswerPrecision = Literal["auto", "fp32", "bf16", "fp16", "int8"]
PRECISIONS = get_args(AnswerPrecision)
PRECISION_HELP = "number format; auto: bf16 where it is made for; int8: 8-bit products, checked before they answer"


class Int8Settings(Config):
    """When int8 answers are good enough; checked on the machine that answers, each time a model is opened."""

    eval_file: Path | None = setting(None, "a file with labels: scored in fp32 and in int8; ranges come from it, too")
    text: str | None = setting(None, "column with the text of eval_file; null: as in training")
    text2: str | None = setting(None, "column with its second text; null: as in training")
    label: str | None = setting(None, "column with its label; null: as in training")
    max_drop: float = setting(0.01, "refused where the metric on eval_file falls by more", ge=0)
    min_agreement: float = setting(
        0.9, "without eval_file: refused where fewer answers to real sentences stay the same", ge=0, le=1
    )
    keep: tuple[Literal["qkv", "output", "up", "down"], ...] = setting((), "products that stay as they are")

    def columns(self) -> dict[str, str]:
        """Columns of eval_file that are given."""
        names = ("text", "text2", "label")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def shown_int8(report: Values) -> str:
    """What int8 cost, for a person."""
    found = report["agreement"]
    text = f"int8: {found['what']} {found['value']:.4f} with fp32 on {found['sentences']} real sentences"
    if "scores" in report:
        scores = report["scores"]
        text += f"; {scores['metric']} on {scores['set']} {scores['before']:.4f} in fp32, {scores['after']:.4f} in int8"
    return text
