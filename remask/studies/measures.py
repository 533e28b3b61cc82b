"""What is measured of a cell's model, example by example, so that rows can be compared on the same examples.

In: a model and fixed examples. Out: by metric one number an example, whose mean is the metric (ratios to first order,
tasks.metrics.linearised), and what else is worth showing. Held-out rows and masks, BLiMP's pairs and the dev examples
of tasks are the same for all rows of a study. Not here: training, files of results (cells), comparisons (results).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from remask import signals
from remask.evaluation.zero_shot import Judge, blimp, blimp_folder
from remask.progress import Progress
from remask.schema import IGNORE, Batch, Json
from remask.tasks import metrics
from remask.tasks.kind import Item

if TYPE_CHECKING:
    import torch


Array = np.ndarray
PROFILE_ROWS = 32  # held-out rows on which layers are looked at


@dataclass(frozen=True)
class Measured:
    """Numbers by metric and example, and what a page shows besides."""

    examples: dict[str, Array]
    shown: Json = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def open_judge(model: Path) -> Judge:
    from remask.answer.reader import open_reader
    from remask.precision import choose_device, choose_precision

    device = choose_device("auto")
    return Judge(open_reader(model), device, choose_precision("auto", device)[0])


# ------------------------------------------------------------------------------------------------ held-out text


def heldout(judge: Judge, prepared: Path, num_rows: int) -> Measured:
    """Bits per byte, perplexity and accuracy of masked tokens; an example is a row."""
    from remask.data.evaluation import evaluation_batches

    batches = evaluation_batches(prepared, judge.data, judge.reader.tokenizer, max_rows=num_rows)
    rows_EK = np.concatenate([_row_sums(judge, batch) for batch in batches])
    return Measured(
        {
            "bits_per_byte": metrics.linearised(rows_EK, lambda k: k[0] / math.log(2) / k[1]),
            "perplexity": metrics.linearised(rows_EK, lambda k: math.exp(min(k[0] / k[2], 700.0))),
            "mlm_accuracy": metrics.linearised(rows_EK, lambda k: k[3] / k[2]),
        },
        {"loss": float(rows_EK[:, 0].sum() / rows_EK[:, 2].sum())},
    )


def words(judge: Judge, prepared: Path, num_documents: int) -> Measured:
    """Bits per byte of whole words, which compares vocabularies. These cut the text into rows of their own, so there
    are no examples that all rows share: the whole text counts as one, and only seeds are drawn."""
    from remask.data.evaluation import is_comparable, word_batches

    if not is_comparable(judge.reader.tokenizer):
        return Measured({}, notes=("the vocabulary changes the text: its bits per byte do not compare",))
    batches = word_batches(prepared, judge.data, judge.reader.tokenizer, max_documents=num_documents)
    sums_K = np.concatenate([_row_sums(judge, batch) for batch in batches]).sum(0)
    return Measured({"word_bits_per_byte": np.array([sums_K[0] / math.log(2) / sums_K[1]])})


def _row_sums(judge: Judge, batch: Batch) -> Array:
    """sums_EK of every row: nats, bytes, tokens predicted, how many of them rightly."""
    signals.check()
    assert batch.masked_positions_M is not None
    assert batch.masked_labels_M is not None
    labels_M = np.asarray(batch.masked_labels_M)
    log_probs_M, logits_MV = judge.masked_logits(batch)
    nats_M = -log_probs_M.cpu().numpy()
    right_M = (logits_MV.argmax(1).cpu().numpy() == labels_M).astype(np.float64)
    row_M = np.asarray(batch.masked_positions_M) // batch.input_ids_BS.shape[1]
    bytes_M = np.asarray(judge.reader.tokenizer.token_lengths)[labels_M]
    columns = (nats_M, bytes_M, np.ones(len(labels_M)), right_M)
    return np.stack([np.bincount(row_M, column, minlength=batch.num_rows) for column in columns], axis=1)


# -------------------------------------------------------------------------------------- sentences, layers, BLiMP


def sentence(judge: Judge, prepared: Path, num_rows: int) -> Measured:
    """How often NSP and SOP are told rightly, whichever of them the model learned."""
    from remask.data.evaluation import evaluation_batches
    from remask.data.settings import DataSettings

    if not judge.reader.loaded.heads.sentence:
        return Measured({}, notes=("trained without a sentence loss: it has no head that could be asked",))
    examples = {}
    for question in ("nsp", "sop"):
        pairs = {"format": "segment-pair", "sentence_loss": question, "length": judge.data.length}
        data = DataSettings.model_validate(pairs)
        batches = evaluation_batches(prepared, data, judge.reader.tokenizer, max_rows=num_rows, pairs=True)
        examples[f"{question}_accuracy"] = np.concatenate([_pairs_told(judge, batch) for batch in batches])
    return Measured(examples)


def _pairs_told(judge: Judge, batch: Batch) -> Array:
    signals.check()
    labels_B = np.asarray(batch.sentence_labels_B)
    with judge.asked() as network:
        tensors = judge.sent(batch)
        told_B = network.sentence(network.encode(tensors), tensors.lengths_B).argmax(1).cpu().numpy()
    return (told_B == labels_B)[labels_B != IGNORE].astype(np.float64)


def layers(judge: Judge, prepared: Path, num_rows: int) -> Measured:
    """L2 distance and angle in degrees between what goes into a layer and what comes out (ALBERT, figure 1)."""
    from remask.data.evaluation import evaluation_batches

    batches = evaluation_batches(prepared, judge.data, judge.reader.tokenizer, max_rows=min(num_rows, PROFILE_ROWS))
    per_row_EL2 = np.concatenate([_layer_changes(judge, batch) for batch in batches])
    shown = {"distance": per_row_EL2[:, :, 0].mean(0).tolist(), "angle": per_row_EL2[:, :, 1].mean(0).tolist()}
    examples = {"layer_distance": per_row_EL2[:, :, 0].mean(1), "layer_angle": per_row_EL2[:, :, 1].mean(1)}
    return Measured(examples, {"layers": shown})


def _layer_changes(judge: Judge, batch: Batch) -> Array:
    """changes_EL2: of every row and layer the mean over its tokens."""
    import torch

    states: list[torch.Tensor] = []
    with judge.asked() as network:
        encoder = network.encoder
        tensors = judge.sent(batch)
        view = encoder.view(tensors, None, False)
        rows = view.rows
        segments_T = None if tensors.segment_ids_BS is None else rows.take(tensors.segment_ids_BS)
        positions_T = rows.take(view.positions_BS.expand(tensors.input_ids_BS.shape))
        x_TD = encoder.embeddings(rows.take(tensors.input_ids_BS), positions_T, segments_T, rows, None)
        states.append(x_TD.float())
        for layer in range(encoder.settings.num_layers):
            x_TD = encoder.layer(x_TD, layer, view, None)
            states.append(x_TD.float())
        row_T = np.repeat(np.arange(len(rows.computed)), rows.computed)
        changes = []
        for before, after in itertools.pairwise(states):
            distance_T = (after - before).norm(dim=1).cpu().numpy()
            cosine_T = torch.nn.functional.cosine_similarity(before, after, dim=1).clamp(-1, 1)
            angle_T = torch.rad2deg(torch.acos(cosine_T)).cpu().numpy()
            sizes_B = np.bincount(row_T)
            changes.append(np.stack([np.bincount(row_T, v) / sizes_B for v in (distance_T, angle_T)], axis=1))
    return np.stack(changes, axis=1)


def minimal_pairs(judge: Judge, tasks: Path, max_pairs: int | None, progress: Progress) -> Measured:
    """BLiMP. An example is a paradigm: its pairs are made from one pattern, so they are drawn together."""
    result = blimp(judge, blimp_folder(tasks), max_pairs, progress)
    return Measured({"blimp": np.array(list(result["paradigms"].values()))}, {"categories": result["categories"]})


# -------------------------------------------------------------------------------------------------------- tasks


def task_examples(model: Path, items: Sequence[Item], metric: str) -> Array:
    """What a fine-tuned model does on each dev example."""
    from remask.answer.model import Model
    from remask.answer.reader import open_reader

    reader = open_reader(model)
    rows = reader.encode(items, labelled=True)
    outputs = Model(reader).outputs(rows)
    return reader.task.kind.example_values(outputs, rows, items, reader.task.labels, metric)


MEASURE: dict[str, Callable[[Judge, Path, int], Measured]] = {
    "heldout": heldout, "words": words, "sentence": sentence, "layers": layers,
}  # fmt: skip
