"""`remask finetune`: teach a pretrained model a task. Not here: the work itself (remask/tune)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import click

from remask import api
from remask.commands import PATTERN_HELP, WORDS_HELP, Common, common_options, is_first_rank, prompt_options
from remask.config import find_run, parse_assignment
from remask.errors import UsageError
from remask.tune.settings import TUNED, FinetuneRun, Learn, recipe_of


def task_options(function: Callable[..., None]) -> Callable[..., None]:
    """The options that say what is fine-tuned on what; `tune` has them, too."""
    options = [
        click.argument("run_name", required=False, metavar="[RUN.yaml | NAME]"),
        click.option(
            "--task",
            help="classify, regress, multilabel, pair, ner, qa, choice, prompt, retrieve, write, translate, summarise, "
            "reply, or a named one: glue:NAME, …",
        ),
        click.option("--init", help="The model to start from."),
        click.option("--train", "train_file", help="The file to train on."),
        click.option("--dev", "dev_file", help="The file to evaluate on; without it a fifth of the training file."),
        click.option("--data", help="Folder of a named task's files."),
        click.option("--text", "table__text", help="Column with the text."),
        click.option("--text2", "table__text2", help="Column with the second text."),
        click.option("--label", "table__label", help="Column with the label."),
        click.option("--source", "table__source", help="Writing: the column that is read."),
        click.option("--target", "table__target", help="Writing: the column that is written."),
        click.option("--target-tokenizer", help="Writing: the targets' own vocabulary, a folder or file."),
        click.option("--query", "table__query", help="retrieve: column with the query."),
        click.option("--positive", "table__positive", help="retrieve: column with the text that answers it."),
        click.option("--negative", "table__negative", help="retrieve: column with a text that does not."),
        click.option("--unsupervised", "retrieve__unsupervised", metavar="TEXT", help="retrieve: pairs from text."),
        click.option("--distil", "retrieve__distil", metavar="MODEL", help="retrieve: a cross-encoder to follow."),
        click.option("--encoding", "table__encoding", help="Of the files, where it is not UTF-8."),
        click.option("--delimiter", "table__delimiter", help="Between the files' cells: one character, or tab."),
        click.option(
            "--header/--no-header", "table__header", default=None, help="Whether the first line names the columns."
        ),
        click.option("--seeds", type=int, help="How many runs; the result is their median and spread."),
        click.option("--learn", type=click.Choice(get_args(Learn)), help="What learns; all by default."),
        click.option("--max-train", type=int, help="Train on so many examples at most."),
        click.option("--max-dev", type=int, help="Score on so many examples at most."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def with_recipe(common: Common, file: Path | None, task: str | None, without: Sequence[str] = ()) -> Common:
    """A named task without a run file comes with its recipe, below what the user says."""
    words = recipe_of(task, without) if file is None else []
    return replace(common, assignments=(*words, *common.assignments))


@click.command()
@task_options
@click.option("--pattern", "prompt__patterns", multiple=True, help=f"task prompt: {PATTERN_HELP}")
@click.option("--words", "label_words", multiple=True, metavar="LABEL=WORD,WORD…", help=f"task prompt: {WORDS_HELP}")
@click.option("--search-words", "prompt__search_words", type=int, help="task prompt: find so many words a label.")
@click.option("--unlabelled", "unlabelled__file", help="Texts that a first model labels and a second learns from.")
@click.option(
    "--curve",
    metavar="0,8,32,all",
    help="Compare prompt, fine-tuning and nearest neighbours with so many labels, in place of one model.",
)
@click.option("--from-scratch", is_flag=True, help="The same network with random weights, for comparison.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the model and its results.")
@click.option("--epochs", "train__epochs", type=float, help="Passes over the training data.")
@click.option("--lr", "train__learning_rate", type=float, help="Peak learning rate.")
@click.option("--batch-size", "batch__num_rows", type=int, help="Rows in a batch.")
@click.option(
    "--grid", "grid_words", multiple=True, metavar="NAME=A,B…",
    help=f"Try values with one another: lr=1e-5,2e-5 (names: {', '.join(TUNED)}; may be given several times).",
)  # fmt: skip
@common_options
def command(
    common: Common, run_name: str | None, out: Path, from_scratch: bool, grid_words: tuple[str, ...],
    label_words: tuple[str, ...], prompt__patterns: tuple[str, ...], curve: str | None, task: str | None,
    **options: object,
) -> None:  # fmt: skip
    """Fine-tune a model on a task of your own or of the papers.

    remask finetune --task classify --init MODEL --train my.csv --text body --label topic --out DIR
    """
    common = common.of_rank()
    file = None if run_name is None else find_run("finetune", run_name)
    options |= {f"grid__{name}": values for name, values in map(_grid_word, " ".join(grid_words).split())}
    options |= prompt_options(prompt__patterns, label_words)
    options["curve__labels"] = None if curve is None else parse_assignment(f"curve=[{curve}]")[1]
    options["init_weights"] = False if from_scratch else None
    built = with_recipe(common, file, task).build(FinetuneRun, file, task=task, **options)
    common.show_differences(built)
    from remask.tune.finetune import check, render

    if common.dry_run:
        check(built.run, common.progress)
        return
    if not built.run.init:
        raise UsageError("--init MODEL is needed")
    values = api.finetune(built.run, out=out, progress=common.progress, allow_change=common.allow_change)
    if is_first_rank():
        common.result(values, render(values))


def _grid_word(word: str) -> tuple[str, object]:
    name, equals, values = word.partition("=")
    if not equals or name not in TUNED:
        raise UsageError(f"--grid {word}: write NAME=VALUE,VALUE with a name of {', '.join(TUNED)}")
    return name, parse_assignment(f"{name}=[{values}]")[1]
