"""What the loop is handed: a model, batches, an objective, an evaluation and the settings of one run, in one object.

In: from pretraining, fine-tuning, tests and benchmarks. Out: nothing is computed here. Also the words of the seam: what
an evaluation gives back, what one step adds up to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from remask.schema import BatchSource, Objective, Values
from remask.train.checkpoint import Files
from remask.train.settings import TrainSettings


@dataclass(frozen=True)
class Evaluation:
    """Numbers by name, examples to look at (they go into the log alone), and whether the training may end here."""

    metrics: Mapping[str, float]
    samples: Sequence[Any] | None = None
    is_enough: bool = False


# evaluate(model, step): the model after so many steps. None: it is only timed, and the scores mean nothing.
Evaluate = Callable[[Any, int | None], Evaluation]


@dataclass(frozen=True)
class Job:
    """One training in one folder, whose lock the caller holds.

    `identity`: what must be the same when the folder's run goes on, but for the keys in `allow_change`. `carried`:
    files that every checkpoint holds besides the weights. `flops_per_token`: of a step, forward and backward; given,
    the share of the machine's peak (perf/mfu) is logged. `spent_seconds`: what making the model took: part of
    a budget of minutes.
    """

    model: nn.Module
    batches: BatchSource
    objective: Objective
    settings: TrainSettings
    folder: Path
    seed: int
    identity: Values
    carried: Files
    evaluate: Evaluate | None = None
    allow_change: Sequence[str] = ()
    name: str = "train"
    flops_per_token: float = 0.0
    spent_seconds: float = 0.0
