"""Exact search equals the plain product; the rough pass finds the same; removed rows and damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from remask.errors import DataError
from remask.finding import vectors as module
from remask.finding.vectors import VectorFile, check_vectors, mean_vector, write_codes


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VectorFile:
    monkeypatch.setattr(module, "BLOCK_ROWS", 64)
    monkeypatch.setattr(module, "_CODE_BLOCK_ROWS", 128)
    draw = np.random.default_rng(0)
    # As encoders that were not trained to embed have them: all point nearly the same way.
    rows = draw.normal(size=(500, 32)) + 3 * draw.normal(size=32)
    rows[17] = rows[400]  # two alike: the lower row comes first
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows.astype("<f4").tofile(tmp_path / "vectors")
    return VectorFile(tmp_path, 500, 32)


def queries(count: int) -> np.ndarray:
    found = np.random.default_rng(1).normal(size=(count, 32)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def plain(file: VectorFile, query: np.ndarray, top: int, keep: np.ndarray | None = None) -> list[int]:
    scores = np.asarray(file.vectors, np.float64) @ query
    if keep is not None:
        scores[~keep] = -np.inf
    return np.argsort(-scores, kind="stable")[:top].tolist()


@pytest.mark.parametrize("count", [1, 7])
def test_exact_search_is_the_plain_product(file: VectorFile, count: int) -> None:
    asked = queries(count)
    for query, (scores, rows) in zip(asked, file.search(asked, 10), strict=True):
        assert rows.tolist() == plain(file, query, 10)
        np.testing.assert_allclose(scores, file.vectors[rows] @ query, atol=1e-5)
    (_, rows) = file.search(np.asarray(file.vectors[400:401]), 2)[0]
    assert rows.tolist() == [17, 400]


def test_a_rough_pass_first_finds_the_same_with_the_same_scores(file: VectorFile) -> None:
    write_codes(file, mean_vector(file))
    assert (file.folder / "codes").stat().st_size == 500 * 32
    asked = queries(20)
    for query, rough, exact in zip(asked, file.search_roughly(asked, 5, 60), file.search(asked, 5), strict=True):
        assert rough[1].tolist() == exact[1].tolist() == plain(file, query, 5)
        np.testing.assert_allclose(rough[0], exact[0], atol=1e-6)
    # With as many candidates as are wanted, the rough order alone decides: that is not always the same.
    few = [rows.tolist() for _, rows in file.search_roughly(asked, 5, 5)]
    assert few != [plain(file, query, 5) for query in asked]


def test_removed_rows_are_not_found(file: VectorFile) -> None:
    write_codes(file, mean_vector(file))
    asked = queries(5)
    removed = np.zeros(500, bool)
    removed[[rows[0] for _, rows in file.search(asked, 1)]] = True
    for query, one, rough in zip(
        asked, file.search(asked, 5, removed), file.search_roughly(asked, 5, 60, removed), strict=True
    ):
        assert one[1].tolist() == rough[1].tolist() == plain(file, query, 5, ~removed)
    assert len(file.search(asked[:1], 5, np.ones(500, bool))[0][1]) == 0


def test_numbers_that_are_none_and_short_files_are_refused(file: VectorFile) -> None:
    bad = np.ones((3, 4), np.float32)
    bad[1, 2] = np.nan
    with pytest.raises(DataError, match=r"docs\.csv:7: the model gives 1 of 3 vectors that hold NaN .* at 1"):
        check_vectors(bad, "docs.csv:7")
    with (file.folder / "vectors").open("r+b") as stream:
        stream.truncate(100)
    with pytest.raises(DataError, match=r"has 100 bytes, should have 64,000: damaged"):
        _ = file.vectors
