"""The table of kinds, and a task by its name: its examples, its files, what is stored of it beside a model.

In: a task's name (a kind for the user's own files, or a named one of specs) and its files. Out: a `Problem`, or a
labelled file for a model that has learned the task. `StoredTask` is what task.json holds: everything that is needed to
ask a fine-tuned model as it was trained. Not here: what a kind does (kind, texts, tags, spans, choices).
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from remask.config import dump
from remask.data.order import key_of, permute
from remask.errors import ConfigError, DataError, MissingInputError
from remask.tables import unchanged
from remask.tasks.choices import Choices
from remask.tasks.glue import find_file
from remask.tasks.kind import Heads, Problem, TaskKind, TaskSource
from remask.tasks.prompts import Prompt
from remask.tasks.race import race_paths
from remask.tasks.retrieve import Retrieve
from remask.tasks.settings import DecodeSettings, RowSettings, TableSettings
from remask.tasks.spans import CharacterSpans, Spans
from remask.tasks.specs import TASKS
from remask.tasks.tags import Tags
from remask.tasks.texts import Classify, MultiLabel, Regress
from remask.tasks.write import Reply, Summarise, Translate, Write
from remask.tokenizer import Tokenizer

TASK_JSON = "task.json"
KINDS: dict[str, TaskKind] = {
    kind.name: kind
    for kind in (
        Classify(),
        Regress(),
        MultiLabel(),
        Prompt(),
        Tags(),
        Spans(),
        CharacterSpans(),
        Choices(),
        Retrieve(),
        Write(),
        Translate(),
        Summarise(),
        Reply(),
    )
}
# The user's own files: the name of a task -> its kind.
OWN_TASKS = {
    "classify": "classify", "regress": "regress", "multilabel": "multilabel", "pair": "classify", "ner": "tags",
    "qa": "spans", "choice": "choice", "prompt": "prompt", "retrieve": "retrieve",
    "write": "write", "translate": "translate", "summarise": "summarise", "reply": "reply",
}  # fmt: skip


def kind_of(task: str) -> TaskKind:
    """The kind of a task by its name, or an error with the nearest one."""
    if task in TASKS:
        return KINDS[TASKS[task]["kind"]]
    if task in OWN_TASKS:
        return KINDS[OWN_TASKS[task]]
    known = [*OWN_TASKS, *TASKS]
    near = difflib.get_close_matches(task, known, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"task = {task!r}: must be one of {', '.join(known)}{hint}")


def kinds_for(heads: Heads) -> list[TaskKind]:
    """The kinds of tasks that a network with these heads answers."""
    return [kind for kind in KINDS.values() if kind.fits(heads)]


# ------------------------------------------------------------------------------------------------- examples


def open_problem(source: TaskSource, *, max_train: int | None = None, max_dev: int | None = None) -> Problem:
    """Read a task's files: given ones, or those that a named task has in a folder."""
    with unchanged(_files_of(source)):
        problem = kind_of(source.task).open(source)
    return complete(problem, max_train, max_dev)


def complete(problem: Problem, max_train: int | None, max_dev: int | None) -> Problem:
    """What was read, with what there is to say about it and no more examples than asked for."""
    problem = replace(problem, notes=(*problem.notes, *_shared_notes(problem)))
    problem = _with_fewer(problem, "train", max_train, "trained on")
    problem = _with_fewer(problem, "dev", max_dev, "scored on")
    counts = {"train": len(problem.train), "dev": len(problem.dev)}
    baseline = problem.kind.baseline(problem.train, problem.dev, problem.labels)
    classes = {}
    if problem.labels and hasattr(problem.train[0], "label"):
        seen = Counter(name for item in problem.train for name in _names(item.label))
        classes = {"classes": {name: seen[name] for name in problem.labels}}
    return replace(
        problem, facts={**counts, **problem.facts, **classes, "baseline": baseline, **_baseline_words(problem.kind)}
    )


def _baseline_words(kind: TaskKind) -> dict[str, str]:
    """What the baseline is, where it is not the usual one."""
    return {} if kind.baseline_words == TaskKind.baseline_words else {"baseline_words": kind.baseline_words}


def _files_of(source: TaskSource) -> list[Path]:
    """What is read of a task."""
    given = [path for path in (source.train, source.dev) if path is not None]
    if source.folder is None or source.task not in TASKS or len(given) == 2:
        return given
    with contextlib.suppress(MissingInputError):  # which says itself what is missing
        return task_files(TASKS[source.task].get("form_of", source.task), source.folder)
    return given


def _names(label: str | Sequence[str]) -> Sequence[str]:
    return (label,) if isinstance(label, str) else label


def _shared_notes(problem: Problem) -> list[str]:
    """What stands in both files is known before it is asked."""
    seen = {problem.kind.key(item) for item in problem.train}
    repeated = sum(problem.kind.key(item) in seen for item in problem.dev)
    return [f"{repeated:,} of {len(problem.dev):,} dev texts are also in the training data"] if repeated else []


