"""Rows through whatever answers batches: every row once, in their order, cut to its length, ended by a signal."""

from __future__ import annotations

import numpy as np
import pytest

from remask import signals
from remask.answer.runner import alike, forward_outputs, pad_rows
from remask.errors import Stopped
from remask.tasks.rows import Rows


def make_rows(lengths: list[int]) -> Rows:
    ids = [np.full(n, i, np.int64) for i, n in enumerate(lengths)]
    return Rows(ids, None, None, np.arange(len(lengths)))


def test_answers_come_in_the_examples_order() -> None:
    rows = make_rows([9, 3, 7, 3, 5])
    seen = []

    def forward(batch):
        seen.append(batch.num_rows)
        return np.stack([batch.input_ids_BS[:, 0], -batch.input_ids_BS[:, 0]], 1)

    logits = forward_outputs(forward, rows, pad_id=99, batch_tokens=12)
    assert [row[0] for row in logits] == [0, 1, 2, 3, 4]
    assert len(seen) > 2


def test_outputs_by_token_are_cut_to_the_row() -> None:
    rows = make_rows([4, 2, 3])
    said = forward_outputs(lambda batch: np.repeat(batch.input_ids_BS[:, :, None], 2, 2), rows, pad_id=99)
    assert [row.shape for row in said] == [(4, 2), (2, 2), (3, 2)]
    assert all((row == number).all() for number, row in enumerate(said))


def test_a_signal_ends_it_or_what_else_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "requested", lambda: True)
    rows = make_rows([4, 2, 3])
    with pytest.raises(Stopped):
        forward_outputs(lambda batch: batch.lengths_B, rows, pad_id=99)
    checks: list[int] = []
    said = forward_outputs(
        lambda batch: batch.lengths_B, rows, pad_id=99, batch_tokens=4, check=lambda: checks.append(1)
    )
    assert said == [4, 2, 3]
    assert len(checks) == 3


def test_batches_cover_every_row_once_within_the_budget() -> None:
    lengths = np.random.default_rng(0).integers(3, 60, 57).tolist()
    dealt = list(alike(lengths, 300))
    assert sorted(i for numbers in dealt for i in numbers) == list(range(57))
    assert all(len(numbers) * max(lengths[i] for i in numbers) <= 300 for numbers in dealt)
    assert len(dealt) < 57
    assert [len(numbers) for numbers in alike([500], 300)] == [1]  # a row that is longer goes alone
    assert list(alike([], 300)) == []


def test_rows_of_unlike_length_do_not_share_a_batch() -> None:
    lengths = [10] * 30 + [500, 480, 400, 300]
    dealt = [[lengths[i] for i in numbers] for numbers in alike(lengths, 16_384)]
    assert dealt == [[500, 480, 400], [300], [10] * 30]
    assert sorted(i for numbers in alike(lengths, 16_384) for i in numbers) == list(range(34))
    assert [len(numbers) for numbers in alike([10, 20, 9], 16_384)] == [3]


def test_padding_is_the_tokenizers() -> None:
    batch = pad_rows([np.array([5, 6, 7]), np.array([8])], [np.array([0, 0, 1]), np.array([0])], 1)
    assert batch.input_ids_BS.tolist() == [[5, 6, 7], [8, 1, 1]]
    assert batch.lengths_B.tolist() == [3, 1]
    assert batch.segment_ids_BS.tolist() == [[0, 0, 1], [0, 0, 0]]
