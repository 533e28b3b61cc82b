"""Task retrieve without training: files, who is whose negative, the loss, steps, scores."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from remask.errors import ConfigError, DataError
from remask.tasks.kind import TaskSource
from remask.tasks.kinds import open_problem
from remask.tasks.pair_batches import PairBatches
from remask.tasks.retrieve import PairTable, Retrieve, TextPair, compare_pairs, pair_table, read_pairs
from remask.tasks.rows import Rows
from remask.tasks.settings import RetrieveSettings, TableSettings, TaskBatchSettings


def pairs(*rows: tuple[str, str, *tuple[str, ...]]) -> list[TextPair]:
    return [TextPair(query, positive, f"line {i}", tuple(rest)) for i, (query, positive, *rest) in enumerate(rows)]


def table(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


# --------------------------------------------------------------------------------------------------------- files


def test_a_cell_may_hold_several_texts(tmp_path: Path) -> None:
    file = table(tmp_path / "a.jsonl", {"q": "who", "d": ["he", "she"], "n": ["it"]}, {"q": "what", "d": "that"})
    found, dropped, _ = read_pairs(file, TableSettings(query="q", positive="d", negative="n"))
    assert [(p.query, p.positive, p.negatives) for p in found] == [
        ("who", "he", ("it",)),
        ("who", "she", ("it",)),
        ("what", "that", ()),
    ]
    assert not dropped


@pytest.mark.parametrize(
    "line, words",
    [
        ({"query": "who", "positive": ""}, r"a.jsonl:2: the query has no text that answers it in column 'positive'"),
        ({"query": "who", "positive": []}, r"a.jsonl:2: the query has no text that answers it"),
        ({"query": " ", "positive": "he"}, r"a.jsonl:2: column 'query' has no text"),
        ({"query": "who", "positive": ["he", " "]}, r"a.jsonl:2: column 'positive' holds an empty text"),
        ({"query": "who", "positive": 3}, r"a.jsonl:2: column 'positive' holds an empty text or none: '3'"),
        ({"query": "who", "positive": "he", "id": 1}, r"a.jsonl:2: the id '1' is also at .*a.jsonl:1"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, line: dict[str, Any], words: str) -> None:
    file = table(tmp_path / "a.jsonl", {"query": "what", "positive": "that", "id": 1}, {"id": 2, **line})
    with pytest.raises(DataError, match=words):
        read_pairs(file, TableSettings(id="id"))
    if "id '1'" not in words:
        kept, dropped, _ = read_pairs(file, TableSettings(bad_rows="drop"))
        assert (len(kept), sum(dropped.values())) == (1, 1)


def test_without_a_dev_file_documents_are_set_aside_whole(tmp_path: Path) -> None:
    file = table(tmp_path / "a.jsonl", *({"query": f"q{i}", "positive": f"text {i // 3}"} for i in range(30)))
    problem = open_problem(TaskSource("retrieve", TableSettings(), file))
    assert not {p.positive for p in problem.train} & {p.positive for p in problem.dev}
    assert problem.facts["dev_queries"] == 3 * problem.facts["dev_documents"] == len(problem.dev)
    with pytest.raises(ConfigError, match="needs pairs: --train FILE --query COL --positive COL"):
        open_problem(TaskSource("retrieve", TableSettings()))


# ------------------------------------------------------------------------------------------------------ the loss


def by_hand(scores_QD: np.ndarray, target_Q: list[int], masked: list[set[int]]) -> float:
    """Cross entropy of the targets, written out."""
    total = 0.0
    for scores, target, hidden in zip(scores_QD, target_Q, masked, strict=True):
        total -= scores[target] - math.log(sum(math.exp(s) for d, s in enumerate(scores) if d not in hidden))
    return total


def vectors(count: int, width: int = 6) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def cosines(v: torch.Tensor, rows: int, width: int | None = None) -> np.ndarray:
    unit = torch.nn.functional.normalize(v[:, :width], dim=-1)
    return (unit[:rows] @ unit[rows:].T).numpy()


def loss_of(found: PairTable, v: torch.Tensor, **changes: Any) -> dict[str, float]:
    ids = np.arange(found.num_pairs + len(found.documents))
    settings = RetrieveSettings(**changes)
    sums, _ = compare_pairs(v, ids, found, settings, 1 / settings.temperature)
    return {name: float(value) for name, value in sums.items()}


def test_known_answers_and_copies_are_no_negatives() -> None:
    """Pairs 0 and 1 have the same query; pair 2's answer differs from pair 0's in spaces only; pair 3's query is also
    a document."""
    found = pair_table(
        pairs(("who", "he"), (" who", "she"), ("whom", "he "), ("it", "that"), ("what", "this", "it", "he"))
    )
    assert found.documents == ["he", "she", "that", "this", "it"]
    v = vectors(10)
    scores = cosines(v, 5) / 0.05
    masked = [{1}, {0}, set(), {4}, set()]
    assert loss_of(found, v)["task"] == pytest.approx(by_hand(scores, [0, 1, 0, 2, 3], masked))
    # The other way, "he" (pairs 0 and 2) answers queries 0, 1 and 2, so that those are no negatives of each other.
    back = by_hand(scores[:, [0, 1, 0, 2, 3]].T, [0, 1, 2, 3, 4], [{1, 2}, {0}, {0, 1}, set(), set()])
    both = (by_hand(scores, [0, 1, 0, 2, 3], masked) + back) / 2
    assert loss_of(found, v, symmetric=True)["task"] == pytest.approx(both)


def test_narrow_vectors_are_taught_too() -> None:
    found = pair_table(pairs(("a", "x"), ("b", "y"), ("c", "z")))
    v = vectors(6)
    each = [by_hand(cosines(v, 3, width) / 0.1, [0, 1, 2], [set()] * 3) for width in (2, 4, 6)]
    assert loss_of(found, v, widths=(2, 4), temperature=0.1)["task"] == pytest.approx(sum(each) / 3)


def test_margins_follow_a_teacher() -> None:
    found = pair_table(pairs(("a", "x", "y", "n"), ("b", "y")))
    assert [n.tolist() for n in found.negatives_of_pair] == [[1, 2], []]
    taught = PairTable(**{**vars(found), "margins_of_pair": [np.array([2.0, 5.0]), np.array([])]})
    v = vectors(5)
    scores = cosines(v, 2) / 0.05
    wanted = ((scores[0, 0] - scores[0, 1] - 2) ** 2 + (scores[0, 0] - scores[0, 2] - 5) ** 2) / 2
    assert loss_of(taught, v)["margin"] == pytest.approx(wanted)
    assert "margin" not in loss_of(found, v)


def test_shares_of_ranks_add_up_to_the_whole() -> None:
    found = pair_table(pairs(("a", "x"), ("b", "y"), ("c", "z"), ("d", "x")))
    v, ids, settings = vectors(7), np.array([6, 0, 4, 3, 1, 5, 2]), RetrieveSettings(symmetric=True)
    whole, right = compare_pairs(v, ids, found, settings, 20.0)
    shares = [compare_pairs(v, ids, found, settings, 20.0, rank, 3) for rank in range(3)]
    assert float(whole["task"]) == pytest.approx(sum(float(sums["task"]) for sums, _ in shares))
    assert int(right) == sum(int(own) for _, own in shares)


# --------------------------------------------------------------------------------------------------------- steps


def batches_of(found: PairTable, num_rows: int = 4, num_negatives: int = 0, **ranks: int) -> PairBatches:
    count = found.num_pairs + len(found.documents)
    rows = Rows([np.full(3 + i % 4, 5) for i in range(count)], None, None, np.arange(count))
    settings = TaskBatchSettings(num_rows=num_rows, micro_tokens=16)
    return PairBatches(found, rows, 1, settings, num_negatives=num_negatives, seed=1, **ranks)


def test_an_epoch_has_every_pair_once_and_every_document_of_a_step_once() -> None:
    found = pair_table(pairs(*((f"q{i}", f"text {i // 2}") for i in range(10))))
    source = batches_of(found)
    cursor, seen = source.first_cursor(), []
    for _ in range(source.steps_per_epoch):
        batches, cursor = source.take(cursor)
        ids = np.concatenate([batch.example_ids_B for batch in batches])
        assert len(set(ids)) == len(ids)
        asked = sorted(int(i) for i in ids if i < 10)
        assert {int(i) - 10 for i in ids if i >= 10} == {i // 2 for i in asked}
        seen += asked
    assert sorted(seen) == list(range(10))
    assert cursor == {"epoch": 1, "step": 0}
    assert all(len(asked) in (3, 4) for asked in np.array_split(seen, 3))


def test_ranks_share_the_rows_of_a_step() -> None:
    found = pair_table(pairs(*((f"q{i}", f"text {i}") for i in range(8))))
    whole, *parts = (
        {int(i) for batch in batches_of(found, **ranks).take({"epoch": 0, "step": 0})[0] for i in batch.example_ids_B}
        for ranks in ({}, {"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 2})
    )
    assert parts[0] | parts[1] == whole
    assert not parts[0] & parts[1]


def test_negatives_are_drawn_anew_each_epoch_from_what_is_no_answer() -> None:
    found = pair_table(pairs(("a", "x"), ("b", "y", "n0")))
    found = found.with_negatives([np.array([1, 0]), np.array([0, 1, 2])])
    assert [n.tolist() for n in found.negatives_of_pair] == [[1], [2, 0]]
    steps = [batches_of(found, num_negatives=1).rows_of(epoch, 0) for epoch in range(12)]
    drawn = {2 in rows - 2 for rows in steps}
    assert drawn == {True, False}
    with pytest.raises(ConfigError, match=r"batch.num_rows = 1: a step needs two pairs"):
        batches_of(found, num_rows=1)


# -------------------------------------------------------------------------------------------------------- scores


def test_scores_are_of_rankings_among_all_documents() -> None:
    items = pairs(("a", "x"), ("a", "y"), ("b", "z", "w"))
    kind = Retrieve(RetrieveSettings(widths=(1,)))
    # Query a is nearest to w, then x, then y; query b to z.
    outputs = [np.array(v, np.float32) for v in ([1, 0], [0, 1], [1, 0.5], [1, 1], [0, 1], [1, 0])]
    rows = Rows([np.zeros(1)] * 6, None, None, np.arange(6))
    found = kind.score(outputs, rows, items, ())
    best = 1 + 1 / math.log2(3)
    assert found["metrics"]["ndcg@10"] == pytest.approx(((1 / math.log2(3) + 1 / 2) / best + 1) / 2)
    assert found["metrics"]["mrr@10"] == pytest.approx((1 / 2 + 1) / 2)
    assert found["metrics"]["recall@1"] == 0.5
    assert found["intervals"]["recall@1"]["low"] == 0.0
    assert "ndcg@10_1" in found["metrics"]
    assert [(one["text"], one["label"], one["prediction"]) for one in found["worst"]] == [("a", "x", "w")]
    with pytest.raises(DataError, match=r"no numbers \(NaN\) for 1 of 6 rows"):
        kind.score([*outputs[:5], outputs[5] * np.nan], rows, items, ())
    doubled = kind.mean_outputs([outputs, outputs], rows)
    assert kind.score(doubled, rows, items, ())["metrics"]["ndcg@10"] == pytest.approx(found["metrics"]["ndcg@10"])
