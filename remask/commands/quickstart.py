"""`remask quickstart`: from a folder of text to a pretrained, fine-tuned, exported model with a report.

Every stage is the code of its own verb, in its own folder below OUT, and goes on where it was stopped. Without a
corpus it reads the documentation inside the Python libraries on the machine. Not here: how any stage works, and what
the fine-tuning task and the sample sentences are made of (quickstart_task).
"""

from __future__ import annotations

import datetime
import json
import platform
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml

from remask.artifacts import claim, lock, output_errors, write_bytes, write_json
from remask.commands import Common, common_options, program
from remask.commands.finetune import FinetuneRun
from remask.commands.prepare import PrepareRun
from remask.commands.prepare import main as prepare
from remask.commands.pretrain import PretrainRun
from remask.commands.pretrain import main as pretrain
from remask.commands.quickstart_task import make_task, sample_sentences
from remask.config import Config, build_run, differences, dump, setting, to_yaml
from remask.documents import read_documents
from remask.errors import ConfigError, DataError, DiskError
from remask.progress import Progress, duration
from remask.tune.finetune import finetune
from remask.workers import num_cores

T = TypeVar("T")

MIN_FREE_BYTES = 1_000_000_000
MIN_HELDOUT_ROWS = 8
PYTHON_DOCS = "the documentation of this machine's Python libraries"


class QuickstartRun(Config):
    """What a quickstart may be told; everything else is the preset's."""

    seed: int = setting(0, "the one seed that everything random follows from", ge=0)
    corpus: tuple[str, ...] = setting((), f"files, folders or globs; none: {PYTHON_DOCS}")
    preset: str = setting("quickstart", "a file of runs/bases: network and recipe")
    minutes: float = setting(5.0, "for pretraining; the rest takes some two minutes more", gt=0)
    steps: int | None = setting(None, "pretrain for so many steps instead", ge=1)
    vocab_size: int = setting(8192, "entries of the vocabulary", ge=300)
    max_corpus_bytes: int = setting(16_000_000, "a larger corpus is sampled: more is not read in minutes", ge=1000)
    max_document_bytes: int = setting(20_000, "longer texts are cut, so that a book can be held out in part", ge=100)
    heldout_fraction: float = setting(0.05, "share of the documents that is never trained on", gt=0, lt=1)
    seeds: int = setting(3, "fine-tuning runs from each start", ge=1)
    task_labels: int = setting(240, "labelled passages to fine-tune on: few, as one's own labels are", ge=40)
    task_passages: int = setting(1200, "passages the task is drawn from, most; three in ten are for the test", ge=40)
    task_epochs: float = setting(6.0, "passes over the labelled passages", gt=0)
    task_learning_rate: float = setting(3e-4, "the same from both starts", gt=0)


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


