"""A model that fills masks, made ready to be asked by patterns and words, without any training.

In: an opened model and PromptSettings. Out: the same `Reader` with a task of kind `prompt`, bound to its vocabulary and
calibrated: the words' scores around an empty text are measured once, in fp32 on the CPU, with the model's own weights.
Not here: the kind itself (tasks.prompts), training it (tune).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from remask.answer.reader import Reader
from remask.answer.runner import Runner
from remask.errors import ConfigError, DataError
from remask.tasks.kinds import StoredTask
from remask.tasks.prompts import Prompt
from remask.tasks.settings import PromptSettings, RowSettings, TableSettings
from remask.tasks.tables import Example


def prompt_kind(reader: Reader, settings: PromptSettings, labels: Sequence[str]) -> Prompt:
    """The kind for this model's vocabulary, not calibrated."""
    if not reader.loaded.heads.masked_lm:
        raise DataError(f"{reader.loaded.folder}: has no masked-LM head that a pattern could ask")
    return Prompt(settings).bound(reader.tokenizer, labels)


def empty_example(kind: Prompt) -> Example:
    """What calibration asks about: a pattern with nothing in the place of its texts."""
    return Example(("",) * (2 if kind.settings.takes_pairs else 1), None, "an empty text")


def calibrated(kind: Prompt, reader: Reader, rows: RowSettings) -> Prompt:
    """The kind with the words' scores around an empty text, where its settings ask for that."""
    if not kind.settings.calibrate:
        return kind
    frame = reader.frame(rows)
    encoded = kind.encode([empty_example(kind)], (), reader.tokenizer, frame, rows, labelled=False)
    runner = Runner(reader.loaded.network, reader.tokenizer.pad_id, has_segments=frame.segments)
    return with_priors(kind, runner.outputs(encoded, kind))


def with_priors(kind: Prompt, outputs: Sequence[np.ndarray]) -> Prompt:
    """`outputs`: what the network said about the rows of the empty example."""
    return replace(kind, priors_PW=kind.word_scores(np.stack(outputs)[None])[0].astype(np.float64))


def prompted(reader: Reader, settings: PromptSettings, text: str | None = None, text2: str | None = None) -> Reader:
    """The model with a zero-shot task in place of its own. `text`, `text2`: columns of the file that is asked about."""
    if not settings.patterns or not settings.words:
        raise ConfigError("a prompt needs a pattern and words: --pattern … --words …")
    table = TableSettings(text=text or "text", text2=(text2 or "text2") if settings.takes_pairs else text2)
    settings.check_pair(table.text2)
    labels, rows = tuple(settings.words), RowSettings(max_length=reader.loaded.settings.max_length)
    kind = calibrated(prompt_kind(reader, settings, labels), reader, rows)
    return replace(reader, stored=StoredTask("prompt", kind, labels, kind.metric, table, rows))
