"""Names that are taken stay as they are: files, pages, folders; and work that goes on after a stop."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from remask import artifacts
from remask.artifacts import PAGE_MARK, claim, once, publish, put_new, work_on, write_page
from remask.errors import ConfigError, OutputError, Stopped, UnavailableError


def test_only_a_page_of_ours_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "new" / "page.html"
    write_page(page, f"<html>{PAGE_MARK}one</html>")
    write_page(page, f"<html>{PAGE_MARK}two</html>")
    assert "two" in page.read_text()
    for other in ("<html>mine</html>", ""):
        page.write_text(other)
        with pytest.raises(OutputError, match="no page of remask"):
            write_page(page, f"<html>{PAGE_MARK}three</html>")
        assert page.read_text() == other
    with pytest.raises(OutputError, match="no page of remask"):
        write_page(tmp_path / "new", f"<html>{PAGE_MARK}</html>")


def test_a_folder_with_something_else_is_not_written_into(tmp_path: Path) -> None:
    claim(tmp_path / "new", "run.json")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".lock").touch()
    claim(tmp_path / "empty", "run.json")
    (tmp_path / "ours").mkdir()
    for name in ("run.json", "anything"):
        (tmp_path / "ours" / name).touch()
    claim(tmp_path / "ours", "run.json")
    with pytest.raises(OutputError, match=r"holds something else \(anything, run\.json\)"):
        claim(tmp_path / "ours", "other.json")
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        claim(tmp_path / "file", "run.json")


@pytest.mark.parametrize("has_step", [True, False])
def test_a_new_file_takes_no_ones_place(has_step: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_step:
        monkeypatch.setattr(artifacts, "_renameat2", lambda *_: 38)
    whole, out = tmp_path / "whole", tmp_path / "out"
    whole.write_text("new")
    out.write_text("old")
    with pytest.raises(OutputError, match="exists already"):
        put_new(whole, out)
    assert (whole.read_text(), out.read_text()) == ("new", "old")
    out.unlink()
    put_new(whole, out)
    assert out.read_text() == "new"
    assert not whole.exists()


def test_what_was_published_under_the_same_key_is_the_result(tmp_path: Path) -> None:
    """As after a kill between the rename and the last word."""
    fills = 0

    def fill(folder: Path) -> dict[str, int]:
        nonlocal fills
        fills += 1
        (folder / "x").write_text("contents")
        return {"fills": fills}

    first = publish(tmp_path / "out", "stage", fill, key="a")
    again = publish(tmp_path / "out", "stage", fill, key="a")
    assert (fills, again.fingerprint) == (1, first.fingerprint)
    for stage, key in (("stage", "b"), ("other", "a")):
        with pytest.raises(OutputError, match="exists already"):
            publish(tmp_path / "out", stage, fill, key=key)
    with pytest.raises(OutputError, match="exists already"):
        publish(tmp_path / "out", "stage", fill)
    (tmp_path / "out" / "x").write_text("Contents")  # damaged: not what was published
    with pytest.raises(OutputError, match="exists already"):
        publish(tmp_path / "out", "stage", fill, key="a")
    assert fills == 1


def test_a_folder_that_another_process_fills_is_left_alone(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "x").write_text("mine")
        with pytest.raises(UnavailableError, match="another remask"):
            publish(tmp_path / "out", "stage", lambda inner: None)

    publish(tmp_path / "out", "stage", fill)
    assert (tmp_path / "out" / "x").read_text() == "mine"
    left = tmp_path / ".next.partial"
    left.mkdir()
    (left / "y").write_text("of a killed one")
    publish(tmp_path / "next", "stage", lambda folder: None)
    assert not (tmp_path / "next" / "y").exists()


def _write_often(path: Path, text: str) -> None:
    for _ in range(50):
        artifacts.write_bytes(path, text.encode() * 1000)


def test_processes_that_write_one_file_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_write_often, args=(path, letter)) for letter in "abc"]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert len(set(path.read_text())) == 1
    assert os.listdir(tmp_path) == ["kept.json"]


def _finish(work: artifacts.Work) -> None:
    whole = work.path("whole")
    whole.write_bytes(b"".join(piece.read_bytes() for piece in work.pieces()))
    work.finish(whole, {"pieces": len(work.pieces())})


def _stopped(out: Path, key: dict[str, Any], *pieces: bytes) -> None:
    with work_on(out, key) as work:
        for number, piece in enumerate(pieces):
            work.keep(number, piece)
        raise Stopped("stopped")


def _begin(out: Path, key: dict[str, Any]) -> None:
    with work_on(out, key):
        raise AssertionError("never reached")


def test_work_goes_on_under_its_key(tmp_path: Path) -> None:
    out, key = tmp_path / "out", {"model": "m", "file": ["f", 1]}
    with pytest.raises(Stopped):
        _stopped(out, key, b"a")
    with pytest.raises(ConfigError, match="another command began this file") as refused:
        _begin(out, {**key, "model": "n"})
    assert refused.value.args[1:] == ('model: "m" -> "n"',)
    assert "\n" not in refused.value.args[0]
    with work_on(out, key) as work:
        assert [piece.name for piece in work.pieces()] == ["part-000000"]
        with pytest.raises(UnavailableError, match="another remask"):
            _begin(out, key)
        work.keep(1, b"b")
        _finish(work)
    assert (work.result, out.read_text()) == ({"pieces": 2}, "ab")
    assert os.listdir(tmp_path) == ["out"]


def test_work_knows_its_own_result_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, key = tmp_path / "out", {"a": 1}

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    def finish_and_die() -> None:
        with work_on(out, key) as work:
            work.keep(0, b"a")
            _finish(work)

    with monkeypatch.context() as patch:
        patch.setattr(artifacts.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            finish_and_die()
    with work_on(out, key) as work:
        assert work.result == {"pieces": 1}
    assert os.listdir(tmp_path) == ["out"]
    with pytest.raises(OutputError, match="exists already"):
        _begin(out, key)


def test_work_without_pieces_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        _stopped(tmp_path / "out", {"a": 1})
    assert os.listdir(tmp_path) == []


def test_what_is_done_once_is_read_afterwards(tmp_path: Path) -> None:
    record, made = tmp_path / "stage" / "done.json", []

    def make() -> dict[str, Any]:
        made.append(1)
        return {"score": (0.5, len(made))}

    assert once(record, make) == once(record, make) == {"score": [0.5, 1]}
    record.write_text("{")  # cut by a power failure
    assert once(record, make) == {"score": [0.5, 2]}


def test_pieces_without_a_readable_key_are_not_used(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Stopped):
        _stopped(out, {"a": 1}, b"a")
    (tmp_path / ".out.work" / "key.json").write_text("{")
    with pytest.raises(ConfigError, match="another command began this file"):
        _begin(out, {"a": 1})
