"""What the encoder's states are used for: one small module or linear layer per kind of answer.

In: hidden states of tokens or texts. Out: logits. The three families differ only in how a text's (modern: also a
token's) state is prepared before its linear layer, see `Pooler`; which weights exist follows from HeadSettings.
Not here: losses (objectives), reading answers out of logits (tasks).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from remask.model.encoder import ACTIVATIONS, layer_norm
from remask.model.noise import Noise, Site
from remask.model.settings import HeadSettings, ModelSettings

# Shapes: B rows, M predicted positions, V vocabulary, E width of the embeddings, D width of a state, R any rows.

_SLICE = 4096  # entries of the vocabulary whose gradient is made at once


class MaskedLm(nn.Module):
    """dense, GELU, norm, then the (tied) embedding matrix and a bias per token of the vocabulary."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        width = settings.embedding_width
        # RoBERTa's code always has the exact GELU here; it is the encoder's activation in every known checkpoint.
        self.approximate = ACTIVATIONS[settings.activation]
        self.dense = nn.Linear(settings.hidden_size, width, bias=settings.bias)
        self.norm = layer_norm(settings, width)
        self.decoder = None if settings.tied_embeddings else nn.Linear(width, settings.vocab_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(settings.vocab_size))

    def forward(self, hidden_MD: torch.Tensor, embeddings_VE: torch.Tensor) -> torch.Tensor:
        """logits_MV."""
        matrix_VE = embeddings_VE if self.decoder is None else self.decoder.weight
        device = hidden_MD.device.type
        if matrix_VE.requires_grad and matrix_VE.dtype == torch.float32 and torch.is_autocast_enabled(device):
            return _Output.apply(self.features(hidden_MD), matrix_VE, self.bias, torch.get_autocast_dtype(device))
        return F.linear(self.features(hidden_MD), matrix_VE, self.bias)

    def features(self, hidden_MD: torch.Tensor) -> torch.Tensor:
        """x_ME, before the large matrix."""
        return self.norm(F.gelu(self.dense(hidden_MD), approximate=self.approximate))


class _Output(torch.autograd.Function):
    """linear() as autocast does it. Its gradient for the matrix is made by slices of the vocabulary: whole, it would be
    there in both number formats at once, when memory is fullest."""

    @staticmethod
    def forward(
        ctx: Any, x_ME: torch.Tensor, matrix_VE: torch.Tensor, bias_V: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        x, matrix = x_ME.to(dtype), matrix_VE.to(dtype)
        ctx.save_for_backward(x, matrix)
        ctx.x_dtype = x_ME.dtype
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x, matrix, bias_V.to(dtype))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_MV, (x_ME, matrix_VE) = grads[0], ctx.saved_tensors
        grad_x = (grad_MV @ matrix_VE).to(ctx.x_dtype) if ctx.needs_input_grad[0] else None
        grad_matrix = torch.empty_like(matrix_VE, dtype=torch.float32)
        for start in range(0, len(grad_matrix), _SLICE):
            rows = slice(start, start + _SLICE)
            grad_matrix[rows] = grad_MV[:, rows].T @ x_ME
        grad_bias = grad_MV.sum(0).float() if ctx.needs_input_grad[2] else None
        return grad_x, grad_matrix, grad_bias, None


class Pooler(nn.Module):
    """The state of a text made ready for a linear layer: dense and tanh, or (modern) dense, GELU and norm."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.settings = settings
        size = settings.hidden_size
        self.dense = None if settings.pooler_tied else nn.Linear(size, size, bias=settings.bias)
        self.norm = layer_norm(settings, size) if settings.head_form == "modern" else None

    def forward(
        self, x_RD: torch.Tensor, tied: nn.Linear, noise: Noise | None, tokens_per_row: Sequence[int]
    ) -> torch.Tensor:
        prob = self.settings.head_dropout
        if noise is not None and self.settings.head_form == "roberta":
            x_RD = noise.drop(x_RD, prob, 0, Site.HEAD_INPUT, tokens_per_row)
        x_RD = tied(x_RD) if self.dense is None else self.dense(x_RD)
        x_RD = torch.tanh(x_RD) if self.norm is None else self.norm(F.gelu(x_RD))
        return x_RD if noise is None else noise.drop(x_RD, prob, 0, Site.HEAD_OUTPUT, tokens_per_row)


class TaskHeads(nn.Module):
    """The heads that a network has; the rest are None."""

    def __init__(self, settings: ModelSettings, heads: HeadSettings) -> None:
        super().__init__()
        size = settings.hidden_size
        per_token = heads.num_tags is not None or heads.span
        per_text = heads.sentence or heads.answerable or heads.choice or heads.num_classes is not None
        needs_pooler = per_text or (per_token and settings.head_form == "modern")
        self.masked_lm = MaskedLm(settings) if heads.masked_lm else None
        self.pooler = Pooler(settings) if needs_pooler else None
        self.sentence = nn.Linear(size, 2) if heads.sentence else None
        self.classifier = None if heads.num_classes is None else nn.Linear(size, heads.num_classes)
        self.tagger = None if heads.num_tags is None else nn.Linear(size, heads.num_tags)
        self.span = nn.Linear(size, 2) if heads.span else None
        self.answerable = nn.Linear(size, 1) if heads.answerable else None
        self.chooser = nn.Linear(size, 1) if heads.choice else None
        self.writer = None
        if heads.writer is not None:
            from remask.model.decoder import Decoder  # which has a masked LM's output as its own

            self.writer = Decoder(settings, heads.writer)
        # Of the similarities of an embedding in training: the logarithm of a factor, in hundredths (see Network.scale).
        self.temperature = nn.Parameter(torch.zeros(1)) if heads.temperature else None
