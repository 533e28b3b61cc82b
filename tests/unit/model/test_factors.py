"""Vectors from a sparse matrix: those of a full SVD, whatever the threads, and fewer where the rank is lower."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

from remask.model.factors import between, factors


def matrix(size: int = 300, seed: int = 0) -> csr_array:
    """Some strong directions and noise, 20 % of it filled."""
    draw = np.random.default_rng(seed)
    low = draw.standard_normal((size, 12)) * np.geomspace(4, 1, 12) @ draw.standard_normal((12, size))
    filled = random_array((size, size), density=0.2, rng=draw).toarray() > 0
    return csr_array(np.maximum(low, 0) * filled, dtype=np.float32)


def test_vectors_are_those_of_a_full_svd() -> None:
    made = factors(matrix(), 8, seed=0, iterations=6)
    left, values, _ = np.linalg.svd(matrix().toarray().astype(np.float64))
    wanted = left[:, :8] * np.sqrt(values[:8])
    wanted *= np.sign(np.take_along_axis(wanted, np.abs(wanted).argmax(axis=0)[None], axis=0))
    assert made.shape == (300, 8)
    # The later a column, the nearer its singular value is to the next one's: more iterations would tell them apart.
    assert np.abs(made - wanted)[:, :4].max() < 1e-3 * np.abs(wanted).max()
    assert np.abs(made - wanted).max() < 2e-2 * np.abs(wanted).max()


def test_the_map_between_vectors_is_found_again() -> None:
    """Whatever the weights, where the matrix is just what a map gives; the penalty takes a thousandth."""
    draw = np.random.default_rng(2)
    vectors, truth = draw.standard_normal((200, 6)), draw.standard_normal((6, 6))
    made = between(csr_array(vectors @ truth @ vectors.T), vectors, draw.random(200) + 0.1, threads=2)
    assert np.abs(made.numpy() - truth).max() < 0.01 * np.abs(truth).max()


def test_a_low_rank_gives_fewer_columns() -> None:
    draw = np.random.default_rng(1)
    low = csr_array((draw.random((60, 3)) @ draw.random((3, 60))).astype(np.float32))
    assert factors(low, 16, seed=0, iterations=2).shape == (60, 3)


SCRIPT = """
import sys, hashlib, torch
torch.set_num_threads(int(sys.argv[1]))
sys.path.insert(0, {place!r})
from test_factors import matrix
from remask.model.factors import between, factors
made = factors(matrix(1200, 5), 64, seed=0, iterations=2, threads=torch.get_num_threads())
print(torch.get_num_threads(), hashlib.sha256(made.tobytes()).hexdigest())
"""


@pytest.mark.timeout(120)
def test_the_same_bytes_for_any_number_of_threads() -> None:
    script = SCRIPT.format(place=str(Path(__file__).parent))
    said = {}
    for threads in ("1", "2"):
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        done = subprocess.run([sys.executable, "-c", script, threads], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        number, digest = done.stdout.split()
        said[number] = digest
    assert set(said) == {"1", "2"}
    assert len(set(said.values())) == 1
