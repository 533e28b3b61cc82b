"""What int8 costs: a set with labels, and the scores of any form of a model on it.

In: MODEL and a file like the one it was fine-tuned on (for a masked-LM head: a table with texts). Out: a function that
scores whatever answers batches as the model does, so that source and int8 graph are asked the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from remask.commands.predict import TaskModel, open_task_model
from remask.errors import DataError
from remask.export.onnx import Scores
from remask.export.verify import MASK_EVERY, Answerer
from remask.model.store import Loaded, open_model
from remask.schema import Batch
from remask.tasks import problems
from remask.tasks.predict import row_outputs
from remask.tasks.rows import Frame, Rows, encode_rows, frame_for
from remask.tasks.settings import RowSettings, TableSettings
from remask.tasks.specs import TASKS
from remask.tasks.tables import read_table
from remask.tokenizer import Tokenizer, load_tokenizer

BATCH_TOKENS = 4096


def scorer(model: Path, path: Path, columns: Mapping[str, str]) -> Callable[[Answerer], Scores]:
    """The function that scores; every mistake in the file shows here. `columns`: text, text2, label where given."""
    loaded = open_model(model)
    heads = loaded.heads
    if heads.num_classes is None and heads.num_tags is None and not heads.span and not heads.choice:
        if not heads.masked_lm:
            raise DataError(f"{model}: has no head that a set with labels could score")
        return _masked_words(loaded, path, columns)
    return _task(open_task_model(model), path, columns)


def _task(model: TaskModel, path: Path, columns: Mapping[str, str]) -> Callable[[Answerer], Scores]:
    table = TableSettings.model_validate(model.table.model_dump() | dict(columns))
    task = None if columns else model.task
    items = problems.open_labelled(path, task, model.kind, model.labels, model.metric, table).dev
    tokenizer, frame = _frame(model.loaded, model.rows)
    rows = problems.encode(items, model.kind, model.labels, tokenizer, frame, model.rows)
    metric = TASKS[model.task]["metric"] if model.task in TASKS else problems.METRICS[model.kind]

    def score(answer: Answerer) -> Scores:
        outputs = row_outputs(lambda batch: _logits(answer, batch), rows, tokenizer.pad_id, num_tokens=BATCH_TOKENS)
        metrics = problems.score(outputs, rows, items, model.kind, model.labels)["metrics"]
        return Scores(metric, metrics, len(items))

    return score


def _frame(loaded: Loaded, settings: RowSettings) -> tuple[Tokenizer, Frame]:
    if loaded.tokenizer_folder is None:
        raise DataError(f"{loaded.folder}: has no tokenizer, so texts cannot be read for it")
    tokenizer, model = load_tokenizer(loaded.tokenizer_folder), loaded.settings
    return tokenizer, frame_for(tokenizer, settings, model_length=model.max_length, num_segments=model.num_segments)


def _logits(answer: Answerer, batch: Batch) -> np.ndarray:
    """Outputs as the tasks read them: spans have start, end and (if there) answerability in columns."""
    said = answer(batch)
    if "start_logits" not in said:
        return said["logits"]
    columns = [said["start_logits"], said["end_logits"]]
    if "answerable_logits" in said:
        columns.append(np.broadcast_to(said["answerable_logits"][:, None], columns[0].shape))
    return np.stack(columns, axis=-1)


def _masked_words(loaded: Loaded, path: Path, columns: Mapping[str, str]) -> Callable[[Answerer], Scores]:
    """How many of the masked tokens of some texts come first: every 7th token is masked."""
    settings = RowSettings()
    tokenizer, frame = _frame(loaded, settings)
    items = read_table(path, "classify", TableSettings.model_validate(dict(columns)), labelled=False).examples
    whole = encode_rows(items, tokenizer, frame, settings)
    ids = [row.copy() for row in whole.ids]
    for row in ids:
        row[1:-1:MASK_EVERY] = tokenizer.mask_id
    rows = Rows(ids, whole.segments, None, whole.example_of_row)

    def score(answer: Answerer) -> Scores:
        def best(batch: Batch) -> np.ndarray:
            return answer(batch)["logits"].argmax(-1)[:, :, None]

        outputs = row_outputs(best, rows, tokenizer.pad_id, num_tokens=BATCH_TOKENS)
        right = []
        for said, masked, row in zip(outputs, ids, whole.ids, strict=True):
            here = masked == tokenizer.mask_id
            right.append(said[here, 0] == row[here])
        return Scores("masked_accuracy", {"masked_accuracy": float(np.concatenate(right).mean())}, len(items))

    return score
