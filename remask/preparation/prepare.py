"""Raw files -> documents -> vocabulary -> token shards, published as one PREPARED folder.

Every step keeps what it finished in a work folder beside OUT (`.NAME.work`), so a run killed at any moment goes on
with the same command and ends with the same bytes; the folder goes when OUT is published. The result depends on
inputs, settings and seed alone, not on workers, engine or accelerator. Not here: how any step works (text/,
tokenizer/, data/tokens).
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from pydantic import ValidationError

from remask import artifacts
from remask.config import Difference, differences, dump
from remask.data.shards import ShardTask, first_pieces, forget, is_made, make_shard, read_facts, read_histogram
from remask.data.tokens import SPLITS, STAGE
from remask.documents import Documents, read_documents
from remask.errors import ConfigError, DataError, OutputError, RemaskError, install_command
from remask.preparation.settings import PrepareRun
from remask.progress import Progress
from remask.schema import Json, Values
from remask.text.build import build_documents, changed_sources, text_config
from remask.text.clean import check_folding
from remask.text.counts import DROPS
from remask.tokenizer import Tokenizer, load_tokenizer
from remask.tokenizer.bulk import Blocks, Newlines, agrees, plan_blocks
from remask.tokenizer.words import check_segmenter
from remask.workers import num_cores, run_tasks

if TYPE_CHECKING:
    from remask.tokenizer.training import CountTask

ResultT = TypeVar("ResultT")
CHECK_BYTES = 200_000  # of the user's text, on which gigatoken must agree before it is used at all
SMALL_MEGABYTES = 4  # less is done sooner than processes start
_IDENTITY, _VOCABULARY, _STAMPS, _REFUSED = "identity.json", "vocabulary.json", "stamps.json", "refused.json"
_SOURCE = "source "  # before a source's name in the manifest's inputs
_INPUTS = "inputs.json"
_MADE = ("counts", "counted", "facts", "prepared")  # of the documents
_NOT_IN_RESULT = ("workers", "engine")  # and tokenizer.accelerator: they change the time, never the bytes


def prepare(run: PrepareRun, out: Path, *, progress: Progress, allow_change: Sequence[str] = ()) -> Json:
    """Make OUT, or go on with it. Returns the counts, the vocabulary's size and the seconds of each step."""
    out = out.absolute()
    work = out.with_name(f".{out.name}.work")
    vocabulary = check_vocabulary(run)
    seconds: dict[str, float] = {}
    with artifacts.lock(work):
        claimed = False
        try:
            artifact = _finished(run, out, vocabulary, progress)
            if artifact is None:
                _claim(work, run, allow_change)
                claimed = True
                artifact = _make(run, out, work, vocabulary, progress, seconds)
        except RemaskError as error:
            _give_back(work, refused=claimed and isinstance(error, DataError))
            raise
    shutil.rmtree(work, ignore_errors=True)
    return {"out": str(out), "fingerprint": artifact.fingerprint, **artifact.counts, "seconds": seconds}


def _make(
    run: PrepareRun, out: Path, work: Path, vocabulary: str | None, progress: Progress, seconds: dict[str, float]
) -> artifacts.Artifact:
    """All steps that are not done yet, and the result under its name."""
    documents = _timed(seconds, "documents", lambda: _make_documents(run, work / "documents", progress))
    artifacts.begin(work, {"documents": documents.artifact.fingerprint, "vocabulary": vocabulary}, _MADE, _INPUTS)
    tokenizer = _timed(seconds, "vocabulary", lambda: _make_vocabulary(run, documents, work, progress))
    shards = _timed(seconds, "tokens", lambda: _make_shards(run, documents, tokenizer, work, progress))
    counts = _prepared_counts(documents, tokenizer, shards)
    shutil.copyfile(documents.artifact.path(DROPS), work / "prepared" / DROPS)
    if run.keep_documents:
        shutil.rmtree(work / "prepared" / "documents", ignore_errors=True)
        shutil.copytree(work / "documents", work / "prepared" / "documents", copy_function=os.link)
    sources = {f"{_SOURCE}{name}": mark for name, mark in documents.artifact.manifest["inputs"].items()}
    artifact = artifacts.publish_filled(
        work / "prepared",
        out,
        STAGE,
        counts=counts,
        config=_config(run),
        inputs={"documents": documents.artifact.fingerprint, **sources},
    )
    progress.say(_summary(out, counts))
    return artifact


