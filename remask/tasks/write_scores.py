"""How good written texts are: BLEU and chrF by sacrebleu, ROUGE by rouge-score, and how much they repeat themselves.

In: written texts and, for each, its references. Out: plain numbers, BLEU's and chrF's signatures, and paired bootstrap
tests between two lists of texts about the same sources. The libraries come with the extra `write` and are imported
when they are needed. Not here: what a task's measures are (write).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from remask.errors import needs_extra

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

NUM_DRAWS = 1000  # of the bootstrap
References = Sequence[Sequence[str]]  # at least one for each text


def check_libraries(*, rouge: bool) -> None:
    """One line now rather than after a training."""
    _sacrebleu()
    if rouge:
        _rouge_scorer()


def _sacrebleu() -> ModuleType:
    with needs_extra("write", "BLEU and chrF need sacrebleu"):
        import sacrebleu
    return sacrebleu


def _rouge_scorer() -> RougeScorer:
    with needs_extra("write", "ROUGE needs rouge-score"):
        from rouge_score.rouge_scorer import RougeScorer
    return RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)


def bleu_chrf(texts: Sequence[str], references: References) -> tuple[dict[str, float], dict[str, str]]:
    """(`bleu` and `chrf` from 0 to 100, their signatures)."""
    sacrebleu = _sacrebleu()
    streams = _streams(references)
    metrics = {"bleu": sacrebleu.BLEU(), "chrf": sacrebleu.CHRF()}
    scores = {name: float(metric.corpus_score(list(texts), streams).score) for name, metric in metrics.items()}
    return scores, {name: str(metric.get_signature()) for name, metric in metrics.items()}


def sentence_chrf(texts: Sequence[str], references: References) -> np.ndarray:
    """One number from 0 to 100 a text."""
    metric = _sacrebleu().CHRF()
    pairs = zip(texts, references, strict=True)
    return np.array([metric.sentence_score(text, list(known)).score for text, known in pairs])


def _streams(references: References) -> list[list[str | None]]:
    """sacrebleu's way: the first reference of every text, then the second, …; None where there is none."""
    most = max(len(known) for known in references)
    return [[known[i] if i < len(known) else None for known in references] for i in range(most)]


def paired_bootstrap(texts: Sequence[str], others: Sequence[str], references: References) -> dict[str, float]:
    """Whether `texts` are better than `others`: p of the paired bootstrap (Koehn 2004) for BLEU and for chrF."""
    sacrebleu = _sacrebleu()
    from sacrebleu.significance import PairedTest

    systems: list[tuple[str, Sequence[str]]] = [("others", list(others)), ("texts", list(texts))]
    streams = _streams(references)
    metrics = {"bleu": sacrebleu.BLEU(references=streams), "chrf": sacrebleu.CHRF(references=streams)}
    _, results = PairedTest(systems, metrics, references=None, test_type="bs", n_samples=NUM_DRAWS)()
    # By the library's own names (BLEU, chrF2): for each the first list's result, then that of the second with its p.
    found = {name.lower().rstrip("2"): rows[1] for name, rows in results.items()}
    return {name: float(found[name].p_value) for name in metrics}  # pyrefly: ignore


def rouge(texts: Sequence[str], references: References) -> dict[str, float]:
    """`rouge_1`, `rouge_2` and `rouge_l`: mean F1 from 0 to 100, of each text against the reference that suits it best
    by that measure (as SciTLDR's own scores are, arXiv 2004.15011)."""
    scorer = _rouge_scorer()
    rows = []
    for text, known in zip(texts, references, strict=True):
        scores = [scorer.score(reference, text) for reference in known]
        rows.append([max(score[name].fmeasure for score in scores) for name in ("rouge1", "rouge2", "rougeL")])
    means = 100 * np.mean(rows, axis=0)
    return {name: float(mean) for name, mean in zip(("rouge_1", "rouge_2", "rouge_l"), means, strict=True)}


def distinct(texts: Sequence[str]) -> dict[str, float]:
    """`distinct_1`, `distinct_2`: different words and pairs of words among all (arXiv 1510.03055)."""
    found = {}
    for size in (1, 2):
        grams = [tuple(words[i : i + size]) for words in map(str.split, texts) for i in range(len(words) - size + 1)]
        found[f"distinct_{size}"] = len(set(grams)) / len(grams) if grams else 0.0
    return found
