"""Several tasks over one encoder: all learn, resume is exact, each has a model of its own, alone beside together."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from remask.__main__ import cli
from remask.answer.reader import open_reader
from remask.config import build_run
from remask.errors import ConfigError, DataError
from remask.model.store import open_model
from remask.progress import Progress
from remask.tune.finetune import finetune, render
from remask.tune.settings import FinetuneRun

WORDS = ("red green blue cold warm big small old new fast slow dark light good bad fine").split()  # noqa: SIM905


def write_files(folder: Path, count: int, seed: int) -> dict[str, Path]:
    """A table of classes, one of numbers, and sentences with tags, all about the same words."""
    rng = np.random.default_rng(seed)
    files = {
        name: folder / f"{name}-{seed}.{'txt' if name == 'names' else 'jsonl'}" for name in ("topic", "heat", "names")
    }
    texts = [list(rng.choice(WORDS, rng.integers(3, 6))) for _ in range(count)]
    lines: dict[str, list[str]] = {name: [] for name in files}
    for words in texts:
        text = " ".join(words)
        lines["topic"].append(json.dumps({"body": text, "topic": "red" if "red" in words else "other"}))
        lines["heat"].append(json.dumps({"text": text, "label": 2.0 * ("red" in words) + len(words) / 10}))
        lines["names"].append("\n".join(f"{w} {'B-TONE' if w in ('red', 'blue') else 'O'}" for w in words) + "\n")
    for name, path in files.items():
        path.write_text("\n".join(lines[name][: count // 2 if name == "names" else count]) + "\n")
    return files


def run_for(model: Path, folder: Path, **options: Any) -> FinetuneRun:
    train, dev = write_files(folder, 240, 1), write_files(folder, 60, 2)
    kinds = {"topic": "classify", "heat": "regress", "names": "ner"}
    tasks: list[dict[str, Any]] = [
        {"name": name, "task": kind, "train_file": str(train[name]), "dev_file": str(dev[name])}
        for name, kind in kinds.items()
    ]
    tasks[0]["table"] = {"text": "body", "label": "topic"}
    values = {
        "init": str(model), "tasks": tasks, "train.precision": "fp32", "train.device": "cpu", "batch.num_rows": 16,
        "train.epochs": 8.0, "train.learning_rate": 5e-3, **options,
    }  # fmt: skip
    return build_run(FinetuneRun, options=values).run


@pytest.fixture(scope="module")
def together(task_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("tasks")
    run = run_for(task_model, folder, single=True)
    return folder, finetune(run, folder / "out", progress=Progress(quiet=True))


def test_all_tasks_learn_over_one_encoder(together: tuple[Path, dict[str, Any]]) -> None:
    folder, values = together
    assert values["metrics"]["topic.accuracy"] > 0.9
    assert values["metrics"]["heat.pearson"] > 0.8
    assert values["metrics"]["names.f1"] > 0.9
    encoders = []
    for name in ("topic", "heat", "names"):
        state = open_model(folder / "out/tasks" / name).network.state_dict()
        encoders.append({n: t for n, t in state.items() if n.startswith("encoder.")})
    assert all(torch.equal(encoders[0][n], other[n]) for other in encoders[1:] for n in encoders[0])
    assert json.loads((folder / "out/results.json").read_bytes())["metrics"] == values["metrics"]
    scores = [values["tasks"][name]["metrics"][values["tasks"][name]["metric"]] for name in values["tasks"]]
    assert values["score"] == pytest.approx(np.mean(scores), abs=0.05)


def test_one_table_has_each_task_together_and_alone(together: tuple[Path, dict[str, Any]]) -> None:
    folder, values = together
    lines = render(values).splitlines()
    assert lines[0].split() == ["task", "metric", "together", "alone", "difference"]
    assert [line.split()[0] for line in lines[1:5]] == ["topic", "heat", "names", "mean"]
    both = values["tasks"]["heat"], values["single"]["heat"]
    shown = [one["spread"]["spearman"]["median"] for one in both]
    assert [float(word) for word in lines[2].split()[2:4]] == pytest.approx(shown, abs=1e-4)
    assert open_model(folder / "out/single/heat").heads.num_classes == 1
    page = (folder / "out/report.html").read_text()
    assert "alone" in page
    assert "names: f1, by step" in page


def test_each_task_has_a_model_that_answers(together: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = together
    (tmp_path / "new.csv").write_text("body\nred big\nblue big\n")
    words = ["predict", folder / "out", tmp_path / "new.csv", "--task", "topic", "--out", tmp_path / "said.csv", "-q"]
    result = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0
    assert [line.split(",")[1] for line in (tmp_path / "said.csv").read_text().splitlines()[1:]] == ["red", "other"]
    assert open_reader(folder / "out/tasks/names").task.kind.name == "tags"
    assert open_reader(folder / "out", "names").task.kind.name == "tags"
    with pytest.raises(DataError, match=r"has a model for each of its tasks; name one: \S+heat, \S+names, \S+topic"):
        open_model(folder / "out")
    with pytest.raises(DataError, match="has the tasks heat, names, topic; --task topi is none"):
        open_reader(folder / "out", "topi")


def test_a_stopped_run_goes_on_to_the_same_result(
    task_model: Path, tmp_path: Path, stopped_in_evaluation: Callable[[], AbstractContextManager[None]]
) -> None:
    run = run_for(task_model, tmp_path, **{"train.epochs": 2.0, "learn": "lora", "temperature": 3.0})
    whole = finetune(run, tmp_path / "whole", progress=Progress(quiet=True))
    with stopped_in_evaluation():
        finetune(run, tmp_path / "cut", progress=Progress(quiet=True))
    gone_on = finetune(run, tmp_path / "cut", progress=Progress(quiet=True))
    assert gone_on["tasks"]["heat"]["runs"][0]["history"] == whole["tasks"]["heat"]["runs"][0]["history"]
    for file in ("names/model.safetensors", "topic/adapter/adapter_model.safetensors"):
        both = [(tmp_path / name / "tasks" / file).read_bytes() for name in ("whole", "cut")]
        assert both[0] == both[1]


def test_mistakes_are_named(task_model: Path, tmp_path: Path) -> None:
    for options, message in (
        ({"data": "x"}, "data: belongs inside an entry of tasks"),
        ({"tasks": [{"task": "ner"}, {"task": "ner"}]}, "ner is there 2 times; give each a name"),
        ({"tasks": [{"task": "ner", "name": "a/b"}]}, "name = 'a/b': letters"),
        ({"tasks": [], "single": True}, "there are no tasks"),
        ({"tasks": [{"task": "nerr"}]}, "did you mean ner"),
    ):
        with pytest.raises(ConfigError, match=message):
            run_for(task_model, tmp_path, **options)
