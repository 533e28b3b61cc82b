"""The one training loop: pretraining, fine-tuning and ablations hand it a model, batches and an objective in a Job.

In: a `Training`, opened at its start or where it stopped. Out: checkpoints, metrics.jsonl and a `TrainResult`. A run
that was killed at any moment goes on by the same calls and ends with the same bits: whatever decides the next step is
a pure function of the seed and of what the checkpoint holds. Not here: masks, tasks, networks; gradients and updates
(session); log, evaluations, checkpoints, rollbacks (training).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from remask.allocator import keep_freed_memory
from remask.errors import Stopped
from remask.progress import Stage
from remask.train.ahead import Ahead
from remask.train.session import forward_backward
from remask.train.training import GO_ON, Training


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
