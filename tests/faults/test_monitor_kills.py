"""A monitor that is killed again and again counts every text once and raises every alarm once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from .soak import tries

ROOT = Path(__file__).resolve().parents[2]
START = 1_424_736_000
SCRIPT = """
import sys, time
from pathlib import Path
from remask.config import build_run
from remask.monitoring.run import Monitor
from remask.monitoring.settings import MonitorRun
from remask.monitoring.store import Store
from remask.progress import Progress
from tests.unit.monitoring.fakes import FakeAsker, fake_classifier

answer = FakeAsker.answer
FakeAsker.answer = lambda self, rows: (time.sleep(0.02), answer(self, rows))[1]  # so that a kill meets it at work
out = Path(sys.argv[2])
out.mkdir(exist_ok=True)
options = {"model": "fake", "input": sys.argv[1], "time": "when", "text": "text", "follow": True, "late": 0.0,
    "idle_seconds": 0.3, "batch_rows": 16, "delay_seconds": 0.05, "alarm.baseline": 12, "on_alarm": sys.argv[3]}
run = build_run(MonitorRun, options=options).run
print("at work", flush=True)
Monitor(run, out, fake_classifier(), Store(out), Progress(quiet=True), lambda event: None).until_the_end()
"""


def feed(path: Path) -> int:
    draw = random.Random(0)
    rows = []
    for hour in range(40):
        for number in range(30):
            word = "bad" if draw.random() < (0.2 if hour < 28 else 0.7) else "good"
            rows.append({"when": START + hour * 3600 + number * 100, "text": f"{word} {hour} {number}"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return len(rows)


def start(folder: Path, out: str) -> subprocess.Popen[str]:
    command = f"{sys.executable} {folder / 'note.py'} {folder / out}.calls"
    words = [sys.executable, "-c", SCRIPT, str(folder / "in.jsonl"), str(folder / out), command]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})


def finished(folder: Path, out: str) -> bool:
    with start(folder, out) as process:
        return process.wait(100) == 0


def test_kills_neither_lose_nor_double_anything(tmp_path: Path) -> None:
    count = feed(tmp_path / "in.jsonl")
    (tmp_path / "note.py").write_text("import sys; open(sys.argv[1], 'a').write(sys.stdin.read())")
    assert finished(tmp_path, "whole")
    draw = random.Random(1)
    kills = 0
    num_tries = tries(41, 6, 100)
    for _ in range(num_tries):
        with start(tmp_path, "cut") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "at work\n"
            time.sleep(draw.uniform(0.02, 0.5))
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                kills += 1
            process.wait(30)
    assert kills > num_tries / 2
    assert finished(tmp_path, "cut")
    for name in ("windows.jsonl", "alarms.jsonl"):
        whole, cut = ((tmp_path / out / name).read_text().splitlines() for out in ("whole", "cut"))
        assert cut == whole
    windows = [json.loads(line) for line in (tmp_path / "cut/windows.jsonl").read_text().splitlines()]
    assert sum(window["texts"] for window in windows) == count
    alarms = (tmp_path / "cut/alarms.jsonl").read_text()
    assert len(alarms.splitlines()) == 1
    calls = tmp_path / "cut.calls"
    assert not calls.exists() or calls.read_text() == alarms  # a kill may lose a call, and never doubles one
    assert (tmp_path / "whole.calls").read_text() == alarms
