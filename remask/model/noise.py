"""Randomness in training as a pure function of (seed, step, example id, layer, site): dropout without any state.

In: the keys of a batch's rows. Out: which values to keep, one stream of bits per row, so that noise does not depend on
padding, micro-batches or ranks, a resumed run repeats it, and a recomputed layer sees the same.
A value is dropped when 16 random bits are below round(prob x 65,536): the realised chance is within 8e-6 of `prob`,
and what is kept is scaled by exactly the realised one. On the CPU the bits are SFC64's (measured here: 0.65 ms per
1.6M values; Philox 1.4 ms, torch's bernoulli_ 9 ms); elsewhere a hash of (row key, index) makes another stream.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from typing import Any

import numpy as np
import torch

from remask.model.shapes import to_device
from remask.schema import Array

# Shapes: B rows, T real tokens of all rows, S positions, N heads, W columns of a band, D width.

_LEVELS = 65_536
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # bytes of a value -> integers as wide
_WORTH_A_THREAD = 1 << 19  # decisions; fewer take less time than handing them over
_GOLDEN = 0x9E3779B97F4A7C15  # the step of splitmix64, whose finaliser mixes our keys
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class Site(IntEnum):
    """Where in a layer (or head) the noise is used. Values are part of the stream: never renumber."""

    EMBEDDING = 0
    PROBABILITIES = 1
    ATTENTION = 2
    FFN = 3
    HIDDEN_TOKENS = 4
    HEAD_INPUT = 5
    HEAD_OUTPUT = 6
    LORA_QUERY = 7  # the whole of a fused query-key-value matrix, too
    LORA_KEY = 8
    LORA_VALUE = 9
    LORA_OUTPUT = 10
    LORA_UP = 11
    LORA_DOWN = 12
    CROSS = 13
    CROSS_PROBABILITIES = 14


class Noise:
    """The noise of one batch in one step."""

    def __init__(self, seed: int, step: int, example_ids: Array) -> None:
        if isinstance(example_ids, torch.Tensor):
            example_ids = example_ids.cpu().numpy()
        ids_B = np.asarray(example_ids, dtype=np.int64).view(np.uint64)
        self._keys_B = _mix(_mix(_mix(_word(seed)) + _word(step)) + ids_B)

    def apart(self) -> Noise:
        """Other noise for the same rows: a decoder that shares the encoder's layers must not repeat its noise."""
        other = copy.copy(self)
        other._keys_B = _mix(self._keys_B + _word(-1))
        return other

    def dropped(self, layer: int, site: Site, prob: float, counts: Sequence[int], device: torch.device) -> torch.Tensor:
        """The first counts[b] decisions of every row b, end to end, as int8: 1 drop, 0 keep."""
        assert len(counts) == len(self._keys_B), "noise of another batch"
        threshold = _threshold(prob)
        keys_B = _mix(self._keys_B + _word(1 + layer * 16 + site))
        if device.type == "cpu":
            return torch.from_numpy(_drawn(keys_B, threshold, counts).view(np.int8))
        return _dropped_hashed(keys_B, threshold, counts, device)

    def kernel_seed(self, layer: int) -> int:
        """For a kernel that draws by itself: of seed, step, the batch's first example and the layer."""
        return int(_mix(self._keys_B[:1] + _word(1 + layer * 16 + Site.PROBABILITIES))[0] >> np.uint64(1))

    def seed_kernel(self, layer: int) -> None:
        torch.cuda.manual_seed(self.kernel_seed(layer))  # the host's state only: nobody waits

    def drop(self, x_TD: torch.Tensor, prob: float, layer: int, site: Site, lengths: Sequence[int]) -> torch.Tensor:
        """Dropout on rows of lengths[b] tokens each, which stand one after the other."""
        if prob == 0.0:
            return x_TD
        counts = [length * x_TD.shape[1] for length in lengths]
        dropped_TD = self.dropped(layer, site, prob, counts, x_TD.device).view_as(x_TD)
        return dropped_out(x_TD, dropped_TD.sub_(1), prob)

    def dropped_pairs(
        self, layer: int, prob: float, targets: Sequence[int], sources: Sequence[int], num_heads: int,
        size: tuple[int, int], device: torch.device,
    ) -> torch.Tensor:  # fmt: skip
        """Probabilities to drop where targets[b] tokens look at sources[b] others: dropped_BNLS, padded to `size`."""
        counts = [num_heads * target * source for target, source in zip(targets, sources, strict=True)]
        flat = self.dropped(layer, Site.CROSS_PROBABILITIES, prob, counts, device)
        dropped_BNLS = flat.new_zeros((len(counts), num_heads, *size))
        for row, part in enumerate(flat.split(counts)):
            dropped_BNLS[row, :, : targets[row], : sources[row]] = part.view(num_heads, targets[row], sources[row])
        return dropped_BNLS

    def dropped_square(
        self,
        layer: int,
        prob: float,
        lengths: Sequence[int],
        num_heads: int,
        width: int | None,
        size: int,
        device: torch.device,
    ) -> torch.Tensor:
        """Attention probabilities to drop, dropped_BNSS, or dropped_BNSW for a band of `width` columns.

        A row draws only for its real tokens, so that padding does not shift its stream."""
        columns = [width or length for length in lengths]
        counts = [num_heads * length * column for length, column in zip(lengths, columns, strict=True)]
        flat = self.dropped(layer, Site.PROBABILITIES, prob, counts, device)
        if all(length == size for length in lengths):
            return flat.view(len(lengths), num_heads, size, width or size)
        dropped_BNSW = flat.new_zeros((len(lengths), num_heads, size, width or size))
        parts = flat.split(counts)
        for target, part, length, column in zip(dropped_BNSW, parts, lengths, columns, strict=True):
            target[:, :length, :column] = part.view(num_heads, length, column)
        return dropped_BNSW


