"""Rows of a file -> the columns of their answers, some at a time.

In: rows as a file has them, and a `Model`. Out: for every row the columns of its answer, or what is wrong with it;
nothing depends on the rows around it but which of them run together. Not here: files of answers (answer_files).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from remask.answer.model import Model
from remask.errors import DataError
from remask.schema import Json
from remask.tables import Cells, require_columns
from remask.tasks.kind import Item
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


def file_key(path: Path) -> Json:
    """What tells a file from another one at first sight; its rows are compared later."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    stamps = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    return {"path": str(path.resolve()), "stamps": stamps}


def check_kept(piece: Sequence[Cells], fingerprints: Sequence[str], folder: Path) -> None:
    """What an earlier attempt kept in `folder` must be about these rows."""
    for number, row in enumerate(piece):
        if number >= len(fingerprints) or row.fingerprint() != fingerprints[number]:
            raise DataError(
                f"{row.place}: this is not the row that was answered before the stop, the file has changed; choose "
                f"another --out or remove {folder}"
            )


def same_rows(rows: Iterator[Cells], fingerprints: Iterable[str], path: Path) -> Iterator[Cells]:
    """The rows of a file that is read a second time, as long as they are those of the first time; a DataError at the
    first that is not, and where rows are missing or more."""
    again = "read it again from a file that stays as it is"
    last = str(path)
    for known in fingerprints:
        row = next(rows, None)
        if row is None:
            raise DataError(f"{last}: the file ends here now, but it had more rows: {again}")
        if row.fingerprint() != known:
            raise DataError(f"{row.place}: this is not the row that was answered, the file has changed: {again}")
        last = row.place
        yield row
    if (row := next(rows, None)) is not None:
        raise DataError(f"{row.place}: the file has rows from here on that it did not have before: {again}")


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

    def answer(self, rows: Sequence[Cells]) -> tuple[list[Json], int]:
        """(an answer's columns or {"bad": reason} for every row, how many texts were cut)."""
        reader = self.model.reader
        task = reader.task
        answers: list[Json] = [{} for _ in rows]
        numbers: list[int] = []
        items: list[Item] = []
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
            outputs = self.model.outputs(encoded)
            num_cut += encoded.num_cut
            for i, answer in zip(kept, reader.read(outputs, encoded, asked), strict=True):
                answers[numbers[group[i]]].update(task.kind.named(answer, items[group[i]]))
        return answers, num_cut

    def _encoded(self, items: list[Item], answers: list[Json]) -> tuple[Rows | None, list[int]]:
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
