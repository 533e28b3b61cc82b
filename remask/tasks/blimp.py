"""BLiMP: does a model find the grammatical sentence of a minimal pair likelier? Zero-shot, 67 paradigms.

In: BLiMP's JSONL files, and a function that gives log p of masked tokens. Out: accuracy by paradigm, by the 12
categories (`linguistics_term`) and over all. A sentence's score is its pseudo-log-likelihood (Salazar et al. 2020): the
sum over tokens of log p(token | all others), each token masked once; the good one must score higher. Rows of a batch
have the same length, so nothing is padding. Not here: the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from remask import signals
from remask.errors import DataError, MissingInputError
from remask.schema import Batch, Json
from remask.tables import read_cells
from remask.tasks.rows import Frame
from remask.tokenizer import Tokenizer

Array = np.ndarray
ROW_TOKENS = 8192  # in one forward pass
# Two files name a category of their own; the published tables count them among the 12.
_CATEGORY_OF = {"s-selection": "argument_structure"}
_FIELDS = ("sentence_good", "sentence_bad", "UID", "linguistics_term")


@dataclass(frozen=True, slots=True)
class MinimalPair:
    """One minimal pair."""

    good: str
    bad: str
    paradigm: str
    category: str


def blimp_paths(folder: Path) -> list[Path]:
    """One file a paradigm."""
    paths = sorted((folder / "data").glob("*.jsonl")) or sorted(folder.glob("*.jsonl"))
    if not paths:
        raise MissingInputError(f"{folder}: no BLiMP files (*.jsonl) there or in data/")
    return paths


def read_blimp(folder: Path, max_pairs: int | None = None) -> list[MinimalPair]:
    """All paradigms below a folder; of each the first `max_pairs`."""
    pairs: list[MinimalPair] = []
    for path in blimp_paths(folder):
        for number, cells in enumerate(read_cells(path)):
            if max_pairs is not None and number >= max_pairs:
                break
            values = [cells.values.get(name) for name in _FIELDS]
            if not all(isinstance(value, str) and value for value in values):
                raise DataError(f"{cells.place}: a BLiMP line has {', '.join(_FIELDS)}")
            good, bad, paradigm, term = (str(value) for value in values)
            pairs.append(MinimalPair(good, bad, paradigm, _CATEGORY_OF.get(term, term)))
    return pairs


def pseudo_log_likelihoods(
    log_probs: Callable[[Batch], Array],
    sentences: Sequence[Array],
    mask_id: int,
    advance: Callable[[int], None] = lambda rows: None,
) -> Array:
    """One score a sentence (ids with special tokens at both ends, which are never masked).

    `log_probs` gets a batch with masked positions and labels and gives log p of each label.
    """
    scores = np.zeros(len(sentences))
    for numbers, batch in _masked_batches(sentences, mask_id):
        np.add.at(scores, numbers, np.asarray(log_probs(batch), np.float64))
        advance(len(numbers))
        signals.check()
    return scores


def _masked_batches(sentences: Sequence[Array], mask_id: int) -> Iterator[tuple[Array, Batch]]:
    """(sentence of each row, batch): every token of every sentence masked once, rows of equal length together."""
    lengths = np.array([len(ids) for ids in sentences])
    for length in np.unique(lengths):
        members = np.flatnonzero(lengths == length)
        table = np.stack([sentences[int(i)] for i in members]).astype(np.int64)
        places = np.arange(1, length - 1)
        of_row = np.repeat(np.arange(len(members)), len(places))
        place_of_row = np.tile(places, len(members))
        most = max(1, ROW_TOKENS // int(length))
        for start in range(0, len(of_row), most):
            part, place = of_row[start : start + most], place_of_row[start : start + most]
            ids, rows = table[part].copy(), np.arange(len(part))
            labels = ids[rows, place]
            ids[rows, place] = mask_id
            batch = Batch(
                ids,
                np.full(len(part), length, np.int64),
                masked_positions_M=rows * int(length) + place,
                masked_labels_M=labels,
            )
            yield members[part], batch


@dataclass(frozen=True, slots=True)
class TextScore:
    """A text's pseudo-log-likelihood in nats, and of how many tokens it is the sum."""

    nats: float
    num_tokens: int


