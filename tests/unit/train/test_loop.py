"""The loop as a whole on a toy model: it learns, stops, goes on, and its arithmetic does not depend on layout."""

from __future__ import annotations

import contextlib
import json
import math
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from remask import precision, signals
from remask.errors import ConfigError, Stopped
from remask.progress import Progress
from remask.train import budget
from remask.train.job import Evaluation, Job
from remask.train.loop import TrainResult, train
from remask.train.settings import TrainSettings
from remask.train.training import Training

from .toy import ToyBatches, ToyModel, ToyObjective

BASE: dict[str, Any] = {
    "learning_rate": 1e-2,
    "log_every": 5,
    "save_every": 10,
    "eval_every": 20,
    "precision": "fp32",
    "device": "cpu",
}


def settings(**changes: Any) -> TrainSettings:
    return TrainSettings(**{"steps": 40, **BASE, **changes})


def run(
    folder: Path, *, model: Any = None, batches: Any = None, objective: Any = None, evaluate: Any = None, **changes: Any
) -> TrainResult:
    allow, spent_seconds = changes.pop("allow_change", ()), changes.pop("spent_seconds", 0.0)
    chosen = settings(**changes)
    job = Job(
        model=model or ToyModel(),
        batches=batches or ToyBatches(),
        objective=objective or ToyObjective(),
        settings=chosen,
        folder=folder,
        identity={"train": chosen.model_dump(), "data": "toy"},
        carried={"model.json": b"{}\n", "tokenizer/x.txt": b"x"},
        evaluate=evaluate,
        seed=3,
        allow_change=allow,
        spent_seconds=spent_seconds,
    )
    with signals.catch(), Training(job, Progress(stream=StringIO())) as training:
        return train(training)


def lines(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "time" and not k.startswith("perf/")} for line in found]


def weights(result: TrainResult) -> dict[str, torch.Tensor]:
    return load_file(result.checkpoint / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_it_learns_logs_evaluates_and_saves(tmp_path: Path) -> None:
    seen = []

    def evaluate(model: Any, step: int | None) -> Evaluation:
        assert not model.training
        seen.append(step)
        return Evaluation({"loss": float(len(seen))})

    result = run(tmp_path, evaluate=evaluate, steps=200)
    assert result.step == 200
    assert result.checkpoint.name == "step-000000200"
    assert (result.checkpoint / "tokenizer" / "x.txt").read_bytes() == b"x"
    found = lines(tmp_path)
    losses = [line["train/loss"] for line in found if "train/loss" in line]
    assert len(losses) == 40
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert [line["step"] for line in found if "eval/loss" in line] == list(range(20, 201, 20))
    assert seen == list(range(20, 201, 20))
    assert result.metrics["eval/loss"] == 10.0
    assert {"train/learning_rate", "train/grad_norm", "train/accuracy", "train/loss_task"} <= result.metrics.keys()
    assert sorted(p.name for p in (tmp_path / "checkpoints").glob("step-*")) == ["step-000000190", "step-000000200"]


def test_micro_batches_equal_one_big_batch(tmp_path: Path) -> None:
    big = run(tmp_path / "big", model=ToyModel(dropout=0.0), batches=ToyBatches(micro_rows=4))
    small = run(tmp_path / "small", model=ToyModel(dropout=0.0), batches=ToyBatches(micro_rows=1))
    a, b = weights(big), weights(small)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-5)


def test_a_finished_run_called_again_gives_its_result(tmp_path: Path) -> None:
    first = run(tmp_path)
    again = run(tmp_path)
    assert (again.step, again.checkpoint, again.metrics) == (first.step, first.checkpoint, first.metrics)


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "muon"])
@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_stopped_and_gone_on_is_bitwise_equal(tmp_path: Path, optimizer: str, ema_decay: float) -> None:
    changes: dict[str, Any] = {"optimizer": optimizer, "ema_decay": ema_decay, "clip": 0.5, "evaluate": _evaluate}
    whole = run(tmp_path / "whole", **changes)
    stops = iter([13, 5, 11])
    for stop in stops:
        with pytest.raises(Stopped) as error:
            run(tmp_path / "parts", batches=StopAt(stop), **changes)
        assert error.value.exit_code == 75
    parts = run(tmp_path / "parts", **changes)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert same(load_file(whole.checkpoint / name), load_file(parts.checkpoint / name)), name
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")
    states = [json.loads((r.checkpoint / "state.json").read_text()) for r in (whole, parts)]
    for state in states:
        del state["seconds"], state["metrics_size"]
    assert states[0] == states[1]


def _evaluate(model: Any, step: int | None) -> Evaluation:
    return Evaluation({"loss": float(sum(p.double().abs().sum() for p in model.parameters()))})


