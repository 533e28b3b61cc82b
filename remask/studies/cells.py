"""One cell: train a row with a seed, measure it, fine-tune it on the tasks, and leave one result.

In: a cell, its data, its folder. Out: result.json and examples.npz, written last; the folder goes on where an earlier
call was killed, stage by stage. A training that diverged is a result too, marked broken. Weights of fine-tuned models
and optimizer states are removed once nothing needs them. Not here: which cells there are (plan), who does them
(runner), what the numbers say (results).
"""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from remask import artifacts
from remask.config import dump
from remask.errors import GaveUpError, MissingInputError
from remask.progress import Progress
from remask.reports.runs import read_run
from remask.schema import Json, Values
from remask.studies.plan import (
    Cell,
    StudyPlan,
    Variant,
    cell_fingerprint,
    cell_folder,
    measures_of,
    task_folder,
    tasks_of,
    tuned,
)
from remask.studies.settings import MEASURES
from remask.workers import num_cores

if TYPE_CHECKING:
    from remask.studies.measures import Measured

RESULT, EXAMPLES = "result.json", "examples.npz"
_CURVES = {"eval/loss": "heldout_loss", "eval/bits_per_byte": "bits_per_byte"}


@dataclass(frozen=True)
class Place:
    """A cell's own folder, and where everything that it needs is on this machine."""

    folder: Path
    out: Path
    data: Mapping[Variant, Path]
    fingerprint: str


def place_of(plan: StudyPlan, cell: Cell, out: Path, data: Mapping[Variant, Path]) -> Place:
    mark = cell_fingerprint(plan, cell, data)
    return Place(cell_folder(out, cell, mark), out, data, mark)


