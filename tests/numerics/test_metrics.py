"""Our metrics against scikit-learn and scipy, on random and on degenerate cases."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from remask.tasks import metrics


@st.composite
def answers(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    classes = draw(st.integers(2, 6))
    count = draw(st.integers(1, 60))
    values = st.lists(st.integers(0, classes - 1), min_size=count, max_size=count)
    return np.array(draw(values)), np.array(draw(values)), classes


@settings(max_examples=200, deadline=None)
@given(answers())
def test_classification_equals_scikit_learn(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    truth, predicted, classes = case
    labels = list(range(classes))
    names = [f"c{i}" for i in labels]
    counts = metrics.confusion(truth, predicted, classes)
    assert (counts == sklearn.metrics.confusion_matrix(truth, predicted, labels=labels)).all()
    table = metrics.class_table(counts, names)
    for average in ("micro", "macro", "weighted"):
        p, r, f, _ = sklearn.metrics.precision_recall_fscore_support(
            truth, predicted, labels=labels, average=average, zero_division=0
        )
        got = table["averages"][average]
        assert [got["precision"], got["recall"], got["f1"]] == pytest.approx([p, r, f], abs=1e-12)
    p, r, f, n = sklearn.metrics.precision_recall_fscore_support(truth, predicted, labels=labels, zero_division=0)
    for i, name in enumerate(names):
        row = table["classes"][name]
        assert [row["precision"], row["recall"], row["f1"]] == pytest.approx([p[i], r[i], f[i]], abs=1e-12)
        assert row["support"] == n[i]
    scores = metrics.classification(truth, predicted, names)
    assert scores["accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(truth, predicted))
    if classes == 2:
        assert scores["f1"] == pytest.approx(sklearn.metrics.f1_score(truth, predicted, zero_division=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns where one class is all there is
        expected = sklearn.metrics.matthews_corrcoef(truth, predicted)
    assert scores["matthews"] == pytest.approx(expected, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=50))
def test_correlations_equal_scipy_with_ties(pairs: list[tuple[int, int]]) -> None:
    import scipy.stats

    truth, predicted = (np.array(column, float) for column in zip(*pairs, strict=True))
    if np.ptp(truth) == 0 or np.ptp(predicted) == 0:
        assert metrics.pearson(truth, predicted) == 0.0
        assert metrics.spearman(truth, predicted) == 0.0
        return
    assert metrics.pearson(truth, predicted) == pytest.approx(scipy.stats.pearsonr(truth, predicted)[0], abs=1e-9)
    assert metrics.spearman(truth, predicted) == pytest.approx(scipy.stats.spearmanr(truth, predicted)[0], abs=1e-9)
    got = metrics.regression(truth, predicted)
    assert got["mean_squared_error"] == pytest.approx(sklearn.metrics.mean_squared_error(truth, predicted))
    assert got["mean_absolute_error"] == pytest.approx(sklearn.metrics.mean_absolute_error(truth, predicted))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 5))
def test_multilabel_equals_scikit_learn(seed: int, count: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    truth, predicted = (rng.random((2, count, classes)) < 0.4).astype(int)
    names = [f"c{i}" for i in range(classes)]
    got = metrics.multilabel(truth, predicted, names)
    assert got["accuracy"] == pytest.approx(np.mean([(t == p).all() for t, p in zip(truth, predicted, strict=True)]))
    for key, average in (("f1", "micro"), ("macro_f1", "macro")):
        if classes > 1:
            expected = sklearn.metrics.f1_score(truth, predicted, average=average, zero_division=0)
        else:
            expected = sklearn.metrics.f1_score(truth[:, 0], predicted[:, 0], zero_division=0)
        assert got[key] == pytest.approx(expected, abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_calibration_bins_equal_scikit_learn(seed: int) -> None:
    from sklearn.calibration import calibration_curve

    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.01, 0.99, 200)
    right = (rng.random(200) < confidence).astype(int)
    got = metrics.calibration(right, confidence, num_bins=10)
    fractions, means = calibration_curve(right, confidence, n_bins=10, strategy="uniform")
    filled = [b for b in got["bins"] if b["count"]]
    assert [b["accuracy"] for b in filled] == pytest.approx(list(fractions))
    assert [b["confidence"] for b in filled] == pytest.approx(list(means))
    by_hand = sum(b["count"] / 200 * abs(b["accuracy"] - b["confidence"]) for b in filled)
    assert got["expected_calibration_error"] == pytest.approx(by_hand)


def test_calibration_by_hand() -> None:
    sure_and_right = metrics.calibration(np.ones(5), np.ones(5))
    assert sure_and_right["expected_calibration_error"] == 0.0
    sure_and_wrong = metrics.calibration(np.zeros(5), np.ones(5))
    assert sure_and_wrong["expected_calibration_error"] == 1.0


def test_spread_and_render() -> None:
    assert metrics.spread([0.5, 0.9, 0.7]) == {"median": 0.7, "low": 0.5, "high": 0.9, "seeds": [0.5, 0.9, 0.7]}
    text = metrics.render(metrics.class_table(np.array([[8, 2], [1, 9]]), ["ham", "x" * 60]))
    lines = text.splitlines()
    assert "precision" in lines[0]
    assert lines[1].split() == ["ham", "0.889", "0.800", "0.842", "10"]
    assert lines[2].startswith("x" * 39 + "…")
    assert [line.split()[0] for line in lines[3:]] == ["micro", "macro", "weighted"]
