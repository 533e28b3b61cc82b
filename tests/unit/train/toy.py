"""A model, batches and an objective small enough to train in milliseconds; no mask, no task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from remask.schema import Batch, BatchSource, Loss, LossPart

VOCABULARY, WIDTH, ROWS, LENGTH = 11, 8, 4, 6


class ToyModel(nn.Module):
    """Predicts the class of a row from its ids; has dropout from torch's own generator."""

    def __init__(self, seed: int = 0, dropout: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, ids_BS: Tensor) -> Tensor:
        hidden = self.embeddings(ids_BS).mean(dim=1)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(self.dropout(hidden)))
        return self.out(self.norm(hidden))

    def train_top_layers(self, count: int) -> None:
        self.embeddings.requires_grad_(False)
        for layer in self.layers[: len(self.layers) - count]:
            layer.requires_grad_(False)


@dataclass
class ToyBatches(BatchSource):
    """Step `i` is rows 4i..4i+3 of an endless, learnable stream, cut into micro-batches."""

    micro_rows: int = 2
    rows: int = ROWS
    steps_per_epoch: float = 10.0
    tokens_per_step: float = ROWS * LENGTH

    def first_cursor(self) -> dict[str, Any]:
        return {"at": 0}

    def take(self, cursor: dict[str, Any]) -> tuple[list[Batch], dict[str, Any]]:
        at = cursor["at"]
        ids = np.arange(at, at + self.rows)
        batches = []
        for start in range(0, self.rows, self.micro_rows):
            own = ids[start : start + self.micro_rows]
            inputs = np.stack([np.random.default_rng(i).integers(0, VOCABULARY, LENGTH) for i in own])
            lengths = np.full(len(own), LENGTH)
            labels = np.clip((inputs < 4).sum(axis=1) - 1, 0, 2)
            labels[own % 5 == 0] = -100  # unequal counts
            batches.append(Batch(inputs, lengths, labels=labels, example_ids_B=own))
        return batches, {"at": at + self.rows}


class ToyObjective:
    """Cross-entropy of the labelled rows, and a small second part, to have two counts."""

    def __init__(self) -> None:
        self.weights = {"task": 1.0, "size": 0.1}
        self.spoil: dict[int, float] = {}  # step -> what its loss is multiplied by

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"task": int((batch.labels != -100).sum()), "size": batch.num_rows}

    def __call__(self, model: Any, batch: Batch, step: int | None) -> Loss:
        logits = model(batch.input_ids_BS)
        labels = torch.as_tensor(batch.labels)
        loss = nn.functional.cross_entropy(logits.float(), labels, ignore_index=-100, reduction="sum")
        if step is not None and step in self.spoil:
            loss = loss * self.spoil[step]
        right = ((logits.argmax(-1) == labels) & (labels != -100)).sum()
        counts = self.counts(batch)
        parts = {
            "task": LossPart(loss, counts["task"]),
            "size": LossPart(logits.float().square().sum(), counts["size"]),
        }
        return Loss(parts, {"accuracy": LossPart(right, counts["task"])})
