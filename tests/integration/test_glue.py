"""One command over everything at hand: all of GLUE in the forms that real files have, SQuAD, RACE, entities, BLiMP,
perplexity, with one table at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from remask.__main__ import cli

TRAINED = (
    "glue:cola", "glue:sst2", "glue:mrpc", "glue:stsb", "glue:qqp", "glue:mnli", "glue:qnli", "glue:rte", "glue:wnli",
    "glue:qnli-rank", "squad1", "squad2", "race", "ner",
)  # fmt: skip


def test_everything_at_hand_in_one_table(task_model: Path, shared_data: Path, tmp_path: Path) -> None:
    words = [
        "evaluate", str(task_model), "--tasks", "glue,glue:qnli-rank,squad1,squad2,race,ner,blimp,perplexity",
        "--data", str(shared_data), "--out", str(tmp_path / "out"), "--max-train", "16", "--max-dev", "8",
        "--max-pairs", "1", "--epochs", "1", "--precision", "fp32", "--device", "cpu", "-q",
        "--text", str(shared_data / "wiki" / "wiki.valid.txt"),
    ]  # fmt: skip
    first = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert first.exit_code == 0, first.output
    values = json.loads((tmp_path / "out/results.json").read_bytes())
    assert set(values["tasks"]) == {*TRAINED, "blimp", "perplexity:wiki.valid"}
    assert set(values["skipped"]) == {"glue:mnli-mm"}  # its dev file is not there
    for task in (*values["tasks"], "mean of 8"):  # without WNLI
        assert task in first.output
    notes = {task: " ".join(result["notes"]) for task, result in values["tasks"].items()}
    assert {task for task in TRAINED if "cut 80/20 by hash" in notes[task]} == {
        "glue:qqp", "glue:mnli", "glue:qnli", "glue:qnli-rank",
    }  # fmt: skip
    assert "Chloroplast (295 questions), Oxygen (247 questions)" in notes["squad1"]
    assert values["tasks"]["blimp"]["pairs"] == 67
    assert len(values["tasks"]["blimp"]["categories"]) == 12
    race = values["tasks"]["race"]["metrics"]
    assert {"middle_accuracy", "high_accuracy"} <= set(race)
    assert values["metrics"]["glue:stsb.pearson"] == pytest.approx(values["tasks"]["glue:stsb"]["metrics"]["pearson"])
    assert "best_f1_threshold" in values["tasks"]["squad2"]["metrics"]
