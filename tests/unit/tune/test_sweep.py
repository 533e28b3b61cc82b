"""One loop for grids and searches: what is tried, in which order, what is told, what may fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remask.progress import Progress
from remask.tune.settings import FinetuneRun
from remask.tune.sweep import Trial, sweep


class Diverged(Exception):
    """What a trial may end with."""


def tune(run: FinetuneRun, out: Path, **_: Any) -> dict[str, Any]:
    if run.train.learning_rate == 1.0:
        raise Diverged
    return {"score": run.train.learning_rate, "rows": run.batch.num_rows, "folder": out.name}


def trials(heard: list[Any]) -> Iterator[Trial]:
    for number, rate in enumerate((0.1, 1.0, 0.3)):
        assert len(heard) == number
        yield Trial({"lr": rate, "batch": 8}, Path(str(number)), ended=heard.append)


def test_every_trial_is_heard_of_before_the_next() -> None:
    heard: list[Any] = []
    run = FinetuneRun.model_validate({"train": {"learning_rate": 5.0}, "batch": {"num_rows": 2, "micro_tokens": 64}})
    done = sweep(tune, run, trials(heard), progress=Progress(quiet=True), may_fail=(Diverged,))
    assert [(trial.name, result["score"], result["rows"], result["folder"]) for trial, result in done] == [
        ("lr 0.1, batch 8", 0.1, 8, "0"), ("lr 0.3, batch 8", 0.3, 8, "2"),
    ]  # fmt: skip
    assert [type(outcome) for outcome in heard] == [dict, Diverged, dict]
    assert run.train.learning_rate == 5.0  # the run itself stays as it is


def test_what_may_not_fail_ends_the_sweep() -> None:
    heard: list[Any] = []
    with pytest.raises(Diverged):
        sweep(tune, FinetuneRun(), trials(heard), progress=Progress(quiet=True))
    assert [type(outcome) for outcome in heard] == [dict]
