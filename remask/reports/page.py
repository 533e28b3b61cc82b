"""One self-contained HTML page: headings, text, tables, figures; opens offline, light and dark, on a phone.

Everything that comes from outside goes through `as_html`, under a strict Content-Security-Policy. A page has no script,
but for one with a sortable table: a few lines of our own, allowed by their hash. Not here: what a report says.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from remask.artifacts import PAGE_MARK
from remask.visible import as_html

STYLE = """
:root{--ink:#1c2430;--soft:#5b6676;--paper:#fff;--card:#f5f7fa;--line:#dfe4ea;--accent:#2458c5;
--series-0:#2458c5;--series-1:#d9622b;--series-2:#2e8b57;--series-3:#8a4fbf;--series-4:#b08a00;--series-5:#0f8f9c;
--series-6:#c2185b;--series-7:#6d4c41;--series-8:#607d8b;--series-9:#689f38;--series-10:#3f51b5;--series-11:#e08e0b;
color-scheme:light}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa6b6;--paper:#12161d;--card:#1a2029;--line:#2d3642;
--accent:#7ea6ff;--series-0:#7ea6ff;--series-1:#ff9b6a;--series-2:#6fcf97;--series-3:#c49bf0;--series-4:#e5c558;
--series-5:#5fd0dc;--series-6:#f48fb1;--series-7:#bcaaa4;--series-8:#b0bec5;--series-9:#aed581;--series-10:#9fa8da;
--series-11:#ffcc80;color-scheme:dark}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:860px;margin:0 auto;padding:28px 20px 60px}h1{font-size:1.7rem;line-height:1.2;margin:0 0 4px}
h2{font-size:1.2rem;margin:38px 0 10px}p{margin:8px 0}.soft{color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(180px,1fr));gap:12px;margin:22px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}
.tile b{display:block;font-size:1.45rem;line-height:1.25}.tile span{color:var(--soft);font-size:.86rem}
figure{margin:12px 0;background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px}
figcaption{color:var(--soft);font-size:.88rem;margin-top:6px}.chart{width:100%;height:auto;display:block}
.grid{stroke:var(--line)}.tick,.axis,.rule-name,.value{fill:var(--soft);font-size:12px}.value{fill:var(--ink)}
.tick.x,.axis{text-anchor:middle}.tick.y,.rule-name{text-anchor:end}.line{fill:none;stroke-width:2}
.line.faint{stroke-width:1;opacity:.45}.rule{stroke:var(--soft);stroke-dasharray:5 4}
.mark{stroke:var(--series-6);stroke-width:2}
.whisker{stroke:var(--ink);stroke-width:1.5}.sample{fill:var(--paper);stroke:var(--ink)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 16px;padding:0;margin:6px 0 0;font-size:.88rem}
.swatch{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;vertical-align:-1px}
.series-0{background:var(--series-0)}.series-1{background:var(--series-1)}.series-2{background:var(--series-2)}
.series-3{background:var(--series-3)}.series-4{background:var(--series-4)}.series-5{background:var(--series-5)}
.series-6{background:var(--series-6)}.series-7{background:var(--series-7)}.series-8{background:var(--series-8)}
.series-9{background:var(--series-9)}.series-10{background:var(--series-10)}.series-11{background:var(--series-11)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.93rem}th,td{text-align:left;
padding:6px 10px;border-bottom:1px solid var(--line);vertical-align:top}th{color:var(--soft);font-weight:600}
td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}
code,pre{font:13px/1.5 ui-monospace,Menlo,monospace}
pre{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px;overflow-x:auto}
details{margin:10px 0}summary{cursor:pointer;color:var(--accent)}
a{color:var(--accent)}p code{overflow-wrap:anywhere}
mark{background:none;color:var(--accent);font-weight:600}
.band{opacity:.16;stroke:none}
.dots{font-size:.88rem}.dot-row{display:grid;grid-template-columns:minmax(110px,24%) 1fr minmax(92px,16%);gap:12px;
align-items:center;padding:3px 0}.dot-value{text-align:right;font-variant-numeric:tabular-nums}
.dot-track,.dot-axis{position:relative;height:24px}.dot-track{background:var(--paper);border-radius:6px}
.dot-track i{position:absolute;display:block}.dot-line{top:11px;height:2px;background:var(--soft)}
.dot{width:9px;height:9px;margin-left:-4.5px;top:7.5px;border-radius:50%;background:var(--series-0);opacity:.75}
.dot-middle{width:3px;height:18px;top:3px;margin-left:-1.5px;background:var(--ink);border-radius:2px}
.dot-rule{top:0;bottom:0;width:0;border-left:1.5px dashed var(--soft)}.quiet .dot{background:var(--soft)}
.dot-axis span{position:absolute;transform:translateX(-50%);color:var(--soft);font-size:.78rem}
.badge{display:inline-block;border:1px solid var(--line);border-radius:9px;padding:0 7px;color:var(--soft);
font-size:.76rem;white-space:nowrap}th button{all:unset;cursor:pointer;color:var(--soft);font-weight:600}
th button:focus-visible{outline:2px solid var(--accent)}th[aria-sort] button{color:var(--accent)}
table.sortable .number{white-space:nowrap}td.words{min-width:230px}
ul.lines{padding-left:20px;margin:8px 0}ul.lines li{margin:5px 0}
@media(max-width:640px){.chart text{font-size:20px}.chart .axis.y{display:none}
main{padding:20px 14px 48px}.dot-row{grid-template-columns:1fr auto;gap:2px 10px}.dot-track,.dot-axis{grid-column:1/3;
grid-row:2}.tick.x:nth-of-type(even){display:none}}
@media print{:root{--ink:#000;--soft:#444;--paper:#fff;--card:#fff;--line:#bbb}figure,.tile{break-inside:avoid}
body{font-size:12px}main{max-width:none}}
"""

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
        if folded:
            figure = f"<details><summary>{as_html(folded)}</summary>{figure}</details>"
        self._parts.append(figure)

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

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Numbers are set right; everything else is text."""
        numeric = [bool(rows) and all(isinstance(row[i], (int, float)) for row in rows) for i in range(len(headers))]
        css = [" class='number'" if right else "" for right in numeric]
        head = "".join(f"<th{css[i]} scope='col'>{as_html(name)}</th>" for i, name in enumerate(headers))
        body = "".join(
            "<tr>"
            + "".join(f"<td{css[i] or _wide(value)}>{as_html(_cell(value))}</td>" for i, value in enumerate(row))
            + "</tr>"
            for row in rows
        )
        self._parts.append(
            f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def code(self, text: str, summary: str = "") -> None:
        block = f"<pre>{as_html(text)}</pre>"
        self._parts.append(f"<details><summary>{as_html(summary)}</summary>{block}</details>" if summary else block)

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


def _wide(value: Any) -> str:
    """Words in a table on a phone would otherwise stand one below the other."""
    return " class='words'" if isinstance(value, str) and len(value) > _MANY_LETTERS else ""


def _right(column: int) -> str:
    """All but the first column of a sortable table hold numbers."""
    return " class='number'" if column else ""


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
