"""Every switch of an index changes what is published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import remask
from remask.config import Switch, switches
from remask.finding.settings import IndexRun
from remask.progress import Progress

from .conftest import TOPICS

GERMAN = "Es kommt z. B. Anna. Am 5. Mai kam Dr. Meier usw. Nr. 7 auch. Prof. Klug blieb."
LINES = "A line that goes\non in the next. The end\nof it is here."


def files_of(encoder: Path, docs: Path, out: Path, key: str, value: object) -> dict[str, bytes]:
    settings = {"passages.length": 24, key: value}
    remask.index(model=encoder, docs=[docs], out=out, settings=settings, progress=Progress(quiet=True))
    return {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != "manifest.json"}


@pytest.mark.parametrize("one", list(switches(IndexRun)), ids=lambda one: one.key)
def test_every_switch_is_live(one: Switch, encoder: Path, tmp_path: Path) -> None:
    if one.key == "approximate.kind":
        pytest.importorskip("faiss")
    texts = [GERMAN, LINES, *TOPICS.values()] * 8
    docs = tmp_path / "docs.jsonl"
    docs.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    default = 24 if one.key == "passages.length" else one.default
    made = [files_of(encoder, docs, tmp_path / "0", one.key, default)]
    for number, value in enumerate(value for value in one.values if value != default):
        found = files_of(encoder, docs, tmp_path / str(number + 1), one.key, value)
        assert found not in made, f"{one.key} = {value!r}"
        made.append(found)
    assert len(made) > 1
