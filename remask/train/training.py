"""A run in its folder: started or taken up, logged, evaluated, saved, and taken back after bad steps.

In: a Job. Out: checkpoints, metrics.jsonl, what trackers get. All that decides the next step is in `_state()` and in
the tensors beside it: weights, optimizer, average, cursor, guard, log window, loss scale, plan. A run that is refused
leaves the folder as it was. Not here: gradients and updates (session), the order of the steps (loop).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from remask.artifacts import Artifact, open_artifact, output_errors
from remask.config import differences
from remask.errors import DataError, GaveUpError, Stopped
from remask.progress import Progress
from remask.schema import Batch, Json, Values
from remask.train import budget, checkpoint
from remask.train.budget import Pace, Plan
from remask.train.distributed import World
from remask.train.guard import Consumed, StepGuard
from remask.train.identity import refuse, shown
from remask.train.job import Job
from remask.train.log import MetricsLog, plain
from remask.train.session import Session, Step
from remask.train.trackers import Trackers

GO_ON = "run the same command again to go on"


class Training:
    """One run in one folder, from its start or from where it stopped; a context that closes its files."""

    def __init__(self, job: Job, progress: Progress, world: World | None = None) -> None:
        self.job, self.progress, self.world = job, progress, world or World()
        self._identity = json.loads(json.dumps(job.identity))
        self.session = Session(job, self.world)
        settings = job.settings
        self._checkpoints = checkpoint.Checkpoints(job.folder, job.carried, settings.keep_checkpoints, progress.warn)
        self._trackers = Trackers(settings.trackers, job.folder, self._identity, progress.warn)
        self._metrics: MetricsLog | None = None  # of the first rank
        self._window = LogWindow()
        self.batches = job.batches
        self.cursor: Json = {}
        self._plan = Plan(0, 0, 0)
        self._pace = Pace()
        self._tokens = 0
        self._peak = 0.0
        self.shown_loss = 0.0
        self.last_metrics: dict[str, float] = {}
        self.last_speed: dict[str, float] = {}  # of this process, unlike the metrics, which go on
        self.last_checkpoint = job.folder
        self.is_enough = False  # an evaluation said so
        self._saved_step = -1
        self._must_save = False  # the plan was changed after this step
        self._seconds_before = job.spent_seconds
        self._started = self._window_started = time.monotonic()
        self._window_tokens = 0
        self._owes_evaluation = False  # one was due after this step, and a signal came before its end
        self._good_step = -1  # of the last planned checkpoint outside a series of bad steps: where to go back to
        self._since = Consumed({})  # what was read since then

    def __enter__(self) -> Training:
        try:
            self._restore_or_start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        self._trackers.close()
        if self._metrics is not None:
            self._metrics.close()

    @property
    def step(self) -> int:
        return self.session.step

    @property
    def num_steps(self) -> int:
        return self._plan.num_steps

    @property
    def is_over(self) -> bool:
        return self.step >= self.num_steps or self.is_enough

    @property
    def seconds(self) -> float:
        """Of the run, earlier processes included."""
        return self._seconds_before + time.monotonic() - self._started

    def _is_due(self, every: int) -> bool:
        """Every so many steps, and after the last one."""
        return self.step == self.num_steps or (every > 0 and self.step > 0 and self.step % every == 0)

    def _say(self, message: str) -> None:
        if self.world.is_first:
            self.progress.say(message)

    # ------------------------------------------------------------------------------------- start and resume

    def _restore_or_start(self) -> None:
        """Go on from the newest good checkpoint, or plan the run and save its start."""
        job = self.job
        newest = self._newest()
        if newest is None and any(self._checkpoints.folder.glob(".damaged-*")):
            raise DataError(f"{job.folder}: every checkpoint is damaged; to train from the start, choose another --out")
        state = None if newest is None else checkpoint.read_state(newest)
        self._settle_precision(None if state is None else state["precision"]["name"])
        log_size, budget_before = 0, None
        if newest is not None and state is not None:
            self._check_identity(newest, state)
            log_size, budget_before = self._load(newest, state), state["budget"]
        if self.world.is_first:
            with output_errors(job.folder):
                job.folder.mkdir(parents=True, exist_ok=True)
            self._metrics = MetricsLog(job.folder / "metrics.jsonl", log_size)
            self._trackers.follow(self._metrics.path)
        if budget_before != budget.of(job.settings):
            self._adopt(budget.make_plan(job, self.session, self.seconds, self._say))
            self._pace = Pace(self._pace.side_seconds, self.step, self.seconds - self._pace.side_seconds)
        self.batches = job.batches.with_steps(self.num_steps)
        if newest is None:
            self.cursor = self.batches.first_cursor()
            if self.num_steps == 0:
                self._evaluate()
            if self._save_every or self.num_steps == 0:
                self.save()
            return
        self._say(f"  going on after step {self.step:,} of {self.num_steps:,} ({newest.folder.name})")
        if self._owes_evaluation:
            self._evaluate()
            self._saved_step = -1  # the stop's own checkpoint knows nothing of it
            self.save_if_due()

    def _settle_precision(self, used: str | None) -> None:
        name, reason = self.session.settle_precision(used)
        if self.job.settings.precision == "auto":
            self._say(f"  precision {name} on {self.session.device}: {reason}")
        if self.job.flops_per_token:
            self._peak = self.session.peak_flops_per_second()

    def _newest(self) -> Artifact | None:
        """Found and verified by rank 0; the others open the same one."""
        if self.world.size == 1:
            return self._checkpoints.newest()
        newest = self._checkpoints.newest() if self.world.is_first else None
        folder = self.world.first_says(str(newest.folder) if newest else "")
        if not folder or self.world.is_first:
            return newest
        return open_artifact(Path(folder), checkpoint.STAGE)

    def _check_identity(self, saved: Artifact, state: Values) -> None:
        changed = differences(state["identity"], self._identity)
        before, now = state["precision"]["name"], self.session.precision.name
        if before != now:  # `auto` on another machine
            changed.append(("train.precision", before, now))
        refuse(saved.folder, changed, self.job.allow_change)
        for line in shown(changed):
            self._say(f"  changed, as allowed: {line}")

    def _adopt(self, plan: Plan) -> None:
        """The first rank's plan, on every rank: clocks differ."""
        self._plan = Plan(**json.loads(self.world.first_says(json.dumps(asdict(plan)))))

    def follow_the_clock(self) -> bool:
        """In a run by minutes, now and then: whether it has another number of steps from here on.

        What was decided is saved before the next step is made, so a killed run goes on by the same plan."""
        if not self._plan.costs or not self._pace.is_due(self._plan, self.step):
            return False
        before = self.num_steps
        self._adopt(self._pace.follow(self._plan, self.job, self.step, self.seconds))
        if self.num_steps == before:
            return False
        self.batches = self.job.batches.with_steps(self.num_steps)
        self._say(f"  {self.num_steps:,} steps instead of {before:,} fit into {self.job.settings.minutes:g} minutes")
        self._write({"event": "planned", "num_steps": self.num_steps})
        self._must_save = self._save_every > 0
        return True

    # ------------------------------------------------------------------------------------- log and evaluate

    def finish_step(self, step: Step, micro_batches: Sequence[Batch], cursor: Json, reason: str) -> None:
        """Count the step, taken or skipped, and remember its numbers."""
        self.session.optimizer.zero_grad()
        self.session.step += 1
        self.cursor = cursor
        tokens = int(self.world.sums([float(sum(batch.num_tokens for batch in micro_batches))])[0])
        self._tokens += tokens
        self._window_tokens += tokens
        examples = self.world.all_of(_example_ids(micro_batches))
        self._since.add(examples)
        if reason:
            self.session.guard.record_skip(self.step, reason, examples)
            self.progress.warn(f"step {self.step:,}: update skipped: {reason}")
            self._write({"event": "skipped", "reason": reason})
            return
        self.shown_loss = step.loss
        self._window.add("train/loss", step.loss)
        self._window.add("train/grad_norm", step.grad_norm)
        for name, (total, count) in step.metrics.items():
            self._window.add(f"train/{name}", total, count)
        if len(step.parts) > 1:
            for name, (total, count) in step.parts.items():
                self._window.add(f"train/loss_{name}", total, count)

    def log_if_due(self) -> None:
        """One line for the steps since the last one."""
        if not self._is_due(self.job.settings.log_every):
            return
        means = self._window.means()
        if means:
            speed = self._window_tokens / max(time.monotonic() - self._window_started, 1e-9)
            means |= {"train/learning_rate": self.session.learning_rate, "train/tokens": float(self._tokens)}
            perf = {"perf/tokens_per_second": round(speed, 1)}
            if self._peak:
                perf["perf/mfu"] = round(speed * self.job.flops_per_token / self._peak, 4)
            self._write(means | perf)
            self.last_metrics |= means
            self.last_speed = perf
        self._window.clear()
        self._window_started, self._window_tokens = time.monotonic(), 0

    def evaluate_if_due(self) -> None:
        every = self.job.settings.eval_every
        if self._is_due(self._plan.eval_every if every is None else every):
            self._evaluate()

    def _evaluate(self) -> None:
        """Log what the evaluation says. It may raise Stopped at a signal, on all ranks: then it comes again, whole,
        when the run goes on."""
        if self.job.evaluate is None:
            return
        started = time.monotonic()
        self._owes_evaluation = True
        try:
            evaluation = self.session.evaluated(self.job.evaluate, self.step)
        except Stopped:
            self.save(planned=False)
            raise Stopped(f"stopped in the evaluation after step {self.step:,}, saved; {GO_ON}") from None
        self._owes_evaluation = False
        self.is_enough = evaluation.is_enough
        numbers = {name if "/" in name else f"eval/{name}": float(value) for name, value in evaluation.metrics.items()}
        self._write(numbers if evaluation.samples is None else {**numbers, "samples": list(evaluation.samples)})
        self.last_metrics |= numbers
        self._window_started += time.monotonic() - started  # not part of the training speed
        self._pace.side_seconds += time.monotonic() - started

    def _write(self, values: Values) -> None:
        if self._metrics is not None:
            self._metrics.write(self.step, self.seconds, values)
            self._trackers.write(self.step, values)

    # ------------------------------------------------------------------------------------- save and go back

    @property
    def _save_every(self) -> int:
        every = self.job.settings.save_every
        return self._plan.save_every if every is None else every

    def save_if_due(self) -> None:
        """A run that an evaluation ended is not saved there: taken up again, it must meet that evaluation again."""
        if (self._is_due(self._save_every) or self._must_save) and not self.is_enough:
            self.save()
            self._must_save = False

    def save(self, planned: bool = True) -> None:
        """A checkpoint of the last completed step, unless that one is saved already.

        Not `planned`: a stop asks for it, so a run that was not stopped has none here, and a rollback must not end at
        it: both would go different ways.
        """
        if self._saved_step == self.step:
            return
        started, session = time.monotonic(), self.session
        if planned and session.guard.bad_in_a_row == 0:
            self._good_step = self.step
            self._since = Consumed(self.cursor)
        if self.world.is_first:
            assert self._metrics is not None
            self._metrics.sync()
            tensors = {} if session.is_divided else session.tensors()
            also = session.write_slices if session.is_divided else None
            saved = self._checkpoints.save(self.step, tensors, self._state(), self._good_step, also)
            self.last_checkpoint = saved.folder
        elif session.is_divided:
            session.write_slices(Path())
        self.last_checkpoint = Path(self.world.first_says(str(self.last_checkpoint)))
        self._saved_step = self.step
        self._pace.side_seconds += time.monotonic() - started

    def _state(self) -> Json:
        return {
            **self.session.state(),
            "plan": asdict(self._plan),
            "budget": budget.of(self.job.settings),
            "pace": asdict(self._pace) if self._plan.costs else {},
            "cursor": self.cursor,
            "tokens": self._tokens,
            "seconds": round(self.seconds, 3),
            "identity": self._identity,
            "window": self._window.state(),
            "shown_loss": self.shown_loss,
            "last_metrics": {name: plain(value) for name, value in self.last_metrics.items()},
            "owes_evaluation": self._owes_evaluation,
            "good_step": self._good_step,
            "since_good_step": self._since.state(),
            "metrics_size": self._metrics.size if self._metrics is not None else 0,
        }

    def _load(self, saved: Artifact, state: Values) -> int:
        """Everything as it was when the checkpoint was saved; gives the size that metrics.jsonl had."""
        self.session.load(saved, state)
        self._tokens, self._plan, self.cursor = state["tokens"], Plan(**state["plan"]), state["cursor"]
        self._window = LogWindow(state["window"])
        self.shown_loss = state["shown_loss"]
        self.last_metrics = {name: float(value) for name, value in state["last_metrics"].items()}
        self._seconds_before, self._started = state["seconds"], time.monotonic()
        self._pace = Pace(**state.get("pace", {}))
        self._saved_step, self.last_checkpoint = self.step, saved.folder
        self._owes_evaluation = state.get("owes_evaluation", False)
        self._good_step, self._since = state["good_step"], Consumed(**state["since_good_step"])
        return state["metrics_size"]

    @property
    def must_roll_back(self) -> bool:
        return self.session.guard.bad_in_a_row >= self.job.settings.max_bad_steps

    def roll_back(self) -> None:
        """Back to the last good checkpoint, over the examples since then, which are recorded by name."""
        # A kill from here on goes back to the same checkpoint, meets the same bad steps and ends up here again.
        settings, session, guard = self.job.settings, self.session, self.session.guard
        failed_step, cursor, tokens, seconds, pace = self.step, self.cursor, self._tokens, self.seconds, self._pace
        passed = self._since
        if self.world.is_first:
            self._checkpoints.drop_after(self._good_step)
        newest = self._newest()
        if newest is None:
            raise GaveUpError(f"step {self.step:,}: {guard.bad_in_a_row} bad steps in a row and no checkpoint yet")
        session.guard = StepGuard(settings.spike_sigmas)
        log_size = self._load(newest, checkpoint.read_state(newest))
        # Losses as of the checkpoint; the skips and rollbacks of the whole run.
        guard.losses, session.guard = session.guard.losses, guard
        guard.record_rollback(failed_step, self.step, passed, cursor)
        self.cursor, self._tokens = cursor, tokens
        self._since = Consumed(cursor)
        self._seconds_before, self._started = seconds, time.monotonic()
        self._pace = Pace(pace.side_seconds, self.step, seconds - pace.side_seconds)
        if self._metrics is not None:
            self._metrics.cut_back(log_size)
            self._trackers.follow(self._metrics.path)
        self._write({"event": "rollback", "from_step": failed_step, "examples_skipped": passed.count})
        self.progress.warn(
            f"{settings.max_bad_steps} bad steps in a row: back from step {failed_step:,} to {self.step:,}, "
            f"passing over {passed.count:,} examples"
        )
        if len(guard.rollbacks) >= settings.max_rollbacks:
            listed = "; ".join(f"step {r['step']:,} -> {r['to_step']:,}" for r in guard.rollbacks)
            raise GaveUpError(
                f"gave up: the run diverged after {len(guard.rollbacks)} rollbacks ({listed}); a lower learning rate, "
                "a longer warmup or clip: 1.0 may help"
            )


def _example_ids(micro_batches: Sequence[Batch]) -> list[int]:
    return [int(i) for batch in micro_batches if batch.example_ids_B is not None for i in batch.example_ids_B]


class LogWindow:
    """Sums since the last line of the log, so that a line stands for all its steps. Part of the checkpoint."""

    def __init__(self, sums: Mapping[str, list[float]] | None = None) -> None:
        self._sums = {name: list(pair) for name, pair in (sums or {}).items()}

    def add(self, name: str, value: float, count: float = 1.0) -> None:
        pair = self._sums.setdefault(name, [0.0, 0.0])
        pair[0] += value
        pair[1] += count

    def means(self) -> dict[str, float]:
        return {name: total / count for name, (total, count) in self._sums.items() if count}

    def state(self) -> dict[str, list[float]]:
        return {name: list(pair) for name, pair in self._sums.items()}

    def clear(self) -> None:
        self._sums.clear()
