"""The same pure tasks on many cores (local processes) or many machines (an existing Ray cluster).

In: a module-level function that is pure but for the files it writes whole or not at all, and its items. Out: the
results in item order, whatever finished first. A task that was killed is run again by the next attempt, so nothing
is saved here. On a cluster the paths inside the items must lie on a file system that every machine sees.
Not here: what any task does, and how an earlier attempt's results are recognised.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, TypeVar

from remask import signals
from remask.errors import GaveUpError, RemaskError, UnavailableError

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
) -> list[ResultT]:
    """`function` over `items`; `on_done(index, result)` is called here as each one ends. Stops between results."""
    results: dict[int, ResultT] = {}
    if engine == "ray":
        finished = _run_ray(function, items, workers)
    elif workers <= 1 or len(items) <= 1:
        finished = _run_inline(function, items)
    else:
        finished = _run_local(function, items, min(workers, len(items)))
    for index, result in finished:
        results[index] = result
        if on_done:
            on_done(index, result)
    return [results[index] for index in range(len(items))]


def _run_inline(function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    for index, item in enumerate(items):
        signals.check()
        yield index, function(item)


# --------------------------------------------------------------------------------------------- local processes


def _run_local(function: Callable[[Any], Any], items: Sequence[Any], workers: int) -> Iterator[tuple[int, Any]]:
    """Spawned (a fork copies locks of threads that do not exist there); killed with this process, never orphaned."""
    context = multiprocessing.get_context("spawn")
    processes: dict[Connection, Any] = {}
    waiting = list(reversed(range(len(items))))
    busy: dict[Connection, int] = {}
    try:
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, os.getpid()), daemon=True)
            process.start()
            theirs.close()
            processes[ours] = process
            ours.send(function)
            _deal(ours, items, waiting, busy)
        while busy:
            signals.check()
            ready = wait([*busy, *(processes[link].sentinel for link in busy)], _POLL_SECONDS)
            for link in [link for link in busy if link in ready or processes[link].sentinel in ready]:
                index, result = _receive(link, processes[link])
                del busy[link]
                _deal(link, items, waiting, busy)
                yield index, result
    finally:
        for link, process in processes.items():
            link.close()
            if link in busy:
                process.kill()
            process.join()


def _deal(link: Connection, items: Sequence[Any], waiting: list[int], busy: dict[Connection, int]) -> None:
    if waiting:
        index = waiting.pop()
        link.send((index, items[index]))
        busy[link] = index


def _receive(link: Connection, process: Any) -> tuple[int, Any]:
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


def _serve(link: Connection, parent: int) -> None:
    """A worker's life: one function, then items until the other end closes."""
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
        return type(error)(str(error))
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


def _run_ray(function: Callable[[Any], Any], items: Sequence[Any], workers: int) -> Iterator[tuple[int, Any]]:
    """Tasks on the cluster of RAY_ADDRESS, or the one this process joined; without one, on one of this machine."""
    ray = _joined_ray(workers)
    remote = ray.remote(num_cpus=1)(_guarded)
    waiting = list(reversed(range(len(items))))
    limit = max(workers, int(ray.cluster_resources().get("CPU", 1)))
    busy: dict[Any, int] = {}
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


def _joined_ray(workers: int) -> Any:
    """Joining takes seconds, so it lasts until this process ends, which also ends tasks nobody waits for."""
    try:
        import ray
    except ImportError:
        raise UnavailableError("--engine ray needs the ray extra: pip install 'remask[ray]'") from None
    if not ray.is_initialized():
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        address = os.environ.get("RAY_ADDRESS")
        local: dict[str, Any] = {} if address else {"num_cpus": max(1, workers), "include_dashboard": False}
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
        except ConnectionError as error:
            raise UnavailableError(f"RAY_ADDRESS = {address}: no cluster answers there: {error}") from None
        for number, handler in handlers.items():  # Ray takes the signals over; ours save state
            signal.signal(number, handler)
    return ray


def _guarded(function: Callable[[Any], Any], item: Any) -> tuple[Exception | None, Any]:
    """Errors as values: Ray would wrap them, and the user's one clear line would be lost."""
    try:
        return None, function(item)
    except Exception as error:
        return _portable(error), None


def is_first_rank() -> bool:
    """Of torchrun's processes, only the first writes and speaks."""
    return int(os.environ.get("RANK", "0")) == 0