def read_result(place: Place) -> Json | None:
    """A finished cell; None: it is not finished. A folder of another cell under this name does not count."""
    try:
        result = json.loads((place.folder / RESULT).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return result if isinstance(result, dict) and result.get("fingerprint") == place.fingerprint else None


def lacks_model(place: Place, result: Values) -> bool:
    """Of a finished cell the results may have been kept alone; the model is trained again where another cell goes on
    from it."""
    return not result["broken"] and not (place.folder / "pretrain" / "model").is_dir()


def make_cell(plan: StudyPlan, cell: Cell, place: Place, progress: Progress) -> Json:
    """Train and measure, or go on with it; nothing is done twice."""
    with artifacts.lock(place.folder):
        if (done := read_result(place)) is not None:
            goes_on = any((other.origin, other.seed) == (cell.label, cell.seed) for other in plan.cells)
            if goes_on and lacks_model(place, done):
                _Work(plan, cell, place, progress).pretrained()
            return done
        result: Json = {
            "fingerprint": place.fingerprint,
            "label": cell.label,
            "seed": cell.seed,
            "run": dump(cell.run),
            "hardware": hardware(),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "broken": [],
        }
        work = _Work(plan, cell, place, progress)
        try:
            result |= work.pretrained()
        except GaveUpError as error:
            result["broken"] = [f"diverged: {error}"]
        else:
            result |= work.measured()
        unigram = result.get("unigram_nats")
        if not result["broken"] and unigram is not None and result["loss"] >= unigram:
            result["broken"] = [f"ends above the unigram loss: {result['loss']:.3f} nats against {unigram:.3f}"]
        artifacts.write_json(place.folder / RESULT, result)
        return result


class _Work:
    """The stages of a cell."""

    def __init__(self, plan: StudyPlan, cell: Cell, place: Place, progress: Progress) -> None:
        self.plan, self.cell, self.place, self.progress = plan, cell, place, progress
        self.folder = place.folder

    # ---------------------------------------------------------------------------------------------- pretraining

    @property
    def run_folder(self) -> Path:
        """Where the pretraining is: the cell's own, or that of the row whose model it takes as it is."""
        return (self._origin_place() if self.cell.row.model_of else self.place).folder / "pretrain"

    def _origin_place(self) -> Place:
        """The finished cell, with its model, that this one goes on from."""
        origin = self.plan.origin_of(self.cell)
        assert origin is not None
        place = place_of(self.plan, origin, self.place.out, self.place.data)
        if read_result(place) is None or not (place.folder / "pretrain" / "model").is_dir():
            raise MissingInputError(
                f"{self.cell.label}, seed {self.cell.seed}: starts from the model of row {origin.label}, which is not "
                f"finished: make that one first (--row {list(self.plan.study.rows).index(origin.label) + 1})"
            )
        return place

    def pretrained(self) -> Json:
        """Costs and curves of the training; afterwards `run_folder`/model is the model."""
        if not self.cell.row.model_of and not (self.run_folder / "model").is_dir():
            from remask.pretraining.run import pretrain

            start = self._origin_place().folder / "pretrain" / "model" if self.cell.row.start_from else None
            paths = {"prepared": self.place.data[self.cell.variant], "init_from": start}
            pretrain(self.cell.run.model_copy(update=paths), self.run_folder, progress=self.progress)
            _keep_model(self.run_folder)
        run = read_run(self.run_folder)
        made = run.facts["result"]
        times = [row["time"] for row in run.rows if "time" in row]
        return {
            "unigram_nats": run.facts["unigram_nats"],
            "parameters": run.facts["parameters"],
            "steps": made["step"],
            "tokens": made["tokens"],
            "flops": made["tokens"] * run.facts["flops_per_token"],
            "minutes": (times[-1] if times else made["seconds"]) / 60,
            "curves": {name: _by_tokens(run.curve(key), made) for key, name in _CURVES.items()},
        }

    # ---------------------------------------------------------------------------------------------- measuring

    def measured(self) -> Json:
        """Means of all metrics; the examples behind them go into examples.npz."""
        from remask.studies import measures

        began = time.monotonic()
        judge = measures.open_judge(self.run_folder / "model")
        heldout = self.place.data[self.cell.variant]
        scale = self.plan.scale
        # Always measured, shown or not: it tells whether the run is broken.
        parts = {"heldout": self._once("heldout", partial(measures.heldout, judge, heldout, scale.heldout_rows))}
        for name in [*measures_of(self.plan.study, self.cell), *tasks_of(self.plan.study)]:
            if name == "blimp":
                tasks = task_folder(self.plan.study.tasks, name)
                measure = partial(measures.minimal_pairs, judge, tasks, scale.max_pairs, self.progress)
            elif name in MEASURES:
                limit = scale.word_documents if name == "words" else scale.heldout_rows
                measure = partial(measures.MEASURE[name], judge, heldout, limit)
            else:
                measure = partial(self._task, name)
            parts[name] = self._once(name, measure)
        examples = {metric: values for part in parts.values() for metric, values in part.examples.items()}
        if "heldout" not in self.plan.study.evaluations:
            examples = {metric: v for metric, v in examples.items() if metric not in MEASURES["heldout"]}
        _write_arrays(self.folder / EXAMPLES, examples)
        shutil.rmtree(self.folder / "tasks", ignore_errors=True)
        return {
            "loss": parts["heldout"].shown["loss"],
            "metrics": {metric: float(values.mean()) for metric, values in examples.items()},
            "shown": {name: part.shown for name, part in parts.items() if part.shown},
            "notes": {name: list(part.notes) for name, part in parts.items() if part.notes},
            "evaluation_minutes": round((time.monotonic() - began) / 60, 3),
        }

    def _once(self, name: str, measure: Callable[[], Measured]) -> Measured:
        """What is measured is kept, so that a cell that is killed goes on with the next. What needs no training is
        that of the row whose model a cell takes as it is."""
        from remask.studies.measures import Measured

        if self.cell.row.model_of and name in MEASURES:
            return self._of_origin(name)
        kept = self.folder / "measures" / f"{name.replace(':', '-')}.json"
        if kept.is_file():
            values = json.loads(kept.read_bytes())
            examples = {metric: np.array(numbers) for metric, numbers in values["examples"].items()}
            return Measured(examples, values["shown"], tuple(values["notes"]))
        self.progress.say(f"{self.cell.label}, seed {self.cell.seed}: {name}")
        measured = measure()
        with artifacts.output_errors(kept):
            kept.parent.mkdir(parents=True, exist_ok=True)
        examples = {metric: numbers.tolist() for metric, numbers in measured.examples.items()}
        artifacts.write_json(kept, {"examples": examples, "shown": measured.shown, "notes": list(measured.notes)})
        return measured

    def _of_origin(self, name: str) -> Measured:
        from remask.studies.measures import Measured

        origin = self._origin_place()
        result = read_result(origin)
        assert result is not None, "_origin_place gives finished cells alone"
        arrays = read_examples(origin.folder)
        examples = {metric: arrays[metric] for metric in MEASURES[name] if metric in arrays}
        return Measured(examples, result["shown"].get(name, {}), tuple(result["notes"].get(name, ())))

    def _task(self, task: str) -> Measured:
        """Fine-tune with the cell's seed, then score each dev example."""
        from remask.studies.measures import Measured, task_examples
        from remask.tasks.kind import TaskSource
        from remask.tasks.kinds import open_problem
        from remask.tune.finetune import finetune

        folder, data = self.folder / "tasks" / task.replace(":", "-"), task_folder(self.plan.study.tasks, task)
        given = {"init": str(self.run_folder / "model"), "data": str(data), "seed": self.cell.seed, "seeds": 1}
        run = tuned(self.plan, task, self.cell.row, self.cell.label, **given)
        result = finetune(run, folder, progress=self.progress, allow_change=("init", "data"))
        problem = open_problem(TaskSource(task, run.table, folder=data), max_dev=run.max_dev)
        values = task_examples(Path(result["model"]), problem.dev, problem.metric)
        return Measured({task: values}, {"metric": problem.metric, "seconds": result["seconds"]}, tuple(problem.notes))


def _by_tokens(curve: Sequence[tuple[float, float]], made: Values) -> list[tuple[float, float]]:
    """(tokens read, value) of (step, value): rows whose steps differ in size share an axis."""
    return [(round(step * made["tokens"] / max(1, made["step"])), value) for step, value in curve]


def _keep_model(run_folder: Path) -> None:
    """The last checkpoint as a model; states of the optimizer are many times its size and no longer needed."""
    from remask.model.store import open_model, save_model

    loaded = open_model(run_folder)
    assert loaded.tokenizer_folder is not None, "a pretraining run keeps its tokenizer"
    save_model(run_folder / "model", loaded.network, loaded.tokenizer_folder)
    shutil.rmtree(run_folder / "checkpoints", ignore_errors=True)


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    import io

    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    artifacts.write_bytes(path, buffer.getvalue())


def read_examples(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / EXAMPLES, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def hardware() -> str:
    """The processor by its name, the cores that may be used, a GPU where there is one."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    import torch

    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{name}, {num_cores()} cores{gpu}"
