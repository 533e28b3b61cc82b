"""Whether one row of a table is better than another: intervals over seeds and examples together, and verdicts in words.

In: scores of two rows as values[seed, example], on the same examples and, where the runs were paired, the same seeds.
Out: the difference with a 95 % interval and a p value by the paired multi-bootstrap (Sellam and others, arXiv
2106.16163), p values corrected over a table (Holm), and the word that these carry. A score is a mean, or a ratio of
sums such as bits per byte (`sizes`). Not here: metrics that are neither (F1, Matthews), and where scores come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from remask.errors import DataError

NUM_DRAWS = 10_000
LEVEL = 0.95
_NORMAL_975, _NORMAL_80 = 1.959964, 0.841621
# Student's t at 0.975 for 1, 2, 3, ... degrees of freedom.
_T_975 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448,
    2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484,
    2.0452, 2.0423,
)  # fmt: skip
_CHUNK_NUMBERS = 4_000_000  # of example weights held at a time

Verdict = Literal["better", "worse", "no difference seen"]


@dataclass(frozen=True)
class Difference:
    """How much the second row's score is above the first's. `smallest`: the difference that such a comparison would
    have found in four of five cases."""

    value: float
    low: float
    high: float
    p: float
    smallest: float


def compare(
    first: np.ndarray,
    second: np.ndarray,
    *,
    sizes: np.ndarray | None = None,
    groups: Sequence[str] | None = None,
    paired_seeds: bool = True,
    seed: int = 0,
    num_draws: int = NUM_DRAWS,
) -> Difference:
    """The difference of two rows, with what other seeds and other examples might have made of it.

    `sizes`: what each example's value is divided by in sum (bytes, for bits per byte; none: one each). `groups`: the
    name of each example's group, where groups are drawn whole, each with the same weight (BLiMP's paradigms).
    """
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    sizes = np.ones(first.shape[-1]) if sizes is None else np.asarray(sizes, np.float64)
    _check(first, second, sizes, paired_seeds)
    if groups is not None:
        first, second, sizes = _group_means(first, second, sizes, groups)
    value = float(second.sum(axis=1).mean() - first.sum(axis=1).mean()) / float(sizes.sum())
    generator = np.random.default_rng(seed)
    rows = [second - first] if paired_seeds else [second, -first]
    parts = [(values, _seed_weights(generator, len(values), num_draws)) for values in rows]
    draws = value + _deviations(generator, parts, sizes, num_draws)
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    tail = min(int((draws <= 0).sum()), int((draws >= 0).sum()))
    power = (_NORMAL_975 + _NORMAL_80) / _NORMAL_975
    return Difference(
        value, float(low), float(high), min(1.0, 2 * (tail + 1) / (num_draws + 1)), power * float(high - low) / 2
    )


def _check(first: np.ndarray, second: np.ndarray, sizes: np.ndarray, paired_seeds: bool) -> None:
    if first.ndim != 2 or second.ndim != 2 or first.shape[1] != second.shape[1] or len(sizes) != first.shape[1]:
        raise DataError(f"scores of shapes {first.shape} and {second.shape}: rows must have the same examples")
    if paired_seeds and len(first) != len(second):
        raise DataError(f"{len(first)} and {len(second)} seeds cannot be paired")
    if min(len(first), len(second)) < 2:
        raise DataError("one seed does not show what another one would have made: give two or more")
    if not (np.isfinite(first).all() and np.isfinite(second).all()) or not sizes.sum() > 0:
        raise DataError("a score is not a number, or nothing was scored")


def _group_means(
    first: np.ndarray, second: np.ndarray, sizes: np.ndarray, groups: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    names, group = np.unique(np.asarray(groups), return_inverse=True)
    member = np.zeros((len(group), len(names)))
    member[np.arange(len(group)), group] = 1.0
    totals = sizes @ member
    return first @ member / totals, second @ member / totals, np.ones(len(names))


def _seed_weights(generator: np.random.Generator, num_seeds: int, num_draws: int) -> np.ndarray:
    """How often each seed is drawn, as a share."""
    return generator.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), size=num_draws) / num_seeds


def _widening(num_seeds: int, freedom: int) -> float:
    """Drawing among n seeds shows a variance of (n - 1) / n of theirs, and the normal quantiles of a bootstrap are too
    narrow for so few: by this factor for both, so that for normal scores the interval is that of Student's t."""
    t = _T_975[freedom - 1] if freedom <= len(_T_975) else _NORMAL_975
    return float(np.sqrt(num_seeds / (num_seeds - 1))) * t / _NORMAL_975


