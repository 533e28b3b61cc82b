"""Progress: plain lines where there is no terminal, nothing when quiet."""

from __future__ import annotations

import io
import os
import pty
import select
import sys
import types

import pytest

from remask import progress as module
from remask.progress import Progress, duration


def drained(terminal: int) -> str:
    """All that was written: a terminal hands it on in pieces."""
    data = b""
    while select.select([terminal], [], [], 0.5)[0]:
        data += os.read(terminal, 10_000)
    return data.decode()


def test_plain_lines_have_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLAIN_EVERY_SECONDS", 0.0)
    stream = io.StringIO()
    show = Progress(stream=stream)
    with show.stage("tokenise", total=4, unit="MB") as stage:
        for _ in range(4):
            stage.advance(1, note="loss 3.2")
    text = stream.getvalue()
    assert text.isprintable() is False  # newlines
    assert all(character.isprintable() or character == "\n" for character in text)
    lines = text.splitlines()
    assert lines[0] == "tokenise ..."
    assert lines[2].startswith("tokenise: 2/4 MB")
    assert lines[-1].startswith("done: tokenise · 4 MB · loss 3.2")


def test_one_is_not_many() -> None:
    stream = io.StringIO()
    with Progress(stream=stream).stage("encode", unit="texts") as stage:
        stage.advance(1)
    assert stream.getvalue().splitlines()[-1].startswith("done: encode · 1 text · ")


def test_quiet_says_only_what_goes_wrong() -> None:
    stream = io.StringIO()
    show = Progress(quiet=True, stream=stream)
    with show.stage("read", total=2) as stage:
        stage.advance(2)
    show.say("hello")
    show.detail("more")
    show.warn("careful")
    assert stream.getvalue() == "warning: careful\n"


@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_gets_one_live_line_or_with_no_color_plain_ones(
    monkeypatch: pytest.MonkeyPatch, no_color: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    main, side = pty.openpty()
    with os.fdopen(side, "w") as stream:
        show = Progress(stream=stream)
        with show.stage("read", total=2, unit="files") as stage:
            stage.advance(2)
        stream.flush()
        text = drained(main)
    os.close(main)
    assert ("━" * 24 in text) is not no_color
    assert ("\x1b[" in text) is not no_color
    if no_color:
        assert all(character.isprintable() for character in text.replace("\r\n", ""))


def test_a_narrow_terminal_gets_the_note_in_a_second_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    main, side = pty.openpty()
    drawn = {}
    with os.fdopen(side, "w") as stream:
        for columns in (60, 200):
            monkeypatch.setattr(os, "get_terminal_size", lambda _, columns=columns: os.terminal_size((columns, 24)))
            show = Progress(stream=stream)
            with show.stage("pretrain", total=2, unit="steps") as stage:
                stage.advance(2, note="loss 3.200 · held-out 3.100")
                drawn[columns] = drained(main)
            drawn[-columns] = drained(main)
    os.close(main)
    assert "2/2 steps · loss 3.200" in drawn[200]
    assert [line.strip() for line in drawn[60].splitlines()][1:] == ["loss 3.200 · held-out 3.100"]
    assert drawn[-60].startswith("\r\x1b[2K\x1b[1A\x1b[2K")  # both lines go before the last word
    assert drawn[-200].startswith("\r\x1b[2K\x1b[32m")


def test_a_notebook_gets_one_line_a_stage_that_is_written_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No carriage returns, nothing on stderr (which notebooks paint red), and other lines are plain."""
    cells: list[list[str]] = []

    class Line:
        def __init__(self, text: str) -> None:
            self.shown = [text]
            cells.append(self.shown)

        def update(self, data: dict[str, str], raw: bool) -> None:
            self.shown.append(data["text/plain"])

    fake = types.ModuleType("IPython.display")
    fake.display = lambda data, raw, display_id: Line(data["text/plain"])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    show = Progress()
    for name in ("read", "train"):
        with show.stage(name, total=2, unit="steps") as stage:
            stage.advance(1)
            stage.advance(1, note="loss 3.2")
        show.say(f"after {name}")
    assert [shown[-1].rsplit(" · ", 1)[0] for shown in cells] == [
        f"✓ {n} · 2 steps · loss 3.2" for n in ("read", "train")
    ]
    assert "2/2 steps" in cells[1][-2]
    assert capsys.readouterr() == ("after read\nafter train\n", "")


def test_durations() -> None:
    assert [duration(x) for x in (0.5, 42, 61, 3700)] == ["0.5 s", "42 s", "1 min 01 s", "1 h 01 min"]
