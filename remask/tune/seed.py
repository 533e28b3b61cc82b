"""One seed of a fine-tuning run: trained by the one loop, its best evaluation's weights kept, stopped when enough.

In: what is trained (`Trainable`: one task, or several over one encoder), a folder, a seed. Out: the best evaluation
with its history, in result.json; the same call goes on where an earlier one stopped. Also here: the recipe's learning
rate, which follows the width and what learns. Not here: tasks, files, results over seeds.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from remask import artifacts, signals
from remask.config import dump
from remask.errors import Stopped
from remask.progress import Progress, duration
from remask.schema import Json, Values
from remask.tasks.kinds import kind_of
from remask.train.settings import TrainSettings
from remask.tune.settings import FinetuneRun

if TYPE_CHECKING:
    from remask.train.job import Evaluation, Job

# RoBERTa base's rate at its width, LoRA's of its paper's RoBERTa runs, and a rate that fresh heads alone take well.
# Narrow networks take more (measured: EXPERIMENTS.md, "Rates for narrow networks"), at most what a start from random
# weights gets, which would otherwise be an unfair comparison.
BASE_RATES = {
    "all": 2e-5, "lora": 4e-4, "adalora": 1e-3, "ia3": 4e-3, "bottleneck": 5e-4, "prefix": 4e-3, "heads": 1e-3,
}  # fmt: skip
BASE_WIDTH, RATE_POWER, FRESH_RATE_POWER = 768, 2.5, 1.5
SCRATCH_RATE = 3e-4
WRITING_RATE = 2.5  # times these, where a decoder with fresh weights learns

Report = Callable[[int, float], None]  # (evaluations so far, score): may raise to give a run up


class Trainable(Protocol):
    """What a run trains, whatever the number of its tasks."""

    @property
    def run(self) -> FinetuneRun: ...

    @property
    def identity(self) -> Values: ...

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

    def score(self, network: Any, check: Callable[[], None]) -> Json:
        """`metrics` by name, `score` (which chooses between models) and the tables behind them. `check` is called
        between batches and may raise Stopped."""
        ...

    def keep(self, folder: Path, network: Any) -> None:
        """Put the best weights so far on the disk."""
        ...

    def words(self, result: Values) -> str:
        """A result in a few words."""
        ...


def one_seed(
    setup: Trainable, folder: Path, seed: int, progress: Progress, world: Any, report: Report | None = None
) -> Json:
    """Train one seed, keep its best evaluation's weights; gives that evaluation."""
    from remask.train.job import Job
    from remask.train.loop import train
    from remask.train.training import Training

    done = folder / "result.json"
    if done.is_file() and (folder / "best").is_dir():  # a run that lost in a grid has no weights left
        return json.loads(done.read_bytes())
    run = setup.run
    network = setup.build(seed)
    batches = setup.batches(seed, world.rank, world.size)
    every = max(1, round(batches.steps_per_epoch / run.evaluations))
    watch = Watch(setup, folder, seed, world, report)
    watch.restore()
    started = time.monotonic()
    job = Job(
        model=network,
        batches=batches,
        objective=setup.objective(seed, network),
        settings=train_settings(run, setup.width, every),
        folder=folder,
        seed=seed,
        identity={**setup.identity, "seed": seed},
        carried=setup.carried(network),
        evaluate=watch.evaluate,
        allow_change=("run",),
        name=f"fine-tune, seed {seed}",
    )
    if world.is_first and seed == run.seed:
        _tell_memory(job, run, world.size, progress)
    with Training(job, progress, world) as training:
        train(training)
    if training.is_enough:
        progress.say(f"  no better score in {run.patience} evaluations: seed {seed} ends")
    result: Json = {
        "seed": seed,
        **watch.best,
        "history": watch.history,
        "learning_rate": job.settings.learning_rate,
        "precision": training.session.precision.name,
        "seconds": round(time.monotonic() - started, 1),
    }
    if world.is_first:
        artifacts.write_json(done, result)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # only needed to go on
    progress.say(f"  seed {seed}: {setup.words(result)} at step {result['step']:,}, {duration(result['seconds'])}")
    return result


