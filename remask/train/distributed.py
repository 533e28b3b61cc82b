"""Many processes that train one model: what they agree on, and how gradients are added up.

In: the environment that torchrun sets. Out: a `World` (one process without torchrun). Losses are divided by the
global count before the backward pass, so gradients are summed over ranks, never averaged. Checkpoints are written by
rank 0. Not here: sharded parameters (FSDP2).
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from remask.errors import UnavailableError

T = TypeVar("T")

TIMEOUT_SECONDS = 600
BUCKET_ELEMENTS = 8 << 20  # 32 MB of fp32 in one message


@dataclass(frozen=True)
class World:
    """This process among all."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sums(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the ranks; exact for counts, in a fixed order for the rest."""
        if self.size == 1:
            return list(values)
        own = torch.tensor(values, dtype=torch.float64)
        with _peers():
            dist.all_reduce(own)
        return own.tolist()

    def any(self, flag: bool) -> bool:
        """Whether any rank says so: what all must do together (stop, skip)."""
        return self.sums([float(flag)])[0] > 0 if self.size > 1 else flag

    def add_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Sum the gradients over the ranks. A rank without rows for a parameter adds zero."""
        if self.size == 1:
            return
        bucket: list[Tensor] = []
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            bucket.append(parameter.grad)
            if sum(g.numel() for g in bucket) >= BUCKET_ELEMENTS:
                _add(bucket)
                bucket = []
        if bucket:
            _add(bucket)

    def barrier(self) -> None:
        if self.size > 1:
            with _peers():
                dist.barrier()

    def first_then_others(self, work: Callable[[], T]) -> T:
        """Rank 0 makes what it leaves on the disk, then the others find it there."""
        if not self.is_first:
            self.barrier()
        result = work()
        if self.is_first:
            self.barrier()
        return result

    def first_says(self, word: str) -> str:
        """What rank 0 found, on every rank."""
        if self.size == 1:
            return word
        box: list[str] = [word]
        with _peers():
            dist.broadcast_object_list(box)
        return box[0]


@contextlib.contextmanager
def _peers() -> Iterator[None]:
    """Another rank that is gone or silent is nothing that this one did."""
    try:
        yield
    except RuntimeError as error:
        raise UnavailableError(f"another process of this job is gone: {str(error).splitlines()[0][:200]}") from error


def _add(gradients: list[Tensor]) -> None:
    flat = torch.cat([g.reshape(-1) for g in gradients])
    with _peers():
        dist.all_reduce(flat)
    offset = 0
    for gradient in gradients:
        gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
        offset += gradient.numel()


@contextlib.contextmanager
def joined() -> Iterator[World]:
    """The world of torchrun for the length of a run, or this process alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World()
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    timeout = datetime.timedelta(seconds=TIMEOUT_SECONDS)
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    # After a restart the store still has the addresses of processes that are gone: every attempt has its own part.
    store = dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    try:
        yield World(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
