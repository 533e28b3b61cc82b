"""Every family's base, and every claim that circulates about RoBERTa, pretrains and opens as a model again."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from remask.config import build_run
from remask.model.store import open_model
from remask.pretraining.run import pretrain as main
from remask.pretraining.settings import PretrainRun
from remask.progress import Progress
from remask.schema import Batch

SHORT = ["train.steps=2", "train.precision=fp32", "train.save_every=0", "train.eval_every=0", "data.length=64"]
SHORT += ["data.batch.num_rows=8", "data.batch.micro_rows=4", "data.evaluation.num_rows=4", "train.warmup=0.0"]
PACKED = ["data.format=doc-sentences", "data.pack_documents=true"]


@pytest.mark.parametrize(
    "base, changes",
    [
        ("roberta_tiny", []),
        ("bert_tiny", []),
        ("albert_tiny", []),
        ("modern_tiny", []),
        ("roberta_tiny", ["model.norm=pre"]),
        ("roberta_tiny", PACKED),
        ("modern_tiny", PACKED),
        ("roberta_tiny", ["model.attention_window=12"]),
        ("roberta_tiny", ["model.attention_mask_prob=0.1"]),
        ("roberta_tiny", ["model.pooler_tied=true", "data.format=segment-pair", "data.sentence_loss=nsp"]),
        ("roberta_tiny", ["objective.causal_share=0.5"]),
        ("roberta_tiny", ["train.trainable_top_layers=1"]),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value) or "as it is",
)
def test_a_base_pretrains(base: str, changes: list[str], tiny_prepared: Path, tmp_path: Path) -> None:
    run = build_run(PretrainRun, None, [*SHORT, *changes], {"prepared": str(tiny_prepared)}, base=base).run
    found = main(run, tmp_path / "out", progress=Progress(quiet=True))
    assert found["step"] == 2
    assert math.isfinite(found["loss"])
    loaded = open_model(tmp_path / "out")
    assert loaded.settings == run.model.model_copy(update={"vocab_size": loaded.settings.vocab_size})
    hidden = loaded.network.encode(Batch(torch.tensor([[0, 5, 6, 2]]), torch.tensor([4])))
    assert torch.isfinite(hidden).all()
