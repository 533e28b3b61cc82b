"""Masks: which text tokens are predicted and what stands there, for a whole batch at once.

In: laid-out rows and one key per row. Out: changed ids, flat positions and true ids. Everything is drawn by
(key of the row, column), so a mask does not depend on which rows share the batch, nor on padding. The key is
(seed, source, example, pass): for static and copied masks the pass is taken modulo the number of copies (`mask_pass`).
Units: tokens; words; n-grams of words (ALBERT: length n with weight 1/n); spans of words (SpanBERT: geometric). A
row's budget is rate * tokens, the fraction rounded up or down by a draw. Special tokens are never masked nor drawn.
Units are taken as long as they fit the budget, as BERT does, so longer words are masked less often than short ones; a
word longer than the whole budget is masked in parts, and counted (`Masker.num_words_in_part`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from remask.data import order
from remask.data.rows import BatchRows, Vocabulary
from remask.data.settings import MaskingSettings

_PICK, _TURN, _LENGTH, _SHOW = (order.key_of("masking", name) for name in ("pick", "turn", "length", "show"))
_LOWER_HALF = np.uint64((1 << 32) - 1)
_LAST_RANK = np.uint32((1 << 32) - 1)
_ROW_SHIFT, _RANK_SHIFT = np.uint64(44), np.uint64(20)  # the row above the upper bits of a rank: one sort does both


@dataclass(frozen=True)
class Masked:
    """The outcome for a batch: ids as the model sees them, and what it should say where."""

    ids_BS: np.ndarray
    positions_M: np.ndarray
    labels_M: np.ndarray


def mask_pass(settings: MaskingSettings, passes: np.ndarray) -> np.ndarray:
    """Which mask a row gets in a pass: masks are drawn from this number, so equal numbers are equal masks."""
    # Modulo 1 all passes are pass 0 (static), modulo n they repeat after n (copies), modulo 2^62 they never do.
    copies = {"static": 1, "copies": settings.num_copies, "dynamic": 1 << 62}[settings.repeat]
    return np.asarray(passes) % copies


def rate_at(settings: MaskingSettings, progress: float) -> float:
    """The masking rate when this share of the training is done."""
    progress = min(max(progress, 0.0), 1.0)
    if settings.schedule == "constant":
        return settings.rate
    moved = progress if settings.schedule == "linear" else (1 - math.cos(math.pi * progress)) / 2
    return settings.rate + (settings.final_rate - settings.rate) * moved


def replacements(vocabulary: Vocabulary) -> np.ndarray:
    """Ids that may stand in as random tokens: all but the special ones."""
    allowed = np.ones(vocabulary.vocab_size, bool)
    allowed[list(vocabulary.special_ids)] = False
    return np.flatnonzero(allowed)


class Masker:
    """Applies one masking recipe to batches."""

    def __init__(self, settings: MaskingSettings, vocabulary: Vocabulary) -> None:
        self.settings = settings
        self._mask_id = vocabulary.mask_id
        self._allowed = replacements(vocabulary)
        self.num_words_in_part = 0  # masked so far, of which some tokens stayed

    def __call__(self, rows: BatchRows, keys_B: np.ndarray, rate: float, starts_word_T: np.ndarray | None) -> Masked:
        """`starts_word_T` says where words start; needed unless the unit is the token."""
        if self.settings.unit == "token":
            chosen, leader = self._choose_tokens(rows, keys_B, rate), None
        else:
            assert starts_word_T is not None
            chosen, leader = self._choose_units(rows, keys_B, rate, starts_word_T)
        return self._show(rows, keys_B, chosen, leader)

    def _choose_tokens(self, rows: BatchRows, keys_B: np.ndarray, rate: float) -> np.ndarray:
        """Flat positions, ascending."""
        num_rows, width = rows.ids_BS.shape
        bits_BS = order.draw((keys_B ^ np.uint64(_PICK))[:, None], np.arange(width))
        if self.settings.count == "independent":
            return rows.text_T[bits_BS.reshape(-1)[rows.text_T] < np.uint64(int(rate * 2.0**64))]
        # Every text token has a drawn rank; the ranks below the row's budget-th smallest one are masked. So a row has
        # exactly its budget, and a larger rate masks the same tokens and some more.
        # 32 bits sort many times faster than 64. Two equal ranks just at the limit leave one token out, in about one
        # row of ten million.
        ranks = np.full(num_rows * width, _LAST_RANK)
        ranks[rows.text_T] = (bits_BS.reshape(-1)[rows.text_T] >> np.uint64(32)).astype(np.uint32)
        ranks_BS = ranks.reshape(num_rows, width)
        budget_B = _budgets(keys_B, rows.text_lengths_B, rate)
        limit_B = np.sort(ranks_BS, axis=1)[np.arange(num_rows), np.minimum(budget_B, width - 1)]
        limit_B[budget_B == width] = _LAST_RANK
        return np.flatnonzero(ranks_BS < limit_B[:, None])

    def _choose_units(
        self, rows: BatchRows, keys_B: np.ndarray, rate: float, starts_word_T: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Flat positions, and for spans the position of each one's span start (a span is shown as one)."""
        row_T, column_T = np.divmod(rows.text_T, rows.ids_BS.shape[1])
        if not len(row_T):
            return rows.text_T, None
        starts_T = word_starts_T = starts_word_T | rows.starts_piece_T
        budget_B = _budgets(keys_B, rows.text_lengths_B, rate)
        if self.settings.count == "exact":
            # A word longer than the whole budget could never be chosen: it counts as several.
            first = np.flatnonzero(starts_T)
            inside_T = np.arange(len(row_T)) - first[np.cumsum(starts_T) - 1]
            starts_T = inside_T % np.maximum(budget_B[row_T], 1) == 0
        words = _Units(starts_T, row_T, column_T, keys_B)
        if self.settings.unit == "word":
            picked_W, leader_W = self._pick(words, rate, budget_B), None
        else:
            picked_W, leader_W = self._pick_tiles(words, rows, rate, budget_B, keys_B)
        chosen_T = picked_W[words.unit_T]
        if words.num_units > np.count_nonzero(word_starts_T):
            self.num_words_in_part += _num_in_part(word_starts_T, chosen_T)
        leader = None if leader_W is None else leader_W[words.unit_T][chosen_T]
        return rows.text_T[chosen_T], leader

    def _pick(self, units: _Units, rate: float, budget_B: np.ndarray) -> np.ndarray:
        if self.settings.count == "independent":
            return units.ranks < np.uint64(int(rate * 2.0**64))
        return _fill_budgets(units.row, units.ranks, units.lengths, budget_B)

    def _pick_tiles(
        self, words: _Units, rows: BatchRows, rate: float, budget_B: np.ndarray, keys_B: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Which words are masked where they go in n-grams or spans, and for spans where each word's span starts.

        A row is closed to a ring and tiled from a drawn word on, so that no position is special. Tiles are taken in
        the order of their ranks; the one that reaches the budget keeps the words that fit, so that long ones are as
        likely as short ones. What is then left goes to single words.
        """
        ring = _turned(words, keys_B)
        starts = self._tile(words.row, words.column[ring], keys_B)
        tile_W, first = np.cumsum(starts) - 1, np.flatnonzero(starts)
        lengths, row, ranks = words.lengths[ring], words.row, words.ranks[ring]
        leader_W = rows.text_T[words.first[ring]][first][tile_W]
        if self.settings.count == "independent":
            picked = (ranks[first] < np.uint64(int(rate * 2.0**64)))[tile_W]
        else:
            ends = np.cumsum(lengths)
            begin = (ends - lengths)[first]
            totals = _totals_before(row[first], ranks[first], np.diff(np.append(begin, ends[-1])))
            picked = totals[tile_W] + ends - begin[tile_W] <= budget_B[row]
            left_B = budget_B - _sums(row[picked], lengths[picked], len(budget_B))
            others = np.flatnonzero(~picked)
            filled = others[_fill_budgets(row[others], ranks[others], lengths[others], left_B)]
            picked[filled] = True
            leader_W[filled] = rows.text_T[words.first[ring]][filled]
        return _unturned(picked, ring), _unturned(leader_W, ring) if self.settings.unit == "span" else None

    def _tile(self, row_W: np.ndarray, column_W: np.ndarray, keys_B: np.ndarray) -> np.ndarray:
        """Tile every row with n-grams or spans whose lengths are drawn at their first word: where a tile starts."""
        count = len(row_W)
        row_end = np.searchsorted(row_W, row_W, side="right")
        drawn = order.uniform(order.draw(keys_B[row_W] ^ np.uint64(_LENGTH), column_W))
        lengths = np.searchsorted(np.cumsum(self._length_weights()), drawn, side="right") + 1
        jumps = np.append(np.minimum(np.arange(count) + lengths, row_end), count)
        # Which words are reached from their row's first one: jumps of 1, 2, 4, ... tiles at once.
        reached = np.append(_opens(row_W), False)
        for _ in range(count.bit_length()):
            more = reached.copy()
            more[jumps[reached]] = True
            if (more == reached).all():
                break
            reached, jumps = more, jumps[jumps]
        return reached[:-1]

    def _length_weights(self) -> np.ndarray:
        if self.settings.unit == "ngram":
            weights = 1.0 / np.arange(1, self.settings.max_ngram + 1)
        else:
            stop = self.settings.span_stop_prob
            weights = stop * (1 - stop) ** np.arange(self.settings.max_span)
        return (weights / weights.sum())[:-1]

    def _show(self, rows: BatchRows, keys_B: np.ndarray, chosen: np.ndarray, leader: np.ndarray | None) -> Masked:
        """80/10/10: the mask token, a random token, or the true one."""
        width = rows.ids_BS.shape[1]
        ids = rows.ids_BS.reshape(-1).copy()
        labels = ids[chosen]
        row, column = np.divmod(chosen, width)
        keys = keys_B[row] ^ np.uint64(_SHOW)
        bits = order.draw(keys, column)
        # The lower half of the bits decides what is shown, the upper half which random token. Tokens of one span take
        # the decision of its first token, so that a span is masked, replaced or kept as a whole.
        show = (bits if leader is None else order.draw(keys, leader % width)) & _LOWER_HALF
        random_from = np.uint64(int(self.settings.mask_share * 2.0**32))
        random_to = np.uint64(int((self.settings.mask_share + self.settings.random_share) * 2.0**32))
        shown = np.where(show < random_from, self._mask_id, labels)
        is_random = np.flatnonzero((show >= random_from) & (show < random_to))
        shown[is_random] = self._allowed[order.below(bits[is_random], len(self._allowed))]
        ids[chosen] = shown
        return Masked(ids.reshape(rows.ids_BS.shape), chosen, labels)


def _budgets(keys_B: np.ndarray, tokens_B: np.ndarray, rate: float) -> np.ndarray:
    """How many tokens of each row are predicted: rate * tokens, rounded up as often as its fraction says."""
    return np.floor(rate * tokens_B + order.uniform(keys_B)).astype(np.int64)


class _Units:
    """Text tokens in units that are masked as a whole. `first`: index of a unit's first token among the T."""

    def __init__(self, starts_T: np.ndarray, row_T: np.ndarray, column_T: np.ndarray, keys_B: np.ndarray) -> None:
        self.unit_T = np.cumsum(starts_T) - 1
        self.first = np.flatnonzero(starts_T)
        self.row, self.column = row_T[self.first], column_T[self.first]
        self.num_units = len(self.first)
        self.lengths = np.diff(np.append(self.first, len(row_T)))
        self.ranks = order.draw(keys_B[self.row] ^ np.uint64(_PICK), self.column)


def _num_in_part(starts_T: np.ndarray, chosen_T: np.ndarray) -> int:
    """Words some of whose tokens are chosen and some not."""
    word_T = np.cumsum(starts_T) - 1
    num_chosen, lengths = np.bincount(word_T, chosen_T), np.bincount(word_T)
    return int(((num_chosen > 0) & (num_chosen < lengths)).sum())


def _turned(units: _Units, keys_B: np.ndarray) -> np.ndarray:
    """Every row's units as a ring that is opened at a drawn one: indices of units, row by row."""
    first = np.searchsorted(units.row, units.row)
    count = np.searchsorted(units.row, units.row, side="right") - first
    shift = order.below(order.draw(keys_B[units.row] ^ np.uint64(_TURN), np.zeros_like(first)), count)
    return first + (np.arange(len(first)) - first + shift) % count


def _unturned(values: np.ndarray, ring: np.ndarray) -> np.ndarray:
    back = np.empty_like(values)
    back[ring] = values
    return back


def _by_rank(row_U: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Units row by row, each row's in the order of their ranks."""
    # The row in the upper bits, the rank in the lower ones: one sort orders all rows of the batch at once.
    return np.argsort((row_U.astype(np.uint64) << _ROW_SHIFT) | (ranks >> _RANK_SHIFT), kind="stable")


def _opens(row_U: np.ndarray) -> np.ndarray:
    """Where a new row begins."""
    return np.append(True, row_U[1:] != row_U[:-1]) if len(row_U) else np.zeros(0, bool)


def _sums(row_U: np.ndarray, lengths: np.ndarray, num_rows: int) -> np.ndarray:
    return np.bincount(row_U, lengths, minlength=num_rows).astype(np.int64)


def _totals_before(row_U: np.ndarray, ranks: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """For each unit the tokens of those of its row that come before it by rank."""
    order_U = _by_rank(row_U, ranks)
    row, length = row_U[order_U], lengths[order_U]
    before, opens = np.cumsum(length) - length, _opens(row)
    totals = np.empty(len(row_U), np.int64)
    # A running sum over all rows, less what it was where the unit's own row begins.
    totals[order_U] = before - before[opens][np.cumsum(opens) - 1]
    return totals


def _fill_budgets(row_U: np.ndarray, ranks: np.ndarray, lengths: np.ndarray, budget_B: np.ndarray) -> np.ndarray:
    """Units in the order of their ranks, each taken if it still fits, as BERT does; all rows at once.

    A round takes what fits in sequence and drops what no longer fits at all: what is left over fits never, so the
    outcome is that of going through them one by one.
    """
    picked = np.zeros(len(row_U), bool)
    left_B = budget_B.copy()
    waiting = _by_rank(row_U, ranks)
    waiting = waiting[lengths[waiting] <= left_B[row_U[waiting]]]
    while len(waiting):
        row, length = row_U[waiting], lengths[waiting]
        total, opens = np.cumsum(length), _opens(row)
        before = (total - length)[opens][np.cumsum(opens) - 1]
        fits = total - before <= left_B[row]
        picked[waiting[fits]] = True
        left_B -= _sums(row[fits], length[fits], len(left_B))
        waiting = waiting[~fits]
        waiting = waiting[lengths[waiting] <= left_B[row_U[waiting]]]
    return picked
