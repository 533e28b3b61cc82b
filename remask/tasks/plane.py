"""Vectors -> places on a plane, for maps that a person looks at: the two directions along which they differ most.

In: one vector a text. Out: two numbers a text, and which share of the variance they show. Principal components, exact
and deterministic (signs are fixed). Not here: the drawing (reports/charts).
"""

from __future__ import annotations

import numpy as np


def plane(vectors_NW: np.ndarray) -> tuple[np.ndarray, float]:
    """Places (N x 2), the widest direction first, and the share of the variance that they show."""
    centred = np.asarray(vectors_NW, np.float64)
    centred = centred - centred.mean(axis=0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    directions = directions[:2]
    # A direction and its opposite are equally good. Its largest entry is made positive, so that a map stays the same.
    largest = directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)]
    places = centred @ (directions * np.where(largest < 0, -1.0, 1.0)[:, None]).T
    if places.shape[1] < 2:  # one number a text, or one text: a line
        places = np.hstack([places, np.zeros((len(places), 2 - places.shape[1]))])
    total = float((sizes**2).sum())
    return places, float((sizes[:2] ** 2).sum()) / total if total > 0 else 0.0
