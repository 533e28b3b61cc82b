"""A search's ranges beside the values of its run: what is given is kept, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from remask.config import build_run
from remask.errors import ConfigError
from remask.tune.settings import TUNED, FinetuneRun, TuneRun

RANGES: dict[str, Any] = {
    "lr": [1e-5, 1e-3], "batch": [8, 16], "epochs": [1.0, 2.0], "warmup": [0.0, 0.1], "weight_decay": [0.0, 0.1],
}  # fmt: skip
VALUES: dict[str, Any] = {"lr": 1e-4, "batch": 4, "epochs": 1.0, "warmup": 0.05, "weight_decay": 0.01}


@pytest.mark.parametrize("name", TUNED)
def test_a_value_and_a_range_are_refused_together(name: str) -> None:
    place = ".".join(TUNED[name])
    with pytest.raises(ConfigError, match=rf"{place} and search\.{name} are both given: a value, or a range to search"):
        build_run(TuneRun, options={place: VALUES[name], f"search.{name}": RANGES[name]})


@pytest.mark.parametrize("name", TUNED)
def test_a_value_alone_is_kept_and_a_range_alone_searched(name: str) -> None:
    place = ".".join(TUNED[name])
    assert build_run(TuneRun, assignments=[f"{place}={VALUES[name]}"]).run.given() == {name}
    assert build_run(TuneRun, options={f"search.{name}": RANGES[name]}).run.given() == set()


def test_other_values_leave_the_rest_of_a_run_as_it_is() -> None:
    run = build_run(FinetuneRun, options={"train.epochs": 2.0, "batch.num_rows": 4, "grid.lr": [1e-5]}).run
    changed = run.with_values({"lr": 1e-3, "batch": 16})
    assert (changed.train.learning_rate, changed.batch.num_rows, changed.train.epochs) == (1e-3, 16, 2.0)
    assert not changed.grid.given()
    assert run.batch.num_rows == 4
