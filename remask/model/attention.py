"""Who sees whom, and the weighted sum over what is seen.

In: queries, keys and values of padded rows, and a `Sight` that says which keys are hidden (padding, other documents,
outside the window, to the right, hidden at random). Out: one vector per head and token. The kernels give the same
result: explicit batched products in one autograd function that saves only the probabilities (on CPUs several times
faster than the library's in the backward pass), or torch's fused one (on GPUs, and on CPUs where nothing learns and it
is the faster one). Windows are computed in blocks, linear in the length. Not here: weights (encoder) and the making of
noise (noise).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from remask.errors import ConfigError
from remask.model.noise import Noise, Site, keep_scale, marked
from remask.model.shapes import to_device

# Shapes: B rows, S positions, N heads, K width of a head, W columns of a band (2 x window + 1).
# Q queries and L keys of a block, X blocks of a row (1 x S x S without blocks).

_BLOCK = 64  # smallest block of local attention; a block sees itself and its two neighbours
LONG = 1024  # from here on the products' S x S probabilities cost more than the library's slower backward pass
_TURNED = 1 << 18  # numbers that rotary positions turn at a time: their copies in fp32 stay in the cache
FEW = 64  # tokens up to which one call is faster than several, whatever it computes


@dataclass
class Sight:
    """What the tokens of a batch may see. Masks are made once per window and kept for the layers that follow."""

    lengths: Sequence[int]
    num_positions: int
    device: torch.device
    causal: bool = False
    document_ids_BS: torch.Tensor | None = None
    hidden_tokens_BS: torch.Tensor | None = None
    _biases: dict[tuple[int | None, torch.dtype], torch.Tensor | None] = field(default_factory=dict)
    _behind: dict[int, Sight] = field(default_factory=dict)

    def behind(self, prefix_length: int) -> Sight:
        """The same rows behind a prefix that every token sees."""
        if self.document_ids_BS is not None:
            raise ConfigError(f"model.prefix_length = {prefix_length}: rows with several documents have no prefix")
        if prefix_length not in self._behind:
            hidden_BS = self.hidden_tokens_BS
            self._behind[prefix_length] = replace(
                self,
                lengths=[length + prefix_length for length in self.lengths],
                num_positions=self.num_positions + prefix_length,
                hidden_tokens_BS=None if hidden_BS is None else F.pad(hidden_BS, (prefix_length, 0)),
                _biases={},
                _behind={},
            )
        return self._behind[prefix_length]

    @property
    def hides_padding_alone(self) -> bool:
        return not self.causal and self.document_ids_BS is None and self.hidden_tokens_BS is None

    def block(self, window: int | None) -> int | None:
        """The block size for a window; None: all keys at once, which is less work on short rows."""
        if window is None:
            return None
        size = -(-window // _BLOCK) * _BLOCK
        return size if self.num_positions > 3 * size else None

    def bias(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        """What is added to the scores, bias_BNXQL (1 where all are alike): very low where a query may not look.

        Half the least number, not -inf: still an exact 0 after the softmax, but a query that sees nothing (padding)
        does not become NaN. None: all may see all."""
        if (window, dtype) not in self._biases:
            hidden = self.hidden(window)
            if hidden is not None:
                zeros = torch.zeros(hidden.shape, dtype=dtype, device=self.device)
                hidden = zeros.masked_fill_(hidden, torch.finfo(dtype).min / 2)
            self._biases[window, dtype] = hidden
        return self._biases[window, dtype]

    def hidden(self, window: int | None) -> torch.Tensor | None:
        """hidden_BNXQL, True where a query may not look; None: all may see all."""
        query_XQ1, key_X1L = self.indices(self.block(window))
        outputs: list[torch.Tensor] = []
        if min(self.lengths) < self.num_positions or self.block(window) is not None:
            end_B111 = to_device(np.array(self.lengths), self.device)[:, None, None, None]
            outputs.append((key_X1L < 0) | (key_X1L >= end_B111))
        if self.document_ids_BS is not None:
            outputs.append(self._at(self.document_ids_BS, query_XQ1) != self._at(self.document_ids_BS, key_X1L))
        if self.hidden_tokens_BS is not None:
            outputs.append(self._at(self.hidden_tokens_BS, key_X1L) & (key_X1L != query_XQ1))
        if window is not None:
            outputs.append(((key_X1L - query_XQ1).abs() > window)[None])
        if self.causal:
            outputs.append((key_X1L > query_XQ1)[None])
        if not outputs:
            return None
        hidden_BXQL = outputs[0]
        for more in outputs[1:]:
            hidden_BXQL = hidden_BXQL | more
        return hidden_BXQL[:, None]

    def dropped(self, window: int | None, noise: Noise, dropout: float, layer: int, num_heads: int) -> torch.Tensor:
        """dropped_BNXQL. With a window the decisions belong to (query, distance), so blocks do not change them."""
        width = None if window is None else 2 * window + 1
        dropped_BNSW = noise.dropped_square(
            layer, dropout, self.lengths, num_heads, width, self.num_positions, self.device
        )
        if window is None:
            return dropped_BNSW[:, :, None]
        query_XQ1, key_X1L = self.indices(self.block(window))
        column_XQL = (key_X1L - query_XQ1 + window).clamp(0, 2 * window)
        return dropped_BNSW[:, :, query_XQ1.clamp(max=self.num_positions - 1), column_XQL]

    def indices(self, block: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions of the queries and keys of every block: query_XQ1, key_X1L. Keys before 0 do not exist."""
        if block is None:
            every = torch.arange(self.num_positions, device=self.device)
            return every[None, :, None], every[None, None, :]
        starts = torch.arange(0, self.num_positions, block, device=self.device)[:, None]
        queries = starts + torch.arange(block, device=self.device)
        keys = starts + torch.arange(-block, 2 * block, device=self.device)
        return queries[:, :, None], keys[:, None, :]

    def _at(self, values_BS: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """values at positions, for every row; positions outside are masked by their own rule."""
        return values_BS[:, index.clamp(0, self.num_positions - 1)]


def attend(
    qkv_3BNSK: torch.Tensor,
    sight: Sight,
    window: int | None,
    kernel: str,
    noise: Noise | None,
    dropout: float,
    layer: int,
) -> torch.Tensor:
    """attended_BNSK. `noise` None: no dropout."""
    block = sight.block(window)
    bias = sight.bias(window, qkv_3BNSK.dtype)
    dropped = None
    if noise is not None and dropout > 0.0:
        dropped = sight.dropped(window, noise, dropout, layer, qkv_3BNSK.shape[2])
    size = qkv_3BNSK.shape[3]
    if block is not None and size % block:
        qkv_3BNSK = F.pad(qkv_3BNSK, (0, 0, 0, block - size % block))
    if torch.compiler.is_compiling():
        attend_to = _library if dropped is None else partial(_explicit, dropped=dropped, scale=keep_scale(dropout))
        return attend_to(qkv_3BNSK, block, bias)[:, :, :size]
    if kernel in ("auto", "varlen"):  # padded rows where the latter cannot
        kernel = "products" if _by_products(qkv_3BNSK, block) else "sdpa"
    if kernel == "products" or dropped is not None:  # the library's dropout would draw from a global state
        with torch.autocast(qkv_3BNSK.device.type, enabled=False):  # one precision, forward and backward
            attended_BNSK = _Products.apply(qkv_3BNSK.contiguous(), block, bias, dropped, keep_scale(dropout))
    else:
        attended_BNSK = _library(qkv_3BNSK, block, bias)
    return attended_BNSK[:, :, :size]


def _by_products(qkv_3BNSK: torch.Tensor, block: int | None) -> bool:
    """Whether products are the faster kernel here. Without a backward pass the library's is in fp32, and in bf16 for
    one short row."""
    _, num_rows, _, size, _ = qkv_3BNSK.shape
    if qkv_3BNSK.device.type != "cpu" or (block or size) >= LONG:
        return False
    return torch.is_grad_enabled() or (qkv_3BNSK.dtype != torch.float32 and num_rows * size > FEW)


def _split(x_BNSK: torch.Tensor, block: int | None) -> torch.Tensor:
    """Queries by block: x_BNXQK."""
    return x_BNSK[:, :, None] if block is None else x_BNSK.unflatten(2, (-1, block))


def _neighbours(x_BNSK: torch.Tensor, block: int | None) -> torch.Tensor:
    """Keys or values that each block sees, zeros beyond the ends: x_BNXLK."""
    if block is None:
        return x_BNSK[:, :, None]
    return F.pad(x_BNSK, (0, 0, block, block)).unfold(2, 3 * block, block).transpose(-1, -2)


def _gather_neighbours(grad_BNXLK: torch.Tensor, block: int | None) -> torch.Tensor:
    """The gradient of _neighbours: every position was in up to three blocks."""
    if block is None:
        return grad_BNXLK[:, :, 0]
    first, middle, last = grad_BNXLK.split(block, dim=3)
    total = middle.clone()
    total[:, :, :-1] += first[:, :, 1:]
    total[:, :, 1:] += last[:, :, :-1]
    return total.flatten(2, 3)


def _library(qkv_3BNSK: torch.Tensor, block: int | None, bias: torch.Tensor | None) -> torch.Tensor:
    q, k, v = _operands(qkv_3BNSK, block)
    if bias is None:
        return F.scaled_dot_product_attention(q[:, :, 0], k[:, :, 0], v[:, :, 0])
    rows = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]  # blocks become rows
    bias = bias.expand(q.shape[0], -1, q.shape[2], -1, -1).transpose(1, 2).flatten(0, 1)
    attended = F.scaled_dot_product_attention(rows[0], rows[1], rows[2], attn_mask=bias)
    return attended.unflatten(0, (q.shape[0], q.shape[2])).transpose(1, 2).flatten(2, 3)


