"""`remask finetune`'s work: a pretrained model and a labelled file -> a model that answers, with its scores.

In: MODEL, a task and its files. Out: OUT/model (the best seed's best weights), OUT/results.json (every seed, median and
spread, tables, mistakes), OUT/report.html, OUT/seed-N (log, best weights). What learns is all of the network, its top
layers, LoRA or the heads. `init_weights: false` trains the same network from scratch. The same call in the same folder
goes on. Not here: a seed's training (seed), one task (single), several at once (several), values to try (sweep).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from remask.progress import Progress
from remask.schema import Json, Values
from remask.tasks import metrics
from remask.tune import curve, several, single, sweep, unlabelled
from remask.tune.seed import Report
from remask.tune.settings import FinetuneRun


def finetune(
    run: FinetuneRun, out: Path, *, progress: Progress, allow_change: Sequence[str] = (), report: Report | None = None
) -> Json:
    """All seeds, then the best one's model and results.json. `report` hears every score of the first seed."""
    if run.grid.given():
        return sweep.tune_grid(finetune, run, out, progress=progress, allow_change=allow_change)
    if run.curve.labels:
        return curve.tune_curve(finetune, run, out, progress=progress, allow_change=allow_change)
    if run.unlabelled.file is not None:
        return unlabelled.tune_unlabelled(finetune, run, out, progress=progress, allow_change=tuple(allow_change))
    tune = several.tune_several if run.tasks else single.tune_single
    return tune(run, out, progress=progress, allow_change=allow_change, report=report)


def check(run: FinetuneRun, progress: Progress) -> None:
    """Everything but training: every mistake in the model and the files shows."""
    if run.tasks:
        several.prepare(run, progress)
    else:
        single.prepare(run, progress)


def render(values: Values) -> str:
    """The result for a person: the table of the best seed, the metrics with their spread, what to know."""
    if "curve" in values:
        return curve.render(values)
    lines = []
    if "grid" in values:
        lines += [sweep.render(values), ""]
    if "tasks" in values:
        return "\n".join([*lines, several.render(values)])
    best = next(r for r in values["runs"] if r["seed"] == values["seeds"]["best"])
    count = values["seeds"]["count"]
    origin = f"{f'median of {count} seeds' if count > 1 else 'one seed'}; * chooses between models"
    return "\n".join([*lines, *score_lines(values, best, origin), f"model: {values['model']}"])


def score_lines(values: Values, tables: Values, origin: str) -> list[str]:
    """A model's tables and metrics. `origin`: where the numbers come from."""
    lines = []
    for table in ("table", "tags"):  # of tags: by type of entity, then by tag of word
        lines += [metrics.render(tables[table]), ""] if table in tables else []
    baseline, count = values["data"]["baseline"], values["data"].get("dev", values["data"].get("test", 0))
    header = f"  {'':24} {'score':>8}  {'':25}"
    least_words = values["data"].get("baseline_words", "always the same answer")
    lines.append(f"{header}  {least_words}" if baseline else header.rstrip())
    for name in metrics.shown_names(values["spread"], values["metric"]):
        spread = values["spread"][name]
        mark = "*" if name == values["metric"] else " "
        beside = metrics.certainty(name, spread, count, tables.get("intervals"))
        least = f"  {baseline[name]:.4f}" if name in baseline else ""
        lines.append(f"{mark} {name:24} {spread['median']:8.4f}  {beside:25}{least}".rstrip())
    if "ensemble" in values:
        together = values["ensemble"]
        score = together["metrics"][values["metric"]]
        lines.append(f"  {'ensemble of ' + str(together['models']):24} {score:8.4f}  {values['metric']}")
    lines.append(f"  {origin}")
    return [*lines, *(f"  note: {note}" for note in values["notes"])]
