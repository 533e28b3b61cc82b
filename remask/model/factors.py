"""A sparse matrix of how tokens relate -> a vector for every token, by a truncated SVD from a random projection; or,
where tokens have vectors, the map between two vectors that says nearly the same as the matrix.

In: a sparse matrix, how many columns are wanted, a seed. Out: U * sqrt(S), columns by falling singular value, each with
the sign that makes its largest entry positive. The same bytes for any number of threads: a row of a sparse product is
summed by one thread in the order of its entries, and dense products run on one thread. Other machines and libraries
round differently: there the vectors agree to about 1e-3 of their size, not by the byte.
Method: Halko, Martinsson and Tropp 2011 (arXiv 0909.4061), section 4.5. Not here: where the matrix comes from.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# Shapes: V rows and columns of the matrix, R columns of the projection, D wanted columns, C columns of vectors,
# K columns at once.

_SPARE = 32  # columns beyond the wanted ones, which make these exact
_BLOCKS = 64  # of rows, handed to threads
_COLUMNS = 32  # of a dense factor at once: so much of every row that the rows in use stay in a core's own cache
_RIDGE = 1e-3  # of the mean of a Gram matrix's diagonal, added to it: rare directions of vectors say little
_RANK = 1e-10  # of the largest eigenvalue: below it a direction is rounding


@contextmanager
def one_thread() -> Iterator[None]:
    """Dense products add up in an order that depends on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def factors(matrix_VV: csr_array, width: int, seed: int, iterations: int, threads: int = 1) -> np.ndarray:
    """vectors_VD, fp32; D is at most `width`, less where the matrix has a lower rank."""
    size = len(matrix_VV.indptr) - 1
    number = min(width + _SPARE, size)
    draw = np.random.Generator(np.random.Philox(seed))
    start_VR = draw.standard_normal((size, number), np.float32)
    with one_thread(), ThreadPoolExecutor(threads) as pool:
        across, down = _Rows(matrix_VV, pool), _Rows(matrix_VV.T.tocsr(), pool)
        basis_VR = _orthonormal(across(start_VR))
        for _ in range(iterations):
            basis_VR = _orthonormal(across(_orthonormal(down(basis_VR))))
        # matrix = basis @ small.T; the eigenvectors of small.T @ small turn the basis into the singular vectors.
        values_R, turn_RR = _eigen(down(basis_VR))
        chosen = values_R[:width].clamp(min=0) > _RANK * values_R[:1]
        turn_RD = turn_RR[:, :width][:, chosen] * values_R[:width][chosen] ** 0.25
        vectors_VD = (torch.from_numpy(basis_VR) @ turn_RD.float()).numpy()
    largest_D = np.take_along_axis(vectors_VD, np.abs(vectors_VD).argmax(axis=0)[None], axis=0)
    return vectors_VD * np.where(largest_D < 0, np.float32(-1), np.float32(1))


def between(matrix_VV: csr_array, vectors_VC: np.ndarray, weights_V: np.ndarray, threads: int = 1) -> torch.Tensor:
    """map_CC, fp64: vector_row @ map @ vector_column is nearest to the matrix, squares weighted by both tokens."""
    vectors = torch.from_numpy(vectors_VC).double()
    weighted_VC = vectors * torch.from_numpy(weights_V).double()[:, None]
    with one_thread(), ThreadPoolExecutor(threads) as pool:
        product_VC = torch.from_numpy(_Rows(matrix_VV, pool)(weighted_VC.numpy()))
        gram_CC = vectors.T @ weighted_VC
        gram_CC.diagonal().add_(_RIDGE * gram_CC.diagonal().mean())
        half_CC = torch.linalg.solve(gram_CC, weighted_VC.T @ product_VC)
        return torch.linalg.solve(gram_CC, half_CC.T).T


class _Rows:
    """Products with a sparse matrix whose rows are dealt to threads."""

    def __init__(self, matrix_VV: csr_array, pool: ThreadPoolExecutor) -> None:
        cuts = np.searchsorted(matrix_VV.indptr, np.linspace(0, matrix_VV.nnz, _BLOCKS + 1)[1:-1])
        edges = [0, *cuts.tolist(), len(matrix_VV.indptr) - 1]
        self._parts = [matrix_VV[a:b] for a, b in pairwise(edges) if b > a]
        self._pool = pool

    def __call__(self, other_VR: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [self._product(other_VR[:, at : at + _COLUMNS].copy()) for at in range(0, other_VR.shape[1], _COLUMNS)],
            axis=1,
        )

    def _product(self, columns_VK: np.ndarray) -> np.ndarray:
        return np.concatenate(list(self._pool.map(lambda part: part @ columns_VK, self._parts)))


def _eigen(x_VR: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Eigenvalues and vectors of x.T @ x in fp64, the largest first."""
    gram_RR = torch.zeros(x_VR.shape[1], x_VR.shape[1], dtype=torch.float64)
    for rows in torch.from_numpy(x_VR).split(8192):
        wide = rows.double()
        gram_RR += wide.T @ wide
    values_R, vectors_RR = torch.linalg.eigh(gram_RR)
    return values_R.flip(0), vectors_RR.flip(1)


def _orthonormal(x_VR: np.ndarray) -> np.ndarray:
    """Columns of length 1 that span the same; directions without any length are left out."""
    values_R, vectors_RR = _eigen(x_VR)
    kept = values_R > _RANK * values_R[0]
    return (torch.from_numpy(x_VR) @ (vectors_RR[:, kept] / values_R[kept].sqrt()).float()).numpy()
