"""Ranking measures against values by hand and against ir-measures, which runs trec_eval's code."""

from __future__ import annotations

import math

import numpy as np
import pytest

from remask.tasks.ranking_scores import (
    MEASURES,
    difference_interval,
    mean_interval,
    ranked_gains,
    ranking_values,
    summary,
)


def test_values_by_hand() -> None:
    values = ranking_values([[0, 1, 0, 2], [0, 0], []], [[2, 1, 1], [1], []])
    best = 2 + 1 / math.log2(3) + 1 / 2
    assert values["ndcg@10"][0] == pytest.approx((1 / math.log2(3) + 2 / math.log2(5)) / best)
    assert values["mrr@10"].tolist() == [0.5, 0.0, 0.0]
    assert values["recall@1"].tolist() == [0.0, 0.0, 0.0]
    assert values["recall@5"].tolist() == pytest.approx([2 / 3, 0.0, 0.0])


def test_the_official_code_agrees() -> None:
    import ir_measures as measures

    rng = np.random.default_rng(3)
    qrels, run, gains, relevant = [], [], [], []
    for query in range(30):
        judged = {f"d{i}": int(rng.integers(0, 4)) for i in rng.permutation(40)[: rng.integers(1, 15)]}
        judged["d0"] = 1
        ranked = [f"d{i}" for i in rng.permutation(40)[: rng.integers(1, 40)]]
        qrels += [measures.Qrel(f"q{query}", name, gain) for name, gain in judged.items()]
        run += [measures.ScoredDoc(f"q{query}", name, 100.0 - rank) for rank, name in enumerate(ranked)]
        gains.append([judged.get(name, 0) for name in ranked])
        relevant.append([gain for gain in judged.values() if gain])
    ours = ranking_values(gains, relevant)
    theirs = {"ndcg": measures.nDCG, "mrr": measures.RR, "recall": measures.R}
    named = {name: theirs[name.split("@")[0]] @ int(name.split("@")[1]) for name in MEASURES}
    official = measures.calc_aggregate(list(named.values()), qrels, run)
    for name, measure in named.items():
        assert ours[name].mean() == pytest.approx(official[measure], abs=1e-6), name


def test_intervals_hold_the_mean_and_shrink_with_more_queries() -> None:
    rng = np.random.default_rng(0)
    few, many = (rng.random(count) for count in (20, 2000))
    for values in (few, many):
        mean, low, high = mean_interval(values)
        assert low < mean < high
        assert mean == pytest.approx(values.mean())
    assert mean_interval(many)[2] - mean_interval(many)[1] < (mean_interval(few)[2] - mean_interval(few)[1]) / 3
    # A normal approximation of the same interval.
    reach = 1.96 * many.std() / math.sqrt(len(many))
    assert mean_interval(many)[1] == pytest.approx(many.mean() - reach, abs=reach / 5)
    assert difference_interval(many + 0.1, many) == pytest.approx((0.1, 0.1, 0.1))
    assert summary({"mrr@10": many})["mrr@10"]["mean"] == pytest.approx(many.mean())


def test_the_nearest_documents_come_first() -> None:
    queries = np.eye(3, dtype=np.float32)[:2]
    documents = np.eye(3, dtype=np.float32)[[2, 1, 0, 0]]
    gains = ranked_gains(queries, documents, [{2: 1.0, 1: 3.0}, {0: 2.0}], depth=4)
    assert gains == [[1.0, 0.0, 0.0, 3.0], [0.0, 2.0, 0.0, 0.0]]
    assert ranked_gains(queries, documents, [{}, {}], depth=9) == [[0.0] * 4] * 2
