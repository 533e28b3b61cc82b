"""The model that learns: its gradients over one step's micro-batches, and the update that is made of them.

In: a Job's model, objective and settings, and the world of ranks. Out: `forward_backward` leaves summed gradients in
the parameters and gives a `Step` with the sums of all ranks; `Session.update` applies it. A loss is divided by its
count over all micro-batches and ranks, so N micro-batches equal one big batch, and two ranks equal one. What the model
is (device, number format, whole or divided, averaged) stays in here. Not here: disk and log (training), order (loop).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from remask import signals
from remask.artifacts import Artifact, output_errors
from remask.errors import ConfigError, Stopped
from remask.precision import Precision, choose_device, choose_precision, products_per_second
from remask.schema import Batch, JointObjective, Json, Loss, LossPart, Values
from remask.train import checkpoint, slices
from remask.train.distributed import World, peers
from remask.train.guard import StepGuard
from remask.train.job import Evaluate, Evaluation, Job
from remask.train.narrow import NarrowWeights
from remask.train.optim import Average, Optimizer, lr_fraction
from remask.train.overlap import GradientSums
from remask.train.settings import TrainSettings
from remask.train.sharding import Gathered, Shards, shard

T = TypeVar("T")
Counts = Mapping[str, float]
Totals = dict[str, list[Any]]

_METRIC = "metric "  # before a metric's name, where parts and metrics share one dict


@dataclass(frozen=True)
class Step:
    """What the micro-batches of one step add up to, over all ranks: (sum, count) by name."""

    loss: float
    grad_norm: float
    parts: Mapping[str, tuple[float, float]]
    metrics: Mapping[str, tuple[float, float]]


class Session:
    """A model on its device, after so many steps, with all that computes and applies its gradients."""

    def __init__(self, job: Job, world: World) -> None:
        self.objective, self.settings, self.world = job.objective, job.settings, world
        self._seed = job.seed
        self.device = choose_device(job.settings.device, "train.device")
        self.shards = Shards(world if job.settings.parallel == "fsdp" else None)
        self.model = _made_ready(job.model, job.settings, self.device)
        self._gathered: Gathered | None = None
        if self.shards.size > 1:
            _check_divisible(job.settings)
            self._gathered = shard(self.model, world, self.device)
        else:
            self.model.to(self.device)
        self.precision = Precision("fp32", self.device)  # until settle_precision
        self._narrow = NarrowWeights(self.model) if job.settings.weights == "bf16-master" else None
        self.optimizer = Optimizer(self.model, job.settings, self.shards)
        is_shared = world.size > 1 and self._gathered is None
        self._sums = GradientSums(world, _backward_order(self.model)) if is_shared else None
        self._after_update = _listeners(self.model)
        self._average = Average(self.model, job.settings.ema_decay) if job.settings.ema_decay else None
        self.guard = StepGuard(job.settings.spike_sigmas)
        self.step = 0
        self.learning_rate = 0.0
        self._metric_names: set[str] = set()
        self._some_are_idle = False  # a rank without rows in this step

    def settle_precision(self, used: str | None) -> tuple[str, str]:
        """Choose the number format: that of the run so far, where it goes on. Gives it with the reason."""
        name, reason = choose_precision(self.settings.precision, self.device, used, "train.precision")
        name = self.world.first_says(name)  # ranks may have measured different speeds
        if self._narrow is not None and name != "bf16":
            raise ConfigError(
                f"train.weights = {self.settings.weights}: goes with precision bf16, and this run has {name}"
            )
        self.precision = Precision(name, self.device)
        self.optimizer.settle_precision(name)
        return name, reason

    def peak_flops_per_second(self) -> float:
        """Of all ranks, by the speed of large matrix products."""
        return self.world.size * products_per_second(self.device, self.precision.name)

    # ------------------------------------------------------------------------------------- passes

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

    def global_counts(self, micro_batches: Sequence[Batch]) -> dict[str, float]:
        """What each part of the loss is divided by: its count over the whole step, known before the first pass."""
        names = sorted(self.objective.weights)
        counts = [self.objective.counts(batch) for batch in micro_batches]
        own = [float(sum(count.get(name, 0) for count in counts)) for name in names]
        *sums, num_idle = self.world.sums([*own, float(not micro_batches)])
        self._some_are_idle = num_idle > 0
        return dict(zip(names, sums, strict=True))

    def passes(self, micro_batches: Sequence[Batch]) -> list[tuple[Batch, bool]]:
        """The step's micro-batches, and whether they count. All ranks compute a divided model at once: one that has
        fewer than others joins them with a batch that does not count."""
        own = [(batch, True) for batch in micro_batches]
        if not self.is_divided:
            return own
        numbers = self.world.all_of([len(micro_batches)])
        spare = list(micro_batches[:1])
        if min(numbers) == 0:  # the last rows of an epoch may be fewer than the ranks
            spare = self.world.says(spare, numbers.index(max(numbers)))
        return own + [(batch, False) for batch in spare * (max(numbers) - len(micro_batches))]

    def accumulate(self, batch: Batch, counts: Mapping[str, float], is_counted: bool = True) -> Loss:
        """One micro-batch forward and backward; its gradients add to those that are there."""
        on_device = self.on_device(batch)
        with self.precision.autocast():
            scaled, loss = self.apply(partial(self._scaled_loss, on_device, counts))
        if not is_counted:
            scaled, loss = scaled * 0.0, _without_rows(loss)
        if isinstance(scaled, Tensor) and scaled.requires_grad:
            with nullcontext() if self._gathered is None else peers():
                scaled.backward()
        return loss

    def on_device(self, batch: Batch) -> Batch:
        return batch.sent(self._send)

    def _send(self, array: Any) -> Tensor:
        """From pinned memory a GPU copies while the host goes on; from any other it makes it wait."""
        tensor = torch.as_tensor(array)
        is_gpu = self.device.type == "cuda"
        return (tensor.pin_memory() if is_gpu else tensor).to(self.device, non_blocking=is_gpu)

    def _scaled_loss(self, batch: Batch, counts: Mapping[str, float], model: Any) -> tuple[Any, Loss]:
        """What the gradients are of, and the loss itself."""
        loss = self.objective(model, batch, self.step + 1)
        return self.scaled(loss, counts), loss

    def scaled(self, loss: Loss, counts: Mapping[str, float]) -> Any:
        """Every part over its global count, by weight."""
        weights, scale = self.objective.weights, self.precision.scale
        return sum(part.sum * (weights[n] * scale / max(1.0, counts[n])) for n, part in loss.parts.items())

    def joint_outputs(self, batch: Batch) -> Tensor:
        """What a joint objective compares of a batch's rows."""
        assert isinstance(self.objective, JointObjective)
        with self.precision.autocast():
            return self.objective.outputs(self.model, batch, self.step + 1).float()

    def compare(self, outputs_ND: Tensor, ids_N: Tensor, counts: Mapping[str, float]) -> Loss:
        """The loss of a step's outputs, this rank's share of it, and its gradients down to the outputs."""
        assert isinstance(self.objective, JointObjective)
        loss = self.objective.compare(self.model, outputs_ND, ids_N, self.world.rank, self.world.size)
        self.scaled(loss, counts).backward()
        return loss

    def narrowed(self) -> AbstractContextManager[None]:
        """For the passes of a step: weights in the format that the settings ask for."""
        return nullcontext() if self._narrow is None else self._narrow.in_use()

    def sending(self) -> AbstractContextManager[None]:
        """For the last backward pass of a step, inside of `narrowed`: gradients go to the other ranks as they come."""
        if self._sums is None or not self.settings.overlap:
            return nullcontext()
        return self._sums.sending(lambda p: p.grad if self._narrow is None else self._narrow.gradient(p))

    def must_stop(self) -> bool:
        """Whether a signal came, between two micro-batches."""
        # Divided models exchange weights in every pass: there all ranks must stop at the same micro-batch.
        requested = signals.requested()
        return self.world.any(requested) if self.shards.size > 1 else requested

    def seed_torch(self) -> None:
        """For modules that draw from torch's own generator: a pure function of seed and step, so nothing to store."""
        seed = self._seed * 1_000_003 + self.step * 8191 + self.world.rank
        torch.manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF)

    def finish_passes(self, totals: Mapping[str, list[Any]], counts: Mapping[str, float]) -> Step:
        """Gradients and sums of all ranks, once the own micro-batches are done."""
        if self._gathered is not None:
            self._gathered.release()
            self.optimizer.take_gradients()
        elif self._sums is not None:
            self._sums.finish()
        # A rank whose rows have no such metric must still take part in the sum: names are learned once, then fixed.
        names = {key for key in totals if key.startswith(_METRIC)}
        self._metric_names |= self.world.names_of_all(names) if self._some_are_idle else names
        keys = sorted({*counts, *self._metric_names})
        flat = [float(value) for key in keys for value in totals.get(key, (0.0, 0.0))]
        summed = self.world.sums(flat)
        pairs = {key: (summed[2 * i], summed[2 * i + 1]) for i, key in enumerate(keys)}
        loss = sum(weight * pairs[name][0] / max(1.0, counts[name]) for name, weight in self.objective.weights.items())
        return Step(
            loss=float(loss),
            grad_norm=self._unscaled_grad_norm(),
            parts={name: pairs[name] for name in counts},
            metrics={key.removeprefix(_METRIC): pairs[key] for key in keys if key.startswith(_METRIC)},
        )

    @torch.no_grad()
    def _unscaled_grad_norm(self) -> float:
        gradients = self.optimizer.gradients
        if not gradients:
            return 0.0
        if self.precision.scale != 1:
            torch._foreach_div_(gradients, self.precision.scale)
        own = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
        return own if self._gathered is None else math.sqrt(self.world.sums([own * own])[0])  # of the own rows

    # ------------------------------------------------------------------------------------- updates

    def judge(self, step: Step) -> str:
        """ "" to take the update, or why not. An fp16 overflow is answered by a smaller scale, not counted as bad."""
        finite = all(abs(value) < float("inf") for value in (step.loss, step.grad_norm))
        if not finite and self.precision.overflowed():
            return f"fp16 overflow, loss scale now {self.precision.scale:g}"
        if finite:
            self.precision.finite()
        return self.guard.judge(step.loss, step.grad_norm)

    @torch.no_grad()
    def update(self, step: Step, num_steps: int) -> None:
        """Clip, then move by the schedule's learning rate in a run of so many steps."""
        clip = self.settings.clip
        if clip and step.grad_norm > clip:
            torch._foreach_mul_(self.optimizer.gradients, clip / (step.grad_norm + 1e-6))
        self.learning_rate = self.settings.learning_rate * lr_fraction(self.settings, self.step + 1, num_steps)
        self.optimizer.step(self.learning_rate)
        for after_update in self._after_update:
            after_update(self.step + 1, num_steps)
        if self._average is not None:
            self._average.update(self.model, self.step + 1)

    def evaluated(self, evaluate: Evaluate, step: int | None) -> Evaluation:
        """What `evaluate` says of the model as it would be saved now."""
        if self._average is not None:
            self._average.swap(self.model)
        self.model.eval()
        try:
            with torch.no_grad(), self.precision.autocast():
                return self.apply(lambda model: evaluate(model, step))
        finally:
            self.model.train()
            if self._average is not None:
                self._average.swap(self.model)

    # ------------------------------------------------------------------------------------- to and from the disk

    def state(self) -> Json:
        """What decides the next step besides the tensors."""
        return {
            "step": self.step,
            "learning_rate": self.learning_rate,
            "precision": self.precision.state(),
            "guard": self.guard.state(),
            "metric_names": sorted(self._metric_names),
        }

    def load(self, saved: Artifact, state: Values) -> None:
        """Tensors and numbers as they were when the checkpoint was saved."""
        stored = slices.Stored.of(saved)
        slices.load_model(self.model, stored, slices.WEIGHTS, self.shards)
        if self._average is not None:
            averaged = slices.load_state(stored, slices.AVERAGE, self.shards)
            self._average.weights = {name: averaged[name].to(self.device) for name in self._average.weights}
        self.optimizer.load(slices.load_state(stored, slices.OPTIMIZER, self.shards))
        self.step, self.learning_rate = state["step"], state["learning_rate"]
        if state["precision"]["name"] == self.precision.name:
            self.precision.load(state["precision"])
        self.guard.load(state["guard"])
        self._metric_names = set(state["metric_names"])

    @property
    def is_divided(self) -> bool:
        return self._gathered is not None

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """The files of a checkpoint whose model is not divided."""
        weights = checkpoint.model_tensors(self.model)
        files = {"model.safetensors": weights, "optimizer.safetensors": self.optimizer.state()}
        if self._average is not None:
            # The averaged weights are the model that one uses; the ones that learn lie beside it.
            files |= {"model.safetensors": weights | self._average.weights, "weights.safetensors": weights}
        return files

    def write_slices(self, folder: Path) -> None:
        """Of a divided model: every rank its own rows into the first one's folder, which then joins the model."""
        folder = Path(self.world.first_says(str(folder)))
        weights = slices.model_slices(self.model, self.shards)
        shapes = {name: tuple(p.shape) for name, p in self.model.named_parameters()}
        kinds = {slices.WEIGHTS: weights}
        kinds[slices.OPTIMIZER] = slices.state_slices(self.optimizer.state(), shapes, self.shards)
        if self._average is not None:
            averaged = {name: replace(weights[name], rows=w) for name, w in self._average.weights.items() if len(w)}
            kinds[slices.AVERAGE] = weights | averaged
        with self.world.together(), output_errors(folder):
            slices.write_rank(folder, self.world.rank, kinds)
        if self.world.is_first:
            used = slices.WEIGHTS if self._average is None else slices.AVERAGE
            slices.join(folder, self.world.size, used)


