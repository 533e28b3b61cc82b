"""The one training loop: pretraining, fine-tuning and ablations hand it a model, batches and an objective in a Job.

In: a `Training`, opened at its start or where it stopped. Out: checkpoints, metrics.jsonl and a `TrainResult`. A run
that was killed at any moment goes on by the same calls and ends with the same bits: whatever decides the next step is
a pure function of the seed and of what the checkpoint holds. Not here: masks, tasks, networks; gradients and updates
(session); log, evaluations, checkpoints, rollbacks (training).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from remask.allocator import keep_freed_memory
from remask.errors import Stopped, UnavailableError
from remask.progress import Stage
from remask.schema import Batch, BatchSource, Json
from remask.train.session import forward_backward
from remask.train.training import GO_ON, Training

Taken = tuple[list[Batch], Json]

_LAST_SECONDS = 5.0  # for a thread to end when the run does; one that hangs is left behind


@dataclass(frozen=True)
class TrainResult:
    """Where a run ended: its last step, its last metrics by name, its last checkpoint."""

    step: int
    metrics: Mapping[str, float]
    checkpoint: Path


def train(training: Training) -> TrainResult:
    """Train until the budget is used, or an evaluation says that it is enough."""
    session, settings = training.session, training.job.settings
    keep_freed_memory()
    with (
        Ahead(training.batches, settings.prefetch, settings.batch_timeout_seconds) as ahead,
        training.progress.stage(training.job.name, training.num_steps, "steps") as stage,
    ):
        stage.resume_at(training.step)
        while not training.is_over:
            micro_batches, next_cursor = ahead.take(training.cursor)
            step = forward_backward(session, micro_batches)
            if step is None:
                training.save(planned=False)
                raise Stopped(f"stopped after step {training.step:,}, saved; {GO_ON}")
            reason = session.judge(step)
            if not reason:
                session.update(step, training.num_steps)
            training.finish_step(step, micro_batches, next_cursor, reason)
            if training.must_roll_back:
                training.roll_back()
                continue
            if training.follow_the_clock():
                ahead.read_from(training.batches)
            training.log_if_due()
            training.evaluate_if_due()
            training.save_if_due()
            _show(stage, training)
    return TrainResult(training.step, dict(training.last_metrics), training.last_checkpoint)


def _show(stage: Stage, training: Training) -> None:
    """The numbers of the last step, and of the last line of the log and the last evaluation where there are some."""
    known = training.last_metrics | training.last_speed
    words = [f"loss {training.shown_loss:.3f}"]
    for name, form in (
        ("eval/loss", "held-out {:.3f}"),
        ("eval/perplexity", "perplexity {:.1f}"),
        ("perf/tokens_per_second", "{:,.0f} tokens/s"),
        ("perf/mfu", "{:.0%} of peak"),
        ("train/grad_norm", "gradient {:.2f}"),
    ):
        if name in known:
            words.append(form.format(known[name]))
    words.append(f"lr {training.session.learning_rate:.2e}")
    stage.update(training.step, " · ".join(words), total=training.num_steps)


class Ahead:
    """The next batch, made in a thread while this one is computed: `take` like the source's own, one step ahead.

    A cursor other than the expected one (after a rollback) drops what was made ahead. A batch that does not come within
    the time limit (a disk that hangs) ends the run with one line. There are no worker processes that could be killed
    alone: masks and batches are made here, in the process that trains."""

    def __init__(self, source: BatchSource, in_thread: bool, timeout_seconds: float) -> None:
        self._source, self._in_thread, self._timeout_seconds = source, in_thread, timeout_seconds
        self._expected: Json | None = None
        self._coming: Future[Taken] | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._thread is not None and kind is not UnavailableError:
            self._thread.join(_LAST_SECONDS)

    def read_from(self, source: BatchSource) -> None:
        """Go on with another source; what was made ahead is dropped."""
        self._source, self._coming = source, None

    def take(self, cursor: Json) -> Taken:
        if not self._in_thread:
            return self._source.take(cursor)
        if self._coming is None or self._expected != cursor:
            self._start(cursor)
        taken = self._arrived()
        self._start(taken[1])
        return taken

    def _start(self, cursor: Json) -> None:
        self._expected, self._coming = cursor, Future()
        # A daemon, so that a source that hangs does not keep the process from ending.
        work = (self._source, cursor, self._coming)
        self._thread = threading.Thread(target=_make, args=work, name="batches", daemon=True)
        self._thread.start()

    def _arrived(self) -> Taken:
        assert self._coming is not None
        wait([self._coming], timeout=self._timeout_seconds)
        if not self._coming.done():
            raise UnavailableError(
                f"no batch within {self._timeout_seconds:g} s (train.batch_timeout_seconds): is the disk of the data "
                "still there? Run the same command again to go on"
            )
        return self._coming.result()


def _make(source: BatchSource, cursor: Json, coming: Future[Taken]) -> None:
    try:
        coming.set_result(source.take(cursor))
    except BaseException as error:
        coming.set_exception(error)
