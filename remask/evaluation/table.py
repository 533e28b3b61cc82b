"""The table of an evaluation: what is printed of many tasks, and GLUE's average."""

from __future__ import annotations

import json
from collections.abc import Mapping

from remask.evaluation import file
from remask.evaluation.settings import GROUPS
from remask.schema import Json, Values
from remask.tasks.metrics import certainty, shown_names
from remask.tasks.specs import TASKS

NOT_IN_MEAN = ("glue:wnli",)  # as in the paper's averages over dev sets: its dev set contradicts its training set


def glue_mean(results: Mapping[str, Values]) -> Json | None:
    """GLUE's average over the tasks at hand: the mean of a task's official metrics, MNLI's two parts as one task."""
    scores: dict[str, list[float]] = {}
    for task, result in results.items():
        if task in GROUPS["glue"] and task not in NOT_IN_MEAN:
            part = [result["metrics"][name] for name in official(task)]
            scores.setdefault(TASKS[task].get("model_of", task), []).append(sum(part) / len(part))
    if len(scores) < 2:
        return None
    means = {task: sum(parts) / len(parts) for task, parts in scores.items()}
    return {"mean": sum(means.values()) / len(means), "tasks": means, "left_out": list(NOT_IN_MEAN)}


def official(task: str) -> tuple[str, ...]:
    spec = TASKS[task]
    return spec.get("official", (spec["metric"],))


def render(values: Values) -> str:
    """One table: task, metric, score with its spread, sizes; then the other metrics and what to know."""
    if "file" in values:
        return file.render(values)
    start = "" if values["init_weights"] else " (from scratch)"
    rows = [["task", "metric", "score", "lowest to highest", "baseline", "train", "dev"]]
    details: list[str] = []
    for task, result in values["tasks"].items():
        rows += _rows(task, result, start)
        shown = official(task) if task in TASKS else (result["metric"],)
        names = [name for name in shown_names(result["metrics"], result["metric"]) if name not in shown]
        others = [f"{name} {_number(result['metrics'][name])}" for name in names]
        details += [f"{task}: {', '.join(others)}"] if others else []
        details += [f"{task}: {note}" for note in result["notes"]]
        details += [f"{task}: {name} {value:.4f}" for name, value in result.get("categories", {}).items()]
        details += [f"{task}: tried {json.dumps(tried)}" for tried in result.get("grid", ())]
    if "glue" in values:
        count = len(values["glue"]["tasks"])
        rows.append([f"glue{start}", f"mean of {count}", f"{values['glue']['mean']:.4f}", "", "", "", ""])
    details += [f"{task}: skipped: {reason}" for task, reason in values["skipped"].items()]
    details += [
        f"{name}: {count:,} answers for the leaderboard" for name, count in values.get("submission", {}).items()
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join([*lines, "", *details]).rstrip()


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 100 else f"{value:,.1f}"


def _rows(task: str, result: Values, start: str) -> list[list[str]]:
    sizes = [f"{result['data'][part]:,}" if part in result["data"] else "" for part in ("train", "dev")]
    baseline = result["data"].get("baseline", {})
    rows: list[list[str]] = []
    for name in official(task) if task in TASKS else (result["metric"],):
        spread = result.get("spread", {}).get(name)
        beside = certainty(name, spread, result["data"].get("dev", 0)) if spread else ""
        least = _number(baseline[name]) if name in baseline else ""
        first, *last = ["", "", ""] if rows else [f"{task}{start}", *sizes]
        rows.append([first, name, _number(result["metrics"][name]), beside, least, *last])
    if "ensemble" in result:
        together, name = result["ensemble"], result["metric"]
        rows.append(["", name, f"{together['metrics'][name]:.4f}", f"ensemble of {together['models']}", "", "", ""])
    return rows
