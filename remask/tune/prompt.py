"""A prompt made ready to learn: words looked for in the training data, patterns bound and calibrated for the model.

In: a problem of kind `prompt` and the opened model. Out: the same problem with its words in the model's vocabulary. A
label's words are the tokens that the masked-LM head prefers after texts of that label to after all others, by the mean
of their log probabilities (arXiv 2010.13641), among those that it finds likely there at all. Not here: training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from remask.errors import DataError
from remask.tasks.kind import Problem
from remask.tasks.prompts import Prompt
from remask.tasks.settings import PromptSettings, RowSettings
from remask.tasks.tables import Example

if TYPE_CHECKING:
    from remask.answer.reader import Reader

_LIKELY = 500  # candidates of a label: its likeliest tokens
_MAX_TEXTS = 1000  # of the training data that are looked at


def ready_problem(problem: Problem, reader: Reader, rows: RowSettings, *, init_weights: bool) -> Problem:
    """With words found and added, bound to the vocabulary, calibrated by the model as it starts."""
    from remask.answer.prompting import calibrated, prompt_kind

    kind = problem.kind
    assert isinstance(kind, Prompt)
    settings, notes = kind.settings, problem.notes
    if settings.search_words:
        settings = with_found_words(settings, problem.train, problem.labels, reader, rows)
        shown = "; ".join(f"{label}: {', '.join(settings.words[label])}" for label in problem.labels)
        notes = (*notes, f"words: {shown}")
    kind = prompt_kind(reader, settings, problem.labels)
    if init_weights:  # random weights know of no word that is frequent
        kind = calibrated(kind, reader, rows)
    return replace(problem, kind=kind, notes=notes)


def with_found_words(
    settings: PromptSettings, train: Sequence[Example], labels: Sequence[str], reader: Reader, rows: RowSettings
) -> PromptSettings:
    """`words` and so many more for each label."""
    means_CV = _mean_log_probs(settings, train[:_MAX_TEXTS], labels, reader, rows)
    whole = _whole_words(settings, reader)
    taken = {word for words in settings.words.values() for word in words}
    found: dict[str, list[str]] = {label: list(settings.words.get(label, ())) for label in labels}
    others_CV = np.stack([np.delete(means_CV, c, 0).max(0) for c in range(len(labels))])
    scores_CV = np.where(whole, means_CV - others_CV, -np.inf)
    for c in range(len(labels)):
        likely = np.argsort(-np.where(whole, means_CV[c], -np.inf))[:_LIKELY]
        for token in likely[np.argsort(-scores_CV[c, likely])]:
            word = reader.tokenizer.token_text(int(token)).strip()
            if len(found[labels[c]]) == len(settings.words.get(labels[c], ())) + settings.search_words:
                break
            if word not in taken:
                found[labels[c]].append(word)
                taken.add(word)
        if not found[labels[c]]:
            raise DataError(f"search_words: no word of this vocabulary fits {labels[c]!r}; give some: --words")
    return settings.model_copy(update={"words": {label: tuple(words) for label, words in found.items()}})


def _mean_log_probs(
    settings: PromptSettings, train: Sequence[Example], labels: Sequence[str], reader: Reader, rows: RowSettings
) -> np.ndarray:
    """For each label the mean over its texts, and over the patterns, of what the head says about every token."""
    import torch

    from remask.answer.prompting import prompt_kind
    from remask.answer.runner import Reading, Runner
    from remask.schema import Batch

    kind = prompt_kind(reader, settings.model_copy(update={"words": {}}), ())  # one mask a pattern
    encoded = kind.encode(train, labels, reader.tokenizer, reader.frame(rows), rows, labelled=False)
    network = reader.loaded.network
    vocab = reader.tokenizer.vocab_size
    sums_CV, counts_C = np.zeros((len(labels), vocab)), np.zeros(len(labels))

    def read(batch: Batch, hidden_BSD: torch.Tensor) -> list[np.ndarray]:
        places_M = kind.positions(network, batch)
        said = [network.masked_lm(hidden_BSD, part)[:, :vocab].float().log_softmax(-1) for part in places_M.split(128)]
        return list(torch.cat(said).cpu().numpy())

    runner = Runner(network, reader.tokenizer.pad_id, has_segments=encoded.segments is not None, batch_tokens=2048)
    label_of_row = [labels.index(train[int(i)].label) for i in encoded.example_of_row]
    reading = Reading("words", read, lambda batch: kind.positions(network, batch))
    for start in range(0, len(encoded.ids), 64):
        some = [(ids, np.zeros_like(ids)) for ids in encoded.ids[start : start + 64]]
        for number, said in runner.run(some, [reading] * len(some)).items():
            sums_CV[label_of_row[start + number]] += said
            counts_C[label_of_row[start + number]] += 1
    return sums_CV / np.maximum(counts_C, 1)[:, None]


def _whole_words(settings: PromptSettings, reader: Reader) -> np.ndarray:
    """Which tokens are words that could stand in the place of the mask: letters only, after a space where the pattern
    has one; a single letter is a word only where words are written without spaces."""
    tokenizer = reader.tokenizer
    spaced = all(" <mask>" in pattern or " [MASK]" in pattern for pattern in settings.patterns)
    whole = np.zeros(tokenizer.vocab_size, bool)
    for token in range(tokenizer.vocab_size):
        text = tokenizer.token_text(token)
        word = text.strip()
        begins = text.startswith(" ") == spaced if tokenizer.kind == "byte-bpe" else True
        inner = tokenizer.kind == "wordpiece" and tokenizer.tokens[token].startswith("##")
        long_enough = len(word) > 1 or (word > "\u2e80" and word.isalpha())
        ok = token not in tokenizer.special_ids and "\ufffd" not in text and word.isalpha()
        whole[token] = ok and begins and not inner and long_enough
    return whole
