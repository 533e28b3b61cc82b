"""Fine-tuning from a table to a model that answers: all kinds of tasks, resume, refusal, answers that stay the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import remask
from remask import signals
from remask.answer import model as answer_model
from remask.config import build_run
from remask.errors import ConfigError, DataError, Stopped
from remask.progress import Progress
from remask.tasks.specs import TASKS
from remask.tune import seed as tune_seed
from remask.tune.finetune import finetune, render
from remask.tune.settings import FinetuneRun
from remask.tune.single import prepare

WORDS = ("red green blue cold warm big small old new fast slow dark light good bad fine").split()  # noqa: SIM905


def write_rows(path: Path, count: int, seed: int, label) -> Path:
    """Short texts; `label` sees the words."""
    rng = np.random.default_rng(seed)
    with path.open("w") as file:
        for _ in range(count):
            words = list(rng.choice(WORDS, rng.integers(3, 7)))
            file.write(json.dumps({"body": " ".join(words), "topic": label(words)}) + "\n")
    return path


def colour(words: list[str]) -> str:
    return "red" if "red" in words else "other"


def run_for(model: Path, train: Path, dev: Path | None, **options: Any) -> FinetuneRun:
    values = {
        "init": str(model), "train_file": str(train), "dev_file": str(dev) if dev else None, "table.text": "body",
        "table.label": "topic", "train.precision": "fp32", "train.device": "cpu", "batch.num_rows": 16,
        "train.learning_rate": 5e-3, **options,
    }  # fmt: skip
    return build_run(FinetuneRun, options=values).run


def quiet() -> Progress:
    return Progress(quiet=True)


def test_the_ensemble_answers_in_the_format_of_the_training(
    task_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    formats = []

    class Noted(answer_model.Model):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            formats.append((self.precision, self.runner.device.type))

    monkeypatch.setattr(answer_model, "Model", Noted)
    train = write_rows(tmp_path / "train.jsonl", 40, 1, colour)
    run = run_for(task_model, train, train, **{"train.epochs": 1.0, "seeds": 2, "train.precision": "bf16"})
    finetune(run, tmp_path / "out", progress=quiet())
    assert formats == [("bf16", "cpu")] * 3  # the two of the ensemble, and the best one for the map


def test_a_classifier_learns_and_its_model_answers_the_same(task_model: Path, tmp_path: Path) -> None:
    train = write_rows(tmp_path / "train.jsonl", 320, 1, colour)
    dev = write_rows(tmp_path / "dev.jsonl", 80, 2, colour)
    run = run_for(task_model, train, dev, **{"train.epochs": 6.0, "seeds": 2})
    values = finetune(run, tmp_path / "out", progress=quiet())
    assert values["metrics"]["accuracy"] > 0.9
    assert values["spread"]["accuracy"]["low"] <= values["metrics"]["accuracy"] <= values["spread"]["accuracy"]["high"]
    assert values["labels"] == ["other", "red"]
    assert len(values["runs"]) == 2
    assert values["runs"][0]["table"]["classes"]["red"]["support"] > 0
    assert json.loads((tmp_path / "out/results.json").read_bytes())["metrics"] == values["metrics"]
    assert "surest of" in (tmp_path / "out/report.html").read_text() or values["metrics"]["accuracy"] == 1.0
    assert not (tmp_path / "out/seed-0/checkpoints").exists()
    text = render(values)
    assert "precision" in text
    assert "median of 2 seeds" in text
    assert values["ensemble"]["models"] == 2
    assert values["ensemble"]["metrics"]["accuracy"] > 0.9
    assert "ensemble of 2" in text
    assert values["data"]["baseline"]["accuracy"] < values["metrics"]["accuracy"]

    # The published model gives the scores that were measured, and a second call does nothing.
    setup = prepare(run, quiet())
    model = remask.load(tmp_path / "out")
    assert model.labels == ("other", "red")
    rows, problem = setup.part.dev_rows, setup.problem
    again = problem.kind.score(model.outputs(rows), rows, problem.dev, problem.labels)
    best = next(r for r in values["runs"] if r["seed"] == values["seeds"]["best"])
    assert again["metrics"] == pytest.approx(best["metrics"])
    assert again["confusion"] == best["confusion"]
    assert finetune(run, tmp_path / "out", progress=quiet())["metrics"] == values["metrics"]


def test_from_scratch_is_another_start(task_model: Path, tmp_path: Path) -> None:
    from remask.model.store import open_model

    train = write_rows(tmp_path / "train.jsonl", 64, 1, colour)
    setups = [prepare(run_for(task_model, train, None, init_weights=w), quiet()) for w in (True, False)]
    start = open_model(task_model).network.state_dict()["encoder.embeddings.tokens.weight"]
    kept, fresh = (s.build(7).state_dict()["encoder.embeddings.tokens.weight"] for s in setups)
    assert (kept == start).all()
    assert not (fresh == start).all()


@pytest.mark.parametrize(
    "task, label, metric",
    [
        ("regress", lambda words: 2.0 * ("red" in words) + len(words) / 10, "spearman"),
        ("multilabel", lambda words: sorted({"red", "blue"} & set(words)), "f1"),
    ],
)
def test_numbers_and_several_labels(task_model: Path, tmp_path: Path, task: str, label, metric: str) -> None:
    train = write_rows(tmp_path / "train.jsonl", 320, 1, label)
    dev = write_rows(tmp_path / "dev.jsonl", 80, 2, label)
    values = finetune(
        run_for(task_model, train, dev, task=task, **{"train.epochs": 10.0}), tmp_path / "out", progress=quiet()
    )
    assert values["metric"] == metric
    assert values["metrics"][metric] > 0.7


def test_numbers_of_any_size_are_reached(task_model: Path, tmp_path: Path) -> None:
    """Prices in the thousands, at a rate whose steps alone would never get there."""

    def price(words: list[str]) -> float:
        return 250_000.0 + 4_000.0 * ("red" in words)

    train, dev = (write_rows(tmp_path / f"{name}.jsonl", n, n, price) for name, n in (("train", 320), ("dev", 80)))
    run = run_for(task_model, train, dev, task="regress", **{"train.epochs": 8.0})
    values = finetune(run, tmp_path / "out", progress=quiet())
    assert values["metrics"]["mean_absolute_error"] < 1_000
    # The model that was kept answers in the units of the file, and a second run begins with what it knows.
    setup = prepare(run, quiet())
    kept = [float(output[0]) for output in remask.load(tmp_path / "out").outputs(setup.part.dev_rows)]
    error = np.abs(np.array(kept) - [e.label for e in setup.problem.dev]).mean()
    assert error == pytest.approx(values["metrics"]["mean_absolute_error"], rel=1e-3)
    again = prepare(run.model_copy(update={"init": str(tmp_path / "out")}), quiet())
    begun = again.part.outputs(again.build(0).eval(), signals.check)
    assert [float(output[0]) for output in begun] == pytest.approx(kept, rel=1e-4)


def test_pairs(task_model: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with (tmp_path / "t.jsonl").open("w") as file:
        for _ in range(200):
            a, b = rng.choice(WORDS[:4], 2)
            file.write(json.dumps({"body": a, "other": b, "topic": int(b == "red")}) + "\n")
    options = {"task": "pair", "table.text2": "other", "train.epochs": 12.0}
    values = finetune(run_for(task_model, tmp_path / "t.jsonl", None, **options), tmp_path / "o", progress=quiet())
    assert values["metrics"]["accuracy"] > 0.9
    assert any("a fifth" in note for note in values["notes"])


def test_names_are_found(task_model: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, count in (("train.txt", 200), ("dev.txt", 40)):
        with (tmp_path / name).open("w") as file:
            for _ in range(count):
                for word in rng.choice(WORDS, rng.integers(2, 6)):
                    tag = "B-TONE" if word in ("red", "blue") else "O"
                    file.write(f"{word} {tag}\n")
                file.write("\n")
    run = run_for(task_model, tmp_path / "train.txt", tmp_path / "dev.txt", task="ner", **{"train.epochs": 5.0})
    values = finetune(run, tmp_path / "out", progress=quiet())
    assert values["metrics"]["f1"] > 0.9
    assert list(values["runs"][0]["table"]["classes"]) == ["TONE"]
    assert "B-TONE" in values["runs"][0]["tags"]["classes"]
    assert "B-TONE" in render(values)
    assert "By tag of a word" in (tmp_path / "out/report.html").read_text()


def squad_file(path: Path, count: int, seed: int, impossible: bool) -> Path:
    """Questions whose answer is `red`; without it there is none."""
    rng = np.random.default_rng(seed)
    paragraphs = []
    for number in range(count):
        words = list(rng.choice(WORDS[2:], 4))
        has_answer = not impossible or number % 2 == 0
        if has_answer:
            words.insert(int(rng.integers(1, 4)), "red")
        context = " ".join(words)
        qa: dict[str, Any] = {"id": str(number), "question": "fine", "answers": []}
        if has_answer:
            qa["answers"] = [{"text": "red", "answer_start": context.index("red")}]
        paragraphs.append({"context": context, "qas": [{**qa, "is_impossible": not has_answer}]})
    path.write_text(json.dumps({"data": [{"title": "T", "paragraphs": paragraphs}]}))
    return path


@pytest.mark.parametrize("impossible", [False, True])
def test_questions_about_passages(task_model: Path, tmp_path: Path, impossible: bool) -> None:
    train = squad_file(tmp_path / "train.json", 320, 1, impossible)
    dev = squad_file(tmp_path / "dev.json", 40, 2, impossible)
    run = run_for(task_model, train, dev, task="qa", **{"train.epochs": 8.0, "train.learning_rate": 2e-3})
    values = finetune(run, tmp_path / "out", progress=quiet())
    assert values["metrics"]["f1"] > 0.8
    assert ("best_f1" in values["metrics"]) == impossible
    if impossible:
        assert values["metrics"]["unanswerable_exact"] > 0.8


def test_choices(task_model: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, count in (("train.high.jsonl", 200), ("dev.high.jsonl", 40)):
        with (tmp_path / name).open("w") as file:
            for _ in range(count):
                options = list(rng.choice(WORDS[2:], 3, replace=False))
                answer = int(rng.integers(3))
                options[answer] = "red"
                line = {"article": "big", "question": "old", "options": options, "answer": answer}
                file.write(json.dumps(line) + "\n")
    run = run_for(
        task_model, tmp_path / "train.high.jsonl", tmp_path / "dev.high.jsonl", task="choice", **{"train.epochs": 4.0}
    )
    values = finetune(run, tmp_path / "out", progress=quiet())
    assert values["metrics"]["accuracy"] > 0.9
    assert values["metrics"]["high_accuracy"] == values["metrics"]["accuracy"]


def test_patience_ends_a_seed(task_model: Path, tmp_path: Path) -> None:
    train = write_rows(tmp_path / "train.jsonl", 64, 1, colour)
    run = run_for(task_model, train, train, patience=2, **{"train.epochs": 30.0, "train.learning_rate": 1e-9})
    values = finetune(run, tmp_path / "out", progress=quiet())
    assert len(values["runs"][0]["history"]) == 3
    assert values["runs"][0]["step"] == 4


def test_a_stopped_run_goes_on_to_the_same_result(
    task_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = write_rows(tmp_path / "train.jsonl", 96, 1, colour)
    run = run_for(task_model, train, None, **{"train.epochs": 4.0})
    whole = finetune(run, tmp_path / "whole", progress=quiet())
    evaluate, count = tune_seed.Watch.evaluate, 0

    def stop_after_two(self, network, step):
        nonlocal count
        found = evaluate(self, network, step)
        count += 1
        if count == 2:
            monkeypatch.setattr(signals, "requested", lambda: True)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(tune_seed.Watch, "evaluate", stop_after_two)
        with pytest.raises(Stopped):
            finetune(run, tmp_path / "cut", progress=quiet())
    monkeypatch.undo()
    gone_on = finetune(run, tmp_path / "cut", progress=quiet())
    for key in ("metrics", "history", "step", "confusion"):
        assert gone_on["runs"][0][key] == whole["runs"][0][key]
    weights = [(tmp_path / name / "model/model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]


def test_another_run_in_the_same_folder_is_refused_and_more_seeds_are_added(task_model: Path, tmp_path: Path) -> None:
    train = write_rows(tmp_path / "train.jsonl", 48, 1, colour)
    run = run_for(task_model, train, None, **{"train.epochs": 1.0})
    finetune(run, tmp_path / "out", progress=quiet())
    other = run_for(task_model, train, None, **{"train.epochs": 2.0})
    with pytest.raises(ConfigError, match=r"was made by another run(.|\n)*run\.train\.epochs: 1\.0 -> 2\.0"):
        finetune(other, tmp_path / "out", progress=quiet())
    write_rows(train, 48, 5, colour)
    with pytest.raises(ConfigError, match="data: "):
        finetune(run, tmp_path / "out", progress=quiet())
    write_rows(train, 48, 1, colour)
    more = run_for(task_model, train, None, **{"train.epochs": 1.0, "seeds": 2})
    assert len(finetune(more, tmp_path / "out", progress=quiet())["runs"]) == 2


def test_a_folder_that_holds_something_else_is_refused(task_model: Path, tiny_prepared: Path, tmp_path: Path) -> None:
    """Natural mistakes: --out where the pretraining is, or the model itself."""
    from remask.pretraining.run import pretrain
    from remask.pretraining.settings import PretrainRun

    small = {
        "model.num_layers": 1, "model.hidden_size": 16, "model.num_heads": 2, "model.ffn_size": 32,
        "model.max_length": 32, "data.length": 32, "data.batch.num_rows": 4, "data.evaluation.num_rows": 4,
        "train.steps": 1, "train.precision": "fp32", "prepared": str(tiny_prepared),
    }  # fmt: skip
    folder = tmp_path / "pretrained"
    pretrain(build_run(PretrainRun, options=small).run, folder, progress=quiet())
    before = {name: (folder / name).read_bytes() for name in ("run.json", "run.yaml")}
    train = write_rows(tmp_path / "train.jsonl", 48, 1, colour)
    with pytest.raises(ConfigError, match=r"pretrained: holds a pretraining run; choose another --out"):
        finetune(run_for(folder, train, None), folder, progress=quiet())
    assert {name: (folder / name).read_bytes() for name in before} == before
    model = shutil.copytree(task_model, tmp_path / "model")
    with pytest.raises(ConfigError, match=r"model: is a finished folder of another command; choose another --out"):
        finetune(run_for(task_model, train, None), model, progress=quiet())
    assert not (model / "run.json").exists()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/run.json").write_text("[]")
    with pytest.raises(DataError, match=r"run.json: damaged"):
        finetune(run_for(task_model, train, None), tmp_path / "broken", progress=quiet())


def test_mistakes_are_named_before_training(task_model: Path, tmp_path: Path) -> None:
    train = write_rows(tmp_path / "train.jsonl", 48, 1, colour)
    dev = write_rows(tmp_path / "dev.jsonl", 10, 2, lambda words: "never seen")
    with pytest.raises(DataError, match="'never seen'"):
        prepare(run_for(task_model, train, dev), quiet())
    with pytest.raises(ConfigError, match=r"task = 'clasify'.*did you mean classify"):
        run_for(task_model, train, dev, task="clasify")
    with pytest.raises(ConfigError, match="init is needed"):
        prepare(run_for(Path(), train, dev, init=""), quiet())
    with pytest.raises(ConfigError, match="needs its files"):
        prepare(run_for(task_model, train, dev, task="glue:cola", train_file=None, dev_file=None), quiet())


def test_fewer_examples_are_drawn_alike_and_noted(task_model: Path, tmp_path: Path) -> None:
    train, dev = (write_rows(tmp_path / f"{name}.jsonl", 48, 1, colour) for name in ("train", "dev"))
    setups = [prepare(run_for(task_model, train, dev, max_train=20, max_dev=10, seed=seed), quiet()) for seed in (0, 1)]
    problem = setups[0].problem
    assert (len(problem.train), len(problem.dev)) == (20, 10)
    assert [e.place for e in problem.dev] == [e.place for e in setups[1].problem.dev]
    assert "trained on 20 of 48 examples" in problem.notes
    assert "scored on 10 of 48 examples" in problem.notes


@pytest.mark.parametrize("name", TASKS)
def test_every_recipe_is_one_that_a_run_knows(name: str) -> None:
    words = [f"{key}={value}" for key, value in TASKS[name]["recipe"].items()]
    run = build_run(FinetuneRun, assignments=words, options={"task": name}).run
    assert run.batch.num_rows in (16, 32, 48)


def test_rates_follow_the_width_unless_given(task_model: Path, tmp_path: Path) -> None:
    train = write_rows(tmp_path / "train.jsonl", 48, 1, colour)

    def rate(**options: Any) -> float:
        setup = prepare(run_for(task_model, train, None, **options), quiet())
        return tune_seed.train_settings(setup.run, setup.width, 5).learning_rate

    values = {"train.learning_rate": None}
    assert rate(**values) == 3e-4, "a width of 32 would take more than a fresh network does"
    assert tune_seed.rate_of_all(2e-5, 384) == pytest.approx(2e-5 * 2**2.5)
    assert tune_seed.rate_of_all(2e-5, 768) == 2e-5
    assert rate(**{"train.learning_rate": 1e-5}) == 1e-5
    assert rate(**values, learn="lora") == pytest.approx(4e-4 * (768 / 32) ** 1.5)
    assert rate(**values, learn="heads") == pytest.approx(1e-3 * (768 / 32) ** 1.5)
