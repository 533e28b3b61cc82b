"""Clock times in the forms that people write, and those that only look like times."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from remask.monitoring.times import BadTime, Clock, window_start

MOMENT = datetime(2015, 2, 24, 19, 35, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "cell",
    [
        "2015-02-24T19:35:00Z",
        "2015-02-24 19:35",
        "2015-02-24T11:35:00.000-08:00",
        "2/24/2015 19:35",
        "24/2/2015 19:35",
        "2/24/2015 7:35 PM",
        "Tue, 24 Feb 2015 11:35:00 -0800",
        "Tue Feb 24 19:35:00 +0000 2015",
        "1424806500",
        1424806500,
        1424806500.0,
        "1424806500000",
        1424806500000000,
        datetime(2015, 2, 24, 19, 35),
    ],
)
def test_times_are_known_by_their_form(cell: object) -> None:
    assert Clock(ZoneInfo("UTC")).read(cell) == MOMENT


def test_a_missing_zone_is_the_one_given_and_a_told_one_holds() -> None:
    clock = Clock(ZoneInfo("America/New_York"))
    assert clock.read_with_zone("2015-02-24 14:35") == (MOMENT, False)
    assert clock.read_with_zone("2015-02-24 19:35Z") == (MOMENT, True)


@pytest.mark.parametrize(
    "cell, reason",
    [
        ("3/4/2015 10:00", "day/month or month/day"),
        ("31/31/2015 10:00", "no time"),
        ("", "no time"),
        (None, "no time"),
        ("soon", "--time-format"),
        ("1850-01-01", "outside the years"),
        (True, "no time"),
        ("2/24/2015 19:35 PM", "no such hour"),
        ("12", "--time-format"),
    ],
)
def test_what_is_no_time_says_why(cell: object, reason: str) -> None:
    with pytest.raises(BadTime, match=reason):
        Clock(ZoneInfo("UTC")).read(cell)


def test_a_given_format_settles_what_is_ambiguous() -> None:
    clock = Clock(ZoneInfo("UTC"), "%d/%m/%Y %H:%M")
    assert clock.read("3/4/2015 10:00") == datetime(2015, 4, 3, 10, tzinfo=UTC).timestamp()
    with pytest.raises(BadTime, match="time_format"):
        clock.read("2015-04-03")


def test_windows_begin_by_the_clock_of_the_zone() -> None:
    zone = ZoneInfo("Asia/Kolkata")  # half an hour off
    start = window_start(MOMENT, 86_400, zone)
    assert datetime.fromtimestamp(start, zone).isoformat() == "2015-02-25T00:00:00+05:30"
    assert window_start(start, 3600, zone) == start
