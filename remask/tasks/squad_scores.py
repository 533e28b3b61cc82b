"""SQuAD's exact match and F1, by the definition of the official scripts (1.1 and 2.0).

In: gold answers and what was said, by question. Out: `exact` and `f1` (means over questions, as shares), for 2.0 also
apart for questions with and without an answer and at the best threshold on the odds of no answer. Texts are
compared in lower case, without punctuation, articles and extra spaces; F1 is over words, the best gold one counts.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from remask.schema import Json

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact(said: str, gold: str) -> float:
    return float(normalise(said) == normalise(gold))


def f1(said: str, gold: str) -> float:
    words, wanted = normalise(said).split(), normalise(gold).split()
    if not words or not wanted:
        return float(words == wanted)
    common = sum((Counter(words) & Counter(wanted)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(words), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def golds(answers: Sequence[str]) -> list[str]:
    """The answers that count; a question without one wants the empty text."""
    return [text for text in answers if normalise(text)] or [""]


Measure = Callable[[str, str], float]  # (said, gold)


def score_answers(
    gold: Sequence[Sequence[str]],
    said: Sequence[str],
    null_odds: Sequence[float] | None = None,
    exact: Measure = exact,
    f1: Measure = f1,
) -> Json:
    """Means over questions. With `null_odds` (2.0) a text counts as empty where its odds are above 0."""
    wanted = [golds(answers) for answers in gold]
    raw = [
        (max(exact(text, g) for g in goals), max(f1(text, g) for g in goals))
        for text, goals in zip(said, wanted, strict=True)
    ]
    if null_odds is None:
        return {"f1": _mean([r[1] for r in raw]), "exact": _mean([r[0] for r in raw])}
    has_answer = [goals != [""] for goals in wanted]
    empty = [(float(not has), float(not has)) for has in has_answer]
    final = [e if odds > 0 else r for r, e, odds in zip(raw, empty, null_odds, strict=True)]
    result: Json = {"f1": _mean([r[1] for r in final]), "exact": _mean([r[0] for r in final])}
    for name, side in (("answerable", True), ("unanswerable", False)):
        part = [r for r, has in zip(final, has_answer, strict=True) if has == side]
        if part:
            result |= {f"{name}_exact": _mean([r[0] for r in part]), f"{name}_f1": _mean([r[1] for r in part])}
    for column, name in ((0, "exact"), (1, "f1")):
        values = [r[column] for r in raw]
        result[f"best_{name}"], result[f"best_{name}_threshold"] = best_threshold(
            values, [bool(text) for text in said], has_answer, null_odds
        )
    return result


def best_threshold(
    scores: Sequence[float], nonempty: Sequence[bool], has_answer: Sequence[bool], null_odds: Sequence[float]
) -> tuple[float, float]:
    """(mean score, threshold): answers whose odds of none are at most the threshold are given, the others withheld."""
    best = current = float(sum(not has for has in has_answer))
    threshold = min(null_odds) - 1.0
    for index in sorted(range(len(scores)), key=lambda i: null_odds[i]):
        if has_answer[index]:
            current += scores[index]
        else:
            current -= float(nonempty[index])
        if current > best:
            best, threshold = current, null_odds[index]
    return best / len(scores), float(threshold)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
