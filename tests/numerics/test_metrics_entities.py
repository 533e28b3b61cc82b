"""Entity F1 and tag schemes against definitions written another way, on random sequences."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remask.tasks.entities import bioes_fault, entities, is_bioes, score_entities, to_iob2

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def by_conlleval(tags: list[str]) -> set[tuple[str, int, int]]:
    """Where an entity starts and ends by looking at neighbours, as conlleval does, instead of walking through."""
    prefix = [tag[0] for tag in tags]
    kind = [tag[2:] for tag in tags]
    count = len(tags)
    starts = [
        i for i in range(count)
        if prefix[i] == "B" or (prefix[i] == "I" and (i == 0 or prefix[i - 1] == "O" or kind[i - 1] != kind[i]))
    ]  # fmt: skip
    ends = [
        i for i in range(count)
        if prefix[i] != "O"
        and (i + 1 == count or prefix[i + 1] in "OB" or kind[i + 1] != kind[i])
    ]  # fmt: skip
    return {(kind[s], s, e) for s, e in zip(starts, ends, strict=True)}


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(TAGS), max_size=12))
def test_entities_equal_conllevals(tags: list[str]) -> None:
    assert set(entities(tags)) == by_conlleval(tags)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), min_size=1, max_size=10), min_size=1))
def test_scores_by_hand(cases: list[list[tuple[str, str]]]) -> None:
    truth = [[a for a, _ in case] for case in cases]
    said = [[b for _, b in case] for case in cases]
    true = {(n, *e) for n, tags in enumerate(truth) for e in by_conlleval(tags)}
    found = {(n, *e) for n, tags in enumerate(said) for e in by_conlleval(tags)}
    got = score_entities(truth, said)
    precision = len(true & found) / len(found) if found else 0.0
    recall = len(true & found) / len(true) if true else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    assert got["metrics"]["precision"] == pytest.approx(precision)
    assert got["metrics"]["recall"] == pytest.approx(recall)
    assert got["metrics"]["f1"] == pytest.approx(f1)
    for kind, row in got["table"]["classes"].items():
        assert row["support"] == sum(1 for entity in true if entity[1] == kind)


def test_scores_equal_seqeval() -> None:
    seqeval = pytest.importorskip("seqeval.metrics", reason="seqeval is not installed")
    import numpy as np

    rng = np.random.default_rng(0)
    for _ in range(30):
        lengths = rng.integers(1, 15, 8)
        truth = [list(rng.choice(TAGS, n)) for n in lengths]
        said = [[tag if rng.random() < 0.7 else str(rng.choice(TAGS)) for tag in tags] for tags in truth]
        got = score_entities(truth, said)["metrics"]
        assert got["f1"] == pytest.approx(seqeval.f1_score(truth, said, zero_division=0))
        assert got["precision"] == pytest.approx(seqeval.precision_score(truth, said, zero_division=0))
        assert got["recall"] == pytest.approx(seqeval.recall_score(truth, said, zero_division=0))
        assert got["accuracy"] == pytest.approx(seqeval.accuracy_score(truth, said))


@st.composite
def segmentation(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Runs of (type or "", length)."""
    return draw(st.lists(st.tuples(st.sampled_from(["", "PER", "LOC"]), st.integers(1, 3)), min_size=1, max_size=8))


def write_as(runs: list[tuple[str, int]], scheme: str) -> list[str]:
    tags: list[str] = []
    before = ""
    for kind, length in runs:
        if not kind:
            tags += ["O"] * length
        elif scheme == "BIOES":
            tags += [f"S-{kind}"] if length == 1 else [f"B-{kind}", *[f"I-{kind}"] * (length - 2), f"E-{kind}"]
        else:
            first = "B" if scheme == "IOB2" or before == kind else "I"
            tags += [f"{first}-{kind}", *[f"I-{kind}"] * (length - 1)]
        before = kind
    return tags


@settings(max_examples=300, deadline=None)
@given(segmentation(), st.sampled_from(["IOB1", "IOB2", "BIOES"]))
def test_every_scheme_is_recognised_and_normalised(runs: list[tuple[str, int]], scheme: str) -> None:
    tags = write_as(runs, scheme)
    bioes = is_bioes([tags])
    assert bioes == (scheme == "BIOES" and any(kind for kind, _ in runs))
    if bioes:
        assert bioes_fault(tags) is None
    assert to_iob2(tags, bioes=bioes) == write_as(runs, "IOB2")


@pytest.mark.parametrize(
    "tags, fault",
    [
        ("S-X O B-X O", 3),
        ("S-X O I-X E-X", 2),
        ("B-X E-Y", 1),
        ("E-X O", 0),
        ("S-X B-X", 1),
        ("B-X I-X E-X S-X O B-Y E-Y", None),
        ("B-X B-X E-X", 1),
    ],
)
def test_broken_bioes(tags: str, fault: int | None) -> None:
    assert bioes_fault(tags.split()) == fault
