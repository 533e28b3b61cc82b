"""Attention over tokens laid end to end: no padding, no S x S mask, by the flash kernel where the device has it.

In: queries, keys and values of all tokens of a batch, and the `Runs` that may see each other (a row's tokens, or a
document's in a packed row; padding that only fills up a size is a run of its own, which nobody sees). Out: one vector
per head and token. On CUDA in bf16 and fp16 it is torch's variable-length flash kernel, dropout inside it; elsewhere
every run goes through torch's fused attention, which is slower than padded rows and there to be compared with.
The kernel's dropout is a function of (seed, step, first example of the micro-batch, layer): a resumed run repeats it at
the same micro-batches and ranks, but unlike the explicit form's it changes with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F

from remask.model.noise import Noise
from remask.model.shapes import to_device

# Shapes: T tokens laid end to end, N heads, K width of a head, U runs.


@dataclass(frozen=True)
class Runs:
    """Tokens that may see each other stand together: the first U run from ends[u] to ends[u + 1]."""

    sizes: Sequence[int]
    ends_U: torch.Tensor  # U + 1, from 0 on

    @property
    def longest(self) -> int:
        return max(self.sizes)

    @classmethod
    def of(
        cls, lengths: Sequence[int], computed: Sequence[int], document_ids_BS: np.ndarray | None, device: torch.device
    ) -> Runs:
        """`lengths`: real tokens of every row; `computed`: those and the padding that goes along."""
        sizes: list[int] = []
        for row, (length, size) in enumerate(zip(lengths, computed, strict=True)):
            cuts = [0, length]
            if document_ids_BS is not None:
                changes = np.flatnonzero(np.diff(document_ids_BS[row, :length])) + 1
                cuts = [0, *changes.tolist(), length]
            sizes += [end - start for start, end in pairwise(cuts)]
            if size > length:
                sizes.append(size - length)
        ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        return cls(sizes, to_device(ends, device))


def has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the flash kernel is made for this."""
    return device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)


def attend_runs(
    qkv_3NTK: torch.Tensor,
    runs: Runs,
    window: int | None,
    causal: bool,
    noise: Noise | None,
    dropout: float,
    layer: int,
) -> torch.Tensor:
    """attended_TNK. `noise` None: no dropout; with it only where `has_kernel`."""
    q, k, v = (x.transpose(0, 1) for x in qkv_3NTK)
    reach = -1 if window is None else window
    if not has_kernel(q.device, q.dtype):
        assert noise is None or dropout == 0.0, "dropout in the kernel is CUDA's"
        return _one_by_one(q, k, v, runs, window, causal)
    prob = 0.0
    if noise is not None and dropout > 0.0:
        prob = dropout
        noise.seed_kernel(layer)
    longest = runs.longest
    return torch.ops.aten._flash_attention_forward(
        q.contiguous(), k.contiguous(), v.contiguous(), runs.ends_U, runs.ends_U, longest, longest, prob, False, False,
        window_size_left=reach, window_size_right=0 if causal else reach,
    )[0]  # fmt: skip


def _one_by_one(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, runs: Runs, window: int | None, causal: bool
) -> torch.Tensor:
    """The same run by run."""
    found = []
    pieces = zip(*(x.transpose(0, 1).split(list(runs.sizes), dim=1) for x in (q, k, v)), strict=True)
    for (queries, keys, values), size in zip(pieces, runs.sizes, strict=True):
        distance = torch.arange(size, device=q.device)[:, None] - torch.arange(size, device=q.device)
        seen = torch.ones(size, size, dtype=torch.bool, device=q.device)
        if window is not None:
            seen &= distance.abs() <= window
        if causal:
            seen &= distance >= 0
        found.append(F.scaled_dot_product_attention(queries[None], keys[None], values[None], attn_mask=seen)[0])
    return torch.cat(found, dim=1).transpose(0, 1)