def _with_fewer(problem: Problem, part: str, most: int | None, words: str) -> Problem:
    """At most so many examples, drawn by a key that is the same for all models; a note says so."""
    items = problem.train if part == "train" else problem.dev
    if most is None or most >= len(items):
        return problem
    chosen = np.sort(permute(np.arange(most), len(items), key_of("subset of a task", part)))
    kept = [items[int(i)] for i in chosen]
    notes = (*problem.notes, f"{words} {most:,} of {len(items):,} examples")
    return replace(problem, train=kept, notes=notes) if part == "train" else replace(problem, dev=kept, notes=notes)


def task_files(task: str, folder: Path) -> list[Path]:
    """The files that a named task is read from, for a fingerprint; MissingInputError where they are not there."""
    if task != "race":
        return [find_file(TASKS[task], part, folder) for part in ("train", "dev")]
    train, dev = race_paths(folder)
    return [file for path in (*train, *dev) for file in ([path] if path.is_file() else sorted(path.rglob("*.txt")))]


# -------------------------------------------------------------------------------------- what a model was taught


_LIKELIEST = DecodeSettings()


@dataclass(frozen=True)
class StoredTask:
    """A task as a fine-tuned model learned it. `name` is None for a foreign model, which does not say."""

    name: str | None
    kind: TaskKind
    labels: tuple[str, ...]
    metric: str
    table: TableSettings
    rows: RowSettings
    prompts: Mapping[str, str] = field(default_factory=dict)  # name -> what stands before a text, see Model.embed
    decode: DecodeSettings = _LIKELIEST  # of a kind that writes

    @property
    def drafting(self) -> tuple[DecodeSettings, int] | None:
        """How a kind that writes does so, and its most tokens."""
        return (self.decode, self.decode.max_length or self.rows.target_length) if self.kind.writes else None

    def to_json(self) -> bytes:
        values = {
            "task": self.name,
            "kind": self.kind.name,
            "labels": list(self.labels),
            "metric": self.metric,
            "table": dump(self.table),
            "rows": dump(self.rows),
            **({"decode": dump(self.decode)} if self.kind.writes else {}),
            **({"prompts": dict(self.prompts)} if self.prompts else {}),
            **({"own": own} if (own := self.kind.stored()) else {}),
        }
        return json.dumps(values, indent=1, ensure_ascii=False).encode()

    @classmethod
    def read(cls, folder: Path) -> StoredTask | None:
        """What a model's folder says about its task; None: it was not fine-tuned here."""
        path = folder / TASK_JSON
        if not path.is_file():
            return None
        try:
            known = json.loads(path.read_bytes())
            kind = KINDS[known["kind"]].restored(known.get("own", {}))
            table = TableSettings.model_validate_json(json.dumps(known["table"]))
            rows = RowSettings.model_validate_json(json.dumps(known["rows"]))
            labels, metric = tuple(known["labels"]), known.get("metric", kind.metric)
            prompts = checked_prompts(known.get("prompts", {}))
            decode = DecodeSettings.model_validate_json(json.dumps(known.get("decode", {})))
            return cls(known["task"], kind.with_prompts(prompts), labels, metric, table, rows, prompts, decode)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: damaged: {str(error).splitlines()[0]}") from error

    def bound(self, tokenizer: Tokenizer) -> StoredTask:
        """The task for one vocabulary."""
        return replace(self, kind=self.kind.bound(tokenizer, self.labels))

    @classmethod
    def by_heads(cls, kind: TaskKind, heads: Heads, labels: tuple[str, ...] | None) -> StoredTask:
        """What can be told of a model that does not say: its kind, and its labels where it names them."""
        count = kind.num_labels(heads)
        names = (labels or tuple(f"LABEL_{i}" for i in range(count))) if count else ()
        return cls(None, kind, names, kind.metric, TableSettings(), RowSettings())

    def labelled(self, path: Path, table: TableSettings, *, named: bool, max_dev: int | None = None) -> Problem:
        """A labelled file that this model has not seen: it is all dev, and nothing is trained on. `named`: the file
        has the layout of the task of this name, where it is one; else `table` says the columns."""
        if not path.exists():
            raise MissingInputError(f"{path}: no such file")
        with unchanged([path]):
            read = self.kind.read_labelled(path, self.name if named else None, self.labels, table)
        problem = Problem(
            self.name or self.kind.name, self.kind, self.labels, self.metric, (), read.items, tuple(read.notes),
            read.facts,
        )  # fmt: skip
        problem = _with_fewer(problem, "dev", max_dev, "scored on")
        baseline = self.kind.baseline(problem.dev, problem.dev, self.labels)
        return replace(
            problem,
            facts={"test": len(problem.dev), **problem.facts, "baseline": baseline, **_baseline_words(self.kind)},
        )


def checked_prompts(values: object) -> dict[str, str]:
    """Prompts by name as a file has them; ValueError where they are something else."""
    if not isinstance(values, Mapping) or not all(isinstance(v, str) for pair in values.items() for v in pair):
        raise ValueError("prompts must be texts by name")
    return dict(values)


def check_same_labels(problem: Problem, labels: Sequence[str]) -> None:
    """A fine-tuned model can only be scored on a task with its own labels."""
    if tuple(labels) != problem.labels:
        ours, theirs = ", ".join(problem.labels[:8]), ", ".join(tuple(labels)[:8] or ("none",))
        raise DataError(f"task {problem.task} has the labels {ours}, the model has {theirs}")
