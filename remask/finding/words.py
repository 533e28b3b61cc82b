"""BM25 beside the vectors: passages -> a folder that bm25s reads, and the best passages for a query's words.

A word is a run of letters and digits in lower case; in scripts without spaces (Chinese, Japanese, Thai, ...) every
letter is one. Not here: the scores' formula, which is bm25s' (Lucene's variant).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from remask.errors import DataError
from remask.finding.settings import WordSettings

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _stop_words(settings: WordSettings) -> frozenset[str]:
    from bm25s.stopwords import STOPWORDS_EN

    return frozenset(STOPWORDS_EN) if settings.stop_words == "english" else frozenset()


class Words:
    """An opened BM25 index. Its rows are those of the passages that it was made of."""

    def __init__(self, folder: Path, settings: WordSettings, num_rows: int) -> None:
        import bm25s

        self._num_rows, self._stop = num_rows, _stop_words(settings)
        try:
            self._index = bm25s.BM25.load(folder, mmap=True, show_progress=False, verbosity=0)
        except Exception as error:  # whatever numpy or JSON say about a damaged file
            raise DataError(f"{folder}: cannot be read: {str(error).splitlines()[0][:160]}: damaged") from None
        if self._index.scores["num_docs"] != num_rows:
            raise DataError(f"{folder}: is about {self._index.scores['num_docs']} passages, not {num_rows}: damaged")

    def search(self, query: str, top: int, removed: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(scores, rows) of the passages that have any of the query's words, best first."""
        known = self._index.vocab_dict
        found = [known[word] for word in words_of(query) if word in known and word not in self._stop]
        if not found or not self._num_rows:
            return np.zeros(0, np.float32), np.zeros(0, np.int64)
        scores = self._index.get_scores_from_ids(found)
        if removed is not None and len(removed):
            scores = np.where(removed, 0, scores)
        top = min(top, self._num_rows)
        rows = np.argpartition(-scores, top - 1)[:top]
        rows = rows[scores[rows] > 0]
        rows = rows[np.lexsort((rows, -scores[rows]))]
        return scores[rows].astype(np.float32), rows.astype(np.int64)


def write_words(texts: Iterable[str], folder: Path, settings: WordSettings) -> None:
    """Index the texts and save it; bm25s reads it back mapped."""
    import bm25s
    from bm25s.tokenization import Tokenized

    stop, vocabulary = _stop_words(settings), dict[str, int]()
    ids: list[Any] = []
    for text in texts:
        kept = (word for word in words_of(text) if word not in stop)
        ids.append(np.fromiter((vocabulary.setdefault(word, len(vocabulary)) for word in kept), np.int32))
    vocabulary.setdefault("", len(vocabulary))  # bm25s wants a word for passages that have none
    made = bm25s.BM25(k1=settings.k1, b=settings.b)
    made.index(Tokenized(ids=ids, vocab=vocabulary), create_empty_token=False, show_progress=False)
    made.save(folder, show_progress=False)


def fused(rankings: Sequence[Sequence[int]], top: int, constant: int = 60) -> list[tuple[float, int]]:
    """Reciprocal rank fusion (Cormack and others, 2009): (score, row), best first."""
    scores: dict[int, float] = {}
    for rows in rankings:
        for rank, row in enumerate(rows, start=1):
            scores[row] = scores.get(row, 0.0) + 1 / (constant + rank)
    return sorted(((score, row) for row, score in scores.items()), key=lambda pair: (-pair[0], pair[1]))[:top]
