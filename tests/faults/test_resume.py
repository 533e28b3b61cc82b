"""FAULTS.md rows 4-7 and 38: runs that are killed, doubled or very long, through the real command with real batches."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remask.artifacts import lock, open_artifact, publish

from .soak import is_full, tries
from .zygote import Zygote

RUN = """
base: roberta_tiny
model: {num_layers: 2, hidden_size: 32, num_heads: 2, ffn_size: 64, max_length: 32}
data: {length: 32, batch: {num_rows: 8, micro_rows: 4}, evaluation: {num_rows: 16}}
train: {steps: 60, learning_rate: 2e-3, precision: fp32, save_every: 7, eval_every: 13, log_every: 4, ema_decay: 0.9}
"""
TENSORS = ("model.safetensors", "weights.safetensors", "optimizer.safetensors")


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


def history(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what the clock decides."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "time" and not k.startswith("perf/")} for line in found]


def state_of(checkpoint: Path) -> dict[str, Any]:
    state = json.loads((checkpoint / "state.json").read_text())
    return {key: value for key, value in state.items() if key not in ("seconds", "metrics_size")}


def last_checkpoint(folder: Path) -> Path:
    return max((folder / "checkpoints").glob("step-*"))


def assert_same_run(whole: Path, other: Path) -> None:
    a, b = last_checkpoint(whole), last_checkpoint(other)
    assert a.name == b.name
    for name in TENSORS:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name
    assert state_of(a) == state_of(b)
    assert history(whole) == history(other)


@pytest.mark.timeout(1800)
def test_killed_at_random_points_and_gone_on_is_bitwise_equal(
    tmp_path: Path, run_file: Path, tiny_prepared: Path, zygote: Zygote
) -> None:
    """With rows and batches that grow on the way; five kills a run, which is about as many as it takes to its end."""
    growing = ("data.short_steps=0.4", "data.short_length=16", "data.batch.ramp_from=2", "data.batch.ramp_steps=0.6")
    words = ("pretrain", run_file, "--data", tiny_prepared, *(word for one in growing for word in ("--set", one)))
    whole = zygote.run(*words, "--out", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    draw = random.Random(20261115)
    killed, seconds = 0, whole.seconds
    for number in range(rounds := tries(5, 1, 4)):
        out = tmp_path / f"killed{number}"
        for _ in range(5):
            after = draw.uniform(0.15, 0.5) * seconds
            ended = zygote.run(*words, "--out", out, signals=[(after, "SIGKILL")])
            killed += ended.returncode == -9
            if ended.returncode == 0 and killed < 2 * (number + 1):  # the first run was slow by chance: once more
                seconds = min(seconds, ended.seconds)
                shutil.rmtree(out)
        last = zygote.run(*words, "--out", out)
        assert last.returncode == 0, last.stderr
        assert_same_run(tmp_path / "whole", out)
    assert killed >= 2 * rounds


# How a run is computed -> its settings. Several tasks at once are in test_finetune_kills.py.
WAYS = {
    "fp16": ["train.precision=fp16"],
    "bf16 copies and Muon": ["train.precision=bf16", "train.weights=bf16-master", "train.optimizer=muon"],
    "compiled": ["train.compile=true"],
    "counted start": ["start.embeddings=counted", "start.attention=neighbours", "start.head=direct"],
    "token batches, short steps": [
        "data.batch.num_tokens=128", "data.batch.micro_rows=2", "data.short_steps=0.5", "data.short_length=16",
    ],
}  # fmt: skip


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", WAYS)
def test_a_killed_run_is_bitwise_equal_however_it_computes(
    way: str, tmp_path: Path, run_file: Path, tiny_prepared: Path, zygote: Zygote
) -> None:
    if way == "fp16" and not is_full(38):
        pytest.skip("a processor without fp16 prepares for minutes: only in `make soak ROWS=38`")
    changes = [*WAYS[way], "train.steps=12", "train.save_every=3", "train.log_every=1"]
    words = ("pretrain", run_file, "--data", tiny_prepared, *(word for one in changes for word in ("--set", one)))
    whole = zygote.run(*words, "--out", tmp_path / "whole")
    if whole.returncode == 69:
        pytest.skip(whole.stderr)  # what this machine lacks
    assert whole.returncode == 0, whole.stderr
    killed, metrics = tmp_path / "killed", tmp_path / "killed" / "metrics.jsonl"
    for _ in range(tries(38, 1, 5)):
        size = metrics.stat().st_size if metrics.is_file() else 0
        zygote.run(*words, "--out", killed, signals=[(0.05, "SIGKILL")], wait_for=metrics, size=size + 300)
    last = zygote.run(*words, "--out", killed)
    assert last.returncode == 0, last.stderr
    a, b = last_checkpoint(tmp_path / "whole"), last_checkpoint(killed)
    names = sorted(path.name for path in a.glob("*.safetensors"))
    assert len(names) >= 2
    for name in names:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name
    assert state_of(a) == state_of(b)
    assert history(tmp_path / "whole") == history(killed)


@pytest.mark.timeout(1800)
def test_every_example_is_read_once_a_pass_with_kills(
    tmp_path: Path, run_file: Path, tiny_prepared: Path, zygote: Zygote
) -> None:
    """The log has what every completed step consumed, masks included; a step done twice must have read the same."""
    code = f"""
