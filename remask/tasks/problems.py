"""A task with its data: what finetune trains on, evaluate scores and predict answers, whatever the kind.

In: a task's name (a kind for the user's own files, or a named one of specs) and its files. Out: a `Problem`, its rows,
and scores or answers from what the network said about each row. The functions below are the one place that knows all
kinds. Not here: reading (tables, glue, conll), metrics, the network.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from remask.data.order import key_of, permute
from remask.errors import ConfigError, DataError, MissingInputError
from remask.progress import counted
from remask.tasks import conll, mistakes, predict, race, ranking, squad
from remask.tasks.entities import score_entities
from remask.tasks.glue import cut_by_group, cut_by_hash, find_file, read_glue, read_glue_file
from remask.tasks.rows import Frame, Rows, encode_rows, label_values
from remask.tasks.settings import Kind, LossSettings, RowSettings, TableSettings
from remask.tasks.specs import TASKS
from remask.tasks.squad_scores import score_answers
from remask.tasks.tables import UNSEEN, Table, check_labels, label_names, read_table

Array = np.ndarray
OWN_KINDS: dict[str, Kind] = {
    "classify": "classify", "regress": "regress", "multilabel": "multilabel", "pair": "classify", "ner": "tags",
    "qa": "spans", "choice": "choice",
}  # fmt: skip
METRICS: dict[Kind, str] = {
    "classify": "accuracy", "regress": "spearman", "multilabel": "f1", "tags": "f1", "spans": "f1",
    "choice": "accuracy",
}  # fmt: skip
SET_ASIDE = "that only the rows set aside have, for there is no dev file: give one"
UNEVEN_SHARE = 0.8  # one class this large: accuracy says little


@dataclass(frozen=True)
class Problem:
    """A task's examples (or sentences), its labels, and the metric that chooses between models."""

    task: str
    kind: Kind
    labels: tuple[str, ...]
    metric: str
    train: Sequence[Any]
    dev: Sequence[Any]
    notes: tuple[str, ...]
    facts: Mapping[str, Any]

    @property
    def head(self) -> dict[str, int | bool]:
        """The HeadSettings that this needs."""
        if self.kind == "tags":
            return {"num_tags": len(self.labels)}
        if self.kind == "spans":
            return {"span": True, "answerable": any(not question.answers for question in self.train)}
        if self.kind == "choice":
            return {"choice": True}
        num_classes = 1 if self.kind == "regress" else len(self.labels)
        return {"num_classes": num_classes, "multilabel": self.kind == "multilabel"}


def kind_of(task: str) -> Kind:
    """The kind of a task by its name, or an error with the nearest one."""
    if task in TASKS:
        return TASKS[task]["kind"]
    if task in OWN_KINDS:
        return OWN_KINDS[task]
    known = [*OWN_KINDS, *TASKS]
    near = difflib.get_close_matches(task, known, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"task = {task!r}: must be one of {', '.join(known)}{hint}")


# ------------------------------------------------------------------------------------------------- reading


def open_problem(
    task: str,
    table: TableSettings,
    *,
    train: Path | None,
    dev: Path | None,
    folder: Path | None,
    max_train: int | None = None,
    max_dev: int | None = None,
) -> Problem:
    """Read a task's files: given ones, or those that a named task has in `folder`."""
    kind = kind_of(task)
    if task == "pair" and table.text2 is None:
        raise ConfigError("task pair needs two text columns: --text COL --text2 COL")
    if kind == "tags":
        problem = _open_tags(task, table, train, dev, folder)
    elif kind == "spans":
        problem = _open_spans(task, table, train, dev, folder)
    elif kind == "choice" and task in TASKS and task != "race":
        problem = _open_rankings(task, train, dev, folder)
    elif kind == "choice":
        problem = _open_choices(task, train, dev, folder)
    elif task in TASKS:
        problem = _open_named(task, train, dev, folder)
    else:
        problem = _open_own(task, kind, table, train, dev)
    problem = _with_fewer(problem, "train", max_train, "trained on")
    problem = _with_fewer(problem, "dev", max_dev, "scored on")
    return replace(
        problem, facts={"train": len(problem.train), "dev": len(problem.dev), **problem.facts, **_shares(problem)}
    )


