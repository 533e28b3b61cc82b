"""A network that only answers, with the encoder's matrix products in 8-bit integers, for CPUs with VNNI.

In: a network in fp32, and the ranges of what goes into its products, seen on real text (`watch`). Out: the same network
whose four kinds of matrices are int8 (a scale for every output) and whose products take unsigned 8-bit inputs. Ranges
are fixed in advance, so an answer does not depend on what else is in its batch. Attention, norms, sums and heads stay
as they are. Not here: whether the answers are still good enough (answer.int8).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from remask.model.encoder import ACTIVATIONS, Ffn
from remask.model.network import Network

# Shapes: T tokens laid end to end, K inputs and N outputs of a product.

_SAMPLE = 256  # tokens kept of every product's input, to choose how much of its range is worth clipping
_CLIPS = tuple(1.0 - 0.04 * step for step in range(16))  # shares of the range that are tried
_LEVELS = 255
_TINY = 1e-6
_LARGEST = 16  # at most so many columns of what GELU gives are multiplied apart,
_FAR = 1.5  # if they reach so many times as far as the next one


@dataclass
class Seen:
    """What went into one product: the range of every input, and some tokens as they were."""

    low_K: torch.Tensor
    high_K: torch.Tensor
    sample_TK: torch.Tensor

    def add(self, x_TK: torch.Tensor) -> None:
        low_K, high_K = x_TK.aminmax(dim=0)
        self.low_K, self.high_K = torch.minimum(self.low_K, low_K), torch.maximum(self.high_K, high_K)
        if (room := _SAMPLE - len(self.sample_TK)) > 0:
            every = max(1, len(x_TK) // 32)  # a few tokens of every batch, so that all of them are in it
            self.sample_TK = torch.cat([self.sample_TK, x_TK[::every][:room]])


@dataclass
class Ranges:
    """What was seen, by product."""

    of: dict[nn.Linear, Seen] = field(default_factory=dict)

    def see(self, linear: nn.Linear, x_TK: torch.Tensor) -> None:
        x_TK = x_TK.detach().flatten(0, -2).float()
        if linear not in self.of:
            low_K, high_K = x_TK.aminmax(dim=0)
            self.of[linear] = Seen(low_K, high_K, x_TK[:0])
        self.of[linear].add(x_TK)


def products(network: Network, keep: Sequence[str] = ()) -> list[tuple[nn.Module, str, nn.Linear]]:
    """The products that become int8, each with the module that holds it and its name there. `keep`: names that stay.
    An attention's output matrix that a pooler borrows sees other inputs there, and stays too."""
    borrowed = network.heads.pooler is not None and network.heads.pooler.dense is None
    last = network.encoder.attentions[-1]
    found = []
    for module in (*network.encoder.attentions, *network.encoder.ffns):
        for name, child in module.named_children():
            is_borrowed = borrowed and module is last and name == "output"
            if isinstance(child, nn.Linear) and name not in keep and not is_borrowed:
                found.append((module, name, child))
    return found


@contextlib.contextmanager
def watch(network: Network) -> Iterator[Ranges]:
    """Inside, everything that goes into the network's products is taken into the ranges."""
    ranges = Ranges()
    hooks = [
        linear.register_forward_pre_hook(lambda module, args: ranges.see(module, args[0]))
        for _, _, linear in products(network)
    ]
    try:
        yield ranges
    finally:
        for hook in hooks:
            hook.remove()


def quantise(network: Network, ranges: Ranges, dtype: torch.dtype, keep: Sequence[str] = ()) -> Network:
    """The network itself, changed for good. `dtype`: what attention computes in."""
    first: dict[nn.Module, nn.Linear] = {}
    for module, name, linear in products(network, keep):
        form = ByLargest if name == "down" else ByColumn
        setattr(module, name, form(linear, ranges.of[linear], dtype if name == "qkv" else torch.float32))
        if name == "up":
            first[module] = linear
        elif name == "down" and module in first:
            assert isinstance(module, Ffn)
            if module.settings.ffn == "plain":
                module.both = _Chain(module, first[module])
    return network


class _Chain:
    """A plain FFN: its first product ends in GELU and writes the 8-bit input of the second."""

    def __init__(self, ffn: Ffn, up: nn.Linear) -> None:
        assert isinstance(ffn.up, ByColumn)
        assert isinstance(ffn.down, ByLargest)
        self._up, self._down, self._form = ffn.up, ffn.down, ACTIVATIONS[ffn.settings.activation]
        weight_FD, bias_F = _weights(up)
        self._weight_DC, self._bias_C = weight_FD[ffn.down.largest_C].T.contiguous(), bias_F[ffn.down.largest_C]

    def __call__(self, x_TD: torch.Tensor) -> torch.Tensor:
        y_TD = self._down.product(self._up.product(self._up.rounded(x_TD), self._down, self._form))
        if len(self._bias_C):
            # Products in place stay fp32 under autocast, which is what this is for.
            x_TC = self._bias_C.repeat(len(x_TD), 1).addmm_(x_TD.float(), self._weight_DC)
            self._down.add_largest(y_TD, F.gelu(x_TC, approximate=self._form))
        return y_TD


