"""How often a fault is tried: a few times with every change, or FAULTS.md's full count where `make soak` names it."""

from __future__ import annotations

import os


def tries(row: int, each_change: int, full: int) -> int:
    rows = os.environ.get("REMASK_SOAK", "").split(",")
    return full if "all" in rows or str(row) in rows else each_change
