"""Logits -> answers: what a classifier, a regression or a multi-label model says about each example.

In: rows and a `forward` that gives a batch's logits as numpy (the network stays outside). Out: one entry an example,
in the examples' order, whatever the batches were; the windows of one long text are averaged (probabilities or
numbers). Not here: tags (conll), spans (squad), choices (race).

Shapes: N examples, R rows, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from remask import signals
from remask.schema import Batch
from remask.tasks import metrics
from remask.tasks.batches import evaluation_batches
from remask.tasks.rows import Rows
from remask.tasks.settings import Kind

Array = np.ndarray
Forward = Callable[[Batch], Array]
EVALUATION_TOKENS = 16384  # padded tokens a forward pass without gradients


def row_outputs(
    forward: Forward,
    rows: Rows,
    pad_id: int,
    *,
    num_tokens: int = EVALUATION_TOKENS,
    check: Callable[[], None] = signals.check,
) -> list[Array]:
    """What the network says about every row, in row order; an output per token is cut to the row's length.

    `check` is called after every batch and may raise Stopped: at a signal, or where all ranks agree on one."""
    out: list[Array] = [np.empty(0)] * len(rows.ids)
    for numbers, batch in evaluation_batches(rows, pad_id, num_tokens=num_tokens):
        said = np.asarray(forward(batch), np.float32)
        for place, number in enumerate(numbers):
            out[number] = said[place, : len(rows.ids[number])] if said.ndim == 3 else said[place]
        check()
    return out


def answers(logits_RC: Array, rows: Rows, kind: Kind) -> Array:
    """Probabilities (classify, multilabel) N x C, or numbers (regress) N."""
    if kind == "classify":
        values = softmax(logits_RC)
    elif kind == "multilabel":
        values = 1 / (1 + np.exp(-logits_RC.astype(np.float64)))
    else:
        assert kind == "regress"
        values = logits_RC[:, 0].astype(np.float64)
    return mean_by_example(values, rows.example_of_row)


def softmax(logits_RC: Array) -> Array:
    shifted = np.exp(logits_RC.astype(np.float64) - logits_RC.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def mean_by_example(values: Array, example_of_row: Array) -> Array:
    count = np.bincount(example_of_row)
    sums = np.zeros((len(count), *values.shape[1:]))
    np.add.at(sums, example_of_row, values)
    return sums / count.reshape(-1, *[1] * (values.ndim - 1))


def score(answer: Array, truth: Array, kind: Kind, names: tuple[str, ...]) -> dict[str, Any]:
    """`metrics` of one evaluation, and the tables behind them."""
    if kind == "regress":
        return {"metrics": metrics.regression(truth, answer)}
    if kind == "multilabel":
        chosen = answer >= 0.5
        return {
            "metrics": metrics.multilabel(truth, chosen, names),
            "table": metrics.multilabel_table(truth, chosen, names),
        }
    chosen = answer.argmax(1)
    counts = metrics.confusion(truth, chosen, len(names))
    return {
        "metrics": metrics.classification(truth, chosen, names),
        "table": metrics.class_table(counts, names),
        "confusion": counts.tolist(),
        "calibration": metrics.calibration(chosen == truth, answer.max(1)),
    }


def worst(answer_NC: Array, truth_N: Array, count: int = 20) -> list[int]:
    """The classifier's mistakes it was surest of, surest first: example numbers."""
    wrong = np.flatnonzero(answer_NC.argmax(1) != truth_N)
    return [int(i) for i in wrong[np.argsort(-answer_NC.max(1)[wrong], kind="stable")][:count]]


def describe(answer: Array, kind: Kind, names: tuple[str, ...]) -> dict[str, Any]:
    """One example's answer as a JSON object."""
    if kind == "regress":
        return {"prediction": float(answer)}
    scores = {name: round(float(p), 6) for name, p in zip(names, answer, strict=True)}
    if kind == "multilabel":
        return {"prediction": [name for name, p in zip(names, answer, strict=True) if p >= 0.5], "scores": scores}
    return {"prediction": names[int(answer.argmax())], "scores": scores}
