"""Evaluations between pretraining steps: the masked-LM loss on held-out rows, and a few answers to look at.

In: fixed held-out batches. Out: a train.job.Evaluate. A signal ends an evaluation on all ranks at once. Not here: the
measures themselves (objectives).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from remask import signals
from remask.data.batches import evaluation_batches
from remask.data.settings import DataSettings
from remask.errors import Stopped
from remask.objectives import held_out, sentence_accuracy
from remask.schema import Batch, Json
from remask.train.distributed import World
from remask.train.job import Evaluation

if TYPE_CHECKING:
    from remask.model.network import Network
    from remask.tokenizer import Tokenizer


@dataclass(frozen=True)
class HeldOut:
    """Masked LM on the held-out rows, the sentence loss where there is one, and a few answers. A train.job.Evaluate."""

    rows: Sequence[Batch]
    pairs: Sequence[Batch]
    tokenizer: Tokenizer
    world: World

    @classmethod
    def open(cls, prepared: Path, settings: DataSettings, tokenizer: Tokenizer, world: World) -> HeldOut:
        rows = evaluation_batches(prepared, settings, tokenizer)
        has_pairs = settings.sentence_loss != "none"
        pairs = evaluation_batches(prepared, settings, tokenizer, pairs=True) if has_pairs else []
        return cls(rows, pairs, tokenizer, world)

    def __call__(self, model: Network, step: int | None) -> Evaluation:
        lengths = self.tokenizer.token_lengths, self.tokenizer.token_characters
        measures = held_out(model, self._until_stopped(self.rows), *lengths)
        if self.pairs:
            measures["sentence_accuracy"] = sentence_accuracy(model, self._until_stopped(self.pairs))
        return Evaluation(measures, _samples(model, self.rows[0], self.tokenizer))

    def _until_stopped(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of an evaluation; a signal ends it on all ranks at once."""
        for batch in batches:
            if self.world.any(signals.requested()):
                raise Stopped("stopped before the first step; run the same command again")
            yield batch


def _samples(model: Network, batch: Batch, tokenizer: Tokenizer, count: int = 3, reach: int = 12) -> list[Json]:
    """What the model answers at the middle masked place of some held-out rows: the text around it with ___ for what is
    hidden, the hidden word, and the likeliest answers with their probability."""
    assert batch.masked_positions_M is not None
    assert batch.masked_labels_M is not None
    device = next(model.parameters()).device
    columns = batch.input_ids_BS.shape[1]
    rows = batch.masked_positions_M // columns
    chosen = [np.flatnonzero(rows == row) for row in range(min(count, batch.num_rows))]
    picks = np.array([places[len(places) // 2] for places in chosen if len(places)], np.int64)
    if not len(picks):
        return []
    tensors = batch.map(lambda array: torch.as_tensor(array).to(device))
    hidden = model.encode(tensors, None)
    logits = model.masked_lm(hidden, torch.as_tensor(batch.masked_positions_M[picks]).to(device))
    best = logits.float().softmax(dim=1).topk(3, dim=1)
    samples = []
    for pick, answers, scores in zip(picks, best.indices.tolist(), best.values.tolist(), strict=True):
        row, column = divmod(int(batch.masked_positions_M[pick]), columns)
        ids = batch.input_ids_BS[row]
        left = tokenizer.decode(ids[max(0, column - reach) : column])
        right = tokenizer.decode(ids[column + 1 : min(column + 1 + reach, int(batch.lengths_B[row]))])
        words = [
            {"word": tokenizer.token_text(answer).strip(), "score": round(score, 4)}
            for answer, score in zip(answers, scores, strict=True)
        ]
        truth = tokenizer.token_text(int(batch.masked_labels_M[pick])).strip()
        samples.append({"text": f"… {left.strip()} ___ {right.strip()} …", "hidden": truth, "answers": words})
    return samples
