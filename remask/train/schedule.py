"""The learning rate as a pure function of the step.

In: TrainSettings, the step and the number of steps of the run. Out: the share of the peak learning rate. Linear
warmup and decay is section 2.4 of RoBERTa's paper; `stable` is warmup-stable-decay. Not here: the number of steps
(budget).
"""

from __future__ import annotations

import math

from remask.train.settings import TrainSettings


def warmup_steps(settings: TrainSettings, num_steps: int) -> int:
    return round(settings.warmup * num_steps) if settings.warmup < 1 else int(settings.warmup)


def lr_fraction(settings: TrainSettings, step: int, num_steps: int) -> float:
    """The share of the peak for update number `step` (the first is 1, the last is `num_steps`).

    The first update of a warmup already moves (1/warmup), and the last one of a decay still does.
    """
    warmup = warmup_steps(settings, num_steps)
    if step <= warmup:
        return step / warmup
    left = (num_steps - step + 1) / (num_steps - warmup + 1)  # just under 1 after the warmup, near 0 at the end
    if settings.schedule == "linear":
        share = left
    elif settings.schedule == "cosine":
        share = 0.5 * (1 + math.cos(math.pi * (1 - left)))
    else:
        decay_steps = max(1, round(settings.decay * num_steps))
        share = min(1.0, (num_steps - step + 1) / (decay_steps + 1))
    return settings.final_lr_fraction + (1 - settings.final_lr_fraction) * share
