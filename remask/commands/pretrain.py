"""`remask pretrain`: train an encoder on prepared data. Not here: the work itself (remask/pretraining)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from remask.commands import Common, common_options, is_first_rank
from remask.config import Built
from remask.pretraining.run import pretrain as main
from remask.pretraining.settings import BUDGETS, PretrainRun


@click.command()
@click.argument("run_file", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The run folder.")
@click.option("--data", type=click.Path(path_type=Path), help="Prepared data (remask prepare).")
@click.option("--minutes", type=float, help="Use so many minutes.")
@click.option("--steps", type=int, help="Make so many steps.")
@click.option("--init-from", type=click.Path(path_type=Path), help="Start from this model.")
@common_options
def command(
    run_file: Path,
    out: Path,
    data: Path | None,
    minutes: float | None,
    steps: int | None,
    init_from: Path | None,
    common: Common,
) -> None:
    """Train an encoder on prepared data. The same command in the same folder goes on."""
    common = common.of_rank()
    given: Mapping[str, Any] = {"minutes": minutes, "steps": steps}
    if any(value is not None for value in given.values()):
        # A budget on the command line stands alone: the run file's own would otherwise end the run earlier.
        others = tuple(f"train.{name}=null" for name in BUDGETS if given.get(name) is None)
        common = dataclasses.replace(common, assignments=(*common.assignments, *others))
    built: Built[PretrainRun] = common.build(
        PretrainRun,
        run_file,
        prepared=None if data is None else str(data),
        init_from=None if init_from is None else str(init_from),
        train__minutes=minutes,
        train__steps=steps,
    )
    common.show_differences(built)
    result = main(built.run, out, progress=common.progress, allow_change=common.allow_change, dry_run=common.dry_run)
    if common.dry_run:
        common.result(result, "the run is sound; nothing was trained")
    elif is_first_rank():
        common.result(
            result,
            f"{out}: {result['step']:,} steps; held-out loss {result['loss']:.3f} nats, "
            f"perplexity {result['perplexity']:.1f}, accuracy {result['accuracy']:.1%}, "
            f"{result['bits_per_byte']:.3f} bits per byte",
        )
