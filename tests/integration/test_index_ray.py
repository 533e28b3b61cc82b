"""`remask index --engine ray` as a user calls it: the same bytes as on this machine alone, and a search in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def remask(*words: str | Path) -> str:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "OMP_NUM_THREADS": "1"
    }  # fmt: skip
    command = [sys.executable, "-m", "remask", *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_ray_cluster_makes_the_same_bytes(task_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    docs = tmp_path / "docs.jsonl"
    rows = ({"id": f"d{i}", "text": f"the old dark thing number {i} is good"} for i in range(1_100))
    docs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = {}
    for engine in ("ray", "local"):
        out = tmp_path / engine
        remask("index", task_model, docs, "--engine", engine, "--workers", 1, "--out", out)
        made[engine] = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert made["ray"] == made["local"]
    found = json.loads(remask("search", tmp_path / "ray", "thing number 77", "--by", "words", "--top", 1, "--json"))
    assert found["hits"][0]["id"] == "d77"
