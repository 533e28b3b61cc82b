"""A study as one page: the picture first, then the table, the curves, what differs, what it cost.

In: the dict that results made (NAME.json). Out: one HTML text that opens offline. Nothing is computed here beyond
picking and rounding. Not here: charts and page parts (reports).
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence

from remask.reports.charts import DotRow, Series, dot_chart, line_chart
from remask.reports.page import Page
from remask.schema import Values

Row = Values
_ORDINALS = {1: "1st", 2: "2nd", 3: "3rd"}


def study_page(values: Values) -> str:
    """The whole page."""
    page = Page(
        f"{values['title']} (scale: {values['scale']})",
        f"{values['name']} · {values['date']} · {values['hardware']} · {values['seeds']} seeds a row",
    )
    if values["about"]:
        page.text(values["about"])
    rows = [row for row in values["rows"] if not row["note"]]
    notes = [row for row in values["rows"] if row["note"]]
    _dots(page, values, rows)
    page.heading("What came out")
    page.lines(values["findings"] or ["Nothing can be said yet: no two rows have two sound runs each."])
    _table(page, values, rows)
    _differences(page, values, rows)
    _curves(page, values, rows)
    _layers(page, rows)
    _paper(page, values, rows)
    if notes:
        page.heading("Beside the table")
        _dots(page, values, [*notes, *[row for row in rows if row["label"] in {n["against"] for n in notes}]])
        page.lines([f"{row['label']}: {row['about']}" for row in notes if row["about"]])
    _broken(page, values)
    _settings(page, values)
    page.heading("How to read it")
    page.lines(_reading(values))
    return page.html()


def _title(values: Values, metric: str) -> str:
    return next(m["title"] for m in values["metrics"] if m["name"] == metric)


def _arrow(values: Values, metric: str) -> str:
    higher = next(m["higher_is_better"] for m in values["metrics"] if m["name"] == metric)
    return "higher is better" if higher else "lower is better"


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:#.4g}".rstrip(".") if abs(value) < 1e5 else f"{value:,.0f}"


# -------------------------------------------------------------------------------------------------- the pictures


def _dots(page: Page, values: Values, rows: Sequence[Row]) -> None:
    """Every run of every row by the metric that decides, the paper's order beside the labels."""
    metric = values["decide"]["metric"]
    drawn = [_dot_row(row, metric) for row in rows if metric in row["metrics"]]
    caption = (
        f"{_title(values, metric)}, {_arrow(values, metric)}. A dot is a run, the bar their median, the line spans all "
        "of them."
    )
    if values["paper"]["by"] and any(row["paper_rank"] for row in rows):
        caption += f" The label says which place the row has in the paper ({values['paper']['by']})."
    page.figure(dot_chart(drawn, label=f"{_title(values, metric)} of every row"), caption)


def _dot_row(row: Row, metric: str) -> DotRow:
    spread = row["metrics"][metric]
    rank = row["paper_rank"]
    badge = f"paper: {_ORDINALS.get(rank, f'{rank}th')}" if rank else ""
    dots = [run["metrics"][metric] for run in row["runs"]]
    return DotRow(
        row["label"],
        dots,
        spread["median"],
        spread["low"],
        spread["high"],
        _shown(spread["median"]),
        badge,
        row["note"],
    )


def _differences(page: Page, values: Values, rows: Sequence[Row]) -> None:
    """Differences from the reference with their intervals, a picture for every metric."""
    page.heading("Differences, with what other seeds and examples might have made of them")
    for metric in (m["name"] for m in values["metrics"]):
        drawn = [_difference_row(row, row["verdicts"][metric]) for row in rows if metric in row["verdicts"]]
        if drawn:
            caption = f"{_title(values, metric)} ({_arrow(values, metric)}): difference with its 95 % interval."
            folded = "" if metric == values["decide"]["metric"] else f"by {_title(values, metric)}"
            page.figure(dot_chart(drawn, label=f"differences in {_title(values, metric)}", rule=0.0), caption, folded)


def _difference_row(row: Row, verdict: Values) -> DotRow:
    unseen = verdict["word"] == "no difference seen"
    words = f"{verdict['value']:+.3g} {'none seen' if unseen else verdict['word']}"
    name = f"{row['label']} − {row['against']}"
    return DotRow(name, (), verdict["value"], verdict["low"], verdict["high"], words, is_quiet=unseen)


def _curves(page: Page, values: Values, rows: Sequence[Row]) -> None:
    series = [Series(row["label"], middle, band=band) for row in rows for middle, band in [_banded(row["curves"])]]
    if any(s.points for s in series):
        page.heading("On the way")
        chart = line_chart(series, x_name="tokens read", y_name="bits per byte, held-out")
        page.figure(
            chart, "Held-out bits per byte while training: the median of the seeds, the band spans all of them."
        )