def _timed(seconds: dict[str, float], name: str, step: Callable[[], ResultT]) -> ResultT:
    start = time.monotonic()
    result = step()
    seconds[name] = round(time.monotonic() - start, 3)
    return result


# ------------------------------------------------------------------------------------------ one run per folder


def _config(run: PrepareRun) -> Json:
    """What the result depends on."""
    config = {key: value for key, value in dump(run).items() if key not in _NOT_IN_RESULT}
    config["tokenizer"] = {key: value for key, value in config["tokenizer"].items() if key != "accelerator"}
    config["text"] = text_config(run.text)
    return config


def _with_defaults(config: Values) -> Json:
    """What an earlier version wrote, with the settings that it did not have yet."""
    try:
        return _config(PrepareRun.model_validate_json(json.dumps(config)))
    except ValidationError:  # it had settings that are gone: then the difference is worth telling
        return dict(config)


def check_vocabulary(run: PrepareRun) -> str | None:
    """The existing vocabulary's fingerprint: one that cannot be read is better known before hours of reading text."""
    if not run.text.sources:
        raise ConfigError("text.sources: nothing to prepare; name files, folders or pydocs:")
    if run.tokenizer.chinese_words == "jieba":
        check_segmenter()
    check_folding(run.text.cleaning)
    return load_tokenizer(run.tokenizer.path).fingerprint if run.tokenizer.path is not None else None


def _finished(run: PrepareRun, out: Path, vocabulary: str | None, progress: Progress) -> artifacts.Artifact | None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not (out / artifacts.MANIFEST).is_file():
        raise OutputError(f"{out}: exists and is not of remask; choose another --out or remove it")
    artifact = artifacts.open_artifact(out, STAGE)
    if changed := differences(_with_defaults(artifact.manifest["config"]), _config(run)):
        raise ConfigError(f"{out}: was prepared with {_changes(changed)}; choose another --out or remove it")
    if vocabulary not in (None, artifact.counts["tokenizer"]):
        raise ConfigError(f"{out}: was prepared with other contents of {run.tokenizer.path}; choose another --out")
    inputs = artifact.manifest["inputs"]
    known = {key.removeprefix(_SOURCE): mark for key, mark in inputs.items() if key.startswith(_SOURCE)}
    if changed := changed_sources(run.text, known):
        progress.warn(
            f"{out}: was prepared from other contents of the files of {', '.join(changed)} and stays as it is; "
            "remove it or choose another --out to prepare the files that are there now"
        )
    else:
        progress.say(f"{out}: already prepared with these settings; remove it to prepare again")
    return artifact


def _claim(work: Path, run: PrepareRun, allow_change: Sequence[str]) -> None:
    """What an unfinished run left is gone on with if the settings are the same; a change must be named as allowed,
    and then the work starts over."""
    path = work / _IDENTITY
    if path.is_file():
        changed = differences(json.loads(path.read_bytes()), _config(run))
        refused = [change for change in changed if not any(_names(change[0], key) for key in allow_change)]
        if refused and _begun(work) and not (work / _REFUSED).exists():
            raise ConfigError(
                f"{work}: an unfinished run stands here with {_changes(refused)}; "
                f"--allow-change {','.join(change[0] for change in refused)} starts over, or choose another --out"
            )
        if changed:
            artifacts.begin(work, {}, _MADE, _INPUTS)
            shutil.rmtree(work / "documents", ignore_errors=True)
    artifacts.write_json(path, _config(run))
    (work / _REFUSED).unlink(missing_ok=True)


def _begun(work: Path) -> bool:
    """Whether there is anything that could get lost."""
    if (work / "documents").exists() or (work / ".documents.work" / "identity.json").exists():
        return True
    return any(any((work / name).glob("*")) for name in _MADE)


def _give_back(work: Path, *, refused: bool) -> None:
    """A run that was refused (no such path or column, nothing left of the text) claims nothing: the corrected command
    simply works. What it made of the documents stays, for the case that the same command comes again."""
    if not _begun(work) or (refused and not (work / "documents").exists()):
        shutil.rmtree(work, ignore_errors=True)
    elif refused:
        artifacts.write_json(work / _REFUSED, True)


