"""A whole study at the smallest scale: killed in the middle and continued, with a row that is broken."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from remask.__main__ import cli
from remask.config import build_run
from remask.errors import MissingInputError
from remask.progress import Progress
from remask.studies.cells import EXAMPLES, read_examples
from remask.studies.runner import study_cell
from remask.studies.settings import StudyRun

STUDY = """
title: "Does a mask that never changes hurt?"
evaluations: [heldout]
scale: smoke
seeds: 2
workers: 1
settings: {train: {steps: 30, save_every: 5, eval_every: 15, warmup: 0.0}}
rows:
  plain: {}
  static: {settings: {data: {masking: {repeat: static}, max_tokens: 2000}}, paper: {score: 78.3}}
  wild: {settings: {train: {learning_rate: 30.0, spike_sigmas: 0.0}}}
  same as plain: {note: true, about: the same settings under another name}
expect: {static: worse}
decide: {metric: bits_per_byte, difference: 0.01}
"""


def command(file: Path, prepared: Path, out: Path, *more: str) -> list[str]:
    words = ["study", str(file), "--data", str(prepared), "--out", str(out), *more]
    return [sys.executable, "-m", "remask", *words]


def results(out: Path) -> dict[str, int]:
    """Finished cells and when they were finished."""
    return {path.parent.name: path.stat().st_mtime_ns for path in out.glob("cells/*/result.json")}


@pytest.mark.timeout(600)
def test_a_study_killed_in_the_middle_goes_on(tiny_prepared: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "mine.yaml", tmp_path / "out"
    file.write_text(STUDY)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen(command(file, tiny_prepared, out), env=env, stderr=subprocess.PIPE)
    while not results(out):
        assert first.poll() is None, first.stderr.read().decode() if first.stderr else ""
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    kept = results(out)
    assert 1 <= len(kept) < 6
    # Some of the others are made by hand, which is a process less for each.
    run = build_run(StudyRun, file, options={"prepared": str(tiny_prepared), "name": "mine"}).run
    for row, seed in (("static", 0), ("static", 1), ("wild", 0)):
        study_cell(run, out, row, seed, progress=Progress(quiet=True))
    kept = results(out)
    assert 4 <= len(kept) < 6

    while (
        done := subprocess.run(command(file, tiny_prepared, out, "--json"), env=env, capture_output=True)
    ).returncode:
        # The cell of the killed one may still be ending; then it has its folder for a moment.
        assert b"another remask is running" in done.stderr or b"crashed" in done.stderr, done.stderr.decode()
        time.sleep(0.5)
    values = json.loads(done.stdout)
    finished = results(out)
    assert len(finished) == 6, "rows that are the same are done once"
    assert {name: finished[name] for name in kept} == kept, "a finished run is never done again"
    check(values, out)

    again = CliRunner().invoke(cli, command(file, tiny_prepared, out, "-q")[3:])
    assert again.exit_code == 0, again.output
    assert results(out) == finished


def check(values: dict[str, Any], out: Path) -> None:
    kept = json.loads((out / "mine.json").read_text())
    assert {"name", "scale", "hardware", "date", "rows"} <= kept.keys()
    assert (kept["name"], kept["scale"]) == ("mine", "smoke")
    rows = {row["label"]: row for row in values["rows"]}
    assert list(rows) == ["plain", "static", "wild", "same as plain"]
    plain, static, wild, same = rows.values()
    for row in (plain, static, same):
        spread = row["metrics"]["bits_per_byte"]
        assert row["seeds"] == [0, 1]
        assert spread["low"] <= spread["median"] <= spread["high"]
        assert row["tokens"] > 0
        assert row["minutes"] > 0
    # The broken row is shown as such, and is in no number.
    assert wild["seeds"] == []
    assert len(wild["broken"]) == 2
    reasons = [reason for reasons in wild["broken"].values() for reason in reasons]
    assert all(reason.startswith(("diverged", "ends above the unigram loss")) for reason in reasons), reasons
    assert wild["metrics"] == {}
    assert wild["verdicts"] == {}
    # Verdicts in words, beside what was expected.
    said = static["verdicts"]["bits_per_byte"]
    assert said["word"] in ("better", "worse", "no difference seen")
    assert said["low"] <= said["value"] <= said["high"]
    assert static["beside_expected"].startswith("expected worse")
    assert same["verdicts"]["bits_per_byte"]["value"] == 0.0
    assert ["data.masking.repeat", "dynamic", "static"] in static["settings"]
    page = (out / "mine.html").read_text()
    assert "Does a mask that never changes hurt? (scale: smoke)" in page
    assert "Runs that are no results" in page


def test_one_cell_for_a_job_array_can_be_dropped_in(tiny_prepared: Path, tmp_path: Path) -> None:
    """Made in another folder by --row and --seed, under another label: the study takes it as its own."""
    file = tmp_path / "mine.yaml"
    file.write_text(STUDY)
    options = {"prepared": str(tiny_prepared), "seeds": 1, "settings.train.steps": 6}
    here = build_run(StudyRun, file, options=options | {"name": "here"}).run
    made = study_cell(here, tmp_path / "there", "1", 0, progress=Progress(quiet=True))
    (tmp_path / "out" / "cells").mkdir(parents=True)
    Path(made["folder"]).rename(tmp_path / "out" / "cells" / Path(made["folder"]).name)
    again = study_cell(here, tmp_path / "out", "same as plain", 0, progress=Progress(quiet=True))
    assert again["metrics"] == made["metrics"]
    assert len(list((tmp_path / "out" / "cells").iterdir())) == 1, "it was found, not trained again"


def test_a_model_that_was_not_kept_is_trained_again_where_a_row_goes_on_from_it(
    tiny_prepared: Path, tmp_path: Path
) -> None:
    """Results of finished cells are kept alone, as on another machine: two small files each."""
    file, out = tmp_path / "mine.yaml", tmp_path / "out"
    more = "  longer: {start_from: plain}\n  taken: {model_of: plain}\n"
    file.write_text(STUDY.replace("  plain: {}\n", f"  plain: {{}}\n{more}"))
    options = {"prepared": str(tiny_prepared), "seeds": 1, "name": "mine"}
    run = build_run(StudyRun, file, options=options).run
    made = study_cell(run, out, "plain", 0, progress=Progress(quiet=True))
    assert not made["broken"]
    model = Path(made["folder"]) / "pretrain/model/model.safetensors"
    weights = model.read_bytes()
    kept = results(out)
    shutil.rmtree(model.parents[1])
    with pytest.raises(MissingInputError, match=r"make that one first \(--row 1\)"):
        study_cell(run, out, "longer", 0, progress=Progress(quiet=True))
    assert study_cell(run, out, "plain", 0, progress=Progress(quiet=True)) == made
    assert model.read_bytes() == weights
    assert results(out) == kept, "what was measured stands"
    assert study_cell(run, out, "longer", 0, progress=Progress(quiet=True))["metrics"] != made["metrics"]

    # A model that a row takes as it is is not measured again: what stands in that row's files is believed, even this.
    arrays = read_examples(Path(made["folder"])) | {"bits_per_byte": np.array([1.25])}
    np.savez(Path(made["folder"]) / EXAMPLES, **arrays)
    assert study_cell(run, out, "taken", 0, progress=Progress(quiet=True))["metrics"]["bits_per_byte"] == 1.25
