"""The example index: boundaries built once, kept as a fingerprinted, memory-mapped artifact, rebuilt when stale.

In: Tokens and a Recipe. Out: Examples per source. `build_examples` makes them in memory; `open_index` keeps them in
a folder named by their fingerprint, so that every rank and every later run maps the same file. There they are written
part by part, so the memory does not grow with the number of rows: it holds document offsets, 8 to 32 bytes a document,
and only `pack_documents`, which sorts all rows, all of them (about 100 bytes a document). Processes that start
together wait for the one that builds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from remask import artifacts, signals
from remask.config import fingerprint
from remask.data.examples import Examples, Recipe, block_parts, join, no_examples, sentence_parts
from remask.data.packing import pack
from remask.data.pairs import pair_parts
from remask.data.settings import PAIRS
from remask.data.tokens import SourceTokens, Tokens
from remask.errors import DataError
from remask.schema import Json

STAGE = "examples"
_VERSION = 2  # 2: drawn negatives that are cut have a count of their own
_ARRAYS = {"rows": "<i8", "starts": "<i8", "lengths": "<i4", "sizes": "<i4", "labels": "|i1", "flags": "|u1"}


def build_examples(source: SourceTokens, recipe: Recipe) -> Examples:
    """The rows of one source by the recipe's format."""
    return join(example_parts(source, recipe))


def example_parts(source: SourceTokens, recipe: Recipe) -> Iterator[Examples]:
    """The same in parts, as they are made, after one that is empty."""
    yield no_examples(recipe)
    if recipe.format in PAIRS:
        yield from pair_parts(source, recipe)
    elif recipe.format == "fixed-blocks":
        yield from block_parts(source, recipe)
    elif recipe.pack_documents:
        yield pack(join([no_examples(recipe), *sentence_parts(source, recipe)]), recipe.length)
    else:
        yield from sentence_parts(source, recipe)


def open_index(tokens: Tokens, recipe: Recipe, folder: Path | None) -> dict[str, Examples]:
    """Examples by source, from `folder`, built there where missing. Without a folder: in memory, nothing is written."""
    if folder is None:
        return {name: build_examples(source, recipe) for name, source in tokens.sources.items()}
    identity = {"version": _VERSION, "recipe": asdict(recipe), "split": tokens.split, "prepared": tokens.fingerprint}
    place = folder / f"{tokens.split}-{recipe.format}-{recipe.length}-{fingerprint(identity)[:16]}"
    with artifacts.turn(folder):
        try:
            artifact = artifacts.open_artifact(place, STAGE)
        except (DataError, artifacts.MissingInputError):
            artifact = artifacts.publish(
                place,
                STAGE,
                lambda aside: _fill(aside, tokens, recipe),
                config=identity,
                inputs={"prepared": tokens.fingerprint},
                replace=True,
            )
    return {name: _open(artifact, number, name) for number, name in enumerate(tokens.sources)}


def _fill(aside: Path, tokens: Tokens, recipe: Recipe) -> Json:
    counts: Json = {}
    for number, (name, source) in enumerate(tokens.sources.items()):
        total: Counter[str] = Counter()
        num_pieces = 0
        for part_number, part in enumerate(example_parts(source, recipe)):
            signals.check()  # what is there so far has no name yet, and is made again
            for array, kind in _ARRAYS.items():
                if (values := getattr(part, array)) is None:
                    continue
                if array == "rows":
                    values = values[min(part_number, 1) :] + num_pieces  # the first 0 stands once
                with (aside / f"{number}.{array}").open("ab") as file:
                    values.astype(kind, copy=False).tofile(file)
            num_pieces += len(part.starts)
            total.update(part.counts)
        counts[name] = dict(total)
    return counts


def _open(artifact: artifacts.Artifact, number: int, name: str) -> Examples:
    arrays: dict[str, np.ndarray] = {}
    for array, kind in _ARRAYS.items():
        path = artifact.folder / f"{number}.{array}"
        if path.name in artifact.manifest["files"]:
            mapped = path.stat().st_size > 0
            arrays[array] = np.memmap(path, kind, mode="r").view(np.ndarray) if mapped else np.zeros(0, kind)
    return Examples(**arrays, counts=dict(artifact.counts[name]))
