"""Stopping: the first signal asks, the second ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from remask import signals
from remask.errors import Stopped


def test_a_signal_sets_the_flag_and_check_raises() -> None:
    before = signal.getsignal(signal.SIGINT)
    with signals.catch():
        signals.check()
        assert not signals.requested()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        assert signals.requested()
        with pytest.raises(Stopped) as caught:
            signals.check()
        assert caught.value.exit_code == 75
    assert signal.getsignal(signal.SIGINT) is before
    assert not signals.requested()


def test_a_second_signal_ends_a_busy_process() -> None:
    code = (
        "from remask import signals\nimport time\n"
        "with signals.catch():\n print('up', flush=True)\n while True: time.sleep(0.01)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert child.poll() is None
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=20) == -signal.SIGINT
