"""What a person sees while work goes on: one line per stage, live in a terminal and a notebook, plain lines elsewhere.

`Progress.stage(name, total, unit)` is a context whose `advance` is called as often as one likes. Lines go to stderr; in
a notebook, which paints that red, they go into the cell. Results never go through here: commands print them on stdout.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from remask.visible import visible

PLAIN_EVERY_SECONDS = 10.0


class Stage:
    """One piece of work with a known or unknown total."""

    def __init__(self, owner: Progress, name: str, total: float | None, unit: str) -> None:
        self._owner, self.name, self.total, self.unit = owner, name, total, unit
        self.done = 0.0
        self.note = ""
        self._start = self._last_plain = time.monotonic()
        self._base = 0.0

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.update(self.done + amount, note)

    def update(self, done: float, note: str = "", total: float | None = None) -> None:
        self.done = done
        self.note = note or self.note
        self.total = total if total is not None else self.total
        self._owner.show(self)

    def resume_at(self, done: float) -> None:
        """Work that an earlier attempt did: it counts as done, not as speed."""
        self.done = self._base = done

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    @property
    def rate(self) -> float:
        return (self.done - self._base) / max(self.seconds, 1e-9)

    def line(self) -> str:
        """`120/400 MB · 45 MB/s · 6 s left`"""
        words = [f"{_amount(self.done)}{f'/{_amount(self.total)}' if self.total else ''} {self.unit}".strip()]
        if self.rate > 0 and self.seconds > 0.5:
            words.append(f"{_amount(self.rate)} {self.unit}/s".replace(" /s", "/s"))
            if self.total and self.done < self.total:
                words.append(f"{duration((self.total - self.done) / self.rate)} left")
        return " · ".join(words)


class Progress:
    """Shows stages. `quiet`: only what goes wrong. Not a terminal, or NO_COLOR: plain lines, no control characters."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False, stream: TextIO | None = None) -> None:
        self._in_notebook = stream is None and "ipykernel" in sys.modules
        self.stream = stream or (sys.stdout if self._in_notebook else sys.stderr)
        self.quiet, self.verbose = quiet, verbose
        plain = os.environ.get("TERM") == "dumb" or bool(os.environ.get("NO_COLOR"))
        self.live = self._in_notebook or (self.stream.isatty() and not plain)
        self._drawn = 0  # lines of the live display that stand on the terminal
        self._cell_line: Any = None  # the live display of a notebook: a line of its own that is written anew in place
        self._last_live = 0.0

    def say(self, message: str) -> None:
        """A line that stays, unless quiet."""
        if not self.quiet:
            self._print(message)

    def detail(self, message: str) -> None:
        if self.verbose:
            self._print(message)

    def warn(self, message: str) -> None:
        """Something the user should know, quiet or not."""
        self._print(f"warning: {message}")

    @contextmanager
    def stage(self, name: str, total: float | None = None, unit: str = "") -> Iterator[Stage]:
        stage = Stage(self, name, total, unit)
        if not self.live:
            self.say(f"{name} ...")
        yield stage
        words = [name]
        if stage.done:
            words.append(f"{_amount(stage.done)} {unit.removesuffix('s') if stage.done == 1 else unit}".strip())
        if stage.note:
            words.append(stage.note)
        self._finish(" · ".join([*words, duration(stage.seconds)]))

    def show(self, stage: Stage) -> None:
        if self.quiet:
            return
        now = time.monotonic()
        if self.live:
            if now - self._last_live > (0.5 if self._in_notebook else 0.1) or stage.done == stage.total:
                self._last_live = now
                self._draw(f"{stage.name}  {_bar(stage)}{stage.line()}", stage.note)
        elif now - stage._last_plain > PLAIN_EVERY_SECONDS:
            stage._last_plain = now
            self._print(" · ".join(word for word in (f"{stage.name}: {stage.line()}", stage.note) if word))

    def _finish(self, line: str) -> None:
        if self._cell_line is not None:
            self._draw_in_cell(f"✓ {line}")
            self._cell_line = None
        elif not self.quiet:
            self._print(line, "\x1b[32m✓\x1b[0m" if self.live and not self._in_notebook else "done:")

    def _draw(self, line: str, note: str) -> None:
        """In one line, or with the note in a second one where the terminal is too narrow for both."""
        both = f"{line} · {note}" if note else line
        if self._in_notebook:
            self._draw_in_cell(both)
            return
        width = (os.get_terminal_size(self.stream.fileno()).columns or 80) - 1
        lines = [both] if len(both) <= width or not note else [line, f"  {note}"]
        self._clear()
        self.stream.write("\n".join(visible(shown)[:width] for shown in lines))
        self.stream.flush()
        self._drawn = len(lines)

    def _draw_in_cell(self, line: str) -> None:
        from IPython.display import display  # type: ignore[import-not-found]  # only ever called inside a notebook

        if self._cell_line is None:
            self._cell_line = display({"text/plain": line}, raw=True, display_id=True)
        else:
            self._cell_line.update({"text/plain": line}, raw=True)

    def _clear(self) -> None:
        if self._drawn:
            self.stream.write("\r\x1b[2K" + "\x1b[1A\x1b[2K" * (self._drawn - 1))
            self._drawn = 0

    def _print(self, line: str, mark: str = "") -> None:
        self._clear()
        self.stream.write(f"{mark} {visible(line)}\n" if mark else f"{visible(line)}\n")
        self.stream.flush()


def _bar(stage: Stage, cells: int = 24) -> str:
    if not stage.total:
        return ""
    full = min(cells, int(cells * stage.done / stage.total))
    return "━" * full + "╌" * (cells - full) + "  "


def _amount(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.1f}{letter}"
    return f"{value:.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds + 0.5), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def counted(count: int, noun: str) -> str:
    """1 row, 2 rows."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
