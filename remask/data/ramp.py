"""How many rows a step has, where the batch grows at the start of a run: a staircase in closed form.

In: BatchSettings and the number of steps of the run. Out: the rows of any step and of all steps before it, so the data
order stays a pure function of the step. The batch grows by `ramp_from` rows at a time, in stairs of equal length, up to
`num_rows`; every size is a multiple of the first, so ranks that share the first share all. Not here: batches that are
counted in tokens.
"""

from __future__ import annotations

import numpy as np

from remask.data.settings import BatchSettings


class Ramp:
    """Rows by step. Until the length of the run is known (`num_steps` None) all steps are as the first."""

    def __init__(self, settings: BatchSettings, num_steps: int | None) -> None:
        self._unit = settings.ramp_from or settings.num_rows
        self._stairs = settings.num_rows // self._unit - 1  # below the full size
        self._steps = None if num_steps is None else round(settings.ramp_steps * num_steps)

    def rows(self, step: int) -> int:
        if not self._stairs or self._steps is None:
            return self._unit
        climbed = self._stairs if step >= self._steps else step * self._stairs // self._steps
        return self._unit * (1 + climbed)

    def before(self, step: int) -> int:
        """Rows of the steps 0 .. step - 1."""
        if not self._stairs or self._steps is None:
            return self._unit * step
        # Every stair adds one unit to each step from its own beginning on.
        beginnings = -(-np.arange(self._stairs + 1) * self._steps // self._stairs)
        return self._unit * int(np.maximum(step - beginnings, 0).sum())
