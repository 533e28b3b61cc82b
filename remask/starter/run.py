"""The whole way from text to a model with a report, stage by stage.

Every stage is the code of its own verb, in its own folder below OUT, and goes on where it was stopped. Without a corpus
it reads the documentation inside the Python libraries on the machine. Not here: how any stage works, and what the
fine-tuning task and the sample sentences are made of (task).
"""

from __future__ import annotations

import datetime
import json
import platform
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import yaml

from remask.artifacts import claim, lock, once, output_errors, write_bytes, write_json
from remask.config import build_run, differences, dump, to_yaml
from remask.documents import read_documents
from remask.errors import ConfigError, DataError, DiskError
from remask.preparation.prepare import prepare
from remask.preparation.settings import PrepareRun
from remask.pretraining.run import pretrain
from remask.pretraining.settings import PretrainRun
from remask.progress import Progress
from remask.reports.report import quickstart_report
from remask.reports.runs import read_run
from remask.schema import Json, Values
from remask.starter.settings import PYTHON_DOCS, QuickstartRun
from remask.starter.task import make_task, sample_sentences
from remask.tune.finetune import finetune
from remask.tune.settings import FinetuneRun
from remask.workers import num_cores

T = TypeVar("T")

MIN_FREE_BYTES = 1_000_000_000
_MARK = ".quickstart"  # by which a folder is known to be one's, before its corpus is read
MIN_HELDOUT_ROWS = 8


@dataclass
class _Clock:
    """Seconds by stage, for the report; what earlier attempts spent counts too."""

    path: Path
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.is_file():
            self.seconds = json.loads(self.path.read_text())

    def time(self, name: str, work: Callable[[], T]) -> T:
        start = time.monotonic()
        try:
            return work()
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - start, 1)
            write_json(self.path, self.seconds)


def quickstart(run: QuickstartRun, out: Path, *, progress: Progress, program: str = "remask") -> Json:
    """The whole way, stage by stage. `program`: how remask is called from a shell here, for what to try next."""
    with lock(out):
        _refuse_another(run, out)
        clock = _Clock(out / ".seconds.json")
        corpus = clock.time("read, clean, learn a vocabulary, tokenise", lambda: _prepare(run, out, progress))
        write_bytes(out / "run.yaml", to_yaml(run).encode())  # from here on the folder is this quickstart's
        trained = clock.time("pretrain and evaluate", lambda: _pretrain(run, out, progress))
        task = clock.time("fine-tune from every start", lambda: _finetune(run, out, progress))
        clock.time("export", lambda: _export(out, corpus, trained))
        samples = clock.time("fill in masks", lambda: _fill_masks(run, out, progress))
        values = {
            "corpus": corpus,
            "evaluation": {key: trained[key] for key in ("loss", "perplexity", "accuracy", "bits_per_byte")},
            "parameters": trained["parameters"],
            "preset": run.preset,
            "task": task,
            "samples": samples,
            "seconds": clock.seconds,
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.machine()}, {num_cores()} cores",
            "model": str(out / "model"),
            "report": str(out / "report.html"),
            "next_commands": _next_commands(out, samples, program),
        }
        write_json(out / "quickstart.json", values)
        write_bytes(out / "report.html", quickstart_report(values, read_run(out / "pretrain")).encode())
    return values


def _refuse_another(run: QuickstartRun, out: Path) -> None:
    """A folder belongs to one quickstart, once its corpus was read; a changed one is refused with the difference."""
    path = out / "run.yaml"
    if path.is_file():
        if changed := differences(yaml.safe_load(path.read_text()), dump(run)):
            words = "; ".join(f"{key} {json.dumps(old)} -> {json.dumps(new)}" for key, old, new in changed)
            raise ConfigError(f"{out}: holds another quickstart ({words}); choose another --out, or remove it")
        return
    claim(out, _MARK)
    with output_errors(out):
        (out / _MARK).touch()
        free = shutil.disk_usage(out).free
    if free < MIN_FREE_BYTES:
        raise DiskError(f"{out}: {free / 1e9:.1f} GB free, {MIN_FREE_BYTES / 1e9:.0f} GB are needed")


# ------------------------------------------------------------------------------------------------- the stages


def _prepare(run: QuickstartRun, out: Path, progress: Progress) -> Json:
    """Documents, a vocabulary and token shards; the counts that the report shows."""
    sources = [{"name": "corpus", "paths": list(run.corpus) or ["pydocs:"], "max_bytes": run.max_corpus_bytes}]
    settings = {
        "seed": run.seed,
        "text.sources": sources,
        "text.heldout_fraction": run.heldout_fraction,
        # One document a module stays one, so that no module is on both sides of the task's split.
        "text.reading.max_document_bytes": run.max_document_bytes if run.corpus else None,
        "tokenizer.vocab_size": run.vocab_size,
        "keep_documents": True,
    }
    made = prepare(build_run(PrepareRun, options=settings).run, out / "prepared", progress=progress)
    length = pretrain_run(run, out).data.length
    heldout = sum(shard["tokens"] for shard in made["shards"] if shard["split"] == "heldout")
    if heldout < MIN_HELDOUT_ROWS * length:
        shutil.rmtree(out / "prepared")  # of no use, and in the way of a second try with other settings
        needed = int(MIN_HELDOUT_ROWS * length * made["bytes"] / max(1, made["tokens"]) / run.heldout_fraction)
        raise DataError(
            f"{' '.join(run.corpus)}: {made['bytes']:,} bytes of text in {made['documents']:,} documents leave "
            f"{heldout:,} tokens to measure on; about {needed:,} bytes in many documents are enough"
            + (", or more of it held out: --set heldout_fraction=0.2" if run.heldout_fraction < 0.2 else "")
        )
    counts = {key: made[key] for key in ("documents", "sentences", "tokens", "bytes", "dropped", "vocab_size")}
    return counts | {
        "name": " ".join(run.corpus) or PYTHON_DOCS,
        "unigram_nats": made["unigram_nats"],
        "bytes_per_token": round(made["bytes"] / made["tokens"], 2),
    }


