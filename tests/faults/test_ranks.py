"""FAULTS.md rows 10 and 31: a rank is killed or hangs under torchrun; the job starts again by itself, ends with the
bits of one that nothing happened to, and leaves no process behind. A job that nothing happens to ends with 0."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .soak import tries
from .zygote import Zygote

RUN = """
base: roberta_tiny
model: {num_layers: 1, hidden_size: 16, num_heads: 2, ffn_size: 32, max_length: 32}
data: {length: 32, batch: {num_rows: 4, micro_rows: 2}, evaluation: {num_rows: 8}}
train:
  {steps: 16, learning_rate: 2e-3, precision: fp32, save_every: 5, eval_every: 0, log_every: 1, rank_timeout_seconds: 9}
"""
# Once each, rank 1 is killed or stops for good while the other waits for it: in the middle of a step, or (SAVE) of a
# checkpoint that both write. Every process notes its number, for the test to look for survivors.
SCRIPT = """
import os, signal, sys
from pathlib import Path
from remask.train import slices
from remask.train.session import Session

here = Path(sys.argv[0]).parent
(here / "processes").open("a").write(f"{os.getpid()}\\n")
plain = Session.apply
def hurt(rank, fault):
    if rank == 1 and fault in os.environ["FAULTS"].split() and not (here / fault).exists():
        (here / fault).touch()
        os.kill(os.getpid(), signal.SIGKILL if fault == "SIGKILL" else signal.SIGSTOP)
def apply(self, work):
    hurt(self.world.rank, {7: "SIGKILL", 12: "SIGSTOP"}.get(self.step, ""))
    return plain(self, work)
Session.apply = apply
saves = []
def write_rank(folder, rank, kinds, write=slices.write_rank):
    write(folder, rank, kinds)
    saves.append(folder)
    if len(saves) == 3:  # of steps 0, 5 and 10
        hurt(rank, "SAVE")
slices.write_rank = write_rank

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


@pytest.mark.parametrize(("parallel", "faults"), [("ddp", ["SIGKILL", "SIGSTOP"]), ("fsdp", ["SAVE"])])
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
    for fault, step, said in (("SIGKILL", 5, "is gone"), ("SIGSTOP", 10, "is silent"), ("SAVE", 5, "is silent")):
        assert (tmp_path / fault).exists() == (fault in faults)
        if fault in faults:
            assert f"going on after step {step} of" in done.stderr
            assert f"remask: another process of this job {said}" in done.stderr
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


# A rank that says at its end which threads are still there, and that aborts where Python is taken apart, as a thread of
# the group did that was in the middle of something.
ENDS = """
import atexit, os, sys
from remask.__main__ import main

def show():
    names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
    print("threads at the end:", *sorted(names), file=sys.stderr)
atexit.register(show)

class Late:
    def __del__(self, abort=os.abort):
        abort()
late = Late()
main()
"""


@pytest.mark.timeout(7200)
def test_ranks_end_with_zero_whatever_threads_are_left(tmp_path: Path, tiny_prepared: Path) -> None:
    """A thread of the group that still let go of a tensor while Python ended aborted the process, now and then."""
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "script.py").write_text(ENDS)
    for number in range(tries(31, 2, 200)):
        run = [
            "pretrain",
            str(tmp_path / "run.yaml"),
            "--data",
            str(tiny_prepared),
            "--out",
            str(tmp_path / f"{number}"),
        ]
        run += ["--set", f"train.parallel={'ddp' if number % 2 == 0 else 'fsdp'}", "--set", "train.steps=3"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
        environ = os.environ | world | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        ranks = [
            subprocess.Popen(
                [sys.executable, str(tmp_path / "script.py"), *run],
                stderr=subprocess.PIPE, text=True, env=environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(2)
        ]  # fmt: skip
        said = [rank.communicate(timeout=240)[1] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], said
        for text in said:
            (threads,) = [line for line in text.splitlines() if line.startswith("threads at the end:")]
            assert ("gloo" in threads) <= (number % 2 == 1)  # only what FSDP keeps outlives the group