def _tell_memory(job: Job, run: FinetuneRun, ranks: int, progress: Progress) -> None:
    """What a rank will hold, before it does; with a warning where its device has less."""
    from remask.precision import choose_device, choose_precision, memory_of
    from remask.train.narrow import masters
    from remask.train.preflight import Load, gathered

    def size(module: Any) -> int:
        return sum(p.numel() for p in module.parameters())

    model: Any = job.model
    settings, shape = job.settings, model.encoder.settings
    device = choose_device(settings.device, "train.device")
    tables = sum(b.numel() for b in model.buffers() if b.is_floating_point())  # embeddings of which some rows learn
    learning = [p for p in model.parameters() if p.requires_grad]
    load = Load(
        parameters=size(model) + tables,
        trainable=sum(p.numel() for p in learning),
        hidden_size=shape.hidden_size,
        num_layers=shape.num_layers,
        micro_tokens=min(run.batch.micro_tokens, job.batches.tokens_per_step),
        precision=choose_precision(settings.precision, device, key="train.precision")[0],
        ranks=ranks,
        parallel=settings.parallel,
        whole_parameters=gathered(size(model), [size(part) for part in model.parts_to_shard()]),
        has_average=settings.ema_decay > 0,
        copied_parameters=sum(w.numel() for w in masters(model)) if settings.weights == "bf16-master" else 0,
        device=str(device),
        device_bytes=memory_of(device),
    )
    progress.say(f"  needs {load.memory_words}")
    for line in load.memory_warnings("batch.micro_tokens"):
        progress.warn(line)


def rate_of_all(rate: float, width: int) -> float:
    """A rate for RoBERTa base's width at another one, where the whole network learns."""
    return rate * min((BASE_WIDTH / width) ** RATE_POWER, SCRATCH_RATE / BASE_RATES["all"])


def _rate(run: FinetuneRun, width: int) -> float:
    base = BASE_RATES[run.learn]
    if run.learn != "all":
        return base * (BASE_WIDTH / width) ** FRESH_RATE_POWER
    rate = rate_of_all(base, width) if run.init_weights else SCRATCH_RATE
    return rate * WRITING_RATE if kind_of(run.task).writes else rate


def train_settings(run: FinetuneRun, width: int, every: int) -> TrainSettings:
    """The loop's own settings: rate by width, evaluations and checkpoints by epoch, unless given."""
    values = dump(run.train)
    if values["learning_rate"] is None:
        values["learning_rate"] = _rate(run, width)
    for key in ("eval_every", "save_every"):
        values[key] = every if values[key] is None else values[key]
    return TrainSettings.model_validate_json(json.dumps(values))


class Watch:
    """Scores the model between steps, keeps the best weights on disk, and says when it is enough."""

    def __init__(self, setup: Trainable, folder: Path, seed: int, world: Any, report: Report | None = None) -> None:
        self._setup, self._folder, self._seed = setup, folder, seed
        self._world, self._report = world, report
        self.history: list[Json] = []
        self.best: Json = {}

    def restore(self) -> None:
        """After a stop: evaluations up to the checkpoint that the loop goes on from count, later ones come again."""
        path = self._folder / "history.json"
        if not path.is_file():
            return
        steps = [int(p.name.removeprefix("step-")) for p in (self._folder / "checkpoints").glob("step-*")]
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

    def evaluate(self, network: Any, step: int | None) -> Evaluation:
        """A train.job.Evaluate."""
        from remask.train.job import Evaluation

        setup = self._setup
        result = setup.score(network, self._check)
        if step is None:  # only timed
            return Evaluation(result["metrics"])
        self.history.append({"step": step, **result["metrics"]})
        is_better = not self.best or result["score"] > self.best["score"]
        if self._world.any(is_better and self._world.is_first):  # one rank decides: scores may differ in a last bit
            self.best = {"step": step, **result}
            self._keep(network)
        if self._world.is_first:
            artifacts.write_json(self._folder / "history.json", {"history": self.history, "best": self.best})
        if self._report is not None:
            self._report(len(self.history), result["score"])
        since_best = sum(entry["step"] > self.best["step"] for entry in self.history)
        return Evaluation(result["metrics"], is_enough=bool(setup.run.patience) and since_best >= setup.run.patience)

    def _keep(self, network: Any) -> None:
        """Put the weights on the disk; those of a divided network together first, in a network of the first rank."""
        setup, world = self._setup, self._world
        if setup.run.train.parallel == "fsdp" and world.size > 1:
            from remask.train.sharding import whole_tensors

            weights = whole_tensors(network, keep=world.is_first)
            if world.is_first:
                network = setup.build(self._seed)
                network.load_state_dict(weights)
        if world.is_first:
            setup.keep(self._folder / "best", network)
