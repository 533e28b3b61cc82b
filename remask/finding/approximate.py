"""FAISS beside the vectors: a graph (HNSW) or a grid with short codes (IVF-PQ), for collections beyond a million.

Approximate: some of the best may be missed; what is found is compared in full with the mapped vectors afterwards. The
extra `faiss` has it. Not here: exact search (vectors).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from remask.errors import DataError, needs_extra
from remask.finding.settings import ApproximateSettings

_PER_CELL = 64  # vectors that a cell of the grid is trained on


def _faiss() -> ModuleType:
    with needs_extra("faiss", "approximate.kind needs the faiss extra"):
        import faiss
    return faiss


def write_approximate(
    blocks: Iterator[np.ndarray], num_rows: int, size: int, path: Path, settings: ApproximateSettings, seed: int
) -> None:
    """Build the structure from blocks of vectors in order and save it."""
    faiss = _faiss()
    if settings.kind == "hnsw":
        made = faiss.IndexHNSWFlat(size, settings.neighbours, faiss.METRIC_INNER_PRODUCT)
        for block in blocks:
            made.add(np.ascontiguousarray(block))
    else:
        made = _grid(faiss, blocks, num_rows, size, settings, seed)
    faiss.write_index(made, str(path))


def _grid(
    faiss: ModuleType, blocks: Iterator[np.ndarray], num_rows: int, size: int, settings: ApproximateSettings, seed: int
) -> Any:
    lists = settings.lists or max(1, round(4 * math.sqrt(num_rows)))
    lists = max(1, min(lists, num_rows // 39))  # FAISS wants 39 vectors a cell to learn it
    codes = settings.code_bytes or max(1, size // 16)
    if size % codes:
        raise DataError(f"approximate.code_bytes = {codes}: must divide the {size} numbers of a vector")
    bits = 8 if num_rows >= 39 * 256 else max(1, int(math.log2(max(2, num_rows // 39))))
    made = faiss.IndexIVFPQ(faiss.IndexFlatIP(size), size, lists, codes, bits, faiss.METRIC_INNER_PRODUCT)
    made.cp.seed = made.pq.cp.seed = 1 + seed
    held, count = [], 0
    wanted = min(num_rows, max(lists * _PER_CELL, 39 * 2**bits))
    for block in blocks:
        held.append(np.array(block))
        count += len(block)
        if not made.is_trained and count >= wanted:
            made.train(np.ascontiguousarray(np.concatenate(held)[:wanted]))
        if made.is_trained:
            for one in held:
                made.add(np.ascontiguousarray(one))
            held = []
    made.make_direct_map()
    return made


class Approximate:
    """An opened structure."""

    def __init__(self, path: Path, settings: ApproximateSettings, num_rows: int) -> None:
        faiss = _faiss()
        try:
            self._index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
        except RuntimeError as error:
            raise DataError(f"{path}: cannot be read: {str(error).splitlines()[-1][:160]}: damaged") from None
        if self._index.ntotal != num_rows:
            raise DataError(f"{path}: is about {self._index.ntotal} passages, not {num_rows}: damaged")
        if settings.kind == "hnsw":
            self._index.hnsw.efSearch = settings.width
        else:
            self._index.nprobe = settings.probes

    def search(self, query: np.ndarray, candidates: int) -> np.ndarray:
        """Rows that are probably the closest."""
        _, rows = self._index.search(np.ascontiguousarray(query[None], np.float32), candidates)
        return rows[0][rows[0] >= 0].astype(np.int64)
