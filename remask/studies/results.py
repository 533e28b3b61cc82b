"""What a study found: medians and ranges, differences with intervals, verdicts, what the paper and the user expected.

In: the cells' results. Out: one plain dict, which is NAME.json and all that the page shows. Broken runs (diverged,
above the unigram loss, trained on held-out text, crashed) are listed as such and take no part in any number.
Differences are paired by seed and example (reports/statistics). Not here: how it looks (page).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from remask.config import differences
from remask.reports.statistics import Difference, compare, holm, in_words, verdict
from remask.schema import Json, Values
from remask.studies.cells import Place, read_examples, read_result
from remask.studies.data import MAX_LEAK, leaked_share
from remask.studies.plan import StudyPlan
from remask.studies.settings import StudyRun, metrics_of

TITLES = {
    "bits_per_byte": "bits per byte", "perplexity": "perplexity", "mlm_accuracy": "masked tokens right",
    "word_bits_per_byte": "bits per byte, whole words", "blimp": "BLiMP", "nsp_accuracy": "next sentence",
    "sop_accuracy": "sentence order", "layer_distance": "L2 distance", "layer_angle": "angle in degrees",
    "glue:sst2": "SST-2 accuracy", "glue:cola": "CoLA Matthews", "ner": "NER F1", "squad1": "SQuAD 1.1 F1",
    "squad2": "SQuAD 2.0 F1",
}  # fmt: skip
_CROSSED = {"better": "better", "worse": "worse", "no difference seen": "same"}
Key = tuple[str, int]


def summarise(plan: StudyPlan, places: Mapping[Key, Place], out: Path, crashed: Mapping[Key, str]) -> Json:
    """The whole table."""
    study = plan.study
    table = _Table(plan, places, out, crashed)
    rows = [table.row(label) for label in study.rows]
    metrics = [
        {"name": name, "title": TITLES.get(name, name), "higher_is_better": study.higher_is_better(name)}
        for name in table.metrics
    ]
    table.add_verdicts(rows)
    _rank_by_paper(study, rows)
    values = {
        "name": study.name,
        "title": study.title or study.name,
        "about": study.about,
        "scale": study.scale,
        "scale_about": plan.scale.about,
        "hardware": " / ".join(sorted(table.values_of("hardware"))),
        "date": max(table.values_of("date"), default=time.strftime("%Y-%m-%d", time.gmtime())),
        "metrics": metrics,
        "decide": {"metric": study.decide.metric, "difference": study.decide.difference},
        "paper": {"source": study.paper.source, "by": study.paper.by, "higher": study.paper.higher_is_better},
        "rows": rows,
        "seeds": study.seeds,
    }
    return {**values, "findings": _findings(study, rows)}


class _Table:
    """All cells of a study as they are on the disk."""

    def __init__(self, plan: StudyPlan, places: Mapping[Key, Place], out: Path, crashed: Mapping[Key, str]) -> None:
        self.plan, self.places, self.out, self.crashed = plan, places, out, crashed
        self.results = {key: read_result(place) for key, place in places.items()}
        self.metrics = [metric for evaluation in plan.study.evaluations for metric in metrics_of(evaluation)]
        self._examples: dict[Key, dict[str, np.ndarray]] = {}

    def values_of(self, name: str) -> set[str]:
        return {result[name] for result in self.results.values() if result is not None}

    def seeds(self) -> range:
        return range(self.plan.study.seed, self.plan.study.seed + self.plan.study.seeds)

    def faults(self, label: str, seed: int) -> list[str]:
        """Why a run is no result; none: it is one."""
        result = self.results[label, seed]
        if result is None:
            return [f"crashed: {self.crashed[label, seed]}" if (label, seed) in self.crashed else "not done yet"]
        faults = list(result["broken"])
        cell, data = self.plan.cell(label, seed), self.places[label, seed].data
        share = leaked_share(data[cell.variant], self.out)
        if share > MAX_LEAK:
            faults.append(f"held-out text leaks into training: {share:.1%} of it stands there word for word")
        return faults

    def sound(self, label: str) -> list[int]:
        return [seed for seed in self.seeds() if not self.faults(label, seed)]

    def examples(self, label: str, seed: int, metric: str) -> np.ndarray | None:
        key = (label, seed)
        if key not in self._examples:
            self._examples[key] = read_examples(self.places[key].folder)
        return self._examples[key].get(metric)

    def row(self, label: str) -> Json:
        study, row = self.plan.study, self.plan.study.rows[label]
        sound = self.sound(label)
        results = [result for seed in sound if (result := self.results[label, seed]) is not None]
        reference = study.reference_of(label)
        run = self.plan.cell(label, study.seed).run
        other = None if reference is None else self.plan.cell(reference, study.seed).run
        changed = [] if other is None else differences(other.model_dump(mode="json"), run.model_dump(mode="json"))
        costs = {name: _median([r[name] for r in results]) for name in ("tokens", "minutes", "parameters", "flops")}
        return {
            "label": label,
            "about": row.about,
            "note": row.note,
            "decide": row.decide or study.decide.metric,
            "against": reference,
            "seeds": sound,
            "broken": {str(seed): faults for seed in self.seeds() if (faults := self.faults(label, seed))},
            "metrics": {
                metric: _spread([r["metrics"][metric] for r in results])
                for metric in self.metrics
                if results and all(metric in r["metrics"] for r in results)
            },
            **costs,
            "evaluation_minutes": _median([r["evaluation_minutes"] for r in results]),
            "settings": [[key, old, new] for key, old, new in changed],
            "tune": row.tune,
            "tokenizer": row.tokenizer,
            "paper": row.paper,
            "expected": study.expect.get(label),
            "curves": [{"seed": r["seed"], "points": r["curves"]["bits_per_byte"]} for r in results],
            "layers": [r["shown"]["layers"]["layers"] for r in results if "layers" in r.get("shown", {})],
            "notes": sorted({note for r in results for notes in r.get("notes", {}).values() for note in notes}),
            "runs": [{"seed": r["seed"], "metrics": r["metrics"], "minutes": r["minutes"]} for r in results],
            "verdicts": {},
        }

    # ------------------------------------------------------------------------------------------------- verdicts

    def add_verdicts(self, rows: Sequence[Json]) -> None:
        """Every row against its reference by every metric; p values are corrected over the rows of the table."""
        for metric in self.metrics:
            differences = {row["label"]: d for row in rows if (d := self._difference(row, metric)) is not None}
            main = [row["label"] for row in rows if row["label"] in differences and not row["note"]]
            corrected = dict(zip(main, holm([differences[label].p for label in main]), strict=True))
            for row in rows:
                if (difference := differences.get(row["label"])) is not None:
                    p = corrected.get(row["label"], difference.p)
                    row["verdicts"][metric] = self._worded(metric, difference, p)

    def _difference(self, row: Values, metric: str) -> Difference | None:
        """None: nothing to compare with, or not two sound seeds that both rows have."""
        label, reference = row["label"], row["against"]
        if reference is None:
            return None
        both = [seed for seed in self.sound(label) if seed in self.sound(reference)]
        ours = [self.examples(label, seed, metric) for seed in both]
        theirs = [self.examples(reference, seed, metric) for seed in both]
        arrays = [values for values in (*ours, *theirs) if values is not None]
        if len(both) < 2 or len(arrays) < 2 * len(both) or len({len(values) for values in arrays}) > 1:
            return None
        return compare(np.stack(arrays[len(both) :]), np.stack(arrays[: len(both)]))

    def _worded(self, metric: str, difference: Difference, p: float) -> Json:
        study = self.plan.study
        higher = study.higher_is_better(metric)
        words = in_words(difference, p=p, higher_is_better=higher)
        word = verdict(difference, p=p, higher_is_better=higher)
        matters = study.decide.difference if metric == study.decide.metric else 0.0
        if word != "no difference seen" and abs(difference.value) < matters:
            words += f"; less than the {matters:g} that matters"
        elif word == "no difference seen" and matters and difference.smallest > matters:
            words += f"; too few seeds to see the {matters:g} that matters"
        return {
            "word": word, "value": difference.value, "low": difference.low, "high": difference.high, "p": p,
            "smallest": difference.smallest, "words": words,
        }  # fmt: skip


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


# -------------------------------------------------------------------------------- the paper's order and expectations


def _rank_by_paper(study: StudyRun, rows: Sequence[Json]) -> None:
    """The place of each row in the paper's order, 1 the best; None: it has no such figure."""
    by = study.paper.by
    given = [row for row in rows if by in row["paper"]]
    order = sorted({row["paper"][by] for row in given}, reverse=study.paper.higher_is_better)
    for row in rows:
        row["paper_rank"] = order.index(row["paper"][by]) + 1 if by in row["paper"] else None
        row["beside_paper"] = _beside_paper(study, row, rows)
        row["beside_expected"] = _beside_expected(row)


