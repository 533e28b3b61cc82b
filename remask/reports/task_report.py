"""The page about a fine-tuning run: scores with their spread, classes, confusions, calibration, the surest mistakes.

In: the contents of a results.json of `remask finetune`, for one task or several, or of `remask evaluate MODEL --test
FILE`. Out: one HTML page. What a kind of task does not have (a regression has no classes) is left out. Not here: how
anything was measured (tasks/).
"""

from __future__ import annotations

from remask.reports.charts import MAX_NUMBERED, Bar, Point, Series, bar_chart, heat_map, line_chart, point_map
from remask.reports.page import Page, Tile
from remask.schema import Values
from remask.tasks.metrics import certainty, shown_names

MAX_CONFUSIONS = 20  # pairs of classes that are named where the matrix is too large for names
MAX_BARS = 30  # classes with a bar of their own
MAX_TEXT = 240


def finetune_report(values: Values, model: str) -> str:
    """The whole page. `model`: the folder of the model, for whoever wants to try it."""
    best = next(run for run in values["runs"] if run["seed"] == values["seeds"]["best"])
    start = values["init"] if values["init_weights"] else f"{values['init']}, with random weights"
    page = Page(f"Fine-tuning: {values['task']}", f"from {start}")
    page.tiles(_tiles(values))
    page.playground(model)
    for note in values["notes"]:
        page.text(f"Note: {note}.")
    page.heading("Scores")
    _scores(page, values, best)
    curves = [
        Series(f"seed {run['seed']}", [(entry["step"], entry[values["metric"]]) for entry in run["history"]])
        for run in values["runs"]
    ]
    if any(len(curve.points) > 1 for curve in curves):
        chart = line_chart(curves, x_name="step", y_name=values["metric"])
        page.figure(chart, f"{values['metric']} on the dev data, by step")
    _behind_scores(page, f"By class (seed {best['seed']})", best, values["labels"])
    if "map" in values:
        _map(page, values["map"])
    return page.html()


def file_report(values: Values) -> str:
    """The page about a finished model on a labelled file: `remask evaluate MODEL --test FILE`."""
    page = Page(f"Scores: {values['task']}", f"{values['model']} on {values['file']}")
    tiles = [Tile(f"{values['metrics'][values['metric']]:.3f}", values["metric"])]
    tiles += _baseline_tile(values)
    page.tiles([*tiles, Tile(f"{values['data']['test']:,}", "examples scored")])
    for note in values["notes"]:
        page.text(f"Note: {note}.")
    page.heading("Scores")
    _scores(page, values, values)
    _behind_scores(page, "By class", values, values["labels"])
    return page.html()


def _baseline_tile(values: Values) -> list[Tile]:
    name, baseline = values["metric"], values["data"]["baseline"]
    least = values["data"].get("baseline_words", "always giving the same answer")
    return [Tile(f"{baseline[name]:.3f}", f"{name} of {least}")] if name in baseline else []


def _scores(page: Page, values: Values, result: Values) -> None:
    """Every metric with how sure it is and what needs no model; then what the seeds say together."""
    baseline, count = values["data"]["baseline"], values["data"].get("dev", values["data"].get("test", 0))
    rows = [
        [name, spread["median"], certainty(name, spread, count, result.get("intervals")), baseline.get(name, "")]
        for name in shown_names(values["spread"], values["metric"])
        if (spread := values["spread"][name])
    ]
    if "ensemble" in values:
        together = values["ensemble"]
        rows.append(
            [f"{values['metric']}, ensemble of {together['models']}", together["metrics"][values["metric"]], "", ""]
        )
    least = values["data"].get("baseline_words", "always the same answer")
    page.table(["metric", "score", "lowest to highest, or 95 % interval", least], rows)


def _behind_scores(page: Page, heading: str, result: Values, labels: list[str]) -> None:
    """What one evaluation has besides its metrics."""
    if "table" in result:
        _classes(page, heading, result["table"])
    if "tags" in result:
        _classes(page, "By tag of a word", result["tags"])
    if "confusion" in result:
        _confusion(page, result["confusion"], labels)
    if "calibration" in result:
        _calibration(page, result["calibration"])
    if result.get("worst"):
        _mistakes(page, result["worst"], result.get("worst_by", "confidence"))


