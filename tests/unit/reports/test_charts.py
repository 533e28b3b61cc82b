"""Charts: round ticks that cover the data, every point drawn where it belongs, valid XML."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remask.reports.charts import (
    HEIGHT,
    NUM_COLOURS,
    WIDTH,
    Bar,
    DotRow,
    Point,
    Rule,
    Series,
    bar_chart,
    candidate_bars,
    dot_chart,
    heat_map,
    line_chart,
    point_map,
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
        bar_chart([Bar("<a>", 0.5, 0.4, 0.6, (0.4, 0.6)), Bar("b", 0, 0, 0)], label="accuracy"),
        heat_map([[3, 1], [0, 2]], ["<a>", "'b'"], row_name="true", column_name="said"),
        heat_map([[int(i == j) for i in range(30)] for j in range(30)], ["<b>"] * 30, row_name="t", column_name="s"),
        point_map([Point(0, 1, "<a>", "<b>"), Point(2, 1, "b", "'")], label="<map>"),
        candidate_bars([("<b>", 0.5), ("", 0.01)], "<b>", "<answers>"),
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
    ElementTree.fromstring(f"<div>{svg}</div>")


def test_a_bar_is_as_long_as_its_value_says() -> None:
    html = bar_chart([Bar("a", 0.01), Bar("b", 0.5, 0.4, 0.6, (0.4, 0.6), mark=0.75)], label="x")
    assert re.findall(r"class='bar' style='width:([0-9.]+)%", html) == ["1.00", "50.00"]
    assert re.findall(r"class='sample' style='left:([0-9.]+)%", html) == ["40.00", "60.00"]
    assert re.findall(r"class='dot-middle' style='left:([0-9.]+)%", html) == ["75.00"]
    shown = candidate_bars([("house", 0.011), ("tree", 0.4)], "House", "answers")
    assert re.findall(r"class='bar' style='width:([0-9.]+)%", shown) == ["1.10", "40.00"]
    assert shown.count("dot-row right") == 1
    assert "1.1%" in shown


def test_a_heat_map_shades_by_the_share_of_the_row() -> None:
    html = heat_map([[3, 1], [0, 20]], ["a", "b"], row_name="true", column_name="said")
    assert re.findall(r"--share:(\d+)%", html) == ["75", "25", "0", "100"]
    assert "true a, said b: 1 of 4" in html
    many = heat_map([[int(i == j) for i in range(30)] for j in range(30)], ["x"] * 30, row_name="t", column_name="s")
    assert many.count("h1v1h-1z") == 30, "only cells with something in them are drawn"


def test_a_map_puts_points_where_they_lie_and_has_a_colour_for_each_group() -> None:
    points = [Point(float(i), -float(i), f"group {i % 20}", "text") for i in range(100)]
    html = point_map(points, label="map")
    places = [tuple(map(float, p)) for p in re.findall(r"d='M([0-9.]+) ([0-9.]+)h0'", html)]
    assert [y for _, y in sorted(places)] == sorted(y for _, y in places), "here further right is lower"
    assert "8 smaller groups are grey" in html
    assert html.count("var(--soft)") == 8 * 5
    assert html.count("class='swatch") == NUM_COLOURS


def test_an_axis_may_have_words() -> None:
    points = [(0, 0.1), (1, 0.2), (2, 0.5)]
    html = line_chart([Series("a", points)], x_name="n", y_name="y", x_marks={0: "none", 1: "8", 2: "all"})
    marks = re.findall(r"class='tick x(?: odd)?' style='left:([0-9.]+)%'>([^<]*)<", html)
    assert marks == [("0.00", "none"), ("50.00", "8"), ("100.00", "all")]


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
