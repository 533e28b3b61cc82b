"""`evaluate MODEL --test FILE`: a fine-tuned model of any kind of task on a labelled file, without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from remask.__main__ import cli
from remask.errors import ConfigError, DataError, MissingInputError, UsageError
from remask.evaluation.table import render
from remask.tune import single

WORDS = ["red", "green", "blue", "cold", "warm", "big", "small", "old", "new", "fast"]


def invoke(*words: Any) -> dict[str, Any]:
    """Run a verb with --json; errors come through as exceptions."""
    result = CliRunner().invoke(cli, [str(word) for word in (*words, "--json", "-q")], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def write_json_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_file(folder: Path, name: str, task: str, count: int, seed: int) -> Path:
    """A file of the task with `count` examples."""
    rng = np.random.default_rng(seed)
    texts = [[str(word) for word in rng.choice(WORDS, 4)] for _ in range(count)]
    if task == "ner":
        lines = [f"{word} {'B-COLOUR' if word in WORDS[:3] else 'O'}\n" for words in texts for word in [*words, ""]]
        path = folder / f"{name}.txt"
        path.write_text("".join(line if not line.startswith(" ") else "\n" for line in lines))
        return path
    if task == "qa":
        paragraphs = []
        for number, words in enumerate(texts):
            answer = {"text": words[1], "answer_start": len(words[0]) + 1}
            asked = {"id": f"{name}{number}", "question": words[0], "answers": [answer]}
            paragraphs.append({"context": " ".join(words), "qas": [asked]})
        path = folder / f"{name}.json"
        path.write_text(json.dumps({"data": [{"title": name, "paragraphs": paragraphs}]}))
        return path
    if task == "choice":
        rows = [{"question": words[0], "options": words[1:3], "answer": "AB"[i % 2]} for i, words in enumerate(texts)]
        return write_json_lines(folder / f"{name}.jsonl", rows)
    labels = {
        "regress": lambda words: len(" ".join(words)),
        "multilabel": lambda words: sorted({"red", "blue"} & set(words)),
    }
    label = labels.get(task, lambda words: "red" if "red" in words else "other")
    rows = [{"body": " ".join(words), "other": words[0], "topic": label(words)} for words in texts]
    return write_json_lines(folder / f"{name}.jsonl", rows)


def train(model: Path, folder: Path, task: str, out: Path, *words: Any) -> dict[str, Any]:
    files = [write_file(folder, name, task, count, count) for name, count in (("train", 48), ("dev", 24))]
    columns = () if task in ("ner", "qa", "choice") else ("--text", "body", "--label", "topic")
    second = ("--text2", "other") if task == "pair" else ()
    return invoke(
        "finetune", "--task", task, "--init", model, "--train", files[0], "--dev", files[1], *columns, *second,
        "--epochs", 1, "--set", "train.precision=fp32", "--set", "train.device=cpu", "--out", out, *words,
    )  # fmt: skip


def score(model: Path, file: Path, *words: Any) -> dict[str, Any]:
    return invoke("evaluate", model, "--test", file, "--precision", "fp32", "--device", "cpu", *words)


@pytest.mark.parametrize("task", ["classify", "regress", "multilabel", "pair", "ner", "qa", "choice"])
def test_the_dev_file_gets_the_scores_it_had_in_training(
    task_model: Path, tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = train(task_model, tmp_path, task, tmp_path / "out")
    monkeypatch.setattr(single, "tune_single", None)  # nothing is trained any more
    dev = next(tmp_path.glob("dev.*"))
    found = score(tmp_path / "out", dev, "--out", tmp_path / "scores")
    close = 0.02 if task == "regress" else 1e-4  # it learned in other units, and its answers hardly differ
    assert found["metrics"] == pytest.approx(made["metrics"], abs=close)
    assert (found["metric"], found["data"]["test"]) == (made["metric"], 24)
    kept = json.loads((tmp_path / "scores/results.json").read_bytes())
    assert kept == found
    run = made["runs"][0]
    page = (tmp_path / "scores/report.html").read_text()
    assert "examples scored" in page
    assert ("By class" in page, "What was taken for what" in page) == ("table" in run, "confusion" in run)
    for name in ("table", "tags", "confusion"):
        assert found.get(name) == run.get(name)
    text = render(found)
    assert f"* {made['metric']}" in text
    assert "24 examples of" in text
    assert ("precision" in text) == ("table" in run)
    if task in ("qa", "choice"):
        with pytest.raises(ConfigError, match=r"table.label: files of questions have names of their own"):
            score(tmp_path / "out", dev, "--label", "topic")


@pytest.fixture(scope="module")
def classifier(task_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    train(task_model, folder, "classify", folder / "out")
    return folder


def test_other_columns_other_rows_and_an_exported_model(classifier: Path, tmp_path: Path) -> None:
    new = write_file(tmp_path, "new", "classify", 30, 7)
    plain = score(classifier / "out", new)
    rows = [json.loads(line) for line in new.read_text().splitlines()]
    renamed = write_json_lines(tmp_path / "renamed.jsonl", [{"t": row["body"], "l": row["topic"]} for row in rows])
    with pytest.raises(ConfigError, match=r"renamed.jsonl:1: no column 'body'; there are t, l"):
        score(classifier / "out", renamed)
    given = ("--text", "t", "--label", "l")
    assert score(classifier / "out", renamed, *given)["metrics"] == plain["metrics"]
    # An export knows its task; without that file it is as a foreign model, with classes and no columns.
    invoke("export", classifier / "out", "--to", "hf", "--out", tmp_path / "hf")
    assert score(tmp_path / "hf", new)["metrics"] == pytest.approx(plain["metrics"], abs=1e-4)
    (tmp_path / "hf/task.json").unlink()
    with pytest.raises(ConfigError, match=r"new.jsonl:1: no column 'text'"):
        score(tmp_path / "hf", new)
    foreign = score(tmp_path / "hf", renamed, *given)
    assert foreign["metrics"] == pytest.approx(plain["metrics"], abs=1e-4)
    assert foreign["task"] == "classify"
    fewer = score(classifier / "out", new, "--max-dev", 10)
    assert (fewer["data"]["test"], fewer["notes"]) == (10, ["scored on 10 of 30 examples"])


def test_rows_without_a_label_and_labels_that_are_unknown(classifier: Path, tmp_path: Path) -> None:
    rows = [{"body": "red old", "topic": "red"}, {"body": "", "topic": "other"}, {"body": "old", "topic": "other"}]
    broken = write_json_lines(tmp_path / "broken.jsonl", rows)
    with pytest.raises(DataError, match=r"broken.jsonl:2: column 'body' has no text; .*table.bad_rows=drop"):
        score(classifier / "out", broken)
    found = score(classifier / "out", broken, "--set", "table.bad_rows=drop")
    assert (found["data"]["test"], found["data"]["dropped"]) == (2, {"empty text": 1})
    assert "rows left out: empty text: 1" in render(found)
    strange = write_json_lines(tmp_path / "strange.jsonl", [*rows[:1], {"body": "old", "topic": "blue"}])
    has = r"labels that the model does not have \(it has other, red\)"
    with pytest.raises(DataError, match=rf"{has}: 'blue' \(.*strange.jsonl:2\)"):
        score(classifier / "out", strange)


def test_a_named_tasks_file_is_read_as_the_task_has_it(task_model: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("train", "dev"):
        texts = [list(rng.choice(WORDS, 3)) for _ in range(32)]
        lines = [f"{' '.join(words)}\t{int('red' in words)}\n" for words in texts]
        (tmp_path / f"{name}.tsv").write_text("".join(["sentence\tlabel\n", *lines]))
    fast = ("--epochs", 1, "--set", "train.precision=fp32", "--set", "train.device=cpu")
    made = invoke(
        "finetune", "--task", "glue:sst2", "--data", tmp_path, "--init", task_model, "--out", tmp_path / "out", *fast
    )
    assert score(tmp_path / "out", tmp_path / "dev.tsv")["metrics"] == pytest.approx(made["metrics"], abs=1e-4)
    own = write_json_lines(tmp_path / "own.jsonl", [{"a": "red old", "b": 1}, {"a": "old new", "b": 0}])
    assert score(tmp_path / "out", own, "--text", "a", "--label", "b")["data"]["test"] == 2


def test_one_of_several_tasks(task_model: Path, tmp_path: Path) -> None:
    train_file, dev = (write_file(tmp_path, name, "classify", 24, n) for n, name in enumerate(("train", "dev")))
    table = "{text: body, label: topic}"
    entries = [f"  - {{name: {n}, train_file: {train_file}, dev_file: {dev}, table: {table}}}\n" for n in ("a", "b")]
    (tmp_path / "two.yaml").write_text("".join(["train: {epochs: 1, precision: fp32}\n", "tasks:\n", *entries]))
    made = invoke("finetune", tmp_path / "two.yaml", "--init", task_model, "--out", tmp_path / "out")
    with pytest.raises(DataError, match="has a model for each of its tasks"):
        score(tmp_path / "out", dev)
    found = score(tmp_path / "out", dev, "--task", "b")
    assert found["metrics"]["accuracy"] == pytest.approx(made["metrics"]["b.accuracy"])


def test_what_does_not_go_together_is_refused(classifier: Path, task_model: Path, tmp_path: Path) -> None:
    dev = classifier / "dev.jsonl"
    with pytest.raises(ConfigError, match="tasks: is not for a file given as test"):
        score(classifier / "out", dev, "--tasks", "glue")
    with pytest.raises(ConfigError, match="seeds: is not for a file given as test"):
        score(classifier / "out", dev, "--seeds", 2)
    with pytest.raises(ConfigError, match="table: is only for a file given as test"):
        invoke("evaluate", classifier / "out", "--tasks", "glue", "--data", tmp_path, "--label", "topic")
    with pytest.raises(UsageError, match="has one column with the text"):
        score(classifier / "out", dev, "--text", "a", "--text", "b")
    with pytest.raises(UsageError, match="or remask evaluate MODEL --test FILE"):
        invoke("evaluate", classifier / "out")
    with pytest.raises(DataError, match="has no task's head; fine-tune it first"):
        score(task_model, dev)
    with pytest.raises(ConfigError, match="holds a run or a model, whose files would be lost"):
        score(classifier / "out", dev, "--out", classifier / "out")
    with pytest.raises(MissingInputError, match=r"absent.csv: no such file"):
        score(classifier / "out", tmp_path / "absent.csv", "--dry-run")
