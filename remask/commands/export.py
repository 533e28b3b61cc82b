"""`remask export MODEL --to hf --out DIR`: a finished model -> a folder that others load."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from remask.commands import Common, common_options, run_file
from remask.config import Config, setting
from remask.errors import UsageError
from remask.model.settings import Pooling


class ExportRun(Config):
    """What goes out, and as what."""

    model: Path = setting(..., "a run, checkpoint, model or Hugging Face folder")
    to: Literal["hf"] = setting("hf", "hf: a folder for transformers")
    embedding: bool = setting(False, "only the encoder, as a sentence-transformers model")
    pooling: Pooling | None = setting(
        None, "of an embedding: the first token's state or the mean; None: as the model has"
    )
    title: str = setting("An encoder made with remask", "first line of the model card")
    description: str | None = setting(None, "what the card says about the model")
    language: str | None = setting(None, "for the card, such as en")
    license: str | None = setting(None, "for the card, such as apache-2.0")


@click.command()
@click.argument("words", nargs=1, required=True, metavar="RUN.yaml | MODEL")
@click.option("--to", type=click.Choice(["hf"]), help="The layout: hf for transformers.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder to make.")
@click.option("--embedding", is_flag=True, default=None, help="Only the encoder, for sentence-transformers.")
@click.option("--pooling", type=click.Choice(["first", "mean"]), help="With --embedding: what stands for a text.")
@click.option("--title", help="First line of the model card.")
@common_options
def command(
    words: str,
    to: str | None,
    out: Path,
    embedding: bool | None,
    pooling: str | None,
    title: str | None,
    common: Common,
) -> None:
    """Write MODEL for transformers. What has no class there goes out in remask's own layout, and says so."""
    file, model, _ = run_file((words,))
    built = common.build(ExportRun, file, model=model, to=to, embedding=embedding, pooling=pooling, title=title)
    if built.run.pooling and not built.run.embedding:
        raise UsageError("--pooling is for --embedding: a model with a task pools as it was trained")
    if common.dry_run:
        return
    result = main(built.run, out)
    for reason in result["no_class"]:
        common.progress.warn(f"transformers has no class for {reason}; written in remask's own layout")
    if result["side"]:
        common.progress.say(
            f"{result['class']} has no place for {', '.join(result['side'])}: in remask_heads.safetensors"
        )
    common.result(result, f"{out}: {result['class'] or 'remask layout'}, {result['parameters']:,} parameters")


def main(run: ExportRun, out: Path) -> dict[str, Any]:
    """Write the folder; what it holds."""
    from remask.export.hf import export_hf

    card = {name: getattr(run, name) for name in ("title", "description", "language", "license")}
    artifact = export_hf(run.model, out, card=card, embedding=run.embedding, pooling=run.pooling)
    return {**artifact.counts, "model": str(out)}
