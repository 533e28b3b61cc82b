"""Few sizes instead of any: what a tensor's first dimension is rounded up to when it changes with every batch; and the
way of such indices to the device.

Kernels are prepared anew for every shape, the library keeps what it prepared, and buffers of ever new sizes break the
memory into pieces. Measured on the CPU in bf16: EXPERIMENTS.md, "Few shapes".
"""

from __future__ import annotations

import numpy as np
import torch

_SIZES_OF_AN_OCTAVE = 16  # so at most 1/16 more than is needed, half of that on average


def round_size(size: int) -> int:
    """The next of the allowed sizes."""
    step = max(1, 2 ** (size - 1).bit_length() // (2 * _SIZES_OF_AN_OCTAVE))
    return -(-size // step) * step


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A tensor there, without waiting: from pinned memory a GPU copies while the host goes on."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
