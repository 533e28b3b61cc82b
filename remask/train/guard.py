"""Which updates to take: not those with NaN or Inf, nor those of a loss far above its trend.

In: the loss and gradient norm of a step, equal on all ranks. Out: "" or the reason to skip the update. The trend and
its noise are estimated robustly over the last losses, so that one spike neither hides the next nor moves the bar. All
state is plain JSON and part of the checkpoint, with the examples that were passed over by name. Not here: going back
to a checkpoint (loop).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from remask.schema import Json, Values

WINDOW = 256
RECENT = 64
FEWEST = 96  # losses before a spike can be told from the fall at the start
MOST_NAMED = 100_000  # examples that a record names one by one
NEW_LEVEL_AFTER = 3  # spikes in a row are a new level: updates were skipped, so the model did not cause them


class Consumed:
    """What was read since a cursor: how many examples and, while they are few, which.

    Batches are a pure function of the cursor, so beyond that the two cursors still name them all."""

    def __init__(self, from_cursor: Values, examples: list[int] | None = None, count: int = 0) -> None:
        self._from_cursor, self.count = dict(from_cursor), count
        self._examples: list[int] | None = list(examples or []) if len(examples or []) == count else None

    def add(self, examples: Sequence[int]) -> None:
        self.count += len(examples)
        if self._examples is not None:
            self._examples.extend(examples)
        if self.count > MOST_NAMED:
            self._examples = None

    def state(self) -> Json:
        return {"from_cursor": self._from_cursor, "examples": self._examples, "count": self.count}


class StepGuard:
    """Judges each step; remembers what was skipped."""

    def __init__(self, spike_sigmas: float) -> None:
        self.spike_sigmas = spike_sigmas
        self.losses: list[float] = []
        self.bad_in_a_row = 0
        self.spikes_in_a_row = 0
        self.skipped: list[Json] = []
        self.rollbacks: list[Json] = []

    def judge(self, loss: float, grad_norm: float) -> str:
        """ "" to take the update, or why not."""
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            self.bad_in_a_row += 1
            return f"{'loss' if not math.isfinite(loss) else 'gradient'} is not finite"
        self.bad_in_a_row = 0
        bar = spike_bar(self.losses, self.spike_sigmas)
        if loss > bar:
            self.spikes_in_a_row += 1
            if self.spikes_in_a_row >= NEW_LEVEL_AFTER:
                self.losses, self.spikes_in_a_row = [], 0
            return f"loss {loss:.4f} is a spike (over {bar:.4f})"
        self.spikes_in_a_row = 0
        if self.spike_sigmas:
            self.losses = [*self.losses[-(WINDOW - 1) :], loss]
        return ""

    def record_skip(self, step: int, reason: str, examples: Sequence[int]) -> None:
        self.skipped.append({"step": step, "reason": reason, "examples": list(examples)})

    def record_rollback(self, step: int, to_step: int, passed: Consumed, to_cursor: Values) -> None:
        self.rollbacks.append({"step": step, "to_step": to_step, **passed.state(), "to_cursor": dict(to_cursor)})
        self.bad_in_a_row = 0

    def state(self) -> Json:
        return {
            "losses": self.losses,
            "bad_in_a_row": self.bad_in_a_row,
            "spikes_in_a_row": self.spikes_in_a_row,
            "skipped": self.skipped,
            "rollbacks": self.rollbacks,
        }

    def load(self, state: Values) -> None:
        self.losses = list(state["losses"])
        self.bad_in_a_row = state["bad_in_a_row"]
        self.spikes_in_a_row = state["spikes_in_a_row"]
        self.skipped = list(state["skipped"])
        self.rollbacks = list(state["rollbacks"])


def spike_bar(losses: Sequence[float], sigmas: float) -> float:
    """The loss from which the next step counts as a spike; infinite while too little is known, or when off.

    Where the next loss is expected: on the line through the medians of both halves of the last RECENT losses, which
    follows even the steep fall at the start. How much it varies: the larger of the noise between neighbours over the
    whole window (which no trend moves) and of that around the line (which sees slow waves).
    """
    if not sigmas or len(losses) < FEWEST:
        return math.inf
    values = np.asarray(losses)
    recent = values[-RECENT:]
    half = RECENT // 2
    slope = min(0.0, float(np.median(recent[half:]) - np.median(recent[:half])) / half)
    level, around_line = _robust(recent - slope * np.arange(RECENT))
    between_neighbours = _robust(np.diff(values))[1] / math.sqrt(2)
    floor = 1e-3 * abs(level)  # nearly constant losses: a rounding is no spike
    return level + slope * RECENT + sigmas * max(around_line, between_neighbours, floor)


def _robust(values: np.ndarray) -> tuple[float, float]:
    """Mean and deviation after pulling in what lies beyond three robust deviations (by the median absolute one):
    nearly as sharp as the plain ones, and not moved by outliers."""
    middle = np.median(values)
    rough = 1.4826 * np.median(np.abs(values - middle))
    pulled = np.clip(values, middle - 3 * rough, middle + 3 * rough)
    return float(pulled.mean()), float(pulled.std()) * 1.01  # pulling in takes one percent off a normal deviation
