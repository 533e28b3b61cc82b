"""`remask quickstart`: from a folder of text to a model with a report. Not here: the work itself (remask/starter)."""

from __future__ import annotations

from pathlib import Path

import click

from remask.commands import Common, common_options, program
from remask.progress import duration
from remask.schema import Values
from remask.starter.run import pretrain_run, quickstart
from remask.starter.settings import QuickstartRun


@click.command()
@click.argument("corpus", nargs=-1, metavar="[RUN.yaml | CORPUS…]")
@click.option("--minutes", type=float, help="How long to pretrain [default: 5].")
@click.option("--preset", help="Network and recipe, a name of runs/bases; roberta_tiny is the paper's own form.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("remask-out/quickstart"), show_default=True)
@common_options
def command(corpus: tuple[str, ...], minutes: float | None, preset: str | None, out: Path, common: Common) -> None:
    """From CORPUS (files, folders or globs; none: the documentation of the Python libraries on this machine) to a
    pretrained, fine-tuned, exported model with a report. Ctrl-C stops it; the same command goes on.
    """
    file = Path(corpus[0]) if len(corpus) == 1 and corpus[0].endswith((".yaml", ".yml")) else None
    texts = None if file or not corpus else list(corpus)
    run = common.build(QuickstartRun, file, corpus=texts, minutes=minutes, preset=preset).run
    pretrain_run(run, out)  # a preset that does not exist is known before anything is done
    if common.dry_run:
        return
    values = quickstart(run, out, progress=common.progress, program=program())
    common.result(values, summary(values))


def summary(values: Values) -> str:
    """What a person wants to see at the end."""
    loss, unigram = values["evaluation"]["loss"], values["corpus"]["unigram_nats"]
    lines = ["", "What it fills in (held-out sentences):"]
    for sample in values["samples"]:
        answers = ", ".join(f"{a['token_str'].strip()} {a['score']:.0%}" for a in sample["answers"])
        lines += [f"  {sample['text']}", f"      {answers}   (hidden: {sample['hidden']})"]
    lines += [
        "",
        f"Held-out loss {loss:.2f} nats, {abs(unigram - loss):.2f} {'below' if loss < unigram else 'ABOVE'} word "
        f"frequencies alone ({unigram:.2f}); perplexity {values['evaluation']['perplexity']:.1f}, "
        f"{values['evaluation']['bits_per_byte']:.2f} bits per byte",
    ]
    if task := values["task"]:
        for start, name in task["starts"].items():
            seeds = task[start]["seeds"]
            spread = f"({min(seeds):.1%} to {max(seeds):.1%}, {len(seeds)} seeds)" if len(seeds) > 1 else "(one seed)"
            lines.append(f"{task['question']} {name:<20} {task[start]['median']:.1%} {spread}")
        lines.append(f"{task['question']} {'largest class':<20} {task['majority']:.1%}")
    lines += ["", f"Model   {values['model']}", f"Report  {values['report']}", "", "Try next:"]
    lines += [f"  {line}" for line in values["next_commands"]]
    lines += ["", f"{duration(sum(values['seconds'].values()))} in all"]
    return "\n".join(lines)
