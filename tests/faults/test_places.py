"""FAULTS.md rows 35 to 37: full disks and too little memory, and places and clocks that are not as usual."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from remask.model.network import build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.model.store import save_model

from .test_resume import RUN, assert_same_run
from .zygote import Zygote

TENSORS = ("model.safetensors", "optimizer.safetensors")


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


def tree(folder: Path) -> dict[str, str]:
    """What the files of a result are; times and metrics of the clock aside."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def can_mount() -> bool:
    done = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    return done.returncode == 0


def corpus(folder: Path, megabytes: float = 0.4) -> Path:
    """Enough text that a disk of a megabyte cannot hold what is made of it."""
    draw = random.Random(5)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(2000)]
    lines: list[str] = []
    while sum(map(len, lines)) < megabytes * 1e6:
        lines.append(" ".join(draw.choices(words, k=40)) + ".\n\n")
    path = folder / "corpus.txt"
    path.write_text("".join(lines))
    return path


# A disk of its own for OUT: too small at first, then with room. Prints both exit codes, and copies the result out.
FULL = """
mount -t tmpfs -o size=$SMALL none "$DISK" || exit 99
"$@" 2> "$LOG"; echo $?
mount -o remount,size=200m "$DISK" || exit 99
"$@" 2>> "$LOG"; echo $?
cp -r "$DISK/." "$RESULT"
"""


@pytest.mark.skipif(not shutil.which("unshare") or not can_mount(), reason="no disk of one's own may be mounted here")
@pytest.mark.parametrize("verb", ["prepare", "pretrain", "encode"])
def test_a_full_disk_is_one_line_and_then_the_same_command_goes_on(
    verb: str,
    tmp_path: Path,
    run_file: Path,
    tiny_prepared: Path,
    tiny_tokenizers: dict[str, Path],
    zygote: Zygote,
) -> None:
    disk, result, log = tmp_path / "disk", tmp_path / "result", tmp_path / "log"
    disk.mkdir()
    result.mkdir()
    name = "out.safetensors" if verb == "encode" else "out"
    if verb == "prepare":
        words = ["prepare", str(corpus(tmp_path)), "--vocab-size", "400", "--workers", "1", "--out"]
        small = "700k"
    elif verb == "encode":
        settings = ModelSettings(vocab_size=300, num_layers=1, hidden_size=16, num_heads=2, ffn_size=32, max_length=512)
        save_model(tmp_path / "model", build_network(settings, HeadSettings(), 1), tiny_tokenizers["byte-bpe"])
        words = ["encode", str(tmp_path / "model"), str(corpus(tmp_path, 0.1)), "--set", "long_texts=cut", "--out"]
        small = "3m"
    else:
        words = ["pretrain", str(run_file), "--data", str(tiny_prepared), "--steps", "9", "--set", "train.save_every=2"]
        words += ["--out"]
        small = "1200k"
    command = [sys.executable, "-m", "remask", *words]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    places = {"DISK": str(disk), "RESULT": str(result), "LOG": str(log), "SMALL": small}
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", FULL, "sh", *command, str(disk / name)],
        capture_output=True, text=True, env=environ | places, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = log.read_text()
    codes = [line for line in done.stdout.splitlines() if line.isdigit()]
    assert codes == ["74", "0"], said
    assert "Traceback" not in said
    assert [line for line in said.splitlines() if line.startswith("remask:") and "No space left on device" in line]
    assert zygote.run(*words, tmp_path / name).returncode == 0
    if verb == "encode":
        assert (result / name).read_bytes() == (tmp_path / name).read_bytes()
        assert [path.name for path in result.iterdir()] == [name]
    elif verb == "prepare":
        assert tree(result / name) == tree(tmp_path / name)
    else:
        a, b = (max((folder / name / "checkpoints").glob("step-*")) for folder in (result, tmp_path))
        assert a.name == b.name
        assert all((a / name).read_bytes() == (b / name).read_bytes() for name in TENSORS)


def test_too_little_memory_in_training_is_a_clear_end(
    tmp_path: Path,
    run_file: Path,
    tiny_prepared: Path,
    zygote: Zygote,
) -> None:
    """A limit that comes in the middle of a run: what was saved stands, and the run goes on with room again."""
    words = ["pretrain", str(run_file), "--data", str(tiny_prepared), "--out", str(tmp_path / "out")]
    code = f"""
import resource, sys
from remask.train.session import Session
plain = Session.update
def update(self, *rest):
    if self.step == 10:
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), -1))
        import torch
        held = torch.empty(1 << 28)
    return plain(self, *rest)
Session.update = update
sys.argv = ["remask", *{words!r}]
from remask.__main__ import main
main()
"""
    done = zygote.execute(code)
    assert done.returncode == 74, done.stderr
    assert "remask: out of memory; a smaller batch, length or --workers needs less" in done.stderr
    assert "Traceback" not in done.stderr
    again = zygote.run(*words)
    assert again.returncode == 0, again.stderr
    assert "going on after step 7 of" in again.stderr


