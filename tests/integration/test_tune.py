"""Searching a recipe: resumable to the same end, best.yaml runs as printed, and small grids beside it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from remask import signals
from remask.__main__ import cli
from remask.config import build_run
from remask.errors import ConfigError, Stopped, UnavailableError, UsageError
from remask.model.store import open_model
from remask.progress import Progress
from remask.tune import search as tune_search
from remask.tune import seed as tune_seed
from remask.tune.finetune import finetune
from remask.tune.finetune import render as finetune_table
from remask.tune.search import render, search
from remask.tune.settings import FinetuneRun, TuneRun

WORDS = ("red green blue cold warm big small old new fast").split()  # noqa: SIM905


def write_rows(path: Path, count: int = 64) -> Path:
    rng = np.random.default_rng(1)
    with path.open("w") as file:
        for _ in range(count):
            words = list(rng.choice(WORDS, rng.integers(3, 6)))
            file.write(json.dumps({"text": " ".join(words), "label": "yes" if "red" in words else "no"}) + "\n")
    return path


def options_for(model: Path, train: Path, **options: Any) -> dict[str, Any]:
    return {
        "init": str(model), "train_file": str(train), "dev_file": str(train), "train.precision": "fp32",
        "train.device": "cpu", **options,
    }  # fmt: skip


def search_for(model: Path, train: Path, **options: Any) -> TuneRun:
    values = {
        "search.trials": 4, "search.lr": [1e-4, 2e-2], "search.batch": [16, 32], "search.epochs": [1.0, 2.0], **options,
    }  # fmt: skip
    return build_run(TuneRun, options=options_for(model, train, **values)).run


def proposals(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{k: v for k, v in trial.items() if k != "seconds"} for trial in values["trials"]]


def test_a_killed_search_goes_on_to_the_same_end(
    task_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = search_for(task_model, write_rows(tmp_path / "t.jsonl"))
    whole = search(run, tmp_path / "whole", progress=Progress(quiet=True))
    assert [trial["trial"] for trial in whole["trials"]] == [0, 1, 2, 3]
    assert len({trial["lr"] for trial in whole["trials"]}) == 4
    assert whole["score"] == max(trial["score"] for trial in whole["trials"])

    evaluate, count = tune_seed.Watch.evaluate, 0

    def stop(self: Any, network: Any, step: int | None) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            monkeypatch.setattr(signals, "requested", lambda: True)
        return evaluate(self, network, step)

    with monkeypatch.context() as patched:
        patched.setattr(tune_seed.Watch, "evaluate", stop)
        with pytest.raises(Stopped):
            search(run, tmp_path / "cut", progress=Progress(quiet=True))
    monkeypatch.undo()
    # What a kill may leave of the journal: half a line, and the lock of a process that is gone.
    journal = tmp_path / "cut/trials.journal"
    journal.write_bytes(journal.read_bytes() + b'{"op_code": 5, "wor')
    journal.with_name("trials.journal.lock").symlink_to(journal)
    gone_on = search(run, tmp_path / "cut", progress=Progress(quiet=True))
    assert proposals(gone_on) == proposals(whole)
    assert gone_on["best"] == whole["best"]

    # More trials join those that are there; only the best keeps its weights.
    more = search_for(task_model, tmp_path / "t.jsonl", **{"search.trials": 5})
    values = search(more, tmp_path / "cut", progress=Progress(quiet=True))
    assert proposals(values)[:4] == proposals(whole)
    kept = [p.parent.parent.name for p in (tmp_path / "cut/trials").glob("*/model/model.safetensors")]
    assert kept == [str(values["best"]["trial"])]
    assert open_model(Path(values["model"])).labels == ("no", "yes")
    other = search_for(task_model, tmp_path / "t.jsonl", **{"search.lr": [1e-5, 1e-3]})
    with pytest.raises(ConfigError, match=r"was made by another run(.|\n)*run\.search\.lr"):
        search(other, tmp_path / "cut", progress=Progress(quiet=True))


def test_the_best_run_file_runs_as_printed(task_model: Path, tmp_path: Path) -> None:
    train = write_rows(tmp_path / "t.jsonl")
    words = [
        "tune", "--task", "classify", "--init", task_model, "--train", train, "--dev", train, "--trials", 2, "--out",
        tmp_path / "out", "--set", "train.precision=fp32", "--set", "search.epochs=[1.0]", "--set", "search.batch=[32]",
        "--json", "-q",
    ]  # fmt: skip
    result = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
    values = json.loads(result.stdout)
    table = render(values)
    command = next(line for line in table.splitlines() if line.startswith("best: ")).removeprefix("best: remask ")
    again = command.replace("DIR", str(tmp_path / "again")).split()
    result = CliRunner().invoke(cli, [*again, "--json", "-q"], catch_exceptions=False)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["metrics"] == values["metrics"]
    text = (tmp_path / "out/best.yaml").read_text()
    assert text.startswith(f"# remask {command}\n")
    assert f"learning_rate: {values['best']['lr']!r}" in text
    assert "num_rows: 32" in text  # did not vary: its only value


def test_trials_that_fall_behind_end(task_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores are made up, so that the sixth trial is the worst from its first evaluation on."""
    run = search_for(
        task_model, write_rows(tmp_path / "t.jsonl"),
        **{"search.trials": 6, "search.prune": True, "search.epochs": [2.0], "search.sampler": "random"},
    )  # fmt: skip
    begun = 0

    def made_up(run: Any, out: Path, *, progress: Any, report: Any, allow_change: Any) -> dict[str, Any]:
        nonlocal begun
        begun += 1
        score = 0.1 if begun == 6 else 0.5 + begun / 100
        for number in (1, 2):
            report(number, score)
        (out / "model").mkdir(parents=True)
        found = {"score": score, "metrics": {"accuracy": score}, "metric": "accuracy", "model": str(out / "model")}
        (out / "results.json").write_text(json.dumps(found))
        return found

    monkeypatch.setattr(tune_search, "finetune", made_up)
    values = search(run, tmp_path / "out", progress=Progress(quiet=True))
    assert [trial["state"] for trial in values["trials"]] == ["complete"] * 5 + ["pruned"]
    assert values["best"]["trial"] == 4


