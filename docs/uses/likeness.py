"""How well cosines of a model's vectors follow how alike people found two sentences: STS-B, without any training on it.

python docs/uses/likeness.py STS-B/dev.tsv MODEL [MODEL …]
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

import remask
from remask.tasks.metrics import spearman


def main(file: str, *models: str) -> None:
    with Path(file).open(newline="", encoding="utf-8") as lines:
        rows = [
            (row["sentence1"], row["sentence2"], float(row["score"]))
            for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        ]
    scores_N = np.array([score for _, _, score in rows])
    for path in models:
        model = remask.load(path)
        one, two = (model.embed([row[side] for row in rows], long_texts="cut") for side in (0, 1))
        cosines_N = (one * two).sum(1)
        rng = np.random.default_rng(0)
        drawn = (rng.integers(0, len(rows), len(rows)) for _ in range(200))
        again = [spearman(scores_N[numbers], cosines_N[numbers]) for numbers in drawn]
        low, high = np.percentile(again, [2.5, 97.5])
        print(f"{path}: Spearman {spearman(scores_N, cosines_N):.4f} ({low:.4f} to {high:.4f}, {len(rows)} pairs)")


if __name__ == "__main__":
    main(*sys.argv[1:])