def _shares(problem: Problem) -> dict[str, Any]:
    """Of a classifier: how many examples each class has, and how good it is to say the most frequent one always."""
    if problem.kind != "classify":
        return {}
    counts = Counter(e.label for e in problem.train)
    often = counts.most_common(1)[0][0]
    return {
        "classes": {name: counts[name] for name in problem.labels},
        "majority_accuracy": sum(e.label == often for e in problem.dev) / len(problem.dev),
    }


def _with_fewer(problem: Problem, part: str, most: int | None, words: str) -> Problem:
    """At most so many examples, drawn by a key that is the same for all models; a note says so."""
    items = problem.train if part == "train" else problem.dev
    if most is None or most >= len(items):
        return problem
    chosen = np.sort(permute(np.arange(most), len(items), key_of("subset of a task", part)))
    notes = (*problem.notes, f"{words} {most:,} of {len(items):,} examples")
    kept = [items[int(i)] for i in chosen]
    return replace(problem, train=kept, notes=notes) if part == "train" else replace(problem, dev=kept, notes=notes)


def _open_own(task: str, kind: Kind, table: TableSettings, train: Path | None, dev: Path | None) -> Problem:
    if train is None:
        raise ConfigError(f"task {task} needs a file to train on: --train FILE")
    first = read_table(train, kind, table)
    notes = []
    if dev is None:
        first, second = cut_by_hash(first)
        notes.append(_cut_note(train, "by hash"))
    else:
        second = read_table(dev, kind, table)
    labels: tuple[str, ...] = ()
    if kind != "regress":
        labels = label_names(first, kind)
        check_labels(second, labels, kind, SET_ASIDE if dev is None else UNSEEN)
    return _texts_problem(task, kind, labels, METRICS[kind], first, second, notes)


def _cut_note(train: Path, how: str) -> str:
    return f"no dev file: a fifth of {train.name} was set aside, {how}"


def _open_named(task: str, train: Path | None, dev: Path | None, folder: Path | None) -> Problem:
    spec = TASKS[task]
    if train is not None and dev is not None:
        parts = read_glue_file(task, spec, train), read_glue_file(task, spec, dev)
        notes = []
    elif train is not None and folder is None:
        parts, notes = cut_by_hash(read_glue_file(task, spec, train)), [_cut_note(train, "by hash")]
    elif folder is not None:
        data = read_glue(task, spec, folder)
        parts, notes = (data.train, data.dev), [data.note] if data.note else []
    else:
        raise ConfigError(f"task {task} needs its files: --data FOLDER, or --train FILE (and --dev FILE)")
    return _texts_problem(task, spec["kind"], spec["labels"], spec["metric"], *parts, notes)


def _texts_problem(
    task: str, kind: Kind, labels: tuple[str, ...], metric: str, train: Table, dev: Table, notes: list[str]
) -> Problem:
    facts: dict[str, Any] = {"dropped": dict(Counter(train.dropped) + Counter(dev.dropped))}
    seen = {e.texts for e in train.examples}
    if repeated := sum(e.texts in seen for e in dev.examples):
        notes.append(f"{repeated:,} of {len(dev.examples):,} dev texts are also in the training data")
    if kind == "classify":
        shares = Counter(e.label for e in train.examples)
        if unsure := _with_several_labels(train):
            notes.append(f"{counted(unsure, 'training text')} with different labels at different places")
        often, count = shares.most_common(1)[0]
        if task not in TASKS and count / len(train.examples) > UNEVEN_SHARE:
            metric = "macro_f1"
            notes.append(
                f"{count / len(train.examples):.0%} of the training rows are {often!r}: models are chosen by macro F1 "
                "(loss.class_weights=balanced lets rare classes count more)"
            )
    return Problem(task, kind, labels, metric, train.examples, dev.examples, tuple(notes), facts)


def _with_several_labels(table: Table) -> int:
    """How many different texts have more than one label."""
    found: dict[tuple[str, ...], Any] = {}
    return len({e.texts for e in table.examples if found.setdefault(e.texts, e.label) != e.label})


