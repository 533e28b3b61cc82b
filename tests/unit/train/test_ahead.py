"""FAULTS.md row 11: batches come from a thread of the process that trains. What can go wrong with it alone is an error
inside, which is the run's, and a disk that hangs, which ends the run within its time limit."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from remask.errors import DataError, UnavailableError
from remask.train.loop import Ahead

from .toy import ToyBatches


class Slow(ToyBatches):
    """Waits at one cursor until it is told to go on."""

    def take(self, cursor: dict[str, Any]) -> Any:
        if cursor["at"] == 8:
            GO_ON.wait(30)
        if cursor["at"] == 16:
            raise DataError("shard 3 is damaged")
        return super().take(cursor)


GO_ON = threading.Event()


@pytest.fixture(autouse=True)
def waiting() -> Any:
    GO_ON.clear()
    yield
    GO_ON.set()


def taken(ahead: Ahead, count: int) -> list[int]:
    """The first examples of so many steps."""
    cursor, found = {"at": 0}, []
    for _ in range(count):
        batches, cursor = ahead.take(cursor)
        assert batches[0].example_ids_B is not None
        found.append(int(batches[0].example_ids_B[0]))
    return found


def test_batches_and_errors_are_the_source_s_own() -> None:
    GO_ON.set()
    for in_thread in (True, False):
        with Ahead(Slow(), in_thread, 20.0) as ahead:
            assert taken(ahead, 4) == [0, 4, 8, 12]
            assert taken(ahead, 2) == [0, 4]  # back, as after a rollback
            with pytest.raises(DataError, match="shard 3 is damaged"):
                taken(ahead, 5)
    assert not [thread for thread in threading.enumerate() if thread.name == "batches"]


def test_a_batch_that_does_not_come_ends_the_run() -> None:
    with (
        pytest.raises(UnavailableError, match=r"no batch within 0\.2 s \(train\.batch_timeout_seconds\)"),
        Ahead(Slow(), True, 0.2) as ahead,
    ):
        taken(ahead, 3)


def test_a_thread_that_hangs_does_not_keep_the_process() -> None:
    code = """
import threading
from remask.errors import UnavailableError
from remask.train.loop import Ahead

class Never:
    def take(self, cursor):
        threading.Event().wait()

try:
    with Ahead(Never(), True, 0.2) as ahead:
        ahead.take({})
except UnavailableError:
    raise SystemExit(69)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 69