def _deviations(
    generator: np.random.Generator,
    parts: Sequence[tuple[np.ndarray, np.ndarray]],
    sizes: np.ndarray,
    num_draws: int,
) -> np.ndarray:
    """How far the score of each draw is from the score itself: examples are drawn once for all rows and seeds."""
    num_examples = len(sizes)
    freedom = sum(len(values) - 1 for values, _ in parts)
    deviations = np.zeros(num_draws)
    step = max(1, _CHUNK_NUMBERS // num_examples)
    for begin in range(0, num_draws, step):
        count = min(step, num_draws - begin)
        weights = generator.multinomial(num_examples, np.full(num_examples, 1 / num_examples), size=count)
        totals = np.maximum(weights @ sizes, np.finfo(float).tiny)
        for values, seed_weights in parts:
            by_seed = (weights @ values.T) / totals[:, None]  # each seed's score on the drawn examples
            own = values.sum(axis=1) / sizes.sum()  # and on all of them
            drawn = seed_weights[begin : begin + count]
            deviations[begin : begin + count] += (drawn * by_seed).sum(axis=1) - own.mean()
            # Only what seeds do by themselves is widened: what examples do is known from many of them.
            deviations[begin : begin + count] += (_widening(len(own), freedom) - 1) * (drawn @ own - own.mean())
    return deviations


# ------------------------------------------------------------------------------------------------------ verdicts


def holm(p_values: Sequence[float]) -> list[float]:
    """p values corrected over the rows of a table (Holm 1979): any of them below 0.05 is so with 95 % for all."""
    order = np.argsort(p_values, kind="stable")
    corrected = np.zeros(len(order))
    reached = 0.0
    for rank, place in enumerate(order):
        reached = max(reached, min(1.0, (len(order) - rank) * p_values[place]))
        corrected[place] = reached
    return corrected.tolist()


def verdict(difference: Difference, *, p: float | None = None, higher_is_better: bool = True) -> Verdict:
    """What the interval carries; `p` is the corrected value where the comparison is one of several."""
    is_clear = (difference.low > 0 or difference.high < 0) and (difference.p if p is None else p) < 1 - LEVEL
    if not is_clear:
        return "no difference seen"
    return "better" if (difference.value > 0) == higher_is_better else "worse"


def in_words(difference: Difference, *, p: float | None = None, higher_is_better: bool = True) -> str:
    """The verdict with its numbers: what was found, or how large a difference would have been found."""
    word = verdict(difference, p=p, higher_is_better=higher_is_better)
    interval = _interval(difference)
    if word == "no difference seen":
        return f"{word}: {interval}; one of {difference.smallest:.2g} would likely have been seen"
    return f"{word}: {interval}"


def _interval(difference: Difference) -> str:
    """value [low, high], all to the same place: the second one that the interval's width has."""
    width = difference.high - difference.low
    places = max(0, 1 - math.floor(math.log10(width))) if math.isfinite(width) and width > 0 else 4
    numbers = (round(number, places) + 0.0 for number in (difference.value, difference.low, difference.high))  # no -0
    value, low, high = (f"{number:+.{places}f}" for number in numbers)
    return f"{value} [{low}, {high}]"
