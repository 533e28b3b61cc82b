"""A finished model -> a folder that others load: for transformers, or as an ONNX graph in fp32 or int8.

In: an ExportRun, and for int8 what scores a form of the model on a set with labels. Out: the folder, and what it holds.
What misses its bound is refused, and nothing is written. Not here: how each form is written (hf, onnx, quantize).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from remask.config import dump
from remask.errors import DataError
from remask.exports.settings import ExportRun
from remask.schema import Json
from remask.tasks.card import CARD_JSON

if TYPE_CHECKING:
    from remask.answer.agreement import Answerer
    from remask.answer.scores import Scores


def export(run: ExportRun, out: Path, measure: Callable[[Answerer], Scores] | None = None) -> Json:
    """Write the folder; what it holds. `measure`: of int8, scores on run.eval_file."""
    card = _card(run)
    if run.to == "hf":
        from remask.exports.hf import export_hf

        artifact = export_hf(run.model, out, card=card, embedding=run.embedding, pooling=run.pooling)
        return {**artifact.counts, "model": str(out)}
    from remask.exports.onnx import Bound, export_onnx

    name = "" if run.eval_file is None else run.eval_file.name
    artifact = export_onnx(
        run.model, out, to=run.to, card=card, embedding=run.embedding, pooling=run.pooling,
        bound=Bound(measure, name, run.max_drop, run.min_agreement, run.keep),
    )  # fmt: skip
    return {**artifact.counts, "model": str(out)}


def _card(run: ExportRun) -> Json:
    """What the fine-tuning that made the model says of it, under what is given here."""
    from remask.model.store import find_model

    kept = find_model(run.model) / CARD_JSON
    try:
        known = json.loads(kept.read_bytes()) if kept.is_file() and not run.embedding else {}
    except ValueError as error:
        raise DataError(f"{kept}: damaged: {error}") from error
    names = ("title", "description", "language", "license", "base_model", "datasets")
    given = {name: dump(run)[name] for name in names}
    return given | known | {k: v for k, v in given.items() if getattr(run, k) != ExportRun.model_fields[k].default}