def _beside_paper(study: StudyRun, row: Values, rows: Sequence[Values]) -> str:
    """Whether the paper's difference is seen here too, said plainly."""
    by, reference = study.paper.by, next((r for r in rows if r["label"] == row["against"]), None)
    ours = row["verdicts"].get(row["decide"])
    if reference is None or ours is None or by not in row["paper"] or by not in reference["paper"]:
        return ""
    change = row["paper"][by] - reference["paper"][by]
    if change == 0:
        theirs = "the same"
    else:
        theirs = "better" if (change > 0) == study.paper.higher_is_better else "worse"
    figures = f"{theirs} in the paper ({by} {row['paper'][by]:g} against {reference['paper'][by]:g})"
    if ours["word"] == "no difference seen":
        return f"{figures}; no difference seen here"
    if ours["word"] == theirs:
        return f"{figures}, and here"
    return f"disagrees: {figures}, {ours['word']} here"


def _beside_expected(row: Values) -> str:
    ours = row["verdicts"].get(row["decide"])
    if row["expected"] is None:
        return ""
    if ours is None:
        return f"expected {row['expected']}; nothing came out"
    came = _CROSSED[ours["word"]]
    if came == row["expected"]:
        return f"expected {row['expected']}, as it came out"
    return f"expected {row['expected']}, came out: {ours['word']}"


def _findings(study: StudyRun, rows: Sequence[Values]) -> list[str]:
    """A line for every row: the verdict of the metric that decides, beside the paper and what was expected."""
    lines = []
    for row in rows:
        metric = TITLES.get(row["decide"], row["decide"])
        verdict = row["verdicts"].get(row["decide"])
        if row["broken"]:
            lines.append(f"{row['label']}: {len(row['broken'])} of {study.seeds} runs are no results")
        if verdict is None:
            continue
        beside = [text for text in (row["beside_paper"], row["beside_expected"]) if text]
        first = f"{row['label']} against {row['against']}, {metric}: {verdict['words']}"
        lines.append(". ".join([first, *(text[0].upper() + text[1:] for text in beside)]) + ".")
    return lines
