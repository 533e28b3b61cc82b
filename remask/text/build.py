"""The text stage: settings -> a published folder of documents.

Files are found and divided into portions, read and cleaned in parallel into parts (part.py), chosen over all parts
(choose.py) and written as shards. The result depends on files, settings and seed alone: not on the number of workers,
the engine, or how often the work was stopped. What is done stays in a work folder beside the output until it is
published; the same call goes on from there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from remask.artifacts import (
    MANIFEST,
    Artifact,
    begin,
    finish,
    finished,
    lock,
    open_artifact,
    output_errors,
    publish_filled,
)
from remask.config import differences, dump, fingerprint
from remask.documents import STAGE, SUFFIXES, DocumentWriter
from remask.errors import ConfigError, DataError, MissingInputError, OutputError
from remask.progress import Progress
from remask.schema import Json
from remask.text.choose import HELDOUT, PASSAGE, TRAIN, PlacedPart, choose, heldout_passages
from remask.text.clean import known_languages
from remask.text.counts import check_columns, count_all, in_words, say_counts, warn_of_files, write_drops
from remask.text.files import InputFile, find_files, is_stream, unpack
from remask.text.part import PartTask, make_part
from remask.text.plain import LAYOUT_LINES, guess_layout
from remask.text.pydocs import find_modules
from remask.text.settings import Layout, SourceSettings, TextSettings
from remask.text.sources import TABLES, portions, task_groups
from remask.workers import Engine, run_tasks

UNPACK_BYTES = 4 << 20
SMALL_BYTES = 2 << 20
WATCHED_BYTES = 200_000
_SPLITS = {TRAIN: "train", HELDOUT: "heldout"}


def build_documents(
    settings: TextSettings,
    out: Path,
    *,
    seed: int = 0,
    workers: int = 1,
    engine: Engine = "local",
    progress: Progress | None = None,
    stamps: Path | None = None,
) -> Artifact:
    """Read, clean, choose and publish. Goes on where an earlier call for the same thing stopped, and gives back what
    is already there if it finished. `stamps`: `out` is the caller's own scratch, and this file remembers when the
    inputs were last written; documents of inputs that were touched since are made again."""
    progress = progress or Progress(quiet=True)
    if not settings.sources:
        raise MissingInputError("sources: none given; name a file, a folder or pydocs:")
    out = out.absolute()
    work = out.with_name(f".{out.name}.work")
    with lock(work):
        files = [source_files(source, work) for source in settings.sources]
        _check_sources(settings, files)
        config = {**text_config(settings), "seed": seed}
        inputs = {s.name: _fingerprint(own) for s, own in zip(settings.sources, files, strict=True)}
        touched = fingerprint([file.stamp(work / "spool") for own in files for file in own])
        if (out / MANIFEST).exists():
            if stamps is None or finished(stamps) == touched:
                return _reopened(out, config, inputs, progress)
            progress.warn("the files changed since the run that is gone on with: starting over")
            shutil.rmtree(out)
        identity = {"config": config, "inputs": inputs, "touched": touched}
        if begin(work, identity, ("parts", "out", "shards", "unpacked")):
            progress.say("going on from where an earlier run stopped")
        if engine == "local" and sum(file.size for own in files for file in own) < SMALL_BYTES:
            workers = 1  # done sooner than processes start
        default = settings.reading.layout
        layouts = [guessed_layout(*pair, progress, default) for pair in zip(settings.sources, files, strict=True)]
        files = _unpack_few(settings, files, work, workers, engine)
        facts, parts = _read(settings, files, layouts, work, seed, workers, engine, progress)
        warn_of_files(facts, progress)
        check_columns(settings, facts)
        with progress.stage("choose documents") as stage:
            fates = choose(parts, settings, work)
            num_kept = int((fates <= PASSAGE).sum())
            stage.note = f"{num_kept:,} of {sum(fact['read'] for fact in facts):,} kept"
        counts = count_all(settings, facts, parts, fates)
        if num_kept == 0:
            raise DataError(f"no document is left of {counts['read']:,} read; dropped: {in_words(counts['dropped'])}")
        write_drops(settings, facts, parts, fates, work / "out")
        shards = _write_shards(settings, parts, fates, work, workers, engine, progress)
        if stamps:
            finish(stamps, touched)
        artifact = _publish(work / "out", out, config, inputs, counts, shards)
        say_counts(artifact, progress)
    shutil.rmtree(work, ignore_errors=True)
    return artifact


# --------------------------------------------------------------------------------------------------- inputs


def source_files(source: SourceSettings, work: Path) -> list[InputFile]:
    """All files of a source; streams are copied into `work` first."""
    modules: list[InputFile] = []
    for file in find_files(source, work / "spool"):
        if file.kind == "pydocs":
            modules += find_modules(file.path.removeprefix("pydocs:"), source.max_bytes)
        else:
            modules.append(file)
    return modules


def _check_sources(settings: TextSettings, files: list[list[InputFile]]) -> None:
    """Wishes that could not be fulfilled, and would leave the corpus empty or unfiltered without a word."""
    for source, own in zip(settings.sources, files, strict=True):
        kinds = sorted({file.kind for file in own} - {"warc", "unknown"})
        if (source.date_from or source.date_to) and not source.date_column and kinds:
            raise ConfigError(f"sources: {source.name}: date_from and date_to need date_column for {', '.join(kinds)}")
        if source.date_column and (bare := [kind for kind in kinds if kind not in TABLES]):
            raise ConfigError(f"sources: {source.name}: {', '.join(bare)} has no column {source.date_column}")
    wanted = {code for source in settings.sources for code in source.languages or ()} | set(settings.language.keep)
    if wanted and (unknown := sorted(wanted - set(known_languages()))):
        raise ConfigError(f"language {unknown[0]!r} is not one of {', '.join(known_languages())}")


def text_config(settings: TextSettings) -> Json:
    """What the result depends on; the order in which the paths of a source are named is no part of it."""
    plain = dump(settings)
    for source in plain["sources"]:
        source["paths"] = sorted(set(source["paths"]))
    return plain


def _fingerprint(files: list[InputFile]) -> str:
    return fingerprint([[file.place, file.fingerprint()] for file in files])


def changed_sources(settings: TextSettings, inputs: Mapping[str, str]) -> list[str]:
    """Names of the sources whose files are no longer those of which a documents manifest holds the fingerprints.
    Streams are not read for that, and files that are gone leave nothing to compare."""
    changed = []
    for source in settings.sources:
        if source.name in inputs and not any(map(is_stream, source.paths)):
            with contextlib.suppress(MissingInputError, DataError, OSError):
                if _fingerprint(source_files(source, Path(os.devnull))) != inputs[source.name]:
                    changed.append(source.name)
    return changed


def _reopened(out: Path, config: Json, inputs: dict[str, str], progress: Progress) -> Artifact:
    artifact = open_artifact(out, STAGE)
    changed = differences(artifact.manifest["config"], config)
    if changed:
        key, old, new = changed[0]
        raise OutputError(f"{out}: holds documents made with {key} = {old!r}, not {new!r}; choose another --out")
    if artifact.manifest["inputs"] != inputs:
        raise OutputError(f"{out}: was made from other contents of these files; choose another --out or remove it")
    progress.say(f"{out}: already finished")
    return artifact


def guessed_layout(
    source: SourceSettings, files: list[InputFile], progress: Progress, default: Layout = "guess"
) -> Layout:
    """How the plain text of a source divides into documents: as said, or by the look of it, and then that is told."""
    layout = source.layout or default
    texts = [file for file in files if file.kind == "text"]
    if layout == "guess" and texts:
        layout = guess_layout(texts, source.max_expansion)
        progress.say(f"{source.name}: {LAYOUT_LINES[layout]} (guessed; reading.layout says otherwise)")
    return layout


# --------------------------------------------------------------------------------------------------- reading


def _unpack_few(
    settings: TextSettings, files: list[list[InputFile]], work: Path, workers: int, engine: Engine
) -> list[list[InputFile]]:
    """One large compressed file would keep one worker busy and the others waiting. Where there are only a few, they are
    unpacked first and then split; places and bytes of the result are the same either way."""
    few = [
        (source, index)
        for source, own in enumerate(files)
        for index, file in enumerate(own)
        if file.compression and file.kind in ("text", "jsonl") and file.size > UNPACK_BYTES
    ]
    if workers < 2 or not few or len(few) >= 2 * workers:
        return files
    with output_errors(work):
        (work / "unpacked").mkdir(exist_ok=True)
    jobs = [
        (files[source][index], settings.sources[source].max_expansion, work / "unpacked" / f"{source}-{index}")
        for source, index in few
    ]
    files = [list(own) for own in files]
    for (source, index), file in zip(few, run_tasks(unpack, jobs, workers=workers, engine=engine), strict=True):
        files[source][index] = file
    return files


def _read(
    settings: TextSettings,
    files: list[list[InputFile]],
    layouts: list[Layout],
    work: Path,
    seed: int,
    workers: int,
    engine: Engine,
    progress: Progress,
) -> tuple[list[Json], list[PlacedPart]]:
    pieces = [p for index, own in enumerate(files) for p in portions(own, index, layouts[index])]
    groups = task_groups(pieces)
    tasks = [
        PartTask(work / "parts" / f"{index:06d}", group, settings, tuple(layouts), seed)
        for index, group in enumerate(groups)
    ]
    sizes = [sum(portion.size for portion in group) / 1e6 for group in groups]
    with progress.stage("read and clean", sum(sizes), "MB") as stage:
        stage.resume_at(sum(size for task, size in zip(tasks, sizes, strict=True) if task.folder.exists()))
        before = {index for index, task in enumerate(tasks) if task.folder.exists()}

        def on_done(index: int, counts: Json) -> None:
            stage.advance(0 if index in before else sizes[index])

        without = PartTask.without if any(map(_needs_watching, (file for own in files for file in own))) else None
        facts = run_tasks(make_part, tasks, workers=workers, engine=engine, on_done=on_done, without=without)
    parts, first = [], 0
    for task, fact in zip(tasks, facts, strict=True):
        parts.append(PlacedPart(task.folder, fact["source"], first, fact["documents"]))
        first += fact["documents"]
    return facts, parts


def _needs_watching(file: InputFile) -> bool:
    """Whether reading it could take long enough to be given up, which takes a process of its own."""
    return file.size > WATCHED_BYTES or (bool(file.compression) and file.size > 0)


# --------------------------------------------------------------------------------------------------- shards


@dataclass(frozen=True)
class _ShardTask:
    """A shard to write: documents [low, high) of these parts that have the fate. Of those in `passages` (entry, byte)
    the held-out split gets what stands from the byte on, and train what stands before it."""

    name: str
    out: Path
    fates: Path
    fate: int
    pieces: tuple[tuple[PlacedPart, int, int], ...]
    passages: tuple[tuple[int, int], ...]

    @property
    def done(self) -> Path:
        return self.out.parent / "shards" / f"{self.name}.json"


def _write_shards(
    settings: TextSettings,
    parts: list[PlacedPart],
    fates: np.ndarray,
    work: Path,
    workers: int,
    engine: Engine,
    progress: Progress,
) -> list[Json]:
    if isinstance(fates, np.memmap):
        fates.flush()
    tasks = list(_shard_tasks(settings, parts, fates, work))
    with progress.stage("write documents", len(tasks), "shards") as stage:
        counts = run_tasks(_write_shard, tasks, workers=workers, engine=engine, on_done=lambda i, c: stage.advance())
    shards = []
    for task, count in zip(tasks, counts, strict=True):
        source, split, _ = task.name.rsplit(".", 2)
        shards.append({"name": task.name, "source": source, "split": split, **count})
    return shards


def _shard_tasks(
    settings: TextSettings, parts: list[PlacedPart], fates: np.ndarray, work: Path
) -> Iterator[_ShardTask]:
    """Shards in the order source, split, number; a shard ends with the document that fills it."""
    passages = tuple(heldout_passages(parts, fates, settings.heldout_fraction).items())

    def task(series: str, number: int, fate: int, held: list[tuple[PlacedPart, int, int]]) -> _ShardTask:
        return _ShardTask(f"{series}.{number:05d}", work / "out", work / "fates", fate, tuple(held), passages)

    for index, source in enumerate(settings.sources):
        for fate, split in _SPLITS.items():
            number, held, size = 0, [], 0
            for part in (part for part in parts if part.source == index and part.count):
                chosen = np.flatnonzero(fates[part.first : part.first + part.count] == fate)
                if passages:
                    chosen = np.flatnonzero(np.isin(fates[part.first : part.first + part.count], (fate, PASSAGE)))
                sizes = np.diff(part.shard.offsets)[chosen]
                low = 0
                while low < len(chosen):
                    total = size + np.cumsum(sizes[low:])
                    full = int(np.searchsorted(total, settings.shard_bytes))
                    high = min(low + full + 1, len(chosen))
                    held.append((part, int(chosen[low]), int(chosen[high - 1]) + 1))
                    size = int(total[high - 1 - low])
                    low = high
                    if size >= settings.shard_bytes:
                        yield task(f"{source.name}.{split}", number, fate, held)
                        number, held, size = number + 1, [], 0
            if held:
                yield task(f"{source.name}.{split}", number, fate, held)


def _write_shard(task: _ShardTask) -> dict[str, int]:
    if (counts := finished(task.done)) is not None:
        return counts
    aside = task.done.with_name(f".{task.name}.partial")
    with output_errors(aside):
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
    with DocumentWriter(aside, task.name) as writer:
        for part, low, high in task.pieces:
            _copy(part, low, high, task, writer)
        counts = writer.close()
    with output_errors(task.out):
        for suffix in SUFFIXES:
            os.replace(aside / f"{task.name}{suffix}", task.out / f"{task.name}{suffix}")
        aside.rmdir()
    finish(task.done, counts)
    return counts


def _copy(part: PlacedPart, low: int, high: int, task: _ShardTask, writer: DocumentWriter) -> None:
    """Documents next to each other are copied in one go; one of which a passage is held out, by itself."""
    shard = part.shard
    fates = np.memmap(task.fates, np.uint8, "r")[part.first + low : part.first + high]
    passages = dict(task.passages)
    cut = fates == PASSAGE
    chosen = np.flatnonzero((fates == task.fate) | cut)
    alone = cut[chosen[1:]] | cut[chosen[:-1]]
    breaks = np.flatnonzero((np.diff(chosen) != 1) | alone) + 1
    for run in np.split(chosen + low, breaks):
        first, last = int(run[0]), int(run[-1]) + 1
        start, end = int(shard.offsets[first]), int(shard.offsets[last])
        ends = np.asarray(shard.offsets[first + 1 : last + 1]) - start
        if (passage := passages.get(part.first + first)) is not None:
            before = len(shard.data[start : start + passage].tobytes().rstrip())
            start, end = (start, start + before) if task.fate == TRAIN else (start + passage, end)
            ends = np.array([end - start])
        sentences = shard.all_sentence_starts
        from_, to = np.searchsorted(sentences, [start, end])
        text, places = shard.data[start:end], shard.place_lines(first, last)
        writer.add_bytes(text, ends, np.asarray(sentences[from_:to]) - start, places, last - first)


def _publish(
    aside: Path,
    out: Path,
    config: Json,
    inputs: dict[str, str],
    counts: Json,
    shards: list[Json],
) -> Artifact:
    totals = {key: sum(shard[key] for shard in shards) for key in ("documents", "sentences", "bytes")}
    for name, source in counts["sources"].items():
        source["bytes"] = sum(shard["bytes"] for shard in shards if shard["source"] == name)
    with output_errors(out):
        if out.is_dir() and not any(out.iterdir()):
            out.rmdir()
    if out.exists():
        raise OutputError(f"{out}: exists already and is not ours; choose another --out or remove it")
    return publish_filled(
        aside, out, STAGE, counts={**totals, **counts, "shards": shards}, config=config, inputs=inputs
    )
