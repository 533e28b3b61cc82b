"""FAULTS.md row 10: a rank is killed or hangs under torchrun; the job starts again by itself, ends with the bits of one
that nothing happened to, and leaves no process behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .zygote import Zygote

RUN = """
base: roberta_tiny
model: {num_layers: 1, hidden_size: 16, num_heads: 2, ffn_size: 32, max_length: 32}
data: {length: 32, batch: {num_rows: 4, micro_rows: 2}, evaluation: {num_rows: 8}}
train:
  {steps: 16, learning_rate: 2e-3, precision: fp32, save_every: 5, eval_every: 0, log_every: 1, rank_timeout_seconds: 9}
"""
# Once each, rank 1 is killed or stops for good while the other waits for it in the middle of a step. Every process
# notes its number, for the test to look for survivors.
SCRIPT = """
import os, signal, sys
from pathlib import Path
from remask.train.session import Session

here = Path(sys.argv[0]).parent
(here / "processes").open("a").write(f"{os.getpid()}\\n")
plain = Session.apply
def apply(self, work):
    at = {7: "SIGKILL", 12: "SIGSTOP"}.get(self.step, "")
    if self.world.rank == 1 and at in os.environ["FAULTS"].split() and not (here / at).exists():
        (here / at).touch()
        os.kill(os.getpid(), getattr(signal, at))
    return plain(self, work)
Session.apply = apply

from remask.__main__ import main
main()
"""


# torchrun, with two seconds instead of its fixed thirty between asking a process to end and killing it.
TORCHRUN = """
import signal
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.run import main
LocalElasticAgent._shutdown.__defaults__ = (signal.SIGTERM, 2)
main()
"""


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["train/loss"] for line in lines if "train/loss" in line]


def last_checkpoint(folder: Path) -> Path:
    return max((folder / "checkpoints").glob("step-*"))


@pytest.mark.parametrize(("parallel", "faults"), [("ddp", ["SIGKILL", "SIGSTOP"]), ("fsdp", ["SIGSTOP"])])
def test_a_rank_that_is_killed_or_hangs_restarts_the_job(
    parallel: str, faults: list[str], tmp_path: Path, tiny_prepared: Path, zygote: Zygote
) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "script.py").write_text(SCRIPT)
    run = ["pretrain", str(tmp_path / "run.yaml"), "--data", str(tiny_prepared), "--set", f"train.parallel={parallel}"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = [sys.executable, "-c", TORCHRUN, "--nproc-per-node=2", f"--master-port={port}", "--max-restarts=2"]
    done = subprocess.run(
        [*torchrun, str(tmp_path / "script.py"), *run, "--out", str(tmp_path / "hurt")],
        capture_output=True,
        text=True,
        timeout=240,  # a job that hangs fails the test
        env=os.environ | {"OMP_NUM_THREADS": "1", "FAULTS": " ".join(faults)},
    )
    assert done.returncode == 0, done.stderr
    for fault, step, said in (("SIGKILL", 5, "is gone"), ("SIGSTOP", 10, "is silent")):
        assert (tmp_path / fault).exists() == (fault in faults)
        assert (f"going on after step {step} of" in done.stderr) == (fault in faults)
        assert (f"remask: another process of this job {said}" in done.stderr) == (fault in faults)
    assert "Traceback" not in done.stderr
    processes = (tmp_path / "processes").read_text().split()
    assert len(processes) == 2 + 2 * len(faults)
    assert not [number for number in processes if Path(f"/proc/{number}").exists()]

    whole = zygote.run_ranks(2, *run, "--out", tmp_path / "whole")
    assert [end.returncode for end in whole] == [0, 0], whole[0].stderr
    assert losses(tmp_path / "hurt") == losses(tmp_path / "whole")
    a, b = last_checkpoint(tmp_path / "hurt"), last_checkpoint(tmp_path / "whole")
    for path in sorted(b.glob("*.safetensors")):
        assert (a / path.name).read_bytes() == path.read_bytes(), path.name