class StopAt(ToyBatches):
    """Asks to stop while a step's batches are made: the step is dropped, the one before is saved."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def take(self, cursor: dict[str, Any]) -> Any:
        self.left -= 1
        if self.left == 0:
            signals._flag.set()
        return super().take(cursor)


@pytest.mark.parametrize("save_every", [10, 15, 0])
@pytest.mark.parametrize("calls", ["stop stop go go", "go stop stop go", "stop go stop go"])
def test_a_signal_in_an_evaluation_saves_and_the_evaluation_comes_again(
    tmp_path: Path, calls: str, save_every: int
) -> None:
    """After steps 20 and 40: also twice at the same place, after the last step, and where a checkpoint is due."""
    whole = run(tmp_path / "whole", evaluate=_evaluate, save_every=save_every)
    coming = calls.split()

    def interrupted(model: Any, step: int | None) -> Evaluation:
        if coming.pop(0) == "stop":
            raise Stopped("a signal between two batches")
        return _evaluate(model, step)

    for _ in range(2):
        with pytest.raises(Stopped, match=r"in the evaluation after step [24]0, saved; run the same"):
            run(tmp_path / "parts", evaluate=interrupted, save_every=save_every)
        done = calls.split()[: 4 - len(coming)].count("go")
        assert (tmp_path / "parts" / "checkpoints" / f"step-{20 + 20 * done:09d}").is_dir()
    parts = run(tmp_path / "parts", evaluate=interrupted, save_every=save_every)
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")
    states = [json.loads((r.checkpoint / "state.json").read_text()) for r in (whole, parts)]
    for state in states:
        del state["seconds"], state["metrics_size"]
    assert states[0] == states[1]
    assert same(weights(whole), weights(parts))
    assert whole.metrics == parts.metrics == run(tmp_path / "parts", save_every=save_every).metrics


def test_a_changed_run_is_refused_unless_named(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(ConfigError, match=r"train.learning_rate: 0.01 -> 0.02"):
        run(tmp_path, learning_rate=2e-2)
    run(tmp_path, learning_rate=2e-2, allow_change=("train.learning_rate",))
    longer = run(tmp_path, learning_rate=2e-2, steps=60, allow_change=("train",))
    assert longer.step == 60


def test_budgets(tmp_path: Path) -> None:
    assert run(tmp_path / "epochs", steps=None, epochs=1.5).step == 15
    assert run(tmp_path / "tokens", steps=None, tokens=240).step == 10
    assert run(tmp_path / "both", steps=7, tokens=240).step == 7
    with pytest.raises(ConfigError, match="say how long"):
        run(tmp_path / "none", steps=None)


def test_the_probe_leaves_weights_and_moments_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "PROBE_SECONDS", 0.2)
    timed = run(tmp_path / "timed", steps=8, minutes=60.0)
    plain = run(tmp_path / "plain", steps=8)
    assert timed.step == plain.step == 8
    assert same(weights(timed), weights(plain))
    assert same(*(load_file(r.checkpoint / "optimizer.safetensors") for r in (timed, plain)))


def test_a_resume_keeps_its_number_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"bf16": (True, "works"), "fp32": (True, "works")}
    monkeypatch.setattr(precision, "probe", lambda name, device: answers[name])
    monkeypatch.setattr(precision, "_has_bf16", lambda device: True)
    monkeypatch.setattr(precision.Precision, "autocast", lambda self: contextlib.nullcontext())  # bf16 in name only
    with pytest.raises(Stopped):
        run(tmp_path, precision="auto", batches=StopAt(5))
    monkeypatch.setattr(precision, "_has_bf16", lambda device: False)  # a machine that only emulates it
    result = run(tmp_path, precision="auto")
    assert json.loads((result.checkpoint / "state.json").read_text())["precision"]["name"] == "bf16"
    answers["bf16"] = (False, "SIGILL")  # a machine that cannot
    with pytest.raises(ConfigError, match=r'train.precision: "bf16" -> "fp32"'):
        run(tmp_path, precision="auto")
    run(tmp_path, precision="auto", allow_change=("train.precision",))


def test_evaluations_and_checkpoints_take_a_small_share_of_the_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation that would take all the time twenty times over is made less often."""
    monkeypatch.setattr(budget, "PROBE_SECONDS", 0.0)
    calls = []

    def slow(model: Any, step: int | None) -> Evaluation:
        calls.append(step)
        time.sleep(0.2)
        return Evaluation({"loss": 1.0})

    run(tmp_path, steps=200, minutes=0.05, save_every=None, eval_every=None, evaluate=slow)
    assert 2 <= len(calls) <= 4  # the probe's, the last, and at most one in ten of three seconds
    state = json.loads(max((tmp_path / "checkpoints").glob("step-*")).joinpath("state.json").read_text())
    assert state["plan"]["eval_every"] * 2 >= state["plan"]["num_steps"]


def test_a_stop_during_the_probe_leaves_nothing_and_starts_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "PROBE_SECONDS", 0.2)
    with pytest.raises(Stopped, match="before the first step"):
        run(tmp_path, steps=8, minutes=60.0, batches=StopAt(2))
    assert not list((tmp_path / "checkpoints").glob("step-*"))
    assert run(tmp_path, steps=8, minutes=60.0).step == 8


def test_an_evaluation_may_end_the_training_and_is_met_again_after_a_kill(tmp_path: Path) -> None:
    def enough(model: Any, step: int | None) -> Evaluation:
        return Evaluation({"loss": 1.0}, is_enough=step == 20)

    assert run(tmp_path, evaluate=enough).step == 20
    assert max((tmp_path / "checkpoints").glob("step-*")).name == "step-000000010"  # from there it would go on
    assert run(tmp_path, evaluate=enough).step == 20
    assert [line["step"] for line in lines(tmp_path) if "eval/loss" in line] == [20]


def test_an_evaluation_that_is_no_number_is_logged_saved_and_read_back(tmp_path: Path) -> None:
    """A diverged model must not end the run in a crash while saving."""
    first = run(tmp_path, evaluate=lambda *_: Evaluation({"loss": math.nan, "perplexity": math.inf}))
    again = run(tmp_path, evaluate=_evaluate)
    for result in (first, again):
        assert math.isnan(result.metrics["eval/loss"])
        assert result.metrics["eval/perplexity"] == math.inf
    assert [line["eval/loss"] for line in lines(tmp_path) if "eval/loss" in line] == ["nan", "nan"]
