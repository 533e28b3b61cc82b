"""Rows as the families want them: marks, segments, positions and documents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remask.data.batches import open_batches
from remask.data.settings import DataSettings
from remask.schema import Batch

S, P, E = 0, 1, 2  # <s>, <pad>, </s>
DOCUMENTS = [[[10, 11], [12, 13, 14]], [[20, 21], [22], [23, 24]], [], [[30]]]


def unmasked(batch: Batch) -> list[list[int]]:
    ids = batch.input_ids_BS.copy().reshape(-1)
    ids[batch.masked_positions_M] = batch.masked_labels_M
    return ids.reshape(batch.input_ids_BS.shape).tolist()


def read(folder: Path, vocabulary: Any, **changes: Any) -> tuple[list[list[int]], Batch]:
    """All rows in corpus order."""
    batches = open_batches(folder, DataSettings(**changes), vocabulary, seed=1)
    batch = batches.batch_of_epoch(0, 0, max_rows=batches.num_examples)
    order = np.argsort(batch.example_ids_B)
    assert batch.example_ids_B[order].tolist() == list(range(batches.num_examples))
    rows = unmasked(batch)
    batch = Batch(
        **{
            name: None if (array := getattr(batch, name)) is None else array[order]
            for name in (
                "input_ids_BS",
                "lengths_B",
                "segment_ids_BS",
                "document_ids_BS",
                "position_ids_BS",
                "sentence_labels_B",
            )
        }
    )
    return [rows[i] for i in order], batch


def test_full_sentences_cross_documents_with_a_separator(prepare: Callable[..., Path], vocabulary: Any) -> None:
    rows, batch = read(prepare({"a.train.00000": DOCUMENTS}), vocabulary, length=12)
    assert rows == [[S, 10, 11, 12, 13, 14, E, 20, 21, 22, E, P], [S, 23, 24, E, 30, E, P, P, P, P, P, P]]
    assert batch.lengths_B.tolist() == [11, 6]
    assert batch.segment_ids_BS is None
    assert batch.document_ids_BS is None
    assert batch.sentence_labels_B is None


def test_doc_sentences_stay_inside(prepare: Callable[..., Path], vocabulary: Any) -> None:
    folder = prepare({"a.train.00000": DOCUMENTS[:1], "a.train.00001": DOCUMENTS[1:]})
    rows, _ = read(folder, vocabulary, length=8, format="doc-sentences")
    assert rows == [[S, 10, 11, 12, 13, 14, E, P], [S, 20, 21, 22, 23, 24, E, P], [S, 30, E, P, P, P, P, P]]


def test_packed_documents_restart(prepare: Callable[..., Path], vocabulary: Any) -> None:
    folder = prepare({"a.train.00000": DOCUMENTS})
    rows, batch = read(folder, vocabulary, length=20, format="doc-sentences", pack_documents=True)
    assert batch.document_ids_BS is not None
    assert batch.position_ids_BS is not None
    assert len(rows) == 1
    assert rows[0] == [S, 10, 11, 12, 13, 14, E, S, 20, 21, 22, 23, 24, E, S, 30, E, P, P, P]
    assert batch.document_ids_BS[0].tolist() == [0] * 7 + [1] * 7 + [2] * 3 + [-1] * 3
    assert batch.position_ids_BS[0].tolist() == [*range(7), *range(7), *range(3), 0, 0, 0]


def test_pairs_of_both_families(prepare: Callable[..., Path], vocabulary: Any) -> None:
    folder = prepare({"a.train.00000": [[[10, 11], [12, 13]], [[20], [21], [22]]]})
    rows, batch = read(folder, vocabulary, length=16, format="sentence-pair")
    assert rows == [[S, 10, 11, E, E, 12, 13, E], [S, 20, E, E, 21, E, P, P], [S, 22, E, P, P, P, P, P]]
    assert batch.segment_ids_BS is None
    wordpiece = type(vocabulary)(kind="wordpiece")
    for words in (wordpiece, vocabulary):
        layout = "auto" if words is wordpiece else "bert"
        rows, batch = read(folder, words, length=16, format="sentence-pair", layout=layout)
        assert rows == [[S, 10, 11, E, 12, 13, E, P], [S, 20, E, 21, E, P, P, P], [S, 22, E, P, P, P, P, P]]
        assert batch.segment_ids_BS is not None
        assert batch.segment_ids_BS.tolist() == [
            [0, 0, 0, 0, 1, 1, 1, 0],
            [0, 0, 0, 1, 1, 0, 0, 0],
            [0] * 8,
        ]
    rows, batch = read(folder, wordpiece, length=16, format="sentence-pair", layout="roberta")
    assert batch.segment_ids_BS is None
    assert rows[0] == [S, 10, 11, E, E, 12, 13, E]


def test_sentence_order_swaps(prepare: Callable[..., Path], vocabulary: Any) -> None:
    documents = [[[10 + i], [60 + i]] for i in range(50)] + [[[9]]]
    rows, batch = read(
        prepare({"a.train.00000": documents}), vocabulary, length=16, format="sentence-pair", sentence_loss="sop"
    )
    assert batch.sentence_labels_B is not None
    assert {1, 0} == set(batch.sentence_labels_B[:-1].tolist())
    for number, label in enumerate(batch.sentence_labels_B[:-1]):
        first, second = (10 + number, 60 + number) if label == 1 else (60 + number, 10 + number)
        assert rows[number][:6] == [S, first, E, E, second, E]
    assert batch.sentence_labels_B[-1] == -100
    assert rows[-1][:3] == [S, 9, E]


def test_fixed_blocks_have_marks_only_where_documents_end(prepare: Callable[..., Path], vocabulary: Any) -> None:
    rows, batch = read(prepare({"a.train.00000": DOCUMENTS}), vocabulary, length=8, format="fixed-blocks")
    assert rows == [[S, 10, 11, 12, 13, 14, E, S], [20, 21, 22, 23, 24, E, S, 30]]
    assert batch.lengths_B.tolist() == [8, 8]


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"sentence_loss": "nsp"}, "pair format"),
        ({"pack_documents": True}, "doc-sentences"),
        ({"format": "fixed-blocks", "shorten_prob": 0.1}, "one length"),
        ({"shorten_to": 600}, "above length"),
        ({"short_steps": 0.9, "short_length": 600}, "above length"),
        ({"source_weights": {"a": -1.0}}, "negative"),
        ({"source_weights": {"a": 0.0}}, "above 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataSettings(**changes)
