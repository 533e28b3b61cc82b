"""What a study says: its rows, what all of them share, how they are measured, what decides. No torch.

In: a definition (runs/studies/NAME.yaml, or a user's own file of the same form) and a scale (runs/studies/scales).
Out: the frozen StudyRun. A row is a difference of a few lines from what all rows share. Not here: the runs that the
rows become (plan), doing them (runner), what is said of them (results, page).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from remask.config import Config, build_run, runs_folder, setting
from remask.errors import ConfigError
from remask.schema import Json
from remask.tasks.specs import TASKS
from remask.workers import Engine

PARENT_VARIABLE = "REMASK_STUDY_PARENT"  # of the environment: a run's process ends with the one that started it
SCALES = ("smoke", "tiny", "small", "base")
Scale = Literal["smoke", "tiny", "small", "base"]
Outcome = Literal["better", "worse", "same"]

# What is measured of a row's model besides tasks of `finetune` -> the metrics that it gives.
MEASURES: dict[str, tuple[str, ...]] = {
    "heldout": ("bits_per_byte", "perplexity", "mlm_accuracy"),
    "words": ("word_bits_per_byte",),
    "blimp": ("blimp",),
    "sentence": ("nsp_accuracy", "sop_accuracy"),
    "layers": ("layer_distance", "layer_angle"),
}
LOWER_IS_BETTER = ("bits_per_byte", "perplexity", "word_bits_per_byte", "layer_distance", "layer_angle")
ALL = ("table1", "table2", "albert4", "albert5", "claims", "table3", "bpe", "table4", "albert3", "albertfig", "optim",
       "habits")  # fmt: skip


def metrics_of(evaluation: str) -> tuple[str, ...]:
    return MEASURES.get(evaluation, (evaluation,))


class StudyRow(Config):
    """One row of a table: what differs from all others."""

    settings: Json = setting({}, "settings of the pretraining run, as a run file has them")
    times: dict[str, float] = setting(
        {}, "dotted settings of the pretraining run that are multiplied, so that a row fits every scale"
    )
    tune: Json = setting({}, "settings of every fine-tuning run")
    tokenizer: Json = setting({}, "settings of the vocabulary (prepare's tokenizer:); needs --corpus")
    start_from: str | None = setting(None, "the row whose model, of the same seed, the training goes on from")
    model_of: str | None = setting(None, "the row whose model is taken as it is: only fine-tuning differs")
    against: str | None = setting(None, "the row that it is compared with; null: the study's reference")
    decide: str | None = setting(None, "the metric that decides on this row; null: the study's")
    note: bool = setting(False, "stands below the table, and takes no part in its verdicts")
    about: str = setting("", "a line that says what it is")
    paper: dict[str, float] = setting({}, "the paper's figures")


class PaperSettings(Config):
    """Which figures of the paper order its rows."""

    source: str = setting("", "where the figures are from")
    by: str = setting("", "the figure that orders the rows")
    higher_is_better: bool = setting(True, "which end of the order is the better one")


class DecideSettings(Config):
    """What a verdict goes by."""

    metric: str = setting("bits_per_byte", "the metric that decides")
    difference: float = setting(0.0, "the smallest difference that matters, in units of the metric", ge=0)


class StudyRun(Config):
    """A study: its definition, and where and at which scale it is done."""

    name: str = setting("", "names the page and the JSON; empty: the file's name", pattern=r"^[A-Za-z0-9_-]*$")
    title: str = setting("", "the question in a line")
    about: str = setting("", "what to know about it")
    base: str | None = setting(
        None, "what all rows start from: a name of runs/bases or a file; null: the network and recipe of the scale"
    )
    settings: Json = setting({}, "settings of the pretraining run that all rows share")
    tune: Json = setting({}, "settings of every fine-tuning run that all rows share")
    rows: dict[str, StudyRow] = setting(..., "the rows by their labels, in the order of the page", min_length=2)
    reference: str | None = setting(None, "the row that others are compared with; null: the first")
    evaluations: tuple[str, ...] = setting(
        ("heldout", "blimp", "glue:sst2", "glue:cola", "ner", "squad1"),
        f"what is measured: {', '.join(MEASURES)}, or a named task of finetune",
        min_length=1,
    )
    decide: DecideSettings = setting(DecideSettings(), "what a verdict goes by")
    expect: dict[str, Outcome] = setting({}, "what is thought of a row against its reference before anything is run")
    paper: PaperSettings = setting(PaperSettings(), "the paper's figures")
    seed: int = setting(0, "the first seed", ge=0)
    seeds: int = setting(3, "runs of each row", ge=1)

    scale: Scale = setting("tiny", f"network, budget and limits of the tasks: {', '.join(SCALES)}")
    corpus: tuple[str, ...] = setting((), "text to prepare: files, folders, globs")
    prepared: str | None = setting(None, "prepared data instead; --data")
    tasks: str | None = setting(None, "folder with the tasks' files; --tasks")
    workers: int = setting(0, "runs side by side; 0: one for each core", ge=0)
    engine: Engine = setting("local", "processes of this machine, or the Ray cluster of RAY_ADDRESS")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for evaluation in self.evaluations:
            if evaluation not in MEASURES and evaluation not in TASKS:
                known = ", ".join([*MEASURES, *TASKS])
                raise ValueError(f"evaluations: {evaluation!r} is not one of {known}")
        measured = [metric for evaluation in self.evaluations for metric in metrics_of(evaluation)]
        deciding = {f"rows.{label}.decide": row.decide for label, row in self.rows.items() if row.decide}
        for key, metric in {"decide.metric": self.decide.metric, **deciding}.items():
            if metric not in measured:
                raise ValueError(f"{key}: {metric!r} is not one of {', '.join(measured)}")
        pointers = {"reference": self.reference, **{f"expect.{label}": label for label in self.expect}}
        for label, row in self.rows.items():
            for key in ("start_from", "model_of", "against"):
                pointers[f"rows.{label}.{key}"] = getattr(row, key)
        for key, label in pointers.items():
            if label is not None and label not in self.rows:
                raise ValueError(f"{key}: there is no row {label!r}; the rows are {', '.join(self.rows)}")
        for label, row in self.rows.items():
            self._check_origin(label, row)
        return self

    def _check_origin(self, label: str, row: StudyRow) -> None:
        if row.model_of and (row.settings or row.times or row.start_from or row.tokenizer):
            raise ValueError(f"rows.{label}: model_of takes a model as it is; only tune may differ")
        origin = row.model_of or row.start_from
        if origin and (self.rows[origin].model_of or self.rows[origin].start_from):
            raise ValueError(f"rows.{label}: {origin} has its model from another row itself; name that one")

    def reference_of(self, label: str) -> str | None:
        """The row that this one is compared with; None: it is what others are compared with."""
        reference = self.rows[label].against or self.reference or next(iter(self.rows))
        return None if reference == label else reference

    def higher_is_better(self, metric: str) -> bool:
        return metric not in LOWER_IS_BETTER


class ScaleSettings(Config):
    """How large everything is."""

    about: str = setting("", "what it is meant for")
    base: str | None = setting(None, "a name of runs/bases")
    settings: Json = setting({}, "settings of the pretraining run")
    vocab_size: int = setting(16384, "entries of a vocabulary that the study trains", ge=300)
    tune: Json = setting({}, "settings of every fine-tuning run")
    max_train: int | None = setting(None, "examples of a task that are trained on at most", ge=1)
    max_dev: int | None = setting(None, "examples of a task that are scored at most", ge=1)
    max_pairs: int | None = setting(None, "BLiMP: pairs of each paradigm", ge=1)
    heldout_rows: int = setting(512, "rows of held-out text that are measured", ge=1)
    word_documents: int = setting(64, "held-out documents whose words are measured", ge=1)


def scale_settings(name: str) -> ScaleSettings:
    return build_run(ScaleSettings, runs_folder() / "studies" / "scales" / f"{name}.yaml").run


def definition_file(name: str) -> Path:
    """A definition by its name, or a file of the user's own."""
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    folder = runs_folder() / "studies"
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        raise ConfigError(f"study {name!r}: must be all, a file NAME.yaml, or one of {', '.join(known)}")
    return folder / f"{name}.yaml"
