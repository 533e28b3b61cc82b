"""The loss curves of both sides, step by step: nothing of the speed is bought with other mathematics.

Our loop and the Hugging Face Trainer train the same RoBERTa from the same weights on the same masked rows, in fp32 at
torch's highest precision, without dropout, with AdamW, a constant learning rate and the same clipping. `ours` is
the largest difference of their losses over the steps, `peer` the bound of 1e-3; the process fails where it is exceeded.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

from _pretraining import (
    BETA2,
    EPSILON,
    LEARNING_RATE,
    SIZES,
    WEIGHT_DECAY,
    add_options,
    in_order,
    our_batches,
    prepare,
)
from _rig import common_options, tell

BOUND = 1e-3
CLIP = 1.0


def our_losses(options: argparse.Namespace, work: Path) -> tuple[list[float], list[float]]:
    """(losses, gradient norms)."""
    from remask.model.store import open_model
    from remask.objectives import ObjectiveSettings, Pretraining
    from remask.progress import Progress
    from remask.train.job import Job
    from remask.train.loop import train
    from remask.train.settings import TrainSettings
    from remask.train.training import Training

    settings = TrainSettings(
        steps=options.steps, learning_rate=LEARNING_RATE, warmup=0.0, final_lr_fraction=1.0, beta2=BETA2,
        epsilon=EPSILON, weight_decay=WEIGHT_DECAY, clip=CLIP, precision="fp32", device="cpu", save_every=0,
        eval_every=0, log_every=1,
    )  # fmt: skip
    job = Job(
        model=open_model(work / "model").network, batches=our_batches(options, work),
        objective=Pretraining(ObjectiveSettings(), seed=1, sentence=False), settings=settings, folder=work / "ours",
        identity={}, carried={}, seed=1,
    )  # fmt: skip
    with Training(job, Progress(quiet=True)) as training:
        train(training)
    lines = [json.loads(line) for line in (work / "ours" / "metrics.jsonl").read_text().splitlines()]
    return [line["train/loss"] for line in lines], [line["train/grad_norm"] for line in lines]


def masked_rows(options: argparse.Namespace, work: Path) -> list[dict[str, Any]]:
    """The very rows of our steps, masked as ours are, with labels as transformers wants them."""
    import torch

    batches = our_batches(options, work)
    rows, cursor = [], batches.first_cursor()
    for _ in range(options.steps):
        (batch,), cursor = batches.take(cursor)
        ids = torch.as_tensor(batch.input_ids_BS).long()
        labels = torch.full_like(ids, -100)
        labels.view(-1)[torch.as_tensor(batch.masked_positions_M)] = torch.as_tensor(batch.masked_labels_M).long()
        rows += [{"input_ids": one, "labels": two} for one, two in zip(ids, labels, strict=True)]
    return rows


def peer_losses(options: argparse.Namespace, work: Path) -> list[float]:
    import torch
    from transformers import RobertaForMaskedLM, TrainingArguments

    losses: list[Any] = []

    def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = {name: torch.stack([row[name] for row in rows]) for name in ("input_ids", "labels")}
        return batch | {"attention_mask": torch.ones_like(batch["input_ids"])}

    arguments = TrainingArguments(
        output_dir=str(work / "peer"), per_device_train_batch_size=options.batch, max_steps=options.steps,
        learning_rate=LEARNING_RATE, lr_scheduler_type="constant", weight_decay=WEIGHT_DECAY, adam_beta2=BETA2,
        adam_epsilon=EPSILON, max_grad_norm=CLIP, optim="adamw_torch_fused", use_cpu=True, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, remove_unused_columns=False,
        dataloader_pin_memory=False,
    )  # fmt: skip
    model = RobertaForMaskedLM.from_pretrained(work / "model")
    rows = masked_rows(options, work)
    in_order(losses)(model, arguments, train_dataset=rows, data_collator=collate).train()
    return [float(loss) for loss in losses]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, size="small", length=128, batch=32)
    common_options(parser, rounds=1)
    parser.set_defaults(steps=50, dropout=0.0, precision="fp32")
    options = parser.parse_args()
    if options.dropout or options.precision != "fp32":
        parser.error("curves are compared in fp32 and without dropout: the two sides draw other random numbers")
    import torch

    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(options.threads)
    told, sys.stdout = sys.stdout, sys.stderr
    with tempfile.TemporaryDirectory(prefix="remask-bench-") as folder:
        prepare(options, Path(folder))
        ours, norms = our_losses(options, Path(folder))
        peer = peer_losses(options, Path(folder))
    sys.stdout = told
    assert len(ours) == len(peer) == options.steps
    assert all(math.isfinite(loss) for loss in ours)
    differences = [abs(a - b) for a, b in zip(ours, peer, strict=True)]
    layers, width, *_ = SIZES[options.size]
    result = {
        "name": f"loss curves of {options.steps} steps, {layers} x {width} (peer: the bound)",
        "ratio": round(BOUND / max(max(differences), 1e-12), 2),
        "peer": BOUND,
        "ours": float(f"{max(differences):.3g}"),
        "unit": "nats apart at most",
        "agree": max(differences) <= BOUND,
        "clipped_steps": sum(norm > CLIP for norm in norms),
        "our_losses": [round(loss, 6) for loss in ours],
        "peer_losses": [round(loss, 6) for loss in peer],
    }
    tell(result, options)
    if not result["agree"]:
        sys.exit("the curves do not agree")


if __name__ == "__main__":
    main()
