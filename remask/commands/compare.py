"""`remask compare RUN…`: runs side by side, on the terminal and as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from remask.artifacts import write_page
from remask.commands import Common, common_options
from remask.config import differences
from remask.errors import UsageError
from remask.study.report import LAST_VALUES, comparison_report, short_names
from remask.study.runs import read_run


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
    if out and not common.dry_run:
        write_page(out, comparison_report(folders))
    values = {name: {key: run.last(key) for key in LAST_VALUES} for name, run in zip(names, folders, strict=True)}
    changed: dict[str, list[Any]] = {}  # key -> its value in every run
    for number, run in enumerate(folders[1:], 1):
        for key, old, new in differences(folders[0].config, run.config):
            changed.setdefault(key, [old] * len(folders))[number] = new
    lines = [
        f"{title:<16}" + "".join(f"{_shown(values[name][key]):>24}" for name in names)
        for key, title in LAST_VALUES.items()
    ]
    lines = ["run             " + "".join(f"{name[-23:]:>24}" for name in names), *lines, ""]
    lines += [f"{key}: {' | '.join(map(repr, found))}" for key, found in changed.items()] or [
        "the settings are the same"
    ]
    common.result({"runs": values, "differences": changed, "report": str(out) if out else None}, "\n".join(lines))


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
