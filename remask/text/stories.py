"""How story-like a document is: its n-gram overlap with seed sentences.

The Stories corpus (Trinh and Le 2018, used by RoBERTa section 3.2) ranked CommonCrawl documents by the overlap of
their n-grams with the questions of a commonsense test and kept the best. Here the score is the mean over n = 1..4,
weighted by n, of the F1 of n-gram overlap; which documents are kept is decided over the whole source (choose.py).
"""

from __future__ import annotations

import numpy as np

from remask.text.settings import StoriesSettings
from remask.text.shingles import ngrams, word_hashes

_SIZES = (1, 2, 3, 4)


class StoryScorer:
    """Scores documents against one set of seed sentences."""

    def __init__(self, settings: StoriesSettings) -> None:
        words = [word_hashes(seed) for seed in settings.seeds]
        self._seeds = {
            size: np.unique(np.concatenate([ngrams(sentence, size) for sentence in words])) for size in _SIZES
        }

    def score(self, words: np.ndarray) -> float:
        """Between 0 and 1, from the word hashes of a document."""
        total = 0.0
        for size, seeds in self._seeds.items():
            grams = ngrams(words, size)
            if len(grams) == 0 or len(seeds) == 0:
                continue
            precision = np.isin(grams, seeds).mean()
            recall = np.isin(seeds, grams).mean()
            if precision + recall > 0:
                total += size * 2 * precision * recall / (precision + recall)
        return float(total / sum(_SIZES))
