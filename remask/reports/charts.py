"""Small charts for the report: lines with bands, bars with spread, rows of dots. No script, light and dark.

In: plain numbers. Out: an `<svg>` string, for dots plain HTML (its text keeps its size on a phone). Colours come from
the page's CSS variables (`--series-0` ...), so that one drawing serves both colour schemes; every point and bar has a
title, which browsers show and screen readers read. Not here: reading runs, or any text of the report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from remask.visible import as_html

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 74, 24, 14, 44
NUM_COLOURS = 12


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
    """One bar: its value and the lowest and highest of the runs behind it."""

    name: str
    value: float
    low: float
    high: float
    samples: Sequence[float] = field(default_factory=tuple)


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


def dot_chart(rows: Sequence[DotRow], *, label: str, rule: float | None = None) -> str:
    """Rows of dots over one axis. `rule`: a vertical line that rows are read against."""
    ends = [x for row in rows for x in (*row.dots, row.middle, row.low, row.high)] + ([] if rule is None else [rule])
    ends = [x for x in ends if math.isfinite(x)]
    if not ends:
        return "<p class='soft'>nothing to draw yet</p>"
    marks = ticks(min(ends), max(ends), 4)
    to_x = _scale(min(marks[0], min(ends)), max(marks[-1], max(ends)), 1.5, 98.5)
    across = "" if rule is None else f"<i class='dot-rule' style='left:{to_x(rule):.2f}%'></i>"
    parts = []
    for row in rows:
        left, right = to_x(row.low), to_x(row.high)
        title = as_html(f"{row.name}: {row.value}")
        dots = "".join(
            f"<i class='dot' style='left:{to_x(x):.2f}%' title='{as_html(_number(x))}'></i>" for x in row.dots
        )
        badge = f" <span class='badge'>{as_html(row.badge)}</span>" if row.badge else ""
        line = f"<i class='dot-line' style='left:{left:.2f}%;width:{max(0.0, right - left):.2f}%'></i>"
        middle = f"<i class='dot-middle' style='left:{to_x(row.middle):.2f}%'></i>"
        quiet = " quiet" if row.is_quiet else ""
        parts.append(
            f"<div class='dot-row{quiet}'><div class='dot-name'>{as_html(row.name)}{badge}</div>"
            f"<div class='dot-track' title='{title}'>{across}{line}{dots}{middle}</div>"
            f"<div class='dot-value'>{as_html(row.value)}</div></div>"
        )
    numbers = "".join(f"<span style='left:{to_x(t):.2f}%'>{as_html(_number(t))}</span>" for t in marks)
    axis = f"<div class='dot-row'><div></div><div class='dot-axis'>{numbers}</div><div></div></div>"
    return f"<div class='dots' role='group' aria-label='{as_html(label)}'>{''.join(parts)}{axis}</div>"


def line_chart(
    series: Sequence[Series], *, x_name: str, y_name: str, rules: Sequence[Rule] = (), marks: Sequence[Mark] = ()
) -> str:
    """Lines over a common x axis. Points that are not finite are left out."""
    clean = [replace(s, points=[p for p in s.points if all(map(math.isfinite, p))]) for s in series]
    clean = [s for s in clean if s.points]
    if not clean:
        return _frame("<text x='50%' y='50%' text-anchor='middle'>nothing to draw yet</text>", "empty chart")
    xs = [x for s in clean for x, _ in s.points]
    ys = [y for s in clean for _, y in s.points] + [rule.y for rule in rules]
    ys += [y for s in clean for _, *ends in s.band for y in ends if math.isfinite(y)]
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    to_x = _scale(min(x_ticks[0], min(xs)), max(x_ticks[-1], max(xs)), LEFT, WIDTH - RIGHT)
    to_y = _scale(min(y_ticks[0], min(ys)), max(y_ticks[-1], max(ys)), HEIGHT - BOTTOM, TOP)
    parts = _axes([(to_x(t), _number(t)) for t in x_ticks], [(to_y(t), _number(t)) for t in y_ticks], x_name, y_name)
    for rule in rules:
        y = to_y(rule.y)
        parts.append(f"<line class='rule' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}'/>")
        label = f"{rule.name} {_number(rule.y)}"
        parts.append(f"<text class='rule-name' x='{WIDTH - RIGHT - 4}' y='{y - 5:.1f}'>{as_html(label)}</text>")
    for mark in marks:
        if min(xs) <= mark.x <= max(xs):
            x = to_x(mark.x)
            line = f"<line class='mark' x1='{x:.1f}' x2='{x:.1f}' y1='{TOP}' y2='{HEIGHT - BOTTOM}'>"
            parts.append(f"{line}{_title(mark.name)}</line>")
    for index, s in enumerate(clean):
        colour = f"style='stroke:var(--series-{index % NUM_COLOURS})'"
        if s.band:
            edge = [(x, low) for x, low, _ in s.band] + [(x, high) for x, _, high in reversed(s.band)]
            around = " ".join(f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in edge)
            parts.append(f"<polygon class='band' style='fill:var(--series-{index % NUM_COLOURS})' points='{around}'/>")
        path = " ".join(f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in thin(s.points))
        parts.append(f"<polyline class='line{' faint' if s.faint else ''}' {colour} points='{path}'/>")
        if not s.faint:
            fill = f"style='fill:var(--series-{index % NUM_COLOURS})'"
            for x, y in thin(s.points, 60):
                title = f"{s.name}: {_number(y)} at {_number(x)}"
                parts.append(f"<circle r='2.6' {fill} cx='{to_x(x):.1f}' cy='{to_y(y):.1f}'>{_title(title)}</circle>")
    return _frame("".join(parts), f"{y_name} over {x_name}") + _legend([s.name for s in clean])


def bar_chart(bars: Sequence[Bar], *, y_name: str, highest: float | None = None) -> str:
    """Bars with a whisker from the lowest to the highest run and a dot for each."""
    top = highest if highest is not None else max([bar.high for bar in bars] + [0.0]) or 1.0
    y_ticks = ticks(0.0, top)
    to_y = _scale(0.0, y_ticks[-1], HEIGHT - BOTTOM, TOP)
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(bars))
    centres = [LEFT + slot * (index + 0.5) for index in range(len(bars))]
    names = [(centre, bar.name) for centre, bar in zip(centres, bars, strict=True)]
    parts = _axes(names, [(to_y(t), _number(t)) for t in y_ticks], "", y_name)
    width = min(90.0, slot * 0.55)
    for index, (bar, centre) in enumerate(zip(bars, centres, strict=True)):
        y, foot = to_y(bar.value), to_y(0.0)
        colour = f"style='fill:var(--series-{index % NUM_COLOURS})'"
        title = _title(f"{bar.name}: {_number(bar.value)} ({_number(bar.low)} to {_number(bar.high)})")
        box = f"x='{centre - width / 2:.1f}' y='{y:.1f}' width='{width:.1f}' height='{max(0.0, foot - y):.1f}'"
        parts.append(f"<rect class='bar' rx='3' {colour} {box}>{title}</rect>")
        parts.append(
            f"<line class='whisker' x1='{centre:.1f}' x2='{centre:.1f}' y1='{to_y(bar.low):.1f}' "
            f"y2='{to_y(bar.high):.1f}'/>"
        )
        parts += [f"<circle class='sample' r='3' cx='{centre:.1f}' cy='{to_y(v):.1f}'/>" for v in bar.samples]
        parts.append(
            f"<text class='value' x='{centre + width / 2 + 6:.1f}' y='{y + 4:.1f}'>{_number(bar.value)}</text>"
        )
    return _frame("".join(parts), f"bars of {y_name}")


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


def _scale(low: float, high: float, start: float, end: float):
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _axes(xs: Sequence[tuple[float, str]], ys: Sequence[tuple[float, str]], x_name: str, y_name: str) -> list[str]:
    foot = HEIGHT - BOTTOM
    parts = []
    for y, label in ys:
        parts.append(f"<line class='grid' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}'/>")
        parts.append(f"<text class='tick y' x='{LEFT - 7}' y='{y + 4:.1f}'>{as_html(label)}</text>")
    for x, label in xs:
        parts.append(f"<text class='tick x' x='{x:.1f}' y='{foot + 17}'>{as_html(label)}</text>")
    parts.append(f"<text class='axis x' x='{(LEFT + WIDTH - RIGHT) / 2}' y='{HEIGHT - 6}'>{as_html(x_name)}</text>")
    middle = (TOP + foot) / 2
    parts.append(
        f"<text class='axis y' transform='rotate(-90 13 {middle})' x='13' y='{middle}'>{as_html(y_name)}</text>"
    )
    return parts


def _frame(inside: str, label: str) -> str:
    return f"<svg class='chart' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{as_html(label)}'>{inside}</svg>"


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
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:.3g}" if abs(value) < 1 or abs(value) >= 1e6 else f"{value:.4g}"
