"""Counts of neighbours against a plain implementation, with borders of documents, samples and threads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from remask.artifacts import publish
from remask.data import counting
from remask.data.tokens import ShardWriter, Tokens

VOCAB = 40
WEIGHTS = (1.0, 0.7, 0.5)


def prepared(folder: Path, shards: dict[str, list[list[int]]]) -> Tokens:
    """A folder with these documents by shard name, opened at its training split."""

    def fill(place: Path) -> dict[str, object]:
        facts = []
        for name, documents in shards.items():
            writer = ShardWriter(place, name, VOCAB)
            for ids in documents:
                writer.add(np.array(ids), [0], np.ones(len(ids), bool))
            facts.append(writer.close())
        return {"shards": facts}

    publish(folder, "prepared", fill)
    return Tokens.open(folder)


def documents(seed: int, count: int = 12) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.zipf(1.5, draw.integers(1, 30)).clip(max=VOCAB - 1).tolist() for _ in range(count)]


def plain_counts(texts: list[list[int]]) -> np.ndarray:
    found: Counter[tuple[int, int]] = Counter()
    for ids in texts:
        for at, token in enumerate(ids):
            for distance, weight in enumerate(WEIGHTS, start=1):
                for other in (at - distance, at + distance):
                    if 0 <= other < len(ids):
                        found[token, ids[other]] += round(weight * 1000)
    counts = np.zeros((VOCAB, VOCAB), np.int64)
    for (token, other), number in found.items():
        counts[token, other] = number
    return counts


@pytest.mark.parametrize("stretch", [1 << 16, 1000])
@pytest.mark.parametrize("threads", [1, 3])
def test_counts_are_those_of_a_plain_implementation(
    tmp_path: Path, threads: int, stretch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_STRETCH", stretch)
    monkeypatch.setattr(counting, "_PAIRS_AT_ONCE", 100)  # a portion for every stretch
    one, two = documents(1), documents(2)
    tokens = prepared(tmp_path / "data", {"a.train.00000": one, "a.train.00001": two, "b.train.00000": [[1]]})
    counts = counting.neighbour_counts(tokens, VOCAB, WEIGHTS, 10**6, threads)
    assert counts.dtype == np.int64
    assert np.array_equal(counts.toarray(), plain_counts([*one, *two]))
    following = np.zeros((VOCAB, VOCAB), np.int64)
    for ids in [*one, *two]:
        np.add.at(following, (ids[:-1], ids[1:]), 1000)
    assert np.array_equal(counting.following_counts(tokens, VOCAB, 10**6, threads).toarray(), following)


def test_a_sample_is_spread_over_the_text_and_no_larger_than_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_STRETCH", 16)
    tokens = prepared(tmp_path / "data", {f"a.train.{i:05}": documents(i) for i in range(4)})
    chosen = counting.stretches(tokens, tokens.num_tokens // 3)
    assert {shard.name for shard, _, _ in chosen} == {f"a.train.{i:05}" for i in range(4)}
    size = sum(end - start for _, start, end in chosen)
    assert tokens.num_tokens // 6 < size <= tokens.num_tokens // 3
    assert counting.stretches(tokens, tokens.num_tokens // 3) == chosen
    assert sum(end - start for _, start, end in counting.stretches(tokens, 10**9)) == tokens.num_tokens


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("smoothing, shift, least", [(1.0, 1.0, 0.0), (0.75, 2.0, 0.0), (0.75, 1.0, 1.5)])
def test_pmi_is_that_of_the_definition(
    tmp_path: Path, smoothing: float, shift: float, least: float, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_PMI_AT_ONCE", 20)  # a few rows at a time
    tokens = prepared(tmp_path / "data", {"a.train.00000": documents(3)})
    if ordered:
        counts = counting.following_counts(tokens, VOCAB, 10**6)
    else:
        counts = counting.neighbour_counts(tokens, VOCAB, WEIGHTS, 10**6)
    found = counting.positive_pmi(counts, smoothing, shift, least).toarray()
    plain = counts.toarray().astype(float)
    context = plain.sum(axis=0) ** smoothing
    context /= context.sum()
    for token in range(VOCAB):
        for other in range(VOCAB):
            wanted = 0.0
            if plain[token, other] and plain[token, other] >= least * 1000:
                share = plain[token, other] / plain[token].sum()
                wanted = max(0.0, float(np.log(share / context[other]) - np.log(shift)))
            assert found[token, other] == pytest.approx(wanted, abs=1e-5)
