"""`remask evaluate`: one model on many tasks, or on a labelled file. Not here: the work itself (remask/evaluation)."""

from __future__ import annotations

from pathlib import Path

import click

from remask import api
from remask.commands import Common, common_options, is_first_rank, run_file
from remask.errors import UsageError
from remask.evaluation.settings import GROUPS, ZERO_SHOT, EvaluateRun


@click.command()
@click.argument("word", metavar="RUN.yaml | NAME | MODEL")
@click.option(
    "--tasks",
    help="Comma-separated: glue, glue:NAME, ner, squad1, squad2, race, wsc, blimp, claims, perplexity.",
)
@click.option("--data", help="Folder with the tasks' files (claims alone: the file).")
@click.option("--test", help="Instead of --tasks: a labelled file to score a fine-tuned model on.")
@click.option("--task", help="--test, of a model with several tasks: which one.")
@click.option(
    "--text", "texts", multiple=True,
    help="--test: column with the text. Perplexity: a text file or prepared data (may be repeated).",
)  # fmt: skip
@click.option("--text2", "table__text2", help="--test: column with the second text.")
@click.option("--label", "table__label", help="--test: column with the label.")
@click.option("--source", "table__source", help="--test of a model that writes: column that is read.")
@click.option("--target", "table__target", help="--test of a model that writes: column with the references.")
@click.option("--encoding", "table__encoding", help="--test: of the file, where it is not UTF-8.")
@click.option("--delimiter", "table__delimiter", help="--test: between the file's cells, one character, or tab.")
@click.option("--header/--no-header", "table__header", default=None, help="--test: does the first line name columns?")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for fine-tuned models and results.json.")
@click.option("--seeds", type=int, help="Fine-tuning runs a task; the result is their median.")
@click.option("--max-train", type=int, help="Train on so many examples a task at most.")
@click.option("--max-dev", type=int, help="Score on so many examples a task at most.")
@click.option("--max-pairs", type=int, help="BLiMP: so many pairs of each paradigm.")
@click.option("--epochs", type=float, help="Passes of fine-tuning.")
@click.option("--minutes", type=float, help="All fine-tuning together; each run gets an equal share.")
@click.option("--from-scratch", is_flag=True, help="Fine-tune the same network with random weights, for comparison.")
@click.option("--from-mnli", is_flag=True, default=None, help="RTE, STS-B and MRPC start from the MNLI model.")
@click.option("--grid", is_flag=True, default=None, help="GLUE: the paper's learning rates x batches.")
@click.option("--submission", help="Folder for answers to GLUE's test files, as the leaderboard takes them.")
@click.option("--precision", type=click.Choice(["auto", "fp32", "bf16", "fp16"]), help="Of training and scoring.")
@click.option("--device", help="auto, cpu, cuda, cuda:N or mps.")
@common_options
def command(
    common: Common, word: str, tasks: str | None, texts: tuple[str, ...], out: Path | None, from_scratch: bool,
    **options: object,
) -> None:  # fmt: skip
    """Score MODEL on tasks, or on a labelled file of its own task.

    Where it has no head for a task, it is fine-tuned first, in OUT (or the user's cache).

    remask evaluate MODEL --test held-out.csv
    """
    common = common.of_rank()
    file, model, _ = run_file((word,), "evaluate")
    names = None if tasks is None else [name.strip() for name in tasks.split(",") if name.strip()]
    if options["test"] and len(texts) > 1:
        raise UsageError(f"--text {' --text '.join(texts)}: a file given as --test has one column with the text")
    options["init_weights"] = False if from_scratch else None
    if options["test"] and texts:
        options["table__text"], texts = texts[0], ()
    built = common.build(EvaluateRun, file, model=model, tasks=names, texts=list(texts) or None, **options)
    needed = ("model",) if built.run.test else ("model", "tasks", "data")
    if built.run.tasks == ("perplexity",) and built.run.texts:
        needed = ("model",)  # the texts are all that it measures
    for name in needed:
        if not getattr(built.run, name):
            raise UsageError(
                f"{name} is needed: remask evaluate MODEL --tasks {','.join((*GROUPS, *ZERO_SHOT))} --data DIR, "
                "or remask evaluate MODEL --test FILE"
            )
    from remask.evaluation.evaluate import check
    from remask.evaluation.table import render

    if common.dry_run:
        check(built.run, out, common.progress)
        return
    values = api.evaluate(built.run, out=out, progress=common.progress)
    if is_first_rank():
        common.result(values, render(values))
