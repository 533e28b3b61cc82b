"""The same pure tasks on many cores (local processes) or many machines (an existing Ray cluster).

In: a module-level function that is pure but for the files it writes whole or not at all, and its items. Out: the
results in item order, whatever finished first. A task that was killed is run again by the next attempt, so nothing
is saved here. A task that says how long its next step may take (`expect`) can be ended in the middle of it, even
inside foreign code, and run again without what held it up. On a cluster the paths inside the items must lie on a file
system that every machine sees.
Not here: what any task does, and how an earlier attempt's results are recognised.
"""

from __future__ import annotations

import ctypes
import logging
import math
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawArray
from types import ModuleType
from typing import Any, Generic, Literal, TypeVar

from remask import signals
from remask.errors import GaveUpError, RemaskError, UnavailableError, needs_extra

Engine = Literal["local", "ray"]
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
_POLL_SECONDS = 0.2  # how soon a signal is noticed while workers are busy
_PR_SET_PDEATHSIG = 1
# One thread a worker: the libraries would otherwise each take every core in every process.
_ONE_THREAD = ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_tasks(
    function: Callable[[ItemT], ResultT],
    items: Sequence[ItemT],
    *,
    workers: int,
    engine: Engine = "local",
    on_done: Callable[[int, ResultT], None] | None = None,
    without: Callable[[ItemT, int], ItemT] | None = None,
) -> list[ResultT]:
    """`function` over `items`; `on_done(index, result)` is called here as each one ends. Stops between results.

    With `without`, a local worker that lets its time pass is ended and `without(item, mark)` is done instead, where
    `mark` is what it last gave to `expect`; even a single item then gets a process, since only that can be ended."""
    results: dict[int, ResultT] = {}
    if engine == "ray":
        finished = _run_ray(function, items, workers)
    elif without is None and (workers <= 1 or len(items) <= 1):
        finished = _run_inline(function, items)
    else:
        finished = _Pool(function, items, min(workers, len(items)), without).results()
    for index, result in finished:
        results[index] = result
        if on_done:
            on_done(index, result)
    return [results[index] for index in range(len(items))]


