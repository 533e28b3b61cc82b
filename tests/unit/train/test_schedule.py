"""Learning rates over a run, and budgets as steps."""

from __future__ import annotations

import itertools

import pytest

from remask.train.optim import lr_fraction, warmup_steps
from remask.train.settings import TrainSettings


def curve(num_steps: int = 100, **changes: object) -> list[float]:
    settings = TrainSettings.model_validate(changes)
    return [lr_fraction(settings, step, num_steps) for step in range(1, num_steps + 1)]


def test_warmup_is_a_share_or_a_number_of_steps() -> None:
    assert warmup_steps(TrainSettings(warmup=0.1), 200) == 20
    assert warmup_steps(TrainSettings(warmup=24000.0), 500_000) == 24000
    assert curve(warmup=0.1)[:10] == pytest.approx([i / 10 for i in range(1, 11)])
    assert curve(warmup=0.0)[0] == pytest.approx(1.0, abs=0.01)


def test_linear_falls_evenly_to_just_above_the_end() -> None:
    values = curve(warmup=0.1)
    steps = [a - b for a, b in itertools.pairwise(values[10:])]
    assert steps == pytest.approx([steps[0]] * len(steps))
    assert values[9] == 1.0
    assert 0 < values[-1] < 0.02


def test_cosine_is_flat_at_both_ends() -> None:
    values = curve(schedule="cosine", warmup=0.0)
    assert values[0] == pytest.approx(1.0, abs=1e-3)
    assert values[49] == pytest.approx(0.5, abs=0.02)
    assert values[0] - values[1] < 0.2 * (values[49] - values[50])
    assert values[-1] < 1e-3


def test_stable_holds_and_then_decays() -> None:
    values = curve(schedule="stable", decay=0.2, warmup=0.1)
    assert values[10:80] == [1.0] * 70
    assert values[80] < 1.0
    assert values[-1] == pytest.approx(1 / 21)
    assert curve(schedule="stable", decay=0.4, warmup=0.1)[70] < 1.0


def test_the_end_can_be_a_share_of_the_peak() -> None:
    for schedule in ("linear", "cosine", "stable"):
        values = curve(schedule=schedule, final_lr_fraction=0.1)
        assert min(values[20:]) >= 0.1
        assert values[-1] == pytest.approx(0.1, abs=0.05)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "stable"])
@pytest.mark.parametrize("num_steps, warmup", [(1, 0.0), (1, 0.5), (3, 10.0), (10, 10.0)])
def test_odd_lengths_give_sane_rates(schedule: str, num_steps: int, warmup: float) -> None:
    assert all(0 < value <= 1 for value in curve(num_steps, schedule=schedule, warmup=warmup))
