"""Cleaning: every choice does what it says and nothing else."""

from __future__ import annotations

import sys
import textwrap

import pytest

from remask.errors import UnavailableError
from remask.text import clean
from remask.text.clean import join_lines, normalise, reason_to_drop, wrong_language
from remask.text.settings import CleanSettings, LanguageSettings

PROSE = (
    "The harbour was quiet when the captain came home. Nobody had waited for him, and the windows of the market were "
    "dark; only the doctor's dog lay on the bridge, as it did every summer evening, and looked at the river."
)
GERMAN = (
    "Der Hafen war still, als der Kapitän nach Hause kam. Niemand hatte auf ihn gewartet, die Fenster waren dunkel."
)


def test_unicode_forms() -> None:
    text = "e\u0301 ﬁne ２"
    assert normalise(text, CleanSettings(unicode="none")) == text
    assert normalise(text, CleanSettings(unicode="NFC")) == "é ﬁne ２"
    assert normalise(text, CleanSettings(unicode="NFKC")) == "é fine 2"


def test_controls() -> None:
    text = "a\x00b\x07c\ufeffd\te\nf"
    assert normalise(text, CleanSettings()) == "abcd\te\nf"
    assert normalise(text, CleanSettings(controls="keep")) == text


def test_whitespace() -> None:
    text = "  a  b \t\n\n\n  c\u00a0\u00a0d  \n"
    assert normalise(text, CleanSettings(whitespace="keep")) == "  a  b \t\n\n\n  c\u00a0\u00a0d  "
    assert normalise(text, CleanSettings(whitespace="trim")) == "a  b\n\n\n  c\u00a0\u00a0d"
    assert normalise(text, CleanSettings(whitespace="collapse")) == "a b\n c d"


def test_newlines_are_always_newlines() -> None:
    assert normalise("a\r\nb\rc", CleanSettings()) == "a\nb\nc"


def test_wrapped_lines_are_joined_within_paragraphs_only() -> None:
    paragraph = " ".join([PROSE] * 8)
    wrapped = f"{textwrap.fill(paragraph, 60)}\n\n{textwrap.fill(paragraph, 60)}"
    assert normalise(wrapped, CleanSettings()) == f"{paragraph}\n\n{paragraph}"
    assert normalise(wrapped, CleanSettings(wrapped_lines="keep")) == wrapped
    poem = "\n".join(f"A line of verse, number {n}, that ends" + " early" * (n % 3) for n in range(60))
    assert normalise(poem, CleanSettings()) == poem
    assert join_lines("A list\n- one\n- two\ntail") == "A list\n- one\n- two tail"


def test_length_and_emptiness() -> None:
    assert reason_to_drop("", CleanSettings()) == "empty"
    assert reason_to_drop(" \n", CleanSettings()) == "empty"
    assert reason_to_drop("short", CleanSettings()) == ""
    assert reason_to_drop("short", CleanSettings(min_chars=6)) == "too short"


@pytest.mark.parametrize(
    "text", [PROSE, GERMAN, "他回家时港口很安静。没有人等他，市场的窗户都黑着。" * 3, "नमस्ते दुनिया, यह एक वाक्य है।"]
)
def test_prose_of_any_script_passes(text: str) -> None:
    assert reason_to_drop(text, CleanSettings()) == ""


def test_symbols() -> None:
    text = "ab {}[]<> ==> ;;; ### ab"
    assert reason_to_drop(text, CleanSettings()) == "too many symbols"
    assert reason_to_drop(text, CleanSettings(max_symbols=1.0)) == ""
    assert reason_to_drop(PROSE, CleanSettings(max_symbols=0.01)) == "too many symbols"
    assert reason_to_drop("—«»…“”—— ab", CleanSettings()) == "too many symbols"


def test_repetition() -> None:
    lines = "\n".join([f"{PROSE} {n}" for n in range(3)] + [PROSE] * 6)
    off = CleanSettings(max_compression=0.0)
    assert reason_to_drop(lines, off) == "repeated lines"
    assert reason_to_drop(lines, CleanSettings(max_compression=0.0, max_repeated_lines=1.0)) == ""
    assert reason_to_drop("word " * 200, CleanSettings()) == "repetition"
    assert reason_to_drop("word " * 200, off) == ""
    assert reason_to_drop(PROSE, CleanSettings(max_compression=1.1)) == "repetition"


def test_language() -> None:
    assert wrong_language(PROSE, ("en",), LanguageSettings()) == ""
    assert wrong_language(GERMAN, ("en",), LanguageSettings()) == "de"
    assert wrong_language(GERMAN, ("en", "de"), LanguageSettings()) == ""
    assert wrong_language("radio taxi hotel", ("en", "fr", "it", "es"), LanguageSettings(min_prob=1.0)) != ""


def test_time_is_linear_in_hostile_text() -> None:
    for text in (" " * 2_000_000 + "x", "a \n" * 500_000, "\t" * 1_000_000 + "\nx", "x\u00a0" * 500_000):
        for whitespace in ("keep", "trim", "collapse"):
            normalise(text, CleanSettings(whitespace=whitespace))


def test_chinese_is_folded_to_one_script_or_kept() -> None:
    pytest.importorskip("opencc", reason="the zh extra is not installed")
    text = "頭髮和皇后，台湾的圖書館 English"
    assert normalise(text, CleanSettings()) == text
    assert normalise(text, CleanSettings(chinese="simplified")) == "头发和皇后，台湾的图书馆 English"
    assert normalise("头发", CleanSettings(chinese="traditional")) == "頭髮"


def test_folding_without_the_extra_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opencc", None)
    clean._folding.cache_clear()
    with pytest.raises(UnavailableError, match=r"chinese = simplified: .*pip install .*\[zh\]"):
        clean.check_folding(CleanSettings(chinese="simplified"))
    clean.check_folding(CleanSettings())
