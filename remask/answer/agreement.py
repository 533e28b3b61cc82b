"""Is another form of a model (a graph, int8) still that model? Both answer real sentences, which are compared.

In: a source, its other form and a tokenizer. Out: the largest difference of any output at a real token, over one row
and many, short and as long as the model reads, padded and not; for a form that may differ (int8) how often both say the
same.
The sentences are from books whose authors died long ago, so that they may lie here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from remask.errors import DataError
from remask.model.settings import HeadSettings, ModelSettings
from remask.schema import Batch
from remask.tokenizer import Tokenizer

# Shapes: B rows, S positions.

Array = np.ndarray
Answerer = Callable[[Batch], Mapping[str, Array]]
TOLERANCE = 1e-4
LONGEST = 1024  # tokens of the longest row tried: beyond every block and window of attention
MASK_EVERY = 7

SENTENCES = (
    "Good morning.",
    "The heating in the east wing has been off since Tuesday.",
    "If the supplier cannot deliver before the end of the month, we would rather wait than pay for a second shipment.",
    "She read the letter twice, folded it, and put it back into the drawer without a word.",
    "No.",
    "Who ordered forty boxes of left-handed gloves?",
    "The patient was admitted with a fever of 39.4 °C and discharged after three days; nothing further is planned.",
    "Rain again: the bridge stays closed, the ferry does not run, and the school bus takes the long way round.",
    "Please answer by Friday (5 p.m. at the latest), or we will have to give the table to somebody else.",
    "Her grandfather, who had kept bees for sixty years, could tell by the sound alone whether a hive would swarm.",
    "Invoice 2071-B: 12 hours at 85.50 each, less 3 % for payment within ten days.",
    "They didn't say that they'd come, they said they couldn't promise not to.",
    "Restart the server, wait for the second log line, and only then open the port.",
    "Le facteur passe tous les matins à neuf heures, sauf le dimanche.",
    "Die Straßenbahn fährt heute nur bis zum Bahnhof; danach müssen alle zu Fuß gehen.",
    "La niña preguntó por qué el reloj de la plaza siempre va atrasado.",
    "Поезд опаздывает на двадцать минут.",
    "会议改到下周三下午两点，请大家准时参加。",
    "In a language that is read by few, every book in the library has been read by everybody, and most of them twice.",
    "A lens of this kind gathers the light of the whole sky on a plate no larger than a stamp, so the slightest tremor "
    "of the building, even a door that falls shut two floors below, is seen in the picture as a short bright line.",
    "The tenant shall return both keys; a lost key is replaced at the tenant's cost.",
    "x = 3\ty = 4\tz = 5",
    "It works. It works! Does it work?",
    "Nobody at the table had expected the youngest to speak first, and for a moment even the clock seemed to listen.",
)


def rows_for(tokenizer: Tokenizer, settings: ModelSettings, heads: HeadSettings) -> list[Array]:
    """The sentences, each alone and with the next one, as rows of ids; for a masked-LM head some tokens are masked."""
    encoded = tokenizer.encode_batch([*SENTENCES, *(f"{a} {b}" for a, b in pairwise(SENTENCES))])
    room = settings.max_length - 2
    rows = [_framed(ids[:room], tokenizer, heads) for ids in encoded if len(ids)]
    if not rows:
        raise DataError("this vocabulary has no token for any of the sentences that an export is verified on")
    return rows


def _framed(ids: Array, tokenizer: Tokenizer, heads: HeadSettings) -> Array:
    ids = np.asarray(ids, np.int64).copy()
    if heads.masked_lm:
        ids[len(ids) // 2 % MASK_EVERY :: MASK_EVERY] = tokenizer.mask_id
    return np.concatenate([[tokenizer.bos_id], ids, [tokenizer.eos_id]])


def batch_of(rows: Sequence[Array], pad_id: int, settings: ModelSettings, width: int | None = None) -> Batch:
    """Rows padded to the longest or further; with two segments the second half of a row is the second one."""
    lengths_B = np.array([len(row) for row in rows], np.int64)
    ids_BS = np.full((len(rows), width or int(lengths_B.max())), pad_id, np.int64)
    for number, row in enumerate(rows):
        ids_BS[number, : len(row)] = row
    segments_BS = None
    if settings.num_segments > 1:
        columns_S = np.arange(ids_BS.shape[1])
        segments_BS = ((columns_S > lengths_B[:, None] // 2) & (columns_S < lengths_B[:, None])).astype(np.int64)
    return Batch(ids_BS, lengths_B, segments_BS)


def shapes_tried(rows: Sequence[Array], pad_id: int, settings: ModelSettings) -> Iterator[Batch]:
    """One row, the shortest too; many of mixed length; padding on every row; the longest that the model reads."""
    ordered = sorted(rows, key=len)
    longest = np.resize(np.concatenate(rows), min(settings.max_length, LONGEST))
    yield batch_of(ordered[:1], pad_id, settings)
    yield batch_of(ordered[-1:], pad_id, settings)
    yield batch_of(rows[:8], pad_id, settings)
    yield batch_of(rows[8:11], pad_id, settings, width=len(longest))
    yield batch_of([longest, ordered[0]], pad_id, settings)


def largest_difference(source: Answerer, graph: Answerer, batches: Iterator[Batch]) -> float:
    """Over all outputs, at real tokens where there is one a token."""
    largest = 0.0
    for batch in batches:
        expected, actual = source(batch), graph(batch)
        assert expected.keys() == actual.keys(), "source and graph have other outputs"
        for name, values in expected.items():
            if values.shape != actual[name].shape:
                raise DataError(f"the graph's {name} has the shape {actual[name].shape}, not {values.shape}")
            difference = np.abs(values - actual[name])[_real(values, batch)]
            largest = float(np.maximum(largest, difference.max()))  # unlike max(), keeps a NaN
    return largest


def check(source: Answerer, graph: Answerer, batches: Iterator[Batch]) -> float:
    """The largest difference, or an error where it is beyond the tolerance."""
    largest = largest_difference(source, graph, batches)
    if not largest <= TOLERANCE:
        raise DataError(
            f"the ONNX graph differs from its source by {largest:.3g} on real sentences, more than {TOLERANCE:g}: "
            "nothing was written"
        )
    return largest


def _real(values: Array, batch: Batch) -> Array:
    """Which entries of an output count: all, or those of real tokens where it has one a token."""
    shape = batch.input_ids_BS.shape
    if values.ndim < 2 or values.shape[:2] != shape:
        return np.ones(values.shape[:1], bool)
    return np.arange(shape[1]) < batch.lengths_B[:, None]


# ---------------------------------------------------------------------------------------- models that may differ


def agreement(
    source: Answerer, other: Answerer, rows: Sequence[Array], tokenizer: Tokenizer, settings: ModelSettings,
    heads: HeadSettings,
) -> tuple[str, float]:  # fmt: skip
    """What was compared and how alike both are."""
    before = predictions(source, rows, tokenizer, settings, heads)
    return alike(before, predictions(other, rows, tokenizer, settings, heads), heads)


def predictions(
    answer: Answerer, rows: Sequence[Array], tokenizer: Tokenizer, settings: ModelSettings, heads: HeadSettings
) -> Array:
    """What one form says about the rows: classes, places or tokens; numbers and vectors where it says such."""
    found = []
    for start in range(0, len(rows), 8):
        batch = batch_of(rows[start : start + 8], tokenizer.pad_id, settings)
        found.append(_predictions(answer(batch), batch, tokenizer, heads))
    return np.concatenate(found)


def alike(first: Array, second: Array, heads: HeadSettings) -> tuple[str, float]:
    """The share of equal predictions; of numbers and vectors the correlation and the mean cosine."""
    if heads.choice or (heads.num_classes == 1 and not heads.multilabel):
        return "correlation", float(np.corrcoef(first, second)[0, 1])
    if first.dtype.kind == "f":
        cosine = (first * second).sum(-1) / (np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1))
        return "mean cosine", float(cosine.mean())
    return "equal predictions", float((first == second).mean())


def _predictions(outputs: Mapping[str, Array], batch: Batch, tokenizer: Tokenizer, heads: HeadSettings) -> Array:
    if heads.num_classes is not None:
        if heads.multilabel:
            return outputs["logits"] > 0
        return outputs["logits"][:, 0] if heads.num_classes == 1 else outputs["logits"].argmax(-1)
    real_BS = np.arange(batch.input_ids_BS.shape[1]) < batch.lengths_B[:, None]
    if heads.num_tags is not None:
        return outputs["logits"].argmax(-1)[real_BS]
    if heads.span:
        marks = [np.where(real_BS, outputs[name], -np.inf).argmax(-1) for name in ("start_logits", "end_logits")]
        return np.concatenate(marks)
    if heads.choice:
        return outputs["logits"]
    if heads.masked_lm:
        return outputs["logits"][batch.input_ids_BS == tokenizer.mask_id].argmax(-1)
    return outputs["last_hidden_state"][real_BS]
