"""Which way with how many labels: accuracy over labels for a prompt, for fine-tuning and for nearest neighbours.

In: a run with `curve.labels` such as 0, 8, 32, 128, all. Out: OUT/results.json and OUT/report.html with every method at
every number of labels. For each seed the same examples are drawn for all methods, as many of each class as there are;
every cell is a fine-tuning run of its own in OUT/METHOD-N/seed-S, which is scored once, after its last step, so that
nothing is chosen by the dev file. Killed, the same command goes on. Not here: what a fine-tuning does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from remask import artifacts
from remask.config import dump
from remask.data.order import key_of, permute
from remask.errors import ConfigError
from remask.progress import Progress
from remask.reports.curve_report import curve_report
from remask.schema import Json, Values
from remask.tasks import metrics
from remask.tasks.kind import Problem
from remask.tasks.prompts import Prompt
from remask.tasks.tables import Example
from remask.tasks.texts import Classify
from remask.tune.examples import data_fingerprint, opened, plain_table, reading, write_examples
from remask.tune.part import drop_weights, open_start
from remask.tune.prompt import ready_problem
from remask.tune.seeds import same_run
from remask.tune.settings import CurveSettings, FinetuneRun
from remask.tune.sweep import Tune

Cell = Callable[[int, list[Example]], dict[str, float]]  # (seed, examples) -> metrics


def tune_curve(
    tune: Tune, run: FinetuneRun, out: Path, *, progress: Progress, allow_change: Sequence[str] = ()
) -> Json:
    """Every method with every number of labels, over the seeds."""
    problem = opened(run)
    if not isinstance(problem.kind, Classify):
        raise ConfigError(f"curve: is for classes, not for the task {run.task}")
    plain = run.model_copy(update={"curve": run.curve.model_copy(update={"labels": ()}), "seeds": 1})
    with ExitStack() as stack:
        stack.enter_context(artifacts.lock(out))
        identity = {"run": dump(run) | {"seeds": None, "seed": None}, "data": data_fingerprint(problem)}
        same_run(identity, run, out, allow_change)
        if (out / "results.json").is_file():
            progress.say(f"{out}: finished already")
            return json.loads((out / "results.json").read_bytes())
        curve = _Curve(tune, plain, out, problem, progress)
        sizes, seeds = _sizes(run.curve, problem), range(run.seed, run.seed + run.seeds)
        rows = [row for size in sizes for row in curve.rows(size, seeds)]
        values = {
            "task": run.task, "metric": problem.metric, "init": run.init, "labels": list(problem.labels),
            "metrics": {problem.metric: max(row["spread"]["median"] for row in rows)},
            "data": {"train": len(problem.train), "dev": len(problem.dev), "baseline": dict(problem.facts["baseline"])},
            "notes": list(problem.notes), "seeds": {"count": run.seeds, "seeds": list(seeds)}, "curve": rows,
        }  # fmt: skip
        artifacts.write_bytes(out / "report.html", curve_report(values).encode())
        values["report"] = str(out / "report.html")
        artifacts.write_json(out / "results.json", values)
        return values


def _sizes(settings: CurveSettings, problem: Problem) -> list[int]:
    """Numbers of labels in their order; what is more than there are is all of them."""
    count, classes = len(problem.train), len({example.label for example in problem.train})
    sizes = sorted({count if size == "all" else min(size, count) for size in settings.labels})
    if small := [size for size in sizes if 0 < size < classes]:
        raise ConfigError(
            f"curve: {small[0]} labels are fewer than the {classes} classes, of which fine-tuning needs all"
        )
    return sizes


def drawn(train: Sequence[Example], labels: Sequence[str], size: int, seed: int) -> list[Example]:
    """So many examples, one of each class after the other, while they last; more labels hold those of fewer."""
    of_label = {label: [e for e in train if e.label == label] for label in labels}
    order = {
        label: permute(np.arange(len(items)), len(items), key_of("curve", seed, label))
        for label, items in of_label.items()
        if items
    }
    turns = sorted((turn, number, label) for number, label in enumerate(order) for turn in range(len(order[label])))
    return [of_label[label][int(order[label][turn])] for turn, _, label in turns[:size]]


class _Curve:
    """The cells of one curve."""

    def __init__(self, tune: Tune, run: FinetuneRun, out: Path, problem: Problem, progress: Progress) -> None:
        self._tune, self._run, self._out, self._problem, self._progress = tune, run, out, problem, progress
        self._table = plain_table(run, problem)
        self._vectors: dict[tuple[str, ...], np.ndarray] = {}

    def rows(self, size: int, seeds: range) -> list[Json]:
        """A row for each method: its scores with so many labels."""
        prompted = self._run.task == "prompt"
        methods: dict[str, Cell] = {"prompt": self._prompt} if prompted else {}
        if size:
            methods |= {"finetune": self._finetune, "neighbours": self._neighbours}
        rows = []
        for method, cell in methods.items():
            scores = []
            for seed in seeds if size else seeds[:1]:  # without labels nothing is drawn
                examples = drawn(self._problem.train, self._problem.labels, size, seed)
                scores.append(cell(seed, examples)[self._problem.metric])
            spread = metrics.spread(scores)
            self._progress.say(f"{method}, {size:,} labels: {self._problem.metric} {spread['median']:.4f}")
            rows.append({"method": method, "labels": size, "spread": spread})
        return rows

    def _prompt(self, seed: int, examples: list[Example]) -> dict[str, float]:
        return self._trained("prompt", seed, examples, {}) if examples else self._zero_shot()

    def _finetune(self, seed: int, examples: list[Example]) -> dict[str, float]:
        return self._trained("finetune", seed, examples, {"task": "pair" if self._table.text2 else "classify"})

    def _trained(self, method: str, seed: int, examples: list[Example], changes: Values) -> dict[str, float]:
        size = len(examples)
        data = self._out / f"labels-{size}" / f"seed-{seed}"
        files = data / "train.jsonl", self._out / "dev.jsonl"
        data.mkdir(parents=True, exist_ok=True)
        for path, items in zip(files, (examples, self._problem.dev), strict=True):
            if not path.is_file():
                write_examples(path, items, self._table)
        # Few labels need more passes over them, up to a number of steps.
        recipe, batch = self._run.train, self._run.batch.num_rows
        epochs = max(recipe.epochs or 0.0, self._run.curve.min_steps * min(batch, size) / size)
        train = recipe.model_copy(update={"epochs": epochs, "eval_every": 0})
        run = reading(self._run, *files, self._table, {"seed": seed, "train": train, **changes})
        folder = self._out / f"{method}-{size}" / f"seed-{seed}"
        found = self._tune(run, folder, progress=self._progress)["metrics"]
        drop_weights(folder)
        return found

    def _zero_shot(self) -> dict[str, float]:
        from remask.answer.runner import Runner

        run, start, problem = self._run, open_start(self._run), self._problem
        if not run.prompt.words:
            raise ConfigError("curve: without labels a prompt needs words: --words …, or leave 0 out of the curve")
        assert isinstance(problem.kind, Prompt)
        settings = run.prompt.model_copy(update={"search_words": 0})  # there is nothing to look in
        problem = replace(problem, kind=replace(problem.kind, settings=settings))
        problem = ready_problem(problem, start.reader, run.rows, init_weights=True)
        frame = start.reader.frame(run.rows)
        rows = problem.kind.encode(problem.dev, problem.labels, start.tokenizer, frame, run.rows)
        runner = Runner(start.loaded.network, start.tokenizer.pad_id, has_segments=frame.segments)
        return problem.kind.score(runner.outputs(rows, problem.kind), rows, problem.dev, problem.labels)["metrics"]

    def _neighbours(self, seed: int, examples: list[Example]) -> dict[str, float]:
        """The class of the nearest labelled texts by the cosine of their embeddings, weighted by it."""
        labels, dev = self._problem.labels, self._problem.dev
        near = self._embed(examples)
        centre = near.mean(0)
        near, asked = _unit(near - centre), _unit(self._embed(dev) - centre)
        similarity_ED = asked @ near.T
        count = min(self._run.curve.neighbours, len(examples))
        closest = np.argsort(-similarity_ED, 1, kind="stable")[:, :count]
        label_D = np.array([labels.index(example.label) for example in examples])
        votes = np.zeros((len(dev), len(labels)))
        for rank in range(count):
            chosen = closest[:, rank]
            votes[np.arange(len(dev)), label_D[chosen]] += 1 + similarity_ED[np.arange(len(dev)), chosen]
        truth = np.array([labels.index(example.label) for example in dev])
        return metrics.classification(truth, votes.argmax(1), labels)

    def _embed(self, examples: Sequence[Example]) -> np.ndarray:
        """The mean of the states, as the model starts; each text once."""
        missing = [texts for texts in dict.fromkeys(e.texts for e in examples) if texts not in self._vectors]
        if missing:
            from remask.answer.model import load

            model = load(self._run.init, packed=False)
            texts: list[Any] = [texts if len(texts) > 1 else texts[0] for texts in missing]
            vectors = model.embed(texts, pooling="mean", long_texts="cut")
            self._vectors |= dict(zip(missing, vectors, strict=True))
        return np.stack([self._vectors[example.texts] for example in examples])


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def render(values: Values) -> str:
    """A line for each number of labels, a column for each method."""
    methods = list(dict.fromkeys(row["method"] for row in values["curve"]))
    found = {(row["labels"], row["method"]): row["spread"] for row in values["curve"]}
    lines = ["  ".join([f"{'labels':>8}", *(f"{method:>22}" for method in methods)])]
    for size in dict.fromkeys(row["labels"] for row in values["curve"]):
        cells = []
        for method in methods:
            spread = found.get((size, method))
            cells.append("" if spread is None else f"{spread['median']:.4f} ({spread['low']:.2f}-{spread['high']:.2f})")
        lines.append("  ".join([f"{size:>8,}", *(f"{cell:>22}" for cell in cells)]))
    lines.append(f"  {values['metric']} on {values['data']['dev']:,} dev examples; median, lowest and highest seed")
    return "\n".join([*lines, *(f"  note: {note}" for note in values["notes"]), f"report: {values['report']}"])