def _banded(curves: Sequence[Values]) -> tuple[list[tuple[float, float]], list[tuple[float, float, float]]]:
    """(medians, ranges) at the points that all seeds have."""
    by_x: dict[float, list[float]] = {}
    for curve in curves:
        for x, y in curve["points"]:
            by_x.setdefault(x, []).append(y)
    points = sorted((x, ys) for x, ys in by_x.items() if len(ys) == len(curves))
    if not points and curves:  # rows of different lengths: seeds do not read the same number of tokens
        points = [
            (statistics.median([p[0] for p in at]), [p[1] for p in at])
            for at in zip(*(c["points"] for c in curves), strict=False)
        ]
    return [(x, statistics.median(ys)) for x, ys in points], [(x, min(ys), max(ys)) for x, ys in points]


def _layers(page: Page, rows: Sequence[Row]) -> None:
    if not any(row["layers"] for row in rows):
        return
    page.heading("What a layer changes")
    for key, name in (("distance", "L2 distance"), ("angle", "angle in degrees")):
        series = []
        for row in rows:
            profiles = [list(enumerate(profile[key], 1)) for profile in row["layers"]]
            middle, band = _banded([{"points": points} for points in profiles])
            series.append(Series(row["label"], middle, band=band))
        chart = line_chart(series, x_name="layer", y_name=name)
        page.figure(chart, f"{name} between what goes into a layer and what comes out, mean over held-out tokens.")


# ----------------------------------------------------------------------------------------------------- the tables


def _table(page: Page, values: Values, rows: Sequence[Row]) -> None:
    page.heading("The table")
    names = [m["name"] for m in values["metrics"] if any(m["name"] in row["metrics"] for row in rows)]
    costs = (("minutes", "minutes"), ("tokens", "tokens"), ("parameters", "parameters"), ("flops", "FLOPs"))
    texts, keys = [], []
    for row in rows:
        spreads = [row["metrics"].get(name) for name in names]
        texts.append(
            [
                row["label"],
                *(_spread(s) for s in spreads),
                *(_cost(row[name]) for name, _ in costs),
                str(len(row["seeds"])),
            ]
        )
        keys.append(
            [row["label"], *("" if s is None else s["median"] for s in spreads),
             *("" if row[name] is None else row[name] for name, _ in costs), len(row["seeds"])]
        )  # fmt: skip
    page.sortable(["row", *(_title(values, n) for n in names), *(title for _, title in costs), "runs"], texts, keys)
    page.text(
        "Median of the runs, lowest and highest in brackets. Minutes are those of pretraining on one thread. A click "
        "on a heading sorts."
    )


def _spread(spread: Mapping[str, float] | None) -> str:
    if spread is None:
        return "–"
    return f"{_shown(spread['median'])} ({_shown(spread['low'])} to {_shown(spread['high'])})"


def _cost(value: float | None) -> str:
    if value is None:
        return "–"
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


def _paper(page: Page, values: Values, rows: Sequence[Row]) -> None:
    figures = list(dict.fromkeys(name for row in rows for name in row["paper"]))
    if not figures:
        return
    page.heading(f"Beside the paper: {values['paper']['source']}")
    metric = values["decide"]["metric"]
    cells = [
        [row["label"], *(f"{row['paper'][f]:g}" if f in row["paper"] else "–" for f in figures),
         _shown(row["metrics"].get(metric, {}).get("median")), row["beside_paper"]]
        for row in rows
    ]  # fmt: skip
    page.table(["row", *(f"paper: {f}" for f in figures), f"here: {_title(values, metric)}", "do they agree?"], cells)
    page.text(
        "The paper's figures are of networks and budgets many times as large, on other data: only the order of the "
        "rows can agree or disagree."
    )


def _broken(page: Page, values: Values) -> None:
    lines = [
        [row["label"], seed, "; ".join(faults)] for row in values["rows"] for seed, faults in row["broken"].items()
    ]
    if lines:
        page.heading("Runs that are no results")
        page.table(["row", "seed", "why"], lines)
        page.text("They are in no median, interval or verdict above.")


def _settings(page: Page, values: Values) -> None:
    page.heading("What differs")
    lines = []
    for row in values["rows"]:
        for key, old, new in row["settings"]:
            lines.append([row["label"], key, json.dumps(new), json.dumps(old)])
        for name in ("tune", "tokenizer"):
            if row[name]:
                lines.append([row["label"], name, json.dumps(row[name]), "–"])
    if lines:
        page.table(["row", "setting", "value", "in its reference"], lines)
    page.lines([f"{row['label']}: {row['about']}" for row in values["rows"] if row["about"] and not row["note"]])
    notes = sorted({note for row in values["rows"] for note in row["notes"]})
    if notes:
        page.lines(notes)


def _reading(values: Values) -> list[str]:
    decide = values["decide"]
    lines = [
        f"Scale {values['scale']}: {values['scale_about']}." if values["scale_about"] else f"Scale {values['scale']}.",
        "Rows are paired: the same seeds, the same held-out rows and masks, the same pairs of BLiMP, the same examples "
        "of the tasks. Intervals come from drawing seeds and examples together (multi-bootstrap, arXiv 2106.16163; "
        "BLiMP by paradigm); a verdict counts after Holm's correction over the rows.",
        f"{_title(values, decide['metric'])} decides, because it has the least noise.",
    ]
    if decide["difference"]:
        lines.append(f"A difference below {decide['difference']:g} does not matter, however sure it is.")
    return lines