def _run_inline(function: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> Iterator[tuple[int, ResultT]]:
    for index, item in enumerate(items):
        signals.check()
        yield index, function(item)


# --------------------------------------------------------------------------------------------- local processes


_Deadline = ctypes.Array[ctypes.c_double]  # [when a worker's time has passed, the mark of its step]
_deadline: _Deadline | None = None  # in a worker; read by the parent


def expect(seconds: float, mark: int) -> None:
    """The next step will take at most so long; `mark` (below 2**53) names it to whoever has to do without it."""
    if _deadline is not None:
        _deadline[0] = math.inf  # not the old time with the new mark
        _deadline[1] = mark
        _deadline[0] = _clock(os.getpid()) + seconds


def _clock(process: int) -> float:
    """Seconds that a process has computed: others on the machine, or a stop by ^Z, do not make it late."""
    if sys.platform != "linux":
        return time.monotonic()
    try:
        return time.clock_gettime((~process << 3) | 2)  # clock_getcpuclockid(3), which Python has for threads only
    except OSError:  # it has ended
        return 0.0


@dataclass
class _Worker:
    process: BaseProcess
    deadline: _Deadline


class _Pool(Generic[ItemT, ResultT]):
    """Spawned (a fork copies locks of threads that do not exist there); killed with this process, never orphaned."""

    def __init__(
        self,
        function: Callable[[ItemT], ResultT],
        items: Sequence[ItemT],
        workers: int,
        without: Callable[[ItemT, int], ItemT] | None,
    ) -> None:
        self._function, self._items, self._num_workers, self._without = function, list(items), workers, without
        self._context = multiprocessing.get_context("spawn")
        self._workers: dict[Connection, _Worker] = {}
        self._waiting = list(reversed(range(len(items))))
        self._busy: dict[Connection, int] = {}

    def results(self) -> Iterator[tuple[int, ResultT]]:
        try:
            for _ in range(self._num_workers):
                self._deal(self._start())
            while self._busy:
                signals.check()
                self._end_late_ones()
                sentinels = (self._workers[link].process.sentinel for link in self._busy)
                ready = wait([*self._busy, *sentinels], _POLL_SECONDS)
                for link in list(self._busy):
                    if link in ready or self._workers[link].process.sentinel in ready:
                        index, result = _receive(link, self._workers[link].process)
                        del self._busy[link]
                        self._deal(link)
                        yield index, result
        finally:
            for link in list(self._workers):
                self._end(link)

    def _start(self) -> Connection:
        ours, theirs = self._context.Pipe()
        deadline = RawArray("d", [math.inf, 0])
        process = self._context.Process(target=_serve, args=(theirs, os.getpid(), deadline), daemon=True)
        process.start()
        theirs.close()
        self._workers[ours] = _Worker(process, deadline)
        ours.send(self._function)
        return ours

    def _end(self, link: Connection) -> None:
        worker = self._workers.pop(link)
        link.close()
        self._busy.pop(link, None)
        worker.process.kill()  # idle or not: it keeps nothing, and taking Python apart would take 0.1 s
        worker.process.join()

    def _deal(self, link: Connection) -> None:
        if self._waiting:
            index = self._waiting.pop()
            self._workers[link].deadline[0] = math.inf
            link.send((index, self._items[index]))
            self._busy[link] = index

    def _end_late_ones(self) -> None:
        for link in list(self._busy) if self._without else ():
            worker = self._workers[link]
            until, mark = worker.deadline
            assert worker.process.pid is not None
            if _clock(worker.process.pid) > until and not link.poll():
                index = self._busy[link]
                self._end(link)
                assert self._without is not None
                self._items[index] = self._without(self._items[index], int(mark))
                self._waiting.append(index)
                self._deal(self._start())


def _receive(link: Connection, process: BaseProcess) -> tuple[int, Any]:
    try:
        index, failure, result = link.recv()
    except (EOFError, OSError):
        process.join()
        raise GaveUpError(
            f"a worker process ended (code {process.exitcode}), perhaps for want of memory; "
            "run the same command again to go on, with a smaller --workers if it happens again"
        ) from None
    if failure is not None:
        raise failure
    return index, result


def _serve(link: Connection, parent: int, deadline: _Deadline) -> None:
    """A worker's life: one function, then items until the other end closes."""
    global _deadline
    _deadline = deadline
    signals.ignore()
    die_with_parent(parent)
    for name in _ONE_THREAD:
        os.environ[name] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        function = link.recv()
        while True:
            index, item = link.recv()
            try:
                answer = (index, None, function(item))
            except Exception as error:
                answer = (index, _portable(error), None)
            link.send(answer)
    except (EOFError, OSError):
        return


def _portable(error: Exception) -> Exception:
    """The error itself where the user should read it; ours with the worker's traceback, which would get lost."""
    if isinstance(error, RemaskError):
        return type(error)(*error.args)
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(text)
    error.add_note(f"in a worker process:\n{text}")
    return error


def die_with_parent(parent: int) -> None:
    """SIGKILL to the parent leaves no time to end the workers, so the system does it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


# ------------------------------------------------------------------------------------------------ many machines


def _run_ray(
    function: Callable[[ItemT], ResultT], items: Sequence[ItemT], workers: int
) -> Iterator[tuple[int, ResultT]]:
    """Tasks on the cluster of RAY_ADDRESS, or the one this process joined; without one, on one of this machine."""
    ray = _joined_ray(workers)
    remote = ray.remote(num_cpus=1)(_guarded)
    waiting = list(reversed(range(len(items))))
    limit = max(workers, int(ray.cluster_resources().get("CPU", 1)))
    busy: dict[object, int] = {}  # by Ray's reference
    while waiting or busy:
        signals.check()
        while waiting and len(busy) < 2 * limit:
            index = waiting.pop()
            busy[remote.remote(function, items[index])] = index
        done, _ = ray.wait(list(busy), num_returns=1, timeout=_POLL_SECONDS)
        for reference in done:
            failure, result = ray.get(reference)
            if failure is not None:
                raise failure
            yield busy.pop(reference), result


def _joined_ray(workers: int) -> ModuleType:
    """Joining takes seconds, so it lasts until this process ends, which also ends tasks nobody waits for."""
    with needs_extra("ray", "--engine ray needs the ray extra"):
        import ray
    if not ray.is_initialized():
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        address = os.environ.get("RAY_ADDRESS")
        cpus, dashboard = (None, None) if address else (max(1, workers), False)
        try:
            ray.init(
                # "local": without an address Ray would join whatever cluster somebody runs on this machine.
                address=address or "local", num_cpus=cpus, include_dashboard=dashboard, log_to_driver=False,
                logging_level=logging.ERROR,
            )  # fmt: skip
        except ConnectionError as error:
            raise UnavailableError(f"RAY_ADDRESS = {address}: no cluster answers there: {error}") from None
        for number, handler in handlers.items():  # Ray takes the signals over; ours save state
            signal.signal(number, handler)
    return ray


def _guarded(function: Callable[[ItemT], ResultT], item: ItemT) -> tuple[Exception | None, ResultT | None]:
    """Errors as values: Ray would wrap them, and the user's one clear line would be lost."""
    try:
        return None, function(item)
    except Exception as error:
        return _portable(error), None


def is_first_rank() -> bool:
    """Of torchrun's processes, only the first writes and speaks."""
    return int(os.environ.get("RANK", "0")) == 0
