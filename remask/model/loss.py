"""Cross-entropy over a vocabulary, in one pass and with fp32 sums whatever the precision of the logits.

In: logits of the predicted positions and the right ids. Out: the summed loss and how many predictions were right.
torch's own takes longer than the three matrix products of the output layer and is off by 2e-2 in bf16; here the
gradient (softmax minus one-hot) is made while the rows are in the cache, and only multiplied in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch

# Shapes: M predicted positions, V vocabulary, R rows of a chunk.

_CHUNK_VALUES = 1 << 20  # logits handled at a time: 4 MB in fp32


def cross_entropy(
    logits_MV: torch.Tensor, labels_M: torch.Tensor, smoothing: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(sum of -log p(label) as an fp32 scalar, number of rows whose largest logit is the label's).

    Logits beyond the last label are padding: they cost nothing and learn nothing. `smoothing`: this share of the label
    is spread evenly over the vocabulary (arXiv 1512.00567, section 7)."""
    return _CrossEntropy.apply(logits_MV, labels_M, smoothing)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_MV: torch.Tensor, labels_M: torch.Tensor, smoothing: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = torch.zeros((), dtype=torch.float32, device=logits_MV.device)
        correct = torch.zeros((), dtype=torch.int64, device=logits_MV.device)
        grad_MV = torch.empty_like(logits_MV) if ctx.needs_input_grad[0] else None
        rows = max(1, _CHUNK_VALUES // logits_MV.shape[1])
        for start in range(0, len(labels_M), rows):
            part_RV = logits_MV[start : min(start + rows, len(labels_M))].float()
            labels_R1 = labels_M[start : start + rows, None]
            top_R1, best_R1 = part_RV.max(dim=1, keepdim=True)
            shifted_RV = part_RV - top_R1
            right_R1 = shifted_RV.gather(1, labels_R1)
            if smoothing:
                right_R1 = (1 - smoothing) * right_R1 + smoothing * shifted_RV.mean(dim=1, keepdim=True)
            exp_RV = shifted_RV.exp_()
            sum_R1 = exp_RV.sum(dim=1, keepdim=True)
            total += (sum_R1.log() - right_R1).sum()
            correct += (best_R1 == labels_R1).sum()
            if grad_MV is not None:
                probs_RV = exp_RV.div_(sum_R1)
                probs_RV.scatter_add_(1, labels_R1, torch.full_like(sum_R1, smoothing - 1.0))
                if smoothing:
                    probs_RV -= smoothing / probs_RV.shape[1]
                grad_MV[start : start + len(probs_RV)] = probs_RV
        ctx.mark_non_differentiable(correct)
        if grad_MV is not None:
            grad_MV[len(labels_M) :] = 0.0
            ctx.save_for_backward(grad_MV)
        return total, correct

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (grad_MV,) = ctx.saved_tensors
        grad_MV.mul_(grads[0])  # in place: as large as the logits (a second backward pass is refused)
        return grad_MV, None, None