@click.command()
@click.argument("corpus", nargs=-1, metavar="[RUN.yaml | CORPUS…]")
@click.option("--minutes", type=float, help="How long to pretrain [default: 5].")
@click.option("--preset", help="Network and recipe, a name of runs/bases; roberta_tiny is the paper's own form.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("remask-out/quickstart"), show_default=True)
@common_options
def command(corpus: tuple[str, ...], minutes: float | None, preset: str | None, out: Path, common: Common) -> None:
    """From CORPUS (files, folders or globs; none: the documentation of the Python libraries on this machine) to a
    pretrained, fine-tuned, exported model with a report. Ctrl-C stops it; the same command goes on.
    """
    file = Path(corpus[0]) if len(corpus) == 1 and corpus[0].endswith((".yaml", ".yml")) else None
    texts = None if file or not corpus else list(corpus)
    run = common.build(QuickstartRun, file, corpus=texts, minutes=minutes, preset=preset).run
    pretrain_run(run, out)  # a preset that does not exist is known before anything is done
    if common.dry_run:
        return
    facts = main(run, out, common.progress)
    common.result(facts, summary(facts))


def main(run: QuickstartRun, out: Path, progress: Progress) -> dict[str, Any]:
    """The whole way, stage by stage."""
    with lock(out):
        _refuse_another(run, out)
        clock = _Clock(out / ".seconds.json")
        corpus = clock.time("read, clean, learn a vocabulary, tokenise", lambda: _prepare(run, out, progress))
        write_bytes(out / "run.yaml", to_yaml(run).encode())  # from here on the folder is this quickstart's
        trained = clock.time("pretrain and evaluate", lambda: _pretrain(run, out, progress))
        task = clock.time("fine-tune, pretrained and from scratch", lambda: _finetune(run, out, progress))
        clock.time("export", lambda: _export(out, corpus, trained))
        samples = clock.time("fill in masks", lambda: _fill_masks(run, out, progress))
        facts = {
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
            "next_commands": _next_commands(out, samples),
        }
        write_json(out / "quickstart.json", facts)
        _report(out, facts)
    return facts


def _refuse_another(run: QuickstartRun, out: Path) -> None:
    """A folder belongs to one quickstart, once its corpus was read; a changed one is refused with the difference."""
    path = out / "run.yaml"
    if path.is_file():
        if changed := differences(yaml.safe_load(path.read_text()), dump(run)):
            words = "; ".join(f"{key} {json.dumps(old)} -> {json.dumps(new)}" for key, old, new in changed)
            raise ConfigError(f"{out}: holds another quickstart ({words}); choose another --out, or remove it")
        return
    claim(out, path.name)
    with output_errors(out):
        free = shutil.disk_usage(out).free
    if free < MIN_FREE_BYTES:
        raise DiskError(f"{out}: {free / 1e9:.1f} GB free, {MIN_FREE_BYTES / 1e9:.0f} GB are needed")


# ------------------------------------------------------------------------------------------------- the stages


def _prepare(run: QuickstartRun, out: Path, progress: Progress) -> dict[str, Any]:
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


def pretrain_run(run: QuickstartRun, out: Path) -> PretrainRun:
    """The preset as a pretraining run on this corpus."""
    budget = {"train.minutes": None if run.steps else run.minutes, "train.steps": run.steps}
    options = {"seed": run.seed, "prepared": str(out / "prepared"), **budget}
    return build_run(PretrainRun, options=options, base=run.preset).run


def _pretrain(run: QuickstartRun, out: Path, progress: Progress) -> dict[str, Any]:
    done = out / "pretrain.json"
    if not done.is_file():
        write_json(done, pretrain(pretrain_run(run, out), out / "pretrain", progress=progress))
    return json.loads(done.read_text())


def _finetune(run: QuickstartRun, out: Path, progress: Progress) -> dict[str, Any] | None:
    """The task that comes with the corpus, from the pretrained weights and from scratch, with the same recipe."""
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
    facts: dict[str, Any] = {"question": task.question, "description": task.description}
    for start in ("pretrained", "scratch"):
        progress.say(f"fine-tune ({task.question}), {'pretrained' if start == 'pretrained' else 'from scratch'}")
        options = {**settings, "init_weights": start == "pretrained"}
        found = finetune(build_run(FinetuneRun, options=options).run, folder / start, progress=progress)
        seeds = [one["metrics"]["accuracy"] for one in found["runs"]]
        facts[start] = {"median": found["metrics"]["accuracy"], "seeds": seeds}
        facts["majority"] = found["data"]["baseline"]["accuracy"]
    return facts


def _export(out: Path, corpus: Mapping[str, Any], trained: Mapping[str, Any]) -> None:
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


def _fill_masks(run: QuickstartRun, out: Path, progress: Progress) -> list[dict[str, Any]]:
    """What the exported model puts into held-out sentences."""
    from remask.answer.model import load

    sentences = sample_sentences(read_documents(out / "prepared" / "documents"), seed=run.seed)
    if not sentences:
        progress.say("no held-out sentence of a length to show; fill-mask answers are left out of the report")
        return []
    model = load(out / "model")
    answers = model.fill_mask([s.masked for s in sentences], top=5)
    return [
        {"text": s.masked, "hidden": s.hidden, "answers": [{"token_str": a.token_str, "score": a.score} for a in found]}
        for s, found in zip(sentences, answers, strict=True)
    ]


def _report(out: Path, facts: Mapping[str, Any]) -> None:
    from remask.study.report import quickstart_report
    from remask.study.runs import read_run

    write_bytes(out / "report.html", quickstart_report(facts, read_run(out / "pretrain")).encode())


# ------------------------------------------------------------------------------------------------- the ending


def _next_commands(out: Path, samples: Sequence[Mapping[str, Any]]) -> list[str]:
    sentence = samples[0]["text"] if samples else "Returns the <mask> of the list."
    model, remask = shlex.quote(str(out / "model")), program()
    return [
        f"{remask} serve {model}",
        f"{remask} fill-mask {model} {shlex.quote(sentence)}",
        f"{remask} finetune --task classify --init {model} --train my.csv --text body --label topic --out mine",
        f"{remask} quickstart path/to/your/texts --minutes 30 --out my-encoder",
    ]


def summary(facts: Mapping[str, Any]) -> str:
    """What a person wants to see at the end."""
    loss, unigram = facts["evaluation"]["loss"], facts["corpus"]["unigram_nats"]
    lines = ["", "What it fills in (held-out sentences):"]
    for sample in facts["samples"]:
        answers = ", ".join(f"{a['token_str'].strip()} {a['score']:.0%}" for a in sample["answers"])
        lines += [f"  {sample['text']}", f"      {answers}   (hidden: {sample['hidden']})"]
    lines += [
        "",
        f"Held-out loss {loss:.2f} nats, {abs(unigram - loss):.2f} {'below' if loss < unigram else 'ABOVE'} word "
        f"frequencies alone ({unigram:.2f}); perplexity {facts['evaluation']['perplexity']:.1f}, "
        f"{facts['evaluation']['bits_per_byte']:.2f} bits per byte",
    ]
    if task := facts["task"]:
        for start, name in (("pretrained", "pretrained"), ("scratch", "from scratch")):
            seeds = task[start]["seeds"]
            spread = f"({min(seeds):.1%} to {max(seeds):.1%}, {len(seeds)} seeds)"
            lines.append(f"{task['question']} {name:<12} {task[start]['median']:.1%} {spread}")
        lines.append(f"{task['question']} {'largest class':<12} {task['majority']:.1%}")
    lines += ["", f"Model   {facts['model']}", f"Report  {facts['report']}", "", "Try next:"]
    lines += [f"  {line}" for line in facts["next_commands"]]
    lines += ["", f"{duration(sum(facts['seconds'].values()))} in all"]
    return "\n".join(lines)