def tasks_report(values: Values) -> str:
    """The page about several tasks over one encoder: each beside its score when trained alone, where that is known."""
    start = values["init"] if values["init_weights"] else f"{values['init']}, with random weights"
    page = Page("Fine-tuning: several tasks over one encoder", f"from {start}")
    page.tiles([Tile(f"{values['mean']['median']:.3f}", "mean over the tasks, median of the seeds")])
    page.heading("Scores")
    alone = values.get("single", {})
    # Of one seed, median, lowest and highest are one number: one column.
    several = any(len(result["runs"]) > 1 for result in values["tasks"].values())
    columns = {"median": "together", **({"low": "lowest", "high": "highest"} if several else {})}
    rows = []
    for name, result in values["tasks"].items():
        spread = result["spread"][result["metric"]]
        row = [name, result["metric"], *(spread[key] for key in columns)]
        if alone:
            other = alone[name]["spread"][result["metric"]]
            row += [*(other[key] for key in columns), spread["median"] - other["median"]]
        rows.append(row)
    beside = ["alone", *list(columns.values())[1:], "difference"] if alone else []
    page.table(["task", "metric", *columns.values(), *beside], rows)
    for name, result in values["tasks"].items():
        curves = [
            Series(f"seed {run['seed']}", [(entry["step"], entry[result["metric"]]) for entry in run["history"]])
            for run in result["runs"]
        ]
        page.figure(line_chart(curves, x_name="step", y_name=result["metric"]), f"{name}: {result['metric']}, by step")
        for note in result["notes"]:
            page.text(f"Note: {name}: {note}.")
    return page.html()


def _tiles(values: Values) -> list[Tile]:
    spread, count = values["spread"][values["metric"]], values["seeds"]["count"]
    meaning = f"{values['metric']}, " + (f"median of {count} seeds" if count > 1 else "one seed")
    tiles = [Tile(f"{spread['median']:.3f}", meaning)]
    if count > 1:
        tiles.append(Tile(f"{spread['low']:.3f} to {spread['high']:.3f}", "lowest and highest seed"))
    tiles += _baseline_tile(values)
    tiles.append(Tile(f"{values['data']['train']:,} / {values['data']['dev']:,}", "examples to train on / to score"))
    return tiles


def _classes(page: Page, heading: str, table: Values) -> None:
    """A bar for each class, the worst first; the numbers behind them in a table."""
    page.heading(heading)
    classes = sorted(table["classes"].items(), key=lambda item: (item[1]["f1"], item[0]))
    bars = [
        Bar(name, row["f1"], text=f"{row['f1']:.2f} of {row['support']:,}", is_quiet=not row["support"])
        for name, row in classes[:MAX_BARS]
    ]
    which = f"the {MAX_BARS} lowest of {len(classes)} classes" if len(classes) > MAX_BARS else "lowest first"
    page.figure(bar_chart(bars, label="F1 by class"), f"F1 of each class and its examples, {which}.")
    rows = [*table["classes"].items(), *table["averages"].items()]
    page.table(
        ["class", "precision", "recall", "F1", "support"],
        [[name, row["precision"], row["recall"], row["f1"], row["support"]] for name, row in rows],
        folded="precision, recall and averages" if len(rows) > 12 else "",
    )


def _confusion(page: Page, counts: list[list[int]], labels: list[str]) -> None:
    page.heading("What was taken for what")
    chart = heat_map(counts, labels, row_name="true", column_name="said")
    caption = "Each row is a class, shaded by the share of its examples. What is right lies on the diagonal."
    page.figure(chart, caption)
    if len(labels) > MAX_NUMBERED:
        count = len(labels)
        pairs = [(counts[i][j], labels[i], labels[j]) for i in range(count) for j in range(count) if i != j]
        often = sorted((pair for pair in pairs if pair[0]), key=lambda pair: -pair[0])[:MAX_CONFUSIONS]
        page.text(f"The {len(often)} most frequent confusions of {count} classes.")
        page.table(["times", "true", "said"], often)


def _calibration(page: Page, calibration: Values) -> None:
    page.heading("Is it as sure as it is right?")
    width = 1 / len(calibration["bins"])
    bars = [
        Bar(
            f"{i * width:.0%} to {(i + 1) * width:.0%} sure",
            group["accuracy"],
            text=f"{group['accuracy']:.0%} of {group['count']:,}",
            mark=group["confidence"],
        )
        for i, group in enumerate(calibration["bins"])
        if group["count"]
    ]
    error = calibration["expected_calibration_error"]
    page.figure(
        bar_chart(bars, label="share right by confidence"),
        "The bar is the share that is right, the upright mark how sure the model was: a bar that falls short of its "
        f"mark was too sure. Mean distance {error:.3f}.",
    )


def _map(page: Page, found: Values) -> None:
    page.heading("A map of the texts")
    points = [Point(p["x"], p["y"], p["label"], _short(p["text"])) for p in found["points"]]
    page.figure(
        point_map(points, label="a map of the scored texts"),
        f"{len(points):,} scored texts by the state that the answer is read from, coloured by their true class: close "
        f"together means alike to the model. Two directions show {found['shown']:.0%} of the variance.",
    )


def _mistakes(page: Page, worst: list[Values], by: str) -> None:
    page.heading("The mistakes it was surest of" if by == "confidence" else f"The worst mistakes, by {by}")
    rows = [[_short(m["text"]), m["label"], m["prediction"], m["confidence"]] for m in worst]
    page.table(["text", "label", "said", by], rows)


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
