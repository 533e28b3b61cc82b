"""Commands that remask prints work as printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from remask.commands import program


@pytest.mark.parametrize("on_path", [False, True])
def test_the_printed_name_starts_this_remask(on_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "my tools" / "remask"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nprint('this one')\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), "quickstart"])
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin" if on_path else "/usr/bin:/bin")
    name = program()
    assert (name == "remask") == on_path
    assert subprocess.run(name, shell=True, capture_output=True, text=True, check=True).stdout == "this one\n"


def test_a_module_call_is_printed_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["somewhere/__main__.py", "quickstart"])
    assert program().endswith("-m remask")