def _open_tags(task: str, table: TableSettings, train: Path | None, dev: Path | None, folder: Path | None) -> Problem:
    train, dev = _files_of(task, train, dev, folder)
    first = conll.read_sentences(train, table)
    if dev is None:
        first, second = cut_by_group(first, lambda s: " ".join(s.words), train)
    else:
        second = conll.read_sentences(dev, table)
    names = conll.tag_names(first, train)
    conll.check_tags(second, names, dev or train, SET_ASIDE if dev is None else UNSEEN)
    notes = (_cut_note(train, "by sentence"),) if dev is None else ()
    return Problem(task, "tags", names, METRICS["tags"], first, second, notes, {})


def _open_spans(task: str, table: TableSettings, train: Path | None, dev: Path | None, folder: Path | None) -> Problem:
    train, dev = _files_of(task, train, dev, folder)
    notes = []
    if dev is None:
        first = squad.read_squad(train)
        by_article = len({q.article for q in first}) >= 5  # one's own file may have one title for all
        first, second = cut_by_group(first, lambda q: q.article if by_article else q.context, train)
        notes.append(_cut_note(train, "by article" if by_article else "by passage"))
    elif train.resolve() == dev.resolve():
        first, second = squad.cut_by_article(squad.read_squad(train))
        notes.append(
            f"{train.name} is the only file at hand: every fifth article is scored and the others trained on, "
            "so scores do not compare with published ones"
        )
    else:
        first, second = squad.read_squad(train), squad.read_squad(dev)
    second, skipped = squad.without_articles(second, table.skip_articles)
    notes += _skipped_notes(skipped)
    first, dropped = squad.with_answers_in_place(first)
    if dropped and not first:
        raise DataError(f"{dropped[0].place}: the answer does not stand where the file says, as in all other questions")
    if not first or not second:
        raise DataError(f"{train}: too few articles to train on and to score")
    if dropped:
        where = f"the answer does not stand where the file says (the first: {dropped[0].place})"
        notes.append(f"{counted(len(dropped), 'question')} not trained on: {where}")
    facts = {"dropped": {"answer not in its place": len(dropped)} if dropped else {}, "skipped_articles": skipped}
    return Problem(task, "spans", (), METRICS["spans"], first, second, tuple(notes), facts)


def _skipped_notes(skipped: Mapping[str, int]) -> list[str]:
    shown = ", ".join(f"{name} ({counted(count, 'question')})" for name, count in skipped.items())
    return [f"not scored, because corpora for pretraining hold them: {shown}"] if skipped else []


def _open_rankings(task: str, train: Path | None, dev: Path | None, folder: Path | None) -> Problem:
    """QNLI's candidates and WSC's phrases, two by two."""
    notes: list[str] = []
    if task == "wsc":
        train, dev = _files_of(task, train, dev, folder)
        if dev is None:  # what is trained on and what is scored are read in different ways
            raise ConfigError(f"task {task} needs both of its files: --data FOLDER, or --train FILE and --dev FILE")
        (first, untrained), (second, unscored) = (
            ranking.read_wsc(path, training=path is train) for path in (train, dev)
        )
        words = "examples are false or have one candidate only: not trained on", "have one candidate only: not scored"
    else:
        plain = _open_named(TASKS[task]["form_of"], train, dev, folder)
        notes = list(plain.notes)
        positive = plain.labels[0]
        first, untrained = ranking.candidate_pairs(plain.train, positive)
        second, unscored = ranking.candidate_pairs(plain.dev, positive)
        words = tuple(f"examples have no other candidate of their question: not {w}" for w in ("trained on", "scored"))
        if not first or not second:
            raise DataError(f"task {task}: no question has two candidates to compare")
    notes += [f"{count:,} {text}" for count, text in zip((untrained, unscored), words, strict=True) if count]
    facts = {"dropped": {"nothing to rank": untrained + unscored}}
    return Problem(task, "choice", (), METRICS["choice"], first, second, tuple(notes), facts)


def _race_paths(folder: Path) -> tuple[list[Path], list[Path]]:
    """RACE's files or folders: all that are there."""
    spec = TASKS["race"]
    base = folder / spec["folder"] if (folder / spec["folder"]).is_dir() else folder
    train, dev = ([base / name for name in spec[part] if (base / name).exists()] for part in ("train", "dev"))
    if not train or not dev:
        raise MissingInputError(f"{base}: has no RACE files ({', '.join((*spec['train'], *spec['dev']))})")
    return train, dev


