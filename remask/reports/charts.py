"""Small charts for reports: lines, bars, rows of dots, a heat map, a map of points. No script, light and dark.

In: plain numbers. Out: HTML. All text is HTML of the page's own size, beside or over a drawing that stretches with the
page: at 375 px a chart is narrower, its words are not smaller. Colours come from the page's CSS variables
(`--series-0` ...), so that one drawing serves both colour schemes; every point and bar has a title, which browsers show
and screen readers read. Not here: reading runs, or any text of the report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from remask.visible import as_html

WIDTH, HEIGHT = 640, 240  # units of a drawing, which the page stretches to its own width and height
NUM_COLOURS = 12
NOTHING = "<p class='soft'>nothing to draw yet</p>"


@dataclass(frozen=True)
class Series:
    """One named line: (x, y) points in order."""

    name: str
    points: Sequence[tuple[float, float]]
    faint: bool = False
    band: Sequence[tuple[float, float, float]] = ()  # (x, lowest, highest) of the runs behind it


@dataclass(frozen=True)
class Rule:
    """A horizontal line that a curve is read against."""

    name: str
    y: float


@dataclass(frozen=True)
class Mark:
    """A vertical line at a moment."""

    name: str
    x: float


@dataclass(frozen=True)
class Bar:
    """One bar: its value, and the lowest and highest of the runs behind it. `text`: what stands beside it, else the
    value. `mark`: a place that it should have reached."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    samples: Sequence[float] = field(default_factory=tuple)
    text: str = ""
    mark: float | None = None
    is_quiet: bool = False


@dataclass(frozen=True)
class DotRow:
    """A row of dots: one for each run, a mark at `middle`, a line from `low` to `high`, words beside it."""

    name: str
    dots: Sequence[float]
    middle: float
    low: float
    high: float
    value: str
    badge: str = ""
    is_quiet: bool = False


@dataclass(frozen=True)
class Point:
    """A text on a map: where it lies, which group gives its colour, what it says."""

    x: float
    y: float
    group: str
    title: str


# ------------------------------------------------------------------------------------------------------- lines


def line_chart(
    series: Sequence[Series], *, x_name: str, y_name: str, rules: Sequence[Rule] = (), marks: Sequence[Mark] = (),
    x_marks: Mapping[float, str] | None = None,
) -> str:  # fmt: skip
    """Lines over a common x axis. Points that are not finite are left out. `marks` stand upright at an x; `x_marks` are
    ticks at these x, with these words."""
    clean = [replace(s, points=[p for p in s.points if all(map(math.isfinite, p))]) for s in series]
    clean = [s for s in clean if s.points]
    if not clean:
        return NOTHING
    xs = [x for s in clean for x, _ in s.points]
    ys = [y for s in clean for _, y in s.points] + [rule.y for rule in rules]
    ys += [y for s in clean for _, *ends in s.band for y in ends if math.isfinite(y)]
    y_ticks = ticks(min(ys), max(ys), 5)
    to_y = _scale(min(y_ticks[0], min(ys)), max(y_ticks[-1], max(ys)), HEIGHT, 0)
    if x_marks is not None:
        x_ticks = sorted(x_marks)
        to_x = _scale(min(xs), max(xs), 0, WIDTH)
    else:
        left = 0.0 if 0 < min(xs) < 0.2 * max(xs) else min(xs)
        x_ticks = [tick for tick in ticks(left, max(xs)) if left <= tick <= max(xs)]
        to_x = _scale(left, max(xs), 0, WIDTH)
    parts = [_level(to_y(tick), "grid") for tick in y_ticks] + [_level(to_y(rule.y), "rule") for rule in rules]
    for index, one in enumerate(clean):
        parts += _line(one, index, to_x, to_y)
    parts += [_upright(to_x(mark.x), mark.name) for mark in marks if min(xs) <= mark.x <= max(xs)]
    labels = [_at("tick y", to_y(tick), HEIGHT, "top", _number(tick)) for tick in y_ticks]
    labels += [
        _at("tick x odd" if i % 2 else "tick x", to_x(tick), WIDTH, "left", (x_marks or {}).get(tick, _number(tick)))
        for i, tick in enumerate(x_ticks)
    ]
    labels += [_at("rule-name", to_y(rule.y), HEIGHT, "top", f"{rule.name} {_number(rule.y)}") for rule in rules]
    svg = _drawing("".join(parts), f"{y_name} over {x_name}")
    return (
        f"<div class='plot'><div class='plot-name'>{as_html(y_name)}</div>"
        f"<div class='plot-box'>{svg}{''.join(labels)}</div>"
        f"<div class='plot-name x'>{as_html(x_name)}</div></div>{_legend([s.name for s in clean])}"
    )


