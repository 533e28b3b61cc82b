"""`remask export MODEL --to hf|onnx|int8 --out DIR`: a finished model -> a folder that others load.

`hf` is for transformers, `onnx` an fp32 graph within 1e-4 of its source, `int8` a quarter of its size for CPUs, with
its scores before and after on a set with labels (`--eval`); what misses its bound is refused, and nothing is written.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import click

from remask.commands import Common, common_options, run_file
from remask.config import Config, setting
from remask.errors import DataError, UsageError
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


@click.command()
@click.argument("words", nargs=1, required=True, metavar="RUN.yaml | MODEL")
@click.option("--to", type=click.Choice(["hf", "onnx", "int8"]), help="hf for transformers, an ONNX graph, or int8.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder to make.")
@click.option("--embedding", is_flag=True, default=None, help="Only the encoder, for sentence-transformers.")
@click.option("--pooling", type=click.Choice(["first", "mean"]), help="With --embedding: what stands for a text.")
@click.option("--eval", "eval_file", help="int8: a file with labels; both forms are scored on it.")
@click.option("--text", help="Column with its text, where it differs from the training file's.")
@click.option("--text2", help="Column with its second text.")
@click.option("--label", help="Column with its label.")
@click.option("--max-drop", type=float, help="int8: how far the metric may fall on the --eval file; default 0.01.")
@click.option("--min-agreement", type=float, help="int8 without --eval: answers that stay the same; default 0.9.")
@click.option("--keep", multiple=True, help="int8: a part that stays fp32, such as down; may be given again.")
@click.option("--title", help="First line of the model card.")
@common_options
def command(common: Common, words: str, out: Path, keep: tuple[str, ...], **options: Any) -> None:
    """Write MODEL for transformers, or as an ONNX graph in fp32 or int8.

    What has no class in transformers goes out in remask's own layout, and says so; a graph needs no class.
    """
    file, model, _ = run_file((words,))
    built = common.build(ExportRun, file, model=model, keep=list(keep) or None, **options)
    run = built.run
    if run.pooling and not run.embedding:
        raise UsageError("--pooling is for --embedding: a model with a task pools as it was trained")
    if run.to != "int8" and (run.eval_file or run.keep):
        raise UsageError(f"--eval and --keep are for --to int8, not {run.to}")
    if run.eval_file and run.embedding:
        raise UsageError("--eval needs a head to score, but --embedding leaves only the encoder")
    if common.dry_run:
        return
    result = main(run, out)
    for reason in result.get("no_class", ()):
        common.progress.warn(f"transformers has no class for {reason}; written in remask's own layout")
    if result.get("side"):
        common.progress.say(
            f"{result['class']} has no place for {', '.join(result['side'])}: in remask_heads.safetensors"
        )
    if result.get("left_out"):
        common.progress.warn(f"the graph has no output for the heads {', '.join(result['left_out'])}")
    common.result(result, render(result, out))


def main(run: ExportRun, out: Path) -> dict[str, Any]:
    """Write the folder; what it holds."""
    card = _card(run)
    if run.to == "hf":
        from remask.export.hf import export_hf

        artifact = export_hf(run.model, out, card=card, embedding=run.embedding, pooling=run.pooling)
        return {**artifact.counts, "model": str(out)}
    from remask.export.onnx import Bound, export_onnx

    measure, name = None, ""
    if run.eval_file is not None:
        from remask.evaluation.export_scores import scorer

        columns = {key: value for key in ("text", "text2", "label") if (value := getattr(run, key)) is not None}
        measure, name = scorer(run.model, run.eval_file, columns), run.eval_file.name
    artifact = export_onnx(
        run.model, out, to=run.to, card=card, embedding=run.embedding, pooling=run.pooling,
        bound=Bound(measure, name, run.max_drop, run.min_agreement, run.keep),
    )  # fmt: skip
    return {**artifact.counts, "model": str(out)}


def _card(run: ExportRun) -> dict[str, Any]:
    """What the fine-tuning that made the model says of it, under what is given here."""
    from remask.model.store import find_model
    from remask.tasks.card import CARD_JSON

    kept = find_model(run.model) / CARD_JSON
    try:
        known = json.loads(kept.read_bytes()) if kept.is_file() and not run.embedding else {}
    except ValueError as error:
        raise DataError(f"{kept}: damaged: {error}") from error
    names = ("title", "description", "language", "license")
    given = {name: getattr(run, name) for name in names}
    return given | known | {k: v for k, v in given.items() if v != ExportRun.model_fields[k].default}


def render(result: dict[str, Any], out: Path) -> str:
    """The result for a person."""
    if result["format"] not in ("onnx", "int8"):
        return f"{out}: {result['class'] or 'remask layout'}, {result['parameters']:,} parameters"
    text = f"{out / result['file']}: {result['bytes'] / 1e6:.1f} MB, "
    if result["format"] == "onnx":
        return f"{text}within {result['largest_difference']:.1g} of its source on {result['sentences']} real texts"
    found = result["agreement"]
    text += f"{found['what']} {found['value']:.4f} on {found['sentences']} real texts"
    if "scores" not in result:
        return f"{text}; no accuracy was measured: give a set with labels (--eval FILE)"
    scores = result["scores"]
    name = scores["metric"]
    return f"{text}; {name} on {scores['set']} {scores['before'][name]:.4f} before, {scores['after'][name]:.4f} after"
