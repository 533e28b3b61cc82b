"""A finished model -> a folder that others load: for transformers, or as an ONNX graph in fp32 or int8.

In: an ExportRun. Out: the folder, and what it holds; of int8 with a set with labels, scores of both forms on it. What
misses its bound is refused, and nothing is written. Not here: how each form is written (hf, onnx, quantize).
"""

from __future__ import annotations

import json
from pathlib import Path

from remask.config import dump
from remask.errors import DataError
from remask.exports.settings import ExportRun
from remask.schema import Json
from remask.tasks.card import CARD_JSON


def export(run: ExportRun, out: Path) -> Json:
    """Write the folder; what it holds."""
    card = _card(run)
    if run.to == "hf":
        from remask.exports.hf import export_hf

        artifact = export_hf(run.model, out, card=card, embedding=run.embedding, pooling=run.pooling)
        return {**artifact.counts, "model": str(out)}
    from remask.exports.onnx import Bound, export_onnx

    measure, name = None, ""
    if run.eval_file is not None:
        from remask.answer.scores import scorer

        measure, name = scorer(run.model, run.eval_file, run.columns()), run.eval_file.name
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
