"""`remask doctor`: what this machine can do, and what to do about what it cannot.

Precisions are probed in a child process: on some machines a bf16 product kills the process that tries it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click

from remask import __version__
from remask.commands import Common, common_options
from remask.errors import install_command
from remask.schema import Json
from remask.workers import num_cores

# Every extra of pyproject.toml: a module that comes with it alone, and what it is for.
EXTRAS = {
    "faiss": ("faiss", "remask index --set approximate.kind=hnsw: beyond a million passages"),
    "fast": ("gigatoken", "vocabulary and encoding at many times the speed"),
    "hf": ("datasets", "hf:NAME as a source of text, and comparison with transformers"),
    "html": ("trafilatura", "the more precise extraction of web pages"),
    "onnx": ("onnxruntime", "remask export --to onnx and --to int8"),
    "postgres": ("psycopg", "remask index --to postgres://…: passages and vectors in a database"),
    "ray": ("ray", "preparing a corpus on many machines"),
    "tune": ("optuna", "remask tune"),
    "serve": ("fastapi", "remask serve"),
    "tensorboard": ("tensorboard", "train.trackers=[tensorboard]"),
    "wandb": ("wandb", "train.trackers=[wandb]"),
    "mlflow": ("mlflow", "train.trackers=[mlflow]"),
    "write": ("sacrebleu", "BLEU, chrF and ROUGE of the tasks that write"),
    "zh": ("rjieba", "tokenizer.words=jieba: Chinese words in masks; text.cleaning.chinese: folding"),
    "test": ("pytest", "the tests; make test installs it"),
    "bench": ("openvino", "the speed table; make bench installs it"),
}
MIN_MEMORY_GB, MIN_DISK_GB = 4, 5


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `advice` says what to do where it is not ok."""

    name: str
    state: Literal["ok", "note", "problem"]
    value: str
    advice: str = ""


def look(folder: Path) -> list[Finding]:
    """Everything that decides whether and how fast remask runs here."""
    return [
        Finding("python", "ok", platform.python_version()),
        *_torch(),
        *_precisions(),
        _memory(),
        _disk(folder),
        _compiler(),
        _allocator(),
        *_extras(),
    ]


def _torch() -> list[Finding]:
    try:
        import torch
    except Exception as error:
        return [Finding("torch", "problem", f"cannot be imported: {error}", "pip install -c constraints.txt torch")]
    findings = [Finding("torch", "ok", torch.__version__)]
    threads, cores = torch.get_num_threads(), num_cores()
    advice = f"OMP_NUM_THREADS={cores} uses all of them" if threads < cores else ""
    findings.append(Finding("threads", "note" if advice else "ok", f"{threads} of {cores} cores", advice))
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        findings.append(Finding("gpu", "ok", ", ".join(names)))
    else:
        findings.append(Finding("gpu", "note", "none", "pretraining a base model on a real corpus wants one"))
    return findings


def _precisions() -> list[Finding]:
    try:
        import torch

        from remask.precision import probe
    except Exception:  # _torch has said so
        return []

    device = "cuda" if torch.cuda.is_available() else "cpu"
    findings = []
    for precision in ("fp32", "bf16", "fp16"):
        works, reason = probe(precision, device)
        advice = "" if works else "train.precision: auto passes over it"
        findings.append(Finding(f"precision {precision}", "ok" if works else "note", reason or "works", advice))
    return findings


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    if total < MIN_MEMORY_GB:
        return Finding("memory", "problem", f"{total:.1f} GiB", f"{MIN_MEMORY_GB} GiB is what the quickstart needs")
    return Finding("memory", "ok", f"{total:.1f} GiB")


def _disk(folder: Path) -> Finding:
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(there).free / 2**30
    if free < MIN_DISK_GB:
        return Finding("disk", "problem", f"{free:.1f} GiB free", f"have {MIN_DISK_GB} GiB free, or --out elsewhere")
    return Finding("disk", "ok", f"{free:.1f} GiB free")


def _compiler() -> Finding:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return Finding("compiler", "note", "none", "only torch.compile needs it: apt-get install g++")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout.splitlines()
    return Finding("compiler", "ok", version[0] if version else compiler)


def _allocator() -> Finding:
    from remask.allocator import is_settable

    value = "glibc's, set for large blocks while computing" if is_settable() else "not set by remask"
    return Finding("allocator", "ok", value)


def _extras() -> list[Finding]:
    findings = []
    for extra, (module, use) in EXTRAS.items():
        if importlib.util.find_spec(module):
            findings.append(Finding(f"extra {extra}", "ok", f"{module} {_version(module)}"))
        else:
            advice = f"for {use}: {install_command(extra)}"
            findings.append(Finding(f"extra {extra}", "note", "not installed", advice))
    return findings


def _version(module: str) -> str:
    """Of the distribution that has the module; mlflow-skinny has mlflow."""
    distribution = importlib.metadata.packages_distributions().get(module, [module])[0]
    return importlib.metadata.version(distribution)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path(), help="The folder whose disk to look at.")
@common_options
def command(out: Path, common: Common) -> None:
    """What this machine can do, and what to do about what it cannot. Exit code 69 if anything is a problem."""
    findings = look(out)
    problems = [finding for finding in findings if finding.state == "problem"]
    values: Json = {
        "remask": __version__,
        "ok": not problems,
        "findings": [asdict(finding) for finding in findings],
        "precisions": {f.name.split()[1]: f.state == "ok" for f in findings if f.name.startswith("precision")},
    }
    common.result(values, "\n".join(_line(finding) for finding in findings))
    if problems:
        raise click.exceptions.Exit(69)


def _line(finding: Finding) -> str:
    sign = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}[finding.state]
    advice = f": {finding.advice}" if finding.advice else ""
    return f"{sign}  {finding.name:<16} {finding.value}{advice}"
