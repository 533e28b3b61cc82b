"""How often a fault is tried: a few times with every change, or FAULTS.md's full count where `make soak` names it.

ROWS is a list of rows and ranges of rows, such as 3,5,27-40, or all.
"""

from __future__ import annotations

import os


def is_full(row: int) -> bool:
    for part in os.environ.get("REMASK_SOAK", "").split(","):
        first, _, last = part.partition("-")
        if part == "all" or (first.isdigit() and int(first) <= row <= int(last or first)):
            return True
    return False


def tries(row: int, each_change: int, full: int) -> int:
    return full if is_full(row) else each_change
