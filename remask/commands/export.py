"""`remask export MODEL --to hf|onnx|int8 --out DIR`. Not here: the work itself (remask/exports)."""

from __future__ import annotations

from pathlib import Path

import click

from remask import api
from remask.commands import Common, common_options, run_file
from remask.exports.settings import ExportRun
from remask.schema import Json


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
@click.option("--license", help="For the card, such as apache-2.0.")
@click.option("--language", help="For the card, such as en.")
@common_options
def command(common: Common, words: str, out: Path, keep: tuple[str, ...], **options: object) -> None:
    """Write MODEL for transformers, or as an ONNX graph in fp32 or int8.

    What has no class in transformers goes out in remask's own layout, and says so; a graph needs no class.
    """
    file, model, _ = run_file((words,))
    built = common.build(ExportRun, file, model=model, keep=list(keep) or None, **options)
    run = built.run
    if common.dry_run:
        return
    result = api.export(run, out=out)
    for reason in result.get("no_class", ()):
        common.progress.warn(f"transformers has no class for {reason}; written in remask's own layout")
    for way in result.get("no_decoding", ()):
        common.progress.warn(f"transformers cannot decode by {way}: its generate takes the likeliest token each time")
    if result.get("side"):
        common.progress.say(
            f"{result['class']} has no place for {', '.join(result['side'])}: in remask_heads.safetensors"
        )
    if result.get("left_out"):
        common.progress.warn(f"the graph has no output for the heads {', '.join(result['left_out'])}")
    common.result(result, render(result, out))


def render(result: Json, out: Path) -> str:
    """The result for a person."""
    if result["format"] not in ("onnx", "int8"):
        return f"{out}: {result['class'] or 'remask layout'}, {result['parameters']:,} parameters"
    text = f"{out / result['file']}: {result['bytes'] / 1e6:.1f} MB, "
    if result["format"] == "onnx":
        return f"{text}within {result['largest_difference']:.1g} of its source on {result['sentences']} real texts"
    agreement = result["agreement"]
    text += f"{agreement['what']} {agreement['value']:.4f} on {agreement['sentences']} real texts"
    if "scores" not in result:
        return f"{text}; no accuracy was measured: give a set with labels (--eval FILE)"
    scores = result["scores"]
    name = scores["metric"]
    return f"{text}; {name} on {scores['set']} {scores['before'][name]:.4f} before, {scores['after'][name]:.4f} after"