def _open_choices(task: str, train: Path | None, dev: Path | None, folder: Path | None) -> Problem:
    if train is not None and dev is None and folder is None:
        first, second = cut_by_group(race.read_choices([train]), lambda q: q.article or q.question, train)
        notes = (_cut_note(train, "by passage"),)
        return Problem(task, "choice", (), METRICS["choice"], first, second, notes, {})
    if train is not None and dev is not None:
        parts = [train], [dev]
    elif folder is not None:
        parts = _race_paths(folder)
    else:
        raise ConfigError(f"task {task} needs its files: --data FOLDER, or --train FILE (and --dev FILE)")
    first, second = race.read_choices(parts[0]), race.read_choices(parts[1])
    return Problem(task, "choice", (), METRICS["choice"], first, second, (), {})


def open_labelled(
    path: Path, task: str | None, kind: Kind, labels: tuple[str, ...], metric: str, table: TableSettings,
    max_dev: int | None = None,
) -> Problem:  # fmt: skip
    """A labelled file for a model that has learned the task already: it is all dev, and nothing is trained on.
    `task`: a named one has files in its own layout; of any other, and of None, `table` says the columns."""
    if not path.exists():
        raise MissingInputError(f"{path}: no such file")
    names = dict.fromkeys(tag[2:] for tag in labels if tag != "O") if kind == "tags" else labels
    whose = f"that the model does not have (it has {', '.join(list(names)[:10])}{', …' if len(names) > 10 else ''})"
    notes: list[str] = []
    facts: dict[str, Any] = {}
    if kind == "tags":
        items: Sequence[Any] = conll.read_sentences(path, table)
        conll.check_tags(items, labels, path, whose)
    elif kind == "spans":
        items, skipped = squad.without_articles(squad.read_squad(path), table.skip_articles)
        notes, facts = _skipped_notes(skipped), {"skipped_articles": skipped}
        if not items:
            raise DataError(f"{path}: all its articles are among table.skip_articles: {', '.join(skipped)}")
    elif kind == "choice":
        items, notes = _labelled_choices(path, task)
    else:
        found = read_glue_file(task, TASKS[task], path) if task in TASKS else read_table(path, kind, table)
        if kind != "regress":
            check_labels(found, labels, kind, whose)
        items, facts = found.examples, {"dropped": dict(found.dropped)}
    problem = Problem(task or kind, kind, labels, metric, (), items, tuple(notes), facts)
    problem = _with_fewer(problem, "dev", max_dev, "scored on")
    often = Counter(e.label for e in problem.dev).most_common(1)[0][1] if kind == "classify" else 0
    most = {"majority_accuracy": often / len(problem.dev)} if kind == "classify" else {}
    return replace(problem, facts={"test": len(problem.dev), **problem.facts, **most})


def _labelled_choices(path: Path, task: str | None) -> tuple[Sequence[Any], list[str]]:
    """Questions with choices, or what a named task makes of its file, and what to know."""
    if task not in TASKS or task == "race":
        return race.read_choices([path]), []
    if task == "wsc":
        items, unscored = ranking.read_wsc(path, training=False)
    else:
        plain = TASKS[task]["form_of"]
        examples = read_glue_file(plain, TASKS[plain], path).examples
        items, unscored = ranking.candidate_pairs(examples, TASKS[plain]["labels"][0])
    if not items:
        raise DataError(f"{path}: no question has two candidates to compare")
    return items, [f"{unscored:,} have no other candidate: not scored"] if unscored else []


def task_files(task: str, folder: Path) -> list[Path]:
    """The files that a named task is read from, for a fingerprint; MissingInputError where they are not there."""
    if task != "race":
        return [find_file(TASKS[task], part, folder) for part in ("train", "dev")]
    parts = _race_paths(folder)
    return [
        file for path in (*parts[0], *parts[1]) for file in ([path] if path.is_file() else sorted(path.rglob("*.txt")))
    ]


def _files_of(task: str, train: Path | None, dev: Path | None, folder: Path | None) -> tuple[Path, Path | None]:
    """Given files (without the second a part of the first is set aside), or those of a named task."""
    if train is not None and (dev is not None or folder is None):
        return train, dev
    if folder is None or task not in TASKS:
        raise ConfigError(f"task {task} needs its files: --train FILE (and --dev FILE)")
    return find_file(TASKS[task], "train", folder), find_file(TASKS[task], "dev", folder)


