"""The wheel carries the run files and the page: elsewhere, it builds bases and runs a quickstart of seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_wheel_installed_elsewhere_works(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(tmp_path / "site"), str(wheel)], check=True)
    web = Path("remask/serve/web")
    assert {p.name for p in (tmp_path / "site" / web).iterdir()} == {p.name for p in (ROOT / web).iterdir()}
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(60):
        lines = [f"Note {number}: the patient of ward {i} slept well and ate {number + i} apples." for i in range(20)]
        (texts / f"{number}.txt").write_text("\n".join(lines))
    words = [
        "quickstart",
        str(texts),
        "--preset",
        "roberta_tiny",
        "--out",
        "out",
        "--set",
        "steps=3",
        "--set",
        "seeds=1",
    ]
    words += ["--set", "vocab_size=400", "--set", "heldout_fraction=0.3", "--set", "task_epochs=1"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    where = "import remask; print(remask.__file__)"
    place = subprocess.run([sys.executable, "-c", where], capture_output=True, text=True, cwd=tmp_path, env=env).stdout
    assert place.startswith(str(tmp_path / "site"))
    done = subprocess.run(
        [sys.executable, "-m", "remask", *words], capture_output=True, text=True, cwd=tmp_path, env=env
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/report.html").is_file()
