"""SQuAD 1.1 and 2.0: questions about passages -> overlapping windows -> the answer's characters.

In: SQuAD's JSON. Out: `Question`s, rows (<s> question </s></s> window </s>) with the answer's first and last token as
labels ((0, 0): not in this window), and answers from logits: the best of 20 starts and 20 ends a window, at most 30
tokens, cut out of the passage by character offsets, so that accents and Chinese come back as they were. RoBERTa,
section 5.2: questions up to 64 tokens, windows of 512 every 128. Not here: scores (squad_scores).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from remask.errors import DataError, MissingInputError
from remask.tasks.rows import Frame, Rows

Array = np.ndarray
MAX_FILE_BYTES = 1_000_000_000
MAX_QUESTION_TOKENS = 64
MAX_ANSWER_TOKENS = 30
NUM_BEST = 20


@dataclass(frozen=True, slots=True)
class Question:
    """One question. `answers` are (text, first character); none: the passage does not say."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    article: str
    place: str


@dataclass(frozen=True, slots=True)
class Window:
    """What turns a row's positions back into characters: `spans[i]` are those of position `first + i`."""

    question: int
    first: int
    spans: Array


# ------------------------------------------------------------------------------------------------- reading


def read_squad(path: Path) -> list[Question]:
    """All questions of a file, in its order."""
    if not path.is_file():
        raise MissingInputError(f"{path}: no such file")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise DataError(f"{path}: over {MAX_FILE_BYTES:,} bytes is no SQuAD file")
    try:
        values = json.loads(path.read_bytes().decode("utf-8-sig"))
    except ValueError as error:
        raise DataError(f"{path}: not a SQuAD file, which is one JSON object: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("data"), list):
        raise DataError(f"{path}: not a SQuAD file: it has no list under `data`")
    found = [question for article in values["data"] for question in _of_article(article, path)]
    if twice := [name for name, count in Counter(q.id for q in found).items() if count > 1]:
        raise DataError(f"{path}: the id {twice[0]!r} is there {Counter(q.id for q in found)[twice[0]]} times")
    if not found:
        raise DataError(f"{path}: no questions")
    return found


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
            yield Question(name, _text(qa, "question", here), context, pairs, title, here)


def _list(value: Any, key: str, place: str) -> list[Any]:
    if not isinstance(value, dict) or not isinstance(value.get(key), list):
        raise DataError(f"{place}: has no list {key!r}")
    return value[key]


def _text(value: Any, key: str, place: str) -> str:
    if not isinstance(value, dict) or not isinstance(value.get(key), str) or not value[key].strip():
        raise DataError(f"{place}: has no text {key!r}")
    return value[key]


def _offset(answer: Mapping[str, Any], place: str) -> int:
    start = answer.get("answer_start")
    if not isinstance(start, int) or isinstance(start, bool) or start < 0:
        raise DataError(f"{place}: answer_start = {start!r} is no place in the passage")
    return start


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


# ------------------------------------------------------------------------------------------------- windows


def encode_questions(questions: Sequence[Question], tokenizer: Any, frame: Frame, stride: int) -> Rows:
    """Rows whose `facts` are `Window`s. A passage is encoded once for all its questions."""
    asked = tokenizer.encode_batch([q.question.strip() for q in questions])
    passages: dict[str, tuple[Array, Array]] = {}
    ids: list[Array] = []
    segments: list[Array] = []
    labels: list[Array] = []
    facts: list[Window] = []
    num_cut = 0
    for number, question in enumerate(questions):
        if question.context not in passages:
            passages[question.context] = tokenizer.encode_with_offsets(question.context)
        tokens, spans = passages[question.context]
        if len(tokens) == 0 or len(asked[number]) == 0:
            raise DataError(f"{question.place}: a question or passage without a single token")
        limit = min(MAX_QUESTION_TOKENS, frame.room(2) // 2)
        num_cut += len(asked[number]) > limit
        head = asked[number][:limit]
        width = frame.room(2) - len(head)
        first = frame.second_start(len(head))
        for start in _starts(len(tokens), width, _step(stride, width)):
            row, segment = frame.join([head, tokens[start : start + width]])
            window = Window(number, first, spans[start : start + width])
            ids.append(row)
            segments.append(segment)
            labels.append(_label(question, window))
            facts.append(window)
    return Rows(
        ids,
        segments if frame.segments else None,
        labels,
        np.array([window.question for window in facts]),
        num_cut=num_cut,
        facts=facts,
    )


def _step(stride: int, width: int) -> int:
    """Tokens from window to window: narrow ones stand closer, so that an answer of any length is whole in one."""
    return min(stride, max(width - MAX_ANSWER_TOKENS, (width + 1) // 2))


def _starts(length: int, width: int, step: int) -> Iterator[int]:
    """Where windows start; the last one reaches the end."""
    start = 0
    while True:
        yield start
        if start + width >= length:
            return
        start += step


def _label(question: Question, window: Window) -> Array:
    """First and last position of the first answer, if all of it is in the window; else (0, 0)."""
    if not question.answers:
        return np.zeros(2, np.int64)
    text, begin = question.answers[0]
    end = begin + len(text)
    touched = np.flatnonzero((window.spans[:, 1] > begin) & (window.spans[:, 0] < end))
    if len(touched) == 0:
        return np.zeros(2, np.int64)
    # What the tokens leave out at either end may be white space, which has no token of its own; more: it goes on
    # outside the window and is no answer here.
    missing = (
        question.context[begin : window.spans[touched[0], 0]] + question.context[window.spans[touched[-1], 1] : end]
    )
    if missing.strip():
        return np.zeros(2, np.int64)
    return np.array([window.first + touched[0], window.first + touched[-1]], np.int64)


# ------------------------------------------------------------------------------------------------- answers


@dataclass(frozen=True, slots=True)
class Said:
    """What the model says to one question: its best text, that text's score, and how much is against any answer."""

    text: str
    start: int
    score: float
    null_odds: float


def answers_from_rows(outputs: Sequence[Array], rows: Rows, questions: Sequence[Question]) -> list[Said]:
    """Each question's best answer over its windows.

    An output has columns start, end and, for SQuAD 2.0, the answerability logit (the same at every position). Without
    it the odds of no answer are the score of <s> (the least over the windows) less that of the best span, as in BERT.
    """
    best: list[tuple[float, int, int] | None] = [None] * len(questions)
    null = np.full(len(questions), np.inf)
    answerable = np.full(len(questions), -np.inf)
    has_logit = outputs[0].shape[1] > 2
    for said, window in zip(outputs, rows.facts, strict=True):
        number = window.question
        null[number] = min(null[number], float(said[0, 0] + said[0, 1]))
        if has_logit:
            answerable[number] = max(answerable[number], float(said[0, 2]))
        found = best_span(said[window.first : window.first + len(window.spans)])
        score, first, last = found
        before = best[number]
        if before is None or score > before[0]:
            best[number] = (score, int(window.spans[first, 0]), int(window.spans[last, 1]))
    out = []
    for number, question in enumerate(questions):
        chosen = best[number]
        assert chosen is not None, "a question has at least one window"
        score, begin, end = chosen
        odds = -answerable[number] if has_logit else null[number] - score
        out.append(Said(question.context[begin:end], begin, score, float(odds)))
    return out


def best_span(logits_T2: Array) -> tuple[float, int, int]:
    """(score, first, last) of the likeliest span among the 20 best starts and ends."""
    start_T, end_T = logits_T2[:, 0], logits_T2[:, 1]
    starts = np.argsort(-start_T, kind="stable")[:NUM_BEST]
    ends = np.argsort(-end_T, kind="stable")[:NUM_BEST]
    score = start_T[starts][:, None].astype(np.float64) + end_T[ends][None, :]
    length = ends[None, :] - starts[:, None] + 1
    allowed = (length >= 1) & (length <= MAX_ANSWER_TOKENS)
    if not allowed.any():
        # The best starts all come after the best ends: the best single token is the honest answer.
        place = int(np.argmax(start_T + end_T))
        return float(start_T[place] + end_T[place]), place, place
    score = np.where(allowed, score, -np.inf)
    row, column = np.unravel_index(int(np.argmax(score)), score.shape)
    return float(score[row, column]), int(starts[row]), int(ends[column])