# -------------------------------------------------------------------------------------- rows, scores, answers


def encode(
    items: Sequence[Any],
    kind: Kind,
    labels: tuple[str, ...],
    tokenizer: Any,
    frame: Frame,
    settings: RowSettings,
    *,
    labelled: bool = True,
) -> Rows:
    """Examples -> rows."""
    if kind == "tags":
        return conll.encode_sentences(items, tokenizer, frame, labels)
    if kind == "spans":
        return squad.encode_questions(items, tokenizer, frame, settings.stride)
    if kind == "choice":
        return race.encode_choices(items, tokenizer, frame)
    return encode_rows(items, tokenizer, frame, settings, label_values(items, kind, labels) if labelled else None)


def score(outputs: Sequence[Array], rows: Rows, items: Sequence[Any], kind: Kind, labels: tuple[str, ...]) -> dict:
    """`metrics` by name, the tables behind them, and the mistakes that tell most under `worst`."""
    if kind == "tags":
        said = conll.tags_from_rows([o.argmax(-1) for o in outputs], rows, items, labels)
        return score_entities([s.tags for s in items], said) | mistakes.of_tags(items, said)
    if kind == "spans":
        answers = squad.answers_from_rows(outputs, rows, items)
        can_refuse = any(not q.answers for q in items)
        odds = [a.null_odds for a in answers] if can_refuse else None
        gold = [[text for text, _ in q.answers] for q in items]
        scores = score_answers(gold, [a.text for a in answers], odds)
        return {"metrics": scores, **mistakes.of_answers(items, answers, can_refuse)}
    if kind == "choice":
        scores = [float(o) for o in outputs]
        return {"metrics": race.score_choices(scores, items)["metrics"], **mistakes.of_choices(items, scores)}
    answer = predict.answers(np.stack(outputs), rows, kind)
    truth = np.stack(label_values(items, kind, labels))
    return predict.score(answer, truth, kind, labels) | mistakes.of_texts(items, answer, truth, kind, labels)


def answer(
    outputs: Sequence[Array], rows: Rows, items: Sequence[Any], kind: Kind, labels: tuple[str, ...]
) -> list[dict[str, Any]]:
    """One JSON object an example."""
    if kind == "tags":
        said = conll.tags_from_rows([o.argmax(-1) for o in outputs], rows, items, labels)
        return [{"tokens": list(s.words), "tags": tags} for s, tags in zip(items, said, strict=True)]
    if kind == "spans":
        return [
            {"id": q.id, "prediction": a.text, "start": a.start, "score": a.score, "null_odds": a.null_odds}
            for q, a in zip(items, squad.answers_from_rows(outputs, rows, items), strict=True)
        ]
    if kind == "choice":
        chosen = race.score_choices([float(o) for o in outputs], items)["chosen"]
        return [{"prediction": q.options[c], "choice": int(c)} for q, c in zip(items, chosen, strict=True)]
    values = predict.answers(np.stack(outputs), rows, kind)
    return [predict.describe(value, kind, labels) for value in values]


def class_weights(problem: Problem, loss: LossSettings) -> list[float] | None:
    """How much an example of each class counts; over the training data the mean is 1."""
    if loss.class_weights == "none":
        return None
    if problem.kind != "classify":
        raise ConfigError(f"loss.class_weights = balanced: is for classes, not for {problem.task}")
    counts = Counter(e.label for e in problem.train)
    # A class of the task that this part of its data does not have never occurs: any weight will do.
    return [len(problem.train) / (len(counts) * max(1, counts[name])) for name in problem.labels]


def ranks_by_margin(problem: Problem, loss: LossSettings) -> bool:
    """Whether choices are ranked by a margin."""
    if loss.choice == "margin" and problem.kind != "choice":
        raise ConfigError(f"loss.choice = margin: is for tasks with several choices, not for {problem.task}")
    return loss.choice == "margin"


def check_same_labels(problem: Problem, labels: Sequence[str] | None) -> None:
    """A fine-tuned model can only be scored on a task with its own labels."""
    if problem.kind != "regress" and tuple(labels or ()) != problem.labels:
        ours, theirs = ", ".join(problem.labels[:8]), ", ".join((labels or ("none",))[:8])
        raise DataError(f"task {problem.task} has the labels {ours}, the model has {theirs}")
