"""Keyed draws, permutations and mixtures: exact where they must be, and without measurable bias."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remask.data.order import Mixture, below, draw, key_of, permute, uniform, whole_weights


def chi_square(counts: np.ndarray, expected: np.ndarray | float) -> float:
    """In standard deviations from what chance gives."""
    freedom = counts.size - 1
    value = ((counts - expected) ** 2 / expected).sum()
    return float((value - freedom) / np.sqrt(2 * freedom))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5000), st.integers(0, 2**64 - 1))
def test_a_permutation(size: int, key: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size))


def test_known_values() -> None:
    """Order and masks must not change from one version to the next: recorded runs rely on them."""
    assert key_of("mask", 1) == 3708561163959286635
    assert draw(7, np.arange(3)).tolist() == [7191089600892374487, 309689372594955804, 16616101746815609346]
    assert permute(np.arange(3), 10**9, 7).tolist() == [812757291, 526440168, 216311821]


def test_draws_are_splitmix64() -> None:
    """The published first outputs for seed 1234567."""
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert draw(1234567, np.arange(5)).tolist() == wanted


def test_draws_over_neighbouring_keys_and_counters_are_even() -> None:
    bits = draw(draw(key_of("x"), np.arange(1000))[:, None], np.arange(1000))
    for shift in (0, 13, 37, 56):
        counts = np.bincount(((bits >> np.uint64(shift)) & np.uint64(255)).ravel().astype(np.int64), minlength=256)
        assert abs(chi_square(counts, bits.size / 256)) < 5
    values = uniform(bits)
    assert 0 <= values.min() < values.max() < 1
    for one, other in ((values[:, :-1], values[:, 1:]), (values[:-1], values[1:])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 5 / np.sqrt(one.size)
    assert abs(chi_square(np.bincount(below(bits, 37).ravel()), bits.size / 37)) < 5


def test_no_bias_at_a_billion_examples() -> None:
    """First places of the order over many passes, and neighbours in it: even over the whole range."""
    size, passes, first = 1_000_000_007, 400, 2000
    found = np.stack([permute(np.arange(first), size, key_of("order", number)) for number in range(passes)])
    assert found.max() < size
    assert all(len(np.unique(row)) == first for row in found)
    bins = (found * 1000 // size).ravel()
    assert abs(chi_square(np.bincount(bins, minlength=1000), found.size / 1000)) < 5
    low = found.ravel() % 997
    assert abs(chi_square(np.bincount(low, minlength=997), found.size / 997)) < 5
    gaps = ((found[:, 1:] - found[:, :-1]) % size * 500 // size).ravel()
    assert abs(chi_square(np.bincount(gaps, minlength=500), gaps.size / 500)) < 5
    same_place = ((found[1:] - found[:-1]) % size * 500 // size).ravel()
    assert abs(chi_square(np.bincount(same_place, minlength=500), same_place.size / 500)) < 5
    for place in (0, 1, first - 1):
        counts = np.bincount(found[:, place] * 10 // size, minlength=10)
        assert abs(chi_square(counts, passes / 10)) < 5
    # Collisions between passes come as often as between independent draws.
    overlap = sum(len(np.intersect1d(found[i], found[i + 1])) for i in range(passes - 1))
    assert overlap < 10


@pytest.mark.parametrize("size", [5, 1300])
def test_all_orders_are_equally_likely(size: int) -> None:
    """Where each index goes, and which of two comes first, for sizes on both sides of the sorted range."""
    rounds = 3000
    found = np.stack([permute(np.arange(5), size, key_of("round", number)) for number in range(rounds)])
    for column in range(5):
        bins = found[:, column] * 5 // size
        assert abs(chi_square(np.bincount(bins, minlength=5), rounds / 5)) < 5
    for i in range(5):
        for j in range(i):
            assert abs((found[:, i] < found[:, j]).mean() - 0.5) < 5 * 0.5 / np.sqrt(rounds)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any), st.integers(0, 10**12))
def test_mixture(weights: list[int], start: int) -> None:
    mixture = Mixture(weights)
    total = sum(weights)
    sources, serials = mixture.locate(np.arange(3 * total))
    for number, weight in enumerate(weights):
        mine = np.flatnonzero(sources == number)
        assert serials[mine].tolist() == list(range(3 * weight))
        for cycle in range(3):
            assert ((mine >= cycle * total) & (mine < (cycle + 1) * total)).sum() == weight
    far, far_serials = mixture.locate(start + np.arange(total))
    for number in range(len(weights)):
        assert np.array_equal(np.diff(far_serials[far == number]), np.ones(max((far == number).sum() - 1, 0)))
        assert (far == number).sum() == weights[number]


def test_mixture_spreads_evenly_and_stays_exact_for_huge_sources() -> None:
    sources, _ = Mixture(whole_weights([0.7, 0.2, 0.1])).locate(np.arange(100_000))
    for number, share in enumerate((0.7, 0.2, 0.1)):
        counts = (sources == number).reshape(1000, 100).sum(axis=1)
        assert np.abs(counts - 100 * share).max() <= 2
    far = Mixture([3_000_000_000, 1_000_000_000]).locate(np.arange(10**13, 10**13 + 4000))
    assert (far[0] == 1).sum() == 1000
    assert abs(int(far[1][far[0] == 1][0]) - 10**13 // 4) <= 1
    assert whole_weights([1e-12, 1.0])[0] == 1
