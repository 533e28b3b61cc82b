"""Hard negatives: documents that are near a query and do not answer it; and a cross-encoder's word on pairs.

In: a `PairTable`. Out: for every pair the numbers of near documents, nearest first, by words (BM25) or by a model's
vectors; or the margins of a cross-encoder between a pair's answer and each of its negatives. Pure functions of their
inputs, so a run that goes on finds the same. Not here: which of them a step takes (tasks/pair_batches).

Shapes: Q distinct queries, D documents, E width of a vector.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from remask import signals
from remask.errors import ConfigError
from remask.progress import Progress
from remask.tasks.retrieve import PairTable, Retrieve
from remask.tasks.settings import RowSettings

Array = np.ndarray
_BLOCK = 1 << 24  # scores at once
_TEACHER_PAIRS = 512  # between two looks at signals
_SMALLEST = 1e-6


def near_by_words(table: PairTable, pool: int) -> list[Array]:
    """By BM25 over the documents of the table."""
    bm25 = word_search(table.documents)
    most = min(len(table.documents), pool + max(map(len, table.known_of_query)))
    first = _first_pairs(table)
    tokens = _words([table.queries[pair] for pair in first])
    near_QK, scores_QK = bm25.retrieve(tokens, k=most, show_progress=False)
    found = [
        _others(near_QK[q][scores_QK[q] > 0].astype(np.int64), table.known(pair), pool) for q, pair in enumerate(first)
    ]
    return [found[query] for query in table.query_of_pair]


def word_search(documents: list[str]) -> Any:
    """A BM25 index in memory."""
    import bm25s

    index = bm25s.BM25()
    index.index(_words(documents), show_progress=False)
    return index


def _words(texts: list[str]) -> Any:
    import bm25s

    return bm25s.tokenize(texts, stopwords="en", show_progress=False)


def near_by_vectors(table: PairTable, kind: Retrieve, model: str, rows: RowSettings) -> list[Array]:
    """By the cosine of a model's vectors, only below a share of that of the pair's own answer."""
    first = _first_pairs(table)
    queries_QE, documents_DE = vectors_of(table, first, kind, model, rows)
    settings = kind.settings
    near: list[Array] = []
    block = max(1, _BLOCK // len(documents_DE))
    for start in range(0, len(first), block):
        scores_BD = queries_QE[start : start + block] @ documents_DE.T
        for scores, pair in zip(scores_BD, first[start : start + block], strict=True):
            known = table.known(pair)
            own = scores[table.positive_of_pair[pair]]
            most = min(len(scores), settings.pool + len(known) + int((scores >= settings.below * own).sum()))
            order = np.argpartition(-scores, most - 1)[:most]
            order = order[np.argsort(-scores[order], kind="stable")]
            near.append(_others(order[scores[order] < settings.below * own], known, settings.pool))
        signals.check()
    return [near[query] for query in table.query_of_pair]


def vectors_of(
    table: PairTable, pairs: list[int], kind: Retrieve, model: str, rows: RowSettings
) -> tuple[Array, Array]:
    """(vectors of the queries of some pairs, of all documents), of length 1."""
    from remask.answer.model import Model
    from remask.answer.reader import open_reader

    reader = open_reader(Path(model))
    queries = [table.queries[pair] for pair in pairs]
    encoded = kind.text_rows(queries, table.documents, reader.tokenizer, reader.frame(rows), rows)
    vectors = np.stack(Model(reader).runner.outputs(encoded, kind))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors[: len(pairs)], vectors[len(pairs) :]


def _first_pairs(table: PairTable) -> list[int]:
    """A pair of every distinct query, in the order of their numbers."""
    _, first = np.unique(table.query_of_pair, return_index=True)
    return first.tolist()


def _others(near: Array, known: Array, pool: int) -> Array:
    return near[~np.isin(near, known)][:pool]


# ------------------------------------------------------------------------------------------------------ a teacher


def margins(table: PairTable, teacher: str, progress: Progress) -> list[Array]:
    """How much more a cross-encoder holds of a pair's answer than of each of its negatives: the difference of its
    numbers (regress), or of the log odds of its last class (pair)."""
    from remask.answer.model import load

    model = load(teacher)
    kind = model.reader.task.kind
    if kind.method != "classify" or kind.name == "multilabel":
        raise ConfigError(f"retrieve.distil = {teacher}: is a model of task {kind.name}; it must be pair or regress")
    asked: list[tuple[str, str]] = []
    for pair, negatives in enumerate(table.negatives_of_pair):
        texts = [table.documents[table.positive_of_pair[pair]], *(table.documents[n] for n in negatives)]
        asked += [(table.queries[pair], text) for text in texts]
    scores: list[float] = []
    with progress.stage("scores of the teacher", len(asked), "pairs") as stage:
        for start in range(0, len(asked), _TEACHER_PAIRS):
            for label in model.classify(asked[start : start + _TEACHER_PAIRS], long_texts="cut"):
                scores.append(label.score if not label.scores else _log_odds(list(label.scores.values())[-1]))
            stage.update(len(scores))
            signals.check()
    found, start = [], 0
    for negatives in table.negatives_of_pair:
        own = np.array(scores[start : start + 1 + len(negatives)])
        found.append(own[0] - own[1:])
        start += len(own)
    return found


def _log_odds(probability: float) -> float:
    inside = min(max(probability, _SMALLEST), 1 - _SMALLEST)
    return float(np.log(inside / (1 - inside)))
