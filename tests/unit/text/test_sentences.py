"""Sentence starts: any script, newlines by choice, real English and Chinese."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from remask.config import build_run
from remask.errors import ConfigError
from remask.preparation.settings import PrepareRun
from remask.text.sentences import sentence_starts
from remask.text.settings import LANGUAGES, OWN_ABBREVIATIONS, SentenceSettings


def split(text: str, **settings) -> list[str]:
    starts = [*sentence_starts(text, SentenceSettings(**settings)).tolist(), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(starts)]


def test_rules_and_abbreviations() -> None:
    assert split("Mr. Smith paid 3.50 for it. He left, e.g. at noon! Why?") == [
        "Mr. Smith paid 3.50 for it. ",
        "He left, e.g. at noon! ",
        "Why?",
    ]


def test_chinese() -> None:
    assert split("你好吗？我很好。「是的。」他说。") == ["你好吗？", "我很好。", "「是的。」", "他说。"]
    assert split("他是诗人。1231年他离开了四川。") == ["他是诗人。", "1231年他离开了四川。"]


def test_newlines_are_boundaries_by_choice() -> None:
    text = "A title without a stop\nThe text goes\non here. And here."
    assert len(split(text)) == 4
    assert split(text, newline="space") == ["A title without a stop\nThe text goes\non here. ", "And here."]
    assert split("One\n\nparagraph.", newline="space") == ["One\n\nparagraph."]


def test_without_rules_only_newlines_count() -> None:
    text = "One. Two.\nThree. Four."
    assert split(text, splitter="none") == ["One. Two.\n", "Three. Four."]
    assert split(text, splitter="none", newline="space") == [text]


def test_the_language_decides_on_abbreviations() -> None:
    text = "Das gilt z.B. Hier und bzw. Dort."
    assert split(text, language="de") != split(text, language="en")


@pytest.mark.parametrize("code", ["klingon", "english", "EN", "xx", ""])
def test_a_language_that_is_none_is_refused_with_those_that_are(code: str) -> None:
    with pytest.raises(ConfigError, match=r"text.sentences.language.*two letters.*de, el, en"):
        build_run(PrepareRun, options={"text.sentences.language": code})
    assert set(OWN_ABBREVIATIONS) <= LANGUAGES
    assert len(split("你好吗？我很好。", language="zh")) == 2


@pytest.mark.parametrize("text", ["  \n x. Y.", "x", "\t\n\n a\n \n b \n", "a.  \n", "“Yes.” \u3000\u3000No."])
def test_starts_are_visible_characters_and_the_first_is_always_one(text: str) -> None:
    for newline in ("boundary", "space"):
        starts = sentence_starts(text, SentenceSettings(newline=newline)).tolist()
        assert starts[0] == len(text) - len(text.lstrip())
        assert starts == sorted(set(starts))
        assert all(not text[start].isspace() for start in starts)


def test_nothing_but_space_has_no_sentence() -> None:
    assert sentence_starts(" \n ", SentenceSettings()).tolist() == []


def test_real_english(shared_data: Path) -> None:
    text = (shared_data / "wiki" / "wiki.valid.txt").read_text(encoding="utf-8")[:200_000]
    parts = split(text)
    assert 15 < len(text.split()) / len(parts) < 30
    ends = [part.rstrip() for part in parts if len(part.split()) > 5]
    assert sum(part.endswith((".", "?", "!", '"', ")", ":", "”")) for part in ends) > 0.93 * len(ends)


def test_real_chinese(shared_data: Path) -> None:
    text = (shared_data / "zhwiki" / "zhwiki.valid.txt").read_text(encoding="utf-8")[:60_000]
    parts = split(text)
    stops = sum(text.count(stop) for stop in "。！？")
    assert 0.8 * stops < len(parts) < 1.2 * (stops + text.count("\n"))
    inner = [part.strip() for part in parts if "。" in part.strip()[:-2]]
    assert len(inner) < 0.05 * len(parts)