def keep_scale(prob: float) -> float:
    """What kept values are multiplied with, so that the expectation stays."""
    return _LEVELS / (_LEVELS - _threshold(prob))


def dropped_out(x: torch.Tensor, kept: torch.Tensor, prob: float) -> torch.Tensor:
    """x scaled where kept is -1, 0 where it is 0."""
    if torch.compiler.is_compiling():
        return torch.where(kept == 0, 0.0, x) * keep_scale(prob)
    return _Drop.apply(x, kept, keep_scale(prob))


def masked(x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """x where kept is -1, 0 where it is 0: its bits and the mask's, many times faster than masked_fill on CPUs."""
    kind = _INTEGERS[x.element_size()]
    return (x.view(kind) & kept.to(kind)).view(x.dtype)


def marked(values: torch.Tensor, dropped: torch.Tensor) -> torch.Tensor:
    """Values that are not negative, with the sign bit as the mark of a dropped one: mask and value in one tensor.

    What is kept is then relu(marked), the values are abs(marked), and the gradient of what is kept is relu's."""
    kind = _INTEGERS[values.element_size()]
    signs = dropped.to(kind).bitwise_left_shift_(8 * values.element_size() - 1)
    return signs.bitwise_or_(values.view(kind)).view(values.dtype)


class _Drop(torch.autograd.Function):
    """Zero where dropped, scaled elsewhere; saves a byte a value."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kept: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return masked(x, kept).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (kept,) = ctx.saved_tensors
        return masked(grads[0], kept).mul_(ctx.scale), None, None


def _threshold(prob: float) -> int:
    return min(round(prob * _LEVELS), _LEVELS - 1)


def _word(value: int) -> np.ndarray:
    """A Python integer spread over 64 bits (an array of one: numpy wraps arrays silently, scalars with a warning)."""
    return np.array([(value * _GOLDEN) & (2**64 - 1)], dtype=np.uint64)


def _mix(words: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_MIX_1)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_MIX_2)
    return words ^ (words >> np.uint64(31))


def _drawn(keys_B: np.ndarray, threshold: int, counts: Sequence[int]) -> np.ndarray:
    """dropped, bool: rows are independent streams, so any number of threads draws the same."""
    dropped = np.empty(sum(counts), dtype=bool)
    words_B3 = np.stack([_mix(keys_B + _word(i)) for i in (1, 2, 3)], axis=1)
    ends = np.cumsum(counts)
    num_threads = min(torch.get_num_threads(), len(dropped) // _WORTH_A_THREAD + 1)

    def draw(rows: range) -> None:
        bits = np.random.SFC64(0)  # its state is set anew for every row
        state = bits.state
        for row in rows:
            state["state"]["state"][:3] = words_B3[row]
            state["state"]["state"][3] = 1
            bits.state = state
            count = counts[row]
            drawn = bits.random_raw((count + 3) // 4).view(np.uint16)
            np.less(drawn[:count], threshold, out=dropped[ends[row] - count : ends[row]])

    parts = [range(start, len(counts), num_threads) for start in range(num_threads)]
    if num_threads == 1:
        draw(parts[0])
    else:
        list(_threads(num_threads).map(draw, parts))
    return dropped


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    """numpy draws and compares without Python's lock."""
    return ThreadPoolExecutor(count, thread_name_prefix="noise")


def _dropped_hashed(keys_B: np.ndarray, threshold: int, counts: Sequence[int], device: torch.device) -> torch.Tensor:
    dropped_BC = (_hashed(keys_B, max(counts), device) < threshold).to(torch.int8)
    return torch.cat([row[:count] for row, count in zip(dropped_BC, counts, strict=True)])


def _hashed(keys_B: np.ndarray, count: int, device: torch.device) -> torch.Tensor:
    """`count` values of 0..65,535 a row by hashing (key, index), with integer operations that every device has."""
    keys_B1 = to_device(keys_B.view(np.int64), device)[:, None]
    z = torch.arange(1, (count + 3) // 4 + 1, dtype=torch.int64, device=device) * _signed(_GOLDEN) + keys_B1
    z = (z ^ _shifted(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shifted(z, 27)) * _signed(_MIX_2)
    z = z ^ _shifted(z, 31)
    return z.view(torch.int16)[:, :count].to(torch.int32) & 0xFFFF


def _shifted(z: torch.Tensor, bits: int) -> torch.Tensor:
    """A shift that brings in zeros; torch's own repeats the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word
