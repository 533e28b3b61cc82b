"""One self-contained HTML page: headings, text, tables, figures; opens offline, light and dark, on a phone.

Everything that comes from outside goes through `as_html`, under a strict Content-Security-Policy. A page has no script,
but for one with a sortable table: a few lines of our own, allowed by their hash. Not here: what a report says.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remask.artifacts import PAGE_MARK
from remask.reports.charts import candidate_bars
from remask.reports.style import STYLE
from remask.visible import as_html

# Clicking a heading sorts by that column; again: the other way round.
SORT = """document.querySelectorAll('table.sortable th button').forEach(b=>b.onclick=()=>{
const h=b.parentElement,t=h.closest('table').tBodies[0],i=h.cellIndex,up=h.getAttribute('aria-sort')!=='ascending';
h.parentElement.querySelectorAll('th').forEach(o=>o.removeAttribute('aria-sort'));
h.setAttribute('aria-sort',up?'ascending':'descending');
const k=r=>{const v=r.cells[i].dataset.key;return v===''||isNaN(v)?v:+v};
const by=(p,q)=>{const a=k(p),b=k(q);return (a==='')-(b==='')||(a>b?1:a<b?-1:0)*(up?1:-1)};
[...t.rows].sort(by).forEach(r=>t.append(r))})"""

_MANY_LETTERS = 40
SERVED_AT = "127.0.0.1:8000"  # where `remask serve` answers unless told otherwise
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Tile:
    """A number that stands at the top of the page, and what it means."""

    value: str
    meaning: str


@dataclass(frozen=True)
class Fill:
    """A sentence without one of its words, and what models answer: a list of (word, probability) under each name."""

    before: str
    hidden: str
    after: str
    answers: Mapping[str, Sequence[tuple[str, float]]]


class Page:
    """Collects parts in reading order."""

    def __init__(self, title: str, subtitle: str = "") -> None:
        self._title = title
        self._script = ""
        self._reload_seconds: int | None = None
        self._parts = [f"<h1>{as_html(title)}</h1>", f"<p class='soft'>{as_html(subtitle)}</p>" if subtitle else ""]

    def tiles(self, tiles: Sequence[Tile]) -> None:
        inside = "".join(
            f"<div class='tile'><b>{as_html(t.value)}</b><span>{as_html(t.meaning)}</span></div>" for t in tiles
        )
        self._parts.append(f"<div class='tiles'>{inside}</div>")

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{as_html(text)}</h2>")

    def text(self, text: str) -> None:
        self._parts.append(f"<p>{as_html(text)}</p>")

    def figure(self, svg: str, caption: str, folded: str = "") -> None:
        """`svg` comes from charts and is taken as it is. `folded`: only this line shows until it is opened."""
        figure = f"<figure>{svg}<figcaption>{as_html(caption)}</figcaption></figure>"
        self._parts.append(_folded(figure, folded))

    def fills(self, fills: Sequence[Fill]) -> None:
        """Sentences with the hidden word marked, and a bar for each answer."""
        for fill in fills:
            sentence = f"{as_html(fill.before)}<mark>{as_html(fill.hidden)}</mark>{as_html(fill.after)}"
            sides = "".join(
                f"<div>{_side_name(name)}{candidate_bars(answers, fill.hidden, f'answers {name}')}</div>"
                for name, answers in fill.answers.items()
            )
            self._parts.append(f"<div class='fill'><p>{sentence}</p><div class='fill-sides'>{sides}</div></div>")

    def lines(self, lines: Sequence[str]) -> None:
        self._parts.append("<ul class='lines'>" + "".join(f"<li>{as_html(line)}</li>" for line in lines) + "</ul>")

    def sortable(
        self, headers: Sequence[str], rows: Sequence[Sequence[str]], keys: Sequence[Sequence[float | str]]
    ) -> None:
        """A table that a click on a heading sorts, by `keys` (beside each text what it counts as; "": last)."""
        self._script = SORT
        head = "".join(
            f"<th scope='col'{_right(i)}><button type='button'>{as_html(name)}</button></th>"
            for i, name in enumerate(headers)
        )
        body = "".join(
            "<tr>"
            + "".join(
                f"<td{_right(i)} data-key='{as_html(str(key))}'>{as_html(text)}</td>"
                for i, (text, key) in enumerate(zip(row, row_keys, strict=True))
            )
            + "</tr>"
            for row, row_keys in zip(rows, keys, strict=True)
        )
        table = f"<table class='sortable'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        self._parts.append(f"<div class='wide'>{table}</div>")

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[object]], folded: str = "") -> None:
        """Numbers are set right; everything else is text. `folded`: only this line shows until it is opened."""
        numeric = [bool(rows) and all(isinstance(row[i], (int, float)) for row in rows) for i in range(len(headers))]
        css = [" class='number'" if right else "" for right in numeric]
        head = "".join(f"<th{css[i]} scope='col'>{as_html(name)}</th>" for i, name in enumerate(headers))
        body = "".join(
            "<tr>"
            + "".join(f"<td{css[i] or _wide(value)}>{as_html(_cell(value))}</td>" for i, value in enumerate(row))
            + "</tr>"
            for row in rows
        )
        table = f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        self._parts.append(_folded(table, folded))

    def code(self, text: str, summary: str = "") -> None:
        self._parts.append(_folded(f"<pre>{as_html(text)}</pre>", summary))

    def playground(self, model: str) -> None:
        """How to try the model in a browser: the command, and a link to the page that it serves."""
        command = as_html(f"remask serve {shlex.quote(model)}")
        link = f"<a href='http://{SERVED_AT}/'>{SERVED_AT}</a>"
        self._parts.append(f"<p>Try it in a browser: <code>{command}</code>, then open {link}.</p>")

    def reload_after(self, seconds: int) -> None:
        """The browser opens the page again after so long: for one that is written anew while it is looked at."""
        self._reload_seconds = seconds

    def html(self) -> str:
        policy, script = POLICY, ""
        again = f"<meta http-equiv='refresh' content='{self._reload_seconds}'>" if self._reload_seconds else ""
        if self._script:
            mark = base64.b64encode(hashlib.sha256(self._script.encode()).digest()).decode()
            policy, script = f"{POLICY}; script-src 'sha256-{mark}'", f"<script>{self._script}</script>"
        return (
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
            f"<meta http-equiv='Content-Security-Policy' content=\"{policy}\">"
            f"{PAGE_MARK}<meta name='viewport' content='width=device-width,initial-scale=1'>"
            f"{again}<title>{as_html(self._title)}</title><style>{STYLE}</style></head>"
            f"<body><main>{''.join(self._parts)}</main>{script}</body></html>\n"
        )


def _side_name(name: str) -> str:
    return f"<span class='soft'>{as_html(name)}</span>" if name else ""


def _folded(html: str, summary: str) -> str:
    """Behind a line that opens it, where there is one."""
    return f"<details><summary>{as_html(summary)}</summary>{html}</details>" if summary else html


def _wide(value: object) -> str:
    """Words in a table on a phone would otherwise stand one below the other."""
    return " class='words'" if isinstance(value, str) and len(value) > _MANY_LETTERS else ""


def _right(column: int) -> str:
    """All but the first column of a sortable table hold numbers."""
    return " class='number'" if column else ""


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
