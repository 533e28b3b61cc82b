"""A study as a whole: its data, its cells side by side, then the table, the page and the JSON.

In: a StudyRun and OUT. Out: OUT/cells (a folder for every row and seed, named by its fingerprint), OUT/NAME.json and
OUT/NAME.html. A cell is a process of its own (`python -m remask study FILE --row K --seed S`, one thread), so that a
crash is one cell's; on a Ray cluster the same command runs there. Killed and repeated it goes on, and finished cells
are never done again. Not here: a cell's work (cells), what the numbers say (results, page).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from remask import artifacts, signals
from remask.config import to_yaml
from remask.errors import Stopped
from remask.progress import Progress, duration
from remask.schema import Json
from remask.studies.cells import Place, lacks_model, make_cell, place_of, read_result
from remask.studies.data import open_data
from remask.studies.plan import StudyPlan, Variant, make_plan, numbered
from remask.studies.settings import PARENT_VARIABLE, StudyRun
from remask.workers import num_cores, run_tasks

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class _Job:
    """A cell for whoever does it: a command and where its words go."""

    label: str
    seed: int
    words: tuple[str, ...]  # behind `python -m remask`
    log: str


def study(run: StudyRun, out: Path, *, progress: Progress) -> Json:
    """All cells that are not finished, then the page. What is in OUT/NAME.json comes back."""
    from remask.studies.page import study_page
    from remask.studies.results import summarise

    plan = make_plan(run)
    out = out.absolute()
    with artifacts.lock(out / run.name):
        data = open_data(plan, out, progress)
        crashed = _do(plan, _places(plan, out, data), out, progress)
        # Looked up again: rows that are the same share the folder that one of them made.
        values = summarise(plan, _places(plan, out, data), out, crashed)
        artifacts.write_json(out / f"{run.name}.json", values)
        artifacts.write_bytes(out / f"{run.name}.html", study_page(values).encode())
    return {
        **values,
        "crashed": len(crashed),
        "page": str(out / f"{run.name}.html"),
        "json": str(out / f"{run.name}.json"),
    }


def study_cell(run: StudyRun, out: Path, row: str, seed: int, *, progress: Progress) -> Json:
    """Just one cell, for a cluster's job array and for the processes that `study` starts."""
    plan = make_plan(run)
    cell = plan.cell(numbered(run, row), seed)
    out = out.absolute()
    place = place_of(plan, cell, out, open_data(plan, out, progress))
    result = make_cell(plan, cell, place, progress)
    shown = ("label", "seed", "broken", "metrics", "tokens", "minutes", "parameters", "flops")
    return {"folder": str(place.folder), **{key: result[key] for key in shown if key in result}}


def _places(plan: StudyPlan, out: Path, data: Mapping[Variant, Path]) -> dict[tuple[str, int], Place]:
    return {(cell.label, cell.seed): place_of(plan, cell, out, data) for cell in plan.cells}


# ------------------------------------------------------------------------------------------------ doing the cells


def _do(
    plan: StudyPlan, places: Mapping[tuple[str, int], Place], out: Path, progress: Progress
) -> dict[tuple[str, int], str]:
    """Every unfinished cell as a process; those that start from another's model after all others. Gives what crashed,
    with its last words."""
    run = plan.study
    file = out / run.name / "study.yaml"
    artifacts.write_bytes(file, to_yaml(run).encode())
    crashed: dict[tuple[str, int], str] = {}
    unfinished = [cell for cell in plan.cells if read_result(places[cell.label, cell.seed]) is None]
    origins = {(cell.origin, cell.seed) for cell in unfinished}
    for needs_others in (False, True):
        waiting = [cell for cell in plan.cells if (cell.origin is not None) == needs_others]
        jobs: dict[str, _Job] = {}  # by fingerprint: rows that are the same are one cell
        for cell in waiting:
            place = places[cell.label, cell.seed]
            result = read_result(place)
            is_done = result is not None and not ((cell.label, cell.seed) in origins and lacks_model(place, result))
            if not is_done and place.fingerprint not in jobs:
                jobs[place.fingerprint] = _job(run, cell.label, cell.seed, file, out)
        workers = min(run.workers or num_cores(), len(jobs))
        if not jobs:
            continue
        progress.say(f"{run.name}: {len(jobs)} of {len(waiting)} runs to do, {workers} side by side")
        with progress.stage(run.name, len(jobs), "runs") as stage:
            done = run_tasks(
                _run_job, list(jobs.values()), workers=workers, engine=run.engine, on_done=lambda *_: stage.advance(1)
            )
        for job, words in zip(jobs.values(), done, strict=True):
            if words:
                crashed[job.label, job.seed] = words
                progress.warn(f"{job.label}, seed {job.seed}: {words} (log: {job.log})")
    return crashed


def _job(run: StudyRun, label: str, seed: int, file: Path, out: Path) -> _Job:
    number = list(run.rows).index(label) + 1
    words = ("study", str(file), "--row", str(number), "--seed", str(seed), "--out", str(out))
    return _Job(label, seed, words, str(out / run.name / f"row{number}-s{seed}.log"))


def _run_job(job: _Job) -> str:
    """The process of a cell; gives "" or what it died of. One thread: cells share the cores among them."""
    environment = {**os.environ, **dict.fromkeys(_THREADS, "1"), PARENT_VARIABLE: str(os.getpid())}
    with open(job.log, "ab") as log:
        command = [sys.executable, "-m", "remask", *job.words]
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        while process.poll() is None:
            if signals.requested():
                process.terminate()
                process.wait()
                signals.check()
            time.sleep(_POLL_SECONDS)
    if process.returncode == 0:
        return ""
    if process.returncode == Stopped.exit_code:
        raise Stopped("a run was stopped; run the same command again to go on")
    return f"exit code {process.returncode}: {_last_line(Path(job.log))}"


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no word"


# -------------------------------------------------------------------------------------------------- how long


def estimate(run: StudyRun, out: Path, *, progress: Progress) -> Json:
    """How long the study will take here. The text is prepared (the study goes on from there), a few steps of the
    reference row are timed, and other rows count by their arithmetic. Cells that are done need no time, and once some
    are done their own times count."""
    from remask.studies.probe import cell_minutes

    plan = make_plan(run)
    out = out.absolute()
    data = open_data(plan, out, progress)
    places = _places(plan, out, data)
    results = {key: read_result(place) for key, place in places.items()}
    seen = {place.fingerprint for place in places.values()}
    done = {places[key].fingerprint for key, result in results.items() if result is not None}
    minutes = cell_minutes(plan, places, results, data, progress)
    left = {places[key].fingerprint: minutes[key] for key in places if places[key].fingerprint not in done}
    workers = min(run.workers or num_cores(), max(1, len(left)))
    total = max([sum(left.values()) / workers, *left.values()], default=0.0)
    rows = {label: round(minutes[label, run.seed], 2) for label in run.rows}
    return {
        "name": run.name, "scale": run.scale, "runs": len(seen), "finished": len(done), "workers": workers,
        "minutes_by_row": rows, "minutes": round(total, 1), "words": duration(total * 60),
    }  # fmt: skip
