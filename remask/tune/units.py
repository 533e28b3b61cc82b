"""What a regression's numbers are measured in: standard units while it learns, the file's own everywhere else.

In: a regression's training examples. Out: `Units`, which change rows on their way in, outputs on their way out, and the
head of a model that is published (or started from). Checkpoints between steps are in standard units. Not here: losses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from remask.tasks.texts import Regress

if TYPE_CHECKING:
    from torch import nn

    from remask.model.network import Network
    from remask.tasks.kind import Problem
    from remask.tasks.rows import Rows


@dataclass(frozen=True)
class Units:
    """Numbers as `deviation` x a value with mean 0 and deviation 1 over the training data, plus `mean`. Without them a
    head's small steps would never reach prices in thousands."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, problem: Problem) -> Units | None:
        if not isinstance(problem.kind, Regress):
            return None
        numbers = np.array([float(example.label) for example in problem.train])
        return cls(float(numbers.mean()), float(numbers.std()) or 1.0)

    def inside(self, rows: Rows) -> Rows:
        assert rows.labels is not None
        return replace(rows, labels=[np.float32((value - self.mean) / self.deviation) for value in rows.labels])

    def outside(self, outputs: list[np.ndarray]) -> list[np.ndarray]:
        return [output * self.deviation + self.mean for output in outputs]

    @property
    def back(self) -> Units:
        return Units(-self.mean / self.deviation, 1 / self.deviation)

    @contextmanager
    def spoken_by(self, network: Network) -> Iterator[None]:
        """The head answers in these units inside, and is afterwards what it was, bit for bit."""
        import torch

        linear = network.heads.classifier
        assert linear is not None
        kept = linear.weight.detach().clone(), linear.bias.detach().clone()
        self.fold(linear)
        try:
            yield
        finally:
            with torch.no_grad():
                linear.weight.copy_(kept[0])
                linear.bias.copy_(kept[1])

    def fold(self, linear: nn.Linear | None) -> None:
        import torch

        assert linear is not None

        with torch.no_grad():
            linear.weight.mul_(self.deviation)
            linear.bias.mul_(self.deviation).add_(self.mean)
