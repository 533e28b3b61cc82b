"""`remask fill-mask MODEL "text with <mask>"`: the likeliest words for a mask."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from remask.allocator import no_collecting
from remask.commands import Common, common_options, run_file
from remask.config import Config, setting
from remask.schema import Json


class FillMaskRun(Config):
    """A model and what to fill in."""

    model: Path = setting(..., "a run, checkpoint, model or Hugging Face folder")
    texts: tuple[str, ...] = setting(..., "texts with the vocabulary's mask, such as <mask>", min_length=1)
    top: int = setting(5, "candidates for each mask", ge=1)
    device: str = setting("cpu", "cpu, cuda, ...")


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="RUN.yaml | MODEL TEXT…")
@click.option("--top", type=int, help="Candidates for each mask.")
@common_options
def command(words: tuple[str, ...], top: int | None, common: Common) -> None:
    """The likeliest tokens for the mask of each TEXT, best first."""
    file, model, texts = run_file(words)
    built = common.build(FillMaskRun, file, model=model, texts=list(texts) or None, top=top)
    if common.dry_run:
        return
    answers = main(built.run)
    lines = []
    for answer in answers:
        lines += [f"{fill['score']:.4f}  {fill['token_str']!r:<16} {fill['sequence']}" for fill in answer]
    common.result({"answers": answers[0] if len(answers) == 1 else answers}, "\n".join(lines))


def main(run: FillMaskRun) -> list[list[Json]]:
    """The candidates for each text."""
    with no_collecting():
        from remask.answer.model import load
    model = load(run.model, device=run.device, packed=False)  # packing takes longer than the few texts of a command
    return [[asdict(fill) for fill in fills] for fills in model.fill_mask(list(run.texts), top=run.top)]