import json, sys
import numpy as np
from remask.objectives import Pretraining
plain = Pretraining.__call__
def logged(self, model, batch, step):
    if step is not None:
        with open({str(tmp_path / "consumed.jsonl")!r}, "a") as file:
            row = [step, batch.example_ids_B.tolist(), batch.masked_positions_M.tolist(), batch.input_ids_BS.tolist()]
            file.write("\\n" + json.dumps(row) + "\\n")  # apart from a line that a kill cut short
    return plain(self, model, batch, step)
Pretraining.__call__ = logged
sys.argv = ["remask", "pretrain", {str(run_file)!r}, "--data", {str(tiny_prepared)!r}, "--out",
            {str(tmp_path / "out")!r}, "--set", "train.epochs=3", "--set", "train.steps=null",
            "--set", "data.batch.num_rows=PER_STEP", "--set", "data.length=LENGTH", "--set", "train.ema_decay=0.0",
            "--set", "train.save_every=9", "--set", "train.eval_every=0", "--set", "data.batch.micro_rows=8", "-q"]
from remask.__main__ import main
main()
"""
    # So that a pass is a whole number of steps, and of some dozens: rows of a length whose number can be divided.
    sizes = {length: _num_examples(tiny_prepared, run_file, length) for length in range(24, 33)}
    length, per_step = next((length, n) for n in range(12, 0, -1) for length in sizes if sizes[length] % n == 0)
    size = sizes[length]
    assert 20 <= size // per_step <= 100
    code = code.replace("PER_STEP", str(per_step)).replace("LENGTH", str(length))
    draw = random.Random(6)
    consumed, killed = tmp_path / "consumed.jsonl", 0
    for after in (0.03, 0.1, 0.2, *(draw.uniform(0.0, 0.3) for _ in range(tries(6, 0, 17)))):
        known = consumed.stat().st_size if consumed.is_file() else 0
        end = zygote.execute(code, signals=[(after, "SIGKILL")], wait_for=consumed, size=known)  # once it takes steps
        killed += end.returncode == -9
    assert killed >= 2
    done = zygote.execute(code)
    assert done.returncode == 0, done.stderr
    seen: dict[int, dict[str, Any]] = {}
    for line in consumed.read_text().splitlines():
        try:
            step, ids, positions, inputs = json.loads(line)
        except ValueError:
            continue  # cut short by a kill
        batch = seen.setdefault(step, {})
        assert batch.setdefault(str(ids), (positions, inputs)) == (positions, inputs)
    per_pass = size // per_step
    assert sorted(seen) == list(range(1, 3 * per_pass + 1))
    for number in range(3):
        steps = range(number * per_pass + 1, (number + 1) * per_pass + 1)
        ids = [i for step in steps for batch in seen[step] for i in json.loads(batch)]
        assert len(ids) == len(set(ids)) == size


def _num_examples(prepared: Path, run_file: Path, length: int) -> int:
    from remask.config import build_run
    from remask.data.batches import open_batches
    from remask.pretraining.settings import PretrainRun
    from remask.tokenizer import load_tokenizer

    run = build_run(PretrainRun, run_file, [f"data.length={length}"]).run
    return open_batches(prepared, run.data, load_tokenizer(prepared / "tokenizer"), seed=0).num_examples


def test_a_second_run_in_the_folder_is_refused_before_torch_is_imported(
    tmp_path: Path, run_file: Path, tiny_prepared: Path
) -> None:
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom remask.__main__ import main\n"
        f"sys.argv = ['remask', 'pretrain', {str(run_file)!r}, '--data', {str(tiny_prepared)!r}, "
        f"'--out', {str(tmp_path / 'out')!r}]\nmain()"
    )
    with lock(tmp_path / "out"):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 69, done.stderr
    assert "another remask is running there" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_changed_config_tokenizer_or_dataset_is_refused_with_the_difference(
    tmp_path: Path, run_file: Path, tiny_prepared: Path, zygote: Zygote
) -> None:
    out = tmp_path / "out"
    words = ("pretrain", run_file, "--out", out, "--set", "train.steps=4")
    assert zygote.run(*words, "--data", tiny_prepared).returncode == 0
    written = {name: (out / name).read_bytes() for name in ("run.yaml", "run.json", "metrics.jsonl")}
    changed = zygote.run(*words, "--data", tiny_prepared, "--set", "data.masking.rate=0.2")
    assert changed.returncode == 78
    assert "data.masking.rate: 0.15 -> 0.2" in changed.stderr
    assert {name: (out / name).read_bytes() for name in written} == written  # still what the run was made with
    allowed = zygote.run(*words, "--data", tiny_prepared, "--steps", "5", "--set", "data.masking.rate=0.2",
                         "--allow-change", "data.masking.rate,train.steps")  # fmt: skip
    assert allowed.returncode == 0, allowed.stderr
    assert "going on after step 4 of 5 " in allowed.stderr
    assert "changed, as allowed: data.masking.rate: 0.15 -> 0.2" in allowed.stderr
    assert "rate: 0.2" in (out / "run.yaml").read_text()
    cannot = zygote.run(*words, "--data", tiny_prepared, "--steps", "6", "--allow-change", "train,data",
                        "--set", "train.optimizer=lamb")  # fmt: skip
    assert cannot.returncode == 78
    assert "is another optimizer's" in cannot.stderr
    cannot = zygote.run(*words, "--data", tiny_prepared, "--steps", "6", "--allow-change", "train,data",
                        "--set", "data.batch.num_tokens=256")  # fmt: skip
    assert cannot.returncode == 78
    assert "cannot go on in tokens" in cannot.stderr
    other = tmp_path / "other"

    def fill(folder: Path) -> dict[str, Any]:
        shutil.copytree(tiny_prepared, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))
        return {**open_artifact(tiny_prepared, "prepared").counts, "unigram_nats": 4.5}

    publish(other, "prepared", fill)
    moved = zygote.run(*words, "--data", other)
    assert moved.returncode == 78
    assert "fingerprints.data" in moved.stderr


def test_a_folder_of_a_fine_tuning_is_not_trained_into(
    tmp_path: Path, run_file: Path, tiny_prepared: Path, zygote: Zygote
) -> None:
    (tmp_path / "out" / "seed-0").mkdir(parents=True)
    (tmp_path / "out" / "run.yaml").write_text("task: classify\n")
    done = zygote.run("pretrain", run_file, "--out", tmp_path / "out", "--data", tiny_prepared)
    assert done.returncode == 73
    assert "holds another kind of run" in done.stderr
    assert (tmp_path / "out" / "run.yaml").read_text() == "task: classify\n"


def test_a_resume_costs_the_same_at_step_ten_and_at_a_million(
    tmp_path: Path, run_file: Path, tiny_prepared: Path, zygote: Zygote
) -> None:
    """No time is measured: what is counted is the work before the first step."""
    words = ("pretrain", str(run_file), "--data", str(tiny_prepared))
    assert zygote.run(*words, "--out", tmp_path / "short", "--steps", "10").returncode == 0
    shutil.copytree(tmp_path / "short", tmp_path / "long")
    old = last_checkpoint(tmp_path / "long")

    def fill(folder: Path) -> dict[str, Any]:
        shutil.copytree(old, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))
        state = json.loads((folder / "state.json").read_text())
        state |= {"step": 1_000_000, "plan": {**state["plan"], "num_steps": 1_000_000}, "cursor": {"step": 1_000_000}}
        (folder / "state.json").write_text(json.dumps(state))
        return {"step": 1_000_000}

    publish(old.with_name("step-001000000"), "checkpoint", fill)
    work = {}
    for name, steps in (("short", 12), ("long", 1_000_002)):
        code = f"""
import atexit
import sys
from remask.data.batches import Batches
calls = []
plain = Batches.take
Batches.take = lambda self, cursor: (calls.append(cursor), plain(self, cursor))[1]
from remask.__main__ import main
sys.argv = ["remask", *{words!r}, "--out", {str(tmp_path / name)!r}, "--steps", "{steps}",
            "--allow-change", "train.steps", "-q"]
atexit.register(lambda: sys.stdout.write(f"calls {{len(calls)}} first {{calls[0]['step']}}"))
main()
"""
        done = zygote.execute(code)
        assert done.returncode == 0, done.stderr
        work[name] = done.stdout.partition("calls ")[2].split()
    assert work["short"][0] == work["long"][0] == "3"  # two steps and the one made ahead
    assert (work["short"][2], work["long"][2]) == ("10", "1000000")