def _names(key: str, allowed: str) -> bool:
    return key == allowed or key.startswith(f"{allowed}.")


def _changes(changed: Sequence[Difference]) -> str:
    words = [f"{key} = {json.dumps(old)}, not {json.dumps(new)}" for key, old, new in changed[:3]]
    return "; ".join(words) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")


# -------------------------------------------------------------------------------------------------- documents


def _make_documents(run: PrepareRun, folder: Path, progress: Progress) -> Documents:
    build_documents(
        run.text,
        folder,
        seed=run.seed,
        workers=_workers(run),
        engine=run.engine,
        progress=progress,
        stamps=folder.with_name(_STAMPS),
    )
    return read_documents(folder)


def _workers(run: PrepareRun) -> int:
    return run.workers or num_cores()


# ------------------------------------------------------------------------------------------------- vocabulary


def _make_vocabulary(run: PrepareRun, documents: Documents, work: Path, progress: Progress) -> Tokenizer:
    folder, record = work / "prepared" / "tokenizer", work / _VOCABULARY
    if artifacts.finished(record) is not None:
        return load_tokenizer(folder)
    path = run.tokenizer.path
    tokenizer = load_tokenizer(path) if path else _train(run, documents, work, progress)
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer.save(folder)
    artifacts.finish(record, {"fingerprint": tokenizer.fingerprint}, sorted(folder.iterdir()))
    return tokenizer


def _train(run: PrepareRun, documents: Documents, work: Path, progress: Progress) -> Tokenizer:
    from remask.tokenizer import training

    settings = run.tokenizer
    portions = plan_blocks(documents.of("train"))

    def counts_alike(sample: list[bytes]) -> bool:
        return training.count_pieces(sample, settings, True) == training.count_pieces(sample, settings, False)

    does = "cuts this text differently from"
    fast = settings.kind == "byte-bpe" and _agrees_on_sample(run, portions, counts_alike, does, progress)
    tasks = [
        training.CountTask(portion, work / "counts" / name, work / "counted" / f"{name}.json", settings, fast)
        for portion in portions
        for name in [f"{portion.shard.name}.{portion.first}"]
    ]
    waiting = [task for task in tasks if artifacts.finished(task.record) is None]
    with progress.stage("count words", _megabytes(tasks), "MB") as stage:
        stage.resume_at(_megabytes(tasks) - _megabytes(waiting))
        run_tasks(
            training.count_words,
            waiting,
            workers=_workers(run) if _megabytes(waiting) > SMALL_MEGABYTES else 1,
            engine=run.engine,
            on_done=lambda _, num_bytes: stage.advance(num_bytes / 1e6),
        )
    with progress.stage("train vocabulary") as stage:
        table = training.merge_counts([task.out for task in tasks], settings.max_distinct_words)
        words, distinct = table.words, table.num_distinct
        if fast and not training.gigatoken_agrees(words):
            progress.warn("gigatoken trains on these words differently from tokenizers: going on without it")
            fast = False
        stage.note = f"{distinct:,} distinct words"
        tokenizer = training.train_tokenizer(words, settings, fast)
    if len(words) < distinct:
        progress.say(
            f"  the vocabulary is learned from the {len(words):,} most frequent of {distinct:,} distinct words, which "
            f"are {table.kept_share:.0%} of the text; the others are left out, to bound memory"
        )
    if tokenizer.vocab_size < settings.vocab_size:
        progress.warn(
            f"the text gives a vocabulary of {tokenizer.vocab_size:,} entries, not of {settings.vocab_size:,}; "
            "more text or a smaller --vocab-size would agree"
        )
    return tokenizer


def _megabytes(tasks: Sequence[ShardTask | CountTask]) -> float:
    return sum(task.blocks.num_bytes for task in tasks) / 1e6


def _agrees_on_sample(
    run: PrepareRun,
    portions: Sequence[Blocks],
    same: Callable[[list[bytes]], bool],
    does: str,
    progress: Progress,
) -> bool:
    """Whether gigatoken is wanted, is there, and does with a sample of this text what the tokenizers library does."""
    if run.tokenizer.accelerator == "none":
        return False
    try:
        import gigatoken  # noqa: F401
    except ImportError:
        progress.detail(f"gigatoken is not installed; it makes this step faster: {install_command('fast')}")
        return False
    try:
        agrees_here = same(_sample(portions, run.tokenizer.newlines, CHECK_BYTES))
    except Exception:  # another library's panic of any kind means: do not use it
        agrees_here = False
    if not agrees_here:
        progress.warn(f"gigatoken {does} tokenizers: going on without it, more slowly")
    return agrees_here


