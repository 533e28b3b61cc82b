"""benchmarks/order.py and scale.py: what docs/scale.md is made from, at small sizes."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remask.data import order

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


def figures(name: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The last line of a script."""
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(sys, "argv", [name, *words.split()])
    script.main()
    return json.loads(capsys.readouterr().out.splitlines()[-1])


SMALL = "--examples 20000 --ranks 16 --rows 128 --json"


def test_the_order_deals_every_example_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = figures("order", SMALL, capsys, monkeypatch)
    assert (found["repeated"], found["never"]) == (0, 0)
    assert found["rows_dealt"] == 20_000 // 128 * 128
    assert found["rows_per_rank"] == [found["rows_dealt"] // 16] * 2
    assert 0.8 < found["chi_square_of_steps_over_the_corpus"] < 1.2


def test_the_order_s_count_sees_what_comes_twice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = order.permute
    monkeypatch.setattr(order, "permute", lambda index, size, key: np.maximum(plain(index, size, key), 5))
    found = figures("order", SMALL, capsys, monkeypatch)
    assert 15 <= found["repeated"] <= 20  # five of each of the four sources, but for those in the last, open step
    assert found["never"] > 0


def test_the_scale_of_the_paper_s_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = figures("scale", "--gpus 8,1024", capsys, monkeypatch)
    rows = {(row["base"], row["gpus"], row["parallel"]): row for row in found["rows"]}
    large = rows["roberta_large", 8, "ddp"]
    assert large["parameters"] == 355_412_057  # as transformers counts roberta-large with its masked-LM head
    assert large["state_gb"] == pytest.approx(16 * 0.355412, abs=0.01)
    assert large["traffic_gb"] == pytest.approx(2 * 7 / 8 * 4 * 0.355412, abs=0.01)
    assert large["micro_batches"] == 8192 / 8 / 32
    fsdp = rows["roberta_large", 8, "fsdp"]
    assert fsdp["traffic_gb"] == pytest.approx(32 * 7 / 8 * 12 * 0.355412, abs=0.01)
    assert fsdp["state_gb"] < large["state_gb"] / 4
    assert rows["roberta_base", 1024, "ddp"]["days"] < rows["roberta_base", 8, "ddp"]["days"] / 40
