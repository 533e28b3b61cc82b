"""Is an exported graph the model that it was made from? Both answer real sentences, and the answers are compared.

In: a source, a graph and a tokenizer. Out: the largest difference of any output at a real token, over one row and many,
short and as long as the model reads, padded and not; for a graph that may differ (int8) how often both say the same.
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
    "Call me Ishmael.",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife.",  # noqa: E501
    "However little known the feelings or views of such a man may be on his first entering a neighbourhood, this truth is so well fixed in the minds of the surrounding families, that he is considered as the rightful property of some one or other of their daughters.",  # noqa: E501
    "You will rejoice to hear that no disaster has accompanied the commencement of an enterprise which you have regarded with such evil forebodings.",  # noqa: E501
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do.",
    "Down, down, down.",
    "Would the fall never come to an end?",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.",
    "Whether I shall turn out to be the hero of my own life, or whether that station will be held by anybody else, these pages must show.",  # noqa: E501
    "To Sherlock Holmes she is always the woman.",
    "I have seldom heard him mention her under any other name.",
    "When we look to the individuals of the same variety or sub-variety of our older cultivated plants and animals, one of the first points which strikes us, is, that they generally differ much more from each other, than do the individuals of any one species or variety in a state of nature.",  # noqa: E501
    "Happy families are all alike; every unhappy family is unhappy in its own way.",
    "Longtemps, je me suis couché de bonne heure.",
    "In einem Dorfe der Mancha, dessen Name mir nicht einfallen will.",
    "Habe nun, ach! Philosophie, Juristerei und Medizin, und leider auch Theologie durchaus studiert, mit heißem Bemühn.",  # noqa: E501
    "Four score and seven years ago our fathers brought forth on this continent, a new nation.",
    "The Time Traveller (for so it will be convenient to speak of him) was expounding a recondite matter to us.",
    "No one would have believed in the last years of the nineteenth century that this world was being watched keenly and closely by intelligences greater than man's and yet as mortal as his own.",  # noqa: E501
    "3 May. Bistritz.--Left Munich at 8:35 P.M., on 1st May, arriving at Vienna early next morning; should have arrived at 6:46, but train was an hour late.",  # noqa: E501
    "All that glisters is not gold; often have you heard that told. 道可道，非常道。",
    "Marley was dead: to begin with.",
    "There is no doubt whatever about that.",
    "Squire Trelawney, Dr. Livesey, and the rest of these gentlemen having asked me to write down the whole particulars.",  # noqa: E501
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
        expected, found = source(batch), graph(batch)
        assert expected.keys() == found.keys(), "source and graph have other outputs"
        for name, values in expected.items():
            if values.shape != found[name].shape:
                raise DataError(f"the graph's {name} has the shape {found[name].shape}, not {values.shape}")
            difference = np.abs(values - found[name])[_real(values, batch)]
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
    source: Answerer, graph: Answerer, rows: Sequence[Array], tokenizer: Tokenizer, settings: ModelSettings,
    heads: HeadSettings,
) -> tuple[str, float]:  # fmt: skip
    """What was compared and how alike both are: the share of equal predictions, or for numbers and vectors the
    correlation and the mean cosine."""
    before, after = [], []
    for start in range(0, len(rows), 8):
        batch = batch_of(rows[start : start + 8], tokenizer.pad_id, settings)
        before.append(_predictions(source(batch), batch, tokenizer, heads))
        after.append(_predictions(graph(batch), batch, tokenizer, heads))
    one, two = np.concatenate(before), np.concatenate(after)
    if heads.choice or (heads.num_classes == 1 and not heads.multilabel):
        return "correlation", float(np.corrcoef(one, two)[0, 1])
    if one.dtype.kind == "f":
        cosine = (one * two).sum(-1) / (np.linalg.norm(one, axis=-1) * np.linalg.norm(two, axis=-1))
        return "mean cosine", float(cosine.mean())
    return "equal predictions", float((one == two).mean())


def _predictions(said: Mapping[str, Array], batch: Batch, tokenizer: Tokenizer, heads: HeadSettings) -> Array:
    if heads.num_classes is not None:
        if heads.multilabel:
            return said["logits"] > 0
        return said["logits"][:, 0] if heads.num_classes == 1 else said["logits"].argmax(-1)
    real_BS = np.arange(batch.input_ids_BS.shape[1]) < batch.lengths_B[:, None]
    if heads.num_tags is not None:
        return said["logits"].argmax(-1)[real_BS]
    if heads.span:
        marks = [np.where(real_BS, said[name], -np.inf).argmax(-1) for name in ("start_logits", "end_logits")]
        return np.concatenate(marks)
    if heads.choice:
        return said["logits"]
    if heads.masked_lm:
        return said["logits"][batch.input_ids_BS == tokenizer.mask_id].argmax(-1)
    return said["last_hidden_state"][real_BS]
