"""Exact search over vectors in a mapped file, block by block; a rough int8 pass before it as a choice.

In: `vectors` (N x D float32, of length 1, so that products are cosines) and, for the rough pass, `codes` (N x D int8)
and `scales` (N float32). A code is (vector - mean of all) / scale, rounded: taking the mean away takes the same number
from every score of a query, so the order stays, and what is left fills the 8 bits better. Out: the best
rows with their scores, best first, the lower row first where two are alike. The file is the only copy of the vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from remask.errors import DataError
from remask.workers import num_cores

BLOCK_ROWS = 16_384
_CODE_BLOCK_ROWS = 262_144
_MANY_QUERIES = 4  # from here on a matrix product beats one pass a query
VECTOR = np.dtype("<f4")

Best = tuple[np.ndarray, np.ndarray]  # scores, rows


def check_vectors(vectors: np.ndarray, place: str) -> None:
    """A DataError where a number is none: one NaN would be the best match of every query."""
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise DataError(
            f"{place}: the model gives {len(bad):,} of {len(vectors):,} vectors that hold NaN or infinity, the first "
            f"at {int(bad[0])}; its weights are damaged or its precision does not suffice (precision = fp32)"
        )


class BestRows:
    """The best of all blocks so far. A block is only looked at where it beats the worst of them."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._scores, self._rows = np.zeros(0, np.float32), np.zeros(0, np.int64)
        self._least = -np.inf

    def add(self, scores: np.ndarray, first_row: int, removed: np.ndarray | None = None) -> None:
        """Blocks come in the order of their rows, so among equals the ones that are here stay."""
        better = np.flatnonzero(scores > self._least) if np.isfinite(self._least) else np.arange(len(scores))
        if removed is not None and len(removed):
            better = better[~removed[first_row + better]]
        if not len(better):
            return
        self._scores = np.concatenate([self._scores, scores[better]])
        self._rows = np.concatenate([self._rows, better + first_row])
        if len(self._scores) >= self._top:
            self._least = -np.partition(-self._scores, self._top - 1)[self._top - 1]
            above = np.flatnonzero(self._scores > self._least)
            equal = np.flatnonzero(self._scores == self._least)[: self._top - len(above)]
            kept = np.sort(np.concatenate([above, equal]))
            self._scores, self._rows = self._scores[kept], self._rows[kept]

    def best(self) -> Best:
        order = np.lexsort((self._rows, -self._scores))[: self._top]
        return self._scores[order], self._rows[order]


