"""Rows are put into batches by what batches cost, not by length alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from remask.answer.costs import Costs, fitted, measured


def total(costs: Costs, lengths: list[int], groups: list[list[int]]) -> float:
    return sum(costs.seconds([lengths[i] for i in group]) for group in groups)


@pytest.mark.parametrize("costs", [Costs(1e-3, 1e-5, 1e-8), Costs(0.0, 1e-5, 1e-6), Costs(1e-2, 1e-5, 1e-7)])
def test_no_cut_of_the_sorted_rows_costs_less(costs: Costs) -> None:
    lengths = [12, 90, 33, 34, 7, 88, 300, 9]
    groups = list(costs.groups(lengths, batch_tokens=400))
    assert sorted(i for group in groups for i in group) == list(range(8))
    assert all(len(group) * max(lengths[i] for i in group) <= 400 for group in groups)
    order = sorted(range(8), key=lambda i: -lengths[i])
    for cuts in itertools.product([False, True], repeat=7):
        other = [[order[0]]]
        for i, cut in zip(order[1:], cuts, strict=True):
            if cut:
                other.append([i])
            else:
                other[-1].append(i)
        if all(len(group) * lengths[group[0]] <= 400 for group in other):
            assert total(costs, lengths, groups) <= total(costs, lengths, other) + 1e-12


def test_what_batches_cost_decides_who_shares_one() -> None:
    lengths = [200, 20, 20, 20]
    assert len(list(Costs(1e-5, 1e-5, 1e-7).groups(lengths, 8192))) == 2  # padding to 200 costs more than a batch
    assert len(list(Costs(1.0, 1e-5, 1e-7).groups(lengths, 8192))) == 1
    assert list(Costs(1.0, 1e-5, 1e-7).groups([], 8192)) == []
    assert list(Costs(1.0, 1e-5, 1e-7).groups([900], 100)) == [[0]]  # too large for any batch, but alone


def test_prices_are_found_again_from_times() -> None:
    truth = Costs(2e-3, 3e-5, 4e-8)

    def run(rows: int, length: int) -> float:
        return truth.seconds([length] * rows)

    found = measured(run, max_length=512)
    assert [found.batch, found.token, found.pair] == pytest.approx([2e-3, 3e-5, 4e-8], rel=1e-6)
    assert measured(run, max_length=64).token == pytest.approx(3e-5, rel=1e-3)
    noisy = fitted([(1, 8), (1, 64), (2, 128)], np.array([1e-3, 1e-3, 1e-3]).tolist())
    assert min(noisy.batch, noisy.token, noisy.pair) >= 0
