"""How many steps a run has: by steps, tokens, passes over the data, or minutes.

In: TrainSettings and a batch source. Out: a `Plan` that is stored with the run, so that it resumes exactly even where
it came from the clock. Of several budgets the smallest counts. Minutes become steps by a probe: some real steps with a
learning rate of zero, which leave the weights as they were. Twenty times in such a run `Pace` compares the clock with
the plan, and a machine that became busier or idler gets fewer or more steps. Not here: when that is (loop).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from remask.errors import ConfigError, Stopped
from remask.schema import BatchSource, Json
from remask.train.job import Job
from remask.train.session import Session, forward_backward
from remask.train.settings import TrainSettings

PROBE_SHARE = 0.04  # of the budget, and
PROBE_SECONDS = 20.0  # at most
SIDE_SHARE = 0.1  # of the time, at most, each for evaluations and for checkpoints that the settings leave open
SAVES, EVALUATIONS = 10, 20  # over a run, where the settings give no distance
MOST_BETWEEN_SAVES = 1000  # steps that a crash may cost
WARM_STEPS = 2  # that do not count: first calls allocate and compile
DISK_BYTES_PER_SECOND = 200e6  # a modest disk, for the share of the time that checkpoints take
LOOKS = 20  # at the clock, in a run by minutes: the error that the last twentieth can still make
TOLERANCE = 0.03  # of the minutes: a plan that misses by less stands

Cost = tuple[float, float, float]  # a stretch of the run: its share of the steps, seconds of its first and last step


def of(settings: TrainSettings) -> Json:
    """The budget as stored in a checkpoint: a run asked for another one is planned anew."""
    return {name: getattr(settings, name) for name in ("steps", "tokens", "epochs", "minutes")}


def planned_steps(settings: TrainSettings, batches: BatchSource) -> int | None:
    """Steps by every budget but the clock; None where only minutes are given."""
    limits = []
    if settings.steps is not None:
        limits.append(settings.steps)
    if settings.tokens is not None:
        limits.append(_steps_for(settings.tokens, batches.tokens_per_step, batches.tokens_in))
    if settings.epochs is not None:
        limits.append(_steps_for(settings.epochs, 1 / batches.steps_per_epoch, batches.passes_in))
    if not limits and settings.minutes is None:
        raise ConfigError("train: say how long: steps, tokens, epochs or minutes (for instance --steps 1000)")
    return min(limits) if limits else None


def _steps_for(wanted: float, per_full_step: float, done_in: Callable[[int], float]) -> int:
    """The fewest steps that reach what is wanted. `done_in`: how far a run of so many steps comes; where its first
    steps are smaller, that takes more of them than full steps would."""
    least = max(1, math.ceil(wanted / per_full_step - 1e-9))
    if done_in(least) >= wanted * (1 - 1e-9):
        return least
    most = least
    while done_in(most) < wanted:
        least, most = most, 2 * most
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if done_in(middle) < wanted else (least, middle)
    return most


@dataclass(frozen=True)
class Plan:
    """Stored with the run. The distances count where the settings give none; the seconds are what the probe measured,
    and there are none in a run that the clock does not end."""

    num_steps: int
    save_every: int
    eval_every: int
    costs: tuple[Cost, ...] = ()
    seconds_per_save: float = 0.0
    seconds_per_evaluation: float = 0.0

    @classmethod
    def spread(cls, num_steps: int, saves: int, evaluations: int) -> Plan:
        return cls(num_steps, min(MOST_BETWEEN_SAVES, -(-num_steps // saves)), -(-num_steps // evaluations))

    def step_seconds(self, begin: int, end: int) -> float:
        """What the steps from `begin` to `end` should take, evaluations and checkpoints aside."""
        seconds, start = 0.0, 0.0
        for share, first, last in self.costs:
            stop = start + share * self.num_steps
            low, high = max(begin, start), min(end, stop)
            if high > low:  # costs move evenly within a stretch, so the middle of a piece stands for it
                middle = ((low + high) / 2 - start) / (stop - start)
                seconds += (high - low) * (first + (last - first) * middle)
            start = stop
        return seconds

    def times_left(self, every: int, step: int) -> int:
        """How often something comes that is done every so many steps, and after the last one."""
        return 1 if not every else -(-self.num_steps // every) - step // every


def make_plan(job: Job, session: Session, seconds: float, say: Callable[[str], None]) -> Plan:
    """For a run that starts, or has another budget than before. `seconds`: what it has used up."""
    limit = planned_steps(job.settings, job.batches)
    if job.settings.minutes is not None:
        return _plan_in_time(job, session, seconds, limit, say)
    assert limit is not None
    return Plan.spread(max(limit, session.step), SAVES, EVALUATIONS)


def _plan_in_time(job: Job, session: Session, seconds: float, limit: int | None, say: Callable[[str], None]) -> Plan:
    """As many steps as fit into the minutes, evaluations and checkpoints included."""
    settings = job.settings
    assert settings.minutes is not None
    started, budget = time.monotonic(), settings.minutes * 60
    costs = _costs(session, job.batches, min(PROBE_SECONDS, PROBE_SHARE * budget))
    per_step = sum(share * (first + last) / 2 for share, first, last in costs)
    evaluation_started = time.monotonic()
    if job.evaluate is not None:
        session.evaluated(job.evaluate, None)
    per_evaluation = time.monotonic() - evaluation_started
    per_save = 12 * sum(p.numel() for p in session.optimizer.parameters) / DISK_BYTES_PER_SECOND

    left = budget - seconds - (time.monotonic() - started)
    per_step_in_all = per_step
    numbers = []
    for given, cost, times in (
        (settings.save_every, per_save, SAVES),
        (settings.eval_every, per_evaluation, EVALUATIONS),
    ):
        number = max(1, min(times, int(SIDE_SHARE * budget / max(cost, 1e-9)))) if given is None else 1
        numbers.append(number)
        left -= number * cost
        if given:
            per_step_in_all += cost / given
    steps = session.step + max(1, int(left / per_step_in_all))
    if limit is not None:
        steps = min(steps, limit)
    say(f"  {per_step:.3g} s a step: {steps:,} steps in {settings.minutes:g} minutes")
    spread = Plan.spread(steps, *numbers)
    return replace(spread, costs=costs, seconds_per_save=per_save, seconds_per_evaluation=per_evaluation)


def _costs(session: Session, batches: BatchSource, at_most: float) -> tuple[Cost, ...]:
    """Seconds of a step. Where rows get longer or batches grow, the ends of every stretch are timed: between them the
    cost of a step moves evenly."""
    stretches = batches.stretches()
    before = {name: tensor.clone() for name, tensor in session.optimizer.state().items()}
    sources = {id(source): source for _, *ends in stretches for source in ends}
    seconds = {key: _timed(session, source, at_most / len(sources)) for key, source in sources.items()}
    session.optimizer.zero_grad()
    session.optimizer.load(before)  # the weights did not move; the moments did
    return tuple((share, seconds[id(first)], seconds[id(last)]) for share, first, last in stretches)


def _timed(session: Session, batches: BatchSource, at_most: float) -> float:
    """Seconds of one step, by some steps with a learning rate of zero."""
    cursor = batches.first_cursor()
    started = counted_from = time.monotonic()
    done = 0
    # Ranks have different clocks and must make the same number of steps.
    while done < WARM_STEPS + 3 or session.world.any(time.monotonic() - started < at_most):
        if done == WARM_STEPS:
            counted_from = time.monotonic()
        micro_batches, cursor = batches.take(cursor)
        step = forward_backward(session, micro_batches)
        if step is None:
            raise Stopped("stopped before the first step; run the same command again")
        if math.isfinite(step.grad_norm):
            session.optimizer.step(0.0)
        done += 1
    return (time.monotonic() - counted_from) / (done - WARM_STEPS)


@dataclass
class Pace:
    """How long steps take, from a look at the clock to the next one. Part of the checkpoint.

    `side_seconds`: spent on evaluations and checkpoints so far; `step` and `seconds`: of the last look."""

    side_seconds: float = 0.0
    step: int = 0
    seconds: float = 0.0

    def is_due(self, plan: Plan, step: int) -> bool:
        return step - self.step >= max(1, plan.num_steps // LOOKS)

    def follow(self, plan: Plan, job: Job, step: int, seconds: float) -> Plan:
        """The plan at this look: as it was, or with the steps that the time left allows at the speed since the last
        look. `seconds`: of the run so far."""
        settings = job.settings
        assert settings.minutes is not None
        taken = seconds - self.side_seconds - self.seconds
        slowdown = taken / plan.step_seconds(self.step, step)
        self.step, self.seconds = step, seconds - self.side_seconds

        save_every = plan.save_every if settings.save_every is None else settings.save_every
        eval_every = plan.eval_every if settings.eval_every is None else settings.eval_every
        side = plan.seconds_per_save * plan.times_left(save_every, step)
        side += plan.seconds_per_evaluation * plan.times_left(eval_every, step)
        needed = slowdown * plan.step_seconds(step, plan.num_steps)
        left = settings.minutes * 60 - seconds - slowdown * side
        # Another plan is saved at once, so one that hardly differs costs more than it gives.
        if abs(left - needed) <= max(TOLERANCE * settings.minutes * 60, 2 * plan.seconds_per_save) or not needed:
            return plan
        steps = step + int((plan.num_steps - step) * max(0.0, left) / needed)
        limit = planned_steps(settings, job.batches)
        return replace(plan, num_steps=steps if limit is None else min(steps, limit))
