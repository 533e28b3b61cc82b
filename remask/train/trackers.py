"""Trackers: the lines of metrics.jsonl, also in TensorBoard, Weights & Biases or MLflow, chosen by `train.trackers`.

In: numbers by name and step, and at a start all lines that metrics.jsonl has. Out: what those tools read, under
OUT/trackers. The file stays the truth and trackers follow it: TensorBoard's is written anew from it, the others go on
with their own run and are told no step twice. Nothing leaves the machine unless WANDB_MODE or MLFLOW_TRACKING_URI asks
for it. A tracker that fails is switched off with one warning; it never ends a training.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from remask.artifacts import write_json
from remask.errors import UnavailableError, install_command
from remask.schema import Json, Values

Numbers = Mapping[str, float]


class Tracker(Protocol):
    """One open run of one tool."""

    def write(self, step: int, numbers: Numbers) -> None: ...

    def close(self) -> None: ...


class Trackers:
    """All trackers of one training; without any, nothing is imported or written."""

    def __init__(self, names: Sequence[str], folder: Path, config: Values, warn: Callable[[str], None]) -> None:
        for name in names:
            if importlib.util.find_spec(TRACKERS[name].library) is None:
                raise UnavailableError(f"train.trackers: {name} is not installed: {install_command(name)}")
        self._names, self._folder, self._config, self._warn = list(dict.fromkeys(names)), folder, config, warn
        self._open: dict[str, Tracker] = {}

    def follow(self, path: Path) -> None:
        """Open all, and bring them to where metrics.jsonl is."""
        self.close()
        if not self._names:
            return
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        for name in self._names:
            with self._harmless(name):
                self._open[name] = TRACKERS[name](self._folder / "trackers", self._config)
                for line in lines:
                    self._open[name].write(line["step"], _numbers(line))

    def write(self, step: int, values: Values) -> None:
        for name, tracker in list(self._open.items()):
            with self._harmless(name):
                tracker.write(step, _numbers(values))

    def close(self) -> None:
        for name, tracker in list(self._open.items()):
            with self._harmless(name):
                tracker.close()
        self._open.clear()

    @contextlib.contextmanager
    def _harmless(self, name: str) -> Any:
        try:
            yield
        except Exception as error:  # whatever a foreign library raises: the training is worth more
            self._names.remove(name)
            self._open.pop(name, None)
            first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self._warn(f"tracker {name} failed and is off for the rest of this run: {first_line[:200]}")


def _numbers(values: Values) -> dict[str, float]:
    """What a chart can show; samples, events and what is not finite stay in the file."""
    return {name: float(value) for name, value in values.items() if "/" in name and isinstance(value, int | float)}


class _Sent:
    """The id of a tool's run and what it was told last, in a file beside it: after a kill no step is told twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(path.read_bytes()) if path.is_file() else {"id": "", "step": -1, "names": []}
        self.id: str = known["id"]
        self._step, self._names = known["step"], set(known["names"])

    def begin(self, run_id: str) -> None:
        self.id = run_id
        self._save()

    def new(self, step: int, numbers: Numbers) -> dict[str, float]:
        """Those that were not told yet. Noted before they are sent: a kill in between loses a line and doubles none."""
        if step < self._step:
            return {}
        if step > self._step:
            self._step, self._names = step, set()
        fresh = {name: value for name, value in numbers.items() if name not in self._names}
        if fresh:
            self._names |= fresh.keys()
            self._save()
        return fresh

    def _save(self) -> None:
        write_json(self._path, {"id": self.id, "step": self._step, "names": sorted(self._names)})


class TensorBoard:
    """An event file that is made anew whenever a run starts or goes on; then older ones go."""

    library = "tensorboard"

    def __init__(self, folder: Path, config: Values) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        # Classes that protobuf makes at run time: no type checker sees them.
        events: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
        summaries: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        self._event, self._summary = events.Event, summaries.Summary
        start = events.SessionLog(status=events.SessionLog.START)
        place = folder / "tensorboard"
        shutil.rmtree(place, ignore_errors=True)
        self._writer = EventFileWriter(str(place))
        # A board that is already open forgets what it read from the older file.
        self._writer.add_event(self._event(wall_time=time.time(), step=0, session_log=start))

    def write(self, step: int, numbers: Numbers) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        if values:
            self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A Weights & Biases run, offline unless WANDB_MODE says otherwise (`wandb sync` sends it later)."""

    library = "wandb"

    def __init__(self, folder: Path, config: Values) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._sent = _Sent(folder / "wandb.json")
        if not self._sent.id:
            self._sent.begin(uuid.uuid4().hex[:12])
        # Its folders are named by the second: one that goes on at once would write over what it goes on from.
        while list((folder / "wandb").glob(f"*run-{time.strftime('%Y%m%d_%H%M%S')}-*")):
            time.sleep(0.05)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "remask"),
            id=self._sent.id,
            name=folder.parent.name,
            dir=str(folder),
            config=dict(config),
            resume="allow",
            mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
            settings=wandb.Settings(console="off", silent=True),
        )

    def write(self, step: int, numbers: Numbers) -> None:
        if fresh := self._sent.new(step, numbers):
            self._run.log(fresh, step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """An MLflow run in OUT/trackers/mlflow, or wherever MLFLOW_TRACKING_URI points."""

    library = "mlflow"

    def __init__(self, folder: Path, config: Values) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a plain folder, which needs no database
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._sent = _Sent(folder / "mlflow.json")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or (folder / "mlflow").absolute().as_uri()
        self._client = MlflowClient(tracking_uri=uri)
        if not self._sent.id:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "remask")
            known = self._client.get_experiment_by_name(name)
            experiment = self._client.create_experiment(name) if known is None else known.experiment_id
            self._sent.begin(self._client.create_run(experiment, run_name=folder.parent.name).info.run_id)
            for key, value in _flat(config):
                self._client.log_batch(self._sent.id, params=[Param(key, str(value)[:500])])

    def write(self, step: int, numbers: Numbers) -> None:
        if fresh := self._sent.new(step, numbers):
            now = int(time.time() * 1000)
            metrics = [self._metric(name, value, now, step) for name, value in fresh.items()]
            self._client.log_batch(self._sent.id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._sent.id)


def _flat(config: Values, before: str = "") -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for key, value in config.items():
        pairs += _flat(value, f"{before}{key}.") if isinstance(value, Mapping) else [(f"{before}{key}", value)]
    return pairs


TRACKERS: Json = {"tensorboard": TensorBoard, "wandb": Wandb, "mlflow": MLflow}
