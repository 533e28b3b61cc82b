"""One seed of a fine-tuning run: trained by the one loop, its best evaluation's weights kept, stopped when enough.

In: what is trained (`Trainable`: one task, or several over one encoder), a folder, a seed. Out: the best evaluation
with its history, in result.json; the same call goes on where an earlier one stopped. Also here: the recipe's learning
rate, which follows the width and what learns. Not here: tasks, files, results over seeds.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from remask import artifacts, signals
from remask.config import dump
from remask.errors import Stopped
from remask.progress import Progress, duration
from remask.train.settings import TrainSettings
from remask.tune.settings import FinetuneRun

# RoBERTa base's rate at its width, LoRA's of its paper's RoBERTa runs, and a rate that fresh heads alone take well.
# Narrow networks take more (measured: EXPERIMENTS.md, "Rates for narrow networks"), at most what a start from random
# weights gets, which would otherwise be an unfair comparison.
BASE_RATES = {"all": 2e-5, "lora": 4e-4, "heads": 1e-3}
BASE_WIDTH, RATE_POWER, FRESH_RATE_POWER = 768, 2.5, 1.5
SCRATCH_RATE = 3e-4

Report = Callable[[int, float], None]  # (evaluations so far, score): may raise to give a run up


class Trainable(Protocol):
    """What a run trains, whatever the number of its tasks."""

    @property
    def run(self) -> FinetuneRun: ...

    @property
    def identity(self) -> Mapping[str, Any]: ...

    @property
    def width(self) -> int: ...

    def build(self, seed: int) -> Any:
        """The network as it starts, with what rests set to rest."""
        ...

    def batches(self, seed: int, rank: int, world_size: int) -> Any: ...

    def objective(self, seed: int, network: Any) -> Any: ...

    def carried(self, network: Any) -> dict[str, bytes | Path]:
        """What a checkpoint holds besides weights."""
        ...

    def score(self, network: Any, check: Callable[[], None]) -> dict[str, Any]:
        """`metrics` by name, `score` (which chooses between models) and the tables behind them. `check` is called
        between batches and may raise Stopped."""
        ...

    def keep(self, folder: Path, network: Any) -> None:
        """Put the best weights so far on the disk."""
        ...

    def words(self, result: Mapping[str, Any]) -> str:
        """A result in a few words."""
        ...


def one_seed(
    setup: Trainable, folder: Path, seed: int, progress: Progress, world: Any, report: Report | None = None
) -> dict[str, Any]:
    """Train one seed, keep its best evaluation's weights; gives that evaluation."""
    from remask.train.loop import train

    done = folder / "result.json"
    if done.is_file() and (folder / "best").is_dir():  # a run that lost in a grid has no weights left
        return json.loads(done.read_bytes())
    run = setup.run
    network = setup.build(seed)
    batches = setup.batches(seed, world.rank, world.size)
    every = max(1, round(batches.steps_per_epoch / run.evaluations))
    objective = setup.objective(seed, network)
    watch = Watch(setup, folder, objective, world, report)
    watch.restore()
    started = time.monotonic()
    try:
        train(
            model=network, batches=batches, objective=objective, settings=train_settings(run, setup.width, every),
            folder=folder, identity={**setup.identity, "seed": seed}, evaluate=watch.evaluate, progress=progress,
            seed=seed, carried=setup.carried(network), allow_change=("run",), world=world,
            name=f"fine-tune, seed {seed}",
        )  # fmt: skip
    except _Enough:
        progress.say(f"  no better score in {run.patience} evaluations: seed {seed} ends")
    result: dict[str, Any] = {
        "seed": seed,
        **watch.best,
        "history": watch.history,
        "seconds": round(time.monotonic() - started, 1),
    }
    if world.is_first:
        artifacts.write_json(done, result)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # only needed to go on
    progress.say(f"  seed {seed}: {setup.words(result)} at step {result['step']:,}, {duration(result['seconds'])}")
    return result


def rate_of_all(rate: float, width: int) -> float:
    """A rate for RoBERTa base's width at another one, where the whole network learns."""
    return rate * min((BASE_WIDTH / width) ** RATE_POWER, SCRATCH_RATE / BASE_RATES["all"])


def _rate(run: FinetuneRun, width: int) -> float:
    base = BASE_RATES[run.learn]
    if run.learn != "all":
        return base * (BASE_WIDTH / width) ** FRESH_RATE_POWER
    return rate_of_all(base, width) if run.init_weights else SCRATCH_RATE


def train_settings(run: FinetuneRun, width: int, every: int) -> TrainSettings:
    """The loop's own settings: rate by width, evaluations and checkpoints by epoch, unless given."""
    values = dump(run.train)
    if values["learning_rate"] is None:
        values["learning_rate"] = _rate(run, width)
    for key in ("eval_every", "save_every"):
        values[key] = every if values[key] is None else values[key]
    return TrainSettings.model_validate_json(json.dumps(values))


class _Enough(Exception):
    """The score has stopped improving."""


class Watch:
    """Scores the model between steps, keeps the best weights on disk, and says when it is enough."""

    def __init__(
        self, setup: Trainable, folder: Path, objective: Any, world: Any, report: Report | None = None
    ) -> None:
        self._setup, self._folder, self._objective, self._world = setup, folder, objective, world
        self._report = report
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] = {}
        self._is_timed = False

    def restore(self) -> None:
        """After a stop: evaluations up to the checkpoint that the loop goes on from count, later ones come again."""
        path = self._folder / "history.json"
        steps = [int(p.name.removeprefix("step-")) for p in (self._folder / "checkpoints").glob("step-*")]
        self._objective.step = max(steps, default=0)  # of an evaluation that a stop cut short
        # A budget in minutes is planned by timing one evaluation of the untrained network: that is no score.
        self._is_timed = self._setup.run.train.minutes is not None and not steps
        if not path.is_file():
            return
        kept = json.loads(path.read_bytes())
        self.history = [entry for entry in kept["history"] if entry["step"] <= max(steps, default=0)]
        if kept["best"]["step"] in [entry["step"] for entry in self.history]:
            self.best = kept["best"]
        else:
            self.history = []  # the best weights are of a step that comes again, and with it all scores

    def _check(self) -> None:
        """A signal ends an evaluation on all ranks at once; it comes again, whole, when the run goes on."""
        if self._world.any(signals.requested()):
            raise Stopped("stopped before the first step; run the same command again")

    def evaluate(self, network: Any) -> dict[str, float]:
        setup = self._setup
        result, step = setup.score(network, self._check), self._objective.step
        if self._is_timed:
            self._is_timed = False
            return result["metrics"]
        self.history.append({"step": step, **result["metrics"]})
        if not self.best or result["score"] > self.best["score"]:
            self.best = {"step": step, **result}
            if self._world.is_first:
                setup.keep(self._folder / "best", network)
        if self._world.is_first:
            artifacts.write_json(self._folder / "history.json", {"history": self.history, "best": self.best})
        if self._report is not None:
            self._report(len(self.history), result["score"])
        since = [entry["step"] for entry in self.history if entry["step"] > self.best["step"]]
        if setup.run.patience and len(since) >= setup.run.patience:
            raise _Enough
        return result["metrics"]