def _sample(portions: Sequence[Blocks], newlines: Newlines, num_bytes: int) -> list[bytes]:
    """Pieces from the start of up to eight portions spread over the corpus."""
    chosen = [portions[i] for i in sorted({int(i) for i in np.linspace(0, len(portions) - 1, 8)})] if portions else []
    return [piece for portion in chosen for piece in first_pieces(portion, newlines, num_bytes // len(chosen))]


# --------------------------------------------------------------------------------------------------- tokens


def _make_shards(
    run: PrepareRun, documents: Documents, tokenizer: Tokenizer, work: Path, progress: Progress
) -> list[ShardTask]:
    portions = [portion for split in SPLITS for portion in plan_blocks(documents.of(split))]
    does = "gives this text other ids than"
    fast = tokenizer.kind == "byte-bpe" and _agrees_on_sample(
        run, portions, lambda sample: agrees(tokenizer, sample), does, progress
    )
    numbers: dict[str, int] = {}
    tasks = []
    for portion in portions:
        series = f"{portion.shard.source}.{portion.shard.split}"
        number = numbers[series] = numbers.get(series, -1) + 1
        name = f"{series}.{number:05d}"
        record = work / "facts" / f"{name}.json"
        prepared = work / "prepared"
        settings = run.tokenizer
        tasks.append(
            ShardTask(
                portion,
                name,
                tokenizer_folder=prepared / "tokenizer",
                folder=prepared,
                facts=record,
                newlines=settings.newlines,
                fast=fast,
                chinese_words=settings.chinese_words,
            )
        )
    waiting = [task for task in tasks if not is_made(task)]
    with progress.stage("tokenise", _megabytes(tasks), "MB") as stage:
        stage.resume_at(_megabytes(tasks) - _megabytes(waiting))

        def on_done(_: int, record: Values) -> None:
            stage.advance(record["bytes"] / 1e6)
            if record["fell_back"]:
                progress.warn(f"{record['name']}: gigatoken gave other ids than tokenizers; encoded without it")

        workers = _workers(run) if _megabytes(waiting) > SMALL_MEGABYTES else 1
        run_tasks(make_shard, waiting, workers=workers, engine=run.engine, on_done=on_done)
    forget()
    return tasks


# --------------------------------------------------------------------------------------------------- the result


def _prepared_counts(documents: Documents, tokenizer: Tokenizer, tasks: Sequence[ShardTask]) -> Json:
    shards = [read_facts(task) for task in tasks]
    histograms = {split: np.zeros(tokenizer.vocab_size, np.int64) for split in SPLITS}
    for task, shard in zip(tasks, shards, strict=True):
        histograms[shard["split"]] += read_histogram(task)
    totals = {key: sum(shard[key] for shard in shards) for key in ("documents", "sentences", "tokens", "bytes")}
    if totals["tokens"] == 0:
        raise DataError("no token is left: the corpus is too small for these settings")
    source = documents.counts
    return {
        **totals,
        "read": source["read"],
        "unread": source["unread"],
        "dropped": source["dropped"],
        "sources": source["sources"],
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": tokenizer.fingerprint,
        "unigram_nats": unigram_nats(histograms["train"], histograms["heldout"]),
        "shards": shards,
    }


def unigram_nats(train: np.ndarray, heldout: np.ndarray) -> float | None:
    """Cross-entropy on held-out tokens of train's id frequencies plus one each: what knowing no context costs."""
    if heldout.sum() == 0:
        return None
    log_probs = np.log(train + 1.0) - np.log(train.sum() + len(train))
    return round(float(-(heldout * log_probs).sum() / heldout.sum()), 6)


def _summary(out: Path, counts: Values) -> str:
    kinds = "tokens of 2 bytes" if counts["vocab_size"] <= 1 << 16 else "tokens of 4 bytes"
    return (
        f"{out}: {counts['documents']:,} documents, {counts['tokens']:,} {kinds}, "
        f"{counts['bytes'] / counts['tokens']:.2f} bytes a token"
    )
