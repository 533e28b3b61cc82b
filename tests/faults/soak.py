"""How often a fault is tried: a few times with every change, or FAULTS.md's full count where `make soak` names it.

ROWS is a list of rows and ranges of rows, such as 3,5,27-40, or all. 31=50 tries row 31 fifty times.
"""

from __future__ import annotations

import os


def _asked(row: int) -> int | None:
    """How often the row is asked for: None is not at all, 0 its full count."""
    for part in os.environ.get("REMASK_SOAK", "").split(","):
        rows, _, count = part.partition("=")
        first, _, last = rows.partition("-")
        if rows == "all" or (first.isdigit() and int(first) <= row <= int(last or first)):
            return int(count or 0)
    return None


def is_full(row: int) -> bool:
    return _asked(row) is not None


def tries(row: int, each_change: int, full: int) -> int:
    asked = _asked(row)
    return each_change if asked is None else asked or full
