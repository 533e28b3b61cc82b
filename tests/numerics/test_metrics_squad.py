"""Exact and F1 against the official definition, written out another way; windows and offsets on real tokenizers."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remask.tasks import squad, squad_scores
from remask.tasks.rows import Frame
from remask.tasks.settings import RowSettings, TableSettings
from remask.tasks.spans import MAX_ANSWER_TOKENS, Spans, best_spans
from remask.tokenizer import load_tokenizer

WORDS = st.lists(
    st.sampled_from(["the", "The", "a", "an", "cat", "Cat,", "dog", "u.s.", "—", "an-other", "être", "42", "  "]),
    max_size=6,
).map(" ".join)


def official_words(text: str) -> list[str]:
    """As the script does it: lower case, drop ASCII punctuation, drop articles, split."""
    kept = "".join(c for c in text.lower() if c not in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
    return [word for word in re.sub(r"\b(a|an|the)\b", " ", kept).split() if word]


def official_f1(said: str, gold: str) -> float:
    left, right = official_words(said), official_words(gold)
    if not left or not right:
        return float(left == right)
    pool, common = list(right), 0
    for word in left:
        if word in pool:
            pool.remove(word)
            common += 1
    return 0.0 if not common else 2 * common / (len(left) + len(right))


@settings(max_examples=300, deadline=None)
@given(WORDS, WORDS)
def test_exact_and_f1(said: str, gold: str) -> None:
    assert squad_scores.exact(said, gold) == float(official_words(said) == official_words(gold))
    assert squad_scores.f1(said, gold) == pytest.approx(official_f1(said, gold))


def test_by_hand() -> None:
    assert squad_scores.exact("The Eiffel Tower!", "eiffel tower") == 1.0
    assert squad_scores.f1("in the tower", "Eiffel tower") == pytest.approx(0.5)
    assert squad_scores.score_answers([["x", "a cat"], ["y"]], ["cat", "z"]) == {"exact": 0.5, "f1": 0.5}
    # Only an article: nothing is left of it, so it is no gold answer.
    assert squad_scores.golds(["the", "cat"]) == ["cat"]
    assert squad_scores.golds([]) == [""]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from(["cat", "dog", ""]), st.integers(-3, 3).map(float)),
        min_size=1,
        max_size=7,
    )
)
def test_thresholds_against_trying_them_all(cases: list[tuple[bool, str, float]]) -> None:
    gold = [["cat"] if has else [] for has, _, _ in cases]
    said = [text for _, text, _ in cases]
    # Distinct odds: with ties the script's own walk stops between equal ones.
    odds = [value + number / 100 for number, (_, _, value) in enumerate(cases)]
    got = squad_scores.score_answers(gold, said, odds)

    def mean(threshold: float) -> float:
        given = [text if odd <= threshold else "" for text, odd in zip(said, odds, strict=True)]
        wanted = [answers or [""] for answers in gold]
        return float(np.mean([max(official_f1(t, g) for g in goals) for t, goals in zip(given, wanted, strict=True)]))

    assert got["best_f1"] == pytest.approx(max(mean(t) for t in [min(odds) - 1, *odds]))
    assert got["f1"] == pytest.approx(mean(0.0))
    assert mean(got["best_f1_threshold"]) == pytest.approx(got["best_f1"])
    has = [bool(answers) for answers in gold]
    if all(has) or not any(has):
        assert ("answerable_f1" in got) == all(has)


CONTEXTS = [
    "L’été dernier, Zoë naïvely visited Châteauneuf-du-Pape in 1999.",
    "北京是中华人民共和国的首都，人口超过两千万。上海也很大。",
    "Emoji 👩‍🚀 and   spaces\n\nand \u00a0tabs\tin 12,345.67 words — “quoted” ½.",
]


@pytest.fixture(scope="module")
def roberta(shared_data: Path):
    return load_tokenizer(shared_data / "roberta-30m")


def decode(rows, questions, peaks) -> list[str]:
    """Answers when the network is sure of `peaks` in every window."""
    outputs = []
    for ids, (first, last) in zip(rows.ids, peaks, strict=True):
        logits = np.zeros((len(ids), 2), np.float32)
        if last > 0:
            logits[first, 0] += 10
            logits[last, 1] += 10
        outputs.append(logits)
    return [said.text for said in best_spans(outputs, rows, questions)]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("length", [24, 512])
def test_every_span_of_characters_comes_back(roberta, context: str, length: int) -> None:
    visible = [i for i, c in enumerate(context) if not c.isspace()]
    cuts = [(a, b + 1) for a, b in itertools.combinations(visible[:: max(1, len(visible) // 12)], 2)]
    questions = [
        squad.Question(str(n), "where?", context, ((context[a:b], a),), "t", "p") for n, (a, b) in enumerate(cuts)
    ]
    rows = Spans().encode(questions, (), roberta, Frame(0, 2, True, False, length), RowSettings(stride=6))
    said = decode(rows, questions, rows.labels)
    found = {
        window.question: label[1] - label[0] + 1
        for window, label in zip(rows.origins, rows.labels, strict=True)
        if label[1] > 0
    }
    assert length < 512 or len(found) == len(questions)
    short = [number for number, tokens in found.items() if tokens <= MAX_ANSWER_TOKENS]
    assert len(short) >= 15
    for number in short:
        begin, end = cuts[number]
        # A token may reach beyond the answer's letters, never short of them.
        assert context[begin:end] in said[number]
        assert len(said[number]) <= (end - begin) + 12


def test_real_answers_come_back(shared_data: Path, roberta) -> None:
    questions, dropped = squad.with_answers_in_place(squad.read_squad(shared_data / "squad" / "dev-v1.1.json")[::25])
    assert not dropped
    rows = Spans().encode(questions, (), roberta, Frame(0, 2, True, False, 384), RowSettings(stride=128))
    said = decode(rows, questions, rows.labels)
    pairs = [[text for text, _ in q.answers] for q in questions]
    scores = squad_scores.score_answers(pairs, said)
    assert scores["exact"] > 0.985  # answers that end inside a token ("1960s" for 1960) cannot be told exactly
    assert scores["f1"] > 0.99


def test_the_split_of_the_shared_file(shared_data: Path) -> None:
    for version in ("1.1", "2.0"):
        questions = squad.read_squad(shared_data / "squad" / f"dev-v{version}.json")
        assert len(questions) == {"1.1": 10570, "2.0": 11873}[version]
        split = json.loads((shared_data / "squad" / f"article_split_v{version}.json").read_bytes())
        train, scored = squad.cut_by_article(questions)
        assert {q.article for q in train} == set(split["train"])
        assert {q.article for q in scored} == set(split["eval"])
        kept, skipped = squad.without_articles(scored, TableSettings().skip_articles)
        assert skipped == ({"Chloroplast": 295, "Oxygen": 247} if version == "1.1" else {})
        assert len(kept) + sum(skipped.values()) == len(scored)
    assert sum(not q.answers for q in questions) == 5945
