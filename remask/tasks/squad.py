"""SQuAD 1.1 and 2.0: files of questions about passages.

In: SQuAD's JSON, or a table with one question a row. Out: `Question`s, and what is left of them for training and for
scoring. Not here: rows and answers (spans), scores (squad_scores).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remask.errors import DataError, MissingInputError
from remask.schema import Values
from remask.streams import split_name
from remask.tables import TABLE_KINDS, TableForm, read_cells, require_columns

MAX_FILE_BYTES = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Question:
    """One question. `answers` are (text, first character); none: the passage does not say."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    article: str
    place: str


# ------------------------------------------------------------------------------------------------- reading


def read_squad(path: Path, form: TableForm | None = None) -> list[Question]:
    """All questions of a file, in its order: SQuAD's articles, or a table of questions."""
    if not path.exists():
        raise MissingInputError(f"{path}: no such file")
    questions = _of_table(path, form) if is_table(path) else _of_articles(path)
    if twice := [name for name, count in Counter(q.id for q in questions).items() if count > 1]:
        raise DataError(f"{path}: the id {twice[0]!r} is there {Counter(q.id for q in questions)[twice[0]]} times")
    if not questions:
        raise DataError(f"{path}: no questions")
    return questions


def is_table(path: Path) -> bool:
    """Whether a file has one question a row; else it is SQuAD's, one JSON object with articles."""
    ending = split_name(path.name)[0]
    if ending != ".json":
        return path.is_dir() or ending in TABLE_KINDS
    try:
        return "question" in next(read_cells(path)).values
    except (DataError, StopIteration):
        return False


def _of_table(path: Path, form: TableForm | None) -> list[Question]:
    """Rows with `question`, `context` and `answers` as datasets have them ({"text": […], "answer_start": […]}), or with
    one answer in `answer` and `answer_start`."""
    questions = []
    for cells in read_cells(path, form):
        if not questions:
            require_columns(cells, ("question", "context"))
        values, place = cells.values, cells.place
        answers = values.get("answers")
        if answers is None and values.get("answer"):
            answers = {"text": [values["answer"]], "answer_start": [values.get("answer_start")]}
        answers = answers or {"text": [], "answer_start": []}
        if isinstance(answers, dict):
            texts, starts = _list(answers, "text", place), _list(answers, "answer_start", place)
            if len(texts) != len(starts):
                raise DataError(f"{place}: {len(texts)} answers but {len(starts)} places of them")
            starts = [int(s) if isinstance(s, str) and s.isdecimal() else s for s in starts]  # CSV has no numbers
            answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
        pairs = tuple((_text(answer, "text", place), _offset(answer, place)) for answer in answers)
        question, context = _text(values, "question", place), _text(values, "context", place)
        name = str(values["id"]) if values.get("id") is not None else str(cells.number)
        questions.append(Question(name, question, context, pairs, str(values.get("title") or ""), place))
    return questions


def _of_articles(path: Path) -> list[Question]:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise DataError(f"{path}: over {MAX_FILE_BYTES:,} bytes is no SQuAD file")
    try:
        values = json.loads(path.read_bytes().decode("utf-8-sig"))
    except ValueError as error:
        raise DataError(f"{path}: not a SQuAD file, which is one JSON object: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("data"), list):
        raise DataError(f"{path}: not a SQuAD file: it has no list under `data`")
    return [question for article in values["data"] for question in _of_article(article, path)]


def _of_article(article: Any, path: Path) -> Iterator[Question]:
    title = article.get("title", "") if isinstance(article, dict) else ""
    place = f"{path}: article {title!r}"
    for number, paragraph in enumerate(_list(article, "paragraphs", place)):
        where = f"{place}, paragraph {number + 1}"
        context = _text(paragraph, "context", where)
        for qa in _list(paragraph, "qas", where):
            name = _text(qa, "id", where)
            here = f"{where}, question {name}"
            answers = [] if qa.get("is_impossible") else _list(qa, "answers", here)
            pairs = tuple((_text(a, "text", here), _offset(a, here)) for a in answers)
            question = "" if qa.get("question") == "" else _text(qa, "question", here)
            yield Question(name, question, context, pairs, title, here)


def _list(value: object, key: str, place: str) -> list:
    if not isinstance(value, dict) or not isinstance(value.get(key), list):
        raise DataError(f"{place}: has no list {key!r}")
    return value[key]


def _text(value: object, key: str, place: str) -> str:
    if not isinstance(value, dict) or not isinstance(value.get(key), str) or not value[key].strip():
        raise DataError(f"{place}: has no text {key!r}")
    return value[key]


def _offset(answer: Values, place: str) -> int:
    start = answer.get("answer_start")
    if not isinstance(start, int) or isinstance(start, bool) or start < 0:
        raise DataError(f"{place}: answer_start = {start!r} is no place in the passage")
    return start


def with_text(questions: Sequence[Question]) -> tuple[list[Question], list[Question]]:
    """Questions that ask something, and those left out because nothing stands there: CMRC 2018 has one."""
    return [q for q in questions if q.question], [q for q in questions if not q.question]


def with_answers_in_place(questions: Sequence[Question]) -> tuple[list[Question], list[Question]]:
    """Questions to train on, and those left out because their answer does not stand where it should."""
    kept: list[Question] = []
    dropped: list[Question] = []
    for question in questions:
        text, begin = question.answers[0] if question.answers else ("", 0)
        (kept if question.context[begin : begin + len(text)] == text else dropped).append(question)
    return kept, dropped


def cut_by_article(questions: Sequence[Question]) -> tuple[list[Question], list[Question]]:
    """(to train on, to score): every fifth article by title is scored."""
    scored = set(sorted({q.article for q in questions})[::5])
    return [q for q in questions if q.article not in scored], [q for q in questions if q.article in scored]


def without_articles(questions: Sequence[Question], titles: Sequence[str]) -> tuple[list[Question], dict[str, int]]:
    """The questions about other articles, and how many there were about each of these."""
    skipped = Counter(q.article for q in questions if q.article in titles)
    return [q for q in questions if q.article not in titles], dict(sorted(skipped.items()))
