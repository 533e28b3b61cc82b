"""`remask pretrain`: train an encoder on prepared data. Not here: the work itself (remask/pretraining)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from remask import api
from remask.artifacts import MANIFEST
from remask.commands import Common, common_options, is_first_rank
from remask.config import Built, find_run, runs_folder
from remask.errors import UsageError
from remask.pretraining.settings import PretrainRun, budget_alone
from remask.pretraining.start import prepared_of, with_form
from remask.schema import Values

ALL_HELD_OUT = 1 - 2**-52  # a share must be below 1


@click.command()
@click.argument("run_file", metavar="RUN.yaml | NAME")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The run folder.")
@click.option("--data", type=click.Path(path_type=Path), help="Prepared data (remask prepare).")
@click.option("--minutes", type=float, help="Use so many minutes.")
@click.option("--steps", type=int, help="Make so many steps.")
@click.option(
    "--init-from",
    type=click.Path(path_type=Path),
    help="Start from this model; its form is taken over unless the run file has one of its own.",
)
@click.option(
    "--validation",
    type=click.Path(path_type=Path),
    help="A text file (or prepared data) that is measured on in place of the data's held-out part.",
)
@common_options
def command(
    run_file: str,
    out: Path,
    data: Path | None,
    minutes: float | None,
    steps: int | None,
    init_from: Path | None,
    validation: Path | None,
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
        file.stem if is_base else None,
        prepared=None if data is None else str(data),
        init_from=None if init_from is None else str(init_from),
    )
    common.show_differences(built)
    run = built.run
    if run.init_from is not None and not any(key.startswith("model.") for key, _, _ in built.differences):
        prepared_of(run)  # says what is missing before a model is opened
        run = with_form(run)
    if validation is not None:
        run = run.model_copy(update={"validation": _prepared_validation(run, validation, out, common)})
    result = api.pretrain(
        run, out=out, progress=common.progress, allow_change=common.allow_change, dry_run=common.dry_run
    )
    if common.dry_run:
        common.result(result, "the run is sound; nothing was trained")
    elif is_first_rank():
        common.result(
            result,
            f"{out}: {result['step']:,} steps; held-out loss {result['loss']:.3f} nats, "
            f"perplexity {result['perplexity']:.1f}, accuracy {result['accuracy']:.1%}, "
            f"{result['bits_per_byte']:.3f} bits per byte{_by_character(result)}",
        )


def _by_character(result: Values) -> str:
    """Beside bits per byte, where characters are something else; a finished run of an older version lacks it."""
    bits = result.get("bits_per_character", result["bits_per_byte"])
    return f", {bits:.3f} per character" if bits > 1.05 * result["bits_per_byte"] else ""


def _prepared_validation(run: PretrainRun, file: Path, out: Path, common: Common) -> Path:
    """A text file as prepared data of the run's vocabulary, all of it held out, in OUT/validation."""
    if (file / MANIFEST).is_file():
        return file
    if common.dry_run:
        raise UsageError("--dry-run with --validation: give prepared data; a dry run prepares no text")
    settings = {"text.heldout_fraction": ALL_HELD_OUT}
    if is_first_rank():
        tokenizer = prepared_of(run) / "tokenizer"
        api.prepare([file], out=out / "validation", tokenizer=tokenizer, settings=settings, progress=common.progress)
    return out / "validation"
