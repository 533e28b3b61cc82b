"""`remask adapt`: go on with a model on text of one's own. Not here: the work itself (remask/adaptation)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from remask import api
from remask.adaptation.settings import AdaptRun
from remask.commands import Common, common_options, run_file
from remask.errors import UsageError
from remask.schema import Json, Values
from remask.tune.settings import recipe_of

_TASK = "task__"  # before the name of an option of finetune
_NUMBERED = {"extend", "replace", "top"}  # words of an option that a number follows


class _WithNumbers(click.Command):
    """`--vocabulary extend 300` is one value of two words, which click does not know."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        joined: list[str] = []
        for word in args:
            if word.isdigit() and joined and joined[-1].rpartition("=")[2] in _NUMBERED:
                named = joined[-1].startswith(("--vocabulary=", "--learn="))
                if named or joined[-2:-1] in (["--vocabulary"], ["--learn"]):
                    joined[-1] += f" {word}"
                    continue
            joined.append(word)
        return super().parse_args(ctx, joined)


@click.command(cls=_WithNumbers, short_help="Continue somebody else's model on your own text.")
@click.argument("words", nargs=-1, metavar="[RUN.yaml] MODEL TEXT…")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the model and its report.")
@click.option("--minutes", "train__minutes", type=float, help="How long to train [default: 20].")
@click.option("--steps", "train__steps", type=int, help="Make so many steps instead.")
@click.option(
    "--vocabulary",
    metavar="keep | extend N | replace N",
    help="The model's tokens, N more that are learned on TEXT, or a new vocabulary of N entries [default: keep].",
)
@click.option("--general", "general__paths", multiple=True, help="General text to mix in; may be given several times.")
@click.option("--general-share", type=float, help="Share of the rows that are general text [default: 0.2].")
@click.option("--validation", help="A text to measure on, in place of a part of TEXT.")
@click.option("--learn", metavar="all | top N | lora", help="What learns: all, the top N layers, or LoRA.")
@click.option("--pairs", "pairs__file", help="Table of text, text2, label (how alike): embeddings before and after.")
@click.option("--task", "task__task", help="Fine-tune before and after: classify, ner, … as `remask finetune` has it.")
@click.option("--train", "task__train_file", help="The task's file to train on.")
@click.option("--dev", "task__dev_file", help="The task's file to evaluate on.")
@click.option("--data", "task__data", help="Folder of a named task's files.")
@click.option("--text", "task__table__text", help="The task's column with the text.")
@click.option("--text2", "task__table__text2", help="The task's column with the second text.")
@click.option("--label", "task__table__label", help="The task's column with the label.")
@click.option("--seeds", "task__seeds", type=int, help="The task's runs from each start; 3 tell more than 1.")
@click.option("--max-train", "task__max_train", type=int, help="Train the task on so many examples at most.")
@click.option("--max-dev", "task__max_dev", type=int, help="Score the task on so many examples at most.")
@common_options
def command(
    words: tuple[str, ...], out: Path, vocabulary: str | None, learn: str | None, general__paths: tuple[str, ...],
    task__task: str | None, common: Common, **options: object,
) -> None:  # fmt: skip
    """Go on with MODEL on TEXT (files, folders, globs), and measure what it was and what it is.

    remask adapt MODEL tickets/ --out DIR --task classify --train labelled.csv --text body --label topic --seeds 3

    The model's form and tokenizer are taken over. Ctrl-C stops it; the same command goes on.
    """
    file, model, texts = run_file(words)
    options |= _split("--vocabulary", vocabulary, ("keep",), ("extend", "replace"), "tokens")
    options |= _split("--learn", learn, ("all", "lora"), ("top",), "train__trainable_top_layers")
    given = [key for key, value in options.items() if key.startswith(_TASK) and value is not None]
    if given and task__task is None and file is None:
        raise UsageError(f"--{given[0].split('__')[-1].removesuffix('_file').replace('_', '-')}: for which --task?")
    recipe = [f"task.{word}" for word in recipe_of(task__task)]
    common = replace(common, assignments=(*recipe, *common.assignments))
    run = common.build(
        AdaptRun, file, model=model, corpus__paths=list(texts) or None, general__paths=list(general__paths) or None,
        task__task=task__task, **options,
    ).run  # fmt: skip
    if common.dry_run:
        from remask.adaptation.run import check

        check(run)
        return
    values = api.adapt(run, out=out, progress=common.progress, allow_change=common.allow_change)
    common.result(values, summary(values))


def _split(option: str, word: str | None, plain: tuple[str, ...], numbered: tuple[str, ...], number_key: str) -> Json:
    """`extend 300` as the setting of the option and its number."""
    if word is None:
        return {}
    name, _, number = word.partition(" ")
    if name in numbered and number.isdigit():
        key = option.removeprefix("--")
        return ({} if name == "top" else {key: name}) | {number_key: int(number)}
    if name in plain and not number:
        return {option.removeprefix("--"): name}
    allowed = ", ".join([*plain, *(f"{named} N" for named in numbered)])
    raise UsageError(f"{option} {word}: write one of {allowed}")


def summary(values: Values) -> str:
    """What a person wants to see at the end."""
    before, after, recipe = values["before"], values["after"], values["recipe"]
    lines = ["", f"{'':34}{'before':>10}{'after':>10}"]

    def row(title: str, old: float | None, new: float | None) -> None:
        if old is not None and new is not None:
            lines.append(f"{title:34}{old:10.3f}{new:10.3f}")

    if recipe["vocabulary"] == "keep":
        row("held-out loss (nats)", before["heldout"]["loss"], after["heldout"]["loss"])
    for key, title in (("heldout", "held-out text"), ("general", "general text")):
        if key in before:
            old, new = (side[key]["word_bits_per_byte"] for side in (before, after))
            row(f"{title}: bits a byte of words", old, new)
    row("bytes per token", before["bytes_per_token"], after["bytes_per_token"])
    if "closeness" in before:
        row("pairs: Spearman of the cosine", before["closeness"], after["closeness"])
    if task := values["task"]:
        row(f"{task['task']}: {task['metric']}", task["before"]["median"], task["after"]["median"])
        lines.append(f"  {task['verdict']}")
    lines += [
        "",
        f"{recipe['steps']:,} steps, learning rate {recipe['learning_rate']:.3g}, rows of {recipe['length']} tokens",
        f"Model   {values['model']}",
        f"Report  {values['report']}",
    ]
    return "\n".join(lines)
