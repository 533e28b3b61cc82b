"""Wikipedia dumps: what a reader sees as running text stays, the rest goes; time is linear."""

from __future__ import annotations

import pytest

from remask.text.wikipedia import plain_text


@pytest.mark.parametrize(
    "markup, text",
    [
        ("'''Cat''' is an [[animal|small animal]].", "Cat is an small animal."),
        ("{{Infobox|a={{b|[[c]]}}|d}}Text [[link]]s.", "Text links."),
        ("A.<ref name=x>cite [[a]]</ref> B.<ref name=x /> C.", "A. B. C."),
        ("A<!-- hidden -->B", "AB"),
        ("== History ==\n* one\n** two\n# three", "History\none\ntwo\nthree"),
        ("{| class=x\n|-\n| cell [[a]]\n|}\nAfter.", "After."),
        ("[[File:a.jpg|thumb|A [[nested]] caption]]Text.", "Text."),
        ("Text.\n[[Category:Cats]]\n[[de:Katze]]", "Text."),
        ("See [http://x.org the page] and http://y.org now.", "See the page and now."),
        ("x &amp;nbsp; &lt; y<br />z", "x   < y\nz"),
        ("<math>a^2</math>Sum.<gallery>\nFile:x.jpg\n</gallery>", "Sum."),
        ("__TOC__Text (, )", "Text"),
        ("[[:Category:Cats]] and [[Star Wars: Episode I]]", "and Star Wars: Episode I"),
        ("open [[link and {{template", "open link and"),
        ("a }} b ]] c", "a  b  c"),
    ],
)
def test_markup(markup: str, text: str) -> None:
    assert plain_text(markup).split() == text.split()


@pytest.mark.parametrize(
    "unit", ["{{", "[[", "{|", "<ref", "<!--", "[http://a ", "==", "'''", "{{a|", "<ref>", "|}\n", "[[a|"]
)
def test_hostile_markup_ends(unit: str) -> None:
    plain_text(unit * 100_000)
