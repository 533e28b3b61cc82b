"""Rows of a file -> answers, some at a time: what `predict` asks a model, whatever the kind of task.

In: a table (CSV, TSV, JSONL, Parquet) or a file in a task's own layout (CoNLL columns, SQuAD, RACE), and a `forward`
that gives a batch's logits as numpy. Out: for every row the columns of its answer, or what is wrong with it; nothing
depends on the rows around it but which of them run together. Not here: files of answers (answer_files), labels, scores.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from remask.errors import DataError, MissingInputError
from remask.tasks import conll, problems, race, squad
from remask.tasks.entities import entities
from remask.tasks.predict import Forward, row_outputs, softmax
from remask.tasks.rows import Frame, Rows
from remask.tasks.settings import Kind, RowSettings, TableSettings
from remask.tasks.tables import BadRow, Cells, Example, OnBad, read_cells, require_columns, text_of

Array = np.ndarray
WORD = re.compile(r"\w+|[^\w\s]")  # what a text is cut into where a model tags words
_TABLES = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson", ".parquet")


# ------------------------------------------------------------------------------------------------------ reading


def read_rows(path: Path, kind: Kind, table: TableSettings, on_bad: OnBad) -> Iterator[Cells]:
    """Rows in the file's order; files in a task's own layout give rows with the columns of that layout."""
    if not path.exists():
        raise MissingInputError(f"{path}: no such file")
    tabular = any(suffix.lower() in _TABLES for suffix in path.suffixes)
    if kind == "tags" and not tabular:
        for number, sentence in enumerate(conll.read_sentences(path, table, labelled=False), 1):
            yield Cells({table.text: list(sentence.words)}, sentence.place, number)
    elif kind == "spans" and not tabular:
        for number, asked in enumerate(squad.read_squad(path), 1):
            values = {"id": asked.id, "question": asked.question, "context": asked.context}
            yield Cells(values, asked.place, number)
    elif kind == "choice" and not tabular:
        for number, asked in enumerate(race.read_choices([path]), 1):
            values = {"article": asked.article, "question": asked.question, "options": list(asked.options)}
            yield Cells(values, asked.place, number)
    else:
        yield from read_cells(path, quoted=table.quoted, on_bad=on_bad)


def chunks(rows: Iterator[Cells], num_rows: int, num_characters: int) -> Iterator[list[Cells]]:
    """Rows in pieces that depend on nothing but the rows: a piece ends where it has enough rows or characters."""
    piece: list[Cells] = []
    size = 0
    for row in rows:
        piece.append(row)
        size += sum(len(value) for value in row.values.values() if isinstance(value, str))
        if len(piece) == num_rows or size >= num_characters:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


# ---------------------------------------------------------------------------------------------------- answering


@dataclass(frozen=True)
class Columns:
    """Which columns are asked about."""

    text: str
    text2: str | None = None

    @classmethod
    def of(cls, kind: Kind, table: TableSettings, text: str | None, text2: str | None) -> Columns:
        """Given ones, else those of the kind: a question and its context, a passage and a question, or as trained."""
        if kind == "spans":
            return cls(text or "question", text2 or "context")
        if kind == "choice":
            return cls(text or "article", text2 or "question")
        return cls(text or table.text, text2 or table.text2)

    def required(self, kind: Kind) -> list[str]:
        found = [self.text, *([self.text2] if self.text2 else [])]
        return [*found[1:], "options"] if kind == "choice" else found


@dataclass(frozen=True)
class Asker:
    """A model with what it takes to ask it about rows."""

    kind: Kind
    labels: tuple[str, ...]
    columns: Columns
    separator: str
    tokenizer: Any
    frame: Frame
    settings: RowSettings
    forward: Forward
    batch_tokens: int

    def check_columns(self, first: Cells) -> None:
        require_columns(first, self.columns.required(self.kind))

    def answer(self, rows: Sequence[Cells]) -> tuple[list[dict[str, Any]], int]:
        """(an answer's columns or {"bad": reason} for every row, how many texts were cut)."""
        found: list[dict[str, Any]] = [{} for _ in rows]
        items: dict[int, Any] = {}
        for number, row in enumerate(rows):
            try:
                items[number] = self._item(row)
            except BadRow as bad:
                found[number] = {"bad": str(bad)}
        num_cut = 0
        for numbers in self._alike(items):
            encoded, kept = self._encoded([items[i] for i in numbers], [found[i] for i in numbers])
            if encoded is None:
                continue
            asked = [items[numbers[i]] for i in kept]
            outputs = row_outputs(self.forward, encoded, self.tokenizer.pad_id, num_tokens=self.batch_tokens)
            num_cut += encoded.num_cut
            for i, said in zip(kept, self._read(outputs, encoded, asked), strict=True):
                found[numbers[i]].update(said)
        for row, said in zip(rows, found, strict=True):
            if "tags" in said and isinstance(row.values[self.columns.text], str):
                found_tags = said.pop("tags")
                said["entities"] = _entities(row.values[self.columns.text], found_tags)
        return found, num_cut

    def _item(self, row: Cells) -> Any:
        first, second = self.columns.text, self.columns.text2
        if self.kind == "tags":
            return conll.Sentence(_words(row, first), None, row.place)
        if self.kind == "spans":
            assert second is not None
            return squad.Question("", text_of(row, first), text_of(row, second), (), "", row.place)
        if self.kind == "choice":
            assert second is not None
            article = row.values.get(first) or ""
            if not isinstance(article, str):
                raise BadRow("text of another type", f"column {first!r} holds no text")
            return race.ChoiceQuestion(article, text_of(row, second), self._options(row), 0, "", row.place)
        texts = (text_of(row, first), *((text_of(row, second),) if second else ()))
        return Example(texts, None, row.place)

    def _options(self, row: Cells) -> tuple[str, ...]:
        value = row.values.get("options")
        options = value.split(self.separator) if isinstance(value, str) else value
        if not isinstance(options, list) or len(options) < 2 or not all(isinstance(o, str) and o for o in options):
            raise BadRow("options", f"column 'options' must hold two texts or more, not {str(value)[:60]!r}")
        return tuple(options)

    def _alike(self, items: Mapping[int, Any]) -> list[list[int]]:
        """Numbers of the items that can be encoded together: questions with as many options as each other."""
        groups: dict[int, list[int]] = {}
        for number, item in items.items():
            groups.setdefault(len(item.options) if self.kind == "choice" else 0, []).append(number)
        return list(groups.values())

    def _encoded(self, items: list[Any], found: list[dict[str, Any]]) -> tuple[Rows | None, list[int]]:
        """Rows of the items that have any, and which those are; the others get their reason."""
        try:
            return self._encode(items), list(range(len(items)))
        except DataError:  # one of them cannot be asked: find out which
            kept = []
            for number, item in enumerate(items):
                try:
                    self._encode([item])
                    kept.append(number)
                except DataError as error:
                    found[number]["bad"] = str(error).removeprefix(f"{item.place}: ")
            return (self._encode([items[i] for i in kept]) if kept else None), kept

    def _encode(self, items: list[Any]) -> Rows:
        return problems.encode(items, self.kind, self.labels, self.tokenizer, self.frame, self.settings, labelled=False)

    def _read(self, outputs: list[Array], rows: Rows, items: list[Any]) -> list[dict[str, Any]]:
        said = problems.answer(outputs, rows, items, self.kind, self.labels)
        if self.kind == "tags":
            return [{"tags": one["tags"]} for one in said]
        if self.kind == "spans":
            return [_span(one) for one in said]
        if self.kind == "choice":
            probs = softmax(np.array([float(o) for o in outputs]).reshape(len(items), -1))
            return [{**one, "score": round(float(p.max()), 6)} for one, p in zip(said, probs, strict=True)]
        if self.kind == "classify":
            return [{"prediction": one["prediction"], "score": one["scores"][one["prediction"]], **one} for one in said]
        return said


def _words(row: Cells, column: str) -> tuple[str, ...]:
    """A list of words, or a text cut into its words."""
    value = row.values.get(column)
    if isinstance(value, list):
        if not value or not all(isinstance(word, str) and word.strip() for word in value):
            raise BadRow("words", f"column {column!r} must hold a text or a list of words, not {str(value)[:60]!r}")
        return tuple(value)
    words = tuple(WORD.findall(text_of(row, column)))
    if not words:
        raise BadRow("empty text", f"column {column!r} has no words")
    return words


def _entities(text: str, tags: Sequence[str]) -> list[dict[str, Any]]:
    """The entities of a text with their characters, from the tags of its words."""
    places = [(match.start(), match.end()) for match in WORD.finditer(text)]
    return [
        {"type": kind, "text": text[places[a][0] : places[b][1]], "start": places[a][0], "end": places[b][1]}
        for kind, a, b in entities(tags)
    ]


def _span(said: Mapping[str, Any]) -> dict[str, Any]:
    """The answer's text and characters; empty where the model holds that the context does not say."""
    has = said["null_odds"] <= 0
    text = said["prediction"] if has else ""
    start = said["start"] if has else 0
    scores = {name: round(said[name], 6) for name in ("score", "null_odds")}
    return {"prediction": text, "start": start, "end": start + len(text), **scores}
