"""Masks: rates, shares, positions, replacements and units against what is asked; nothing special is touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from remask.data import order
from remask.data.masking import Masked, Masker, _fill_budgets, mask_pass, rate_at
from remask.data.rows import BatchRows
from remask.data.settings import MaskingSettings

NUM_ROWS, WIDTH = 600, 64


def rows_of(lengths: np.ndarray, width: int = WIDTH, seed: int = 0) -> BatchRows:
    """Rows of <s> text </s>, padded."""
    generator = np.random.default_rng(seed)
    num_rows = len(lengths)
    ids = np.full((num_rows, width), 1)
    columns = np.arange(width)
    text = (columns >= 1) & (columns < lengths[:, None] - 1)
    ids[text] = generator.integers(5, 199, text.sum())
    ids[:, 0] = 0
    ids[np.arange(num_rows), lengths - 1] = 2
    flat = np.flatnonzero(text)
    starts = np.append(True, np.diff(flat) > 1)
    nothing = np.zeros(len(flat), np.int64)
    return BatchRows(ids, lengths, lengths - 2, flat, starts, nothing, nothing, None, None, None)


def full_rows() -> BatchRows:
    return rows_of(np.full(NUM_ROWS, WIDTH))


def keys_of(count: int = NUM_ROWS, name: str = "k") -> np.ndarray:
    return order.draw(order.key_of(name), np.arange(count))


def mask(
    rows: BatchRows, vocabulary: Any, rate: float = 0.15, name: str = "k", words: Any = None, **changes: Any
) -> Masked:
    masker = Masker(MaskingSettings(**changes), vocabulary)
    return masker(rows, keys_of(len(rows.lengths_B), name), rate, words)


def words_of(rows: BatchRows, seed: int = 1) -> np.ndarray:
    """Words of 1 to about 4 tokens."""
    return np.random.default_rng(seed).random(len(rows.text_T)) < 0.6


def deviation(counts: np.ndarray, expected: np.ndarray | float) -> float:
    value = ((counts - expected) ** 2 / expected).sum()
    return float((value - (counts.size - 1)) / np.sqrt(2 * (counts.size - 1)))


def units_of(rows: BatchRows, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The word number of every text token, and the row of every word."""
    starts = words | rows.starts_piece_T
    return np.cumsum(starts) - 1, (rows.text_T // rows.ids_BS.shape[1])[starts]


UNITS = ["token", "word", "ngram", "span"]


@pytest.mark.parametrize("count", ["exact", "independent"])
@pytest.mark.parametrize("unit", UNITS)
def test_rate_and_labels(vocabulary: Any, unit: str, count: str) -> None:
    rows = rows_of(np.random.default_rng(0).integers(20, WIDTH + 1, NUM_ROWS))
    words = words_of(rows)
    for rate in (0.15, 0.4):
        masked = mask(rows, vocabulary, rate, unit=unit, count=count, words=words)
        at = masked.positions_M
        assert np.array_equal(at, np.unique(at))
        assert np.isin(at, rows.text_T).all(), "a special token or padding is masked"
        assert np.array_equal(rows.ids_BS.ravel()[at], masked.labels_M)
        untouched = np.setdiff1d(np.arange(rows.ids_BS.size), at)
        assert np.array_equal(masked.ids_BS.ravel()[untouched], rows.ids_BS.ravel()[untouched])
        per_row = np.bincount(at // WIDTH, minlength=NUM_ROWS)
        wanted = rate * (rows.lengths_B - 2)
        # A span has about 7 tokens here, so independent draws of whole spans spread far more.
        assert abs(per_row.sum() / wanted.sum() - 1) < (0.25 if (unit, count) == ("span", "independent") else 0.06)
        if count == "exact":
            assert (per_row <= np.floor(wanted) + 1).all()
        if (unit, count) == ("token", "exact"):
            assert (per_row >= np.floor(wanted)).all()
            assert abs((per_row - np.floor(wanted)).sum() - (wanted % 1).sum()) < 5 * np.sqrt(NUM_ROWS / 4)


def test_independent_draws_vary_as_a_binomial(vocabulary: Any) -> None:
    masked = mask(full_rows(), vocabulary, 0.15, count="independent")
    per_row = np.bincount(masked.positions_M // WIDTH, minlength=NUM_ROWS)
    assert abs(per_row.var() / (62 * 0.15 * 0.85) - 1) < 0.3


@pytest.mark.parametrize("count", ["exact", "independent"])
@pytest.mark.parametrize("unit", UNITS)
def test_every_position_is_as_likely(vocabulary: Any, unit: str, count: str) -> None:
    rows = full_rows()
    words = np.ones(len(rows.text_T), bool) if unit == "token" else words_of(rows)
    counts = np.zeros(WIDTH)
    for number in range(8):
        masked = mask(rows, vocabulary, name=str(number), unit=unit, count=count, words=words)
        counts += np.bincount(masked.positions_M % WIDTH, minlength=WIDTH)
    inner = counts[1:-1]
    if unit == "token":
        assert abs(deviation(inner, inner.mean())) < 5
    eighths = inner[:56].reshape(8, 7).sum(axis=1)
    # Units are chosen together, so counts spread more than single draws would; where they lie must not matter.
    assert np.abs(eighths / eighths.mean() - 1).max() < {"token": 0.05, "word": 0.06, "ngram": 0.08, "span": 0.12}[unit]


def test_shares_and_replacements(vocabulary: Any) -> None:
    rows = full_rows()
    for shares in ((0.8, 0.1), (0.5, 0.5), (1.0, 0.0), (0.0, 0.3)):
        shown, labels = [], []
        for number in range(10):
            masked = mask(rows, vocabulary, name=str(number), mask_share=shares[0], random_share=shares[1])
            shown.append(masked.ids_BS.ravel()[masked.positions_M])
            labels.append(masked.labels_M)
        seen, true = np.concatenate(shown), np.concatenate(labels)
        is_mask = seen == vocabulary.mask_id
        changed = ~is_mask & (seen != true)
        assert not np.isin(seen[changed], vocabulary.special_ids).any(), "a special token was drawn"
        allowed = 200 - len(vocabulary.special_ids)
        random_seen = shares[1] * (1 - 1 / allowed)  # a draw may hit the true token
        counts = np.array([is_mask.sum(), changed.sum(), len(seen) - is_mask.sum() - changed.sum()], float)
        expected = len(seen) * np.array([shares[0], random_seen, 1 - shares[0] - random_seen])
        kept = expected > 0
        assert (counts[~kept] == 0).all()
        if kept.sum() > 1:
            assert abs(deviation(counts[kept], expected[kept])) < 5
        if changed.any():
            drawn = np.bincount(seen[changed], minlength=200)[5:199]
            assert abs(deviation(drawn, drawn.mean())) < 5


def test_neighbours_are_independent(vocabulary: Any) -> None:
    masked = mask(rows_of(np.full(4000, 130), 130), vocabulary, 0.2, count="independent")
    chosen = np.zeros(4000 * 130, bool)
    chosen[masked.positions_M] = True
    table = chosen.reshape(4000, 130)[:, 1:-1]
    assert abs(np.corrcoef(table[:, 1:].ravel(), table[:, :-1].ravel())[0, 1]) < 5 / np.sqrt(table.size)
    assert abs(np.corrcoef(table[1:].ravel(), table[:-1].ravel())[0, 1]) < 5 / np.sqrt(table.size)


@pytest.mark.parametrize("unit", UNITS)
def test_a_mask_belongs_to_its_row(vocabulary: Any, unit: str) -> None:
    """Whatever shares the batch and however wide it is padded."""
    lengths = np.random.default_rng(5).integers(10, WIDTH + 1, 30)
    rows = rows_of(lengths)
    words = words_of(rows)
    masker, keys = Masker(MaskingSettings(unit=unit), vocabulary), keys_of(30)
    whole = masker(rows, keys, 0.15, words)
    for row in (0, 7, 29):
        width = int(lengths[row]) + 3
        mine = rows.text_T // WIDTH == row
        ids = np.full((1, width), 1)
        ids[0, : min(width, WIDTH)] = rows.ids_BS[row, :width]
        flat = rows.text_T[mine] % WIDTH
        nothing = np.zeros(len(flat), np.int64)
        alone = BatchRows(
            ids,
            lengths[row : row + 1],
            lengths[row : row + 1] - 2,
            flat,
            rows.starts_piece_T[mine],
            nothing,
            nothing,
            None,
            None,
            None,
        )
        masked = masker(alone, keys[row : row + 1], 0.15, words[mine])
        inside = whole.positions_M // WIDTH == row
        assert np.array_equal(masked.positions_M, whole.positions_M[inside] % WIDTH)
        assert np.array_equal(masked.ids_BS[0, : lengths[row]], whole.ids_BS[row, : lengths[row]])


@pytest.mark.parametrize("count", ["exact", "independent"])
def test_words_are_masked_whole(vocabulary: Any, count: str) -> None:
    rows = full_rows()
    words = words_of(rows)
    masked = mask(rows, vocabulary, unit="word", count=count, words=words)
    word_T, _ = units_of(rows, words)
    chosen = np.isin(rows.text_T, masked.positions_M)
    share = np.bincount(word_T, chosen) / np.bincount(word_T)
    sizes = np.bincount(word_T)
    within = np.ones_like(share, bool) if count == "independent" else sizes <= np.floor(0.15 * 62)
    assert np.isin(share[within], (0, 1)).all()
    assert (share == 1).sum() > 1000


def test_no_unit_exceeds_the_budget_and_long_ones_are_still_reached(vocabulary: Any) -> None:
    """A row that is one long word (a script without spaces): pieces of it are masked, never more than the budget."""
    rows = full_rows()
    words = np.zeros(len(rows.text_T), bool)
    for unit in ("word", "ngram", "span"):
        masked = mask(rows, vocabulary, unit=unit, words=words)
        per_row = np.bincount(masked.positions_M // WIDTH, minlength=NUM_ROWS)
        assert (per_row <= 10).all()
        assert per_row.sum() > 0.9 * 0.15 * 62 * NUM_ROWS


def test_lengths_of_ngrams_and_spans(vocabulary: Any) -> None:
    """With a word a token and independent draws at a low rate, runs of masked tokens are single units."""
    rows = rows_of(np.full(3000, 130), 130)
    words = np.ones(len(rows.text_T), bool)

    def runs(**changes: Any) -> np.ndarray:
        masked = mask(rows, vocabulary, 0.01, count="independent", words=words, **changes)
        at = masked.positions_M
        starts = np.flatnonzero(np.append(True, np.diff(at) > 1))
        ends_row = at[np.append(starts[1:], len(at)) - 1] % 130 == 128
        return np.diff(np.append(starts, len(at)))[~ends_row]

    for max_ngram in (3, 5):
        found = np.bincount(runs(unit="ngram", max_ngram=max_ngram), minlength=max_ngram + 1)[1 : max_ngram + 1]
        weights = 1 / np.arange(1, max_ngram + 1)
        assert np.allclose(found / found.sum(), weights / weights.sum(), atol=0.03)
    for stop, longest in ((0.2, 10), (0.5, 4)):
        found = np.bincount(runs(unit="span", span_stop_prob=stop, max_span=longest), minlength=longest + 1)[
            1 : longest + 1
        ]
        weights = stop * (1 - stop) ** np.arange(longest)
        assert np.allclose(found / found.sum(), weights / weights.sum(), atol=0.03)


def test_ngrams_and_spans_are_of_whole_words(vocabulary: Any) -> None:
    rows = full_rows()
    words = words_of(rows)
    word_T, row_W = units_of(rows, words)
    assert len(row_W) == word_T[-1] + 1
    for unit in ("ngram", "span"):
        masked = mask(rows, vocabulary, 0.2, unit=unit, count="independent", words=words)
        share = np.bincount(word_T, np.isin(rows.text_T, masked.positions_M)) / np.bincount(word_T)
        assert np.isin(share, (0, 1)).all()


def test_a_span_is_shown_as_one(vocabulary: Any) -> None:
    """SpanBERT replaces all tokens of a span alike; n-grams decide for each token."""
    rows = rows_of(np.full(3000, 130), 130)
    words = np.ones(len(rows.text_T), bool)
    mixed = {}
    for unit in ("ngram", "span"):
        masked = mask(
            rows, vocabulary, 0.01, unit=unit, count="independent", words=words, mask_share=0.5, random_share=0.0
        )
        at = masked.positions_M
        is_mask = masked.ids_BS.ravel()[at] == vocabulary.mask_id
        together = np.diff(at) == 1
        mixed[unit] = (is_mask[1:] != is_mask[:-1])[together].mean()
    assert mixed["ngram"] > 0.3
    assert mixed["span"] < 0.05  # two spans may touch


def test_filling_budgets_is_going_through_units_one_by_one() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        row_U = np.sort(generator.integers(0, 6, 60))
        ranks = generator.integers(0, 2**63, 60).astype(np.uint64)
        lengths, budget = generator.integers(1, 9, 60), generator.integers(0, 25, 6)
        wanted, left = np.zeros(60, bool), budget.copy()
        for unit in np.lexsort((ranks, row_U)):
            if lengths[unit] <= left[row_U[unit]]:
                wanted[unit] = True
                left[row_U[unit]] -= lengths[unit]
        assert np.array_equal(_fill_budgets(row_U, ranks, lengths, budget), wanted)


def test_static_copies_and_dynamic_are_one_expression() -> None:
    passes = np.arange(25)
    assert mask_pass(MaskingSettings(repeat="static"), passes).tolist() == [0] * 25
    assert mask_pass(MaskingSettings(repeat="copies"), passes).tolist() == [n % 10 for n in range(25)]
    assert mask_pass(MaskingSettings(repeat="dynamic"), passes).tolist() == list(range(25))


def test_rate_schedules() -> None:
    falling = {"rate": 0.3, "final_rate": 0.1}
    assert [rate_at(MaskingSettings(**falling), p) for p in (0, 0.5, 1)] == [0.3, 0.3, 0.3]
    linear = [rate_at(MaskingSettings(**falling, schedule="linear"), p) for p in (0, 0.25, 1, 2)]
    assert linear == pytest.approx([0.3, 0.25, 0.1, 0.1])
    cosine = [rate_at(MaskingSettings(**falling, schedule="cosine"), p) for p in (0, 0.25, 0.5, 1)]
    assert cosine == pytest.approx([0.3, 0.3 - 0.2 * (1 - np.sqrt(0.5)) / 2, 0.2, 0.1])


def test_shares_above_one_are_refused() -> None:
    with pytest.raises(ValueError, match="add up"):
        MaskingSettings(mask_share=0.8, random_share=0.3)


def test_rows_too_short_to_mask(vocabulary: Any) -> None:
    rows = rows_of(np.full(50, 3), 3)
    for unit in UNITS:
        masked = mask(rows, vocabulary, unit=unit, words=np.ones(50, bool))
        assert 0 < len(masked.positions_M) < 25
    empty = rows_of(np.full(2, 2), 3)
    for unit in UNITS:
        assert len(mask(empty, vocabulary, unit=unit, words=np.zeros(0, bool)).positions_M) == 0


def test_known_masks(vocabulary: Any) -> None:
    """Recorded: masks must not change from one version to the next, or resumed and compared runs would."""
    rows = rows_of(np.full(2, 20), 20)
    found = {unit: mask(rows, vocabulary, 0.3, unit=unit, words=words_of(rows)) for unit in UNITS}
    assert {unit: masked.positions_M.tolist() for unit, masked in found.items()} == {
        "token": [1, 2, 9, 13, 18, 23, 25, 29, 31, 33],
        "word": [1, 2, 9, 13, 14, 25, 26, 27, 28, 29],
        "ngram": [1, 2, 9, 12, 18, 29, 30, 31, 32, 33],
        "span": [1, 2, 8, 9, 18, 29, 30, 31, 32, 33],
    }
    shown = found["token"].ids_BS.ravel()[found["token"].positions_M]
    assert shown.tolist() == [199, 199, 199, 199, 110, 199, 199, 199, 153, 199]


def test_words_masked_in_part_are_counted_and_longer_words_are_masked_less(vocabulary: Any) -> None:
    """A row of 12 tokens has one or two to predict: of words of three tokens only parts can be masked."""
    rows = rows_of(np.full(NUM_ROWS, 14), 16)
    words = np.tile(np.arange(12) % 3 == 0, NUM_ROWS)
    masker = Masker(MaskingSettings(unit="word"), vocabulary)
    masked = masker(rows, keys_of(), 0.15, words)
    word = np.cumsum(words)[np.searchsorted(rows.text_T, masked.positions_M)]
    assert masker.num_words_in_part == len(np.unique(word)) > 0
    rows = full_rows()
    words = np.tile(np.arange(62) % 6 < 2, NUM_ROWS)  # words of one token and of five
    masker = Masker(MaskingSettings(unit="word"), vocabulary)
    masked = masker(rows, keys_of(), 0.15, words)
    assert masker.num_words_in_part == 0
    is_masked = np.isin(rows.text_T, masked.positions_M)
    in_long = np.tile(np.arange(62) % 6 > 0, NUM_ROWS)
    assert is_masked[in_long].mean() < 0.95 * is_masked[~in_long].mean()
