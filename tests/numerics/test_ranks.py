"""FAULTS.md row 8 and rule 5: two ranks equal one, with unequal numbers of masked positions, and a run may change them.

Dropout is on: its masks are keyed by (seed, step, example), so they do not depend on who computes a row.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUN = """
base: roberta_tiny
model: {num_layers: 2, hidden_size: 32, num_heads: 2, ffn_size: 64, max_length: 32}
data: {length: 32, masking: {count: independent}, batch: {num_rows: 8, micro_rows: 2}, evaluation: {num_rows: 16}}
train: {steps: 50, learning_rate: 2e-3, precision: fp32, save_every: 10, eval_every: 0, log_every: 1, clip: 1.0}
"""

END_AT_20 = """
import os
from remask.train.session import Session
plain = Session.save
def save(self, planned=True):
    plain(self, planned)
    if self.step == 20:
        os._exit(9)
Session.save = save
"""


def pretrain(folder: Path, prepared: Path, ranks: int, *words: str) -> subprocess.CompletedProcess[str]:
    file = folder.parent / "run.yaml"
    file.write_text(RUN)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={port}"]
    command = [sys.executable, *(torchrun if ranks > 1 else []), "-m", "remask", "pretrain", str(file)]
    return subprocess.run(
        [*command, "--data", str(prepared), "--out", str(folder), *words],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["train/loss"] for line in lines if "train/loss" in line]


def assert_close(found: list[float], wanted: list[float]) -> None:
    assert len(found) == len(wanted)
    assert max(abs(a - b) / b for a, b in zip(found, wanted, strict=True)) < 1e-5


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory, tiny_prepared: Path) -> Path:
    folder = tmp_path_factory.mktemp("one") / "out"
    done = pretrain(folder, tiny_prepared, 1)
    assert done.returncode == 0, done.stderr
    return folder


def test_two_ranks_equal_one(tmp_path: Path, tiny_prepared: Path, one: Path) -> None:
    done = pretrain(tmp_path / "two", tiny_prepared, 2, "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)  # one object: only the first rank speaks
    assert answer["step"] == 50
    assert_close(losses(tmp_path / "two"), losses(one))


def test_the_number_of_ranks_may_change_at_a_resume(tmp_path: Path, tiny_prepared: Path, one: Path) -> None:
    """From step 20 of a run with one rank, which ends there, with two ranks."""
    file = tmp_path / "run.yaml"
    file.write_text(RUN)
    words = ["remask", "pretrain", str(file), "--data", str(tiny_prepared), "--out", str(tmp_path / "out")]
    code = f"{END_AT_20}import sys\nsys.argv = {words!r}\nfrom remask.__main__ import main\nmain()"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ | {"OMP_NUM_THREADS": "1"}).returncode == 9
    done = pretrain(tmp_path / "out", tiny_prepared, 2)
    assert done.returncode == 0, done.stderr
    assert "going on after step 20" in done.stderr
    assert_close(losses(tmp_path / "out"), losses(one))


def test_ranks_that_do_not_divide_the_batch_are_refused(tmp_path: Path, tiny_prepared: Path) -> None:
    done = pretrain(tmp_path / "out", tiny_prepared, 1, "--dry-run", "--set", "data.batch.num_rows=9")
    assert done.returncode == 0, done.stderr
    done = pretrain(tmp_path / "out", tiny_prepared, 2, "--set", "data.batch.num_rows=9")
    assert done.returncode != 0
    assert "cannot be dealt evenly to 2 ranks" in done.stderr
