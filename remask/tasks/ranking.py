"""Tasks as rankings: QNLI's candidates of one question, and SuperGLUE's WSC with its pronouns.

In: QNLI's examples, or WSC's JSONL (text, target with two spans, label). Out: `ChoiceQuestion`s of two options. QNLI:
the sentence that answers against one that does not, as in the paper's leaderboard entry (RoBERTa, section 5.1; MT-DNN);
questions with one candidate have nothing to rank and are counted out. WSC: the text with the pronoun replaced by the
noun phrase in question, against the same with another candidate. The paper finds candidates with spaCy; here they
are the file's own spans of the same text, phrases after a determiner, and names. Not here: losses, encoding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from remask.errors import DataError
from remask.schema import Json, Values
from remask.tables import Cells, read_cells
from remask.tasks.race import ChoiceQuestion
from remask.tasks.tables import Example

_PHRASE = re.compile(r"\b(?:the|a|an|my|his|her|its|our|your|their|this|that)\s+(?:[a-z]+\s+)??[A-Za-z]+\b", re.I)
_NAME = re.compile(r"(?<![.!?]\s)(?<!^)\b[A-Z][a-z]+(?:\s[A-Z][a-z]+)*\b")
NEAR_WORDS = 2  # the published files place some spans a word or two off


# ------------------------------------------------------------------------------------------------------- QNLI


def candidate_pairs(examples: Sequence[Example], positive: str) -> tuple[list[ChoiceQuestion], int]:
    """Pairs of candidates of one question, and how many examples have none to be compared with."""
    by_question: dict[str, list[Example]] = {}
    for example in examples:
        by_question.setdefault(example.texts[0], []).append(example)
    pairs: list[ChoiceQuestion] = []
    alone = 0
    for question, members in by_question.items():
        right = [e for e in members if e.label == positive]
        wrong = [e for e in members if e.label != positive]
        if not right or not wrong:
            alone += len(members)
            continue
        for other in wrong:
            answer = len(pairs) % 2  # not always the first, which a tie would go to
            options = (right[0].texts[1], other.texts[1])[:: 1 if answer == 0 else -1]
            pairs.append(ChoiceQuestion("", question, options, answer, "", right[0].place))
    return pairs, alone


# -------------------------------------------------------------------------------------------------------- WSC


def read_wsc(path: Path, *, training: bool) -> tuple[list[ChoiceQuestion], int]:
    """Pairs of candidates, and how many examples were left out. Trained on are only the true ones, as in the paper:
    a false one does not say which phrase the pronoun means."""
    examples = [_example(cells) for cells in read_cells(path)]
    if not examples:
        raise DataError(f"{path}: no examples")
    spans: dict[str, list[str]] = {}
    for values in examples:
        spans.setdefault(values["text"], []).append(values["phrase"])
    questions: list[ChoiceQuestion] = []
    left_out = 0
    for number, values in enumerate(examples):
        others = list(_others(values, spans[values["text"]]))
        if not others or (training and not values["label"]):
            left_out += 1
            continue
        claim = None if training else (str(number), values["label"])
        for other in others:
            options = tuple(values["before"] + phrase + values["after"] for phrase in (values["phrase"], other))
            answer = 0 if values["label"] else 1
            questions.append(ChoiceQuestion("", "", options, answer, "", values["place"], claim))
    if not questions:
        raise DataError(f"{path}: no example has another candidate than its own phrase")
    return questions, left_out


def _example(cells: Cells) -> Json:
    values, target = cells.values, cells.values.get("target")
    if not isinstance(target, Mapping) or not isinstance(values.get("text"), str):
        raise DataError(
            f"{cells.place}: a WSC line has `text`, `target` (span1_text, span2_text, span2_index), `label`"
        )
    phrase, pronoun, place = (target.get(name) for name in ("span1_text", "span2_text", "span2_index"))
    if not isinstance(phrase, str) or not isinstance(pronoun, str) or not isinstance(place, int):
        raise DataError(f"{cells.place}: target needs span1_text, span2_text and span2_index")
    if not isinstance(values.get("label"), bool):
        raise DataError(f"{cells.place}: label = {values.get('label')!r}: must be true or false")
    before, after = _around(values["text"], pronoun, place, cells.place)
    return {
        "text": values["text"], "phrase": phrase.strip(), "pronoun": pronoun, "before": before, "after": after,
        "label": values["label"], "place": cells.place,
    }  # fmt: skip


def _around(text: str, pronoun: str, place: int, where: str) -> tuple[str, str]:
    """The text before and after the pronoun, which is near word `place`."""
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    near = sorted(range(max(0, place - NEAR_WORDS), place + NEAR_WORDS + 1), key=lambda i: abs(i - place))
    for word in near:
        if word < len(starts) and (there := re.match(r"\W*(" + re.escape(pronoun) + r")\b", text[starts[word] :])):
            begin = starts[word] + there.start(1)
            return text[:begin], text[begin + len(pronoun) :]
    raise DataError(f"{where}: {pronoun!r} is not word {place} of the text")


def _others(values: Values, spans: Sequence[str]) -> Iterator[str]:
    """Candidates that are not the phrase itself, each once."""
    own = values["phrase"].lower()
    seen = {own, values["pronoun"].lower()}
    phrases = [*spans, *(m.group() for pattern in (_PHRASE, _NAME) for m in pattern.finditer(values["text"]))]
    for phrase in phrases:
        name = phrase.strip().lower()
        if name not in seen and name not in own and own not in name:
            seen.add(name)
            yield phrase.strip()
