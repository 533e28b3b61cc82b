"""`remask report RUN`: one self-contained HTML page about a run.

Of a pretraining it is made anew from the log, also while the run goes on. Fine-tunings, adaptations, quickstarts and
studies write their page themselves, at their end: it is only shown, or copied to --out.
"""

from __future__ import annotations

from pathlib import Path

import click

from remask.artifacts import PAGE_MARK, write_page
from remask.commands import Common, common_options
from remask.reports.report import training_report
from remask.reports.runs import read_run


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The page [default: report.html in the run folder].")
@common_options
def command(run: Path, out: Path | None, common: Common) -> None:
    """Curves, answers, settings and machine of a run, as one HTML file that opens offline."""
    own = run / "report.html"
    page = own.read_text(encoding="utf-8", errors="replace") if own.is_file() else ""
    if PAGE_MARK not in page or (run / "metrics.jsonl").is_file():
        folder = read_run(run)
        page = training_report(folder, folder.facts.get("unigram_nats"))
    if not common.dry_run:
        write_page(out or own, page)
    common.result({"report": str(out or own)}, str(out or own))
