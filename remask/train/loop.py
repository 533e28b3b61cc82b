"""The one training loop: pretraining, fine-tuning and ablations hand it a model, batches and an objective.

In: a `BatchSource` (pure in its cursor), an `Objective`, TrainSettings, a folder. Out: checkpoints, metrics.jsonl and
a `TrainResult`. A run that was killed at any moment goes on by the same call and ends with the same bits: whatever
decides the next step is a pure function of the seed and of the state that the session keeps in the checkpoint.
Not here: masks, tasks, networks; how a step's update is judged (guard); how state is kept (session, checkpoint).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from remask.allocator import keep_freed_memory
from remask.artifacts import lock
from remask.errors import Stopped
from remask.progress import Progress, Stage
from remask.schema import BatchSource, Objective
from remask.train.ahead import Ahead
from remask.train.budget import Evaluate
from remask.train.checkpoint import Files
from remask.train.distributed import World
from remask.train.session import GO_ON, Session
from remask.train.settings import TrainSettings
from remask.train.step import forward_backward


@dataclass(frozen=True)
class TrainResult:
    """Where a run ended: its last step, its last metrics by name, its last checkpoint."""

    step: int
    metrics: Mapping[str, float]
    checkpoint: Path


def train(
    *,
    model: nn.Module,
    batches: BatchSource,
    objective: Objective,
    settings: TrainSettings,
    folder: Path,
    identity: Mapping[str, Any],
    carried: Files,
    evaluate: Evaluate | None,
    progress: Progress,
    seed: int,
    allow_change: Sequence[str] = (),
    world: World | None = None,
    name: str = "train",
    locked: bool = False,
    flops_per_token: float = 0.0,
    started: Callable[[], None] | None = None,
    spent_seconds: float = 0.0,
) -> TrainResult:
    """Train until the budget is used, going on where an earlier call in this folder stopped.

    `locked`: the caller holds the folder's lock already. `flops_per_token`: of a step, forward and backward; given, the
    share of the machine's peak (perf/mfu) is logged. `started` is called once it is settled that the folder's run is
    this one and goes on: one that is refused, or has nothing left to do, leaves what was written of it.
    `spent_seconds`: what making the model took, which is part of a budget of minutes.
    """
    world = world or World()
    keep_freed_memory()
    with ExitStack() as stack:
        if world.is_first and not locked:
            stack.enter_context(lock(folder))
        run = Session(
            model, objective, settings, folder, identity, carried, progress, seed, world, flops_per_token, spent_seconds
        )
        stack.callback(run.close)
        batches = run.restore_or_start(batches, evaluate, allow_change)
        if started is not None and run.step < run.num_steps:
            started()
        ahead = stack.enter_context(Ahead(batches, settings.prefetch, settings.batch_timeout_seconds))
        stage = stack.enter_context(progress.stage(name, run.num_steps, "steps"))
        stage.resume_at(run.step)

        while run.step < run.num_steps:
            micro_batches, next_cursor = ahead.take(run.cursor)
            step = forward_backward(run, micro_batches)
            if step is None:
                run.save(planned=False)
                raise Stopped(f"stopped after step {run.step:,}, saved; {GO_ON}")
            reason = run.judge(step)
            if not reason:
                run.update(step)
            run.finish_step(step, micro_batches, next_cursor, reason)
            if run.must_roll_back:
                run.roll_back()
                continue
            if run.is_due(settings.log_every) or run.step == run.num_steps:
                run.write_metrics()
            if run.is_due(run.eval_every) or run.step == run.num_steps:
                run.evaluate(evaluate)
            run.save_if_due()
            _show(stage, run)
        return TrainResult(run.step, dict(run.last_metrics), run.last_checkpoint)


def _show(stage: Stage, run: Session) -> None:
    """The numbers of the last step, and of the last line of the log and the last evaluation where there are some."""
    known = run.last_metrics | run.last_speed
    words = [f"loss {run.shown_loss:.3f}"]
    for name, form in (
        ("eval/loss", "held-out {:.3f}"),
        ("eval/perplexity", "perplexity {:.1f}"),
        ("perf/tokens_per_second", "{:,.0f} tokens/s"),
        ("perf/mfu", "{:.0%} of peak"),
        ("train/grad_norm", "gradient {:.2f}"),
    ):
        if name in known:
            words.append(form.format(known[name]))
    stage.update(run.step, " · ".join([*words, f"lr {run.learning_rate:.2e}"]))