def _upright(x: float, name: str) -> str:
    title = f"<title>{as_html(name)}</title>"
    return f"<line class='mark' x1='{x:.1f}' x2='{x:.1f}' y1='0' y2='{HEIGHT}'>{title}</line>"


def _line(one: Series, index: int, to_x: Callable[[float], float], to_y: Callable[[float], float]) -> list[str]:
    """A band, a line, and points that say their numbers."""
    colour = f"var(--series-{index % NUM_COLOURS})"
    parts = []
    if one.band:
        edge = [(x, low) for x, low, _ in one.band] + [(x, high) for x, _, high in reversed(one.band)]
        around = " ".join(f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in edge)
        parts.append(f"<polygon class='band' style='fill:{colour}' points='{around}'/>")
    path = " ".join(f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in thin(one.points))
    faint = " faint" if one.faint else ""
    parts.append(f"<polyline class='line{faint}' style='stroke:{colour}' points='{path}'/>")
    if not one.faint:
        for x, y in thin(one.points, 60):
            title = _title(f"{one.name}: {_number(y)} at {_number(x)}")
            # A line of no length with round ends: a dot that stays round however the drawing is stretched.
            place = f"M{to_x(x):.1f} {to_y(y):.1f}h0"
            parts.append(f"<path class='point' style='stroke:{colour}' d='{place}'>{title}</path>")
    return parts


# -------------------------------------------------------------------------------------------------------- rows


def bar_chart(bars: Sequence[Bar], *, label: str) -> str:
    """A row for each bar, over one axis from zero to at least 1: a value of 1 % is 1 % of it. The lowest and highest
    run, where there are several, are the ends of a thin line, each run a dot."""
    ends = [x for bar in bars for x in (bar.value, bar.high, bar.mark, *bar.samples) if x is not None]
    ends = [x for x in ends if math.isfinite(x)]
    if not ends:
        return NOTHING
    marks = ticks(0.0, max(1.0, *ends), 4)
    to_x = _scale(0.0, marks[-1], 0.0, 100.0)
    parts = []
    for bar in bars:
        text = bar.text or _number(bar.value)
        inside = f"<i class='bar' style='width:{max(0.0, to_x(bar.value)):.2f}%'></i>"
        if bar.low is not None and bar.high is not None and bar.high > bar.low:
            inside += _span(to_x(bar.low), to_x(bar.high))
        inside += "".join(_dot("sample", to_x(value), _number(value)) for value in bar.samples)
        if bar.mark is not None:
            inside += _dot("dot-middle", to_x(bar.mark), _number(bar.mark))
        parts.append(_row(bar.name, inside, text, kind=" quiet" if bar.is_quiet else ""))
    return _rows(parts, marks, to_x, label)


def dot_chart(rows: Sequence[DotRow], *, label: str, rule: float | None = None) -> str:
    """Rows of dots over one axis. `rule`: a vertical line that rows are read against."""
    ends = [x for row in rows for x in (*row.dots, row.middle, row.low, row.high)] + ([] if rule is None else [rule])
    ends = [x for x in ends if math.isfinite(x)]
    if not ends:
        return NOTHING
    marks = ticks(min(ends), max(ends), 4)
    to_x = _scale(min(marks[0], min(ends)), max(marks[-1], max(ends)), 1.5, 98.5)
    across = "" if rule is None else f"<i class='dot-rule' style='left:{to_x(rule):.2f}%'></i>"
    parts = []
    for row in rows:
        dots = "".join(_dot("dot", to_x(x), _number(x)) for x in row.dots)
        middle = f"<i class='dot-middle' style='left:{to_x(row.middle):.2f}%'></i>"
        inside = f"{across}{_span(to_x(row.low), to_x(row.high))}{dots}{middle}"
        parts.append(_row(row.name, inside, row.value, badge=row.badge, kind=" quiet" if row.is_quiet else ""))
    return _rows(parts, marks, to_x, label)


