"""Claims that circulate: which of several wordings does a model find likelier? Zero-shot, as BLiMP.

In: JSONL, a line either {"claim", "counter"} (counter: a text or a list of them) or a cloze {"text" with one `_`,
"options", "answer" (one of the options, or its number from 0)}; `group` may say what scores are reported apart for.
Out: how often the claim (the answer) scores above all others, by its sum of log p and by the mean over its tokens
(sums favour short texts), and every line's scores. A model that prefers a claim has read it more often; that does not
make it true.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from remask.errors import DataError
from remask.schema import Batch, Json
from remask.tables import Cells, read_cells
from remask.tasks.blimp import score_texts
from remask.tasks.rows import Frame
from remask.tokenizer import Tokenizer

BLANK = "_"


@dataclass(frozen=True, slots=True)
class Claim:
    """One line: the texts that compete, the first of which is the claim."""

    texts: tuple[str, ...]
    group: str
    place: str


def read_claims(path: Path) -> list[Claim]:
    """All lines of a file."""
    claims = [_claim(cells) for cells in read_cells(path)]
    if not claims:
        raise DataError(f"{path}: no claims")
    return claims


def _claim(cells: Cells) -> Claim:
    values, place = cells.values, cells.place
    group = values.get("group", "")
    if not isinstance(group, str):
        raise DataError(f"{place}: group = {group!r} is no text")
    if "claim" in values:
        counter = values.get("counter")
        texts = [values["claim"], *(counter if isinstance(counter, list) else [counter])]
    elif isinstance(values.get("text"), str) and isinstance(values.get("options"), list):
        texts = _filled(values["text"], values["options"], values.get("answer"), place)
    else:
        raise DataError(f"{place}: a line has `claim` and `counter`, or `text`, `options` and `answer`")
    if len(texts) < 2 or not all(isinstance(text, str) and text.strip() for text in texts):
        raise DataError(f"{place}: a claim and each that competes with it must be a text")
    if len(set(texts)) < len(texts):
        raise DataError(f"{place}: the same text is there twice")
    return Claim(tuple(texts), group, place)


def _filled(text: str, options: Sequence[str], answer: object, place: str) -> list[str]:
    """The cloze with each option in its blank, the answer first."""
    if text.count(BLANK) != 1:
        raise DataError(f"{place}: `text` must have one blank {BLANK}, it has {text.count(BLANK)}")
    if not all(isinstance(option, str) for option in options):
        raise DataError(f"{place}: `options` must be a list of texts")
    number = options.index(answer) if answer in options else answer
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(options):
        raise DataError(f"{place}: answer = {answer!r} is none of the {len(options)} options")
    ordered = [options[number], *(option for i, option in enumerate(options) if i != number)]
    return [text.replace(BLANK, option) for option in ordered]


def score_claims(
    claims: Sequence[Claim],
    log_probs: Callable[[Batch], np.ndarray],
    tokenizer: Tokenizer,
    frame: Frame,
    advance: Callable[[int], None] = lambda rows: None,
) -> Json:
    """Shares of claims that win, over all and by group, and each line with its scores."""
    scores = score_texts((text for claim in claims for text in claim.texts), log_probs, tokenizer, frame, advance)
    sums = [[scores[text].nats for text in claim.texts] for claim in claims]
    means = [[scores[t].nats / max(1, scores[t].num_tokens) for t in claim.texts] for claim in claims]
    wins, mean_wins = ([values[0] > max(values[1:]) for values in table] for table in (sums, means))
    metrics = {
        "accuracy": float(np.mean(wins)),
        "accuracy_by_token": float(np.mean(mean_wins)),
        "margin": float(np.mean([values[0] - max(values[1:]) for values in sums])),
    }
    for name in sorted({claim.group for claim in claims} - {""}):
        members = [claim.group == name for claim in claims]
        metrics[f"{name}_accuracy"] = float(np.mean(np.array(wins)[members]))
    lines = [
        {"texts": list(claim.texts), "nats": [round(v, 4) for v in total], "wins": win, "place": claim.place}
        for claim, total, win in zip(claims, sums, wins, strict=True)
    ]
    return {"metrics": metrics, "claims": lines}
