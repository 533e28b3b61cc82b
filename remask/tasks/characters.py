"""CMRC 2018's exact match and F1, by characters (arXiv 1810.07366), for answers in Chinese.

In: gold answers and what was said. Out: as squad_scores gives it. Texts are compared in lower case without spaces and
punctuation, ASCII's and Chinese. F1 is over pieces (a Chinese character, or a run of other letters and digits) of the
longest piece of text that both have in one stretch; the best gold answer counts. The official script cuts such runs
with NLTK, which differs where they hold signs that are no punctuation.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from remask.tokenizer.words import BARE, character_class

_RUN = re.compile(r"\w+|\S")


def pieces(text: str) -> list[str]:
    """Chinese characters one by one, other words whole; no punctuation."""
    found: list[str] = []
    for run in _RUN.findall(text.lower()):
        word = ""
        for character in run:
            if character_class(character) == BARE:
                found += [word, character] if word else [character]
                word = ""
            elif unicodedata.category(character)[0] not in "PSZ":  # no punctuation, sign or space
                word += character
        found += [word] if word else []
    return found


def exact(said: str, gold: str) -> float:
    return float("".join(pieces(said)) == "".join(pieces(gold)))


def f1(said: str, gold: str) -> float:
    words, wanted = pieces(said), pieces(gold)
    common = longest_common_run(words, wanted)
    if common == 0:
        return float(words == wanted)
    precision, recall = common / len(words), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def longest_common_run(first: Sequence[str], second: Sequence[str]) -> int:
    """How many pieces the longest stretch has that stands in both."""
    longest = 0
    ends = [0] * (len(second) + 1)  # of the stretch that ends at this piece of the second, for the first's last piece
    for piece in first:
        ends = [0, *(ends[at] + 1 if piece == other else 0 for at, other in enumerate(second))]
        longest = max(longest, *ends)
    return longest
