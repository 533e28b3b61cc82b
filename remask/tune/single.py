"""One task for one model: what all seeds share, and what is published of the best."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from remask import artifacts
from remask.config import dump
from remask.progress import Progress
from remask.reports.task_report import finetune_report
from remask.schema import Json, Values
from remask.tasks.card import CARD_JSON, task_card
from remask.tasks.kind import Problem
from remask.tasks.kinds import TASK_JSON
from remask.tune.part import (
    Part,
    Start,
    copy_model,
    fresh_network,
    let_learn,
    open_part,
    open_start,
    publish_model,
    tokenizer_files,
)
from remask.tune.seed import Report
from remask.tune.seeds import Results, run_seeds, seeds_of, start_of, summarise
from remask.tune.settings import FinetuneRun

if TYPE_CHECKING:
    from remask.answer.model import Model
    from remask.model.network import Network
    from remask.schema import BatchSource
    from remask.task_objectives import PairObjective, TaskObjective

MAX_MAPPED = 400  # texts on the map of a report


@dataclass(frozen=True)
class SingleTask:
    """What all seeds of a single-task run share: the opened model, the task, its rows. A seed.Trainable."""

    run: FinetuneRun
    start: Start
    part: Part

    @property
    def identity(self) -> Values:
        return {
            "run": dump(self.run) | {"seeds": None, "seed": None},
            "init": self.start.fingerprint,
            "data": self.part.fingerprint,
            "tokenizer": self.start.tokenizer.fingerprint,
            **({} if (own := self.start.reader.targets) is None else {"target_tokenizer": own.fingerprint}),
        }

    @property
    def problem(self) -> Problem:
        return self.part.problem

    @property
    def width(self) -> int:
        return self.start.loaded.settings.hidden_size

    def build(self, seed: int) -> Network:
        network = fresh_network(self.run, self.start, self.part, seed)
        let_learn(self.run, network.encoder, [self.part], seed)
        return network

    def batches(self, seed: int, rank: int, world_size: int) -> BatchSource:
        return self.part.batches(self.run.batch, seed, rank, world_size)

    def objective(self, seed: int, network: Network) -> TaskObjective | PairObjective:
        return self.part.objective(seed, network, self.run.loss)

    def carried(self, network: Network) -> dict[str, bytes | Path]:
        from remask.model.store import model_files

        labels = self.problem.labels or None
        own = {**tokenizer_files(self.start), TASK_JSON: self.part.stored.to_json()}
        return model_files(network.settings, network.head_settings, None, labels, self.run.updates) | own

    def score(self, network: Network, check: Callable[[], None]) -> Json:
        return self.part.score(network, check)

    def keep(self, folder: Path, network: Network) -> None:
        publish_model(folder, network, self.run, self.start, self.part)

    def words(self, result: Values) -> str:
        return f"{self.problem.metric} {result['score']:.4f}"

    # ----------------------------------------------------------------------------------------------- results

    def summary(self, results: Results) -> Json:
        values = summarise(self.part, results)
        score = values["metrics"][values["metric"]]
        return {**values, "score": score, "seeds": seeds_of(results), **start_of(self.run, results)}

    def publish(self, out: Path, values: Json) -> Json:
        """The best seed's model with its card, the ensemble's score and the report."""
        values = {**values, **self._ensemble(out, values["seeds"]["seeds"])}
        card = json.dumps(task_card(values, dump(self.run)), indent=1, ensure_ascii=False).encode()
        copy_model(out / f"seed-{values['seeds']['best']}" / "best", out / "model", {CARD_JSON: card})
        shown = {**values, **self._map(out / "model")}
        artifacts.write_bytes(out / "report.html", finetune_report(shown, str(out)).encode())
        return {**values, "model": str(out / "model")}

    def _map(self, model: Path) -> Json:
        """Where the published model sees the dev texts, for the report of a task that classifies single texts."""
        from remask.tasks.plane import plane

        dev = self.problem.dev
        if self.problem.kind.name != "classify" or not dev or any(len(example.texts) > 1 for example in dev):
            return {}
        dev = dev[:: -(-len(dev) // MAX_MAPPED)]
        texts = [example.texts[0] for example in dev]
        places, share = plane(self._open(model).embed(texts, normalize=False, long_texts="cut"))
        points = [
            {"x": float(x), "y": float(y), "label": str(example.label), "text": text}
            for (x, y), example, text in zip(places, dev, texts, strict=True)
        ]
        return {"map": {"points": points, "shown": share}}

    def _ensemble(self, out: Path, seeds: Sequence[int]) -> Json:
        """What the models of all seeds say together about the dev file, where and as they were trained."""
        if len(seeds) < 2 or not self.problem.kind.averages:
            return {}
        part, kind = self.part, self.problem.kind
        outputs = [self._open(out / f"seed-{seed}" / "best").outputs(part.dev_rows) for seed in seeds]
        together = kind.mean_outputs(outputs, part.dev_rows)
        score = kind.score(together, part.dev_rows, self.problem.dev, self.problem.labels)
        return {"ensemble": {"models": len(seeds), "metrics": score["metrics"]}}

    def _open(self, folder: Path) -> Model:
        """A model of this run, to answer where and as it was trained."""
        from remask.answer.model import Model
        from remask.answer.reader import open_reader
        from remask.precision import choose_device, choose_precision

        device = choose_device(self.run.train.device, "train.device")
        precision, _ = choose_precision(self.run.train.precision, device, key="train.precision")
        return Model(open_reader(folder), device=device, precision=precision)


def prepare(run: FinetuneRun, progress: Progress) -> SingleTask:
    """Open the model, read and encode the task; every mistake in the files shows here."""
    start = open_start(run)
    return SingleTask(run, start, open_part(run, run, start, progress))


def tune_single(
    run: FinetuneRun, out: Path, *, progress: Progress, allow_change: Sequence[str] = (), report: Report | None = None
) -> Json:
    """All seeds of one task."""
    task = prepare(run, progress)
    return run_seeds(task, out, task.summary, task.publish, progress, allow_change, report)
