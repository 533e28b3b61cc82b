"""metrics.jsonl: one JSON object a line, cut back to the restored checkpoint when a run goes on.

In: numbers by name and step. Out: the file that curves, reports and trackers are made from; it is the truth about a
run. A run that was killed and went on has the same lines as one that was not, wall-clock fields (`time`, `perf/...`)
aside. Not here: what a person sees (progress).
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from remask.artifacts import output_errors
from remask.schema import Values


class MetricsLog:
    """The open file of one run."""

    def __init__(self, path: Path, size: int) -> None:
        """Go on where the file had `size` bytes: what came after the restored checkpoint did not happen."""
        self.path = path
        with output_errors(path):
            self._file = path.open("ab")
            self.cut_back(size)

    @property
    def size(self) -> int:
        return self._file.tell()

    def write(self, step: int, seconds: float, values: Values) -> None:
        line = {"step": step, "time": round(seconds, 3), **{name: plain(value) for name, value in values.items()}}
        with output_errors(self.path):
            self._file.write(json.dumps(line, allow_nan=False, ensure_ascii=False).encode() + b"\n")
            self._file.flush()

    def sync(self) -> None:
        """On the disk before the checkpoint that vouches for these lines."""
        with output_errors(self.path):
            os.fsync(self._file.fileno())

    def cut_back(self, size: int) -> None:
        with output_errors(self.path):
            self._file.truncate(min(size, self._file.seek(0, os.SEEK_END)))
            self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        self._file.close()


def plain(value: Any) -> Any:
    """JSON has no NaN: a number that is none is written as text, so that no reader chokes on the line."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
