"""The models of a server by id. Ids are names made from folder names; nothing a client sends is ever a path.

In: the words of the command line, each PATH or ID=PATH. Out: `Entry`s, and for a run folder its training steps, which a
client may ask for as ID@STEP. Not here: opening a model (engine), its facts (worker).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from remask.errors import MissingInputError, UsageError

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_STEP = re.compile(r"step-0*(\d{1,15})")
# Folders that are named by what they hold; the name of the one above says whose it is.
_GENERIC = {"model", "checkpoints", "hf", "best", "export", "pretrain"}


@dataclass(frozen=True)
class Entry:
    """A model that the server was given."""

    id: str
    folder: Path

    def steps(self) -> dict[int, Path]:
        """Its checkpoints by training step, now: a run that goes on makes and removes them."""
        found = {}
        for path in self.folder.glob("checkpoints/step-*"):
            if (match := _STEP.fullmatch(path.name)) and (path / "manifest.json").is_file():
                found[int(match[1])] = path
        return dict(sorted(found.items()))


def entries(words: Sequence[str]) -> list[Entry]:
    """One for each word; names that come twice get a number."""
    if not words:
        raise UsageError("no model to serve; give at least one MODEL (a folder, or ID=FOLDER)")
    found: list[Entry] = []
    for word in words:
        name, equals, rest = word.partition("=")
        if equals and not Path(word).exists():
            if not _ID.fullmatch(name):
                raise UsageError(f"{word}: {name!r} is no id; letters, digits, dots, dashes and underscores are")
            if any(entry.id == name for entry in found):
                raise UsageError(f"{word}: the id {name} is given twice")
            path = Path(rest)
        else:
            path = Path(word)
            name = _numbered(_name(path), {entry.id for entry in found})
        if not path.is_dir():
            raise MissingInputError(f"{path}: no such model folder")
        found.append(Entry(name, path))
    return found


def _name(path: Path) -> str:
    parts = [re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip(".-_") for part in path.resolve().parts[-3:]]
    parts = [part for part in parts if part]
    while len(parts) > 1 and (parts[-1] in _GENERIC or _STEP.fullmatch(parts[-1])):
        parts.pop()
    return parts[-1][:90] if parts else "model"


def _numbered(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found


def split_id(text: str) -> tuple[str, int | None] | None:
    """(id, step or None) of what a client sent; None: it can be no id."""
    name, at, step = text.partition("@")
    if not _ID.fullmatch(name) or (at and not re.fullmatch(r"0|[1-9]\d{0,14}", step, flags=re.ASCII)):
        return None
    return name, int(step) if at else None