def _explicit(
    qkv_3BNSK: torch.Tensor, block: int | None, bias: torch.Tensor | None, dropped: torch.Tensor, scale: float
) -> torch.Tensor:
    """_Products as plain operations, for the compiler to join."""
    q, k, v = _operands(qkv_3BNSK, block)
    scores_BNXQL = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2))
    probs_BNXQL = torch.softmax(scores_BNXQL if bias is None else scores_BNXQL + bias, dim=-1)
    return torch.matmul(torch.where(dropped == 0, probs_BNXQL, 0.0), v).mul(scale).flatten(2, 3)


def probabilities(q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """softmax(Q K^T / sqrt(K) + bias). The factor is applied to the narrow operand, not to the S x S one."""
    scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2))
    if bias is not None:
        scores += bias
    return torch.softmax(scores, dim=-1)


def weighed(probs: torch.Tensor, v: torch.Tensor, scale: float | None) -> torch.Tensor:
    """P V. `scale`: of what is kept, where some probabilities are marked as dropped; None: all of them count."""
    if scale is None:
        return torch.matmul(probs, v)
    return torch.matmul(torch.relu(probs), v).mul_(scale)


def weighed_backward(
    grad: torch.Tensor, probs: torch.Tensor, v: torch.Tensor, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of `weighed` by its values and by the scores behind its probabilities."""
    if scale is None:
        grad_v = torch.matmul(probs.transpose(-1, -2), grad)
        grad_probs = torch.matmul(grad, v.transpose(-1, -2))
    else:
        grad = grad * scale
        grad_v = torch.matmul(torch.relu(probs).transpose(-1, -2), grad)
        # relu's gradient; it is also 0 where a kept probability is 0, which has none.
        grad_probs = torch.ops.aten.threshold_backward(torch.matmul(grad, v.transpose(-1, -2)), probs, 0)
        probs = probs.abs()
    return grad_v, torch._softmax_backward_data(grad_probs, probs, -1, probs.dtype)


class _Products(torch.autograd.Function):
    """softmax(Q K^T / sqrt(K)) V as batched products; saves its input and the probabilities, dropped ones marked."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv_3BNSK: torch.Tensor,
        block: int | None,
        bias: torch.Tensor | None,
        dropped: torch.Tensor | None,
        scale: float,
    ) -> torch.Tensor:
        q, k, v = _operands(qkv_3BNSK, block)
        probs_BNXQL = probabilities(q, k, bias)
        ctx.block, ctx.scale = block, None if dropped is None else scale
        if dropped is not None:
            probs_BNXQL = marked(probs_BNXQL, dropped)
        ctx.save_for_backward(qkv_3BNSK, probs_BNXQL)
        return weighed(probs_BNXQL, v, ctx.scale).flatten(2, 3)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        qkv_3BNSK, probs = ctx.saved_tensors
        q, k, v = _operands(qkv_3BNSK, ctx.block)
        grad_v, grad_scores = weighed_backward(grads[0].unflatten(2, (-1, q.shape[3])), probs, v, ctx.scale)
        factor = q.shape[-1] ** -0.5
        grad_qkv = torch.empty_like(qkv_3BNSK)
        torch.mul(torch.matmul(grad_scores, k).flatten(2, 3), factor, out=grad_qkv[0])
        grad_qkv[1] = _gather_neighbours(torch.matmul(grad_scores.transpose(-1, -2), q * factor), ctx.block)
        grad_qkv[2] = _gather_neighbours(grad_v, ctx.block)
        return grad_qkv, None, None, None, None


