"""Text that comes from data, labels, paths and file names, as it is shown to a person.

A terminal obeys control characters: a label could change its colours or its title, a newline in a path could forge a
message, and marks of direction turn a name around. All of them are shown as what they are, such as \\x1b or \\u202e.
In: any text. Out: the same text for a terminal or log (`visible`), a web page (`as_html`) or a model card
(`as_markdown`). Not here: files that programs read, where JSON has its own way.
"""

from __future__ import annotations

import html
import re

# C0, DEL and C1; line and paragraph separators; marks of direction; halves of surrogate pairs, which no stream takes.
_CONTROLS = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
_CONTROL = re.compile(f"[{_CONTROLS}]")
_CONTROL_BUT_NEWLINE = re.compile(f"(?!\n)[{_CONTROLS}]")
_MARKDOWN = re.compile(r"[\\`\[\]|]")


def visible(text: str, *, lines: bool = False) -> str:
    """Nothing in it moves a cursor; with `lines`, newlines stay, for text that we made of lines ourselves."""
    return (_CONTROL_BUT_NEWLINE if lines else _CONTROL).sub(_name, text)


def visible_json(line: str) -> str:
    """JSON in one line, the same value for a program: JSON itself escapes only some control characters."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


def as_html(text: str) -> str:
    """Inside an element or a quoted attribute."""
    return html.escape(visible(text, lines=True))


def as_markdown(text: str) -> str:
    """As words of a paragraph or of a table's cell: no element, link, image or code."""
    return html.escape(_MARKDOWN.sub(r"\\\g<0>", visible(text.replace("\n", " "))), quote=False)


def _name(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]
