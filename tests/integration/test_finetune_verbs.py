"""`finetune`, `predict` and `evaluate` from the command line, and the exported model in transformers."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from remask.__main__ import cli
from remask.commands import evaluate, predict
from remask.errors import ConfigError, DataError, MissingInputError, RemaskError, UsageError
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


def write_cola(folder: Path) -> Path:
    (folder / "CoLA").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, count in (("train.tsv", 160), ("dev.tsv", 40)):
        lines = []
        for _ in range(count):
            words = list(rng.choice(WORDS, 3))
            lines.append(f"x\t{int('red' in words)}\t\t{' '.join(words)}\n")
        (folder / "CoLA" / name).write_text("".join(lines))
    return folder


def test_evaluate_fine_tunes_once_and_then_only_scores(task_model: Path, tmp_path: Path) -> None:
    data = write_cola(tmp_path / "data" / "glue").parent
    words = ("--tasks", "glue", "--data", data, "--out", tmp_path / "out", "--epochs", 3, "--set", "precision=fp32")
    values = invoke("evaluate", task_model, *words)
    assert set(values["tasks"]) == {"glue:cola"}
    assert "glue:rte" in values["skipped"]
    assert "glue:cola.matthews" in values["metrics"]
    assert invoke("evaluate", task_model, *words)["metrics"] == values["metrics"]
    scored = invoke("evaluate", tmp_path / "out" / "glue-cola", "--tasks", "glue:cola", "--data", data)
    assert scored["metrics"] == pytest.approx(values["metrics"])
    assert "glue:cola" in evaluate.render(scored)


def test_blimp_without_training(task_model: Path, tmp_path: Path) -> None:
    (tmp_path / "blimp").mkdir()
    for name in ("one", "two"):
        pair = {"sentence_good": "red blue", "sentence_bad": "blue red old", "UID": name, "linguistics_term": "order"}
        (tmp_path / "blimp" / f"{name}.jsonl").write_text((json.dumps(pair) + "\n") * 2)
    values = invoke("evaluate", task_model, "--tasks", "blimp", "--data", tmp_path)
    # The untrained network finds every token about equally likely: the shorter sentence wins.
    assert values["metrics"]["blimp.accuracy"] == 1.0
    assert values["tasks"]["blimp"]["categories"] == {"order": 1.0}


def test_perplexity_on_prepared_data(tiny_prepared: Path, task_model: Path, tmp_path: Path) -> None:
    from remask.model.network import build_network
    from remask.model.settings import HeadSettings, ModelSettings
    from remask.model.store import save_model
    from remask.tokenizer import load_tokenizer

    size = load_tokenizer(tiny_prepared / "tokenizer").vocab_size
    small = ModelSettings(vocab_size=size, num_layers=1, hidden_size=16, num_heads=2, ffn_size=32, max_length=32)
    save_model(tmp_path / "m", build_network(small, HeadSettings(masked_lm=True), 0), tiny_prepared / "tokenizer")
    values = invoke("evaluate", tmp_path / "m", "--tasks", "perplexity", "--data", tiny_prepared, "--max-dev", 32)
    # An untrained network is about as unsure as a die with one side for each entry.
    assert values["metrics"]["perplexity.perplexity"] == pytest.approx(size, rel=0.1)
    assert 0 < values["metrics"]["perplexity.word_bits_per_byte"] < 20
    with pytest.raises(DataError, match="prepared with another vocabulary"):
        invoke("evaluate", task_model, "--tasks", "perplexity", "--data", tiny_prepared)
    with pytest.raises(MissingInputError, match="is no prepared data"):
        invoke("evaluate", task_model, "--tasks", "perplexity", "--data", tmp_path)


def test_evaluate_says_what_is_missing(task_model: Path, tuned: Path, tmp_path: Path) -> None:
    def run(expected: type[RemaskError], message: str, out: Path | None = None, **values: Any) -> None:
        with pytest.raises(expected, match=message):
            evaluate.main(
                evaluate.EvaluateRun(model=str(task_model), **values), out, progress=Progress(quiet=True)
            )  # fmt: skip

    run(ConfigError, "'glu' is not one of glue, glue:cola", tasks=("glu",), data=str(tmp_path))
    run(UsageError, "--tasks is needed", data=str(tmp_path))
    run(MissingInputError, "none of train.tsv", tmp_path / "o", tasks=("glue:rte",), data=str(tmp_path))
    run(DataError, "has the files of none of these tasks: glue", tmp_path / "o", tasks=("glue",), data=str(tmp_path))
    data = write_cola(tmp_path / "glue").parent
    run(UsageError, "so it is fine-tuned first: say where with --out", tasks=("glue:cola",), data=str(data))
    with pytest.raises(DataError, match="no masked-LM head"):
        evaluate.main(
            evaluate.EvaluateRun(model=str(tuned / "out"), tasks=("blimp",), data=str(tmp_path)),
            None,
            progress=Progress(quiet=True),
        )
