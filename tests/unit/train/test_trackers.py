"""Trackers follow metrics.jsonl: read back by their own tools, no step twice, and never in the way of a training."""

from __future__ import annotations

import importlib
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from remask import signals
from remask.config import build_run
from remask.errors import Stopped, UnavailableError
from remask.progress import Progress
from remask.train import trackers
from remask.train.job import Evaluation, Job
from remask.train.loop import train
from remask.train.settings import TrainSettings
from remask.train.training import Training

from .test_loop import BASE, StopAt, lines, run
from .toy import ToyBatches, ToyModel, ToyObjective

pytestmark = pytest.mark.filterwarnings("default")  # other people's libraries


def wanted(folder: Path) -> dict[tuple[str, int], float]:
    """Every number of the log by (name, step), perf aside, which the clock decides."""
    return {
        (name, line["step"]): value
        for line in lines(folder)
        for name, value in line.items()
        if "/" in name and isinstance(value, float)
    }


def stopped_and_gone_on(folder: Path, **changes: Any) -> None:
    """Stopped twice, once after lines that the checkpoint does not know, which come again."""
    evaluate = lambda model, step: Evaluation({"loss": 1.5}, samples=[["a"]])  # noqa: E731
    for stop in (13, 9):
        with pytest.raises(Stopped):
            run(folder, batches=StopAt(stop), evaluate=evaluate, log_every=2, eval_every=7, **changes)
    newest = max((folder / "checkpoints").glob("step-*"))
    newest.rename(newest.with_name(f".{newest.name}.partial"))  # as after a kill: back to an older checkpoint
    run(folder, evaluate=evaluate, log_every=2, eval_every=7, **changes)


