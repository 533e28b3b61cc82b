"""CoNLL column files and tables with lists of words -> sentences with tags.

In: a file with one word a line (blank lines between sentences, the tag in the last column; `-DOCSTART-` lines are
skipped), or a table (JSON, Parquet, Arrow) with lists of words and tags. Out: sentences in IOB2. Not here: what an
entity is (entities), rows and answers (tags).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from remask.errors import DataError, MissingInputError
from remask.streams import split_name
from remask.tables import TABLE_KINDS, read_cells, read_lines, require_columns
from remask.tasks.entities import bioes_fault, is_bioes, split_tag, to_iob2
from remask.tasks.settings import TableSettings
from remask.tasks.tables import UNSEEN

_WITH_LISTS = ("jsonl", "json", "parquet", "arrow")  # layouts in which a cell can hold a list


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words and their tags (None: not known), and where they stand."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    place: str
    text: str | None = None  # what the words were cut out of, where that is known
    spans: tuple[tuple[int, int], ...] = ()  # and the characters [start, end) of each there


def read_sentences(path: Path, settings: TableSettings, *, labelled: bool = True) -> list[Sentence]:
    """All sentences of a file, with tags in IOB2."""
    if not path.exists():
        raise MissingInputError(f"{path}: no such file")
    table = path.is_dir() or TABLE_KINDS.get(split_name(path.name)[0]) in _WITH_LISTS
    sentences = list(_from_table(path, settings, labelled) if table else _from_columns(path, settings, labelled))
    if not sentences:
        raise DataError(f"{path}: no sentences")
    if not labelled:
        return sentences
    bioes = is_bioes(s.tags or () for s in sentences)
    for sentence in sentences if bioes else ():
        if (fault := bioes_fault(sentence.tags or ())) is not None:
            word = sentence.words[fault]
            raise DataError(f"{sentence.place}: tags with S- and E- are BIOES, but that is broken at {word!r}")
    return [replace(s, tags=tuple(to_iob2(s.tags or (), bioes=bioes))) for s in sentences]


def _from_columns(path: Path, settings: TableSettings, labelled: bool) -> Iterator[Sentence]:
    words: list[str] = []
    tags: list[str] = []
    start = width = 0
    for number, line in read_lines(path, encoding=settings.encoding):
        cells = line.split()
        if not cells or cells[0] == "-DOCSTART-":
            if words:
                yield Sentence(tuple(words), tuple(tags) if labelled else None, f"{path}:{start}")
            words, tags = [], []
            continue
        if labelled and len(cells) < 2:
            raise DataError(f"{path}:{number}: a word without a tag; the columns are word ... tag")
        width = width or len(cells)
        if len(cells) != width:
            raise DataError(f"{path}:{number}: {len(cells)} columns, but {width} in the lines before")
        if labelled:
            _check_tag(cells[-1], f"{path}:{number}")
            tags.append(cells[-1])
        start = start if words else number
        words.append(cells[0])
    if words:
        yield Sentence(tuple(words), tuple(tags) if labelled else None, f"{path}:{start}")


def _from_table(path: Path, settings: TableSettings, labelled: bool) -> Iterator[Sentence]:
    for cells in read_cells(path, settings):
        for column in (settings.text, *([settings.label] if labelled else [])):
            require_columns(cells, [column])
            value = cells.values[column]
            if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
                raise DataError(f"{cells.place}: {column!r} must be a list of words, not {str(value)[:60]!r}")
        words = tuple(cells.values[settings.text])
        if not words:
            continue
        tags = tuple(cells.values[settings.label]) if labelled else None
        if tags is not None and len(tags) != len(words):
            raise DataError(f"{cells.place}: {len(words)} words but {len(tags)} tags")
        for tag in tags or ():
            _check_tag(tag, cells.place)
        yield Sentence(words, tags, cells.place)


def _check_tag(tag: str, place: str) -> None:
    if split_tag(tag) is None:
        shown = tag if len(tag) <= 40 else tag[:37] + "..."
        raise DataError(f"{place}: {shown!r} is no tag; tags are O, or B-, I-, E- or S- and a type, in the last column")


def tag_names(sentences: Sequence[Sentence], path: Path) -> tuple[str, ...]:
    """O first, then B- and I- of every type, whether both occur or not: a model may say either."""
    types = sorted({tag[2:] for s in sentences for tag in s.tags or () if tag != "O"})
    if not types:
        raise DataError(f"{path}: every word is tagged O")
    return ("O", *(f"{prefix}-{kind}" for kind in types for prefix in "BI"))


def check_tags(sentences: Sequence[Sentence], names: Sequence[str], path: Path, whose: str = UNSEEN) -> None:
    """Types that the training data never showed are an error that lists them."""
    unseen = {tag[2:]: s.place for s in reversed(sentences) for tag in s.tags or () if tag not in names}
    if unseen:
        shown = ", ".join(f"{kind!r} ({place})" for kind, place in sorted(unseen.items())[:10])
        raise DataError(f"{path}: types {whose}: {shown}")
