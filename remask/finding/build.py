"""`remask index`: texts -> passages -> vectors -> a published folder; adding to one, and removing from it.

The work stands in `.NAME.work` beside the folder until it is published: parts (passages.py) and pieces of vectors
(encode.py), each whole or not there. Killed at any moment, the same command goes on and ends with the same bytes. An
index that grows or shrinks is a new folder that shares the old one's files (hard links) and takes its name in one step,
so readers see the old or the new one. Not here: search (index), a database (postgres).
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from remask import artifacts
from remask.config import dump, fingerprint
from remask.errors import ConfigError, DataError, MissingInputError, OutputError, UsageError
from remask.finding.encode import DOCUMENT, make_piece, pieces_of, prompt_name
from remask.finding.index import STAGE, Index, open_index
from remask.finding.map import write_map
from remask.finding.passages import Passages, PassageTask, joined, make_part
from remask.finding.settings import OWN, IndexRun
from remask.finding.vectors import BLOCK_ROWS, mean_vector, write_codes
from remask.finding.words import write_words
from remask.progress import Progress, counted
from remask.schema import Json
from remask.text.files import InputFile
from remask.text.sources import portions, task_groups
from remask.tokenizer import Tokenizer
from remask.workers import run_tasks

_LEAST_TOKENS = 8
PARQUET = "passages.parquet"


@dataclass(frozen=True)
class _Attempt:
    """Where one attempt works, and the index that it adds to."""

    out: Path
    work: Path
    old: Index | None


def index(
    run: IndexRun,
    out: Path,
    *,
    add: bool = False,
    remove: Sequence[str] = (),
    progress: Progress,
) -> Json:
    """Make an index, add to one, or remove documents from one; what it holds then."""
    out = out.absolute()
    work = out.with_name(f".{out.name}.work")
    with artifacts.lock(work):
        if remove:
            made = _without(out, work, remove, progress)
        else:
            made = _with(run, out, work, add, progress)
    shutil.rmtree(work, ignore_errors=True)
    if run.to is not None and run.to != "parquet":
        from remask.finding.postgres import send

        send(made, run.to, run.table, progress)
    return _result(made)


def _result(made: Index) -> Json:
    counts = made.artifact.counts
    return {
        "out": str(made.folder), "documents": counts["documents"], "passages": len(made), "removed": counts["removed"],
        "segments": len(made.segments), "dropped": counts["dropped"], "size": made.size,
        "fingerprint": made.artifact.fingerprint,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------ making, adding


def _with(run: IndexRun, out: Path, work: Path, add: bool, progress: Progress) -> Index:
    """An index of these documents, alone or with what is there."""
    if run.model is None or not run.docs.paths:
        raise UsageError("index needs a MODEL and DOCS: remask index MODEL DOCS… --out INDEX")
    old = open_index(out) if add else None
    encoder = _encoder_of(run.model, run.device)
    if old is not None:
        run = _as_before(run, old)
        if old.model_fingerprint != encoder.fingerprint:
            raise DataError(f"{run.model}: {out} was made with another model; vectors of two models cannot be compared")
    files, layout = _inputs(run, work, progress)
    known = {"run": _lasting(run), "docs": dump(run.docs), "model": encoder.fingerprint, "add": add}
    mark = fingerprint({**known, "files": [[file.place, file.fingerprint()] for file in files]})
    if (done := _done(out, mark, add)) is not None:
        progress.say(f"{out}: holds these documents already")
        return _with_parquet(done, work, progress) if run.to == "parquet" else done
    if not add:
        artifacts.check_free(out)
    stamps = [[file.place, file.fingerprint(), file.stamp(work / "spool")] for file in files]
    onto = None if old is None else old.artifact.fingerprint
    if artifacts.begin(work, {**known, "files": stamps, "onto": onto}, ("parts", "vectors")):
        progress.say("going on from where an earlier run stopped")
    prompt = prompt_name(encoder.prompts, run.prompt, DOCUMENT, encoder.folder)
    parts, facts = _cut(run, files, layout, work, encoder, _length(run, encoder, prompt), progress)
    aside = _empty(work / "new")
    segment = aside / f"segment-{len(old.segments) if old else 0:04d}"
    segment.mkdir()
    _check_ids(joined(parts, segment), old)
    _encode(run, encoder, prompt, parts, work, progress)
    _join_vectors(parts, work, segment / "vectors")
    counts = _counts(old, {name: facts[name] for name in ("documents", "passages")}, facts["dropped"])
    model_path = str(encoder.folder.resolve())
    config = {"run": _lasting(run), "size": encoder.size, "model": encoder.fingerprint, "model_path": model_path}
    attempt = _Attempt(out, work, old)
    return _publish(attempt, aside, config, counts, progress, mark=mark, parquet=run.to == "parquet")


@dataclass(frozen=True)
class _Encoder:
    """What must be known of a model before it encodes; the processes that do open it themselves."""

    folder: Path
    fingerprint: str
    tokenizer: Tokenizer
    prompts: Mapping[str, str]
    room: int  # tokens that it reads
    size: int  # numbers of a vector


def _encoder_of(path: Path, device: str) -> _Encoder:
    from remask.answer.model import load
    from remask.model.store import find_model, model_fingerprint

    folder = find_model(path)
    model = load(folder, device=device, packed=False)
    room, size = model.questions.frame.room(1), model.settings.hidden_size
    return _Encoder(folder, model_fingerprint(folder), model.tokenizer, dict(model.prompts), room, size)


def _lasting(run: IndexRun) -> Json:
    """What the index is made by, whoever makes it where."""
    return {name: value for name, value in dump(run).items() if name not in OWN}


def _as_before(run: IndexRun, old: Index) -> IndexRun:
    """What is added is cut and searched as the rest; a setting that says otherwise is refused."""
    given = run.model_dump(mode="json", include=run.model_fields_set - set(OWN))
    kept = _lasting(old.run)
    for name, value in given.items():
        if value != kept[name]:
            raise ConfigError(f"{name} = {value}: {old.folder} was made with {kept[name]}, and so is what is added")
    return IndexRun.model_validate_json(orjson.dumps({**dump(run), **kept}))


def _done(out: Path, mark: str, add: bool) -> Index | None:
    """An index that this very command made before it could say so."""
    if not (out / artifacts.MANIFEST).is_file():
        return None
    there = open_index(out)
    if there.artifact.manifest["inputs"]["mark"] == mark:
        return there
    if not add:
        raise OutputError(f"{out}: holds an index of other documents or settings; choose another --out, or --add")
    return None


def _inputs(run: IndexRun, work: Path, progress: Progress) -> tuple[list[InputFile], Any]:
    from remask.text.build import guessed_layout, source_files

    files = source_files(run.docs, work)
    unknown = [file for file in files if file.kind == "unknown"]
    if len(unknown) == len(files):
        raise DataError(
            f"{unknown[0].place}: an ending that says nothing about its kind; say it (--set docs.kind=text)"
        )
    for file in unknown[:5]:
        progress.warn(f"{file.place}: left out, its ending says nothing (--set docs.kind=text reads all)")
    return files, guessed_layout(run.docs, files, progress)


def _length(run: IndexRun, encoder: _Encoder, prompt: str | None) -> int:
    """Tokens of a passage: as asked for, as far as the model and its prompt leave room."""
    taken = 0 if prompt is None else len(encoder.tokenizer.encode(encoder.prompts[prompt]))
    if encoder.room - taken < _LEAST_TOKENS:
        raise DataError(f"{encoder.folder}: its prompt leaves {encoder.room - taken} tokens for a passage: too few")
    return min(run.passages.length, encoder.room - taken)


def _cut(
    run: IndexRun, files: list[InputFile], layout: Any, work: Path, encoder: _Encoder, length: int, progress: Progress
) -> tuple[list[Passages], Json]:
    """The parts that have any passage, and what was counted."""
    groups = task_groups([portion for portion in portions(files, 0, layout) if portion.kind != "unknown"])
    encoder.tokenizer.save(work / "tokenizer")
    tasks = [
        PassageTask(work / "parts" / f"{number:06d}", group, run, layout, work / "tokenizer", length)
        for number, group in enumerate(groups)
    ]
    with progress.stage("cut into passages", len(tasks), "parts") as stage:
        facts = run_tasks(
            make_part, tasks, workers=run.workers, engine=run.engine, on_done=lambda number, fact: stage.advance()
        )
        totals: Json = {name: sum(f[name] for f in facts) for name in ("documents", "passages")}
        stage.note = f"{counted(totals['documents'], 'document')}, {counted(totals['passages'], 'passage')}"
    dropped = Counter[str]()
    for fact in facts:
        dropped.update(fact["dropped"])
    samples = [sample for fact in facts for sample in fact["samples"]]
    for reason, count in dropped.items():
        example = next((sample for sample in samples if f": {reason}" in sample), "")
        progress.warn(f"{counted(count, 'record')} left out: {reason}{f' (for instance {example})' if example else ''}")
    if not totals["passages"]:
        raise DataError(f"{', '.join(run.docs.paths)}: no text to index in these documents")
    parts = [Passages(task.folder) for task, fact in zip(tasks, facts, strict=True) if fact["passages"]]
    return parts, totals | {"dropped": dict(dropped)}


def _check_ids(passages: Passages, old: Index | None) -> None:
    """Every document has an id of its own, also among those that are there already."""
    seen: dict[str, str] = {}
    if old is not None:
        gone = _removed_documents(old)
        for number, segment in enumerate(old.segments):
            for place, name in enumerate(segment.passages.ids()):
                if (number, place) not in gone:
                    seen[name] = f"{old.folder} holds it"
    for number in range(passages.num_documents):
        facts = passages.document(number)
        if facts["id"] in seen:
            before = seen[facts["id"]]
            hint = "; remove it first (--remove)" if before.endswith("holds it") else ""
            raise DataError(f"{facts['place']}: the id {facts['id']!r} is there twice, before in {before}{hint}")
        seen[facts["id"]] = facts["place"]


def _removed_documents(old: Index) -> set[tuple[int, int]]:
    if old.removed is None:
        return set()
    found = set()
    for number, segment in enumerate(old.segments):
        rows = np.flatnonzero(old.removed[segment.first : segment.first + len(segment.passages)])
        found |= {(number, int(place)) for place in np.unique(segment.passages.table[rows, 0])}
    return found


def _encode(
    run: IndexRun, encoder: _Encoder, prompt: str | None, parts: list[Passages], work: Path, progress: Progress
) -> None:
    import torch

    from remask.precision import choose_precision

    precision, _ = choose_precision(run.precision, torch.device(run.device))
    how: Json = {
        "model": encoder.folder.absolute(), "fingerprint": encoder.fingerprint, "prompt": prompt,
        "precision": precision, "device": run.device,
    }  # fmt: skip
    tasks = [task for part in parts for task in pieces_of(part.folder, len(part), work / "vectors", **how)]
    done = sum(task.last - task.first for task in tasks if task.out.is_file())
    total = sum(task.last - task.first for task in tasks)
    with progress.stage("encode", total, "passages") as stage:
        stage.resume_at(done)
        waiting = [task for task in tasks if not task.out.is_file()]
        run_tasks(
            make_piece, waiting, workers=run.workers, engine=run.engine,
            on_done=lambda number, count: stage.advance(count),
        )  # fmt: skip


def _join_vectors(parts: list[Passages], work: Path, out: Path) -> None:
    with out.open("wb") as whole:
        for part in parts:
            for piece in sorted((work / "vectors").glob(f"{part.folder.name}-*")):
                with piece.open("rb") as file:
                    shutil.copyfileobj(file, whole)


# ---------------------------------------------------------------------------------------------------- publishing


def _counts(old: Index | None, added: dict[str, int], dropped: dict[str, int]) -> Json:
    before = dict(old.artifact.counts) if old else {"segments": [], "dropped": {}, "removed": 0, "removed_documents": 0}
    segments = [*before["segments"], added]
    all_dropped = Counter(before["dropped"]) + Counter(dropped)
    return {
        "segments": segments,
        "passages": sum(segment["passages"] for segment in segments),
        "documents": sum(segment["documents"] for segment in segments) - before["removed_documents"],
        "dropped": dict(sorted(all_dropped.items())),
        "removed": before["removed"],
        "removed_documents": before["removed_documents"],
    }


def _with_parquet(made: Index, work: Path, progress: Progress) -> Index:
    """The same index with a Parquet file in it."""
    if (made.folder / PARQUET).is_file():
        return made
    aside, manifest = _empty(work / "new"), made.artifact.manifest
    attempt = _Attempt(made.folder, work, made)
    mark = manifest["inputs"]["mark"]
    return _publish(attempt, aside, manifest["config"], manifest["counts"], progress, mark=mark, parquet=True)


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _publish(
    attempt: _Attempt,
    aside: Path,
    config: Json,
    counts: Json,
    progress: Progress,
    *,
    mark: str | None = None,
    parquet: bool = False,
) -> Index:
    """What follows from all segments, beside them; then the folder takes its name."""
    old = attempt.old
    with progress.stage("publish") as stage, artifacts.output_errors(attempt.out):
        if old is not None:
            for path in sorted(old.folder.glob("segment-*/*")):
                _share(path, aside / path.relative_to(old.folder))
            if not (aside / "removed").is_file() and old.removed is not None:
                more = counts["passages"] - len(old.removed)
                np.append(old.removed, np.zeros(more, bool)).astype(np.uint8).tofile(aside / "removed")
        draft = Index(artifacts.Artifact(aside, {"config": config, "counts": counts}))
        _derive(draft, aside, parquet or (old is not None and (old.folder / PARQUET).is_file()))
        stage.note = f"{counted(len(draft), 'passage')} of {counted(counts['documents'], 'document')}"
        # The command that made it, so that the same one knows its work again.
        inputs = {"model": config["model"], "mark": mark or ""}
        final = attempt.out.with_name(f".{attempt.out.name}.partial")
        shutil.rmtree(final, ignore_errors=True)
        aside.rename(final)
        artifacts.publish_filled(final, attempt.out, STAGE, counts=counts, config=config, inputs=inputs)
    return open_index(attempt.out)


def _share(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _derive(draft: Index, aside: Path, parquet: bool) -> None:
    """Codes, words, map and FAISS of everything that is in the segments."""
    run = draft.run
    for segment in draft.segments:
        if run.vectors.first_pass == "int8" and not segment.vectors.has_codes:
            write_codes(segment.vectors, mean_vector(segment.vectors))
    write_words(_texts(draft), aside / "words", run.words)
    write_map(draft, aside / "map.json", run.seed)
    if run.approximate.kind != "none":
        from remask.finding.approximate import write_approximate

        files = [segment.vectors for segment in draft.segments]
        starts = ((file, begin) for file in files for begin in range(0, file.num_rows, BLOCK_ROWS))
        blocks = (np.asarray(file.vectors[begin : begin + BLOCK_ROWS]) for file, begin in starts)
        write_approximate(blocks, draft.num_rows, draft.size, aside / "approximate", run.approximate, run.seed)
    if parquet:
        from remask.finding.parquet import write_parquet

        write_parquet(draft, aside / PARQUET)


def _texts(draft: Index) -> Iterator[str]:
    """Of every row; what was removed says nothing, so that it does not count for anybody's rarity."""
    for segment in draft.segments:
        for row in range(len(segment.passages)):
            gone = draft.removed is not None and draft.removed[segment.first + row]
            yield "" if gone else segment.passages.text(row)