def test_tensorboard_shows_the_lines_of_the_log(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    stopped_and_gone_on(tmp_path, trackers=("tensorboard",))
    found = scalars(tmp_path / "trackers" / "tensorboard")
    assert max(Counter(key for key, _ in found).values()) == 1, "a step twice"
    known = {(name, step): value for (name, step), value in found if not name.startswith("perf/")}
    assert known == pytest.approx(wanted(tmp_path), rel=1e-6)
    assert {"train/loss", "train/learning_rate", "train/grad_norm", "eval/loss"} <= {name for name, _ in known}
    assert any(name == "perf/tokens_per_second" for (name, _), _ in found)


def scalars(folder: Path) -> list[tuple[tuple[str, int], float]]:
    """All values in the raw files, duplicates too."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.iterdir()):
        for raw in RawEventFileLoader(str(path)).Load():
            event = Event.FromString(raw)
            found += [((value.tag, event.step), value.simple_value) for value in event.summary.value]
    return found


def test_a_tracker_that_joins_later_has_the_whole_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with pytest.raises(Stopped):
        run(tmp_path, batches=StopAt(20))
    run(tmp_path, trackers=("tensorboard",), allow_change=("train.trackers",))
    found = dict(scalars(tmp_path / "trackers" / "tensorboard"))
    assert {key for key in found if not key[0].startswith("perf/")} == wanted(tmp_path).keys()


def test_a_rollback_takes_back_what_was_told(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")

    class BadOnce(ToyObjective):
        """Three bad steps of two micro-batches each, which do not come again after the run went back."""

        def __call__(self, model: Any, batch: Any, step: int | None) -> Any:
            self.calls = getattr(self, "calls", 0) + 1
            self.spoil = {step: math.nan} if step is not None and 22 < self.calls <= 28 else {}
            return super().__call__(model, batch, step)

    run(tmp_path, objective=BadOnce(), log_every=1, trackers=("tensorboard",))
    found = scalars(tmp_path / "trackers" / "tensorboard")
    assert max(Counter(key for key, _ in found).values()) == 1
    assert any(line.get("event") == "rollback" for line in lines(tmp_path))
    known = {key: value for key, value in found if not key[0].startswith("perf/")}
    assert known == pytest.approx(wanted(tmp_path), rel=1e-6)


def test_mlflow_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    stopped_and_gone_on(tmp_path, trackers=("mlflow",))
    from mlflow.tracking import MlflowClient

    run_id = json.loads((tmp_path / "trackers" / "mlflow.json").read_text())["id"]
    client = MlflowClient(tracking_uri=(tmp_path / "trackers" / "mlflow").as_uri())
    params = client.get_run(run_id).data.params
    assert params["train.learning_rate"] == "0.01"
    expected = wanted(tmp_path)
    for name in {name for name, _ in expected}:
        history = [(entry.step, entry.value) for entry in client.get_metric_history(run_id, name)]
        assert sorted(history) == sorted((step, value) for (one, step), value in expected.items() if one == name)


def test_wandb_offline_goes_on_with_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    stopped_and_gone_on(tmp_path, trackers=("wandb",))
    folders = sorted((tmp_path / "trackers" / "wandb").glob("offline-run-*"))
    run_id = json.loads((tmp_path / "trackers" / "wandb.json").read_text())["id"]
    end = time.monotonic() + 60  # wandb's own process may still be writing when a run is over; the bound ends the test
    while True:
        told = [entry for folder in folders for entry in history(folder / f"run-{run_id}.wandb")]
        known = {key: value for key, value in told if "/" in key[0] and not key[0].startswith("perf/")}
        if len(known) >= len(wanted(tmp_path)) or time.monotonic() > end:
            break
        time.sleep(0.2)
    assert max(Counter(key for key, _ in told).values()) == 1, "a step twice"
    assert known == pytest.approx(wanted(tmp_path))


def history(path: Path) -> list[tuple[tuple[str, int], float]]:
    """What an offline run would send."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for data in log_records(path.read_bytes()[7:]):  # after wandb's own mark
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            step = int(items["_step"])
            found += [((key, step), json.loads(value)) for key, value in items.items() if not key.startswith("_")]
    return found


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format: blocks of 32 KiB, a record in one to many parts, each with a checksum,
    a length and whether it is whole (1), the first (2), a middle (3) or the last part (4)."""
    at, parts = 0, b""
    while at + 7 <= len(data):
        if (left := 32768 - (at + 7) % 32768) < 7:  # the file's mark counts to the first block
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


class Broken:
    """A tool whose server goes away."""

    library = "json"
    calls = 0

    def __init__(self, folder: Path, config: Any) -> None:
        pass

    def write(self, step: int, numbers: Any) -> None:
        Broken.calls += 1
        if Broken.calls == 3:
            raise ConnectionError("the server is gone\nand more")

    def close(self) -> None:
        raise AssertionError("is off, so not closed")


def test_a_failing_tracker_is_one_warning_and_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trackers.TRACKERS, "wandb", Broken)
    monkeypatch.setattr(Broken, "calls", 0)
    said = StringIO()
    settings = TrainSettings(**{**BASE, "steps": 40, "log_every": 2, "trackers": ("wandb",)})
    job = Job(
        model=ToyModel(),
        batches=ToyBatches(),
        objective=ToyObjective(),
        settings=settings,
        folder=tmp_path,
        identity={},
        carried={},
        seed=1,
    )
    with signals.catch(), Training(job, Progress(stream=said)) as training:
        result = train(training)
    assert result.step == 40
    assert Broken.calls == 3
    assert said.getvalue().count("tracker wandb failed and is off for the rest of this run: the server is gone") == 1
    assert "and more" not in said.getvalue()


def test_a_missing_library_is_said_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mlflow" else find(name))
    with pytest.raises(UnavailableError, match=r"mlflow is not installed: .*\[mlflow\]"):
        run(tmp_path, trackers=("mlflow",))
    assert not (tmp_path / "checkpoints").exists()


def test_none_imports_none_and_the_command_line_names_them(tmp_path: Path) -> None:
    from remask.pretraining.settings import PretrainRun

    before = set(sys.modules)
    run(tmp_path)
    assert not {name for name in set(sys.modules) - before if name.split(".")[0] in trackers.TRACKERS}
    assert not (tmp_path / "trackers").exists()
    built = build_run(PretrainRun, assignments=["train.trackers=[tensorboard, wandb]"]).run
    assert built.train.trackers == ("tensorboard", "wandb")
