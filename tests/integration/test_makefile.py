"""The set-up's own errors: an old Python, a Python without venv, a failing install; nothing is installed here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

OLD = '#!/bin/sh\ncase "$*" in *version_info*) exit 1;; --version) echo Python 3.8.1;; esac\n'
WITHOUT_VENV = '#!/bin/sh\ncase "$*" in *ensurepip*) exit 1;; esac\n'
# Makes a venv whose pip always fails, the first time, and works from then on.
FAILING_PIP = """#!/bin/sh
case "$*" in
*"-m venv"*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python";;
*"pip install"*) here=$(dirname "$0"); [ -e "$here/ok" ] && exit 0; touch "$here/ok"; echo no network >&2; exit 1;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(checkout: Path, script: str, goal: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    python = checkout / "python"
    python.write_text(script)
    python.chmod(0o755)
    words = ["make", "-f", str(checkout / "Makefile"), f"PYTHON={python}", goal]
    return subprocess.run(words, capture_output=True, text=True, cwd=cwd)


@pytest.mark.parametrize(
    "script, message",
    [
        (OLD, "Python 3.11 or newer is needed, Python 3.8.1 was found"),
        (WITHOUT_VENV, "apt-get install python3-venv"),
        (FAILING_PIP, "the installation failed"),
    ],
)
def test_a_set_up_that_cannot_work_says_why(checkout: Path, tmp_path: Path, script: str, message: str) -> None:
    done = make(checkout, script, "setup", cwd=tmp_path.parent)
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.parametrize("inside", [True, False])
def test_a_path_with_a_space_is_refused_before_anything_is_removed(tmp_path: Path, inside: bool) -> None:
    checkout = tmp_path / "kept" / "my notes"
    checkout.mkdir(parents=True)
    (tmp_path / "kept" / "my").mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, checkout / name)
    words = ["make", *([] if inside else ["-f", "my notes/Makefile"]), "PYTHON=/bin/true", "setup"]
    cwd = checkout if inside else checkout.parent
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd)
    assert done.returncode != 0
    assert "space in its path" in done.stderr
    assert (checkout / "Makefile").is_file()
    assert (tmp_path / "kept" / "my").is_dir()


def test_an_interrupted_set_up_goes_on_and_a_finished_one_is_not_repeated(checkout: Path, tmp_path: Path) -> None:
    assert make(checkout, FAILING_PIP, "setup", tmp_path).returncode != 0
    assert "installing" in make(checkout, FAILING_PIP, "setup", tmp_path).stdout
    again = make(checkout, FAILING_PIP, "setup", tmp_path)
    assert again.returncode == 0
    assert "installing" not in again.stdout
