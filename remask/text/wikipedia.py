"""Wikipedia's XML dumps -> articles as text.

The XML is parsed as a stream with a bound on every article; entity declarations are refused. Markup is taken out: what
a reader of the page would not see as running text (templates, tables, references, files, formulas) goes, links and
emphasis leave their words, headings and list items become lines. Redirects and pages outside the article space are
counted as drops.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator
from xml.parsers import expat

from remask.text.plain import portion_blocks
from remask.text.records import TOO_SLOW, Damaged, Document, Drop, Portion, Reading

_MARKUP_FACTOR = 4  # markup to text: how much longer a page may be than the document it becomes


def read_wikipedia(portion: Portion, reading: Reading) -> Iterator[Document | Drop]:
    pages = _Pages(_MARKUP_FACTOR * reading.max_bytes)
    for block in portion_blocks(portion, reading):
        # Small bites: the parser calls back for everything in one before it returns.
        for start in range(0, len(block), 1 << 16):
            pages.feed(block[start : start + (1 << 16)])
            for page in pages.take():
                yield from _article(page, portion, reading)
    pages.feed(b"", final=True)
    for page in pages.take():
        yield from _article(page, portion, reading)


def _article(page: dict[str, str], portion: Portion, reading: Reading) -> Iterator[Document | Drop]:
    title = page.get("title", "").strip()
    place = portion.at(f"page {page.get('id', '?')} {title}")
    if "long" in page:
        yield Drop("too long", place)
    elif "redirect" in page:
        yield Drop("redirect", place)
    elif page.get("ns", "0") != "0":
        yield Drop("not an article", place)
    elif reading.steps.is_passed_over(len(page.get("text", ""))):
        yield Drop(TOO_SLOW, place)
    else:
        text = plain_text(page.get("text", ""))
        if text:
            yield from reading.fitted(f"{title}\n{text}", place)
        else:
            yield Drop("empty", place)


class _Pages:
    """Collects title, ns, id and text of each page as the parser goes by."""

    _WANTED = frozenset(("title", "ns", "id", "text"))

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._done: list[dict[str, str]] = []
        self._page: dict[str, str] | None = None
        self._held: list[str] | None = None
        self._size = 0
        self._inner: list[str] = []
        parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.EntityDeclHandler = self._entity
        self._parser = parser

    def feed(self, data: bytes, final: bool = False) -> None:
        try:
            self._parser.Parse(data, final)
        except expat.ExpatError as error:
            raise Damaged("damaged file", f"not valid XML: {error}"[:200]) from error

    def take(self) -> list[dict[str, str]]:
        done, self._done = self._done, []
        return done

    def _entity(self, *declaration: object) -> None:
        raise Damaged("damaged file", "declares XML entities, which no dump does")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "page":
            self._page = {}
        elif self._page is not None:
            self._inner.append(name)
            if name == "redirect":
                self._page["redirect"] = "1"
            # The first id is the page's own; those of revision and contributor come later.
            if name in self._WANTED and name not in self._page:
                self._held, self._size = [], 0

    def _end(self, name: str) -> None:
        if name == "page" and self._page is not None:
            self._done.append(self._page)
            self._page = None
            self._inner.clear()
        elif self._inner and self._page is not None:
            self._inner.pop()
            if self._held is not None and name in self._WANTED:
                self._page[name] = "".join(self._held)
                self._held = None

    def _text(self, data: str) -> None:
        if self._held is not None and self._page is not None:
            self._size += len(data)
            if self._size > self._limit:
                self._page["long"] = "1"
                self._held = []
            elif "long" not in self._page:
                self._held.append(data)


# --------------------------------------------------------------------------------------------------- markup

# No pattern may try the same stretch again and again: classes that follow each other are disjoint or possessive (+).
_MAX_BRACKETS = 1000  # open at once; a link's words are copied for every link around it
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.S)
_BLOCKS = re.compile(
    r"<(ref|math|gallery|timeline|syntaxhighlight|source|score|imagemap|chem|templatestyles|indicator)\b"
    r"(?:[^<>]*?/>|[^<>]*>.*?(?:</\1\s*>|\Z))",
    re.S | re.I,
)
_BREAK = re.compile(r"<(?:br|hr)\s*/?>", re.I)
_TAG = re.compile(r"</?[a-zA-Z][^<>\n]{0,500}>")
_BRACKETS = re.compile(r"\{\{|\}\}|\{\||\n\|\}|\[\[|\]\]")
_CLOSES = {"}}": "{{", "\n|}": "{|", "]]": "[["}
_NAMESPACE = re.compile(r":?\s*([^\W\d_]+[^\[\]|:{}]{0,30}):", re.I)
_MEDIA = re.compile(
    r"(?i:file|image|category|media|文件|檔案|图像|圖像|分类|分類|datei|bild|kategorie|fichier|catégorie|archivo|imagen"
    r"|categoría|immagine|categoria|ficheiro|imagem|файл|категория|ファイル|画像)"
)
_EXTERNAL = re.compile(r"\[(?:https?:)?//[^\s\[\]]{1,2000}+\s?+([^\]\n]{0,1000}+)\]")
_ADDRESS = re.compile(r"https?://\S+")
_EMPHASIS = re.compile(r"'{2,5}")
_HEADING = re.compile(r"^=[^\n]*$", re.M)
_LIST = re.compile(r"^[*#:;]+\s*", re.M)
_MAGIC = re.compile(r"__[A-Z]+__")
_EMPTY_BRACKETS = re.compile(r"[(（]\s*+[,;，；、]?+\s*+[)）]")
_ROWS = re.compile(r"^[^\S\n]*+[|!].*$", re.M)
_LONG_NUMBER = re.compile(r"&#(?:\d{9,}+|[xX][0-9a-fA-F]{9,}+);?")  # of no character; Python refuses to read it
_MANY_LINES = re.compile(r"\n\s*\n+")
_SPACES = re.compile(r"[ \t\xa0]{2,}")


def plain_text(markup: str) -> str:
    """The running text of an article; a paragraph, heading or list item is a line."""
    text = _BLOCKS.sub("", _COMMENT.sub("", markup))
    text = _BREAK.sub("\n", text)
    text = _outside_brackets(text)
    text = _EXTERNAL.sub(r"\1", text)
    text = _EMPHASIS.sub("", _ADDRESS.sub("", text))
    text = _unescaped(_unescaped(_TAG.sub("", text)))
    text = _MAGIC.sub("", _LIST.sub("", _HEADING.sub(_heading, text)))
    text = _EMPTY_BRACKETS.sub("", _ROWS.sub("", text))
    text = _SPACES.sub(" ", text)
    lines = (line.strip() for line in _MANY_LINES.sub("\n", text).split("\n"))
    return "\n".join(line for line in lines if line)


def _unescaped(text: str) -> str:
    return html.unescape(_LONG_NUMBER.sub("\ufffd", text))


def _heading(match: re.Match[str]) -> str:
    """`== Words ==` without as many signs (at most 6) as stand on both sides."""
    line = match[0].strip()
    for count in range(min(6, len(line) - len(line.lstrip("="))), 0, -1):
        if len(line) >= 2 * count and line.endswith("=" * count):
            return line[count:-count].strip()
    return match[0]


def _outside_brackets(text: str) -> str:
    """Templates and tables out, links replaced by their words; one pass, whatever the nesting."""
    stack: list[tuple[str, list[str]]] = [("", [])]
    num_open: Counter[str] = Counter()
    position = 0
    for match in _BRACKETS.finditer(text):
        mark = match[0]
        if mark in _CLOSES and stack[-1][0] != _CLOSES[mark]:
            if mark == "]]" or not num_open[_CLOSES[mark]]:
                stack[-1][1].append(text[position : match.start()])
                position = match.end()
                continue
            # A link or table left open inside a template ends with it.
            while stack[-1][0] != _CLOSES[mark]:
                num_open[stack.pop()[0]] -= 1
        stack[-1][1].append(text[position : match.start()])
        position = match.end()
        if mark in _CLOSES:
            opened, pieces = stack.pop()
            num_open[opened] -= 1
            if opened == "[[":
                stack[-1][1].append(_link("".join(pieces)))
        elif len(stack) <= _MAX_BRACKETS:
            stack.append((mark, []))
            num_open[mark] += 1
    stack[-1][1].append(text[position:])
    # What was opened and never closed: a link's words stay, a template's or table's do not.
    return "".join("".join(pieces) for opened, pieces in stack if opened in ("", "[["))


def _link(inside: str) -> str:
    namespace = _NAMESPACE.match(inside)
    if namespace and _MEDIA.fullmatch(namespace[1].strip()):
        return ""
    if namespace and "|" not in inside and re.fullmatch(r"[a-z-]{2,12}", namespace[1]):
        return ""  # the same article in another language
    return inside.rpartition("|")[2] if "|" in inside else inside.lstrip(":")
