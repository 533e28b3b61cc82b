"""Gradients summed over the ranks while the backward pass goes on.

In: the parameters that learn, in the order in which a backward pass reaches them. Out: `GradientSums`, which sends a
bucket of gradients as soon as the step's last backward pass has made all of them, and the rest at its end. Buckets are
the same in every step and are sent in the same order on every rank, whatever becomes ready first, so sums are the same
with and without overlap and after a resume. Not here: divided models (FSDP2 reduces by itself).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from remask.train.distributed import World, peers

BUCKET_ELEMENTS = 2 << 20  # 8 MB of fp32 in one message: the first ones leave early, and a link is still filled
Gradient = Callable[[Tensor], Tensor | None]


@dataclass
class _Sent:
    """A bucket on its way."""

    flat: Tensor
    work: Any


@dataclass
class _Bucket:
    parameters: list[Tensor]
    missing: set[Tensor] = field(default_factory=set)  # whose gradients the open backward pass still owes
    sent: _Sent | None = None


class GradientSums:
    """See above. On one rank there is nothing to do."""

    def __init__(self, world: World, parameters: Sequence[Tensor]) -> None:
        self._world = world
        self._buckets = [_Bucket(part) for part in _runs(parameters, BUCKET_ELEMENTS)] if world.size > 1 else []
        self._of = {parameter: bucket for bucket in self._buckets for parameter in bucket.parameters}
        self._unused: set[Tensor] = set()  # had no gradient on any rank in the last step: not worth waiting for
        self._next = 0  # the first bucket that is not sent

    @contextlib.contextmanager
    def sending(self, gradient: Gradient) -> Iterator[None]:
        """Around the last backward pass of a step. `gradient`: what has added up for a parameter so far. Enter it after
        whatever else hangs on to the parameters' gradients, which then has its turn first."""
        for bucket in self._buckets:
            bucket.missing = set(bucket.parameters) - self._unused

        def ready(parameter: Tensor) -> None:
            self._of[parameter].missing.discard(parameter)
            while self._next < len(self._buckets) and not self._buckets[self._next].missing:
                self._send(gradient)

        hooks = [parameter.register_post_accumulate_grad_hook(ready) for parameter in self._of]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def finish(self) -> None:
        """All sums in the parameters' gradients. A rank without rows for a parameter adds zero; what no rank has a
        gradient for (the head of a task whose turn it is not) has none after either, as with one rank."""
        if not self._buckets:
            return
        while self._next < len(self._buckets):
            self._send(lambda parameter: parameter.grad)
        held = self._world.sums([float(parameter.grad is not None) for parameter in self._of])
        self._unused = {parameter for parameter, count in zip(self._of, held, strict=True) if not count}
        for bucket in self._buckets:
            assert bucket.sent is not None
            with peers():
                bucket.sent.work.wait()
            self._take(bucket, bucket.sent.flat)
            bucket.sent = None
        self._next = 0

    def _send(self, gradient: Gradient) -> None:
        bucket = self._buckets[self._next]
        parts = [gradient(parameter) for parameter in bucket.parameters]
        flat = torch.cat(
            [
                torch.zeros_like(p, dtype=torch.float32).reshape(-1) if part is None else part.reshape(-1)
                for p, part in zip(bucket.parameters, parts, strict=True)
            ]
        )
        with peers():
            bucket.sent = _Sent(flat, dist.all_reduce(flat, async_op=True))
        self._next += 1

    def _take(self, bucket: _Bucket, flat: Tensor) -> None:
        offset = 0
        for parameter in bucket.parameters:
            size = parameter.numel()
            if parameter not in self._unused:
                if parameter.grad is None:
                    parameter.grad = torch.empty_like(parameter)
                parameter.grad.copy_(flat[offset : offset + size].view_as(parameter))
            offset += size


def _runs(parameters: Sequence[Tensor], size: int) -> list[list[Tensor]]:
    """Cut into runs, each closed by the parameter that brings it to this size."""
    runs: list[list[Tensor]] = [[]]
    for parameter in parameters:
        if sum(p.numel() for p in runs[-1]) >= size:
            runs.append([])
        runs[-1].append(parameter)
    return runs
