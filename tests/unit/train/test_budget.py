"""Steps from tokens, passes and minutes, where the first steps are smaller than the later ones."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from remask import signals
from remask.progress import Progress
from remask.train import budget
from remask.train.job import Job
from remask.train.loop import train
from remask.train.settings import TrainSettings
from remask.train.training import Training

from .test_loop import lines, run, same, weights
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
    job = Job(
        model=ToyModel(),
        batches=Stretched(),
        objective=ToyObjective(),
        settings=TrainSettings(minutes=1.0, steps=3, precision="fp32", device="cpu", save_every=0, eval_every=0),
        folder=tmp_path,
        identity={},
        carried={},
        seed=1,
    )
    with signals.catch(), Training(job, Progress(stream=said)) as training:
        train(training)
    assert asked == [2, 8]  # each kind once
    assert "0.47 s a step" in said.getvalue()  # 0.1 * 0.2 + 0.9 * (0.2 + 0.8) / 2


class Machine(ToyObjective):
    """A clock that only computing moves: half a second a micro-batch, `slow_factor` times that after step `slow_from`.
    Dies once, in the step `dies_at`."""

    def __init__(self, slow_from: int = 10**9, slow_factor: float = 1.0, dies_at: int = 0) -> None:
        super().__init__()
        self.slow_from, self.slow_factor, self.dies_at, self.now = slow_from, slow_factor, dies_at, 1000.0

    def monotonic(self) -> float:
        return self.now

    def __call__(self, model: Any, batch: Any, step: int | None) -> Any:
        if step == self.dies_at:
            self.dies_at = 0
            raise RuntimeError("killed")
        self.now += 0.5 * (self.slow_factor if step is not None and step > self.slow_from else 1.0)
        return super().__call__(model, batch, step)


def run_by_the_clock(folder: Path, machine: Machine, minutes: float = 4.0, **changes: Any) -> tuple[Any, float]:
    """The result, and the seconds that the machine worked."""
    started = machine.now
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remask.train.budget.time", machine)
        patch.setattr("remask.train.training.time", machine)
        result = run(folder, objective=machine, steps=None, minutes=minutes, save_every=25, **changes)
        return result, machine.now - started


def test_minutes_become_steps_that_are_stored(tmp_path: Path) -> None:
    result, seconds = run_by_the_clock(tmp_path, Machine())
    assert 230 <= seconds <= 241
    assert not [line for line in lines(tmp_path) if line.get("event") == "planned"]  # as planned: nothing to change
    state = json.loads((result.checkpoint / "state.json").read_text())
    assert state["plan"]["num_steps"] == result.step


@pytest.mark.parametrize(("slow_from", "slow_factor"), [(30, 2.0), (120, 3.0), (210, 2.0), (5, 0.3)])
def test_minutes_hold_on_a_machine_that_becomes_busier_or_idler(
    tmp_path: Path, slow_from: int, slow_factor: float
) -> None:
    result, seconds = run_by_the_clock(tmp_path, Machine(slow_from, slow_factor))
    assert 0.9 * 240 <= seconds <= 1.1 * 240
    planned = [line["num_steps"] for line in lines(tmp_path) if line.get("event") == "planned"]
    assert planned[-1] == result.step
    rates = [line["train/learning_rate"] for line in lines(tmp_path) if "train/learning_rate" in line]
    assert rates[-1] < 0.05 * max(rates)  # the schedule ends where the run does


@pytest.mark.parametrize("dies_at", [45, 60, 101, 119])
def test_a_killed_run_by_minutes_goes_on_by_the_plans_that_were_made(tmp_path: Path, dies_at: int) -> None:
    whole, _ = run_by_the_clock(tmp_path / "whole", Machine(30, 2.0))
    machine = Machine(30, 2.0, dies_at)
    with pytest.raises(RuntimeError, match="killed"):
        run_by_the_clock(tmp_path / "parts", machine)
    parts, _ = run_by_the_clock(tmp_path / "parts", machine)
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")
    assert same(weights(whole), weights(parts))


@pytest.mark.parametrize("spent_seconds", [0.0, 120.0])
def test_making_the_model_is_part_of_the_minutes(tmp_path: Path, spent_seconds: float) -> None:
    """Counting for the start takes seconds that are then no longer there for steps."""
    _, seconds = run_by_the_clock(tmp_path, Machine(), spent_seconds=spent_seconds)
    assert 0.9 * (240 - spent_seconds) <= seconds <= 1.1 * (240 - spent_seconds)
