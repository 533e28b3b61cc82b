"""The engine's process seen from the server: started, fed from the queue, watched, replaced when it stops answering.

In: jobs. Out: their answers, through each job's future. Everything here runs on the server's event loop; two threads
per process only carry messages, because a pipe to a stopped process blocks. A process that ended, or whose deadline in
shared memory has passed, is killed and started again; what it was working on is answered 503, what waits stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import queue
import threading
import time
from collections.abc import Callable
from ctypes import c_double
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from remask import signals
from remask.errors import GaveUpError, Stopped
from remask.schema import Json
from remask.serve import worker
from remask.serve.metrics import Metrics
from remask.serve.queue import Job, Piece, Queue
from remask.serve.settings import ServeSettings

_LOOK_S = 0.2
_AHEAD_S = (
    0.005  # the next group is sent this long before the one at work should be done, so that the engine never waits
)
_AT_ONCE = 2  # groups with the engine: one at work, one ready
_LAST_PAUSE_S = 30.0


class EngineError(Exception):
    """A request that was not answered: `code` as in the error document."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(eq=False)
class _Group:
    pieces: list[Piece]
    sent: float
    tokens: float


@dataclass(eq=False)
class _Child:
    """One process and what it has in hand."""

    process: BaseProcess
    link: Connection
    deadline: c_double
    outbox: queue.SimpleQueue[tuple[int, list[tuple[worker.Work, Path | None]]] | None] = field(
        default_factory=queue.SimpleQueue
    )
    groups: dict[int, _Group] = field(default_factory=dict)
    ready: bool = False
    failure: Exception | None = None

    @property
    def responsive(self) -> bool:
        return time.monotonic() < self.deadline.value


