"""Reading finished or running run folders: metrics, config, machine, and what runs must share to be compared.

Damaged last lines of a log are passed over. What cannot be found out (a prepared folder that is gone, say) is None.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml

from remask.artifacts import MANIFEST, sha256_of
from remask.errors import DataError, MissingInputError
from remask.schema import Json


@dataclass(frozen=True)
class RunFolder:
    """What a run left behind: its name, config as plain values, and the rows of metrics.jsonl."""

    folder: Path
    config: Json
    facts: Json
    rows: list[Json]

    def curve(self, key: str, x: str = "step") -> list[tuple[float, float]]:
        return [(float(row[x]), float(row[key])) for row in self.rows if row.get(key) is not None and x in row]

    def last(self, key: str) -> float | None:
        values = self.curve(key)
        return values[-1][1] if values else None

    @property
    def masked_loss_key(self) -> str:
        """The training loss of masked tokens alone: the whole one, unless another loss is added to it."""
        return "train/loss_mlm" if self.curve("train/loss_mlm") else "train/loss"

    @property
    def num_steps(self) -> int:
        return max((int(row["step"]) for row in self.rows if "step" in row), default=0)

    @property
    def prepared(self) -> Path | None:
        """The data it was trained on, where it still is."""
        path = self.config.get("prepared")
        return Path(path) if path and (Path(path) / MANIFEST).is_file() else None

    @cached_property
    def vocabulary(self) -> str | None:
        """A mark of its vocabulary, the same for the same one."""
        places = sorted((self.folder / "checkpoints").glob("step-*"), reverse=True)
        for place in [*places, *([self.prepared] if self.prepared else [])]:
            if (file := place / "tokenizer" / "tokenizer.json").is_file():
                return sha256_of(file)
        return None

    @cached_property
    def heldout_text(self) -> str | None:
        """A mark of the documents, training and held out, before they became tokens."""
        if self.prepared is None:
            return None
        return json.loads((self.prepared / MANIFEST).read_bytes()).get("inputs", {}).get("documents")

    @property
    def evaluation(self) -> Json:
        """How large its held-out measure is: rows, their length, the share that is predicted."""
        data = self.config.get("data") or {}
        settings = dict(data.get("evaluation") or {})
        if data.get("length"):
            settings["length"] = min(settings.get("length") or data["length"], data["length"])
        return {key: settings[key] for key in ("num_rows", "length", "rate") if key in settings}


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


def _rows(path: Path) -> list[Json]:
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue  # a run that is being written to, or was killed while writing its last line
    return [row for row in rows if isinstance(row, dict)]
