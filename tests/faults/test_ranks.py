"""FAULTS.md row 10: a rank is killed under torchrun; the job starts again by itself and ends with the same losses."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

RUN = """
base: roberta_tiny
model: {num_layers: 1, hidden_size: 16, num_heads: 2, ffn_size: 32, max_length: 32}
data: {length: 32, batch: {num_rows: 4, micro_rows: 2}, evaluation: {num_rows: 8}}
train: {steps: 16, learning_rate: 2e-3, precision: fp32, save_every: 5, eval_every: 0, log_every: 1}
"""
SCRIPT = """
import os, signal, sys
from pathlib import Path
from remask.train.session import Session

plain = Session.judge
def judge(self, step):
    marker = Path(sys.argv[0]).with_name("killed")
    if self.step == 12 and self.world.rank == 1 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, step)
Session.judge = judge

from remask.__main__ import main
main()
"""


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["train/loss"] for line in lines if "train/loss" in line]


def test_a_killed_rank_restarts_the_job_from_the_last_checkpoint(tmp_path: Path, tiny_prepared: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "script.py").write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def torchrun(out: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"]
        words = ["pretrain", str(tmp_path / "run.yaml"), "--data", str(tiny_prepared), "--out", str(tmp_path / out)]
        return subprocess.run(
            [*command, f"--master-port={port}", str(tmp_path / "script.py"), *words],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    done = torchrun("killed-run")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed").exists()
    assert "going on after step 10" in done.stderr
    assert "remask: another process of this job is gone" in done.stderr
    assert "Traceback" not in done.stderr
    whole = torchrun("whole")  # the marker is there: nobody is killed
    assert whole.returncode == 0, whole.stderr
    assert losses(tmp_path / "killed-run") == losses(tmp_path / "whole")
    a, b = (max((tmp_path / out / "checkpoints").glob("step-*")) for out in ("killed-run", "whole"))
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()
