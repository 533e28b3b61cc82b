"""What int8 costs: a set with labels, and the scores of any form of a model on it.

In: MODEL and a file like the one it was fine-tuned on (for a masked-LM head: a table with texts). Out: a function that
scores whatever answers batches as the model does, so that source and int8 graph are asked the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from remask.answer.agreement import MASK_EVERY, Answerer
from remask.answer.reader import Reader, open_reader
from remask.answer.runner import forward_outputs
from remask.errors import DataError
from remask.schema import Batch
from remask.tasks.rows import Rows, encode_rows
from remask.tasks.settings import RowSettings, TableSettings
from remask.tasks.tables import read_table

BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Scores:
    """What a set says about one form of the model: the metric that decides, and all of them."""

    metric: str
    metrics: Mapping[str, float]
    examples: int


def scorer(model: Path | Reader, path: Path, columns: Mapping[str, str]) -> Callable[[Answerer], Scores]:
    """The function that scores; every mistake in the file shows here. `columns`: text, text2, label where given."""
    reader = model if isinstance(model, Reader) else open_reader(model)
    if reader.tasks:
        return _task(reader, path, columns)
    if not reader.loaded.heads.masked_lm:
        raise DataError(f"{reader.loaded.folder}: has no head that a set with labels could score")
    return _masked_words(reader, path, columns)


def _task(reader: Reader, path: Path, columns: Mapping[str, str]) -> Callable[[Answerer], Scores]:
    stored = reader.task
    table = TableSettings.model_validate(stored.table.model_dump() | dict(columns))
    items = stored.labelled(path, table, named=not columns).dev
    rows = reader.encode(items, labelled=True)

    def score(answer: Answerer) -> Scores:
        outputs = forward_outputs(reader.forward_of(answer), rows, reader.tokenizer.pad_id, batch_tokens=BATCH_TOKENS)
        return Scores(stored.metric, stored.kind.score(outputs, rows, items, stored.labels)["metrics"], len(items))

    return score


def _masked_words(reader: Reader, path: Path, columns: Mapping[str, str]) -> Callable[[Answerer], Scores]:
    """How many of the masked tokens of some texts come first: every 7th token is masked."""
    settings, tokenizer = RowSettings(), reader.tokenizer
    items = read_table(path, "classify", TableSettings.model_validate(dict(columns)), labelled=False).examples
    whole = encode_rows(items, tokenizer, reader.frame(settings), settings)
    ids = [row.copy() for row in whole.ids]
    for row in ids:
        row[1:-1:MASK_EVERY] = tokenizer.mask_id
    rows = Rows(ids, whole.segments, None, whole.example_of_row)

    def score(answer: Answerer) -> Scores:
        def best(batch: Batch) -> np.ndarray:
            return answer(batch)["logits"].argmax(-1)[:, :, None]

        outputs = forward_outputs(best, rows, tokenizer.pad_id, batch_tokens=BATCH_TOKENS)
        right = []
        for output, masked, row in zip(outputs, ids, whole.ids, strict=True):
            here = masked == tokenizer.mask_id
            right.append(output[here, 0] == row[here])
        return Scores("masked_accuracy", {"masked_accuracy": float(np.concatenate(right).mean())}, len(items))

    return score
