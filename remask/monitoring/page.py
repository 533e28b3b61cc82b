"""The page of a monitor: shares with their bands, alarms with their texts; written anew as windows close.

In: what the store knows. Out: one self-contained page, which the browser opens again while the monitor lives. Not here:
how a chart is drawn (reports/charts).
"""

from __future__ import annotations

from collections.abc import Sequence
from zoneinfo import ZoneInfo

from remask.monitoring.settings import MonitorRun
from remask.monitoring.store import Store
from remask.monitoring.times import shown
from remask.reports.charts import Mark, Series, line_chart
from remask.reports.page import Page, Tile
from remask.schema import Values

RELOAD_SECONDS = 10
MAX_GROUPS = 12  # charts on a page; groups with alarms first
MAX_WINDOWS = 400  # of a chart, the last ones
MAX_CLASSES = 4
_DAY = 86_400


def monitor_page(store: Store, title: str, result: Values, run: MonitorRun, zone: ZoneInfo, *, live: bool) -> str:
    alarms: Sequence[Values] = result["alarms"]
    page = Page(f"Monitor: {title}", "watching" if live else "ended, or stopped; the same command goes on")
    if live:
        page.reload_after(RELOAD_SECONDS)
    page.tiles(
        [
            Tile(f"{len(alarms):,}", "alarms"),
            Tile(f"{result['texts']:,}", "texts"),
            Tile(f"{result['windows']:,}", "windows closed"),
            Tile(f"{result['repeats']:,} / {result['late']:,} / {result['bad']:,}", "repeated / late / unusable"),
        ]
    )
    _add_alarms(page, alarms)
    with_alarms = [alarm["group"] for alarm in reversed(alarms)]
    groups = sorted(store.groups(), key=lambda group: (group not in with_alarms, group))
    page.heading("Shares")
    corrected = "corrected for the classifier's own mistakes" if run.alarm.correct else "as the classifier says"
    page.text(
        f"Shares of the classes by window, {corrected}. The band is where 95 % of the windows lie while nothing "
        f"changes; it is wide where texts are few. A vertical line is an alarm. Expected false alarms: "
        f"{run.alarm.rate:g} in 1,000 windows of a group. Times are of {run.zone}."
    )
    for group in groups[:MAX_GROUPS]:
        _add_chart(page, group, store.judged(group, MAX_WINDOWS), alarms, zone)
    if len(groups) > MAX_GROUPS:
        page.text(f"{len(groups) - MAX_GROUPS:,} further groups are in windows.jsonl.")
    return page.html()


def _add_alarms(page: Page, alarms: Sequence[Values]) -> None:
    page.heading("Alarms")
    if not alarms:
        page.text("None so far.")
        return
    rows = [
        [
            alarm["group"] or "all texts", alarm["class"], _clock(alarm["onset"]), _clock(alarm["raised"]),
            f"{alarm['before']:.0%} → {alarm['after']:.0%}",
        ]
        for alarm in reversed(alarms)
    ]  # fmt: skip
    page.table(["group", "class", "onset", "raised", "share"], rows)
    for alarm in reversed(alarms[-MAX_GROUPS:]):
        group = alarm["group"] or "all texts"
        onset = _clock(alarm["onset"])
        page.text(f"{group}, {alarm['class']}, since {onset}: texts that tell most ({alarm['examples_of']})")
        page.lines([f"{_clock(text['time'])}  {text['text']}" for text in alarm["examples"]])


def _clock(stamp: str) -> str:
    """2015-02-22T10:07-05:00 as a person reads it; the page names the zone once."""
    return stamp[:16].replace("T", " ")


def _add_chart(page: Page, group: str, windows: Sequence[Values], alarms: Sequence[Values], zone: ZoneInfo) -> None:
    if not windows:
        return
    first = windows[0]["at"]
    series = []
    for name in list(windows[0]["shares"])[:MAX_CLASSES]:
        points = [((window["at"] - first) / _DAY, window["shares"][name]) for window in windows]
        band = [
            ((window["at"] - first) / _DAY, *window["bands"][name]) for window in windows if window["bands"] is not None
        ]
        series.append(Series(name, points, band=band))
    own = [alarm for alarm in alarms if alarm["group"] == group]
    marks = [Mark(f"alarm: {a['class']} since {_clock(a['onset'])}", (a["at"] - first) / _DAY) for a in own]
    days = f"days since {_clock(shown(first, zone))}"
    texts = sum(window["texts"] for window in windows)
    chart = line_chart(series, x_name=days, y_name="share", marks=marks)
    page.figure(chart, f"{group or 'all texts'}: {texts:,} texts in {len(windows):,} windows, {len(own)} alarms")
