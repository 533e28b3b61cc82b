"""Intervals and verdicts against cases whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from remask.errors import DataError
from remask.reports.statistics import Difference, compare, holm, in_words, verdict


def scores(generator: np.random.Generator, num_seeds: int, num_examples: int, gain: float) -> tuple[np.ndarray, ...]:
    """Two rows whose true difference is `gain`: hard and easy examples, good and bad seeds, and chance."""
    examples = generator.normal(0, 2.0, num_examples)
    rows = []
    for shift in (0.0, gain):
        seeds = generator.normal(0, 0.3, (num_seeds, 1))
        rows.append(shift + seeds + examples + generator.normal(0, 1.0, (num_seeds, num_examples)))
    return tuple(rows)


@pytest.mark.parametrize(("num_seeds", "paired"), [(3, True), (3, False), (8, True)])
def test_the_interval_covers_the_truth_as_often_as_it_says(num_seeds: int, paired: bool) -> None:
    generator = np.random.default_rng(num_seeds)
    covered = []
    for number in range(200):
        first, second = scores(generator, num_seeds, 60, 0.5)
        found = compare(first, second, paired_seeds=paired, seed=number, num_draws=600)
        covered.append(found.low <= 0.5 <= found.high)
    assert 0.90 <= np.mean(covered) <= 0.995


def test_without_differences_between_seeds_it_is_the_interval_of_the_mean() -> None:
    generator = np.random.default_rng(1)
    gains = generator.normal(0.1, 1.0, 2000)
    first = np.tile(generator.normal(0, 5.0, 2000), (3, 1))  # what is hard for both rows does not matter
    found = compare(first, first + gains, num_draws=4000)
    error = gains.std() / np.sqrt(2000)
    assert found.value == pytest.approx(gains.mean())
    expected = (gains.mean() - 1.96 * error, gains.mean() + 1.96 * error)
    assert (found.low, found.high) == pytest.approx(expected, abs=0.004)


def test_with_seeds_alone_it_is_students_interval() -> None:
    gains = np.array([0.1, 0.25, 0.4, 0.2, 0.3])
    found = compare(np.zeros((5, 400)), np.tile(gains[:, None], (1, 400)), num_draws=10_000)
    half = 2.7764 * gains.std(ddof=1) / np.sqrt(5)
    assert (found.low, found.high) == pytest.approx((0.25 - half, 0.25 + half), rel=0.08)
    assert found.smallest == pytest.approx(1.43 * half, rel=0.1)


def test_examples_of_a_group_are_drawn_together() -> None:
    """Ten copies of every example are no more evidence than one."""
    first, second = np.zeros((3, 40)), np.tile(np.random.default_rng(2).normal(0.3, 1.0, 40), (3, 1))
    first_ten, second_ten = (np.repeat(values, 10, axis=1) for values in (first, second))
    names = np.repeat([f"paradigm {number}" for number in range(40)], 10).tolist()
    one, ten = compare(first, second), compare(first_ten, second_ten, groups=names)
    assert (one.value, one.low, one.high) == pytest.approx((ten.value, ten.low, ten.high), abs=0.03)
    alone = compare(first_ten, second_ten, num_draws=1000)
    assert alone.high - alone.low == pytest.approx((ten.high - ten.low) / np.sqrt(10), rel=0.1)


def test_ratios_of_sums_weigh_by_size() -> None:
    sizes = np.array([1.0, 9.0])
    found = compare(np.array([[1.0, 9.0]] * 2), np.array([[1.0, 18.0]] * 2), sizes=sizes, num_draws=50)
    assert found.value == pytest.approx(19 / 10 - 10 / 10)


def test_holms_correction() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_verdicts_are_what_the_interval_carries() -> None:
    clear, wide = Difference(0.5, 0.2, 0.8, 0.001, 0.43), Difference(0.5, -0.2, 1.2, 0.2, 1.0)
    assert verdict(clear) == "better"
    assert verdict(clear, higher_is_better=False) == "worse"
    assert verdict(wide) == "no difference seen"
    assert verdict(clear, p=0.07) == "no difference seen", "one of many comparisons"
    assert in_words(wide) == "no difference seen: +0.5 [-0.2, +1.2]; one of 1 would likely have been seen"
    assert in_words(clear) == "better: +0.50 [+0.20, +0.80]"
    near = Difference(-6.685e-05, -0.01795, 0.01666, 0.99, 0.025)
    assert in_words(near).startswith("no difference seen: +0.000 [-0.018, +0.017];"), "no -0.000, no 6.685e-05"


def test_what_cannot_be_compared_is_refused() -> None:
    good = np.zeros((2, 5))
    for first, second, message in (
        (good[:1], good[:1], "one seed"),
        (good, np.zeros((2, 6)), "same examples"),
        (good, np.zeros((3, 5)), "cannot be paired"),
        (good, np.full((2, 5), np.nan), "not a number"),
    ):
        with pytest.raises(DataError, match=message):
            compare(first, second)
