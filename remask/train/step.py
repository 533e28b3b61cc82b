"""One step's gradients: every micro-batch forward and backward, each part of the loss over its global count.

In: a session and the micro-batches of one optimizer step on this rank. Out: summed gradients in the parameters and a
`Step` with the sums of all ranks, or None where a signal asked to stop. Dividing by counts over all micro-batches and
ranks makes N micro-batches equal to one big batch, and two ranks equal to one. Not here: what is done with it (loop).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from remask import signals
from remask.schema import Batch, Loss

if TYPE_CHECKING:
    from remask.train.session import Session

_METRIC = "metric "  # before a metric's name, where parts and metrics share one dict


@dataclass(frozen=True)
class Step:
    """What the micro-batches of one step add up to, over all ranks."""

    loss: float
    grad_norm: float
    parts: Mapping[str, tuple[float, float]]
    metrics: Mapping[str, tuple[float, float]]


def forward_backward(run: Session, micro_batches: Sequence[Batch]) -> Step | None:
    """Gradients of the whole step. None: a signal came, on any rank; the open accumulation is dropped."""
    objective, world = run.objective, run.world
    names = sorted(objective.weights)
    own = [objective.counts(batch) for batch in micro_batches]
    counts = dict(zip(names, world.sums([float(sum(c.get(n, 0) for c in own)) for n in names]), strict=True))
    totals: dict[str, list[Any]] = {name: [0.0, 0.0] for name in names}
    torch.manual_seed(run.step_seed())
    run.optimizer.zero_grad()
    with run.narrowed():
        for batch in micro_batches:
            # Divided models exchange weights in every pass: there all ranks stop at the same micro-batch.
            if world.any(signals.requested()) if run.shards.size > 1 else signals.requested():
                break
            with run.precision.autocast():
                scaled, loss = run.apply(partial(_scaled_loss, run, batch.map(run.to_device), counts))
            if isinstance(scaled, torch.Tensor) and scaled.requires_grad:
                run.backward(scaled)
            _add(totals, loss)
    if world.any(signals.requested()):
        run.optimizer.zero_grad()
        return None
    run.add_gradients()
    return _over_ranks(run, totals, counts)


def _scaled_loss(run: Session, batch: Batch, counts: Mapping[str, float], model: Any) -> tuple[Any, Loss]:
    """What the gradients are of: every part over its global count, by weight; and the loss itself."""
    weights, scale = run.objective.weights, run.precision.scale
    loss = run.objective(model, batch, run.step + 1)
    return sum(part.sum * (weights[n] * scale / max(1.0, counts[n])) for n, part in loss.parts.items()), loss


def _add(totals: dict[str, list[Any]], loss: Loss) -> None:
    for name, part in [*loss.parts.items(), *((_METRIC + name, part) for name, part in loss.metrics.items())]:
        pair = totals.setdefault(name, [0.0, 0.0])
        pair[0] = pair[0] + _detached(part.sum)
        pair[1] = pair[1] + _detached(part.count)


def _detached(value: Any) -> Any:
    """Without its graph, and on the device until the step's end: no waiting for it after every micro-batch."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().float() if value.device.type == "mps" else value.detach().double()


def _over_ranks(run: Session, totals: Mapping[str, list[Any]], counts: Mapping[str, float]) -> Step:
    # A rank whose rows have no such metric must still take part in the sum: names are learned once, then fixed.
    run.metric_names.update(key for key in totals if key.startswith(_METRIC))
    keys = sorted({*counts, *run.metric_names})
    flat = [float(value) for key in keys for value in totals.get(key, (0.0, 0.0))]
    summed = run.world.sums(flat)
    pairs = {key: (summed[2 * i], summed[2 * i + 1]) for i, key in enumerate(keys)}
    loss = sum(weight * pairs[name][0] / max(1.0, counts[name]) for name, weight in run.objective.weights.items())
    return Step(
        loss=float(loss),
        grad_norm=run.unscaled_grad_norm(),
        parts={name: pairs[name] for name in counts},
        metrics={key.removeprefix(_METRIC): pairs[key] for key in keys if key.startswith(_METRIC)},
    )
