"""Stage folders: whole or not at all, refused when damaged, one run at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from remask import artifacts
from remask.artifacts import lock, newest, open_artifact, publish
from remask.errors import DataError, DiskError, MissingInputError, OutputError, UnavailableError


def fill(folder: Path) -> dict[str, int]:
    (folder / "a.bin").write_bytes(b"abc" * 1000)
    (folder / "sub").mkdir()
    (folder / "sub" / "b.txt").write_text("hello")
    return {"things": 2}


def test_publish_then_open(tmp_path: Path) -> None:
    made = publish(tmp_path / "out", "stage", fill, config={"k": 1}, inputs={"text": "f00"})
    read = open_artifact(tmp_path / "out", "stage", verify=True)
    assert read == made
    assert read.counts == {"things": 2}
    assert read.path("sub/b.txt").read_text() == "hello"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]
    with pytest.raises(DataError, match=r"has no file c\.txt"):
        read.path("c.txt")


def test_same_content_same_fingerprint(tmp_path: Path) -> None:
    one, two = (publish(tmp_path / name, "stage", fill) for name in "ab")
    other = publish(tmp_path / "c", "stage", fill, inputs={"text": "x"})
    assert one.fingerprint == two.fingerprint != other.fingerprint


def test_a_failure_while_filling_leaves_nothing_under_the_final_name(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        fill(folder)
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError):
        publish(tmp_path / "out", "stage", broken)
    assert not (tmp_path / "out").exists()
    publish(tmp_path / "out", "stage", fill)  # what the failure left aside does not disturb
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_existing_folder_is_kept_unless_replaced(tmp_path: Path) -> None:
    publish(tmp_path / "out", "stage", fill)
    with pytest.raises(OutputError, match="exists already"):
        publish(tmp_path / "out", "stage", lambda folder: None)
    publish(tmp_path / "out", "stage", lambda folder: None, replace=True)
    assert open_artifact(tmp_path / "out", "stage").manifest["files"] == {}


@pytest.mark.parametrize("place", range(0, 3000, 331))
def test_every_flipped_bit_is_found_by_verify(tmp_path: Path, place: int) -> None:
    publish(tmp_path / "out", "stage", fill)
    data = bytearray((tmp_path / "out/a.bin").read_bytes())
    data[place] ^= 1 << (place % 8)
    (tmp_path / "out/a.bin").write_bytes(data)
    open_artifact(tmp_path / "out", "stage")
    with pytest.raises(DataError, match="checksum"):
        open_artifact(tmp_path / "out", "stage", verify=True)


def test_damage_is_refused_at_open(tmp_path: Path) -> None:
    def damaged(name: str, change) -> pytest.ExceptionInfo[DataError]:
        folder = tmp_path / name
        publish(folder, "stage", fill)
        change(folder)
        with pytest.raises(DataError) as caught:
            open_artifact(folder, "stage")
        return caught

    assert "2,999 bytes" in str(damaged("short", lambda f: os.truncate(f / "a.bin", 2999)).value)
    assert "is missing" in str(damaged("gone", lambda f: (f / "a.bin").unlink()).value)
    assert "not finished" in str(damaged("bare", lambda f: (f / "manifest.json").unlink()).value)
    assert "damaged" in str(damaged("cut", lambda f: os.truncate(f / "manifest.json", 50)).value)

    def edit(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["counts"]["things"] = 3
        (folder / "manifest.json").write_text(json.dumps(manifest))

    assert "its own checksum" in str(damaged("edited", edit).value)

    def escape(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["files"]["../../x"] = manifest["files"]["a.bin"]
        manifest["fingerprint"] = artifacts._fingerprint(manifest)
        (folder / "manifest.json").write_text(json.dumps(manifest))

    assert "outside its folder" in str(damaged("escape", escape).value)


def test_wrong_stage_and_missing_folder(tmp_path: Path) -> None:
    publish(tmp_path / "out", "tokens", fill)
    with pytest.raises(DataError, match="holds tokens, but checkpoint is needed"):
        open_artifact(tmp_path / "out", "checkpoint")
    with pytest.raises(MissingInputError):
        open_artifact(tmp_path / "none", "tokens")


def test_newest_falls_back_and_sets_damaged_ones_aside(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        publish(tmp_path / f"step-{step}", "stage", fill)
    (tmp_path / "step-3/a.bin").write_bytes(b"x" * 3000)
    words: list[str] = []
    found = newest(tmp_path, "step-*", "stage", words.append)
    assert found is not None
    assert found.folder.name == "step-2"
    assert "checksum" in words[0]
    assert (tmp_path / ".damaged-step-3").is_dir()
    assert newest(tmp_path, "none-*", "stage", words.append) is None


def test_system_errors_become_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device", str(folder / "x"))

    with pytest.raises(DiskError, match="No space left") as caught:
        publish(tmp_path / "out", "stage", full)
    assert caught.value.exit_code == 74
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        publish(tmp_path / "file" / "out", "stage", fill)


def test_every_failing_sync_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path / "out", "stage", fill)
    before = open_artifact(tmp_path / "out", "stage", verify=True)
    real = os.fsync
    failures = 0
    for number in range(100):
        left = iter(range(number, -1, -1))

        def failing(handle: int, left=left) -> None:
            if next(left, -1) == 0:
                raise OSError(5, "Input/output error")
            real(handle)

        monkeypatch.setattr(os, "fsync", failing)
        try:
            publish(tmp_path / "out", "stage", lambda folder: (folder / "new").write_text("n") and {}, replace=True)
        except DiskError:
            failures += 1
            after = open_artifact(tmp_path / "out", "stage", verify=True)
            assert after.fingerprint == before.fingerprint or "new" in after.manifest["files"]
        else:
            break
    assert failures >= 4


@pytest.mark.parametrize("exchange", [True, False])
def test_killed_anywhere_while_replacing_one_whole_folder_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    """Every rename and removal is the last thing that happens, once."""
    if not exchange:
        monkeypatch.setattr(artifacts, "_exchange", lambda one, two: False)

    class Killed(BaseException):
        pass

    def new(folder: Path) -> dict[str, int]:
        (folder / "new").write_text("n")
        return {}

    def dies_before(number: int, patch: pytest.MonkeyPatch) -> None:
        left = iter(range(number, -1, -1))
        for owner, name in ((Path, "rename"), (artifacts.shutil, "rmtree"), (artifacts, "_sync_folder")):
            real = getattr(owner, name)

            def dying(*words: object, real=real, **more: object) -> object:
                if next(left, -1) == 0:
                    raise Killed
                return real(*words, **more)

            patch.setattr(owner, name, dying)

    for number in range(100):
        folder = tmp_path / str(number) / "out"
        publish(folder, "stage", fill)
        with monkeypatch.context() as patch:
            dies_before(number, patch)
            try:
                publish(folder, "stage", new, replace=True)
            except Killed:
                killed = True
            else:
                killed = False
        if exchange:  # there at every moment
            open_artifact(folder, "stage", verify=True)
        if not killed:
            break
        with pytest.raises(OutputError, match="exists already"):  # whatever was left, it is not lost
            publish(folder, "stage", new)
        open_artifact(folder, "stage", verify=True)
        publish(folder, "stage", new, replace=True)
        assert [path.name for path in folder.parent.iterdir()] == ["out"]
    assert number >= 6


def test_lock_refuses_a_second_process_and_goes_with_the_first(tmp_path: Path) -> None:
    code = f"from remask.artifacts import lock\nfrom pathlib import Path\nwith lock(Path({str(tmp_path)!r})): pass"
    with lock(tmp_path):
        with pytest.raises(UnavailableError, match="another remask"), lock(tmp_path):
            pass
        second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert second.returncode != 0
        assert "another remask" in second.stderr
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_work_goes_on_for_the_same_key_and_starts_over_for_another(tmp_path: Path) -> None:
    assert not artifacts.begin(tmp_path, {"seed": 1}, ("parts",))
    made = tmp_path / "parts" / "a"
    made.write_text("made")
    record = tmp_path / "a.json"
    assert artifacts.finished(record) is None
    artifacts.finish(record, {"documents": 3}, [made])
    assert artifacts.begin(tmp_path, {"seed": 1}, ("parts",))
    assert artifacts.finished(record) == {"documents": 3}
    made.write_text("torn")
    assert artifacts.finished(record) is None
    assert artifacts.finished(record, verify=False) == {"documents": 3}
    assert not artifacts.begin(tmp_path, {"seed": 2}, ("parts",))
    assert not made.exists()
    assert artifacts.finished(record) is None
    record.write_text('{"fac')
    assert artifacts.finished(record) is None
    (tmp_path / "identity.json").write_text("{")
    assert not artifacts.begin(tmp_path, {"seed": 2}, ("parts",))
