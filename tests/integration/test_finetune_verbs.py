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


def test_the_exported_model_answers_the_same_in_transformers(tuned: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from remask.exports.hf import export_hf

    export_hf(tuned / "out", tmp_path / "hf")
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert theirs.config.id2label == {0: "no", 1: "yes"}
    texts = [line.partition(",")[0] for line in (tuned / "dev.csv").read_text().splitlines()[1:]]
    with torch.inference_mode():
        logits = theirs(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    said = tmp_path / "said.jsonl"
    invoke("predict", tuned / "out", tuned / "dev.csv", "--out", said, "--scores", "--precision", "fp32")
    ours = [json.loads(line)["scores"]["yes"] for line in said.read_text().splitlines()]
    assert ours == pytest.approx(logits.softmax(1)[:, 1].tolist(), abs=1e-4)
