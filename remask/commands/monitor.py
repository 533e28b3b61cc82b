"""`remask monitor`: watch a stream of texts, and say when opinion turns. Not here: the work itself (monitoring)."""

from __future__ import annotations

import json
from pathlib import Path

import click

from remask import api
from remask.commands import Common, common_options, run_file
from remask.errors import UsageError
from remask.monitoring.settings import MonitorRun
from remask.schema import Values
from remask.visible import visible, visible_json


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[RUN.yaml] MODEL INPUT")
@click.option("--time", "time", help="Column with the time of a text.")
@click.option("--text", help="Column with the text, where it differs from the training file's.")
@click.option("--group", help="Column by which texts are watched apart.")
@click.option("--id", "id", help="Column that tells texts apart; without it the same text at the same time is one.")
@click.option("--class", "classes", multiple=True, help="A class to watch; may be given several times [default: all].")
@click.option("--window", help="Length of a window: 15m, 1h, 1d [default: 1h].")
@click.option("--follow", is_flag=True, default=None, help="Go on reading as INPUT grows.")
@click.option("--late", help="How long a window of a stream waits for texts out of order [default: a window].")
@click.option("--zone", help="Time zone of times that do not tell theirs [default: UTC].")
@click.option("--time-format", help="Of the times, as strptime has it: '%d/%m/%Y %H:%M'.")
@click.option("--format", "format", type=click.Choice(["csv", "tsv", "jsonl"]), help="Layout of stdin [jsonl].")
@click.option("--labelled", help="A labelled file to measure the model's confusion on.")
@click.option("--shift", "alarm__shift", type=float, help="The shift to look for: 0.1 is ten points [default: 0.1].")
@click.option("--rate", "alarm__rate", type=float, help="False alarms in 1,000 windows of a group [default: 1].")
@click.option("--baseline", "alarm__baseline", type=int, help="Windows that a group learns from first [default: 24].")
@click.option("--rhythm", "alarm__rhythm", type=click.Choice(["none", "daily", "weekly"]), help="Of the normal share.")
@click.option("--on-alarm", help="A command for every alarm (JSON on its stdin); started without a shell.")
@click.option("--alarm-exit", type=click.IntRange(1, 125), help="Exit with this code if there was a new alarm.")
@click.option("--idle-seconds", type=float, help="With --follow: end after so long without a new row.")
@click.option("--encoding", "table__encoding", help="Of INPUT, where it is not UTF-8.")
@click.option("--delimiter", "table__delimiter", help="Between the cells of INPUT: one character, or tab.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for alarms, page and state.")
@common_options
def command(
    common: Common,
    words: tuple[str, ...],
    out: Path,
    alarm_exit: int | None,
    classes: tuple[str, ...],
    **options: object,
) -> None:
    """Watch the texts of INPUT (a file, or - for stdin) with the classifier MODEL, and raise an alarm on a shift.

    remask monitor MODEL tweets.csv --time created --text text --group airline --out DIR

    Alarms are JSON lines on stdout and in DIR/alarms.jsonl, with --json windows too; DIR/page.html shows them all.
    Stopped or killed, the same command goes on: no text counts twice, and no alarm comes twice.
    """
    file, model, rest = run_file(words)
    if len(rest) > 1:
        raise UsageError(f"monitor takes one MODEL and one INPUT, not {len(words)} words")
    given = {"model": model, "input": rest[0] if rest else None, "classes": list(classes) or None}
    run = common.build(MonitorRun, file, **given, **options).run
    if common.dry_run:
        from remask.monitoring.run import check_columns_given, open_classifier

        check_columns_given(run)
        open_classifier(run, common.progress)
        return

    def on_event(event: Values) -> None:
        if common.json or event["event"] == "alarm":
            click.echo(visible_json(json.dumps(event, ensure_ascii=False)))

    values = api.monitor(run, out=out, progress=common.progress, on_event=on_event)
    from remask.monitoring.run import summary

    if common.json:
        click.echo(visible_json(json.dumps({"event": "end", **values}, ensure_ascii=False)))
    else:
        common.progress.say(visible(summary(values), lines=True))
    if alarm_exit is not None and values["new_alarms"]:
        raise click.exceptions.Exit(alarm_exit)