def candidate_bars(answers: Sequence[tuple[str, float]], wanted: str, label: str) -> str:
    """Answers with their probability, each as long as it is likely; the wanted one stands out."""
    parts = []
    for word, score in answers:
        inside = f"<i class='bar' style='width:{100 * score:.2f}%'></i>"
        is_right = bool(word) and word.casefold() == wanted.casefold()
        share = f"{score:.1%}" if score < 0.1 else f"{score:.0%}"
        shown = "(part of a character)" if "\ufffd" in word else word or "(space)"
        parts.append(_row(shown, inside, share, kind=" right" if is_right else ""))
    return f"<div class='dots' role='group' aria-label='{as_html(label)}'>{''.join(parts)}</div>"


def _row(name: str, inside: str, value: str, *, badge: str = "", kind: str = "") -> str:
    beside = f" <span class='badge'>{as_html(badge)}</span>" if badge else ""
    return (
        f"<div class='dot-row{kind}'><div class='dot-name'>{as_html(name)}{beside}</div>"
        f"<div class='dot-track' title='{as_html(f'{name}: {value}')}'>{inside}</div>"
        f"<div class='dot-value'>{as_html(value)}</div></div>"
    )


def _rows(parts: Sequence[str], marks: Sequence[float], to_x: Callable[[float], float], label: str) -> str:
    numbers = "".join(f"<span style='left:{to_x(t):.2f}%'>{as_html(_number(t))}</span>" for t in marks)
    axis = f"<div class='dot-row'><div></div><div class='dot-axis'>{numbers}</div><div></div></div>"
    return f"<div class='dots' role='group' aria-label='{as_html(label)}'>{''.join(parts)}{axis}</div>"


def _dot(kind: str, left: float, title: str) -> str:
    return f"<i class='{kind}' style='left:{left:.2f}%' title='{as_html(title)}'></i>"


def _span(left: float, right: float) -> str:
    return f"<i class='dot-line' style='left:{left:.2f}%;width:{max(0.0, right - left):.2f}%'></i>"


# -------------------------------------------------------------------------------------------------- two dimensions

MAX_NUMBERED = 20  # rows and columns of a heat map whose cells hold their count
_SHADES = 5
_DEEP = 0.7  # a share from which on dark letters are hard to read


def heat_map(counts: Sequence[Sequence[int]], labels: Sequence[str], *, row_name: str, column_name: str) -> str:
    """A matrix of counts, each cell shaded by its share of its row. Small ones are a table with names and numbers;
    larger ones a picture of squares, without either."""
    if len(labels) > MAX_NUMBERED:
        return _squares(counts, f"{row_name} against {column_name}, {len(labels)} classes")
    head = "".join(f"<th scope='col' title='{as_html(name)}'><span>{as_html(name)}</span></th>" for name in labels)
    body = []
    for name, row in zip(labels, counts, strict=True):
        total = max(1, sum(row))
        cells = "".join(
            f"<td class='{'deep' if count > _DEEP * total else ''}' style='--share:{100 * count / total:.0f}%' "
            f"title='{as_html(f'{row_name} {name}, {column_name} {other}: {count} of {sum(row)}')}'>{count or ''}</td>"
            for other, count in zip(labels, row, strict=True)
        )
        body.append(f"<tr><th scope='row'>{as_html(name)}</th>{cells}</tr>")
    corner = f"<td class='soft'>{as_html(row_name)} ↓ {as_html(column_name)} →</td>"
    table = f"<table class='heat'><thead><tr>{corner}{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f"<div class='wide'>{table}</div>"


