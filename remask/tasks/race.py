"""Multiple choice: RACE, and files like it -> questions with options.

In: tables with one passage a row (article, questions, options, answers) or one question a row (article, question,
options, answer), or RACE's own folders of such files (high/, middle/). Out: `ChoiceQuestion`s, and the texts of a
row: question and choice, then the passage; a question with a blank `_` gets the choice filled in; without a passage,
question and choice. Answers are letters from A or numbers from 0. Not here: pairs to rank (ranking), rows (choices).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from remask.errors import DataError, MissingInputError
from remask.tables import Cells, TableForm, is_saved_dataset, read_cells
from remask.tasks.specs import TASKS


@dataclass(frozen=True, slots=True)
class ChoiceQuestion:
    """One question about a passage; `group` is what scores are reported apart for (middle, high).

    `claim`: the questions of one claim (its name, and whether it is true) are scored together: it is held to be true
    if the first option wins in all of them."""

    article: str
    question: str
    options: tuple[str, ...]
    answer: int
    group: str
    place: str
    claim: tuple[str, bool] | None = None


def read_choices(paths: Sequence[Path], form: TableForm | None = None) -> list[ChoiceQuestion]:
    """All questions of some files or RACE folders; every question must have as many options as the first."""
    questions = [question for path in paths for question in _of_path(path, form)]
    if not questions:
        raise DataError(f"{', '.join(str(p) for p in paths)}: no questions")
    for question in questions:
        if len(question.options) != len(questions[0].options):
            raise DataError(
                f"{question.place}: {len(question.options)} options, the first has {len(questions[0].options)}"
            )
    return questions


def _of_path(path: Path, form: TableForm | None) -> Iterator[ChoiceQuestion]:
    if path.is_dir() and not is_saved_dataset(str(path)):
        files = sorted(path.rglob("*.txt"))
        if not files:
            raise MissingInputError(f"{path}: no RACE files (*.txt) there")
        for file in files:
            try:
                values = orjson.loads(file.read_bytes())
            except orjson.JSONDecodeError as error:
                raise DataError(f"{file}: not JSON: {error}") from error
            if not isinstance(values, dict):
                raise DataError(f"{file}: not a RACE file")
            yield from _questions(Cells(values, str(file)), _group(file.relative_to(path.parent)))
        return
    places: dict[str, str] = {}
    for cells in read_cells(path, form):
        if isinstance(name := cells.values.get("id"), str) and places.setdefault(name, cells.place) != cells.place:
            raise DataError(f"{cells.place}: the id {name!r} is also at {places[name]}")
        yield from _questions(cells, _group(path))


def _group(path: Path) -> str:
    """`high` or `middle`, if file or folder say so."""
    words = {word for part in path.parts[-3:] for word in part.split(".")}
    return next((name for name in ("middle", "high") if name in words), "")


def _questions(cells: Cells, group: str) -> Iterator[ChoiceQuestion]:
    values, place = cells.values, cells.place
    article = values.get("article", "")
    if not ("questions" in values or "question" in values) or "options" not in values:
        wanted = "`questions`, `options` and `answers` (or `question`, `options` and `answer`)"
        raise DataError(f"{place}: not a file of questions with choices: a row has {wanted}")
    if not isinstance(article, str):
        raise DataError(f"{place}: `article` is no text")
    if "questions" in values:
        columns = [values.get(name) for name in ("questions", "options", "answers")]
        if not all(isinstance(c, list) for c in columns) or len({len(c) for c in columns}) != 1:  # pyrefly: ignore
            raise DataError(f"{place}: `questions`, `options` and `answers` must be lists of one length")
        triples: Any = zip(*columns, strict=True)  # pyrefly: ignore
    else:
        triples = [(values.get("question"), values.get("options"), values.get("answer"))]
    for question, options, answer in triples:
        if not isinstance(question, str):
            raise DataError(f"{place}: a question that is no text")
        if not isinstance(options, list) or len(options) < 2 or not all(isinstance(o, str) for o in options):
            raise DataError(f"{place}: options must be a list of two texts or more, not {str(options)[:60]!r}")
        yield ChoiceQuestion(article, question, tuple(options), _answer(answer, len(options), place), group, place)


def _answer(value: object, count: int, place: str) -> int:
    if isinstance(value, str) and len(value.strip()) == 1 and value.strip().isalpha():
        value = ord(value.strip().upper()) - ord("A")
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
        raise DataError(f"{place}: answer = {value!r} is none of the {count} options")
    return value


def parts_of(question: ChoiceQuestion, option: str) -> tuple[str, ...]:
    """The one or two texts of a row."""
    if question.article:
        return filled(question.question, option), question.article
    if question.question and "_" not in question.question:
        return question.question, option
    return (filled(question.question, option),)


def filled(question: str, option: str) -> str:
    """The question with the option in its blank, or followed by it."""
    return question.replace("_", option, 1) if "_" in question else f"{question} {option}".strip()


def race_paths(folder: Path) -> tuple[list[Path], list[Path]]:
    """RACE's files or folders to train on and to score: all that are there."""
    spec = TASKS["race"]
    base = folder / spec["folder"] if (folder / spec["folder"]).is_dir() else folder
    train, dev = ([base / name for name in spec[part] if (base / name).exists()] for part in ("train", "dev"))
    if not train or not dev:
        raise MissingInputError(f"{base}: has no RACE files ({', '.join((*spec['train'], *spec['dev']))})")
    return train, dev
