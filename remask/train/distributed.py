"""Many processes that train one model, and what they agree on.

In: the environment that torchrun sets. Out: a `World` (one process without torchrun). A rank that is gone or silent for
longer than the time limit ends the others with one line, for torchrun to start them again.
Not here: sums of gradients (overlap), divided parameters (sharding).
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from remask.errors import UnavailableError
from remask.train.settings import RANK_TIMEOUT_SECONDS

T = TypeVar("T")

_OF_PEERS = ("gloo", "nccl", "peer", "connection", "socket", "timeout", "timed out")  # their errors have no class


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
        with peers():
            dist.all_reduce(own)
        return own.tolist()

    def any(self, flag: bool) -> bool:
        """Whether any rank says so: what all must do together (stop, skip)."""
        return self.sums([float(flag)])[0] > 0 if self.size > 1 else flag

    def all_of(self, values: Sequence[int]) -> list[int]:
        """The values of all ranks, in the order of the ranks."""
        if self.size == 1:
            return list(values)
        boxes: list[list[int]] = [[] for _ in range(self.size)]
        with peers():
            dist.all_gather_object(boxes, list(values))
        return [value for box in boxes for value in box]

    def add(self, tensor: Tensor) -> None:
        """Sum a tensor over the ranks, in place."""
        if self.size > 1:
            with peers():
                dist.all_reduce(tensor)

    def barrier(self) -> None:
        if self.size > 1:
            with peers():
                dist.barrier()

    def first_then_others(self, work: Callable[[], T]) -> T:
        """Rank 0 makes what it leaves on the disk, then the others find it there, or meet the same error."""
        if not self.is_first:
            self.barrier()
        try:
            return work()
        finally:
            if self.is_first:
                self.barrier()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Work that all ranks do and that counts only if none of them failed, so that nobody waits for the others."""
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        if self.any(failure is not None):
            raise failure or UnavailableError("another process of this job failed; it says why")

    def first_says(self, word: str) -> str:
        """What rank 0 found, on every rank."""
        return self.says(word, 0)

    def says(self, thing: T, rank: int) -> T:
        """What one rank has, on every rank."""
        if self.size == 1:
            return thing
        box = [thing]
        with peers():
            dist.broadcast_object_list(box, src=rank)
        return box[0]

    def names_of_all(self, names: Iterable[str]) -> set[str]:
        """Those that any rank has."""
        if self.size == 1:
            return set(names)
        boxes: list[list[str]] = [[] for _ in range(self.size)]
        with peers():
            dist.all_gather_object(boxes, sorted(names))
        return {name for box in boxes for name in box}


@contextlib.contextmanager
def peers() -> Iterator[None]:
    """Another rank that is gone or silent is nothing that this one did."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).splitlines()[0][:200] if str(error) else ""
        if not isinstance(error, dist.DistError) and not any(word in text.lower() for word in _OF_PEERS):
            raise
        what = "is silent" if "timed out" in text.lower() or "timeout" in text.lower() else "is gone"
        raise UnavailableError(f"another process of this job {what}: {text}") from error


@contextlib.contextmanager
def joined(timeout_seconds: float = RANK_TIMEOUT_SECONDS) -> Iterator[World]:
    """The world of torchrun for the length of a run, or this process alone. A rank that others wait for longer than
    the timeout is given up."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World()
        return
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    _import_what_keeps_the_group()
    timeout = datetime.timedelta(seconds=timeout_seconds)
    patience = max(timeout, datetime.timedelta(seconds=RANK_TIMEOUT_SECONDS))  # machines start at different speeds
    with peers():
        store, rank, size = next(rendezvous("env://", timeout=patience))
        # After a restart the store still has the addresses of processes that are gone: every attempt has its own part.
        store = dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        store.set(f"here-{rank}", "")
        store.wait([f"here-{other}" for other in range(size)], patience)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    try:
        yield World(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def _import_what_keeps_the_group() -> None:
    """Some modules of torch have the group of the moment when they are first imported as a default of their functions.
    Then it outlives its end, and its threads with it; one that lets go of a tensor while Python ends aborts the process
    ("terminate called without an active exception"). Imported before there is a group, they hold none."""
    import torch.distributed.fsdp.sharded_grad_scaler
    import torch.distributed.nn.functional
    import torch.distributed.optim  # noqa: F401
