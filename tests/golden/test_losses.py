"""The first losses of every family, recorded: a change that should not change the mathematics leaves them alone.

`REMASK_GOLDEN=write pytest tests/golden` records them anew; do that only for a change that means to, and say so in
EXPERIMENTS.md. The tolerance covers other processors' rounding, not other mathematics.
"""

from __future__ import annotations

import json
import os
from io import StringIO
from pathlib import Path

import pytest

from remask import signals
from remask.config import build_run
from remask.pretraining.run import pretrain as main
from remask.pretraining.settings import PretrainRun
from remask.progress import Progress

RECORDED = Path(__file__).with_name("losses.json")
FAMILIES = ("roberta_tiny", "bert_tiny", "albert_tiny", "modern_tiny")
SMALLER = [
    "model.hidden_size=32",
    "model.num_heads=2",
    "model.ffn_size=48",
    "model.max_length=48",
    "data.length=48",
    "data.batch.num_rows=8",
    "data.batch.micro_rows=4",
    "data.evaluation.num_rows=16",
    "train.steps=12",
    "train.warmup=0.25",
    "train.precision=fp32",
    "train.device=cpu",
    "train.log_every=1",
    "train.save_every=0",
    "train.eval_every=6",
]


def measured(family: str, folder: Path, prepared: Path) -> dict[str, list[float]]:
    words = [*SMALLER, *(["model.embedding_size=16"] if family == "albert_tiny" else [])]
    run = build_run(PretrainRun, None, words, {"prepared": str(prepared)}, base=family).run
    with signals.catch():
        main(run, folder, progress=Progress(stream=StringIO()))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    names = ("train/loss", "eval/loss", "eval/bits_per_byte")
    return {name: [line[name] for line in lines if name in line] for name in names}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_losses_are_the_recorded_ones(family: str, tmp_path: Path, tiny_prepared: Path) -> None:
    found = measured(family, tmp_path / "out", tiny_prepared)
    recorded = json.loads(RECORDED.read_text()) if RECORDED.is_file() else {}
    if os.environ.get("REMASK_GOLDEN") == "write":
        rounded = {name: [round(value, 7) for value in values] for name, values in found.items()}
        RECORDED.write_text(json.dumps(recorded | {family: rounded}, indent=1, sort_keys=True) + "\n")
        return
    assert found.keys() == recorded[family].keys()
    for name, values in found.items():
        assert values == pytest.approx(recorded[family][name], rel=2e-5), name
