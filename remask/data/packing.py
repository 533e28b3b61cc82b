"""Several documents in a row that do not see each other, so that next to no padding is left.

In: rows of one piece each (doc-sentences). Out: rows of many pieces, each with its own marks, by best fit in
decreasing size. It works on the histogram of sizes, so the time depends on the row length and not on the number of
documents. Not here: the attention that keeps the documents apart (model/).
"""

from __future__ import annotations

import numpy as np

from remask.data.examples import Examples

_MARKS = 2  # every piece keeps its own <s> and </s>


def pack(examples: Examples, length: int) -> Examples:
    """Rows filled up to `length`; no piece is cut, every piece is in exactly one row."""
    sizes = examples.sizes
    waiting = np.argsort(sizes, kind="stable")  # pieces by size, in corpus order
    taken = np.concatenate(([0], np.cumsum(np.bincount(sizes, minlength=length + 1))))
    members: list[np.ndarray] = []
    widths: list[np.ndarray] = []
    for composition, times in _compositions(np.diff(taken), length):
        columns = []
        for size in composition:
            columns.append(waiting[taken[size] : taken[size] + times])
            taken[size] += times
        members.append(np.stack(columns, axis=1).ravel())
        widths.append(np.full(times, len(composition)))
    order = np.concatenate(members) if members else np.zeros(0, np.int64)
    rows = np.cumsum(np.concatenate([np.zeros(1, np.int64), *widths]))
    sums = np.concatenate(([0], np.cumsum(sizes[order], dtype=np.int64)))
    return Examples(
        rows,
        examples.starts[order],
        examples.lengths[order],
        np.diff(sums[rows]).astype(np.int32),
        counts=examples.counts,
    )


def _compositions(counts: np.ndarray, length: int) -> list[tuple[tuple[int, ...], int]]:
    """(sizes in a row, how many rows like that), largest sizes first, each into the fullest row with room."""
    room: list[list[tuple[tuple[int, ...], int]]] = [[] for _ in range(length + 1)]
    full: list[tuple[tuple[int, ...], int]] = []

    def put(composition: tuple[int, ...], times: int, left: int) -> None:
        if times:
            (room[left] if left > _MARKS else full).append((composition, times))

    for size in range(length, 0, -1):
        waiting = int(counts[size])
        while waiting and (left := next((left for left in range(size, length) if room[left]), 0)):
            composition, times = room[left].pop()
            used = min(times, waiting)
            put(composition, times - used, left)
            put((*composition, size), used, left - size)
            waiting -= used
        per_row = length // size
        put((size,) * per_row, waiting // per_row, length - size * per_row)
        put((size,) * (waiting % per_row), int(waiting % per_row > 0), length - size * (waiting % per_row))
    return full + [row for rows in room for row in rows]
