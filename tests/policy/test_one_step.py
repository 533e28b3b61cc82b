"""How many files a reader opens to follow one pretraining step: a promise to whoever reads the code."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import remask
from remask.progress import Progress
from remask.train.training import Training

MOST_FILES = 25


def test_a_pretraining_step_runs_through_few_files(
    tmp_path: Path, tiny_prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the log of one step to the log of the next."""
    package, files = str(Path(remask.__file__).parent), set[str]()
    plain = Training.log_if_due

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            files.add(frame.f_code.co_filename.removeprefix(package))

    def log_if_due(self: Training) -> None:
        sys.setprofile(note if self.step == 2 else None)
        plain(self)

    monkeypatch.setattr(Training, "log_if_due", log_if_due)
    settings = {
        "model.num_layers": 1, "model.hidden_size": 16, "model.num_heads": 2, "model.ffn_size": 32,
        "model.max_length": 32, "data.length": 32, "data.batch.num_rows": 4, "train.precision": "fp32",
        "train.eval_every": 0, "train.save_every": 0, "train.prefetch": False,
    }  # fmt: skip
    quiet = Progress(quiet=True)
    remask.pretrain(data=tiny_prepared, steps=4, out=tmp_path / "out", settings=settings, progress=quiet)
    assert 10 < len(files) <= MOST_FILES, " ".join(sorted(files))