@dataclass(frozen=True)
class VectorFile:
    """The vectors of a folder, mapped."""

    folder: Path
    num_rows: int
    size: int

    @cached_property
    def vectors(self) -> np.ndarray:
        return self._map("vectors", VECTOR, (self.num_rows, self.size))

    @cached_property
    def codes(self) -> np.ndarray:
        return self._map("codes", np.dtype(np.int8), (self.num_rows, self.size))

    @cached_property
    def scales(self) -> np.ndarray:
        return self._map("scales", VECTOR, (self.num_rows,))

    @property
    def has_codes(self) -> bool:
        return (self.folder / "codes").is_file()

    def _map(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        path, wanted = self.folder / name, int(np.prod(shape)) * dtype.itemsize
        if not path.is_file() or path.stat().st_size != wanted:
            there = f"{path.stat().st_size:,}" if path.is_file() else "no"
            raise DataError(f"{path}: has {there} bytes, should have {wanted:,}: damaged")
        # Private pages (mode c): torch wants arrays that could be written to; nobody does.
        return np.asarray(np.memmap(path, dtype, "c", shape=shape)) if wanted else np.zeros(shape, dtype)

    # ------------------------------------------------------------------------------------------------- search

    def search(self, queries: np.ndarray, top: int, removed: np.ndarray | None = None) -> list[Best]:
        """The best rows of each query, every vector compared in full."""
        queries = np.ascontiguousarray(queries, VECTOR)
        if len(queries) < _MANY_QUERIES:
            return [self._one(query, top, removed) for query in queries]
        gathered = [BestRows(top) for _ in queries]
        for begin in range(0, self.num_rows, BLOCK_ROWS):
            scores = self.vectors[begin : begin + BLOCK_ROWS] @ queries.T
            for number, one in enumerate(gathered):
                one.add(scores[:, number], begin, removed)
        # A product of matrices rounds otherwise than one of vectors: scores are those of `_one`.
        return [self.rescored(query, one.best()[1], top) for query, one in zip(queries, gathered, strict=True)]

    def _one(self, query: np.ndarray, top: int, removed: np.ndarray | None) -> Best:
        """One query on all cores. Row by row, numpy reads memory at its full speed where BLAS' matrix-vector product
        reaches half of it, and lets other threads run meanwhile."""
        workers = min(num_cores(), max(1, self.num_rows // BLOCK_ROWS))
        bounds = np.linspace(0, self.num_rows, workers + 1).astype(int)
        vectors = self.vectors

        def part(number: int) -> BestRows:
            gathered = BestRows(top)
            for begin, end in _blocks(bounds[number], bounds[number + 1], BLOCK_ROWS):
                gathered.add(np.vecdot(vectors[begin:end], query), begin, removed)
            return gathered

        if workers == 1:
            return part(0).best()
        with ThreadPoolExecutor(workers) as pool:
            return merged([one.best() for one in pool.map(part, range(workers))], top)

    def search_roughly(
        self, queries: np.ndarray, top: int, candidates: int, removed: np.ndarray | None = None
    ) -> list[Best]:
        """int8 products first; the best `candidates` of them are compared in full."""
        found = []
        for query in np.ascontiguousarray(queries, VECTOR):
            _, rows = self._rough(query, candidates, removed)
            found.append(self.rescored(query, rows, top))
        return found

    def _rough(self, query: np.ndarray, candidates: int, removed: np.ndarray | None) -> Best:
        import torch

        scale = float(np.abs(query).max()) / 127 or 1.0
        column = torch.from_numpy(np.round(query / scale).astype(np.int8)).unsqueeze(1).contiguous()
        gathered = BestRows(candidates)
        # A small block first: it sets a bar that few rows of the large ones pass.
        first = min(BLOCK_ROWS, self.num_rows)
        for begin, end in [(0, first), *_blocks(first, self.num_rows, _CODE_BLOCK_ROWS)]:
            products = torch._int_mm(torch.from_numpy(self.codes[begin:end]), column).squeeze(1).float()
            gathered.add(products.mul_(torch.from_numpy(self.scales[begin:end])).numpy(), begin, removed)
        return gathered.best()

    def rescored(self, query: np.ndarray, rows: np.ndarray, top: int) -> Best:
        """Candidates compared in full."""
        rows = np.sort(rows)
        scores = np.vecdot(self.vectors[rows], query)
        order = np.lexsort((rows, -scores))[:top]
        return scores[order], rows[order]


def _blocks(first: int, last: int, size: int) -> Iterator[tuple[int, int]]:
    for begin in range(int(first), int(last), size):
        yield begin, min(begin + size, int(last))


def merged(parts: Sequence[Best], top: int) -> Best:
    """The best of several."""
    if not parts:
        return np.zeros(0, np.float32), np.zeros(0, np.int64)
    scores, rows = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = np.lexsort((rows, -scores))[:top]
    return scores[order], rows[order]


# ------------------------------------------------------------------------------------------------------ making


def write_codes(file: VectorFile, centre: np.ndarray) -> None:
    """`codes` and `scales` beside the vectors, block by block."""
    with (file.folder / "codes").open("wb") as codes, (file.folder / "scales").open("wb") as scales:
        for begin, end in _blocks(0, file.num_rows, BLOCK_ROWS):
            rest = np.asarray(file.vectors[begin:end]) - centre
            scale = np.maximum(np.abs(rest).max(axis=1), np.finfo(np.float32).tiny) / 127
            codes.write(np.round(rest / scale[:, None]).astype(np.int8).tobytes())
            scales.write(scale.astype(VECTOR).tobytes())


def mean_vector(file: VectorFile) -> np.ndarray:
    total = np.zeros(file.size, np.float64)
    for begin, end in _blocks(0, file.num_rows, BLOCK_ROWS):
        total += np.asarray(file.vectors[begin:end], np.float64).sum(axis=0)
    return (total / max(1, file.num_rows)).astype(VECTOR)
