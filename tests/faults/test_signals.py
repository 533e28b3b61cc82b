"""FAULTS.md row 9: SIGTERM and SIGINT at any moment of a run, and a second one."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest

from .soak import tries
from .zygote import Zygote

RUN = """
base: roberta_tiny
model: {num_layers: 2, hidden_size: 32, num_heads: 2, ffn_size: 64, max_length: 32}
data: {length: 32, batch: {num_rows: 8, micro_rows: 2}, evaluation: {num_rows: 64}}
train: {steps: 100000, learning_rate: 1e-3, precision: fp32, save_every: 20, eval_every: 9, log_every: 1}
"""


@pytest.fixture
def words(tmp_path: Path, tiny_prepared: Path) -> tuple[str | Path, ...]:
    (tmp_path / "run.yaml").write_text(RUN)
    return "pretrain", tmp_path / "run.yaml", "--data", tiny_prepared, "--out", tmp_path / "out"


def assert_last_step_is_saved(folder: Path) -> int:
    """The newest checkpoint is of the last step in the log, which has a line for every step."""
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    newest = max((folder / "checkpoints").glob("step-*"))
    assert newest.name == f"step-{last:09d}"
    return last


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("prefetch", ["true", "false"])
def test_a_signal_at_any_moment_saves_and_exits_75(
    tmp_path: Path, words: tuple[str | Path, ...], zygote: Zygote, prefetch: str
) -> None:
    """Again and again in one folder, so that starts, steps, evaluations, saves and resumes are all hit."""
    draw = random.Random(int(prefetch == "true"))
    metrics = tmp_path / "out" / "metrics.jsonl"
    run = (*words, "--set", f"train.prefetch={prefetch}")
    reached = 0
    for trial in range(tries(9, 6, 50)):
        name = draw.choice(["SIGTERM", "SIGINT"])
        size = metrics.stat().st_size if metrics.is_file() else 0
        if trial % 3 == 0:  # while it starts
            done = zygote.run(*run, signals=[(draw.uniform(0.1, 0.6), name)])
        else:  # while it trains
            done = zygote.run(*run, signals=[(draw.uniform(0.0, 0.6), name)], wait_for=metrics, size=size)
        assert done.returncode == 75, done.stderr
        assert "run the same command again" in done.stderr
        assert "Traceback" not in done.stderr
        if metrics.is_file() and metrics.stat().st_size:
            step = assert_last_step_is_saved(tmp_path / "out")
            assert step >= reached
            reached = step
    assert reached >= 4


def test_a_signal_in_a_long_evaluation_does_not_wait_for_its_end(
    tmp_path: Path, words: tuple[str | Path, ...], zygote: Zygote
) -> None:
    code = f"""
import sys, time
from remask.model.network import Network
plain = Network.masked_lm
def slow(self, *rest):
    if not self.training:
        with open({str(tmp_path / "evaluates")!r}, "a") as file:
            file.write("x")
        time.sleep(0.1)
    return plain(self, *rest)
Network.masked_lm = slow
sys.argv = ["remask", *{[str(word) for word in words]!r}, "--set", "data.evaluation.batch_rows=1"]
from remask.__main__ import main
main()
"""
    batches = tmp_path / "evaluates"
    done = zygote.execute(code, signals=[(0.0, "SIGTERM")], wait_for=batches)
    assert done.returncode == 75, done.stderr
    assert "in the evaluation after step 9, saved; run the same command again" in done.stderr
    assert 1 <= batches.stat().st_size < 30  # of 64
    assert assert_last_step_is_saved(tmp_path / "out") == 9
    size = (tmp_path / "out" / "metrics.jsonl").stat().st_size
    again = zygote.run(*words, "--set", "data.evaluation.batch_rows=1", signals=[(0.5, "SIGINT")],
                       wait_for=tmp_path / "out" / "metrics.jsonl", size=size)  # fmt: skip
    assert again.returncode == 75, again.stderr
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert next(line["step"] for line in lines if "eval/loss" in line) == 9


def test_a_second_signal_ends_at_once(tmp_path: Path, words: tuple[str | Path, ...], zygote: Zygote) -> None:
    """A save that hangs: the second signal does not wait for it."""
    code = f"""
import sys, time
from remask.train.checkpoint import Checkpoints
plain = Checkpoints.save
def hang(self, step, *rest):
    if step:
        with open({str(tmp_path / "hangs")!r}, "w") as file:
            file.write("now")
        time.sleep(600)
    return plain(self, step, *rest)
Checkpoints.save = hang
sys.argv = ["remask", *{[str(word) for word in words]!r}]
from remask.__main__ import main
main()
"""
    done = zygote.execute(code, signals=[(0.1, "SIGTERM"), (0.4, "SIGTERM")], wait_for=tmp_path / "hangs")
    assert done.returncode == -signal.SIGTERM  # by the system, since nothing was saved for it
    assert "Traceback" not in done.stderr
