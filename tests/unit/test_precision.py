"""Choosing device and number format; a format that kills the process must only kill the child."""

from __future__ import annotations

import signal

import pytest
import torch

from remask import precision
from remask.errors import ConfigError, UnavailableError
from remask.precision import Precision, choose_device, choose_precision, probe, products_per_second

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh_answers() -> None:
    precision.probe.cache_clear()


def test_a_format_that_kills_the_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_PROBE", f"import os\nos.kill(os.getpid(), {int(signal.SIGILL)})")
    monkeypatch.setattr(precision, "_has_bf16", lambda device: True)
    works, reason = probe("bf16", "cpu")
    assert not works
    assert "SIGILL" in reason
    assert choose_precision("auto", CPU) == ("fp32", f"bf16 does not work here: {reason}")
    with pytest.raises(UnavailableError, match=r"precision = bf16: .*SIGILL.*use fp32 or auto"):
        choose_precision("bf16", CPU)


def test_a_failing_or_hanging_trial_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_PROBE", "raise RuntimeError('no such product')")
    assert probe("bf16", "cpu") == (False, "a trial product failed: RuntimeError: no such product")
    precision.probe.cache_clear()
    monkeypatch.setattr(precision, "_PROBE", "import time\ntime.sleep(60)")
    monkeypatch.setattr(precision, "PROBE_SECONDS", 0.2)
    assert not probe("bf16", "cpu")[0]


@pytest.mark.parametrize("ratio", [0.5, 2.5])
def test_auto_follows_the_hardware_and_not_the_load_of_the_moment(
    monkeypatch: pytest.MonkeyPatch, ratio: float
) -> None:
    monkeypatch.setattr(precision, "_PROBE", f"print('{{\"ratio\": {ratio}}}')")
    monkeypatch.setattr(precision, "_has_bf16", lambda device: True)
    assert choose_precision("auto", CPU)[0] == "bf16"
    monkeypatch.setattr(precision, "_has_bf16", lambda device: False)
    assert choose_precision("auto", CPU) == ("fp32", "bf16 products are not made for this processor")


def test_auto_keeps_what_the_run_began_with_where_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine may have another favourite; a resume must not follow it."""
    monkeypatch.setattr(precision, "_PROBE", "print('{\"ratio\": 2.0}')")
    monkeypatch.setattr(precision, "_has_bf16", lambda device: False)
    assert choose_precision("auto", CPU)[0] == "fp32"
    assert choose_precision("auto", CPU, used="bf16") == ("bf16", "as this run began")
    monkeypatch.setattr(precision, "_has_bf16", lambda device: True)
    assert choose_precision("auto", CPU, used="fp32") == ("fp32", "as this run began")
    precision.probe.cache_clear()
    monkeypatch.setattr(precision, "_PROBE", "raise RuntimeError('no')")
    assert choose_precision("auto", CPU, used="bf16")[0] == "fp32"


def test_the_answer_is_kept_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_PROBE", "print('{\"ratio\": 2.0}')")
    first = probe("bf16", "cpu")
    monkeypatch.setattr(precision, "_PROBE", "raise SystemExit(1)")
    assert probe("bf16", "cpu") == first


def test_the_real_probe_answers() -> None:
    works, reason = probe("fp32", "cpu")
    assert works
    works, reason = probe("bf16", "cpu")
    assert works == reason.startswith("works")


def test_devices() -> None:
    assert choose_device("cpu") == CPU
    assert choose_device("auto").type in ("cpu", "cuda", "mps")
    with pytest.raises(ConfigError, match="must be auto, cpu"):
        choose_device("toaster")
    if not torch.cuda.is_available():
        with pytest.raises(UnavailableError, match="no CUDA device"):
            choose_device("cuda")
    assert products_per_second(CPU) > 1e6


def test_the_loss_scale_halves_on_overflow_grows_after_calm_and_goes_on() -> None:
    scaled = Precision("fp16", CPU)
    assert scaled.overflowed()
    assert scaled.scale == Precision.FIRST_SCALE / 2
    for _ in range(Precision.GROW_AFTER):
        scaled.finite()
    assert scaled.scale == Precision.FIRST_SCALE
    other = Precision("fp16", CPU)
    other.load(scaled.state())
    assert other.state() == scaled.state()
    scaled.scale = 1.0
    assert not scaled.overflowed()  # nothing left to halve: the step is bad
    assert not Precision("fp32", CPU).overflowed()
