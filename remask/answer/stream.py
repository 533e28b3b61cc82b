"""Rows of a file -> the columns of their answers, some at a time.

In: rows as a file has them, and a `Model`. Out: for every row the columns of its answer, or what is wrong with it;
nothing depends on the rows around it but which of them run together. Not here: files of answers (answer_files).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from remask import signals
from remask.answer.model import Model
from remask.errors import DataError
from remask.tables import Cells, require_columns
from remask.tasks.rows import Rows
from remask.tasks.tables import BadRow

BAD = "bad"  # the key of a reason, in place of an answer's columns


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


@dataclass(frozen=True)
class Asker:
    """A model that is asked about the rows of a file."""

    model: Model
    columns: tuple[str, ...]  # as the kind names them

    @classmethod
    def of(cls, model: Model, text: str | None = None, text2: str | None = None) -> Asker:
        """`text`, `text2`: columns, where they differ from those of the training file."""
        task = model.reader.task
        return cls(model, task.kind.columns(task.table, text, text2))

    def check_columns(self, first: Cells) -> None:
        require_columns(first, self.model.reader.task.kind.required(self.columns))

    def answer(self, rows: Sequence[Cells]) -> tuple[list[dict[str, Any]], int]:
        """(an answer's columns or {"bad": reason} for every row, how many texts were cut)."""
        reader = self.model.reader
        task = reader.task
        answers: list[dict[str, Any]] = [{} for _ in rows]
        numbers: list[int] = []
        items: list[Any] = []
        for number, row in enumerate(rows):
            try:
                items.append(task.kind.item(row, self.columns, task.table))
                numbers.append(number)
            except BadRow as bad:
                answers[number] = {BAD: str(bad)}
        num_cut = 0
        for group in task.kind.alike(items):
            encoded, kept = self._encoded([items[i] for i in group], [answers[numbers[i]] for i in group])
            if encoded is None:
                continue
            asked = [items[group[i]] for i in kept]
            outputs = self.model.outputs(encoded, signals.check)
            num_cut += encoded.num_cut
            for i, answer in zip(kept, reader.read(outputs, encoded, asked), strict=True):
                answers[numbers[group[i]]].update(task.kind.named(answer, items[group[i]]))
        return answers, num_cut

    def _encoded(self, items: list[Any], answers: list[dict[str, Any]]) -> tuple[Rows | None, list[int]]:
        """Rows of the items that have any, and which those are; the others get their reason."""
        reader = self.model.reader
        try:
            return reader.encode(items), list(range(len(items)))
        except DataError:  # one of them cannot be asked: find out which
            kept = []
            for number, item in enumerate(items):
                try:
                    reader.encode([item])
                    kept.append(number)
                except DataError as error:
                    answers[number][BAD] = str(error).removeprefix(f"{item.place}: ")
            return (reader.encode([items[i] for i in kept]) if kept else None), kept
