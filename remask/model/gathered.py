"""Attention on a CPU in bf16 where nothing learns: tokens laid end to end go by row and head into products, and back.

In: the query-key-value product of all tokens, and where they stand. Out: one vector a token. The padded rows are never
made: one gathering puts every head's piece of every token where the products want it, another one fetches the results.
Rows are filled up to whole vectors of keys, since torch's softmax takes three times as long over 61 numbers as over 64.
Not here: windows, causal rows, packed documents, rotary positions, gradients (attention).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from remask.model.attention import FEW, LONG

# Shapes: T tokens laid end to end, B rows, L keys of a row (with padding), N heads, K width of a head, H = B x N.

_VECTOR = 32  # bf16 numbers that the processor takes at once


def whole_vectors(num_keys: int) -> int:
    """So many keys and the padding behind them."""
    return -(-num_keys // _VECTOR) * _VECTOR


def is_faster(qkv_TM: torch.Tensor, num_positions: int) -> bool:
    """Than padded rows; one short row is faster in torch's own kernel."""
    if qkv_TM.device.type != "cpu" or qkv_TM.dtype != torch.bfloat16 or torch.compiler.is_exporting():
        return False
    return not torch.is_grad_enabled() and len(qkv_TM) > FEW and num_positions < LONG


@dataclass(frozen=True)
class ByHead:
    """Where pieces of width K stand: those of the rows' heads among the tokens', and back."""

    pieces_3HL: torch.Tensor  # places among T x 3 x N pieces
    tokens_TN: torch.Tensor  # places among H x L pieces
    bias_H1L: torch.Tensor  # very low at padding

    @classmethod
    def of(cls, lengths: Sequence[int], computed: Sequence[int], num_heads: int, dtype: torch.dtype) -> ByHead:
        """`lengths`: real tokens of every row; `computed`: those and the padding that goes along."""
        size = whole_vectors(max(computed))
        columns_L, heads_N = np.arange(size), np.arange(num_heads)
        computed_B1 = np.array(computed)[:, None]
        is_computed_BL = columns_L < computed_B1
        # Padding takes the row's own first token: what it holds counts nothing, but must not be another row's NaN.
        starts_B1 = np.cumsum(computed_B1, axis=0) - computed_B1
        tokens_BL = starts_B1 + np.where(is_computed_BL, columns_L, 0)
        parts_3N = np.arange(3 * num_heads).reshape(3, 1, num_heads, 1)
        pieces_3BNL = tokens_BL[:, None] * (3 * num_heads) + parts_3N
        rows_T, columns_T = np.nonzero(is_computed_BL)
        tokens_TN = (rows_T[:, None] * num_heads + heads_N) * size + columns_T[:, None]
        hidden_BL = torch.from_numpy(columns_L >= np.array(lengths)[:, None])
        bias_BL = torch.zeros(hidden_BL.shape, dtype=dtype).masked_fill_(hidden_BL, torch.finfo(dtype).min / 2)
        return cls(
            torch.from_numpy(pieces_3BNL.reshape(3, -1, size)),
            torch.from_numpy(tokens_TN),
            bias_BL.repeat_interleave(num_heads, dim=0)[:, None],
        )

    def attend(self, qkv_TM: torch.Tensor) -> torch.Tensor:
        """attended_TD."""
        num_tokens, num_heads = self.tokens_TN.shape
        width = qkv_TM.shape[1] // (3 * num_heads)
        _, num_pieces, size = self.pieces_3HL.shape
        pieces = qkv_TM.reshape(-1, width).index_select(0, self.pieces_3HL.flatten())
        q_HLK, k_HLK, v_HLK = pieces.view(3, num_pieces, size, width)
        bias_HLL = self.bias_H1L.expand(-1, size, -1)
        scores_HLL = torch.baddbmm(bias_HLL, q_HLK, k_HLK.mT, alpha=width**-0.5)
        attended_HLK = torch.bmm(torch.softmax(scores_HLL, dim=-1), v_HLK)
        return attended_HLK.view(-1, width).index_select(0, self.tokens_TN.flatten()).view(num_tokens, -1)
