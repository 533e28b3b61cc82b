"""Steps from tokens, passes and minutes, where the first steps are smaller than the later ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from remask import signals
from remask.progress import Progress
from remask.train import budget
from remask.train.loop import train
from remask.train.settings import TrainSettings

from .toy import ToyBatches, ToyModel, ToyObjective


@dataclass
class Growing(ToyBatches):
    """Half of the steps do half as much."""

    def tokens_in(self, num_steps: int) -> float:
        return self.tokens_per_step * 0.75 * num_steps

    def passes_in(self, num_steps: int) -> float:
        return 0.75 * num_steps / self.steps_per_epoch


def test_the_fewest_steps_that_reach_the_budget() -> None:
    plain, growing = ToyBatches(), Growing()
    for tokens in (1, 24, 25, 240, 2_400_000):
        settings = TrainSettings(tokens=tokens)
        assert budget.planned_steps(settings, plain) == -(-tokens // 24)
        steps = budget.planned_steps(settings, growing)
        assert steps is not None
        assert growing.tokens_in(steps) >= tokens
        assert steps == 1 or growing.tokens_in(steps - 1) < tokens
    assert budget.planned_steps(TrainSettings(epochs=3.0), plain) == 30
    assert budget.planned_steps(TrainSettings(epochs=3.0), growing) == 40
    assert budget.planned_steps(TrainSettings(epochs=3.0, steps=31), growing) == 31


@dataclass
class Stretched(ToyBatches):
    """Says that a tenth of the run is as the first of its parts, and the rest grows from the first to the second."""

    parts: list[ToyBatches] = field(default_factory=lambda: [ToyBatches(rows=2), ToyBatches(rows=8)])

    def stretches(self) -> list[tuple[float, Any, Any]]:
        small, large = self.parts
        return [(0.1, small, small), (0.9, small, large)]


def test_minutes_count_what_the_later_steps_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def timed(run: Any, batches: ToyBatches, at_most: float) -> float:
        asked.append(batches.rows)
        return 0.1 * batches.rows

    monkeypatch.setattr(budget, "_timed", timed)
    said = StringIO()
    with signals.catch():
        train(
            model=ToyModel(),
            batches=Stretched(),
            objective=ToyObjective(),
            settings=TrainSettings(minutes=1.0, steps=3, precision="fp32", device="cpu", save_every=0, eval_every=0),
            folder=tmp_path,
            identity={},
            carried={},
            evaluate=None,
            progress=Progress(stream=said),
            seed=1,
        )
    assert asked == [2, 8]  # each kind once
    assert "0.47 s a step" in said.getvalue()  # 0.1 * 0.2 + 0.9 * (0.2 + 0.8) / 2


@pytest.mark.parametrize("spent, steps", [(0.0, 29), (40.0, 9)])
def test_making_the_model_is_part_of_the_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spent: float, steps: int
) -> None:
    """Counting for the start takes seconds that are then no longer there for steps."""
    monkeypatch.setattr(budget, "_seconds_per_step", lambda *rest: 2.0)
    with signals.catch():
        result = train(
            model=ToyModel(),
            batches=ToyBatches(),
            objective=ToyObjective(),
            settings=TrainSettings(minutes=1.0, precision="fp32", device="cpu", save_every=0, eval_every=0),
            folder=tmp_path,
            identity={},
            carried={},
            evaluate=None,
            progress=Progress(stream=StringIO()),
            seed=1,
            spent_seconds=spent,
        )
    assert steps - 3 <= result.step <= steps + 1  # however busy the machine is
