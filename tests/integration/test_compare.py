"""`remask compare` on real runs whose vocabularies differ; runs of one table that must be comparable."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from remask.__main__ import cli
from remask.config import build_run, runs_folder
from remask.data.batches import open_batches
from remask.pretraining.settings import PretrainRun
from remask.tokenizer import load_tokenizer

LINE = "the quick brown fox jumps over a lazy dog while seven grey wolves run along the cold river at night"
WORDS = LINE.split()


def remask(*words: Any) -> Any:
    done = CliRunner().invoke(cli, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done


def test_runs_with_other_vocabularies_are_compared_by_whole_words(tmp_path: Path) -> None:
    pick = random.Random(1)
    documents = [". ".join(" ".join(pick.choices(WORDS, k=9)).capitalize() for _ in range(8)) for _ in range(120)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    for size in (280, 330):
        data, out = tmp_path / f"data{size}", tmp_path / f"run{size}"
        held = ["--set", "text.heldout_fraction=0.2", "--set", "text.dedup.near=off", "-q"]
        remask("prepare", tmp_path / "text.txt", "--out", data, "--vocab-size", size, *held)
        smoke = runs_folder() / "smoke" / "pretrain.yaml"
        remask("pretrain", smoke, "--data", data, "--out", out, "--steps", 2, "-q")
    done = remask("compare", tmp_path / "run280", tmp_path / "run330", "--json")
    assert "The vocabularies differ" in done.stderr
    assert "different held-out text" not in done.stderr
    values = json.loads(done.stdout)["runs"]
    bits = [values[name]["word_bits_per_byte"] for name in ("run280", "run330")]
    assert all(1 < number < 10 for number in bits)
    assert bits[0] != bits[1]
    same = remask("compare", tmp_path / "run280", tmp_path / "run280", "--json")
    assert json.loads(same.stdout)["notes"] == []


TABLE_2 = ("full_sentences", "doc_sentences", "segment_pair_nsp", "segment_pair_sop", "sentence_pair_nsp")


def test_the_input_formats_of_table_2_see_as_many_tokens_a_step(tiny_prepared: Path) -> None:
    tokenizer = load_tokenizer(tiny_prepared / "tokenizer")
    means = []
    for name in TABLE_2:
        run = build_run(PretrainRun, runs_folder() / "ablations" / f"{name}.yaml").run
        batches = open_batches(tiny_prepared, run.data, tokenizer, seed=0, total_steps=4)
        cursor, tokens = batches.first_cursor(), 0
        for _ in range(4):
            micro_batches, cursor = batches.take(cursor)
            tokens += sum(int(np.sum(batch.lengths_B)) for batch in micro_batches)
        means.append(tokens / 4)
    assert max(means) / min(means) < 1.03, means
