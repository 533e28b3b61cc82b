"""Minimal pairs: every token masked once, scores by hand, means by paradigm and category."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from remask.errors import DataError, MissingInputError
from remask.tasks.blimp import (
    MinimalPair,
    num_masked_rows,
    pseudo_log_likelihoods,
    read_blimp,
    score_pairs,
    summarise,
    texts_of,
)
from remask.tasks.rows import Frame

MASK = 4


class Letters:
    bos_id, eos_id, mask_id, kind = 0, 2, MASK, "byte-bpe"

    def encode_batch(self, texts):
        return [np.array([10 + ord(c) - ord("a") for c in text]) for text in texts]


def test_every_token_is_masked_once_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remask.tasks.blimp.ROW_TOKENS", 12)
    sentences = [np.array([0, 10, 11, 2]), np.array([0, 12, 13, 14, 2]), np.array([0, 15, 16, 2])]
    seen: list[tuple[int, ...]] = []

    def log_probs(batch):
        width = batch.input_ids_BS.shape[1]
        assert (batch.lengths_B == width).all()
        assert batch.input_ids_BS.size <= 12
        flat = batch.input_ids_BS.reshape(-1)
        assert (flat[batch.masked_positions_M] == MASK).all()
        assert (batch.input_ids_BS == MASK).sum() == batch.num_rows
        for row, label, position in zip(
            batch.input_ids_BS, batch.masked_labels_M, batch.masked_positions_M, strict=True
        ):
            whole = row.copy()
            whole[position % width] = label
            seen.append((*whole, int(position % width)))
        return batch.masked_labels_M

    scores = pseudo_log_likelihoods(log_probs, sentences, MASK)
    assert scores.tolist() == [21, 39, 31]
    assert sorted(seen) == sorted((*s, p) for s in sentences for p in range(1, len(s) - 1))


def test_the_likelier_sentence_wins_and_a_tie_does_not() -> None:
    pairs = [
        MinimalPair("ab", "cd", "one", "x"),
        MinimalPair("cd", "ab", "one", "x"),
        MinimalPair("ab", "ba", "two", "x"),
    ]
    frame = Frame(0, 2, True, False, 32)
    result = score_pairs(pairs, lambda batch: -batch.masked_labels_M, Letters(), frame)
    assert result["paradigms"] == {"one": 0.5, "two": 0.0}
    assert num_masked_rows(texts_of(pairs), Letters()) == 6


def test_means() -> None:
    pairs = [MinimalPair("a", "b", p, c) for p, c in (("p1", "x"), ("p1", "x"), ("p2", "x"), ("p3", "y"))]
    result = summarise(pairs, [0.1, -1.0, 2.0, 0.0])
    assert result["paradigms"] == {"p1": 0.5, "p2": 1.0, "p3": 0.0}
    assert result["categories"] == {"x": 0.75, "y": 0.0}
    assert result["metrics"] == {"accuracy": 0.5, "category_mean": 0.375}
    assert result["ties"] == 1
    assert result["ties_as_half"] == pytest.approx({"accuracy": 2 / 3, "category_mean": 0.625})


def test_standard_errors_are_those_of_drawing_other_pairs() -> None:
    """Against 4,000 draws of the pairs of each paradigm."""
    draw = np.random.default_rng(0)
    sizes = {("p1", "x"): (60, 0.5), ("p2", "x"): (40, 0.8), ("p3", "y"): (50, 0.3)}
    pairs = [MinimalPair("a", "b", *names) for names, (count, _) in sizes.items() for _ in range(count)]

    def means() -> tuple[float, float]:
        margins = [float(draw.random() < chance) for count, chance in sizes.values() for _ in range(count)]
        metrics = summarise(pairs, margins)["metrics"]
        return metrics["accuracy"], metrics["category_mean"]

    spread = np.std([means() for _ in range(4000)], axis=0)
    margins = [float(i < count * chance) for count, chance in sizes.values() for i in range(count)]
    errors = summarise(pairs, margins)["standard_errors"]
    assert list(errors.values()) == pytest.approx(spread.tolist(), rel=0.06)


def test_files(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="no BLiMP files"):
        read_blimp(tmp_path)
    line = {"sentence_good": "A.", "sentence_bad": "B.", "UID": "p", "linguistics_term": "x"}
    (tmp_path / "p.jsonl").write_text((json.dumps(line) + "\n") * 3)
    assert len(read_blimp(tmp_path)) == 3
    assert len(read_blimp(tmp_path, max_pairs=2)) == 2
    (tmp_path / "q.jsonl").write_text('{"sentence_good": "A."}\n')
    with pytest.raises(DataError, match=r"q\.jsonl:1: a BLiMP line has"):
        read_blimp(tmp_path)


def test_real_files(shared_data: Path) -> None:
    pairs = read_blimp(shared_data / "blimp", max_pairs=5)
    assert len({p.paradigm for p in pairs}) == 67
    assert len({p.category for p in pairs}) == 12
