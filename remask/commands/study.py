"""`remask study`: the papers' tables, or one's own, at any scale. Not here: the work itself (remask/studies)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import click

from remask import api
from remask.commands import Common, common_options
from remask.errors import GaveUpError, UsageError
from remask.schema import Json
from remask.studies.settings import ALL, PARENT_VARIABLE, SCALES, StudyRun, definition_file
from remask.workers import die_with_parent


@click.command()
@click.argument("names", nargs=1, metavar=f"NAME ({', '.join(ALL)}, all) | STUDY.yaml")
@click.option("--corpus", multiple=True, help="Text to prepare: a file, folder or glob (may be repeated).")
@click.option("--data", "prepared", help="Prepared data (remask prepare) instead of --corpus.")
@click.option("--tasks", help="Folder with the tasks' files: glue, conll2003, squad, blimp.")
@click.option("--scale", type=click.Choice(SCALES), help="Network, budget and limits of the tasks.")
@click.option("--seeds", type=int, help="Runs of each row.")
@click.option("--row", help="Do only this row (its label, or its number from 1), with --seed: for a job array.")
@click.option("--workers", type=int, help="Runs side by side; 0: one for each core.")
@click.option("--engine", type=click.Choice(["local", "ray"]), help="This machine, or a Ray cluster.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for runs, pages and JSON.")
@common_options
def command(common: Common, names: str, corpus: tuple[str, ...], row: str | None, out: Path, **options: object) -> None:
    """Train, fine-tune and measure every row of a table with several seeds; write a page and a JSON.

    The same command in the same folder goes on; finished runs are never done again.

    remask study table1 --corpus wiki.txt --tasks DIR --scale tiny --out DIR
    """
    if parent := os.environ.get(PARENT_VARIABLE):
        die_with_parent(int(parent))
    if row is not None and (common.seed is None or names == "all"):
        raise UsageError("--row K goes with --seed S and one study: they name one run")
    for name in ALL if names == "all" else (names,):
        file = definition_file(name)
        given: Json = {**options, "corpus": list(corpus) or None}
        # With --row, --seed names the one run, and the study's own first seed stays as it is.
        run = (replace(common, seed=None) if row is not None else common).build(StudyRun, file, **given).run
        run = run if run.name else run.model_copy(update={"name": file.stem})
        if names == "all" and run.prepared and any(one.tokenizer for one in run.rows.values()):
            common.progress.warn(f"{name}: left out; it prepares the text with several vocabularies: give --corpus")
            continue
        if row is not None:
            assert common.seed is not None
            from remask.studies.runner import study_cell

            values = study_cell(run, out, row, common.seed, progress=common.progress)
            common.result(values, f"{values['folder']}: {values['label']}, seed {values['seed']}, done")
        elif common.dry_run:
            values = api.study(run, out=out, progress=common.progress, dry_run=True)
            common.result(values, _estimate(values))
        else:
            values = api.study(run, out=out, progress=common.progress)
            common.result(values, "\n".join([*values["findings"], values["page"]]))
            if values["crashed"]:
                raise GaveUpError(f"{name}: {values['crashed']} runs crashed; {values['page']} shows the others")


def _estimate(values: Json) -> str:
    lines = [f"  {label:40} {minutes:8.1f} min a run" for label, minutes in values["minutes_by_row"].items()]
    left = values["runs"] - values["finished"]
    total = f"{values['name']} at scale {values['scale']}: {left} of {values['runs']} runs to do"
    return "\n".join([*lines, f"{total}, {values['workers']} side by side: about {values['words']}"])