def forward_backward(session: Session, micro_batches: Sequence[Batch]) -> Step | None:
    """Gradients of the whole step. None: a signal came, on any rank; the open accumulation is dropped."""
    counts = session.global_counts(micro_batches)
    totals: Totals = {name: [0.0, 0.0] for name in counts}
    session.seed_torch()
    session.optimizer.zero_grad()
    passes = _jointly if isinstance(session.objective, JointObjective) else _one_by_one
    with session.narrowed():
        stopped = passes(session, micro_batches, counts, totals)
    if stopped:
        session.optimizer.zero_grad()
        return None
    return session.finish_passes(totals, counts)


def _backward_order(model: Any) -> list[nn.Parameter]:
    """What learns, roughly in the order in which a backward pass is done with it: from the heads down."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    above = getattr(model, "layers_above", None)
    return [p for _, p in sorted(reversed(named), key=lambda pair: above(pair[0]) if above else 0)]


def _one_by_one(session: Session, micro_batches: Sequence[Batch], counts: Counts, totals: Totals) -> bool:
    """Rows that do not know of one another: gradients of micro-batches add up. Whether a signal came, on any rank."""
    passes = session.passes(micro_batches)
    for batch, is_counted in passes[:-1]:
        if session.must_stop():
            break
        _add(totals, session.accumulate(batch, counts, is_counted))
    # The last pass sends gradients, so all ranks begin it or none does; a signal from here on waits for its end.
    if session.world.any(signals.requested()):
        return True
    if passes:
        with session.sending():
            batch, is_counted = passes[-1]
            _add(totals, session.accumulate(batch, counts, is_counted))
    return False


def _jointly(session: Session, micro_batches: Sequence[Batch], counts: Counts, totals: Totals) -> bool:
    """Rows that are compared with one another. Whether a signal came, on any rank."""
    for loss in _joint_losses(session, micro_batches, counts):
        _add(totals, loss)
    return session.world.any(signals.requested())


def _joint_losses(session: Session, micro_batches: Sequence[Batch], counts: Counts) -> Iterator[Loss]:
    """The loss of rows that are compared with one another (schema.JointObjective), by gradient caching: two forward
    passes with the memory of one micro-batch, and the gradients of one big batch. Dropout is a function of (seed,
    step, example), so both passes see the same. What fits at once needs one pass."""
    assert not session.is_divided, "task retrieve has the whole model on every rank"
    world, batches = session.world, [session.on_device(batch) for batch in micro_batches]
    at_once = len(batches) == 1 and world.size == 1
    own: list[Tensor] = []
    for batch in batches:
        if world.size == 1 and session.must_stop():  # other ranks wait for these outputs
            return
        with nullcontext() if at_once else torch.no_grad():
            own.append(session.joint_outputs(batch))
    ids_N = torch.tensor(world.all_of([int(i) for batch in batches for i in _ids(batch)]))
    if at_once:
        yield session.compare(own[0], ids_N, counts)
        return
    outputs_ND, start = _of_all_ranks(world, own, session.device)
    yield session.compare(outputs_ND.requires_grad_(), ids_N, counts)
    assert outputs_ND.grad is not None
    world.add(outputs_ND.grad)
    for batch in batches:
        if world.size == 1 and session.must_stop():
            return
        end = start + batch.num_rows
        session.joint_outputs(batch).backward(outputs_ND.grad[start:end])
        start = end


def _ids(batch: Batch) -> Any:
    assert batch.example_ids_B is not None
    return batch.example_ids_B


def _of_all_ranks(world: World, own: Sequence[Tensor], device: torch.device) -> tuple[Tensor, int]:
    """The outputs of all rows in the order of the ranks, and where those of this one start."""
    sizes = world.all_of([sum(map(len, own))])
    width = max(world.all_of([own[0].shape[1] if own else 0]))  # a rank may have no rows
    outputs_ND, start = torch.zeros((sum(sizes), width), device=device), sum(sizes[: world.rank])
    outputs_ND[start : start + sizes[world.rank]] = torch.cat([outputs_ND[:0], *own])
    world.add(outputs_ND)
    return outputs_ND, start


def _without_rows(loss: Loss) -> Loss:
    """The same names, of nothing."""
    parts, metrics = (dict.fromkeys(values, LossPart(torch.zeros(()), 0)) for values in (loss.parts, loss.metrics))
    return Loss(parts, metrics)


def _add(totals: dict[str, list[Any]], loss: Loss) -> None:
    for name, part in [*loss.parts.items(), *((_METRIC + name, part) for name, part in loss.metrics.items())]:
        pair = totals.setdefault(name, [0.0, 0.0])
        pair[0] = pair[0] + _detached(part.sum)
        pair[1] = pair[1] + _detached(part.count)


def _detached(value: Any) -> Any:
    """Without its graph, and on the device until the step's end: no waiting for it after every micro-batch."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().float() if value.device.type == "mps" else value.detach().double()


def _listeners(model: nn.Module) -> list[Callable[[int, int], None]]:
    """Parts that change themselves as they learn (AdaLoRA), called with the step and the number of steps."""
    parts: list[Any] = [part for part in model.modules() if hasattr(part, "after_update")]
    return [part.after_update for part in parts]


def _check_divisible(settings: TrainSettings) -> None:
    if settings.weights == "bf16-master":
        raise ConfigError(
            f"train.weights = {settings.weights}: goes with train.parallel = ddp; fsdp keeps fp32 weights"
        )


def _made_ready(model: Any, settings: TrainSettings, device: torch.device) -> nn.Module:
    """What the settings ask of the network itself; networks that cannot are not trained with these switches."""
    if settings.trainable_top_layers is not None:
        model.train_top_layers(settings.trainable_top_layers)
    if settings.activation_checkpointing:
        model.checkpoint_layers()
    if settings.compile:
        model.compile_layers(whole=device.type == "cuda")
    return model.train()
