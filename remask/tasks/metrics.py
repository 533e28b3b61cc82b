"""How good answers are: the plain metrics, in numpy, by their usual definitions (tests compare with scikit-learn).

In: integer classes, 0/1 matrices or numbers, true and predicted. Out: floats and plain tables that JSON can hold.
Where a ratio has nothing under it (a class never predicted, constant numbers) it is 0, as GLUE's scorers print it.
Not here: entities (entities.py) and SQuAD's exact and F1 (squad.py).

Shapes: N examples, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from remask.schema import Json, Values
from remask.visible import visible

Array = np.ndarray


def linearised(columns_EK: Array, score: Callable[[Array], float]) -> Array:
    """One number an example whose mean is the score, where the score follows from the means of some columns (F1,
    Matthews, bits per byte): the score plus what the example adds to it, to first order. So scores that are no means
    can be compared by what is drawn from examples (reports/statistics)."""
    columns_EK = np.asarray(columns_EK, np.float64)
    means_K = columns_EK.mean(0)
    value = score(means_K)
    slopes_K = np.zeros_like(means_K)
    for k, mean in enumerate(means_K):
        if mean == 0:  # a column of counts without any: no example differs in it
            continue
        step = 1e-6 * abs(mean)
        up, down = means_K.copy(), means_K.copy()
        up[k], down[k] = mean + step, mean - step
        slopes_K[k] = (score(up) - score(down)) / (2 * step)
    return value + (columns_EK - means_K) @ slopes_K


def confusion(truth_N: Array, predicted_N: Array, num_classes: int) -> Array:
    """counts[true, predicted]."""
    flat = np.asarray(truth_N, np.int64) * num_classes + np.asarray(predicted_N, np.int64)
    return np.bincount(flat, minlength=num_classes * num_classes).reshape(num_classes, num_classes)


def accuracy(truth_N: Array, predicted_N: Array) -> float:
    return float(np.mean(np.asarray(truth_N) == np.asarray(predicted_N)))


def matthews(counts_CC: Array) -> float:
    """Matthews' correlation of a confusion matrix, for two classes or more (CoLA's metric)."""
    counts = np.asarray(counts_CC, np.float64)
    total, right = counts.sum(), np.trace(counts)
    true, predicted = counts.sum(1), counts.sum(0)
    under = (total**2 - predicted @ predicted) * (total**2 - true @ true)
    return float((right * total - true @ predicted) / np.sqrt(under)) if under > 0 else 0.0


def pearson(truth_N: Array, predicted_N: Array) -> float:
    a, b = (np.asarray(x, np.float64) - np.mean(x, dtype=np.float64) for x in (truth_N, predicted_N))
    under = np.sqrt((a @ a) * (b @ b))
    return float(np.clip(a @ b / under, -1, 1)) if under > 0 else 0.0


def spearman(truth_N: Array, predicted_N: Array) -> float:
    return pearson(ranks(truth_N), ranks(predicted_N))


def ranks(values_N: Array) -> Array:
    """1-based ranks; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values_N, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def regression(truth_N: Array, predicted_N: Array) -> dict[str, float]:
    error = np.asarray(predicted_N, np.float64) - np.asarray(truth_N, np.float64)
    return {
        "pearson": pearson(truth_N, predicted_N),
        "spearman": spearman(truth_N, predicted_N),
        "mean_squared_error": float(np.mean(error**2)),
        "mean_absolute_error": float(np.mean(np.abs(error))),
    }


# ------------------------------------------------------------------------------- precision, recall, F1, support


def _ratio(over: Array, under: Array) -> Array:
    return np.divide(over, under, out=np.zeros(np.shape(over), np.float64), where=np.asarray(under) > 0)


def table_from_counts(right_C: Array, predicted_C: Array, support_C: Array, names: Sequence[str]) -> Json:
    """Per class and micro, macro and weighted averages, from counts of right, predicted and true ones."""
    right, predicted, support = (np.asarray(x, np.float64) for x in (right_C, predicted_C, support_C))
    precision, recall = _ratio(right, predicted), _ratio(right, support)
    f1 = _ratio(2 * right, predicted + support)
    rows = {
        name: {"precision": float(p), "recall": float(r), "f1": float(f), "support": int(n)}
        for name, p, r, f, n in zip(names, precision, recall, f1, support, strict=True)
    }
    total = support.sum()
    sums = np.array([right.sum()]), np.array([predicted.sum()]), np.array([total])
    micro = [_ratio(sums[0], sums[1])[0], _ratio(sums[0], sums[2])[0], _ratio(2 * sums[0], sums[1] + sums[2])[0]]
    columns = (precision, recall, f1)
    macro = [float(column.mean()) if len(column) else 0.0 for column in columns]
    weighted = [float(column @ support / total) if total else 0.0 for column in columns]
    averages = {
        name: {"precision": float(p), "recall": float(r), "f1": float(f), "support": int(total)}
        for name, (p, r, f) in {"micro": micro, "macro": macro, "weighted": weighted}.items()
    }
    return {"classes": rows, "averages": averages}