def score_texts(
    texts: Iterable[str],
    log_probs: Callable[[Batch], Array],
    tokenizer: Tokenizer,
    frame: Frame,
    advance: Callable[[int], None] = lambda rows: None,
) -> dict[str, TextScore]:
    """Pseudo-log-likelihoods by text. One that occurs several times is scored once."""
    distinct = sorted(set(texts))
    tokens = [ids[: frame.room(1)] for ids in tokenizer.encode_batch(distinct)]
    encoded = [frame.join([ids])[0] for ids in tokens]
    nats = pseudo_log_likelihoods(log_probs, encoded, tokenizer.mask_id, advance)
    return {text: TextScore(float(n), len(t)) for text, n, t in zip(distinct, nats, tokens, strict=True)}


def score_pairs(
    pairs: Sequence[MinimalPair],
    log_probs: Callable[[Batch], Array],
    tokenizer: Tokenizer,
    frame: Frame,
    advance: Callable[[int], None] = lambda rows: None,
) -> Json:
    """Accuracies."""
    score = score_texts(texts_of(pairs), log_probs, tokenizer, frame, advance)
    return summarise(pairs, [score[p.good].nats - score[p.bad].nats for p in pairs])


def texts_of(pairs: Sequence[MinimalPair]) -> set[str]:
    return {text for pair in pairs for text in (pair.good, pair.bad)}


def num_masked_rows(texts: Iterable[str], tokenizer: Tokenizer) -> int:
    """How many rows `score_texts` will run, for the progress display."""
    return sum(len(ids) for ids in tokenizer.encode_batch(sorted(set(texts))))


def summarise(pairs: Sequence[MinimalPair], margins: Sequence[float]) -> Json:
    """Means by paradigm, by category (the mean of its paradigms), and two overall means with their standard errors.

    `margins`: by how much the good sentence is likelier. A tie counts as wrong; `ties_as_half` has the means with ties
    as half right. The standard errors are those of drawing other pairs of the same paradigms."""
    margins_N = np.asarray(margins, np.float64)
    paradigm_N = np.array([pair.paradigm for pair in pairs])
    category_of = {pair.paradigm: pair.category for pair in pairs}
    right_N = margins_N > 0
    wins = {name: right_N[paradigm_N == name] for name in sorted(category_of)}
    paradigms = {name: float(won.mean()) for name, won in wins.items()}
    # Of a mean over so many pairs; one pair alone has no spread to tell from.
    variance_of = {name: float(won.var(ddof=1)) / len(won) if len(won) > 1 else 0.0 for name, won in wins.items()}
    members = {
        category: [name for name in paradigms if category_of[name] == category]
        for category in sorted(set(category_of.values()))
    }
    categories = {category: float(np.mean([paradigms[name] for name in names])) for category, names in members.items()}
    weights = {name: 1 / (len(members) * len(names)) for names in members.values() for name in names}
    half = 0.5 * (margins_N == 0)
    gained = {name: float(half[paradigm_N == name].mean()) for name in paradigms}
    accuracy, category_mean = float(np.mean(list(paradigms.values()))), float(np.mean(list(categories.values())))
    return {
        "metrics": {"accuracy": accuracy, "category_mean": category_mean},
        "standard_errors": {
            "accuracy": float(np.sqrt(sum(variance_of.values())) / len(paradigms)),
            "category_mean": float(np.sqrt(sum(weights[name] ** 2 * variance_of[name] for name in paradigms))),
        },
        "ties_as_half": {
            "accuracy": accuracy + float(np.mean(list(gained.values()))),
            "category_mean": category_mean + sum(weights[name] * gained[name] for name in paradigms),
        },
        "ties": int((margins_N == 0).sum()),
        "score": "pseudo-log-likelihood: every token masked once, the others seen",
        "categories": categories,
        "paradigms": paradigms,
        "pairs": len(pairs),
    }