def test_searches_that_cannot_be_are_refused(task_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = write_rows(tmp_path / "t.jsonl")
    with pytest.raises(ConfigError, match=r"lr = \[0\.1, 0\.01\]: give \[lowest, highest\]"):
        search_for(task_model, train, **{"search.lr": [0.1, 0.01]})
    with pytest.raises(ConfigError, match="a search has ranges instead"):
        search_for(task_model, train, **{"grid.lr": [0.1, 0.01]})
    nothing = {f"search.{name}": [] for name in ("lr", "batch", "epochs", "warmup")}
    with pytest.raises(UsageError, match="nothing varies"):
        search(search_for(task_model, train, **nothing), tmp_path / "o", progress=Progress(quiet=True))
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UnavailableError, match=r"pip install .*\[tune\]"):
        search(search_for(task_model, train), tmp_path / "o2", progress=Progress(quiet=True))


def test_a_value_that_is_given_is_kept_or_refused(task_model: Path, tmp_path: Path) -> None:
    train = write_rows(tmp_path / "t.jsonl")
    for place, value in (("train.epochs", 1.0), ("batch.num_rows", 16)):
        name = {"train.epochs": "epochs", "batch.num_rows": "batch"}[place]
        with pytest.raises(ConfigError, match=rf"{place} and search\.{name} are both given: a value, or a range"):
            search_for(task_model, train, **{place: value})
    given = {
        "train.epochs": 1.0,
        "batch.num_rows": 16,
        "train.warmup": 0.1,
        "search.trials": 2,
        "search.lr": [1e-4, 2e-2],
    }
    run = build_run(TuneRun, options=options_for(task_model, train, **given)).run
    values = search(run, tmp_path / "out", progress=Progress(quiet=True))
    assert [set(trial) - {"trial", "state", "score", "seconds"} for trial in values["trials"]] == [{"lr"}, {"lr"}]
    for file in (tmp_path / "out").glob("trials/*/run.yaml"):
        tried = build_run(FinetuneRun, file).run
        assert (tried.train.epochs, tried.batch.num_rows, tried.train.warmup) == (1.0, 16, 0.1)
    best = build_run(FinetuneRun, tmp_path / "out/best.yaml").run
    assert (best.train.epochs, best.train.learning_rate) == (1.0, values["best"]["lr"])


def test_a_grid_tries_all_and_takes_the_best_median(task_model: Path, tmp_path: Path) -> None:
    train = write_rows(tmp_path / "t.jsonl", 160)
    options = options_for(task_model, train, **{"grid.lr": [1e-8, 1e-2], "grid.batch": [16, 32], "train.epochs": 4.0})
    run = build_run(FinetuneRun, options=options).run
    values = finetune(run, tmp_path / "out", progress=Progress(quiet=True))
    rows = values["grid"]
    assert [(row["lr"], row["batch"]) for row in rows] == [(1e-8, 16), (1e-8, 32), (1e-2, 16), (1e-2, 32)]
    best = max(rows, key=lambda row: row["score"])
    assert best["best"]
    assert best["lr"] == 1e-2
    assert values["score"] == best["score"] == values["spread"]["accuracy"]["median"]
    assert open_model(tmp_path / "out").labels == ("no", "yes")
    assert len(list((tmp_path / "out/grid").glob("*/model"))) == 1
    assert finetune_table(values).splitlines()[0].split() == ["lr", "batch", "accuracy", "lowest", "highest"]
    again = finetune(run, tmp_path / "out", progress=Progress(quiet=True))
    assert again["grid"] == rows
    chosen = build_run(FinetuneRun, tmp_path / "out/best.yaml").run
    assert chosen.train.learning_rate == 1e-2
    assert not chosen.grid.given()
    more = build_run(FinetuneRun, options={**options, "seeds": 2}).run
    values = finetune(more, tmp_path / "out", progress=Progress(quiet=True))
    best = next(row for row in values["grid"] if row["best"])
    assert best["low"] <= best["score"] <= best["high"]
    assert len(values["spread"]["accuracy"]["seeds"]) == 2


def test_the_command_line_has_grids(task_model: Path, tmp_path: Path) -> None:
    train = write_rows(tmp_path / "t.jsonl")
    words = ["finetune", "--init", task_model, "--train", train, "--out", tmp_path / "o", "--print-config"]
    given = ["--grid", "lr=1e-5,2e-5 batch=16,32"]
    result = CliRunner().invoke(cli, [str(word) for word in (*words, *given)], catch_exceptions=False)
    assert "- 2.0e-05" in result.stdout
    with pytest.raises(UsageError, match="--grid rate=1: write NAME=VALUE,VALUE with a name of lr, batch"):
        CliRunner().invoke(cli, [str(word) for word in (*words, "--grid", "rate=1")], catch_exceptions=False)
