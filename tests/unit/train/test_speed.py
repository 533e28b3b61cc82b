"""Switches of speed that need a machine's help: number formats and the compiler. Same result within their rounding.

Also here: the spike guard at work inside a run, which needs a history of losses.
"""

from __future__ import annotations

import json
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from remask import signals
from remask.config import build_run
from remask.precision import probe
from remask.pretraining.run import pretrain as main
from remask.pretraining.settings import PretrainRun
from remask.progress import Progress

from .test_loop import lines, run
from .toy import ToyObjective

TINY = {
    "model.num_layers": 2,
    "model.hidden_size": 32,
    "model.num_heads": 2,
    "model.ffn_size": 64,
    "model.max_length": 32,
    "data.length": 32,
    "data.batch.num_rows": 16,
    "data.batch.micro_rows": 8,
    "data.evaluation.num_rows": 16,
    "train.steps": 30,
    "train.learning_rate": 3e-3,
    "train.clip": 1.0,
    "train.log_every": 1,
    "train.save_every": 0,
    "train.eval_every": 0,
    "train.device": "cpu",
}


def losses(prepared: Path, out: Path, **changes: Any) -> list[float]:
    options = {**TINY, "prepared": str(prepared), **{f"train.{name}": value for name, value in changes.items()}}
    with signals.catch():
        main(build_run(PretrainRun, options=options).run, out, progress=Progress(stream=StringIO()))
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["train/loss"] for line in found if "train/loss" in line] + [found[-1]["eval/loss"]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, tiny_prepared: Path) -> list[float]:
    found = losses(tiny_prepared, tmp_path_factory.mktemp("plain") / "out", precision="fp32")
    assert found[-2] < 0.9 * found[0]  # it learns, so equal losses mean something
    return found


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_other_number_formats_give_the_same_within_their_rounding(
    precision: str, tmp_path: Path, tiny_prepared: Path, plain: list[float]
) -> None:
    works, reason = probe(precision, "cpu")
    if not works:
        pytest.skip(f"{precision} does not work on this machine: {reason}")
    found = losses(tiny_prepared, tmp_path / "out", precision=precision)
    assert found != plain
    assert found == pytest.approx(plain, rel=0.02)


def test_auto_is_one_of_the_formats(tmp_path: Path, tiny_prepared: Path, plain: list[float]) -> None:
    assert losses(tiny_prepared, tmp_path / "out", precision="auto") == pytest.approx(plain, rel=0.02)


@pytest.mark.filterwarnings("default")  # the compiler's own
def test_compiled_is_equal(tmp_path: Path, tiny_prepared: Path, plain: list[float]) -> None:
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("torch.compile needs a C++ compiler, which this machine lacks")
    assert losses(tiny_prepared, tmp_path / "out", precision="fp32", compile=True) == pytest.approx(plain, rel=1e-4)


def test_a_spike_in_a_run_is_skipped_and_logged_unless_off(tmp_path: Path) -> None:
    def spoiled() -> ToyObjective:
        objective = ToyObjective()
        objective.spoil = {130: 60.0}
        return objective

    run(tmp_path / "on", objective=spoiled(), steps=140)
    (event,) = [line for line in lines(tmp_path / "on") if "event" in line]
    assert (event["step"], event["event"]) == (130, "skipped")
    assert "spike" in event["reason"]
    run(tmp_path / "off", objective=spoiled(), steps=140, spike_sigmas=0.0)
    assert not any("event" in line for line in lines(tmp_path / "off"))
