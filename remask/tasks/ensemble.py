"""Several models' outputs about the same rows -> one: the mean of their probabilities (of numbers: of the numbers).

In: for each model its outputs by row, as `predict.row_outputs` gives them. Out: outputs of the same shape, which every
scorer and answer reads as if one network had said them: logs of mean probabilities for classes, tags and choices,
log odds of them for several labels, and mean logits for spans (as is usual for SQuAD). Not here: the networks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from remask.tasks.predict import softmax
from remask.tasks.rows import Rows
from remask.tasks.settings import Kind

Array = np.ndarray
SMALLEST = 1e-12  # below this a probability is as good as none


def mean_outputs(models: Sequence[Sequence[Array]], rows: Rows, kind: Kind) -> list[Array]:
    """One output a row."""
    assert models
    if kind == "choice":
        tables = [softmax(np.array(outputs, np.float64).reshape(-1, rows.group_size)) for outputs in models]
        return list(_log(np.mean(tables, axis=0)).reshape(-1))
    return [_mean([outputs[row] for outputs in models], kind) for row in range(len(rows.ids))]


def _mean(said: Sequence[Array], kind: Kind) -> Array:
    if kind in ("regress", "spans"):
        return np.mean(said, axis=0)
    if kind == "multilabel":
        probability = np.mean([1 / (1 + np.exp(-np.asarray(one, np.float64))) for one in said], axis=0)
        return _log(probability) - _log(1 - probability)
    return _log(np.mean([softmax(np.asarray(one)) for one in said], axis=0))


def _log(probability: Array) -> Array:
    return np.log(np.maximum(probability, SMALLEST))
