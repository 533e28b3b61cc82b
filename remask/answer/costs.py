"""What a batch costs here, measured at start, and which rows go together so that all of them cost least.

In: a function that runs so many rows of such a length. Out: `Costs`: seconds of a batch from its number of tokens (the
matrix products), its padded squares (attention), and what every batch costs, however small. Rows of like length waste
little on padding, but many batches pay for themselves each time: where the balance lies differs between models and
machines. Not here: running anything (runner), what waits (serve.queue).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

SHAPES = ((1, 8), (1, 64), (4, 16), (16, 8), (2, 128), (8, 32), (1, 256), (1, 512))  # rows, their length
_LEAST_BATCH = 8  # tokens: no batch is for nothing, whatever a disturbed measurement says
_LONG_ENOUGH_S = 0.6  # no shape larger than one that takes this long is tried: a server should start soon


@dataclass(frozen=True)
class Costs:
    """Seconds: of any batch, of every token in it, and of every pair of positions of a padded row."""

    batch: float
    token: float
    pair: float

    def seconds(self, lengths: Sequence[int]) -> float:
        """Of one batch with rows of these lengths."""
        return self.batch + self.token * sum(lengths) + self.pair * len(lengths) * max(lengths) ** 2

    def groups(self, lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
        """Numbers of the rows of each batch, longest first, such that all batches together cost least; none has more
        padded tokens than `batch_tokens`, but for a row that has so many alone."""
        order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
        sizes = np.asarray(lengths, np.float64)[order]
        before = np.concatenate([[0.0], np.cumsum(sizes)])
        number = len(sizes)
        cheapest = np.zeros(number + 1)  # of the first rows, by how many they are
        first_of = np.zeros(number + 1, np.int64)  # where their last batch begins
        for end in range(1, number + 1):
            starts = np.arange(end)
            rows, longest = end - starts, sizes[starts]
            cost = self.batch + self.token * (before[end] - before[starts]) + self.pair * rows * longest**2
            cost = np.where((rows * longest <= batch_tokens) | (rows == 1), cheapest[starts] + cost, np.inf)
            first_of[end] = int(cost.argmin())
            cheapest[end] = cost[first_of[end]]
        cuts = [number]
        while cuts[-1] > 0:
            cuts.append(int(first_of[cuts[-1]]))
        for end, start in zip(cuts[-2::-1], cuts[:0:-1], strict=True):
            yield order[start:end].tolist()


def measured(run: Callable[[int, int], float], max_length: int) -> Costs:
    """`run(rows, length)`: seconds that such a batch took. Each shape's first pass prepares kernels and memory."""
    shapes, seconds = [], []
    for rows, length in SHAPES:
        if length > max_length:
            continue
        run(rows, length)
        shapes.append((rows, length))
        seconds.append(min(run(rows, length), run(rows, length)))
        if seconds[-1] > _LONG_ENOUGH_S:
            break
    return fitted(shapes, seconds)


def fitted(shapes: Sequence[tuple[int, int]], seconds: Sequence[float]) -> Costs:
    """The three prices that explain what was measured best, none below zero; errors count by their share."""
    times = np.asarray(seconds)
    columns = np.array([[1.0, rows * length, rows * length**2] for rows, length in shapes]) / times[:, None]
    used = [0, 1, 2]
    while True:
        prices = np.linalg.lstsq(columns[:, used], np.ones(len(times)), rcond=None)[0]
        if prices.min() >= 0 or len(used) == 1:
            break
        used.pop(int(prices.argmin()))
    found = np.zeros(3)
    found[used] = np.maximum(prices, 0.0)
    batch, token, pair = (float(price) for price in found)
    return Costs(max(batch, _LEAST_BATCH * token), token, pair)
