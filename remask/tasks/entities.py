"""Tags of words -> entities, and how many were found: precision, recall and F1 by type, over whole entities.

In: sequences of IOB1, IOB2 or BIOES tags. Out: IOB2 tags, (type, first, last) entities, and the score tables. An
entity counts only with its exact words and type (CoNLL-2003's definition); an I- tag that continues nothing starts
an entity, as in conlleval. Not here: files and tokens (conll.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from remask.tasks import metrics

Scheme = Literal["IOB1", "IOB2", "BIOES"]
_AS_BIOES = {"S": "S", "U": "S", "E": "E", "L": "E", "B": "B", "I": "I", "M": "I"}


def split_tag(tag: str) -> tuple[str, str] | None:
    """`B-LOC` -> (B, LOC); `O` -> (O, ""); None where it is no tag."""
    if tag == "O":
        return "O", ""
    prefix, dash, kind = tag.partition("-")
    return (_AS_BIOES[prefix], kind) if dash and kind and prefix in _AS_BIOES else None


def schemes(sequences: Iterable[Sequence[str]]) -> set[Scheme]:
    """The schemes that all these sequences fit. Several fit where nothing tells them apart; none: they are mixed."""
    left: set[Scheme] = {"IOB1", "IOB2", "BIOES"}
    for tags in sequences:
        pairs = [split_tag(tag) or ("O", "") for tag in tags]
        before = ("O", "")
        for here in pairs:
            left -= _excluded(before, here)
            before = here
        left -= _excluded(before, ("O", ""))
    return left


def _excluded(before: tuple[str, str], here: tuple[str, str]) -> set[Scheme]:
    """Schemes in which these two tags cannot follow each other."""
    out: set[Scheme] = set()
    if here[0] in "SE" or before[0] in "SE":
        out.update(("IOB1", "IOB2"))
    inside = before[0] in "BI" and before[1] == here[1]
    if here[0] == "B" and not (before[0] in "BI" and inside):
        out.add("IOB1")  # there B- only parts an entity from one of the same type right before it
    if here[0] == "I" and not inside:
        out.update(("IOB2", "BIOES"))
    if here[0] == "E" and not inside:
        out.add("BIOES")
    if before[0] in "BI" and here[0] not in "IE":
        out.add("BIOES")  # there an entity of several words ends in E-
    return out


def to_iob2(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """The same entities in IOB2."""
    found = entities(tags, single_ends=scheme == "BIOES")
    out = ["O"] * len(tags)
    for kind, first, last in found:
        out[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
    return out


def entities(tags: Sequence[str], *, single_ends: bool = False) -> list[tuple[str, int, int]]:
    """(type, first word, last word) of every entity. `single_ends`: S- and E- close an entity (BIOES)."""
    found: list[tuple[str, int, int]] = []
    start, kind = -1, ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, here = split_tag(tag) or ("O", "")
        goes_on = start >= 0 and prefix in "IE" and here == kind
        if start >= 0 and not goes_on:
            found.append((kind, start, place - 1))
            start = -1
        if start < 0 and prefix != "O":
            start, kind = place, here
        if single_ends and start >= 0 and prefix in "SE":
            found.append((kind, start, place))
            start = -1
    return found


def score_entities(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, Any]:
    """`metrics` (precision, recall, f1 over all entities; accuracy over words), and the tables by type and by tag."""
    types: dict[str, list[int]] = {}
    for true_tags, said_tags in zip(truth, predicted, strict=True):
        true_set, said_set = set(entities(true_tags)), set(entities(said_tags))
        for column, group in enumerate((true_set & said_set, said_set, true_set)):
            for kind, _, _ in group:
                types.setdefault(kind, [0, 0, 0])[column] += 1
    names = sorted(types)
    right, said, true = (np.array([types[name][i] for name in names], np.int64) for i in range(3))
    table = metrics.table_from_counts(right, said, true, names)
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
