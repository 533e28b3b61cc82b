"""Shares of classes among texts, from what a classifier with known mistakes said about them.

In: how often each class was said, and the classifier's confusion on its dev data. Out: the shares that such answers
point to, and how far chance may have moved them. If p are the true shares and C[i, j] is how often the class i is
called j, the said shares are p C on average; so p is estimated as said x inverse(C), which is unbiased but may leave
[0, 1] where texts are few. Not here: time (detector).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Array = np.ndarray

# Shapes: K classes, W windows.

MAX_CONDITION = 50.0  # beyond this a confusion cannot be taken back: errors would grow by as much


class Corrector:
    """Said counts -> estimated shares with their covariance."""

    def __init__(self, confusion: Sequence[Sequence[float]] | None, num_classes: int) -> None:
        """`confusion`: counts, rows are what was true, columns what was said; None: the classifier is taken at its
        word."""
        self.matrix_KK = np.eye(num_classes)
        if confusion is not None:
            counts_KK = np.asarray(confusion, dtype=float)
            assert counts_KK.shape == (num_classes, num_classes), "a confusion of other classes"
            # A class that the dev data has few of gets half an example on every class: no row is empty or certain.
            counts_KK = counts_KK + 0.5 / num_classes + 0.5 * np.eye(num_classes)
            self.matrix_KK = counts_KK / counts_KK.sum(1, keepdims=True)
        self.condition = float(np.linalg.cond(self.matrix_KK))
        self.back_KK = np.linalg.inv(self.matrix_KK) if self.condition < MAX_CONDITION else np.eye(num_classes)

    @property
    def is_usable(self) -> bool:
        return self.condition < MAX_CONDITION

    def shares(self, counts: Array) -> Array:
        """Of one window (K) or several (W x K); rows without texts are not asked for."""
        counts = np.asarray(counts, dtype=float)
        return counts / counts.sum(-1, keepdims=True) @ self.back_KK

    def variance_of_one(self, shares_K: Array) -> Array:
        """variance_K of the estimate from one text, where these are the true shares; n texts have 1/n of it."""
        said_K = np.clip(shares_K, 0, 1) @ self.matrix_KK
        said_K = said_K / said_K.sum()
        covariance_KK = np.diag(said_K) - np.outer(said_K, said_K)
        return np.einsum("ik,ij,jk->k", self.back_KK, covariance_KK, self.back_KK)
