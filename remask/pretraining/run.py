"""Pretraining as a whole: train an encoder on prepared data.

In: a run (model, data, objective, train), PREPARED, optionally a model to start from. Out: a run folder with run.yaml,
run.json, metrics.jsonl, report.html and checkpoints, which is a MODEL for every other verb. The same call in the same
folder goes on where it stopped. No torch at import. Not here: how any part works.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from remask.artifacts import lock, open_artifact, write_bytes, write_json
from remask.config import dump, to_yaml
from remask.errors import OutputError
from remask.pretraining.settings import PretrainRun
from remask.pretraining.start import make_network, measured_on, prepared_of, with_form
from remask.progress import Progress
from remask.schema import Json
from remask.workers import is_first_rank

if TYPE_CHECKING:
    from remask.tokenizer import Tokenizer

# What a result has at its top of the last evaluation.
MEASURES = ("loss", "perplexity", "accuracy", "bits_per_byte", "bits_per_character")


def pretrain(
    run: PretrainRun, out: Path, *, progress: Progress, allow_change: Sequence[str] = (), dry_run: bool = False
) -> Json:
    """Pretrain, or go on with it; the final held-out measures and where the model is."""
    prepared = prepared_of(run)
    takes_form = run.init_from is not None and "model" not in run.model_fields_set
    if dry_run or not is_first_rank():
        run = with_form(run) if takes_form else run
        return _run(run, prepared, out, progress, allow_change, dry_run)
    with lock(out):  # before torch is imported: a second run in this folder is told so at once
        run = with_form(run) if takes_form else run
        _claim(out, run)
        return _run(run, prepared, out, progress, allow_change, dry_run)


def _claim(out: Path, run: PretrainRun) -> None:
    """A folder that holds something else is not written into; what another pretraining left there is kept until it is
    settled that this one may go on with it."""
    file = out / "run.yaml"
    if not file.is_file():
        mine = (".lock", "validation", ".validation.work")  # what --validation FILE became
        others = [path.name for path in out.iterdir() if path.name not in mine]
        if others:
            raise OutputError(f"{out}: holds something else ({', '.join(sorted(others)[:3])}, …); choose another --out")
        write_bytes(file, to_yaml(run).encode())
    elif any(out.glob("seed-*")) or (out / "results.json").exists():
        raise OutputError(f"{out}: holds another kind of run; choose another --out")


def _run(
    run: PretrainRun, prepared: Path, out: Path, progress: Progress, allow_change: Sequence[str], dry_run: bool
) -> Json:
    from remask.data.batches import open_batches
    from remask.model.store import model_files
    from remask.objectives import Pretraining
    from remask.pretraining.heldout import HeldOut
    from remask.pretraining.preflight import preflight
    from remask.reports.report import training_report
    from remask.reports.runs import read_run
    from remask.tokenizer import load_tokenizer
    from remask.train.distributed import joined
    from remask.train.job import Job
    from remask.train.loop import train
    from remask.train.training import Training

    started = time.monotonic()
    artifact = open_artifact(prepared, "prepared")
    tokenizer = load_tokenizer(prepared / "tokenizer")
    with joined(run.train.rank_timeout_seconds) as world:
        batches = world.first_then_others(
            lambda: open_batches(
                prepared,
                run.data,
                tokenizer,
                seed=run.seed,
                rank=world.rank,
                world_size=world.size,
                total_steps=run.train.steps or 1,  # the loop tells the batches the number it has settled on
                index_folder=None if dry_run else out / "index",
            )
        )
        evaluate = HeldOut.open(measured_on(run, tokenizer), run.data, tokenizer, world)
        start_began = time.monotonic()
        network = world.first_then_others(lambda: make_network(run, tokenizer, progress, None if dry_run else out))
        start_seconds = time.monotonic() - start_began
        numbers = preflight(run, out, network, batches, world, progress)
        if dry_run:
            return {"dry_run": True, **numbers}
        unigram_nats: float | None = artifact.counts.get("unigram_nats")
        record = {**numbers, "machine": _machine(), "unigram_nats": unigram_nats}
        job = Job(
            model=network,
            batches=batches,
            objective=Pretraining(
                run.objective,
                seed=run.seed,
                sentence=run.data.sentence_loss != "none",
                every_pass=run.train.parallel == "fsdp",
            ),
            settings=run.train,
            folder=out,
            seed=run.seed,
            identity=_identity(run, artifact.fingerprint, tokenizer),
            carried=model_files(
                network.settings,
                network.head_settings,
                prepared / "tokenizer",
                updates=run.lora if run.learn == "lora" else None,
            ),
            evaluate=evaluate,
            allow_change=allow_change,
            name="pretrain",
            flops_per_token=numbers["flops_per_token"],
            spent_seconds=start_seconds,
        )
        with Training(job, progress, world) as training:
            # From here on the folder is this run's: one that is refused, or has nothing left to do, is not recorded.
            if world.is_first and not training.is_over:
                write_bytes(out / "run.yaml", to_yaml(run).encode())
                write_json(out / "run.json", record)
            result = train(training)
        values = {
            "step": result.step,
            "tokens": int(result.metrics.get("train/tokens", 0)),
            "checkpoint": str(result.checkpoint),
            "metrics": dict(result.metrics),
            "seconds": round(time.monotonic() - started, 1),
            **{name: result.metrics[f"eval/{name}"] for name in MEASURES if f"eval/{name}" in result.metrics},
        }
        if world.is_first:
            write_json(out / "run.json", {**record, "result": values})
            write_bytes(out / "report.html", training_report(read_run(out), unigram_nats).encode())
        return {**values, "unigram_nats": unigram_nats, "parameters": numbers["parameters"]}


def _identity(run: PretrainRun, data: str, tokenizer: Tokenizer) -> Json:
    """What must not change between a start and a resume. Paths may: what they hold has fingerprints. Trackers may.
    What came later and is not used is left out, so that runs of an earlier version go on."""
    config = dump(run)
    del config["prepared"], config["validation"], config["train"]["trackers"]
    if run.learn == "all":
        del config["learn"], config["lora"]
    for name in ("bottleneck_size", "prefix_length"):
        if not config["model"][name]:
            del config["model"][name]
    if not run.data.evaluation.sources:
        del config["data"]["evaluation"]["sources"]
    if run.validation is not None:
        config["validation"] = open_artifact(run.validation, "prepared").fingerprint
    return {**config, "fingerprints": {"data": data, "tokenizer": tokenizer.fingerprint}}


def _machine() -> Json:
    import torch

    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
