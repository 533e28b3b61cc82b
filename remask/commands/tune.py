"""`remask tune`: the best recipe of a fine-tuning run, with optuna. Not here: the search itself (remask/tune)."""

from __future__ import annotations

import time
from pathlib import Path

import click

from remask import api
from remask.commands import Common, common_options
from remask.commands.finetune import task_options, with_recipe
from remask.config import find_run
from remask.errors import UsageError
from remask.tune.settings import TUNED, TuneRun


@click.command()
@task_options
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for trials and the best run file.")
@click.option("--trials", "search__trials", type=int, help="Fine-tuning runs in all; more may be asked for later.")
@click.option("--prune", "search__prune", is_flag=True, default=None, help="End trials that fall behind.")
@common_options
def command(common: Common, run_name: str | None, out: Path, task: str | None, **options: object) -> None:
    """Search the recipe of a fine-tuning run: learning rate, batch, epochs, warmup.

    remask tune --task classify --init MODEL --train my.csv --text body --label topic --trials 20 --out DIR
    """
    started = time.monotonic()
    file = None if run_name is None else find_run("tune", run_name)
    # What a search varies is not taken from a named task's recipe: a value that is given is not searched.
    varied = [".".join(place) for place in TUNED.values()]
    built = with_recipe(common, file, task, without=varied).build(TuneRun, file, task=task, **options)
    common.show_differences(built)
    if not built.run.init:
        raise UsageError("--init MODEL is needed")
    from remask.tune.finetune import check
    from remask.tune.search import render

    if common.dry_run:
        check(built.run, common.progress)
        return
    values = api.tune_recipe(built.run, out=out, progress=common.progress, allow_change=common.allow_change)
    common.result({**values, "seconds": round(time.monotonic() - started, 1)}, render(values))
