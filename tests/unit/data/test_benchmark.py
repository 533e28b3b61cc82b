"""The figures of benchmarks/batches.py: which they are, not how large."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "batches.py"


def test_a_batch_as_a_share_of_a_step(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("batches_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    found = script.share_of_step(script.write_corpus(tmp_path / "prepared", 20_000), 1)
    assert {"name", "ratio", "peer", "ours", "unit"} <= found.keys()
    assert found["ratio"] == pytest.approx(100 * found["ours"] / found["peer"], abs=2e-3)
    assert min(found["ours"], found["peer"]) > 0
