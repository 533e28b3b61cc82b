"""The time of a text as a moment: seconds since 1970 in UTC, from what a cell holds.

In: a cell and how to read it. Out: seconds, or a BadTime with what is wrong. Known by their form: ISO 8601 (2015-02-24
11:35, with T, fractions, Z or an offset), RFC 2822 (Tue, 24 Feb 2015 11:35:00 -0800), Twitter's (Tue Feb 24 11:35:48
+0000 2015), numbers (seconds, milli-, micro- or nanoseconds since 1970), and dates with slashes where only one order of
day and month is possible. A time without a zone is one of the zone given. Not here: windows.
"""

from __future__ import annotations

import email.utils
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

_NUMBER = re.compile(r"\d{9,20}(?:\.\d+)?\Z")
_SLASHES = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})(?:[ T,]+(\d{1,2}):(\d{2})(?::(\d{2}))?\s*([AaPp][Mm])?)?\Z")
_TWITTER = re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} [\d:]{8} [+-]\d{4} \d{4}\Z")
_FIRST_YEAR, _LAST_YEAR = 1970, 2200
# Digits of seconds since 1970 -> what they must be divided by: 1e9 to 1e11 seconds are the years 2001 to 5138.
_DIVISORS = ((11, 1), (14, 1e3), (17, 1e6), (20, 1e9))


class BadTime(Exception):
    """A cell that holds no time."""


@dataclass(frozen=True)
class Clock:
    """Reads times. `format`: of strptime, where the form does not tell."""

    zone: ZoneInfo
    format: str | None = None

    def read(self, cell: object) -> float:
        moment, _ = self.read_with_zone(cell)
        return moment

    def read_with_zone(self, cell: object) -> tuple[float, bool]:
        """(seconds since 1970, whether the cell told its zone)."""
        if cell is None or (isinstance(cell, str) and not cell.strip()):
            raise BadTime("no time")
        when = self._datetime(cell)
        has_zone = when.tzinfo is not None
        moment = (when if has_zone else when.replace(tzinfo=self.zone)).timestamp()
        year = datetime.fromtimestamp(moment, UTC).year if abs(moment) < 1e11 else 0
        if not _FIRST_YEAR <= year <= _LAST_YEAR:
            raise BadTime(f"{cell!r} is outside the years {_FIRST_YEAR} to {_LAST_YEAR}")
        return moment, has_zone

    def _datetime(self, cell: object) -> datetime:
        if isinstance(cell, datetime):
            return cell
        if isinstance(cell, bool) or not isinstance(cell, str | int | float):
            raise BadTime(f"{cell!r} is no time")
        text = str(cell).strip()
        if self.format is not None:
            try:
                return datetime.strptime(text, self.format)
            except ValueError:
                raise BadTime(f"{text!r} is not written as {self.format} (time_format)") from None
        if _NUMBER.match(text):
            digits = len(text.partition(".")[0])
            divisor = next(divisor for most, divisor in _DIVISORS if digits <= most)
            return datetime.fromtimestamp(float(text) / divisor, UTC)
        if slashes := _SLASHES.match(text):
            return _with_slashes(text, slashes)
        if _TWITTER.match(text):
            return datetime.strptime(text, "%a %b %d %H:%M:%S %z %Y")
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            pass
        try:
            return email.utils.parsedate_to_datetime(text)
        except (ValueError, IndexError, TypeError):
            raise BadTime(f"{text!r} is no time that is known by its form; give --time-format") from None


def _with_slashes(text: str, found: re.Match[str]) -> datetime:
    first, second, year = (int(found[i]) for i in (1, 2, 3))
    if first <= 12 and second <= 12 and first != second:
        raise BadTime(f"{text!r} may be day/month or month/day: give --time-format, such as '%m/%d/%Y %H:%M'")
    day, month = (first, second) if first > 12 else (second, first)
    hour, minute, second_of_minute = (int(found[i] or 0) for i in (4, 5, 6))
    if found[7]:
        if not 1 <= hour <= 12:
            raise BadTime(f"{text!r} has no such hour")
        hour = hour % 12 + (12 if found[7].lower() == "pm" else 0)
    try:
        return datetime(year, month, day, hour, minute, second_of_minute)
    except ValueError as error:
        raise BadTime(f"{text!r} is no time: {error}") from None


def window_start(moment: float, length: float, zone: ZoneInfo) -> int:
    """Where the window of a moment begins, counted from midnight by the clock of the zone."""
    local = datetime.fromtimestamp(moment, zone)
    offset = local.utcoffset()
    shift = 0.0 if offset is None else offset.total_seconds()
    return int((moment + shift) // length * length - shift)


def shown(moment: float, zone: ZoneInfo) -> str:
    return datetime.fromtimestamp(moment, zone).isoformat(timespec="minutes")
