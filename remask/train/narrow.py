"""bf16 copies of the matrices for the forward and backward pass; the fp32 weights are the masters that learn.

In: a model whose parameters are fp32. Out: a context in which the weights of its linear layers are bf16, with their
gradients added up in fp32 over the micro-batches and handed to the fp32 weights at its end. Everything else (clipping,
optimizer, average, evaluation, checkpoints) sees plain fp32 parameters. Autocast alone casts every matrix again for
every micro-batch, and every gradient back; the numbers are the same. Tables of embeddings stay fp32: their gradient
adds up thousands of rows, which bf16 would lose.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


def masters(model: nn.Module) -> list[Tensor]:
    """The weights that get copies: those of linear layers, each once, but for tables of embeddings that are tied."""
    linears = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    return [weight for weight in dict.fromkeys(linears) if weight not in tables]


class NarrowWeights:
    """The bf16 copies of one model's linear layers."""

    def __init__(self, model: nn.Module) -> None:
        self._masters = masters(model)
        assert self._masters, "a model without linear layers"
        self._copies = [torch.empty_like(master, dtype=torch.bfloat16) for master in self._masters]
        self._sums: dict[Tensor, Tensor] = {}

    def _add(self, weight: Tensor) -> None:
        """After each backward pass: micro-batches add up in fp32."""
        assert weight.grad is not None
        if (total := self._sums.get(weight)) is None:
            self._sums[weight] = weight.grad.float()
        else:
            total.add_(weight.grad)
        weight.grad = None

    def gradient(self, weight: Tensor) -> Tensor | None:
        """What has added up for a weight while the copies are in use."""
        return self._sums.get(weight, weight.grad)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """bf16 weights inside; fp32 weights with fp32 gradients after."""
        with torch.no_grad():
            torch._foreach_copy_(self._copies, [master.detach() for master in self._masters])
        wide = [master.data for master in self._masters]
        learning = [master for master in self._masters if master.requires_grad]
        hooks = [master.register_post_accumulate_grad_hook(self._add) for master in learning]
        for master, copy in zip(self._masters, self._copies, strict=True):
            master.data = copy
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for master, data in zip(self._masters, wide, strict=True):
                master.data = data
                master.grad = self._sums.pop(master, None)