class Int8Linear(nn.Module):
    """y = x W' + b with 8-bit x and W: one scale for all of x, one for every output of W."""

    def __init__(
        self, weight_NK: torch.Tensor, bias_N: torch.Tensor, sample_TK: torch.Tensor, low: float, high: float,
        out: torch.dtype,
    ) -> None:  # fmt: skip
        super().__init__()
        self.out, self.bias_N = out, bias_N
        self.scale, self.zero_point = _steps(sample_TK, low, high, weight_NK.norm(dim=0))
        self.scale_N = (weight_NK.abs().amax(1) / 127).clamp_(min=_TINY / 127)
        self._zeros_N = torch.zeros(len(bias_N), dtype=torch.int64)
        rounded_NK = (weight_NK / self.scale_N[:, None]).round_().clamp_(-127, 127).to(torch.int8)
        self._packed = torch.ops.onednn.qlinear_prepack(rounded_NK, None)

    def product(self, rounded: torch.Tensor, following: Int8Linear | None = None, form: str = "") -> torch.Tensor:
        """Of an input in steps. `following`: its GELU of this form, in the steps that the following product takes."""
        scale, zero_point, out, activation = 1.0, 0, self.out, "none"
        if following is not None:
            scale, zero_point, out, activation = following.scale, following.zero_point, torch.uint8, "gelu"
        return torch.ops.onednn.qlinear_pointwise(
            rounded, self.scale, self.zero_point, self._packed, self.scale_N, self._zeros_N, self.bias_N,
            scale, zero_point, out, activation, [], form,
        )  # fmt: skip


class ByColumn(Int8Linear):
    """Before it is rounded, every column of x is moved to where most tokens are and divided by its share of the
    difficulty, which W and b take over: few columns of a Transformer's states are far larger than the rest, and one
    scale for all would leave those few bits (arXiv 2211.10438, 2304.09145)."""

    def __init__(self, linear: nn.Linear, seen: Seen, out: torch.dtype) -> None:
        weight_NK, bias_N = _weights(linear)
        middle_K = seen.sample_TK.median(dim=0).values
        reach_K = torch.maximum(seen.high_K - middle_K, middle_K - seen.low_K).clamp_(min=_TINY)
        share_K = (reach_K / weight_NK.abs().amax(0).clamp_(min=_TINY)).sqrt_()
        sample_TK, low_K, high_K = ((x - middle_K) / share_K for x in (seen.sample_TK, seen.low_K, seen.high_K))
        low, high = float(low_K.min()), float(high_K.max())
        super().__init__(weight_NK * share_K, bias_N + weight_NK @ middle_K, sample_TK, low, high, out)
        # x * factor + offset counts steps from -128 on: signed, since torch turns fp32 into those faster.
        self._factor_K = 1 / (share_K * self.scale)
        self._offset_K = self.zero_point - 128 - middle_K * self._factor_K

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(self.rounded(x))

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        """x in unsigned 8-bit steps."""
        return _unsigned(torch.addcmul(self._offset_K, x.float(), self._factor_K))


class ByLargest(Int8Linear):
    """Behind GELU one or two columns are up to thirty times larger than all others, and only for some tokens. Those
    columns (`largest_C`, maybe none) are multiplied in fp32, so that the range of the others is a narrow one."""

    def __init__(self, linear: nn.Linear, seen: Seen, out: torch.dtype) -> None:
        weight_NK, bias_N = _weights(linear)
        reach_K = torch.maximum(seen.high_K, -seen.low_K)
        order_K = reach_K.argsort(descending=True)
        usual = reach_K[order_K[min(_LARGEST, len(order_K) - 1)]]
        number = int((reach_K[order_K[:_LARGEST]] > _FAR * usual).sum())
        largest_C, rest = order_K[:number], order_K[number:]
        others_NK = weight_NK.index_fill(1, largest_C, 0.0)
        low, high = float(seen.low_K[rest].min()), float(seen.high_K[rest].max())
        super().__init__(others_NK, bias_N, seen.sample_TK, low, high, out)
        self.largest_C, self._weight_CN = largest_C, weight_NK[:, largest_C].T.contiguous()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        y = self.product(_unsigned((x / self.scale).add_(self.zero_point - 128)))
        return self.add_largest(y, x[..., self.largest_C]) if len(self.largest_C) else y

    def add_largest(self, y: torch.Tensor, x_TC: torch.Tensor) -> torch.Tensor:
        return y.addmm_(x_TC, self._weight_CN)


def _unsigned(steps: torch.Tensor) -> torch.Tensor:
    """Steps from -128 on, rounded, as the unsigned bytes that products take; changes its input."""
    return steps.round_().clamp_(-128, 127).to(torch.int8).view(torch.uint8).bitwise_xor_(128)


def _weights(linear: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """weight_NK and bias_N in fp32."""
    weight_NK = linear.weight.detach().float()
    return weight_NK, weight_NK.new_zeros(len(weight_NK)) if linear.bias is None else linear.bias.detach().float()


def _steps(sample_TK: torch.Tensor, low: float, high: float, weight_K: torch.Tensor) -> tuple[float, int]:
    """The scale and zero point for values of this range: all of it, or so much less that the sample is rounded best.
    `weight_K`: how much an error in a column counts."""
    low, high = min(low, 0.0), max(high, _TINY)
    best: tuple[float, float, int] | None = None
    for clip in _CLIPS:
        scale = (high - low) * clip / _LEVELS
        zero_point = min(_LEVELS, max(0, round(-low * clip / scale)))
        steps = (sample_TK / scale + zero_point).round_().clamp_(0, _LEVELS)
        error = float((((steps - zero_point) * scale - sample_TK) * weight_K).square().mean())
        if best is None or error < best[0]:
            best = error, scale, zero_point
    assert best is not None
    return best[1], best[2]
