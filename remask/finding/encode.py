"""Passages -> vectors, in pieces that any worker may do and that are kept as each is done.

A piece is the vectors of some passages of one part, as raw float32; which passages follows from the part alone. So the
work goes on after a kill, and ends with the same bytes. Every worker process opens the model once. Not here: the file
that a search maps (build, vectors).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remask import artifacts
from remask.errors import DataError
from remask.finding.passages import Passages

if TYPE_CHECKING:
    from remask.answer.model import Model
    from remask.precision import Format

PIECE_ROWS = 1_024
# The names by which models keep what they read before a text of each side.
DOCUMENT, QUERY = "document", "query"


@dataclass(frozen=True)
class VectorTask:
    """Passages [first, last) of a part, and the file that their vectors go to."""

    part: Path
    first: int
    last: int
    out: Path
    model: Path
    fingerprint: str  # of the model: another one may come to stand at its path
    prompt: str | None
    precision: Format
    device: str


def pieces_of(part: Path, num_passages: int, out: Path, **how: Any) -> list[VectorTask]:
    bounds = range(0, num_passages, PIECE_ROWS)
    return [
        VectorTask(part, first, min(first + PIECE_ROWS, num_passages), out / f"{part.name}-{first:09d}", **how)
        for first in bounds
    ]


@lru_cache(maxsize=1)
def _opened(path: Path, fingerprint: str, precision: Format, device: str) -> Model:
    from remask.answer.model import load

    return load(path, precision=precision, device=device)


def make_piece(task: VectorTask) -> int:
    """The vectors of a piece, unless an earlier attempt made them; how many there are."""
    if not task.out.is_file():
        from remask.finding.vectors import check_vectors

        passages = Passages(task.part)
        texts = [passages.text(row) for row in range(task.first, task.last)]
        model = _opened(task.model, task.fingerprint, task.precision, task.device)
        vectors = model.embed(texts, prompt=task.prompt, long_texts="cut")
        place = passages.document(passages.document_of(task.first))["place"]
        check_vectors(vectors, f"{place} and what follows")
        artifacts.write_bytes(task.out, vectors.astype("<f4").tobytes())
    return task.last - task.first


def prompt_name(prompts: Mapping[str, str], asked: str | None, usual: str, model: Path) -> str | None:
    """The prompt of a side: as asked for, or the usual one where the model has it."""
    if asked is None:
        return usual if usual in prompts else None
    if asked not in prompts:
        raise DataError(f"prompt = {asked!r}: {model} has no such prompt; it has {', '.join(prompts) or 'none'}")
    return asked
