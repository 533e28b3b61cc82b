"""Tags of words -> entities, and how many were found: precision, recall and F1 by type, over whole entities.

In: sequences of IOB1, IOB2 or BIOES tags. Out: IOB2 tags, (type, first, last) entities, and the score tables. An
entity counts only with its exact words and type (CoNLL-2003's definition); an I- tag that continues nothing starts
an entity, as in conlleval. Not here: files and tokens (conll.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from remask.schema import Json
from remask.tasks import metrics

_AS_BIOES = {"S": "S", "U": "S", "E": "E", "L": "E", "B": "B", "I": "I", "M": "I"}


def split_tag(tag: str) -> tuple[str, str] | None:
    """`B-LOC` -> (B, LOC); `O` -> (O, ""); None where it is no tag."""
    if tag == "O":
        return "O", ""
    prefix, dash, kind = tag.partition("-")
    return (_AS_BIOES[prefix], kind) if dash and kind and prefix in _AS_BIOES else None


def is_bioes(sequences: Iterable[Sequence[str]]) -> bool:
    """Whether S- or E- occurs. Without them IOB1 and IOB2 need not be told apart: the same reading fits both, and
    real files mix them (CoNLL-2003's training file does, twice)."""
    return any((split_tag(tag) or ("O", ""))[0] in "SE" for tags in sequences for tag in tags)


def bioes_fault(tags: Sequence[str]) -> int | None:
    """The first place where BIOES is broken: I- or E- that continues nothing, or an entity that does not end."""
    before = ("O", "")
    for place, here in enumerate([*(split_tag(tag) or ("O", "") for tag in tags), ("O", "")]):
        is_open = before[0] in "BI"
        goes_on = here[0] in "IE"
        if is_open != goes_on or (goes_on and before[1] != here[1]):
            return min(place, len(tags) - 1)
        before = here
    return None


def to_iob2(tags: Sequence[str], *, bioes: bool) -> list[str]:
    """The same entities in IOB2."""
    out = ["O"] * len(tags)
    for kind, first, last in entities(tags, single_ends=bioes):
        out[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
    return out


def entities(tags: Sequence[str], *, single_ends: bool = False) -> list[tuple[str, int, int]]:
    """(type, first word, last word) of every entity. `single_ends`: S- and E- close an entity (BIOES)."""
    spans: list[tuple[str, int, int]] = []
    start, kind = -1, ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, here = split_tag(tag) or ("O", "")
        goes_on = start >= 0 and prefix in "IE" and here == kind
        if start >= 0 and not goes_on:
            spans.append((kind, start, place - 1))
            start = -1
        if start < 0 and prefix != "O":
            start, kind = place, here
        if single_ends and start >= 0 and prefix in "SE":
            spans.append((kind, start, place))
            start = -1
    return spans


def score_entities(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Json:
    """`metrics` (precision, recall, f1 over all entities; accuracy over words), and the tables by type and by tag."""
    types: dict[str, list[int]] = {}
    for true_tags, said_tags in zip(truth, predicted, strict=True):
        true_set, said_set = set(entities(true_tags)), set(entities(said_tags))
        for column, group in enumerate((true_set & said_set, said_set, true_set)):
            for kind, _, _ in group:
                types.setdefault(kind, [0, 0, 0])[column] += 1
    names = sorted(types)
    right, num_predicted, true = (np.array([types[name][i] for name in names], np.int64) for i in range(3))
    table = metrics.table_from_counts(right, num_predicted, true, names)
    tags = sorted({tag for tags in (*truth, *predicted) for tag in tags})
    index = {tag: i for i, tag in enumerate(tags)}
    flat = [np.array([index[tag] for sequence in side for tag in sequence]) for side in (truth, predicted)]
    counts = metrics.confusion(flat[0], flat[1], len(tags))
    micro = table["averages"]["micro"]
    return {
        "metrics": {
            "f1": micro["f1"],
            "precision": micro["precision"],
            "recall": micro["recall"],
            "macro_f1": table["averages"]["macro"]["f1"],
            "accuracy": metrics.accuracy(flat[0], flat[1]),
        },
        "table": table,
        "tags": metrics.class_table(counts, tags),
    }