def test_moved_folders_and_names_with_spaces_and_unicode(
    tmp_path: Path,
    run_file: Path,
    tiny_prepared: Path,
    zygote: Zygote,
) -> None:
    """Data and run are moved between a stop and its resume, to names that a shell would have to quote."""
    whole = zygote.run("pretrain", run_file, "--data", tiny_prepared, "--out", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    odd = tmp_path / "my näme 文字 'quoted' $HOME"
    odd.mkdir()
    shutil.copytree(tiny_prepared, odd / "data 1")
    metrics = odd / "run a" / "metrics.jsonl"
    stopped = zygote.run("pretrain", run_file, "--data", odd / "data 1", "--out", odd / "run a",
                         signals=[(0.0, "SIGTERM")], wait_for=metrics)  # fmt: skip
    assert stopped.returncode == 75, stopped.stderr
    (odd / "data 1").rename(odd / "data 2")
    (odd / "run a").rename(odd / "run b")
    moved = zygote.run("pretrain", run_file, "--data", odd / "data 2", "--out", odd / "run b")
    assert moved.returncode == 0, moved.stderr
    assert_same_run(tmp_path / "whole", odd / "run b")


@pytest.mark.parametrize("where", ["out", "above"])
def test_a_folder_that_cannot_be_written_is_refused_in_words(
    where: str,
    tmp_path: Path,
    run_file: Path,
    tiny_prepared: Path,
    zygote: Zygote,
) -> None:
    """Also for root, to whom permissions mean nothing: something that is no folder stands in the way."""
    if os.getuid() == 0:
        (tmp_path / "locked").write_text("")
    else:
        (tmp_path / "locked").mkdir(mode=0o555)
    out = tmp_path / "locked" if where == "out" and os.getuid() == 0 else tmp_path / "locked" / "out"
    text = corpus(tmp_path, 0.01)
    for words in (["pretrain", run_file, "--data", tiny_prepared], ["prepare", text, "--vocab-size", "300"]):
        done = zygote.run(*words, "--out", out)
        assert done.returncode == 73, done.stderr
        assert str(tmp_path / "locked") in done.stderr
        assert "Traceback" not in done.stderr


def test_read_only_data_is_trained_on(
    tmp_path: Path,
    run_file: Path,
    tiny_prepared: Path,
    zygote: Zygote,
) -> None:
    """Nothing is written into a data folder, whoever runs it."""
    shutil.copytree(tiny_prepared, tmp_path / "data")
    before = tree(tmp_path / "data")
    for path in [tmp_path / "data", *(tmp_path / "data").rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = zygote.run("pretrain", run_file, "--data", tmp_path / "data", "--out", tmp_path / "out", "--steps", "4")
    (tmp_path / "data").chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "data") == before


def test_a_clock_that_is_set_back_changes_nothing(
    tmp_path: Path,
    run_file: Path,
    tiny_prepared: Path,
    zygote: Zygote,
) -> None:
    """A stop, a year back, and on: the newest checkpoint is the one with the most steps, not the latest date."""
    words = ["pretrain", str(run_file), "--data", str(tiny_prepared)]
    whole = zygote.run(*words, "--out", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    metrics = tmp_path / "out" / "metrics.jsonl"
    stopped = zygote.run(*words, "--out", tmp_path / "out", signals=[(0.0, "SIGTERM")], wait_for=metrics)
    assert stopped.returncode == 75, stopped.stderr
    code = f"""
import sys, time
now = time.time
time.time = lambda: now() - 365 * 86400
sys.argv = ["remask", *{[*words, "--out", str(tmp_path / "out")]!r}]
from remask.__main__ import main
main()
"""
    for path in (tmp_path / "out").rglob("*"):
        os.utime(path, (2_000_000_000, 2_000_000_000))  # of the future, as seen from there
    again = zygote.execute(code)
    assert again.returncode == 0, again.stderr
    assert_same_run(tmp_path / "whole", tmp_path / "out")


def test_other_threads_after_a_resume_keep_ids_and_masks(
    tmp_path: Path,
    run_file: Path,
    tiny_prepared: Path,
    zygote: Zygote,
) -> None:
    """Bits are promised for the same number of threads. With another one, which sums may be added in another order,
    the examples and masks are the same and losses agree within 1e-5."""
    words = ["pretrain", str(run_file), "--data", str(tiny_prepared), "--allow-change", "train.steps"]
    for change in ("model.dropout=0.0", "model.attention_dropout=0.0", "train.log_every=1"):
        words += ["--set", change]
    begun = zygote.run(*words, "--out", tmp_path / "same", "--steps", "6")  # with one thread
    assert begun.returncode == 0, begun.stderr
    shutil.copytree(tmp_path / "same", tmp_path / "other")
    same = zygote.run(*words, "--out", tmp_path / "same", "--steps", "12")
    assert same.returncode == 0, same.stderr
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "2"}
    environ["OMP_WAIT_POLICY"] = "passive"  # threads that spin for each other take minutes on a busy machine
    command = [sys.executable, "-m", "remask", *words, "--out", str(tmp_path / "other"), "--steps", "12"]
    other = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert other.returncode == 0, other.stderr
    losses = {}
    for name in ("same", "other"):
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        losses[name] = [line["train/loss"] for line in lines if "train/loss" in line]
    assert len(losses["same"]) == 12
    assert losses["same"][:6] == losses["other"][:6]
    assert losses["other"] == pytest.approx(losses["same"], rel=1e-5)
