"""`finetune` and `predict` from the command line, and the exported model in transformers."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from remask.__main__ import cli
from remask.commands import predict
from remask.errors import ConfigError, DataError, MissingInputError, UsageError
from remask.progress import Progress

WORDS = ["red", "green", "blue", "cold", "warm", "big", "small", "old", "new", "fast"]


def invoke(*words: Any) -> dict[str, Any]:
    """Run a verb with --json; errors come through as exceptions."""
    result = CliRunner().invoke(cli, [str(word) for word in (*words, "--json", "-q")], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def write_table(path: Path, count: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["body", "topic"])
        for _ in range(count):
            words = list(rng.choice(WORDS, rng.integers(2, 5)))
            writer.writerow([" ".join(words), "yes" if "red" in words else "no"])
    return path


@pytest.fixture(scope="module")
def tuned(task_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    train, dev = write_table(folder / "train.csv", 300, 1), write_table(folder / "dev.csv", 60, 2)
    values = invoke(
        "finetune", "--task", "classify", "--init", task_model, "--train", train, "--dev", dev, "--text", "body",
        "--label", "topic", "--out", folder / "out", "--epochs", 6, "--set", "train.learning_rate=5e-3",
        "--set", "train.precision=fp32", "--set", "batch.num_rows=16",
    )  # fmt: skip
    assert values["metrics"]["accuracy"] > 0.9
    return folder


def test_predict_writes_answers_in_order(tuned: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("body\nred big\nblue big\nold new red\n")
    out = tmp_path / "said.jsonl"
    assert invoke("predict", tuned / "out", tmp_path / "new.csv", "--out", out)["rows"] == 3
    said = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["prediction"] for line in said] == ["yes", "no", "yes"]
    assert said[0]["scores"]["yes"] == pytest.approx(1 - said[0]["scores"]["no"], abs=1e-5)
    assert [line["place"] for line in said] == ["new.csv:2", "new.csv:3", "new.csv:4"]
    out = tmp_path / "said.tsv"
    invoke("predict", tuned / "out", tmp_path / "new.csv", "--out", out)
    assert [line.split("\t")[1] for line in out.read_text().splitlines()] == ["prediction", "yes", "no", "yes"]


def test_predict_refuses_what_it_cannot_do(tuned: Path, task_model: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("other\nred\n")

    def run(**values: str) -> None:
        predict.main(predict.PredictRun(**values), tmp_path / "o.jsonl", progress=Progress(quiet=True))

    with pytest.raises(ConfigError, match="no column 'body'; there are other"):
        run(model=str(tuned / "out"), file=str(tmp_path / "new.csv"))
    run(model=str(tuned / "out"), file=str(tmp_path / "new.csv"), text="other")
    with pytest.raises(DataError, match="has no task's head"):
        run(model=str(task_model), file=str(tmp_path / "new.csv"))
    with pytest.raises(MissingInputError):
        run(model=str(tuned / "out"), file=str(tmp_path / "none.csv"))
    with pytest.raises(UsageError, match="must end in one of"):
        predict.main(predict.PredictRun(model="m", file="f"), tmp_path / "o.txt", progress=Progress(quiet=True))


def test_the_exported_model_answers_the_same_in_transformers(tuned: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from remask.export.hf import export_hf

    export_hf(tuned / "out", tmp_path / "hf")
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert theirs.config.id2label == {0: "no", 1: "yes"}
    texts = [line.partition(",")[0] for line in (tuned / "dev.csv").read_text().splitlines()[1:]]
    with torch.inference_mode():
        logits = theirs(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    invoke("predict", tuned / "out", tuned / "dev.csv", "--out", tmp_path / "said.jsonl")
    ours = [json.loads(line)["scores"]["yes"] for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert ours == pytest.approx(logits.softmax(1)[:, 1].tolist(), abs=1e-4)
