"""FAULTS.md rows 1-3: checkpoints under kills, failing disks and damage."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from remask.artifacts import open_artifact
from remask.errors import DiskError
from remask.train.checkpoint import STAGE, Checkpoints, read_state

from .soak import tries

CARRIED = {"model.json": b"{}", "tokenizer/tokenizer.json": b"x" * 5000}


def made(folder: Path, warned: list[str] | None = None, keep: int = 2) -> Checkpoints:
    return Checkpoints(folder, CARRIED, keep, (warned if warned is not None else []).append)


def tensors(step: int) -> dict[str, dict[str, torch.Tensor]]:
    return {
        "model.safetensors": {f"layer.{i}": torch.full((50, 40), float(step + i)) for i in range(4)},
        "optimizer.safetensors": {"layer.0.mean": torch.full((50, 40), -float(step))},
    }


def save(checkpoints: Checkpoints, step: int) -> None:
    checkpoints.save(step, tensors(step), {"step": step})


def assert_good(folder: Path, step: int) -> None:
    """The newest is `step`, whole, and what was saved."""
    found = made(folder).newest()
    assert found is not None
    assert read_state(found)["step"] == step
    for name, wanted in tensors(step).items():
        read = load_file(found.path(name))
        assert read.keys() == wanted.keys()
        assert all(torch.equal(read[key], wanted[key]) for key in wanted)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the child only writes files
def test_a_hundred_kills_during_save_lose_nothing(tmp_path: Path) -> None:
    """The full count, with every change."""
    draw = random.Random(1)
    started = time.monotonic()
    for committed in range(3):
        save(made(tmp_path), committed)
    one_save = (time.monotonic() - started) / 3
    killed_inside = 0
    for _ in range(100):
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                checkpoints = made(tmp_path)
                step = committed
                while True:
                    step += 1
                    save(checkpoints, step)
                    os.write(tell, step.to_bytes(4, "little"))
            finally:
                os._exit(1)
        os.close(tell)
        time.sleep(draw.uniform(0.0, 2.0) * one_save)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        words = b""
        while chunk := os.read(told, 4096):
            words += chunk
        os.close(told)
        steps = [int.from_bytes(words[i : i + 4], "little") for i in range(0, len(words), 4)]
        last = max([committed, *steps])
        killed_inside += any((tmp_path / "checkpoints").glob(".*"))
        folders = sorted((tmp_path / "checkpoints").glob("step-*"))
        for folder in folders:
            open_artifact(folder, STAGE, verify=True)  # whatever has a final name is whole
        newest = int(folders[-1].name.removeprefix("step-"))
        assert newest in (last, last + 1)  # killed between its publication and its word
        assert_good(tmp_path, newest)
        committed = newest
    assert killed_inside > 20


class FailingDisk:
    """Counts what goes to the disk from Python and fails one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, code: int) -> None:
        self.left, self.code, self.failed = number, code, False
        plain_open, plain_sync = Path.open, os.fsync

        def opened(path: Path, mode: str = "r", *rest: Any, **named: Any) -> Any:
            if "w" not in mode:
                return plain_open(path, mode, *rest, **named)
            self._count()
            return _Counted(plain_open(path, mode, *rest, **named), self._count)

        def synced(handle: int) -> None:
            self._count()
            plain_sync(handle)

        monkeypatch.setattr(Path, "open", opened)
        monkeypatch.setattr(os, "fsync", synced)

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.failed = True
            raise OSError(self.code, os.strerror(self.code))


class _Counted:
    def __init__(self, file: Any, count: Callable[[], None]) -> None:
        self._file, self._count = file, count

    def write(self, data: Any) -> Any:
        self._count()
        return self._file.write(data)

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_the_nth_write_or_sync_fails_and_the_old_one_stays(tmp_path: Path, code: int) -> None:
    failures = published = 0
    for number in range(1, 200):
        folder = tmp_path / str(number)
        for step in (1, 2):
            save(made(folder), step)
        with pytest.MonkeyPatch.context() as patch:
            disk = FailingDisk(patch, number, code)
            if _saves(made(folder), 3):
                assert not disk.failed
                break
        failures += 1
        if (folder / "checkpoints" / "step-000000003").exists():
            published += 1  # only the sync of the parent came after: it is whole
        else:
            assert_good(folder, 2)
            save(made(folder), 3)  # with the disk well again
        assert_good(folder, 3)
        shutil.rmtree(folder)
    else:
        pytest.fail("no save came through")
    assert failures > 20
    assert published <= 1


def _saves(checkpoints: Checkpoints, step: int) -> bool:
    try:
        save(checkpoints, step)
    except DiskError as error:
        return len(str(error).splitlines()) != 1
    return True


def test_a_really_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    """The system's own limit on file sizes, which acts below everything that Python could pretend."""
    save(made(tmp_path), 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(DiskError, match="free some space"):
            save(made(tmp_path), 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_good(tmp_path, 1)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    for step in (1, 2):
        save(made(folder), step)
    return folder


def _damaged(two: Path, folder: Path, damage: Callable[[Path, list[Path]], None]) -> list[str]:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(two, folder)
    newest = folder / "checkpoints" / "step-000000002"
    damage(newest, sorted(path for path in newest.rglob("*") if path.is_file()))
    warned: list[str] = []
    found = made(folder, warned).newest()
    assert found is not None
    assert read_state(found)["step"] == 1
    assert not newest.exists()
    return warned


@pytest.mark.timeout(1800)
def test_bit_flips_are_refused_and_the_one_before_is_used(tmp_path: Path, two: Path) -> None:
    draw = random.Random(3)
    for _ in range(tries(3, 100, 1000)):

        def flip(newest: Path, files: list[Path]) -> None:
            path = draw.choice(files)
            data = bytearray(path.read_bytes())
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            path.write_bytes(data)

        assert len(_damaged(two, tmp_path / "copy", flip)) == 1


@pytest.mark.timeout(1800)
def test_truncated_missing_and_swapped_files_are_refused(tmp_path: Path, two: Path) -> None:
    draw = random.Random(4)
    for _ in range(tries(3, 20, 200)):

        def cut(newest: Path, files: list[Path]) -> None:
            path = draw.choice(files)
            os.truncate(path, draw.randrange(path.stat().st_size))

        _damaged(two, tmp_path / "copy", cut)
    for number in range(len([path for path in (two / "checkpoints" / "step-000000002").rglob("*") if path.is_file()])):
        _damaged(two, tmp_path / "copy", lambda newest, files, number=number: files[number].unlink())

    def swap(newest: Path, files: list[Path]) -> None:
        shutil.copyfile(newest.with_name("step-000000001") / "model.safetensors", newest / "model.safetensors")

    assert "checksum" in _damaged(two, tmp_path / "copy", swap)[0]


def test_two_verified_ones_are_kept_and_a_damaged_one_does_not_count(tmp_path: Path) -> None:
    checkpoints = made(tmp_path)
    for step in (1, 2, 3):
        save(checkpoints, step)
    assert sorted(p.name[-1] for p in checkpoints.folder.glob("step-*")) == ["2", "3"]
    (checkpoints.folder / "step-000000003" / "model.json").write_bytes(b"[]")
    warned: list[str] = []
    save(made(tmp_path, warned), 4)
    # 3 is broken, so 2 is still needed.
    assert sorted(p.name[-1] for p in checkpoints.folder.glob("step-*")) == ["2", "3", "4"]
    assert len(warned) == 1
    save(made(tmp_path, keep=1), 5)
    assert [p.name[-1] for p in checkpoints.folder.glob("step-*")] == ["5"]
