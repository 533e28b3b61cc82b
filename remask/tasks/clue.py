"""FewCLUE's lines that are more than columns: lists of keywords, marked spans, idioms to choose from.

In: rows as the files have them (JSON lines in .json files). Out: rows with plain texts and labels, or questions with
choices. CSL: keywords beside an abstract. CLUEWSC: a text with a noun between _ and _ and a pronoun between [ and ],
whose places count characters. OCNLI: lines whose judges did not agree have the label "-" and are left out. CHID: seven
idioms for the place #idiom# of a passage. Not here: the tasks' names, files and labels (specs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from remask.errors import DataError
from remask.schema import Json
from remask.tables import Cells, read_cells
from remask.tasks.race import ChoiceQuestion

IDIOM = "#idiom#"


def clue_rows(name: str, rows: Iterator[Cells]) -> Iterator[Cells]:
    """Every row as a plain one."""
    make = ROWS[name]
    for cells in rows:
        values = make(cells)
        if values is not None:
            yield replace(cells, values={**cells.values, **values})


def _csl(cells: Cells) -> Json:
    words = cells.values.get("keyword")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise DataError(f"{cells.place}: `keyword` must be a list of words, not {str(words)[:60]!r}")
    return {"keyword": "，".join(words)}


def _ocnli(cells: Cells) -> Json | None:
    return None if cells.values.get("label") == "-" else {}


def _cluewsc(cells: Cells) -> Json:
    text, target = cells.values.get("text"), cells.values.get("target")
    if not isinstance(text, str) or not isinstance(target, Mapping):
        raise DataError(f"{cells.place}: a CLUEWSC line has `text`, `target` (span1_text, span1_index, …) and `label`")
    marks = []
    for span, (left, right) in (("span1", "__"), ("span2", "[]")):
        word, place = target.get(f"{span}_text"), target.get(f"{span}_index")
        if not isinstance(word, str) or not isinstance(place, int) or text[place : place + len(word)] != word:
            raise DataError(f"{cells.place}: {span}: {word!r} does not stand at character {place} of the text")
        marks.append((place, place + len(word), left, right))
    for start, end, left, right in sorted(marks, reverse=True):  # from the back, so that places stay what they are
        text = f"{text[:start]}{left}{text[start:end]}{right}{text[end:]}"
    return {"text": text}


ROWS: dict[str, Callable[[Cells], Json | None]] = {"csl": _csl, "ocnli": _ocnli, "cluewsc": _cluewsc}


def read_chid(path: Path) -> list[ChoiceQuestion]:
    """A passage with a blank, and idioms for it."""
    found = []
    for cells in read_cells(path):
        values, place = cells.values, cells.place
        content, options, answer = (values.get(name) for name in ("content", "candidates", "answer"))
        if not isinstance(content, str) or content.count(IDIOM) != 1:
            raise DataError(f"{place}: `content` must be a text with one {IDIOM}")
        if not isinstance(options, list) or len(options) < 2 or not all(isinstance(o, str) and o for o in options):
            raise DataError(f"{place}: `candidates` must be a list of two idioms or more")
        if not isinstance(answer, int) or isinstance(answer, bool) or not 0 <= answer < len(options):
            raise DataError(f"{place}: answer = {answer!r} is none of the {len(options)} candidates (from 0)")
        if found and len(options) != len(found[0].options):
            raise DataError(f"{place}: {len(options)} candidates, the first line has {len(found[0].options)}")
        blank = content.replace("_", "＿").replace(IDIOM, "_")
        found.append(ChoiceQuestion("", blank, tuple(options), answer, "", place))
    if not found:
        raise DataError(f"{path}: no questions")
    return found
