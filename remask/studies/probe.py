"""How long a cell takes on this machine, before it is done.

In: a plan and what is finished already. Out: minutes by row and seed. A few steps of the reference row are trained and
timed, on one thread as the study does; other rows and the evaluations count by their arithmetic. Where cells are
finished, their own times count instead. Not here: doing cells.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from remask.artifacts import write_bytes
from remask.config import to_yaml
from remask.errors import GaveUpError
from remask.pretraining.settings import PretrainRun
from remask.progress import Progress
from remask.reports.runs import read_run
from remask.schema import Values
from remask.studies.cells import Place
from remask.studies.plan import Cell, StudyPlan, Variant, tasks_of, tokens_of, tuned

PROBE_STEPS = 12
_WARM_STEPS = 4  # the first ones are slower
_START_SECONDS = 20.0  # imports, indices, counting, checkpoints
_TRAINING = 3  # forward and backward passes by the arithmetic of a forward pass
# Roughly: paradigms of BLiMP, rows of a pair of sentences (each token is masked once), tokens of a row.
_PARADIGMS, _PAIR_ROWS, _PAIR_TOKENS = 67, 22, 14
_TASK_TOKENS, _PASSAGE_TOKENS = 40, 260
_TASK_EXAMPLES = 10_000  # where there is no limit

Times = dict[tuple[str, int], float]


def cell_minutes(
    plan: StudyPlan,
    places: Mapping[tuple[str, int], Place],
    results: Mapping[tuple[str, int], Values | None],
    data: Mapping[Variant, Path],
    progress: Progress,
) -> Times:
    """Of every cell, finished or not."""
    known = _known(plan, results)
    if len(known) == len(plan.study.rows):
        return {key: known[key[0]] for key in places}
    reference = next(cell for cell in plan.cells if not cell.origin)
    vocab_size = plan.scale.vocab_size
    per_token = _flops_per_token(reference.run, vocab_size)
    seconds_per_flop = _probed(reference, data[reference.variant], progress) / per_token
    minutes = {}
    for cell in plan.cells:
        flops = _evaluation_flops(plan, cell)
        if not cell.row.model_of:
            flops += tokens_of(cell.run) * _flops_per_token(cell.run, vocab_size)
        budget = 0.0 if cell.row.model_of else cell.run.train.minutes or 0.0
        estimated = budget + (_START_SECONDS + flops * seconds_per_flop) / 60
        minutes[cell.label, cell.seed] = known.get(cell.label, estimated)
    return minutes


def _known(plan: StudyPlan, results: Mapping[tuple[str, int], Values | None]) -> dict[str, float]:
    """The median over the finished seeds of a row."""
    known = {}
    for label, row in plan.study.rows.items():
        times = [
            result["evaluation_minutes"] + (0.0 if row.model_of else result["minutes"])
            for (of_label, _), result in results.items()
            if of_label == label and result is not None and "evaluation_minutes" in result
        ]
        if times:
            known[label] = statistics.median(times)
    return known


def _probed(cell: Cell, prepared: Path, progress: Progress) -> float:
    """Seconds of a token in training."""
    with tempfile.TemporaryDirectory(prefix="remask-probe-") as folder, progress.stage("probe", PROBE_STEPS, "steps"):
        train = cell.run.train.model_copy(
            update={"steps": PROBE_STEPS, "tokens": None, "epochs": None, "minutes": None, "log_every": 1,
                    "eval_every": 0, "save_every": 0}
        )  # fmt: skip
        run = cell.run.model_copy(update={"train": train, "prepared": prepared})
        file, out = Path(folder) / "probe.yaml", Path(folder) / "run"
        write_bytes(file, to_yaml(run).encode())
        done = subprocess.run(
            [sys.executable, "-m", "remask", "pretrain", str(file), "--out", str(out), "-q"],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise GaveUpError(f"the probe failed: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
        rows = [row for row in read_run(out).rows if "train/tokens" in row]
        first, last = rows[min(_WARM_STEPS, len(rows) - 2)], rows[-1]
        return (last["time"] - first["time"]) / max(1.0, last["train/tokens"] - first["train/tokens"])


def _flops_per_token(run: PretrainRun, vocab_size: int) -> float:
    from remask.model import cost
    from remask.model.settings import HeadSettings

    heads = HeadSettings(masked_lm=True, sentence=run.data.sentence_loss != "none")
    model = run.model.model_copy(update={"vocab_size": run.model.vocab_size or vocab_size})
    return _TRAINING * sum(cost.flops_per_token(model, heads, run.data.length).values())


def _evaluation_flops(plan: StudyPlan, cell: Cell) -> float:
    """Arithmetic of BLiMP and of the fine-tunings; the rest is little."""
    forward = _flops_per_token(cell.run, plan.scale.vocab_size) / _TRAINING
    tokens = 0.0
    if "blimp" in plan.study.evaluations:
        tokens += _PARADIGMS * (plan.scale.max_pairs or 1000) * _PAIR_ROWS * _PAIR_TOKENS
    for task in tasks_of(plan.study):
        run = tuned(plan, task, cell.row, cell.label)
        length = _PASSAGE_TOKENS if task in ("squad1", "squad2", "race") else _TASK_TOKENS
        passes = _TRAINING * (run.train.epochs or 1) * (run.max_train or _TASK_EXAMPLES)
        tokens += length * (passes + (run.train.epochs or 1) * (run.max_dev or _TASK_EXAMPLES))
    return forward * tokens
