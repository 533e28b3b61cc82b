"""A two-dimensional map of a collection: a sample of its passages as points, and where a query stands among them.

The vectors' two main directions (PCA) give a start; then neighbours are drawn together and others pushed apart, which
shows groups that two directions cannot. A query, or a passage outside the sample, has no place of its own: it stands
where the points are that it is closest to. The same index and seed give the same map.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import orjson

from remask.tasks.plane import plane

if TYPE_CHECKING:
    from remask.finding.index import Index

MAX_POINTS = 1_000
_NEIGHBOURS, _ROUNDS, _PUSHED = 12, 150, 8
_LABEL_LETTERS = 80


def write_map(index: Index, path: Path, seed: int) -> None:
    """The points of a sample, spread over the collection."""
    rows = np.arange(index.num_rows)
    if index.removed is not None:
        rows = rows[~index.removed]
    if len(rows) > MAX_POINTS:
        rows = rows[np.linspace(0, len(rows) - 1, MAX_POINTS).astype(int)]
    vectors = np.stack([index.vector(int(row)) for row in rows]) if len(rows) else np.zeros((0, index.size))
    places = layout(vectors, seed)
    points = []
    for row, (x, y) in zip(rows.tolist(), places.tolist(), strict=True):
        hit = index.hit(row, 0.0)
        points.append({"row": row, "id": hit.id, "x": x, "y": y, "text": hit.text[:_LABEL_LETTERS]})
    path.write_bytes(orjson.dumps({"points": points, "passages": len(index)}))


def layout(vectors: np.ndarray, seed: int) -> np.ndarray:
    """Places in [-1, 1] x [-1, 1], one a vector."""
    count = len(vectors)
    if count < 3:
        return np.stack([np.linspace(-0.5, 0.5, count), np.zeros(count)], 1) if count else np.zeros((0, 2))
    places, _ = plane(vectors)
    places = places / (places.std(axis=0) * 10 + 1e-12)
    centred = vectors - vectors.mean(axis=0)
    closeness = centred @ centred.T
    np.fill_diagonal(closeness, -np.inf)
    neighbours = np.argsort(-closeness, axis=1, kind="stable")[:, : min(_NEIGHBOURS, count - 1)]
    generator = np.random.default_rng(seed)
    for step in range(_ROUNDS):
        rate = 0.5 * (1 - step / _ROUNDS)
        pull = places[neighbours].mean(axis=1) - places
        others = generator.integers(count, size=(count, _PUSHED))
        away = places[:, None] - places[others]
        push = (away / ((away**2).sum(axis=2, keepdims=True) + 0.01)).mean(axis=1)
        places = places + rate * (pull + 0.05 * push)
    low, high = places.min(axis=0), places.max(axis=0)
    return np.round(2 * (places - low) / np.maximum(high - low, 1e-12) - 1, 4)


def place_of(index: Index, vector: np.ndarray) -> list[float]:
    """Where a vector stands that is no point of the map: on the most central of the five points closest to it. A mean
    of them could lie where nothing is."""
    points = index.map["points"]
    if not points:
        return [0.0, 0.0]
    closest = np.argsort(-(index.map_vectors @ vector), kind="stable")[:5]
    places = np.array([[points[i]["x"], points[i]["y"]] for i in closest])
    weights = 0.5 ** np.arange(len(places))  # the closer, the more it counts
    distances = np.linalg.norm(places[:, None] - places[None], axis=2) @ weights
    return places[int(distances.argmin())].tolist()