# ----------------------------------------------------------------------------------------------------- removing


def _without(out: Path, work: Path, remove: Sequence[str], progress: Progress) -> Index:
    """The same index without these documents. Their rows stay in the files; no search sees them."""
    old = open_index(out)
    removed = np.zeros(old.num_rows, bool) if old.removed is None else old.removed.copy()
    gone, wanted = _removed_documents(old), set(remove)
    found: set[str] = set()
    for number, segment in enumerate(old.segments):
        for place, name in enumerate(segment.passages.ids()):
            if name in wanted and (number, place) not in gone:
                first = segment.first + segment.passages.first_of(place)
                last = segment.first + segment.passages.first_of(place + 1)
                removed[first:last] = True
                found.add(name)
    if missing := sorted(wanted - found):
        raise MissingInputError(f"{out}: has no document {missing[0]!r}; nothing was removed")
    aside = _empty(work / "new")
    removed.astype(np.uint8).tofile(aside / "removed")
    counts = dict(old.artifact.counts)
    counts |= {
        "removed": int(removed.sum()),
        "documents": counts["documents"] - len(found),
        "removed_documents": counts["removed_documents"] + len(found),
    }
    return _publish(_Attempt(out, work, old), aside, dict(old.artifact.manifest["config"]), counts, progress)
