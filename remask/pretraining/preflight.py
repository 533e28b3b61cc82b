"""The numbers that a pretraining's preflight is made of, and its lines on the screen.

In: the run, its network and its batches. Out: train.preflight.Facts; nothing is changed. Not here: the rules and words
of the lines and warnings (train.preflight).
"""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from remask.data.batches import Batches
from remask.data.settings import PAIRS
from remask.model import cost
from remask.precision import choose_device, choose_precision, memory_of, products_per_second
from remask.pretraining.settings import PretrainRun
from remask.progress import Progress, counted
from remask.schema import Json
from remask.train.budget import planned_steps
from remask.train.distributed import World
from remask.train.narrow import masters
from remask.train.preflight import Facts, data_warnings, gathered, lines, warnings

if TYPE_CHECKING:
    from remask.model.network import Network


def preflight(
    run: PretrainRun, out: Path, network: Network, batches: Batches, world: World, progress: Progress
) -> Json:
    """Show what the run will be; gives the numbers for run.json."""
    checks = _facts(run, out, network, batches, world)
    data = batches.describe()
    if world.is_first:
        for line in lines(checks, run.train):
            progress.say(f"  {line}")
        if data["cut_sentences"]:
            row = "half a row" if run.data.format in PAIRS else "a row"  # each part of a pair has half of it
            cut = counted(data["cut_sentences"], "sentence")
            progress.say(f"  {cut} longer than {row} of {data['length']} tokens, and cut there")
        about_data = data_warnings(
            data,
            sentence_loss=run.data.sentence_loss,
            causal_share=run.objective.causal_share,
            repeat=run.data.masking.repeat,
        )
        for line in [*warnings(checks, run.train), *about_data]:
            progress.warn(line)
    return {**dataclasses.asdict(checks), "data": data}


def _facts(run: PretrainRun, out: Path, network: Network, batches: Batches, world: World) -> Facts:
    num_steps = planned_steps(run.train, batches)
    parameters, rows = _size(network), batches.num_examples / batches.steps_per_epoch
    device = choose_device(run.train.device, "train.device")
    precision, _ = choose_precision(run.train.precision, device, key="train.precision")
    products = cost.flops_per_token(network.settings, network.head_settings, run.data.length)
    place = next(path for path in [out, *out.absolute().parents] if path.exists())
    return Facts(
        parameters=parameters,
        trainable=sum(
            p.numel() for p in network.learning_parameters(run.train.trainable_top_layers) if p.requires_grad
        ),
        hidden_size=run.model.hidden_size,
        num_layers=run.model.num_layers,
        post_norm=run.model.norm == "post",
        tokens_per_step=batches.tokens_per_step,
        rows_per_step=rows,
        micro_tokens=round(batches.pass_tokens),
        steps_per_epoch=batches.steps_per_epoch,
        num_steps=num_steps,
        free_bytes=shutil.disk_usage(place).free,
        flops_per_token=cost.TRAINING_FACTOR * sum(products.values()),
        flops_per_second=world.size * products_per_second(device, precision),
        precision=precision,
        planned_tokens=batches.tokens_in(num_steps) if num_steps else 0.0,
        planned_passes=batches.passes_in(num_steps) if num_steps else 0.0,
        first_rows=run.data.batch.ramp_from,
        growing_share=run.data.batch.ramp_steps,
        short_length=run.data.short_length if run.data.short_steps else None,
        short_share=run.data.short_steps,
        length=run.data.length,
        ranks=world.size,
        parallel=run.train.parallel,
        micro_batches=math.ceil(rows / (run.data.batch.micro_rows * world.size)),
        whole_parameters=gathered(parameters, [_size(part) for part in network.parts_to_shard()]),
        has_average=run.train.ema_decay > 0,
        device=str(device),
        device_bytes=memory_of(device),
        copied_parameters=sum(w.numel() for w in masters(network)) if run.train.weights == "bf16-master" else 0,
    )


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
