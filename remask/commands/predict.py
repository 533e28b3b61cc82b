"""`remask predict`: what a fine-tuned model says about every row of a file, however long. Not here: answering it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from remask.answer.predict import PredictRun, main
from remask.commands import Common, common_options, run_file
from remask.errors import UsageError
from remask.progress import counted
from remask.tasks.answer_files import check_name


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="RUN.yaml | MODEL FILE")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="A .csv, .tsv, .jsonl or .parquet file.")
@click.option("--task", help="Of a model with several tasks: which one.")
@click.option("--text", help="Column with the text, where it differs from the training file's.")
@click.option("--text2", help="Column with the second text.")
@click.option("--scores", is_flag=True, default=None, help="Also the score of every class.")
@click.option("--prefix", help="Put before the names of the answer's columns.")
@click.option("--precision", type=click.Choice(["auto", "fp32", "bf16", "fp16"]), help="Number format.")
@click.option("--device", help="auto, cpu, cuda, cuda:N or mps.")
@common_options
def command(common: Common, words: tuple[str, ...], out: Path, **options: Any) -> None:
    """Answer every row of FILE with the fine-tuned MODEL.

    FILE's own columns stay; killed, the same command goes on. Rows that cannot be answered are in OUT.bad.jsonl.
    """
    file, model, rest = run_file(words)
    if len(rest) > 1:
        raise UsageError(f"predict takes one MODEL and one FILE, not {len(words)} paths")
    built = common.build(PredictRun, file, model=model, file=rest[0] if rest else None, **options)
    if not built.run.model or not built.run.file:
        raise UsageError("predict needs a MODEL and a FILE")
    check_name(out)
    if common.dry_run:
        from remask.answer.reader import open_reader

        assert open_reader(Path(built.run.model), built.run.task).task
        return
    values = main(built.run, out, progress=common.progress)
    if values["bad"]:
        common.progress.warn(f"{counted(values['bad'], 'row')} could not be answered: {values['bad_file']}")
    if values["cut"]:
        common.progress.say(f"  cut to what the model reads: {counted(values['cut'], 'text')}")
    common.result(values, f"{counted(values['rows'], 'answer')}: {out}")
