"""Reading finished or running run folders: metrics, config, machine. Damaged last lines of a log are passed over."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from remask.errors import DataError, MissingInputError


@dataclass(frozen=True)
class RunFolder:
    """What a run left behind: its name, config as plain values, and the rows of metrics.jsonl."""

    folder: Path
    config: dict[str, Any]
    facts: dict[str, Any]
    rows: list[dict[str, Any]]

    def curve(self, key: str, x: str = "step") -> list[tuple[float, float]]:
        return [(float(row[x]), float(row[key])) for row in self.rows if row.get(key) is not None and x in row]

    def last(self, key: str) -> float | None:
        values = self.curve(key)
        return values[-1][1] if values else None


def read_run(folder: Path) -> RunFolder:
    """A folder with metrics.jsonl; run.yaml and run.json are shown where they are."""
    if not folder.is_dir():
        raise MissingInputError(f"{folder}: no such run folder")
    metrics = folder / "metrics.jsonl"
    if not metrics.is_file():
        raise DataError(f"{folder}: has no metrics.jsonl: not a training run, or not started yet")
    config, facts = folder / "run.yaml", folder / "run.json"
    return RunFolder(
        folder,
        yaml.safe_load(config.read_text()) if config.is_file() else {},
        json.loads(facts.read_text()) if facts.is_file() else {},
        _rows(metrics),
    )


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue  # a run that is being written to, or was killed while writing its last line
    return [row for row in rows if isinstance(row, dict)]
