"""Multiple choice: RACE, and files like it -> groups of rows, one row a choice.

In: JSONL with one passage a line (article, questions, options, answers) or one question a line (article, question,
options, answer), or RACE's own folders of such files (high/, middle/). Out: `ChoiceQuestion`s and rows
<s> question and choice </s></s> passage </s>, the first part cut at 128 tokens, the whole at 512 (RoBERTa, section
5.3); a question with a blank `_` gets the choice filled in. Without a passage a row is <s> question </s></s> choice
</s>. Answers are letters from A or numbers from 0. Not here: pairs to rank (ranking).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from remask.errors import DataError, MissingInputError
from remask.tasks.rows import Frame, Rows
from remask.tasks.tables import Cells, read_cells

Array = np.ndarray
MAX_CHOICE_TOKENS = 128


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


def read_choices(paths: Sequence[Path]) -> list[ChoiceQuestion]:
    """All questions of some files or RACE folders; every question must have as many options as the first."""
    found = [question for path in paths for question in _of_path(path)]
    if not found:
        raise DataError(f"{', '.join(str(p) for p in paths)}: no questions")
    for question in found:
        if len(question.options) != len(found[0].options):
            raise DataError(f"{question.place}: {len(question.options)} options, the first has {len(found[0].options)}")
    return found


def _of_path(path: Path) -> Iterator[ChoiceQuestion]:
    if path.suffix == ".json":
        raise DataError(f"{path}: questions with choices are JSONL, one passage or question a line, or RACE's folders")
    if path.is_dir():
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
    for cells in read_cells(path):
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
        raise DataError(f"{place}: not a file of questions with choices: a line has {wanted}")
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


def _answer(value: Any, count: int, place: str) -> int:
    if isinstance(value, str) and len(value.strip()) == 1 and value.strip().isalpha():
        value = ord(value.strip().upper()) - ord("A")
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
        raise DataError(f"{place}: answer = {value!r} is none of the {count} options")
    return value


def encode_choices(questions: Sequence[ChoiceQuestion], tokenizer: Any, frame: Frame) -> Rows:
    """`group_size` rows a question, in the order of its options."""
    texts = [parts_of(q, option) for q in questions for option in q.options]
    distinct = sorted({text for parts in texts for text in parts})
    encoded = dict(zip(distinct, tokenizer.encode_batch(distinct), strict=True))
    ids: list[Array] = []
    segments: list[Array] = []
    num_cut = 0
    size = len(questions[0].options)
    for number, parts in enumerate(texts):
        first, *rest = [encoded[text] for text in parts]
        if len(first) == 0 or any(len(other) == 0 for other in rest):
            raise DataError(f"{questions[number // size].place}: a question, option or passage without a single token")
        if rest:
            first = first[: min(MAX_CHOICE_TOKENS, frame.room(2) // 2)]
            room = frame.room(2) - len(first)
            num_cut += len(rest[0]) > room
            row, segment = frame.join([first, rest[0][:room]])
        else:
            num_cut += len(first) > frame.room(1)
            row, segment = frame.join([first[: frame.room(1)]])
        ids.append(row)
        segments.append(segment)
    return Rows(
        ids,
        segments if frame.segments else None,
        [np.int64(q.answer) for q in questions],
        np.repeat(np.arange(len(questions)), size),
        group_size=size,
        num_cut=-(-num_cut // size),
    )


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


def score_choices(scores_R: Sequence[float], questions: Sequence[ChoiceQuestion]) -> dict[str, Any]:
    """Accuracy over all, and apart for each group."""
    chosen = np.asarray(scores_R).reshape(len(questions), -1).argmax(1)
    right = chosen == np.array([q.answer for q in questions])
    metrics = {"accuracy": float(right.mean())}
    if any(q.claim for q in questions):
        metrics = {"accuracy": _claim_accuracy(chosen, questions), "pair_accuracy": metrics["accuracy"]}
    for name in sorted({q.group for q in questions} - {""}):
        metrics[f"{name}_accuracy"] = float(right[[q.group == name for q in questions]].mean())
    return {"metrics": metrics, "chosen": chosen}


def _claim_accuracy(chosen: Array, questions: Sequence[ChoiceQuestion]) -> float:
    """The share of claims that are held to be what they are."""
    held: dict[str, bool] = {}
    truth: dict[str, bool] = {}
    for question, choice in zip(questions, chosen, strict=True):
        assert question.claim is not None
        name, truth[question.claim[0]] = question.claim
        held[name] = held.get(name, True) and int(choice) == 0
    return float(np.mean([held[name] == truth[name] for name in truth]))
