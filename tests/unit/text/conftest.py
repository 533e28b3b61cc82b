"""Text that is never the same twice, and a build in a folder of its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remask.documents import Documents, read_documents
from remask.text.build import build_documents
from remask.text.settings import SourceSettings, TextSettings

LINE = (
    "river stone window garden letter winter morning silver engine harbour village doctor summer market bridge forest "
    "mountain question answer teacher brother captain island journey kitchen library machine number painter shadow"
)
WORDS = LINE.split()


@pytest.fixture
def texts() -> Iterator[str]:
    """Endless documents of 60 words."""

    def endless() -> Iterator[str]:
        generator = random.Random(3)
        number = 0
        while True:
            number += 1
            yield f"Document {number} " + " ".join(generator.choice(WORDS) for _ in range(60)) + "."

    return endless()


Build = Callable[..., Documents]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """build(path or sources, setting=...) -> the documents, all in the train split unless said otherwise."""
    count = 0

    def run(*sources: Any, workers: int = 1, seed: int = 0, **settings: Any) -> Documents:
        nonlocal count
        count += 1
        found = tuple(s if isinstance(s, SourceSettings) else SourceSettings(paths=(str(s),)) for s in sources)
        values = {"heldout_fraction": 0.0, **settings}
        out = tmp_path / "built" / str(count)
        build_documents(TextSettings(sources=found, **values), out, workers=workers, seed=seed)
        return read_documents(out, verify=True)

    return run


@pytest.fixture
def all_texts() -> Callable[[Documents], list[str]]:
    return lambda documents: [text for shard in documents.shards for text in shard.texts()]
