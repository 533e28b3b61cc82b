"""`remask pretrain` as a user calls it: the smoke run, what it leaves behind, and mistakes."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from remask.__main__ import cli
from remask.config import build_run, runs_folder
from remask.errors import ConfigError, DataError, MissingInputError, OutputError, RemaskError
from remask.pretraining.run import pretrain as main
from remask.pretraining.settings import PretrainRun
from remask.progress import Progress

SMOKE = runs_folder() / "smoke" / "pretrain.yaml"


def remask(*words: str | Path | int) -> Any:
    return CliRunner().invoke(cli, ["pretrain", *map(str, words)])


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory, tiny_prepared: Path) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("smoke") / "out"
    done = remask(SMOKE, "--data", tiny_prepared, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    return out, json.loads(done.stdout)


def test_the_smoke_run_leaves_a_model_a_log_and_its_settings(smoke: tuple[Path, dict[str, Any]]) -> None:
    out, answer = smoke
    assert {"loss", "perplexity", "accuracy", "bits_per_byte", "step", "tokens", "checkpoint"} <= answer.keys()
    assert answer["step"] == 30
    assert answer["loss"] == answer["metrics"]["eval/loss"]
    assert Path(answer["checkpoint"]).name == "step-000000030"
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert {"step", "time", "train/loss", "train/learning_rate", "train/grad_norm", "perf/tokens_per_second"} <= lines[
        0
    ].keys()
    assert [line["step"] for line in lines if "eval/loss" in line] == [15, 30]
    assert yaml.safe_load((out / "run.yaml").read_text())["train"]["steps"] == 30
    facts = json.loads((out / "run.json").read_text())
    assert facts["unigram_nats"] == 4.0
    assert facts["result"]["loss"] == answer["loss"]
    assert {"parameters", "tokens_per_step", "machine", "data"} <= facts.keys()

    from remask.model.store import open_model

    loaded = open_model(out)
    assert loaded.folder.name == "step-000000030"
    assert loaded.tokenizer_folder is not None


def test_the_written_run_file_builds_the_same_run(smoke: tuple[Path, dict[str, Any]], tiny_prepared: Path) -> None:
    out, answer = smoke
    again = remask(out / "run.yaml", "--out", out, "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["loss"] == answer["loss"]


def test_a_budget_on_the_command_line_stands_alone() -> None:
    for words, wanted in ((("--minutes", "2.5"), (None, 2.5)), (("--steps", "7"), (7, None))):
        done = remask(SMOKE, "--out", "unused", *words, "--print-config")
        assert done.exit_code == 0, done.output
        train = yaml.safe_load(done.stdout)["train"]
        assert (train["steps"], train["minutes"]) == wanted


def test_a_dry_run_says_what_it_would_be_and_writes_nothing(tmp_path: Path, tiny_prepared: Path) -> None:
    done = remask(SMOKE, "--data", tiny_prepared, "--out", tmp_path / "out", "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["num_steps"] == 30
    assert "parameters" in done.stderr
    assert not (tmp_path / "out").exists()
    shared = remask(
        SMOKE, "--data", tiny_prepared, "--out", tmp_path / "out", "--dry-run", "--json", "--set", "model.sharing=all"
    )
    less = json.loads(shared.stdout)
    assert less["parameters"] < answer["parameters"]
    assert less["flops_per_token"] == answer["flops_per_token"] > 0  # a shared layer is computed as often


def test_no_steps_measure_and_save_the_start(tmp_path: Path, tiny_prepared: Path) -> None:
    from remask.model.store import open_model

    words = [SMOKE, "--data", tiny_prepared, "--out", tmp_path / "out", "--steps", 0, "--json"]
    first = remask(*words)
    assert first.exit_code == 0, first.output
    answer = json.loads(first.stdout)
    assert answer["step"] == answer["tokens"] == 0
    network = open_model(tmp_path / "out").network
    assert answer["loss"] == pytest.approx(math.log(network.settings.vocab_size), abs=0.1)  # it knows nothing yet
    assert (tmp_path / "out" / "report.html").is_file()
    again = remask(*words)
    assert json.loads(again.stdout)["loss"] == answer["loss"]


def test_a_base_by_its_name_shows_what_differs_from_it(tmp_path: Path) -> None:
    done = remask("modern_tiny", "--data", tmp_path / "absent", "--out", tmp_path / "out", "--dry-run", "--steps", 5)
    assert isinstance(done.exception, MissingInputError)
    assert done.stderr.splitlines()[1:2] == ["  train.steps: 5 (modern_tiny: 5000)"]
    assert "defaults" not in done.stderr


def test_continued_pretraining_starts_from_the_other_model(
    tmp_path: Path, tiny_prepared: Path, smoke: tuple[Path, dict[str, Any]]
) -> None:
    first, answer = smoke
    words = ("--data", tiny_prepared, "--out", tmp_path / "out", "--init-from", first)
    done = remask(SMOKE, *words, "--set", "model.max_length=80", "--set", "train.trainable_top_layers=1", "--json")
    assert done.exit_code == 0, done.output
    assert "320 of 320 tokens keep their vectors" in done.stderr
    number = r"[\d.,e+-]+"
    shown = (
        rf"30 steps · loss {number} · held-out {number} · perplexity {number} · {number} tokens/s · \d+% of peak"
        rf" · gradient {number} · lr {number} · "
    )
    assert re.search(shown, done.stderr), done.stderr
    assert json.loads(done.stdout)["loss"] < answer["loss"]

    from remask.model.store import open_model

    before, after = (open_model(folder).network.state_dict() for folder in (first, tmp_path / "out"))
    moved = {name for name in before if before[name].shape == after[name].shape and (before[name] != after[name]).any()}
    assert "encoder.ffns.1.down.weight" in moved
    assert not any(name.startswith(("encoder.ffns.0", "encoder.attentions.0", "encoder.embeddings")) for name in moved)


MISTAKES: dict[str, tuple[dict[str, Any], type[RemaskError], str]] = {
    "no data": ({"prepared": None}, ConfigError, "which data"),
    "data that is not there": ({"prepared": "/nowhere/at/all"}, MissingInputError, "no such folder"),
    "no budget": ({"train.steps": None}, ConfigError, "say how long"),
    "a vocabulary of its own": ({"model.vocab_size": 999}, ConfigError, "tokenizer has 320 entries"),
    "rows longer than the model": ({"data.length": 512}, ConfigError, "reads at most 64 tokens"),
    "a model that is not there": ({"init_from": "/nowhere/at/all"}, MissingInputError, "no such model folder"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_sentence(name: str, tmp_path: Path, tiny_prepared: Path) -> None:
    changes, error, words = MISTAKES[name]
    assignments = [f"{key}={'null' if value is None else value}" for key, value in changes.items()]
    given = [f"prepared={tiny_prepared}", *assignments]
    run = build_run(PretrainRun, SMOKE, given).run
    with pytest.raises(error, match=words) as caught:
        main(run, tmp_path / "out", progress=Progress(quiet=True))
    assert len(str(caught.value).splitlines()) == 1


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path, tiny_prepared: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    run = build_run(PretrainRun, SMOKE, [f"prepared={tiny_prepared}"]).run
    with pytest.raises(OutputError, match=r"thesis.txt"):
        main(run, tmp_path, progress=Progress(quiet=True))
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != ".lock") == ["thesis.txt"]


def test_damaged_data_is_refused(tmp_path: Path, tiny_prepared: Path) -> None:
    shutil.copytree(tiny_prepared, tmp_path / "data")
    (tmp_path / "data" / "manifest.json").write_text("{}")
    run = build_run(PretrainRun, SMOKE, [f"prepared={tmp_path / 'data'}"]).run
    with pytest.raises(DataError, match="damaged"):
        main(run, tmp_path / "out", progress=Progress(quiet=True))


def test_a_run_by_the_clock_counts_what_its_minutes_allow(tiny_prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from remask import start
    from remask.pretraining.start import make_network
    from remask.tokenizer import load_tokenizer

    counted: list[int] = []
    monkeypatch.setattr(start, "start_network", lambda network, settings, *rest: counted.append(settings.most_tokens))
    for budget in ("steps=5", "minutes=0.5", "minutes=60", "minutes=1e-9"):
        changes = [f"train.{name}=null" for name in ("steps", "minutes")]
        run = build_run(PretrainRun, SMOKE, [*changes, f"train.{budget}", f"prepared={tiny_prepared}"]).run
        make_network(run, load_tokenizer(tiny_prepared / "tokenizer"), Progress(quiet=True))
    assert counted == [20_000_000, 4_000_000, 20_000_000, start.MIN_TOKENS]
