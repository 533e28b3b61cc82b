"""Tasks on processes: order, errors, stopping, and no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remask import signals
from remask.errors import DataError, GaveUpError, Stopped, UnavailableError
from remask.workers import num_cores, run_tasks


def _slow_square(number: int) -> int:
    time.sleep(0.2 if number == 0 else 0.0)
    return number * number


def _refuse(number: int) -> int:
    if number == 3:
        raise DataError(f"record {number} is bad")
    return number


def _break(number: int) -> int:
    raise ZeroDivisionError(f"number {number}")


def _die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_item_order(workers: int) -> None:
    done: list[tuple[int, int]] = []
    results = run_tasks(_slow_square, range(6), workers=workers, on_done=lambda i, r: done.append((i, r)))
    assert results == [0, 1, 4, 9, 16, 25]
    assert sorted(done) == list(enumerate(results))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_user_error_keeps_its_class_and_line(workers: int) -> None:
    with pytest.raises(DataError, match="record 3 is bad"):
        run_tasks(_refuse, range(6), workers=workers)


def test_our_error_brings_the_workers_traceback() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run_tasks(_break, range(3), workers=2)
    assert any("_break" in note for note in caught.value.__notes__)


def test_a_killed_worker_is_a_clear_error() -> None:
    with pytest.raises(GaveUpError, match="worker process ended"):
        run_tasks(_die, range(3), workers=2)


def test_a_signal_stops_between_results(tmp_path: Path) -> None:
    """SIGTERM while both workers sleep: Stopped at once, and the workers are gone."""
    script = tmp_path / "stopped.py"
    script.write_text(
        "import os, signal, sys, threading, time\n"
        "from pathlib import Path\n"
        "from remask import signals\n"
        "from remask.errors import Stopped\n"
        "from remask.workers import run_tasks\n"
        "import sleeper\n"
        "if __name__ == '__main__':\n"
        "    folder = Path(sys.argv[1])\n"
        "    def stop():\n"
        "        while len(list(folder.glob('pid*'))) < 2: time.sleep(0.05)\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    threading.Thread(target=stop).start()\n"
        "    try:\n"
        "        with signals.catch():\n"
        "            run_tasks(sleeper.sleep, [folder / 'pid0', folder / 'pid1'], workers=2)\n"
        "    except Stopped:\n"
        "        sys.exit(75)\n"
    )
    (tmp_path / "sleeper.py").write_text(
        "import os, time\n\n\ndef sleep(path):\n    path.write_text(str(os.getpid()))\n    time.sleep(120)\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path(__file__).resolve().parents[2]}"}
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], env=environment, timeout=60, check=False)
    assert done.returncode == 75
    assert not _alive([int((tmp_path / name).read_text()) for name in ("pid0", "pid1")])


def test_workers_die_with_a_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(
        "import os, time\n\n\ndef sleep(path):\n    path.write_text(str(os.getpid()))\n    time.sleep(120)\n"
    )
    script = tmp_path / "killed.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom remask.workers import run_tasks\nimport sleeper\n"
        "if __name__ == '__main__':\n"
        "    folder = Path(sys.argv[1])\n"
        "    run_tasks(sleeper.sleep, [folder / 'pid0', folder / 'pid1'], workers=2)\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path(__file__).resolve().parents[2]}"}
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path)], env=environment)
    files = [tmp_path / "pid0", tmp_path / "pid1"]
    deadline = time.monotonic() + 60
    while not all(file.is_file() and file.read_text() for file in files) and time.monotonic() < deadline:
        time.sleep(0.05)
    pids = [int(file.read_text()) for file in files]
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while _alive(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(pids)


def _alive(pids: list[int]) -> list[int]:
    """Processes that still run; one that nobody has waited for yet is dead all the same."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            continue
        if state != "Z":
            found.append(pid)
    return found


def test_inline_work_looks_for_signals() -> None:
    def work(number: int) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return number

    with signals.catch(), pytest.raises(Stopped):
        run_tasks(work, range(3), workers=1)


def test_num_cores_is_what_this_process_may_use() -> None:
    assert 1 <= num_cores() <= (os.cpu_count() or 1)


def test_without_the_extra_ray_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnavailableError, match=r"pip install .*\[ray\]"):
        run_tasks(_slow_square, range(2), workers=2, engine="ray")