def _operands(qkv_3BNSK: torch.Tensor, block: int | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = qkv_3BNSK
    return _split(q, block), _neighbours(k, block), _neighbours(v, block)


class _Rotate(torch.autograd.Function):
    """Rotary positions on queries and keys. A rotation's gradient is the rotation back."""

    @staticmethod
    def forward(ctx: Any, qkv_3BNSK: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(qkv_3BNSK, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotated(grads[0], cos, -sin), None, None


def _rotated(qkv_3BNSK: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    if torch.compiler.is_compiling():  # a graph has no memory to fill, only results to join
        first, second = qkv_3BNSK[:2].chunk(2, dim=-1)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        return torch.cat([turned, qkv_3BNSK[2:]])
    out = torch.empty_like(qkv_3BNSK, memory_format=torch.contiguous_format)
    _turn(qkv_3BNSK[:2], cos, sin, out[:2])
    out[2] = qkv_3BNSK[2]
    return out


def _turn(qk_2BNSK: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, out_2BNSK: torch.Tensor) -> None:
    """Turned into `out`, which may be the same memory; in fp32, of which the cache holds some rows at a time."""
    num_rows = max(1, qk_2BNSK.shape[1])
    size = max(1, qk_2BNSK.numel() // num_rows)
    step = max(1, _TURNED // size) if qk_2BNSK.device.type == "cpu" else num_rows
    exact = torch.promote_types(qk_2BNSK.dtype, torch.float32)
    for low in range(0, num_rows, step):
        rows = slice(low, low + step)
        given, wanted = qk_2BNSK[:, rows], out_2BNSK[:, rows]
        x = wanted if wanted.dtype == exact else torch.empty(given.shape, dtype=exact, device=given.device)
        if x.data_ptr() != given.data_ptr():
            x.copy_(given)
        cos_B1SH, sin_B1SH = (angles if len(angles) == 1 else angles[rows] for angles in (cos, sin))
        first, second = x.chunk(2, dim=-1)
        crossed = first * sin_B1SH
        first.mul_(cos_B1SH).addcmul_(second, sin_B1SH, value=-1)
        second.mul_(cos_B1SH).add_(crossed)
        if x is not wanted:
            wanted.copy_(x)


def rotary_angles(positions_BS: torch.Tensor, head_size: int, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin for `rotate`, in fp32: arXiv 2104.09864 with the two halves of a head as the pairs."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.float32, device=positions_BS.device) / head_size
    angles_B1SH = positions_BS[:, None, :, None].float() * (1.0 / base**exponents)
    return angles_B1SH.cos(), angles_B1SH.sin()


def rotate(qkv_3BNSK: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary positions on queries and keys. Where nothing learns they are turned in place: its caller is the last one
    who needs it, and copies cost as much as a sixth of a short text's layers."""
    if torch.compiler.is_compiling():
        return _rotated(qkv_3BNSK.contiguous(), *angles)
    if torch.is_grad_enabled():
        return _Rotate.apply(qkv_3BNSK, *angles)
    _turn(qkv_3BNSK[:2], *angles, qkv_3BNSK[:2])
    return qkv_3BNSK


def hidden_tokens(noise: Noise, prob: float, lengths: Sequence[int], size: int, device: torch.device) -> torch.Tensor:
    """hidden_BS: tokens that nobody else sees in this step; the first token of a row is never hidden."""
    hidden_BS = noise.dropped(0, Site.HIDDEN_TOKENS, prob, [size] * len(lengths), device).view(-1, size) == 1
    hidden_BS[:, 0] = False
    return hidden_BS
