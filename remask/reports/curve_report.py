"""The page about a curve over labels: which way to use with how many of them.

In: the results.json of `remask finetune --curve`. Out: one HTML page: the curves with the spread over seeds, their
table, and for each number of labels the best way, or those that cannot be told apart. Not here: how it was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from remask.reports.charts import Rule, Series, line_chart
from remask.reports.page import Page, Tile
from remask.schema import Values

NAMES = {"prompt": "prompt", "finetune": "fine-tuning", "neighbours": "nearest neighbours"}


def curve_report(values: Values) -> str:
    """The whole page."""
    rows, metric = values["curve"], values["metric"]
    sizes = list(dict.fromkeys(row["labels"] for row in rows))
    place = {size: float(number) for number, size in enumerate(sizes)}
    page = Page("Accuracy over labels" if metric == "accuracy" else f"{metric} over labels", f"from {values['init']}")
    page.tiles([Tile(f"{len(values['labels'])}", "classes"), Tile(f"{values['data']['dev']:,}", "texts scored")])
    for note in values["notes"]:
        page.text(f"Note: {note}.")
    series = []
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        points = [(place[row["labels"]], row["spread"]["median"]) for row in mine]
        band = [(place[row["labels"]], row["spread"]["low"], row["spread"]["high"]) for row in mine]
        series.append(Series(NAMES[method], points, band=band))
    baseline = values["data"]["baseline"]
    rules = [Rule("always the same answer", baseline[metric])] if metric in baseline else []
    marks = {place[size]: f"{size:,}" for size in sizes}
    drawn = line_chart(series, x_name="labelled examples", y_name=metric, rules=rules, x_marks=marks)
    page.figure(
        drawn, f"{metric} on the dev file; the median of {values['seeds']['count']} seeds, lowest to highest shaded"
    )
    page.table(
        ["labels", "way", metric, "lowest", "highest"],
        [[f"{r['labels']:,}", NAMES[r["method"]], *(r["spread"][k] for k in ("median", "low", "high"))] for r in rows],
    )
    page.heading("Which way with how many labels")
    page.lines([f"{size:,} labels: {best_way([row for row in rows if row['labels'] == size])}" for size in sizes])
    page.text("Every training was scored once, after its last step: nothing was chosen by the dev file.")
    return page.html()


def best_way(rows: Sequence[Values]) -> str:
    """The best median; others whose seeds reach into its range are named beside it."""
    best = max(rows, key=lambda row: row["spread"]["median"])
    close = [NAMES[row["method"]] for row in rows if row is not best and row["spread"]["high"] >= best["spread"]["low"]]
    beside = f"; {' and '.join(close)} overlap with it" if close else ""
    return f"{NAMES[best['method']]} ({best['spread']['median']:.3f}){beside}"