def _squares(counts: Sequence[Sequence[int]], label: str) -> str:
    """One path for each shade: small, whatever the number of classes."""
    cells: list[list[str]] = [[] for _ in range(_SHADES)]
    for y, row in enumerate(counts):
        total = max(1, sum(row))
        for x, count in enumerate(row):
            if count:
                cells[math.ceil(_SHADES * count / total) - 1].append(f"M{x} {y}h1v1h-1z")
    size = len(counts)
    paths = "".join(
        f"<path class='square' style='opacity:{(i + 1) / _SHADES:.1f}' d='{''.join(path)}'/>"
        for i, path in enumerate(cells)
        if path
    )
    frame = f"<path class='grid' d='M0 0H{size}V{size}H0Z' fill='none' vector-effect='non-scaling-stroke'/>"
    named = f"role='img' aria-label='{as_html(label)}'"
    return f"<svg class='squares' viewBox='0 0 {size} {size}' {named}>{frame}{paths}</svg>"


def point_map(points: Sequence[Point], *, label: str) -> str:
    """Texts as points, the groups by colour, each with its text as a title. Beyond as many groups as there are colours
    the smaller ones are grey."""
    shown = [p for p in points if math.isfinite(p.x) and math.isfinite(p.y)]
    if not shown:
        return NOTHING
    groups = list(dict.fromkeys(p.group for p in shown))
    sizes = {group: sum(p.group == group for p in shown) for group in groups}
    groups.sort(key=lambda group: -sizes[group])
    named, others = groups[:NUM_COLOURS], groups[NUM_COLOURS:]
    colour = {group: f"var(--series-{index})" for index, group in enumerate(named)}
    shown.sort(key=lambda p: p.group in colour)  # grey ones lie below
    to_x = _scale(min(p.x for p in shown), max(p.x for p in shown), 12, WIDTH - 12)
    to_y = _scale(min(p.y for p in shown), max(p.y for p in shown), HEIGHT - 12, 12)
    parts = [
        f"<path class='point map' style='stroke:{colour.get(p.group, 'var(--soft)')}' "
        f"d='M{to_x(p.x):.1f} {to_y(p.y):.1f}h0'>{_title(f'{p.group}: {p.title}')}</path>"
        for p in shown
    ]
    rest = f"<p class='soft'>{len(others)} smaller groups are grey.</p>" if others else ""
    return f"<div class='plot-box map'>{_drawing(''.join(parts), label)}</div>{_legend(named)}{rest}"


# ------------------------------------------------------------------------------------------------------- parts


def ticks(low: float, high: float, wanted: int = 6) -> list[float]:
    """Round numbers that cover [low, high]."""
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):  # as good as one value
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    raw = (high - low) / wanted
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def thin(points: Sequence[tuple[float, float]], most: int = 400) -> list[tuple[float, float]]:
    """At most `most` of the points, evenly, the last one always."""
    if len(points) <= most:
        return list(points)
    stride = (len(points) - 1) / (most - 1)
    return [points[round(i * stride)] for i in range(most)]


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _level(y: float, kind: str) -> str:
    return f"<line class='{kind}' x1='0' x2='{WIDTH}' y1='{y:.1f}' y2='{y:.1f}'/>"


def _at(kind: str, place: float, size: float, side: str, text: str) -> str:
    """A label over or beside a drawing."""
    return f"<span class='{kind}' style='{side}:{100 * place / size:.2f}%'>{as_html(text)}</span>"


def _drawing(inside: str, label: str) -> str:
    size = f"viewBox='0 0 {WIDTH} {HEIGHT}' preserveAspectRatio='none'"
    return f"<svg class='chart' {size} role='img' aria-label='{as_html(label)}'>{inside}</svg>"


def _legend(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    items = "".join(
        f"<li><span class='swatch series-{index % NUM_COLOURS}'></span>{as_html(name)}</li>"
        for index, name in enumerate(names)
    )
    return f"<ul class='legend'>{items}</ul>"


def _title(text: str) -> str:
    return f"<title>{as_html(text)}</title>"


def _number(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:,.4g}M"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.4g}"