def pretrain_run(run: QuickstartRun, out: Path, budget: Values | None = None) -> PretrainRun:
    """The preset as a pretraining run on this corpus; `budget` instead of the quickstart's."""
    budget = budget or {"train.minutes": None if run.steps else run.minutes, "train.steps": run.steps}
    options = {"seed": run.seed, "prepared": str(out / "prepared"), **budget}
    return build_run(PretrainRun, options=options, base=run.preset).run


def _pretrain(run: QuickstartRun, out: Path, progress: Progress) -> Json:
    return once(out / "pretrain.json", lambda: pretrain(pretrain_run(run, out), out / "pretrain", progress=progress))


def _finetune(run: QuickstartRun, out: Path, progress: Progress) -> Json | None:
    """The task that comes with the corpus, with the same recipe from every start: pretrained, from scratch and, where
    pretraining began with counts, from these counts alone. What is above them is what training adds."""
    folder = out / "finetune"
    with output_errors(folder):
        folder.mkdir(exist_ok=True)
    documents = read_documents(out / "prepared" / "documents")
    task = make_task(
        documents,
        folder,
        is_python_docs=not run.corpus,
        most=run.task_passages,
        labels=run.task_labels,
        seed=run.seed,
    )
    if task is None:
        progress.say("fine-tuning is left out: too few documents to make a task with a test of its own")
        return None
    settings = {
        "seed": run.seed,
        "seeds": run.seeds,
        "task": task.kind,
        "init": str(out / "pretrain"),
        "train_file": str(task.train),
        "dev_file": str(task.test),
        "table.text": "text",
        "table.text2": "text2" if task.kind == "pair" else None,
        "table.label": "label",
        "rows.max_length": pretrain_run(run, out).model.max_length,
        "pooling": "mean",
        "batch.num_rows": 16,
        "train.epochs": run.task_epochs,
        "train.learning_rate": run.task_learning_rate,
        "train.eval_every": 0,  # only the last state is scored, so that nothing is chosen on the test passages
        "train.save_every": 0,
    }
    starts = {"pretrained": "pretrained", "counted": "counted, not trained", "scratch": "from scratch"}
    if pretrain_run(run, out).start.embeddings != "counted":
        del starts["counted"]
    scores: Json = {"question": task.question, "description": task.description, "starts": starts}
    for start, name in starts.items():
        options = {**settings, "init_weights": start != "scratch"}
        if start == "counted":
            options["init"] = str(_untrained(run, out, progress))
        progress.say(f"fine-tune ({task.question}), {name}")
        result = finetune(build_run(FinetuneRun, options=options).run, folder / start, progress=progress)
        seeds = [seed["metrics"]["accuracy"] for seed in result["runs"]]
        scores[start] = {"median": result["metrics"]["accuracy"], "seeds": seeds}
        scores["majority"] = result["data"]["baseline"]["accuracy"]
    return scores


def _untrained(run: QuickstartRun, out: Path, progress: Progress) -> Path:
    """A model as pretraining began: counted, and not one step trained."""
    options = {"train.steps": 0, "train.minutes": None}
    pretrain(pretrain_run(run, out, options), out / "counted", progress=progress)
    return out / "counted"


def _export(out: Path, corpus: Values, trained: Values) -> None:
    from remask.exports.hf import export_hf

    card = {
        "title": "An encoder made with remask quickstart",
        "description": f"Pretrained on {corpus['name']}: {corpus['tokens']:,} tokens. A first model, made in minutes.",
        "metrics": {
            "held-out loss (nats)": round(trained["loss"], 4),
            "held-out perplexity": round(trained["perplexity"], 2),
            "held-out bits per byte": round(trained["bits_per_byte"], 4),
        },
    }
    export_hf(out / "pretrain", out / "model", card=card, replace=True)


def _fill_masks(run: QuickstartRun, out: Path, progress: Progress) -> list[Json]:
    """What the exported model puts into held-out sentences."""
    from remask.answer.model import load

    sentences = sample_sentences(read_documents(out / "prepared" / "documents"), seed=run.seed)
    if not sentences:
        progress.say("no held-out sentence of a length to show; fill-mask answers are left out of the report")
        return []
    model = load(out / "model")
    samples = []
    for sentence, best in zip(sentences, model.fill_mask([s.masked for s in sentences], top=5), strict=True):
        answers = [{"token_str": answer.token_str, "score": answer.score} for answer in best]
        samples.append({"text": sentence.masked, "hidden": sentence.hidden, "answers": answers})
    return samples


def _next_commands(out: Path, samples: Sequence[Values], program: str) -> list[str]:
    sentence = samples[0]["text"] if samples else "Returns the <mask> of the list."
    model = shlex.quote(str(out / "model"))
    return [
        f"{program} serve {model}",
        f"{program} fill-mask {model} {shlex.quote(sentence)}",
        f"{program} finetune --task classify --init {model} --train my.csv --text body --label topic --out mine",
        f"{program} quickstart path/to/your/texts --minutes 30 --out my-encoder",
    ]
