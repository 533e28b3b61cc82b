"""How many steps a run has: by steps, tokens, passes over the data, or minutes.

In: TrainSettings and a batch source. Out: a number of steps that is stored with the run, so that it resumes exactly
even where it came from the clock. Of several budgets the smallest counts. Minutes are turned into steps by a probe:
some real steps with a learning rate of zero, which leave the weights as they were.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from remask.errors import ConfigError, Stopped
from remask.schema import BatchSource
from remask.train.settings import TrainSettings
from remask.train.step import forward_backward

if TYPE_CHECKING:
    from remask.train.session import Session

Evaluate = Callable[[Any], Mapping[str, Any]]  # numbers by name, and lists (samples) for the log alone

PROBE_SHARE = 0.04  # of the budget, and
PROBE_SECONDS = 20.0  # at most
SIDE_SHARE = 0.1  # of the time, at most, each for evaluations and for checkpoints that the settings leave open
SAVES, EVALUATIONS = 10, 20  # over a run, where the settings give no distance
MOST_BETWEEN_SAVES = 1000  # steps that a crash may cost
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
        found.append(_steps_for(settings.tokens, batches.tokens_per_step, getattr(batches, "tokens_in", None)))
    if settings.epochs is not None:
        found.append(_steps_for(settings.epochs, 1 / batches.steps_per_epoch, getattr(batches, "passes_in", None)))
    if not found and settings.minutes is None:
        raise ConfigError("train: say how long: steps, tokens, epochs or minutes (for instance --steps 1000)")
    return min(found) if found else None


def _steps_for(wanted: float, per_step: float, done_in: Callable[[int], float] | None) -> int:
    """The fewest steps that reach what is wanted. `done_in`: how far a run of so many steps comes, from sources whose
    first steps are smaller; their full steps do `per_step`, so it takes at least as many as of those."""
    least = max(1, math.ceil(wanted / per_step - 1e-9))
    if done_in is None or done_in(least) >= wanted:
        return least
    most = least
    while done_in(most) < wanted:
        least, most = most, 2 * most
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if done_in(middle) < wanted else (least, middle)
    return most


def for_steps(batches: Any, num_steps: int) -> BatchSource:
    """A source whose batches depend on the length of the run (short inputs first, growing masks) is told it."""
    return batches.with_steps(num_steps) if hasattr(batches, "with_steps") else batches


@dataclass(frozen=True)
class Plan:
    """Decided once and stored with the run. The distances count where the settings give none."""

    num_steps: int
    save_every: int
    eval_every: int

    @classmethod
    def spread(cls, num_steps: int, saves: int, evaluations: int) -> Plan:
        return cls(num_steps, min(MOST_BETWEEN_SAVES, -(-num_steps // saves)), -(-num_steps // evaluations))


def make_plan(run: Session, batches: BatchSource, evaluate: Evaluate | None) -> Plan:
    steps = planned_steps(run.settings, batches)
    if run.settings.minutes is not None:
        return _plan_in_time(run, batches, evaluate, steps)
    assert steps is not None
    return Plan.spread(max(steps, run.step), SAVES, EVALUATIONS)


def _plan_in_time(run: Session, batches: BatchSource, evaluate: Evaluate | None, most: int | None) -> Plan:
    """As many steps as fit into the minutes, evaluations and checkpoints included."""
    settings = run.settings
    assert settings.minutes is not None
    seconds = settings.minutes * 60
    per_step = _seconds_per_step(run, batches, min(PROBE_SECONDS, PROBE_SHARE * seconds))
    started = time.monotonic()
    if evaluate is not None:
        run.evaluated(evaluate)
    per_evaluation = time.monotonic() - started
    per_save = 12 * sum(p.numel() for p in run.optimizer.parameters) / DISK_BYTES_PER_SECOND

    left = seconds - run.seconds
    per_step_in_all = per_step
    numbers = []
    for given, cost, times in (
        (settings.save_every, per_save, SAVES),
        (settings.eval_every, per_evaluation, EVALUATIONS),
    ):
        number = max(1, min(times, int(SIDE_SHARE * seconds / max(cost, 1e-9)))) if given is None else 1
        numbers.append(number)
        left -= number * cost
        if given:
            per_step_in_all += cost / given
    steps = run.step + max(1, int(left / per_step_in_all))
    if most is not None:
        steps = min(steps, most)
    run.say(f"  {per_step:.3g} s a step: {steps:,} steps in {settings.minutes:g} minutes")
    return Plan.spread(steps, *numbers)


def _seconds_per_step(run: Session, batches: Any, at_most: float) -> float:
    """The mean over a run. Where rows get longer or batches grow, the ends of every stretch are timed: between them the
    cost of a step moves evenly."""
    stretches = batches.stretches() if hasattr(batches, "stretches") else [(1.0, batches, batches)]
    before = {name: tensor.clone() for name, tensor in run.optimizer.state().items()}
    sources = {id(source): source for _, *ends in stretches for source in ends}
    seconds = {key: _timed(run, source, at_most / len(sources)) for key, source in sources.items()}
    run.optimizer.zero_grad()
    run.optimizer.load(before)  # the weights did not move; the moments did
    return sum(share * (seconds[id(first)] + seconds[id(last)]) / 2 for share, first, last in stretches)


def _timed(run: Session, batches: BatchSource, at_most: float) -> float:
    """Seconds of one step, by some steps with a learning rate of zero."""
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
    return (time.monotonic() - counted_from) / (done - WARM_STEPS)