class Supervisor:
    """See above."""

    def __init__(self, assignment: worker.Assignment, metrics: Metrics, say: Callable[[str], None]) -> None:
        self.settings: ServeSettings = assignment.settings
        self.queue = Queue(assignment.settings)
        self.facts: dict[str, Json] = {}
        self.restarts = 0
        self._assignment, self._metrics, self._say = assignment, metrics, say
        self._child: _Child | None = None
        self._retired: list[BaseProcess] = []
        self._failures = 0  # starts in a row that answered nothing
        self._group_number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def up(self) -> bool:
        """The engine is there and has shown a sign of life in time."""
        return self._child is not None and self._child.ready and self._child.responsive

    # ------------------------------------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Until the first process is ready; its own error where it cannot be."""
        self._loop = asyncio.get_running_loop()
        self._spawn()
        child = self._child
        assert child is not None
        while not child.ready:
            if signals.requested():
                await self.stop()
                raise Stopped("stopped before the models were loaded")
            if child.failure is not None:
                raise child.failure
            if not child.process.is_alive():
                raise GaveUpError(f"the engine's process ended with code {child.process.exitcode} while loading")
            await asyncio.sleep(0.02)
        self._watcher = self._loop.create_task(self._watch())

    async def stop(self) -> None:
        self._closing = True
        if self._watcher is not None:
            self._watcher.cancel()
        child, self._child = self._child, None
        if child is not None:
            child.outbox.put(None)
            for _ in range(50):
                if not child.process.is_alive():
                    break
                await asyncio.sleep(0.02)
            self._end(child)
        for process in self._retired:
            process.join(5)

    def _spawn(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        deadline = context.Value("d", time.monotonic() + worker.LOADING_S, lock=False)
        words = (theirs, deadline, self._assignment)
        process = context.Process(target=worker.run, args=words, name="remask-engine", daemon=True)
        process.start()
        theirs.close()
        child = self._child = _Child(process, ours, deadline)
        for function in (self._carry_out, self._carry_in):
            threading.Thread(target=function, args=(child,), daemon=True).start()

    @staticmethod
    def _carry_out(child: _Child) -> None:
        with contextlib.suppress(OSError):
            while (message := child.outbox.get()) is not None:
                child.link.send(message)
            child.link.close()

    def _carry_in(self, child: _Child) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            try:
                while True:
                    message = child.link.recv()
                    self._loop.call_soon_threadsafe(self._received, child, message)
            except (EOFError, OSError):
                self._loop.call_soon_threadsafe(self._gone, child, "ended")

    def _end(self, child: _Child) -> None:
        child.process.kill()  # also where it is stopped or hangs inside a library
        child.outbox.put(None)
        self._retired.append(child.process)

    # ------------------------------------------------------------------------------------------------ watching

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self._retired = [process for process in self._retired if process.is_alive()]
            if self._child is not None and not self._child.responsive:
                self._gone(self._child, "stopped answering")

    def _gone(self, child: _Child, how: str) -> None:
        """Replace a process; its requests learn of it, those that wait stay."""
        if child is not self._child or self._closing:
            return
        if not child.ready and self._watcher is None:
            return  # the very first start: `start` says why it failed
        self._child = None
        self._end(child)
        self.restarts += 1
        self._failures += 1
        self._metrics.add("engine_restarts_total")
        for group in child.groups.values():
            self.queue.finished(group.pieces)
            for piece in group.pieces:
                self._fail(piece.job, EngineError("unavailable", f"the engine {how} and is started again"))
        pause = min(_LAST_PAUSE_S, 0.0 if self._failures == 1 else 0.25 * 2**self._failures)
        self._say(f"the engine {how}; it is started again{f' in {pause:.0f} s' if pause else ''}")
        self._loop.call_later(pause, self._respawn)

    def _respawn(self) -> None:
        if not self._closing and self._child is None:
            self._spawn()

    # ---------------------------------------------------------------------------------------------------- jobs

    def submit(self, job: Job) -> None:
        """Raises what Queue.offer does. The job's future gets a list of JSON values or an EngineError."""
        self.queue.offer(job, time.monotonic())
        self._pump()

    def drop(self, job: Job) -> None:
        """Nobody waits for this job any more."""
        if not job.left:
            self.queue.leave(job)
            self._metrics.add("dropped_total")

    def _pump(self) -> None:
        """Give the engine what it can take now, and look again when it can take more."""
        child = self._child
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if child is None or not child.ready:
            return
        while len(child.groups) < _AT_ONCE:
            now = time.monotonic()
            if child.groups and (wait := self._until_needed(child, now)) > 0:
                break
            pieces = self.queue.take(now, hurry=bool(child.groups))
            if not pieces:
                wait = self.queue.next_look(now)
                break
            self._send(child, pieces, now)
        else:
            return
        if wait is not None and self.queue.next_look(now) is not None:
            self._timer = self._loop.call_later(max(wait, 0.0002), self._pump)

    def _until_needed(self, child: _Child, now: float) -> float:
        """Seconds until the engine should have its next group ready; what comes until then can share it."""
        if self.queue.tokens >= self.queue.batch_tokens:
            return 0.0
        (group,) = child.groups.values()
        return group.sent + group.tokens / self.queue.tokens_per_second - _AHEAD_S - now

    def _send(self, child: _Child, pieces: list[Piece], now: float) -> None:
        self._group_number += 1
        child.groups[self._group_number] = _Group(pieces, now, sum(piece.tokens for piece in pieces))
        work = []
        for number, piece in enumerate(pieces):
            job = piece.job
            work.append(((number, job.model, job.task, piece.inputs, job.options), job.path))
            self._metrics.add("inputs_total", piece.count)
        child.outbox.put((self._group_number, work))

    def _received(self, child: _Child, message: worker.Message) -> None:
        if isinstance(message, worker.Failed):
            child.failure = message.error(message.message)
        elif child is not self._child:
            return
        elif isinstance(message, worker.Ready):
            self.facts = message.facts
            for note in message.notes:
                self._say(note)
            self.queue.tokens_per_second = message.rate
            chosen = next(iter(self.facts.values()))["precision"]
            self._assignment = replace(self._assignment, chosen=chosen)
            child.ready = True
            self._pump()
        elif isinstance(message, worker.NewText):
            job = child.groups[message.group].pieces[message.number].job
            if job.on_text is not None and not job.left:
                job.on_text(message.text)
        else:
            self._done(child, message)

    def _done(self, child: _Child, done: worker.Done) -> None:
        group = child.groups.pop(done.group)
        self._failures = 0
        self.queue.finished(group.pieces)
        sizes = [piece.characters for piece in group.pieces]
        self.queue.learn(sum(sizes) if all(sizes) else 0, done.tokens, done.seconds)
        self._metrics.engine(done.counts)
        for place, piece in enumerate(group.pieces):
            job, answer = piece.job, done.answers[place]
            if isinstance(answer, tuple):
                self._fail(job, EngineError(*answer))
                continue
            job.parts[piece.first : piece.first + piece.count] = answer
            parts = [part for part in job.parts if part is not None]
            if len(parts) == len(job.parts) and not job.left:
                self.queue.leave(job)
                job.done.set_result(parts)
        self._pump()

    def _fail(self, job: Job, error: EngineError) -> None:
        if not job.left:
            self.queue.leave(job)
            job.done.set_exception(error)
