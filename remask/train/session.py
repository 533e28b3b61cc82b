"""The state of one run: everything that changes from step to step, restored from the newest good checkpoint.

In: what the loop was handed. Out: judged and applied updates, log lines, evaluations, checkpoints, rollbacks. All
that decides the next step is in `_state()` and in the tensors beside it: weights, optimizer, average, cursor, guard,
log window, loss scale. Not here: the order of these steps (loop).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from remask.artifacts import Artifact, open_artifact, output_errors
from remask.config import differences
from remask.errors import ConfigError, DataError, GaveUpError, Stopped
from remask.precision import Precision, choose_device, choose_precision, products_per_second
from remask.progress import Progress
from remask.schema import Batch, BatchSource, Objective
from remask.train import budget, checkpoint, slices
from remask.train.budget import Evaluate, Plan
from remask.train.distributed import World, peers
from remask.train.guard import Consumed, Guard
from remask.train.identity import refuse, shown
from remask.train.log import Metrics, Window, plain
from remask.train.narrow import NarrowWeights
from remask.train.optim import Average, Optimizer
from remask.train.schedule import lr_fraction
from remask.train.settings import TrainSettings
from remask.train.sharding import Gathered, Shards, shard
from remask.train.step import Step
from remask.train.trackers import Trackers

GO_ON = "run the same command again to go on"

T = TypeVar("T")


class Session:
    """One run in one folder, from its start or from where it stopped."""

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        settings: TrainSettings,
        folder: Path,
        identity: Mapping[str, Any],
        carried: checkpoint.Files,
        progress: Progress,
        seed: int,
        world: World,
        flops_per_token: float,
    ) -> None:
        self.objective, self.settings, self.seed, self.world = objective, settings, seed, world
        self._folder, self._identity, self._progress = folder, json.loads(json.dumps(identity)), progress
        self.device = choose_device(settings.device, "train.device")
        self.shards = Shards(world if settings.parallel == "fsdp" else None)
        self.model = _made_ready(model, settings)
        self._gathered: Gathered | None = None
        if self.shards.size > 1:
            _check_divisible(settings)
            self._gathered = shard(self.model, world, self.device)
        else:
            self.model.to(self.device)
        self._flops_per_token, self._peak = flops_per_token, 0.0
        self.precision = Precision("fp32", self.device)  # settled in restore_or_start
        self._narrow = NarrowWeights(self.model) if settings.weights == "bf16-master" else None
        self.optimizer = Optimizer(self.model, settings, self.shards)
        self.average = Average(self.model, settings.ema_decay) if settings.ema_decay else None
        self.checkpoints = checkpoint.Checkpoints(folder, carried, settings.keep_checkpoints, progress.warn)
        self.guard = Guard(settings.spike_sigmas)
        self.window = Window()
        self.step = self.tokens = 0
        self.plan = Plan(0, 0, 0)
        self.cursor: dict[str, Any] = {}
        self.learning_rate = self.shown_loss = 0.0
        self.last_metrics: dict[str, float] = {}
        self.last_speed: dict[str, float] = {}  # of this process, unlike the metrics, which go on
        self.last_checkpoint = folder
        self.metric_names: set[str] = set()
        self._saved_step = -1
        self._seconds_before = 0.0
        self._started = self._window_started = time.monotonic()
        self._window_tokens = 0
        self._owes_evaluation = False  # one was due after this step, and a signal came before its end
        self._good_step = -1  # of the last planned checkpoint outside a series of bad steps: where to go back to
        self._since = Consumed({})  # what was read since then
        self._metrics: Metrics | None = None
        self._trackers = Trackers(settings.trackers, folder, self._identity, progress.warn)

    # ------------------------------------------------------------------------------------- start and resume

    def restore_or_start(
        self, batches: BatchSource, evaluate: Evaluate | None, allow_change: Sequence[str]
    ) -> BatchSource:
        """Go on from the newest good checkpoint, or plan the run and save its start."""
        found = self._newest()
        if found is None and any(self.checkpoints.folder.glob(".damaged-*")):
            raise DataError(
                f"{self._folder}: every checkpoint is damaged; to train from the start, choose another --out"
            )
        state = None if found is None else checkpoint.read_state(found)
        self._settle_precision(None if state is None else state["precision"]["name"])
        size, planned = 0, None
        if found is not None and state is not None:
            planned = state["budget"]
            self._check_identity(found, state, allow_change)
            size = self._load(found, state)
        if self.world.is_first:
            self._metrics = Metrics(self._folder / "metrics.jsonl", size)
            self._trackers.follow(self._metrics.path)
        if planned != budget.of(self.settings):
            plan = budget.make_plan(self, batches, evaluate)
            self.plan = Plan(**json.loads(self.world.first_says(json.dumps(asdict(plan)))))
        batches = budget.for_steps(batches, self.num_steps)
        if found is None:
            self.cursor = batches.first_cursor()
            if self.save_every:
                self.save()
            return batches
        self.say(f"  going on after step {self.step:,} of {self.num_steps:,} ({found.folder.name})")
        if self._owes_evaluation:
            self.evaluate(evaluate)
            self._saved_step = -1  # the stop's own checkpoint knows nothing of it
            self.save_if_due()
        return batches

    def save_if_due(self) -> None:
        if self.is_due(self.save_every) or self.step == self.num_steps:
            self.save()

    def _settle_precision(self, used: str | None) -> None:
        name, reason = choose_precision(self.settings.precision, self.device, used, "train.precision")
        name = self.world.first_says(name)  # ranks may have measured different speeds
        if self.settings.precision == "auto":
            self.say(f"  precision {name} on {self.device}: {reason}")
        self.precision = Precision(name, self.device)
        if self._narrow is not None and name != "bf16":
            raise ConfigError(
                f"train.weights = {self.settings.weights}: goes with precision bf16, and this run has {name}"
            )
        if self._flops_per_token:
            self._peak = self.world.size * products_per_second(self.device, name)

    def _newest(self) -> Artifact | None:
        """Found and verified by rank 0; the others open the same one."""
        if self.world.size == 1:
            return self.checkpoints.newest()
        found = self.checkpoints.newest() if self.world.is_first else None
        word = self.world.first_says(str(found.folder) if found else "")
        if not word or self.world.is_first:
            return found
        return open_artifact(Path(word), checkpoint.STAGE)

    def _check_identity(self, found: Artifact, state: Mapping[str, Any], allow_change: Sequence[str]) -> None:
        changed = differences(state["identity"], self._identity)
        if state["precision"]["name"] != self.precision.name:  # `auto` on another machine
            changed.append(("train.precision", state["precision"]["name"], self.precision.name))
        refuse(found.folder, changed, allow_change)
        for line in shown(changed):
            self.say(f"  changed, as allowed: {line}")

    @property
    def num_steps(self) -> int:
        return self.plan.num_steps

    @property
    def save_every(self) -> int:
        return self.plan.save_every if self.settings.save_every is None else self.settings.save_every

    @property
    def eval_every(self) -> int:
        return self.plan.eval_every if self.settings.eval_every is None else self.settings.eval_every

    def say(self, message: str) -> None:
        if self.world.is_first:
            self._progress.say(message)

    def is_due(self, every: int) -> bool:
        return every > 0 and self.step > 0 and self.step % every == 0

    @property
    def seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._started

    def to_device(self, array: Any) -> Tensor:
        return torch.as_tensor(array).to(self.device, non_blocking=True)

    def step_seed(self) -> int:
        """For modules that draw from torch's own generator: a pure function of seed and step, so nothing to store."""
        return (self.seed * 1_000_003 + self.step * 8191 + self.world.rank) & 0x7FFF_FFFF_FFFF_FFFF

    # ------------------------------------------------------------------------------------- one step

    def narrowed(self) -> AbstractContextManager[None]:
        """For the passes of a step: weights in the format that the settings ask for."""
        return nullcontext() if self._narrow is None else self._narrow.in_use()

    def apply(self, work: Callable[[Any], T]) -> T:
        """`work(model)`, where a divided model gathers the weights of each part while that part is computed."""
        if self._gathered is None:
            return work(self.model)
        try:
            with peers():
                result = self._gathered(work)
        except Stopped:  # the own rows are saved next; after any other error nothing is
            self._gathered.release(failed=True)
            raise
        if not torch.is_grad_enabled():
            self._gathered.release()
        return result

    def backward(self, scaled: Tensor) -> None:
        with nullcontext() if self._gathered is None else peers():
            scaled.backward()

    def add_gradients(self) -> None:
        """Gradients of all ranks' micro-batches where the optimizer looks for them."""
        if self._gathered is None:
            self.world.add_gradients(self.optimizer.parameters)
        else:
            self._gathered.release()
            self.optimizer.take_gradients()

    @torch.no_grad()
    def unscaled_grad_norm(self) -> float:
        gradients = [p.grad for p in self.optimizer.parameters if p.grad is not None]
        if not gradients:
            return 0.0
        if self.precision.scale != 1:
            torch._foreach_div_(gradients, self.precision.scale)
        return self.shards.norm_of_all(gradients)

    def judge(self, step: Step) -> str:
        """ "" to take the update, or why not. An fp16 overflow is answered by a smaller scale, not counted as bad."""
        finite = all(abs(value) < float("inf") for value in (step.loss, step.grad_norm))
        if not finite and self.precision.overflowed():
            return f"fp16 overflow, loss scale now {self.precision.scale:g}"
        if finite:
            self.precision.finite()
        return self.guard.judge(step.loss, step.grad_norm)

    @torch.no_grad()
    def update(self, step: Step) -> None:
        """Clip, then move by the schedule's learning rate."""
        clip = self.settings.clip
        if clip and step.grad_norm > clip:
            gradients = [p.grad for p in self.optimizer.parameters if p.grad is not None]
            torch._foreach_mul_(gradients, clip / (step.grad_norm + 1e-6))
        self.learning_rate = self.settings.learning_rate * lr_fraction(self.settings, self.step + 1, self.num_steps)
        self.optimizer.step(self.learning_rate)
        if self.average is not None:
            self.average.update(self.model, self.step + 1)

    def finish_step(self, step: Step, micro_batches: Sequence[Batch], cursor: dict[str, Any], reason: str) -> None:
        """Count the step, taken or skipped, and remember its numbers."""
        self.optimizer.zero_grad()
        self.step += 1
        self.cursor = cursor
        tokens = int(self.world.sums([float(sum(batch.num_tokens for batch in micro_batches))])[0])
        self.tokens += tokens
        self._window_tokens += tokens
        examples = self.world.all_of(_example_ids(micro_batches))
        self._since.add(examples)
        if reason:
            self.guard.record_skip(self.step, reason, examples)
            self._progress.warn(f"step {self.step:,}: update skipped: {reason}")
            self._write({"event": "skipped", "reason": reason})
            return
        self.shown_loss = step.loss
        self.window.add("train/loss", step.loss)
        self.window.add("train/grad_norm", step.grad_norm)
        for name, (total, count) in step.metrics.items():
            self.window.add(f"train/{name}", total, count)
        if len(step.parts) > 1:
            for name, (total, count) in step.parts.items():
                self.window.add(f"train/loss_{name}", total, count)

    # ------------------------------------------------------------------------------------- log and evaluate

    def write_metrics(self) -> None:
        """One line for the steps since the last one."""
        means = self.window.means()
        if means:
            now = time.monotonic()
            speed = self._window_tokens / max(now - self._window_started, 1e-9)
            means |= {"train/learning_rate": self.learning_rate, "train/tokens": float(self.tokens)}
            perf = {"perf/tokens_per_second": round(speed, 1)}
            if self._peak:
                perf["perf/mfu"] = round(speed * self._flops_per_token / self._peak, 4)
            self._write(means | perf)
            self.last_metrics |= means
            self.last_speed = perf
        self.window.clear()
        self._window_started, self._window_tokens = time.monotonic(), 0

    def evaluate(self, evaluate: Evaluate | None) -> None:
        """Log what `evaluate` says. It may raise Stopped at a signal, on all ranks: then it comes again, whole, when
        the run goes on."""
        if evaluate is None:
            return
        started = time.monotonic()
        self._owes_evaluation = True
        try:
            named = self.evaluated(evaluate)
        except Stopped:
            self.save(planned=False)
            raise Stopped(f"stopped in the evaluation after step {self.step:,}, saved; {GO_ON}") from None
        self._owes_evaluation = False
        self._write(named)
        self.last_metrics |= {name: value for name, value in named.items() if isinstance(value, float)}
        self._window_started += time.monotonic() - started  # not part of the training speed

    def evaluated(self, evaluate: Evaluate) -> dict[str, Any]:
        """What `evaluate` says of the model as it would be saved now: numbers, and lists for the log alone."""
        if self.average is not None:
            self.average.swap(self.model)
        self.model.eval()
        try:
            with torch.no_grad(), self.precision.autocast():
                found = self.apply(evaluate)
        finally:
            self.model.train()
            if self.average is not None:
                self.average.swap(self.model)
        lists = {name: value for name, value in found.items() if isinstance(value, list)}
        numbers = {name: float(value) for name, value in found.items() if name not in lists}
        return {name if "/" in name else f"eval/{name}": value for name, value in numbers.items()} | lists

    def _write(self, values: Mapping[str, Any]) -> None:
        if self._metrics is not None:
            self._metrics.write(self.step, self.seconds, values)
            self._trackers.write(self.step, values)

    # ------------------------------------------------------------------------------------- save and go back

    def save(self, planned: bool = True) -> None:
        """A checkpoint of the last completed step, unless that one is saved already.

        Not `planned`: a stop asks for it, so a run that was not stopped has none here, and a rollback must not end at
        it: both would go different ways.
        """
        if self._saved_step == self.step:
            return
        if planned and self.guard.bad_in_a_row == 0:
            self._good_step = self.step
            self._since = Consumed(self.cursor)
        if self.world.is_first:
            assert self._metrics is not None
            self._metrics.sync()
            if self._gathered is None:
                saved = self.checkpoints.save(self.step, self._tensors(), self._state(), self._good_step)
            else:
                saved = self.checkpoints.save(self.step, {}, self._state(), self._good_step, also=self._write_slices)
            self.last_checkpoint = saved.folder
        elif self._gathered is not None:
            self._write_slices(Path())
        self.last_checkpoint = Path(self.world.first_says(str(self.last_checkpoint)))
        self._saved_step = self.step

    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        weights = checkpoint.model_tensors(self.model)
        files = {"model.safetensors": weights, "optimizer.safetensors": self.optimizer.state()}
        if self.average is not None:
            # The averaged weights are the model that one uses; the ones that learn lie beside it.
            files |= {"model.safetensors": weights | self.average.weights, "weights.safetensors": weights}
        return files

    def _write_slices(self, folder: Path) -> None:
        """Every rank its own rows into the first one's folder, which then joins the model."""
        folder = Path(self.world.first_says(str(folder)))
        weights = slices.model_slices(self.model, self.shards)
        shapes = {name: tuple(p.shape) for name, p in self.model.named_parameters()}
        kinds = {slices.WEIGHTS: weights}
        kinds[slices.OPTIMIZER] = slices.state_slices(self.optimizer.state(), shapes, self.shards)
        if self.average is not None:
            averaged = {name: replace(weights[name], rows=w) for name, w in self.average.weights.items() if len(w)}
            kinds[slices.AVERAGE] = weights | averaged
        with self.world.together(), output_errors(folder):
            slices.write_rank(folder, self.world.rank, kinds)
        if self.world.is_first:
            used = slices.WEIGHTS if self.average is None else slices.AVERAGE
            slices.join(folder, self.world.size, used)

    def _state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "plan": asdict(self.plan),
            "budget": budget.of(self.settings),
            "cursor": self.cursor,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
            "identity": self._identity,
            "precision": self.precision.state(),
            "guard": self.guard.state(),
            "window": self.window.state(),
            "learning_rate": self.learning_rate,
            "shown_loss": self.shown_loss,
            "last_metrics": {name: plain(value) for name, value in self.last_metrics.items()},
            "metric_names": sorted(self.metric_names),
            "owes_evaluation": self._owes_evaluation,
            "good_step": self._good_step,
            "since_good_step": self._since.state(),
            "metrics_size": self._metrics.size if self._metrics is not None else 0,
        }

    def _load(self, found: Artifact, state: Mapping[str, Any]) -> int:
        """Everything as it was when `found` was saved; gives the size that metrics.jsonl had."""
        stored = slices.Stored.of(found)
        slices.load_model(self.model, stored, slices.WEIGHTS, self.shards)
        if self.average is not None:
            averaged = slices.load_state(stored, slices.AVERAGE, self.shards)
            self.average.weights = {name: averaged[name].to(self.device) for name in self.average.weights}
        self.optimizer.load(slices.load_state(stored, slices.OPTIMIZER, self.shards))
        self.step, self.tokens, self.plan = state["step"], state["tokens"], Plan(**state["plan"])
        self.cursor = state["cursor"]
        if state["precision"]["name"] == self.precision.name:
            self.precision.load(state["precision"])
        self.guard.load(state["guard"])
        self.window = Window(state["window"])
        self.learning_rate, self.shown_loss = state["learning_rate"], state["shown_loss"]
        self.last_metrics = {name: float(value) for name, value in state["last_metrics"].items()}
        self.metric_names = set(state["metric_names"])
        self._seconds_before, self._started = state["seconds"], time.monotonic()
        self._saved_step, self.last_checkpoint = self.step, found.folder
        self._owes_evaluation = state.get("owes_evaluation", False)
        self._good_step, self._since = state["good_step"], Consumed(**state["since_good_step"])
        return state["metrics_size"]

    @property
    def must_roll_back(self) -> bool:
        return self.guard.bad_in_a_row >= self.settings.max_bad_steps

    def roll_back(self) -> None:
        """Back to the last good checkpoint, over the examples since then, which are recorded by name."""
        # A kill from here on goes back to the same checkpoint, meets the same bad steps and ends up here again.
        guard, cursor, failed_step, tokens, seconds = self.guard, self.cursor, self.step, self.tokens, self.seconds
        passed = self._since
        if self.world.is_first:
            self.checkpoints.drop_after(self._good_step)
        found = self._newest()
        if found is None:
            raise GaveUpError(f"step {self.step:,}: {guard.bad_in_a_row} bad steps in a row and no checkpoint yet")
        self.guard = Guard(self.settings.spike_sigmas)
        size = self._load(found, checkpoint.read_state(found))
        losses = self.guard.losses
        self.guard = guard
        self.guard.losses = losses
        self.guard.record_rollback(failed_step, self.step, passed, cursor)
        self.cursor, self.tokens = cursor, tokens
        self._since = Consumed(cursor)
        self._seconds_before, self._started = seconds, time.monotonic()
        if self._metrics is not None:
            self._metrics.cut_back(size)
            self._trackers.follow(self._metrics.path)
        self._write({"event": "rollback", "from_step": failed_step, "examples_skipped": passed.count})
        self._progress.warn(
            f"{self.settings.max_bad_steps} bad steps in a row: back from step {failed_step:,} to {self.step:,}, "
            f"passing over {passed.count:,} examples"
        )
        if len(guard.rollbacks) >= self.settings.max_rollbacks:
            told = "; ".join(f"step {r['step']:,} -> {r['to_step']:,}" for r in guard.rollbacks)
            raise GaveUpError(
                f"gave up: the run diverged after {len(guard.rollbacks)} rollbacks ({told}); a lower learning rate, "
                "a longer warmup or clip: 1.0 may help"
            )

    def close(self) -> None:
        self._trackers.close()
        if self._metrics is not None:
            self._metrics.close()


def _check_divisible(settings: TrainSettings) -> None:
    if settings.weights == "bf16-master":
        raise ConfigError(
            f"train.weights = {settings.weights}: goes with train.parallel = ddp; fsdp keeps fp32 weights"
        )


def _made_ready(model: Any, settings: TrainSettings) -> nn.Module:
    """What the settings ask of the network itself; networks that cannot are not trained with these switches."""
    if settings.trainable_top_layers is not None:
        model.train_top_layers(settings.trainable_top_layers)
    if settings.activation_checkpointing:
        model.checkpoint_layers()
    if settings.compile:
        model.compile_layers()
    return model.train()


def _example_ids(micro_batches: Sequence[Batch]) -> list[int]:
    return [int(i) for batch in micro_batches if batch.example_ids_B is not None for i in batch.example_ids_B]
