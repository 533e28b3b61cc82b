"""A study's rows as runs: every row and seed is a cell with a whole pretraining run and a fingerprint.

In: a StudyRun and its scale. Out: cells in the order they are done, and the data that each needs. A fingerprint names
what a cell's result follows from: the run, the contents of data and task files, what is measured. It holds no path and
no label, so a folder made elsewhere fits, and rows that two studies share are done once. Not here: doing anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from remask import artifacts
from remask.config import build_values, dump, fingerprint, merge, nest, value_at
from remask.errors import ConfigError, MissingInputError
from remask.pretraining.settings import PretrainRun
from remask.schema import Values
from remask.studies.settings import MEASURES, ScaleSettings, StudyRow, StudyRun, scale_settings
from remask.tasks.kinds import task_files
from remask.tune.settings import FinetuneRun, recipe_of

VERSION = 1  # of what is measured: a new one makes old results other results
# Added to the seed of a run that goes on from another: with the same seed it would begin with the text and the masks
# that the model has learned from already.
GOES_ON = 1_000_000
# Settings that say how much of another one; `times` multiplies that in their place. data.max_tokens: of the budget.
_FOLLOWS = {
    "model.embedding_size": "model.hidden_size",
    "data.short_length": "data.length",
    "data.shorten_to": "data.length",
}
_EIGHTS = ("model.embedding_size", "data.short_length", "data.shorten_to")  # rounded to a multiple of 8
_DATA_FILES = (".tokens", ".offsets", ".sentences", ".words")


Variant = str  # of the prepared text: settings of another vocabulary as JSON; "": the study's own
PLAIN: Variant = ""


@dataclass(frozen=True)
class Cell:
    """A row with a seed: one training, its evaluations, one result."""

    label: str
    seed: int
    row: StudyRow
    run: PretrainRun  # without paths: those of the machine are put in when it is done
    variant: Variant
    origin: str | None  # the row whose model it goes on from, or takes as it is


@dataclass(frozen=True)
class StudyPlan:
    """All cells of a study."""

    study: StudyRun
    scale: ScaleSettings
    cells: tuple[Cell, ...]

    def cell(self, label: str, seed: int) -> Cell:
        for cell in self.cells:
            if (cell.label, cell.seed) == (label, seed):
                return cell
        seeds = sorted({cell.seed for cell in self.cells})
        raise ConfigError(
            f"row {label!r}, seed {seed}: rows are {', '.join(self.study.rows)}, seeds {seeds[0]} to {seeds[-1]}"
        )

    @property
    def variants(self) -> list[Variant]:
        return list(dict.fromkeys([PLAIN, *(cell.variant for cell in self.cells)]))

    def origin_of(self, cell: Cell) -> Cell | None:
        return None if cell.origin is None else self.cell(cell.origin, cell.seed)


def make_plan(study: StudyRun) -> StudyPlan:
    """Every row is built, so that every mistake in a definition shows here; those that need others come last."""
    scale = scale_settings(study.scale)
    shared = study.settings if study.base else merge(scale.settings, study.settings)
    runs = {label: _run_of(study, label, study.base or scale.base, shared) for label in study.rows}
    cells = []
    for label, row in study.rows.items():
        run = runs[row.model_of or label]
        variant = json.dumps(row.tokenizer, sort_keys=True) if row.tokenizer else PLAIN
        for seed in range(study.seed, study.seed + study.seeds):
            own = run.model_copy(update={"seed": seed + (GOES_ON if row.start_from else 0)})
            cells.append(Cell(label, seed, row, own, variant, row.start_from or row.model_of))
    for label, row in study.rows.items():
        for task in tasks_of(study):
            tuned(StudyPlan(study, scale, ()), task, row, f"{study.name}: rows.{label}.tune")
    return StudyPlan(study, scale, tuple(sorted(cells, key=lambda cell: cell.origin is not None)))


def _run_of(study: StudyRun, label: str, base: str | None, shared: Values) -> PretrainRun:
    row = study.rows[label]
    place = f"{study.name}: rows.{label}.settings"
    values = merge(shared, row.settings)
    if row.times:
        before = build_values(PretrainRun, shared, place=f"{study.name}: settings", base=base)
        for key, factor in row.times.items():
            values = merge(values, nest(key.split("."), _multiplied(before, key, factor, place)))
    for name in ("seed", "prepared", "init_from"):
        if name in values:
            raise ConfigError(f"{place}: {name}: is the study's to say")
    return build_values(PretrainRun, values, place=place, base=base)


def tokens_of(run: PretrainRun) -> float:
    """What a run with a budget in steps or tokens reads, padding aside."""
    if run.train.tokens is not None:
        return float(run.train.tokens)
    batch = run.data.batch
    return float((run.train.steps or 0) * (batch.num_tokens or batch.num_rows * run.data.length))


def _multiplied(before: PretrainRun, key: str, factor: float, place: str) -> float | int:
    value = int(tokens_of(before)) if key == "data.max_tokens" else value_at(dump(before), _FOLLOWS.get(key, key))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{place}: times.{key}: {value!r} is no number that could be multiplied")
    if isinstance(value, float):
        return float(f"{value * factor:.6g}")
    unit = 8 if key in _EIGHTS else 1
    return max(unit, round(value * factor / unit) * unit)


# -------------------------------------------------------------------------------------------------------- tasks


def tasks_of(study: StudyRun) -> list[str]:
    return [evaluation for evaluation in study.evaluations if evaluation not in MEASURES]


def measures_of(study: StudyRun, cell: Cell) -> list[str]:
    """What is measured without training. A model without a sentence loss has no head to ask about sentences, so its
    cell is the same one in tables that ask and in those that do not."""
    asks = cell.run.data.sentence_loss != "none"
    return [name for name in study.evaluations if name in MEASURES and (asks or name != "sentence")]


def tuned(plan: StudyPlan, task: str, row: StudyRow, place: str, **given: object) -> FinetuneRun:
    """The fine-tuning of a task: its recipe, below what scale, study and row say."""
    values: dict[str, object] = {"task": task, "max_train": plan.scale.max_train, "max_dev": plan.scale.max_dev}
    for word in recipe_of(task):
        key, _, text = word.partition("=")
        values = merge(values, nest(key.split("."), _number(text)))
    for more in (plan.scale.tune, plan.study.tune, row.tune, given):
        values = merge(values, more)
    return build_values(FinetuneRun, values, place=place)


def _number(text: str) -> int | float | str:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def task_folder(tasks: str | None, task: str) -> Path:
    """Where a task's files are: GLUE's may lie together in a folder `glue`."""
    if tasks is None:
        raise MissingInputError(f"tasks: which folder has the files of {task}? Give --tasks DIR")
    folder = Path(tasks)
    if not folder.is_dir():
        raise MissingInputError(f"{folder}: no such folder")
    inside = folder / "glue"
    return inside if task.startswith("glue:") and inside.is_dir() else folder


# ------------------------------------------------------------------------------------------------- fingerprints


def cell_fingerprint(plan: StudyPlan, cell: Cell, data: Mapping[Variant, Path]) -> str:
    """What the result follows from."""
    study, scale = plan.study, plan.scale
    run = dump(cell.run)
    for name in ("prepared", "init_from"):
        del run[name]
    del run["train"]["trackers"]
    origin = plan.origin_of(cell)
    values = {
        "version": VERSION,
        "run": run,
        "data": data_fingerprint(data[cell.variant]),
        "origin": None if origin is None else [cell.row.start_from is not None, cell_fingerprint(plan, origin, data)],
        "measures": {name: _limits(scale, name) for name in measures_of(study, cell)},
        "tasks": {
            task: [dump(tuned(plan, task, cell.row, cell.label)), _hashes(task, task_folder(study.tasks, task))]
            for task in tasks_of(study)
        },
        "blimp": _blimp_hash(study.tasks) if "blimp" in study.evaluations else None,
    }
    return fingerprint(values)


def _limits(scale: ScaleSettings, measure: str) -> int | None:
    return {"heldout": scale.heldout_rows, "words": scale.word_documents, "blimp": scale.max_pairs}.get(
        measure, scale.heldout_rows
    )


@cache
def data_fingerprint(prepared: Path) -> str:
    """Of the tokens and the vocabulary, wherever they lie and however they were made."""
    files = artifacts.open_artifact(prepared, "prepared").manifest["files"]
    return fingerprint(
        {
            name: entry["sha256"]
            for name, entry in files.items()
            if name.endswith(_DATA_FILES) or name.startswith("tokenizer/")
        }
    )


@cache
def _hashes(task: str, folder: Path) -> list[str]:
    return [artifacts.sha256_of(path) for path in task_files(task, folder)]


@cache
def _blimp_hash(tasks: str | None) -> str:
    from remask.tasks.blimp import blimp_paths

    folder = task_folder(tasks, "blimp")
    inside = folder / "blimp"
    return fingerprint([artifacts.sha256_of(path) for path in blimp_paths(inside if inside.is_dir() else folder)])


def cell_folder(out: Path, cell: Cell, mark: str) -> Path:
    """The cell's folder under whatever name it was made, else the name it gets."""
    cells = out / "cells"
    short = mark[:12]
    for place in sorted(cells.glob(f"*-{short}")):
        return place
    name = re.sub(r"[^a-z0-9]+", "-", cell.label.lower()).strip("-")[:40] or "row"
    return cells / f"{name}-s{cell.seed}-{short}"


def numbered(study: StudyRun, row: str) -> str:
    """A row by its label or its number from 1."""
    labels: Sequence[str] = list(study.rows)
    if row in labels:
        return row
    if row.isdigit() and 1 <= int(row) <= len(labels):
        return labels[int(row) - 1]
    raise ConfigError(f"--row {row}: must be a label or a number from 1 to {len(labels)}: {', '.join(labels)}")