def class_table(counts_CC: Array, names: Sequence[str]) -> Json:
    return table_from_counts(np.diag(counts_CC), counts_CC.sum(0), counts_CC.sum(1), names)


def classification(truth_N: Array, predicted_N: Array, names: Sequence[str]) -> Json:
    """The numbers of a classifier. `f1` is that of the second class where there are two (GLUE), else the macro mean."""
    counts = confusion(truth_N, predicted_N, len(names))
    table = class_table(counts, names)
    f1 = table["classes"][names[1]]["f1"] if len(names) == 2 else table["averages"]["macro"]["f1"]
    return {
        "accuracy": accuracy(truth_N, predicted_N),
        "f1": f1,
        "macro_f1": table["averages"]["macro"]["f1"],
        "matthews": matthews(counts),
    }


def multilabel(truth_NC: Array, predicted_NC: Array, names: Sequence[str]) -> Json:
    """`accuracy`: all labels of an example right; `f1`: micro over all its decisions."""
    table = multilabel_table(truth_NC, predicted_NC, names)
    return {
        "accuracy": float(np.mean(np.all(np.asarray(truth_NC) == np.asarray(predicted_NC), axis=1))),
        "f1": table["averages"]["micro"]["f1"],
        "macro_f1": table["averages"]["macro"]["f1"],
    }


def multilabel_table(truth_NC: Array, predicted_NC: Array, names: Sequence[str]) -> Json:
    truth, predicted = np.asarray(truth_NC, bool), np.asarray(predicted_NC, bool)
    return table_from_counts((truth & predicted).sum(0), predicted.sum(0), truth.sum(0), names)


# -------------------------------------------------------------------------------------------------- calibration


def calibration(right_N: Array, confidence_N: Array, num_bins: int = 10) -> Json:
    """How far stated confidence is from being right: the expected calibration error and its bins (equal widths)."""
    right, confidence = np.asarray(right_N, np.float64), np.asarray(confidence_N, np.float64)
    place = np.clip(np.ceil(confidence * num_bins).astype(int) - 1, 0, num_bins - 1)
    counts = np.bincount(place, minlength=num_bins)
    mean_right = _ratio(np.bincount(place, right, num_bins), counts)
    mean_confidence = _ratio(np.bincount(place, confidence, num_bins), counts)
    error = float(np.sum(counts * np.abs(mean_right - mean_confidence)) / max(len(right), 1))
    bins = [
        {"confidence": float(c), "accuracy": float(a), "count": int(n)}
        for c, a, n in zip(mean_confidence, mean_right, counts, strict=True)
    ]
    return {"expected_calibration_error": error, "bins": bins}


# ------------------------------------------------------------------------------------- how sure a score is

SHARES = ("accuracy", "exact")  # metrics that are the share of right answers among independent examples
Z_95 = 1.959964  # the normal distribution's 97.5th percentile


def interval(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of `count` examples."""
    under = 1 + Z_95**2 / count
    middle = (share + Z_95**2 / (2 * count)) / under
    reach = Z_95 * np.sqrt(share * (1 - share) / count + Z_95**2 / (4 * count**2)) / under
    return float(max(0.0, middle - reach)), float(min(1.0, middle + reach))


def certainty(name: str, spread: Values, count: int, measured: Mapping[str, Values] | None = None) -> str:
    """What stands beside a score: the seeds' spread, or one model's interval where the metric is a share or its
    interval was `measured`."""
    if len(spread["seeds"]) > 1:
        return f"{spread['low']:.4f} to {spread['high']:.4f}"
    if measured and name in measured:
        return f"{measured[name]['low']:.4f} to {measured[name]['high']:.4f} (95 %)"
    if name not in SHARES or not count:
        return ""
    low, high = interval(spread["median"], count)
    return f"{low:.4f} to {high:.4f} (95 %)"


def shown_names(values: Values, chosen: str) -> list[str]:
    """The metrics to print. With more than two classes f1 and macro_f1 are one number: one of them, `chosen` first."""
    twins = "macro_f1" in values and values.get("f1") == values["macro_f1"]
    left_out = ("macro_f1" if chosen == "f1" else "f1") if twins else ""
    return [name for name in values if name != left_out]


# ---------------------------------------------------------------------------------------------- several seeds


def spread(values: Sequence[float]) -> Json:
    """Median, lowest and highest of the same metric over seeds."""
    return {
        "median": float(np.median(values)),
        "low": float(np.min(values)),
        "high": float(np.max(values)),
        "seeds": [float(value) for value in values],
    }


def render(table: Values) -> str:
    """The per-class table as text: precision, recall, F1, support; then the averages."""
    rows = [(visible(str(name)), row) for part in ("classes", "averages") for name, row in table[part].items()]
    width = max(8, *(min(len(name), 40) for name, _ in rows))
    lines = [f"{'':{width}}  precision  recall      f1  support"]
    for name, row in rows:
        shown = name if len(name) <= 40 else name[:39] + "…"
        lines.append(
            f"{shown:{width}}  {row['precision']:9.3f}  {row['recall']:6.3f}  {row['f1']:6.3f}  {row['support']:7,d}"
        )
    return "\n".join(lines)
