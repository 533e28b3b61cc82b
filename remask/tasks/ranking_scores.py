"""How good rankings are: nDCG, reciprocal rank and recall, one value a query, with intervals of their means.

In: for every query the gains of what was ranked (0: not relevant), best first, and the gains of all that is relevant.
Out: values by measure, or their means with 95 % intervals. Definitions are trec_eval's: nDCG has linear gains and
1 / log2(rank + 1), recall is of all that is relevant. Not here: searching, files of judgements.

Shapes: Q queries, K ranks, D documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from remask.schema import Json

Array = np.ndarray
MEASURES = ("ndcg@10", "mrr@10", "recall@1", "recall@5", "recall@10", "recall@100")
NUM_DRAWS = 1000


def ranking_values(
    gains: Sequence[Sequence[float]], relevant: Sequence[Sequence[float]], measures: Sequence[str] = MEASURES
) -> dict[str, Array]:
    """Values_Q by measure. `gains[q]`: of the ranked documents in their order; `relevant[q]`: the gains above 0 of all
    relevant documents, found or not. A query without any counts 0: whoever calls says whether that is a mistake."""
    assert len(gains) == len(relevant)
    depth = max((depth_of(name) for name in measures), default=0)
    gains_QK, ideal_QK = _table(gains, depth), _table([sorted(row, reverse=True) for row in relevant], depth)
    total_Q = np.array([sum(value > 0 for value in row) for row in relevant], np.float64)
    return {name: _measure(name, gains_QK, ideal_QK, total_Q) for name in measures}


def depth_of(name: str) -> int:
    """How many ranks a measure looks at: 10 for ndcg@10."""
    return int(name.rpartition("@")[2])


def _table(rows: Sequence[Sequence[float]], width: int) -> Array:
    table = np.zeros((len(rows), width))
    for number, row in enumerate(rows):
        first = np.asarray(row[:width], np.float64)
        table[number, : len(first)] = first
    return table


def _measure(name: str, gains_QK: Array, ideal_QK: Array, total_Q: Array) -> Array:
    kind, depth = name.split("@")[0], depth_of(name)
    found_QK = gains_QK[:, :depth]
    if kind == "ndcg":
        weights_K = 1 / np.log2(np.arange(depth) + 2)
        best_Q = ideal_QK[:, :depth] @ weights_K
        return np.divide(found_QK @ weights_K, best_Q, out=np.zeros_like(best_Q), where=best_Q > 0)
    hits_QK = found_QK > 0
    if kind == "mrr":
        return np.where(hits_QK.any(1), 1 / (hits_QK.argmax(1) + 1), 0.0)
    assert kind == "recall", name
    return np.divide(hits_QK.sum(1), total_Q, out=np.zeros_like(total_Q), where=total_Q > 0)


def mean_interval(values_Q: Array, seed: int = 0) -> tuple[float, float, float]:
    """(mean, low, high): the middle 95 % of the means of queries drawn again with replacement, as many as there are."""
    rng = np.random.default_rng(seed)
    # Counts of how often each query is drawn give the same means as the draws, without a table of both.
    counts = rng.multinomial(len(values_Q), np.full(len(values_Q), 1 / len(values_Q)), size=NUM_DRAWS)
    low, high = np.percentile(counts @ values_Q / len(values_Q), [2.5, 97.5])
    return float(values_Q.mean()), float(low), float(high)


def difference_interval(first_Q: Array, second_Q: Array, seed: int = 0) -> tuple[float, float, float]:
    """(mean, low, high) of first - second on the same queries: apart beyond the interval where it leaves out 0."""
    return mean_interval(np.asarray(first_Q) - np.asarray(second_Q), seed)


def summary(values: Mapping[str, Array]) -> dict[str, Json]:
    """`mean`, `low` and `high` by measure, as results.json and tables have them."""
    return {name: dict(zip(("mean", "low", "high"), mean_interval(v), strict=True)) for name, v in values.items()}


def ranked_gains(vectors_QE: Array, vectors_DE: Array, relevant: Sequence[Mapping[int, float]], depth: int) -> list:
    """The gains of the `depth` nearest documents of every query (both sides of length 1), in blocks of queries; equal
    scores go by the document's number. `relevant[q]`: gain by document's number."""
    gains: list[list[float]] = []
    depth = min(depth, len(vectors_DE))
    block = max(1, (1 << 24) // max(1, len(vectors_DE)))
    for start in range(0, len(vectors_QE), block):
        scores_QD = vectors_QE[start : start + block] @ vectors_DE.T
        order_QK = np.argsort(-scores_QD, axis=1, kind="stable")[:, :depth]
        for query, ranked in enumerate(order_QK.tolist(), start):
            gains.append([relevant[query].get(document, 0.0) for document in ranked])
    return gains
