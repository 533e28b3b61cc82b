"""`remask pretrain`: train an encoder on prepared data. Not here: the work itself (remask/pretraining)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from remask import api
from remask.commands import Common, common_options, is_first_rank
from remask.config import Built, find_run, runs_folder
from remask.pretraining.settings import PretrainRun, budget_alone


@click.command()
@click.argument("run_file", metavar="RUN.yaml | NAME")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The run folder.")
@click.option("--data", type=click.Path(path_type=Path), help="Prepared data (remask prepare).")
@click.option("--minutes", type=float, help="Use so many minutes.")
@click.option("--steps", type=int, help="Make so many steps.")
@click.option("--init-from", type=click.Path(path_type=Path), help="Start from this model.")
@common_options
def command(
    run_file: str,
    out: Path,
    data: Path | None,
    minutes: float | None,
    steps: int | None,
    init_from: Path | None,
    common: Common,
) -> None:
    """Train an encoder on prepared data. The same command in the same folder goes on.

    NAME is one of the run files that come with remask: remask pretrain wiki_small --data PREPARED --out DIR
    """
    common = common.of_rank()
    common = dataclasses.replace(common, assignments=(*common.assignments, *budget_alone(minutes, steps)))
    file = find_run("pretrain", run_file)
    is_base = file.parent == runs_folder() / "bases"  # then what differs from it is shown, not from the defaults
    built: Built[PretrainRun] = common.build(
        PretrainRun,
        None if is_base else file,
        base=file.stem if is_base else None,
        prepared=None if data is None else str(data),
        init_from=None if init_from is None else str(init_from),
    )
    common.show_differences(built)
    result = api.pretrain(
        built.run, out=out, progress=common.progress, allow_change=common.allow_change, dry_run=common.dry_run
    )
    if common.dry_run:
        common.result(result, "the run is sound; nothing was trained")
    elif is_first_rank():
        common.result(
            result,
            f"{out}: {result['step']:,} steps; held-out loss {result['loss']:.3f} nats, "
            f"perplexity {result['perplexity']:.1f}, accuracy {result['accuracy']:.1%}, "
            f"{result['bits_per_byte']:.3f} bits per byte",
        )
