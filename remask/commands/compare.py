"""`remask compare RUN…`: runs side by side, on the terminal and as one HTML page.

Says what keeps the numbers from being compared. Where vocabularies differ, it measures bits per byte of whole words.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from remask.artifacts import write_page
from remask.commands import Common, common_options
from remask.config import differences
from remask.errors import RemaskError, UsageError
from remask.progress import Progress
from remask.reports.report import (
    COMPARED_VALUES,
    cautions,
    compared_values,
    comparison_report,
    short_names,
    shown_keys,
)
from remask.reports.runs import RunFolder, read_run


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Also write the page with the curves there.")
@common_options
def command(runs: tuple[Path, ...], out: Path | None, common: Common) -> None:
    """Last values and differing settings of several runs; with --out their curves in one page."""
    if len(runs) < 2:
        raise UsageError("compare needs at least two run folders")
    folders = [read_run(run) for run in runs]
    names = short_names(folders)
    notes = cautions(folders, names)
    for note in notes:
        common.progress.warn(note)
    word_bits = _word_bits(folders, common.progress)
    if out and not common.dry_run:
        write_page(out, comparison_report(folders, word_bits))
    values = {
        name: compared_values(run) | {"word_bits_per_byte": bits}
        for name, run, bits in zip(names, folders, word_bits, strict=True)
    }
    changed: dict[str, list[object]] = {}  # key -> its value in every run
    for number, run in enumerate(folders[1:], 1):
        for key, old, new in differences(folders[0].config, run.config):
            changed.setdefault(key, [old] * len(folders))[number] = new
    lines = [
        f"{COMPARED_VALUES[key]:<16}" + "".join(f"{_shown(values[name][key]):>24}" for name in names)
        for key in shown_keys([*values.values()])
    ]
    lines = ["run             " + "".join(f"{name[-23:]:>24}" for name in names), *lines, ""]
    lines += [f"{key}: {' | '.join(map(repr, each))}" for key, each in changed.items()] or ["the settings are the same"]
    result = {"runs": values, "differences": changed, "notes": notes, "report": str(out) if out else None}
    common.result(result, "\n".join(lines))


def _word_bits(runs: Sequence[RunFolder], progress: Progress) -> list[float | None]:
    """Measured only where it is needed and can be: different vocabularies over the same text."""
    nothing: list[float | None] = [None] * len(runs)
    if len({run.vocabulary for run in runs} - {None}) < 2:
        return nothing
    prepared = [run.prepared for run in runs if run.prepared is not None]
    if len(prepared) < len(runs) or len({run.heldout_text for run in runs}) > 1:
        progress.warn("bits per byte of whole words: not measured, since the runs do not have the same text at hand")
        return nothing
    from remask.evaluation.zero_shot import word_bits_per_byte

    try:
        with progress.stage("bits per byte of whole words"):
            bits, reason = word_bits_per_byte([run.folder for run in runs], prepared)
    except RemaskError as error:
        bits, reason = [], str(error)
    if reason:
        progress.warn(f"bits per byte of whole words: not measured: {reason}")
        return nothing
    return [*bits]


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) and abs(value) >= 1 else f"{value:.4f}"
