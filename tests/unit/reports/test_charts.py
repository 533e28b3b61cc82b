"""Charts: round ticks that cover the data, every point drawn where it belongs, valid XML."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remask.reports.charts import (
    HEIGHT,
    WIDTH,
    Bar,
    DotRow,
    Rule,
    Series,
    bar_chart,
    dot_chart,
    line_chart,
    thin,
    ticks,
)


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_cover_the_range_with_few_round_numbers(low: float, span: float) -> None:
    found = ticks(low, low + span)
    slack = 1e-6 * max(1, abs(low), span)
    assert found[0] <= low + slack
    assert found[-1] >= low + span - slack
    assert 2 <= len(found) <= 12
    assert found == sorted(found)


def test_lines_are_inside_the_frame_and_higher_is_higher() -> None:
    svg = line_chart([Series("a", [(0, 5.0), (10, 2.0), (20, float("nan"))])], x_name="step", y_name="loss")
    points = re.findall(r"<polyline[^>]*points='([^']*)'", svg)[0].split()
    xy = [tuple(map(float, p.split(","))) for p in points]
    assert len(xy) == 2
    assert xy[0][1] < xy[1][1]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in xy)


@pytest.mark.parametrize(
    "svg",
    [
        line_chart(
            [Series("<b>&", [(1, 1)]), Series("'", [(1, 2), (3, 4)])], x_name="<x>", y_name="y", rules=[Rule("&", 3)]
        ),
        line_chart([], x_name="x", y_name="y"),
        bar_chart([Bar("<a>", 0.5, 0.4, 0.6, (0.4, 0.6)), Bar("b", 0, 0, 0)], y_name="accuracy", highest=1.0),
    ],
)
def test_whatever_the_names_the_result_is_well_formed(svg: str) -> None:
    ElementTree.fromstring(f"<div>{svg}</div>")
    assert "<b>" not in svg


def test_thin_keeps_the_ends() -> None:
    points = [(float(i), float(i)) for i in range(1000)]
    few = thin(points, 50)
    assert len(few) == 50
    assert (few[0], few[-1]) == (points[0], points[-1])


def test_a_band_lies_around_its_line() -> None:
    series = Series("a", [(0, 5.0), (10, 2.0)], band=[(0, 4.0, 6.0), (10, 1.0, 9.0)])
    svg = line_chart([series], x_name="step", y_name="loss")
    edge = [tuple(map(float, p.split(","))) for p in re.findall(r"<polygon[^>]*points='([^']*)'", svg)[0].split()]
    assert len(edge) == 4
    assert all(0 <= y <= HEIGHT for _, y in edge), "the axis covers the band"
    ElementTree.fromstring(svg)


def test_dots_lie_where_their_numbers_say() -> None:
    rows = [
        DotRow("low <b>", [1.0, 2.0], 1.5, 1.0, 2.0, "1.5", "paper: 1st"),
        DotRow("high", [3.0], 3.0, 3.0, 3.0, "3"),
    ]
    html = dot_chart(rows, label="bits", rule=2.5)
    places = [float(x) for x in re.findall(r"class='dot' style='left:([0-9.]+)%", html)]
    assert places == sorted(places)
    assert len(places) == 3
    assert all(0 <= x <= 100 for x in places)
    rule = float(re.findall(r"class='dot-rule' style='left:([0-9.]+)%", html)[0])
    assert places[1] < rule < places[2]
    assert "<b>" not in html
    ElementTree.fromstring(html)
    assert "nothing to draw" in dot_chart([], label="bits")
