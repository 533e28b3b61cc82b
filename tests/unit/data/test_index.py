"""The index on disk: found again, rebuilt when stale or damaged, built once by processes that start together."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remask import signals
from remask.data import examples as examples_module
from remask.data import index as index_module
from remask.data import pairs as pairs_module
from remask.data.batches import open_batches
from remask.data.examples import Recipe
from remask.data.index import build_examples, open_index
from remask.data.settings import DataSettings
from remask.data.tokens import Tokens
from remask.errors import OutputError, Stopped


def recipe_of(seed: int = 1, **changes: Any) -> Recipe:
    settings = DataSettings(length=32, **changes)
    return Recipe.of(settings, settings.length, False, seed)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was built, in order."""
    made: list[str] = []

    real = index_module.example_parts

    def parts(source: Any, recipe: Recipe) -> Any:
        made.append(source.name)
        return real(source, recipe)

    monkeypatch.setattr(index_module, "example_parts", parts)
    return made


@pytest.mark.parametrize("run", [30, 1 << 20], ids=["many parts", "one part"])
def test_built_once_and_mapped(
    prepared: Path, tmp_path: Path, builds: list[str], run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs_module, "_CALIBRATION_SENTENCES", 5)  # less than a part
    tokens = Tokens.open(prepared)
    recipes = [
        recipe_of(),
        recipe_of(format="segment-pair", sentence_loss="nsp"),
        recipe_of(format="fixed-blocks"),
        recipe_of(format="doc-sentences", pack_documents=True),
    ]
    whole = [{name: build_examples(source, recipe) for name, source in tokens.sources.items()} for recipe in recipes]
    monkeypatch.setattr(examples_module, "CHUNK_SENTENCES", run)
    monkeypatch.setattr(examples_module, "CHUNK_BLOCKS", run)
    for recipe, wanted in zip(recipes, whole, strict=True):
        builds.clear()
        for _ in range(2):
            for name, found in open_index(tokens, recipe, tmp_path).items():
                fresh = wanted[name]
                for array in ("rows", "starts", "lengths", "sizes", "labels", "flags"):
                    if getattr(fresh, array) is None:
                        assert getattr(found, array) is None
                    else:
                        assert np.array_equal(getattr(found, array), getattr(fresh, array))
                        assert not getattr(found, array).flags.writeable
                assert found.counts == fresh.counts
        assert builds == ["wiki", "novels"]


@pytest.mark.parametrize("format", ["full-sentences", "sentence-pair", "fixed-blocks"])
def test_memory_does_not_grow_with_the_rows(
    prepare: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.setattr(examples_module, "CHUNK_SENTENCES", 1 << 11)
    monkeypatch.setattr(examples_module, "CHUNK_BLOCKS", 1 << 9)
    sentences = [[7] * 7] * 60_000
    tokens = Tokens.open(prepare({"a.train.00000": [sentences]}))
    settings = DataSettings(length=8, format=format)
    (tmp_path / "index").mkdir()
    tracemalloc.start()
    index_module._fill(tmp_path / "index", tokens, Recipe.of(settings, 8, False, 1))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 0.5 * sum(path.stat().st_size for path in (tmp_path / "index").iterdir())


def test_only_what_matters_makes_a_new_index(prepared: Path, tmp_path: Path, builds: list[str]) -> None:
    tokens = Tokens.open(prepared)

    def built(recipe: Recipe) -> bool:
        builds.clear()
        open_index(tokens, recipe, tmp_path)
        return bool(builds)

    assert built(recipe_of(seed=1))
    assert not built(recipe_of(seed=2)), "plain sentences do not depend on the seed"
    assert built(recipe_of(seed=1, shorten_prob=0.5))
    assert built(recipe_of(seed=2, shorten_prob=0.5))
    assert built(recipe_of(seed=1, format="segment-pair"))
    assert built(recipe_of(seed=2, format="segment-pair")), "the cut of a segment pair is drawn"
    assert built(recipe_of(format="doc-sentences"))
    assert built(recipe_of(format="doc-sentences", pack_documents=True))


def test_other_shards_make_a_new_index(prepare: Callable[..., Path], tmp_path: Path, builds: list[str]) -> None:
    for documents in ([[[7, 8]]], [[[7, 9]]]):
        open_index(Tokens.open(prepare({"a.train.00000": documents})), recipe_of(), tmp_path / "index")
    assert builds == ["a", "a"]


def test_damage_means_building_again(prepared: Path, tmp_path: Path, builds: list[str]) -> None:
    tokens = Tokens.open(prepared)
    open_index(tokens, recipe_of(), tmp_path)
    (place,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    (place / "0.starts").write_bytes(b"")
    assert len(open_index(tokens, recipe_of(), tmp_path)["wiki"].starts)
    (place / "manifest.json").unlink()
    open_index(tokens, recipe_of(), tmp_path)
    assert builds == ["wiki", "novels"] * 3


BUILD = """
import sys
from pathlib import Path
from remask.data.examples import Recipe
from remask.data.index import open_index
from remask.data.tokens import Tokens
recipe = Recipe("full-sentences", "none", 32, False, False, 0.0, 32, 0)
opened = open_index(Tokens.open(Path(sys.argv[1])), recipe, Path(sys.argv[2]))
sys.exit(0 if sum(len(examples) for examples in opened.values()) == int(sys.argv[3]) else 1)
"""


def test_processes_that_start_together(prepared: Path, tmp_path: Path) -> None:
    wanted = sum(len(build_examples(source, recipe_of())) for source in Tokens.open(prepared).sources.values())
    words = [sys.executable, "-c", BUILD, str(prepared), str(tmp_path), str(wanted)]
    started = [subprocess.Popen(words) for _ in range(3)]
    assert [process.wait(timeout=100) for process in started] == [0] * 3
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1


def test_without_a_folder_nothing_is_written(prepared: Path, vocabulary: Any, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(prepared, folder)
    before = sorted(tmp_path.rglob("*"))
    settings = DataSettings(length=32)
    plain = open_batches(folder, settings, vocabulary, seed=1).batch_of_epoch(0, 0)
    assert sorted(tmp_path.rglob("*")) == before
    mapped = open_batches(folder, settings, vocabulary, seed=1, index_folder=tmp_path / "index").batch_of_epoch(0, 0)
    assert np.array_equal(plain.input_ids_BS, mapped.input_ids_BS)
    assert len(list((tmp_path / "index").glob("train-full-sentences-32-*"))) == 1


def test_a_folder_that_cannot_be_written(prepared: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        open_index(Tokens.open(prepared), recipe_of(), tmp_path / "file" / "index")


def test_a_signal_ends_the_building_and_leaves_no_index(prepared: Path, tmp_path: Path, builds: list[str]) -> None:
    tokens, recipe = Tokens.open(prepared), recipe_of()
    with signals.catch():
        signals._flag.set()
        with pytest.raises(Stopped):
            open_index(tokens, recipe, tmp_path / "index")
    assert not list((tmp_path / "index").glob("train-*"))
    found = open_index(tokens, recipe, tmp_path / "index")
    assert {name: len(one) for name, one in found.items()} == {
        name: len(build_examples(source, recipe)) for name, source in tokens.sources.items()
    }
