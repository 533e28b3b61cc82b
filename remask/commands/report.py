"""`remask report RUN`: one self-contained HTML page about a training run."""

from __future__ import annotations

from pathlib import Path

import click

from remask.artifacts import write_page
from remask.commands import Common, common_options
from remask.reports.report import training_report
from remask.reports.runs import read_run


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The page [default: report.html in the run folder].")
@common_options
def command(run: Path, out: Path | None, common: Common) -> None:
    """Curves, last values, settings and machine of a training run, as one HTML file that opens offline."""
    folder = read_run(run)
    out = out or run / "report.html"
    if not common.dry_run:
        write_page(out, training_report(folder, folder.facts.get("unigram_nats")))
    common.result({"report": str(out)}, str(out))
