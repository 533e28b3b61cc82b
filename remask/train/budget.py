"""How many steps a run has: by steps, tokens, passes over the data, or minutes.

In: TrainSettings and a batch source. Out: a number of steps that is stored with the run, so that it resumes exactly
even where it came from the clock. Of several budgets the smallest counts. Minutes are turned into steps by a probe:
some real steps with a learning rate of zero, which leave the weights as they were.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from remask.errors import ConfigError, Stopped
from remask.schema import BatchSource
from remask.train.settings import TrainSettings
from remask.train.step import forward_backward

if TYPE_CHECKING:
    from remask.train.session import Session

PROBE_SHARE = 0.04  # of the budget, and
PROBE_SECONDS = 20.0  # at most
WARM_STEPS = 2  # that do not count: first calls allocate and compile
DISK_BYTES_PER_SECOND = 200e6  # a modest disk, for the share of the time that checkpoints take


def of(settings: TrainSettings) -> dict[str, Any]:
    """The budget as stored in a checkpoint: a run asked for another one is planned anew."""
    return {name: getattr(settings, name) for name in ("steps", "tokens", "epochs", "minutes")}


def planned_steps(settings: TrainSettings, batches: Any) -> int | None:
    """Steps by every budget but the clock; None where only minutes are given."""
    found = []
    if settings.steps is not None:
        found.append(settings.steps)
    if settings.tokens is not None:
        found.append(max(1, round(settings.tokens / batches.tokens_per_step)))
    if settings.epochs is not None:
        found.append(max(1, math.ceil(settings.epochs * batches.steps_per_epoch)))
    if not found and settings.minutes is None:
        raise ConfigError("train: say how long: steps, tokens, epochs or minutes (for instance --steps 1000)")
    return min(found) if found else None


def for_steps(batches: Any, num_steps: int) -> BatchSource:
    """A source whose batches depend on the length of the run (short inputs first, growing masks) is told it."""
    return batches.with_steps(num_steps) if hasattr(batches, "with_steps") else batches


def steps_in_time(
    run: Session, batches: BatchSource, evaluate: Callable[[Any], Mapping[str, float]] | None, most: int | None
) -> int:
    """The number of steps that fit into the minutes, evaluations and checkpoints included."""
    settings = run.settings
    assert settings.minutes is not None
    seconds = settings.minutes * 60
    per_step = _seconds_per_step(run, batches, min(PROBE_SECONDS, PROBE_SHARE * seconds))
    started = time.monotonic()
    if evaluate is not None:
        run.evaluated(evaluate)
    per_evaluation = time.monotonic() - started
    num_bytes = 12 * sum(p.numel() for p in run.optimizer.parameters)
    per_save = num_bytes / DISK_BYTES_PER_SECOND

    steps = most or max(1, int(seconds / per_step))
    for _ in range(5):  # fewer steps may mean fewer evaluations: settle
        evaluations = _times(settings.evaluates_every(steps), steps)
        saves = _times(settings.saves_every(steps), steps)
        left = seconds - run.seconds - evaluations * per_evaluation - saves * per_save
        fitting = run.step + max(1, int(left / per_step))
        steps = min(fitting, most) if most else fitting
    run.say(f"  {per_step:.3g} s a step: {steps:,} steps in {settings.minutes:g} minutes")
    return steps


def _times(every: int, steps: int) -> int:
    return 1 + (steps // every if every else 0)


def _seconds_per_step(run: Session, batches: BatchSource, at_most: float) -> float:
    before = {name: tensor.clone() for name, tensor in run.optimizer.state().items()}
    cursor = batches.first_cursor()
    started = counted_from = time.monotonic()
    done = 0
    # Ranks have different clocks and must make the same number of steps.
    while done < WARM_STEPS + 3 or run.world.any(time.monotonic() - started < at_most):
        if done == WARM_STEPS:
            counted_from = time.monotonic()
        micro_batches, cursor = batches.take(cursor)
        step = forward_backward(run, micro_batches)
        if step is None:
            raise Stopped("stopped before the first step; run the same command again")
        if math.isfinite(step.grad_norm):
            run.optimizer.step(0.0)
        done += 1
    per_step = (time.monotonic() - counted_from) / (done - WARM_STEPS)
    run.optimizer.zero_grad()
    run.optimizer.load(before)  # the weights did not move; the moments did
    return per_step
