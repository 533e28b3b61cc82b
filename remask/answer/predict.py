"""`remask predict`: what a fine-tuned model says about every row of a file, however long.

In: MODEL with a task's head, and a file like the one it was trained on (labels may be missing). Out: a file with the
same rows in the same order and the answer's columns beside them; rows that cannot be answered go to OUT.bad.jsonl with
their line and the reason. Rows are read, sorted by length and answered in pieces, each kept on disk as soon as it is
done: killed at any moment, the same command goes on and ends with the same bytes. Not here: scores (evaluate).
"""

from __future__ import annotations

import heapq
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson

from remask import artifacts, signals
from remask.allocator import keep_freed_memory
from remask.config import Config, differences, dump, fingerprint, setting
from remask.errors import ConfigError, DataError, MissingInputError, OutputError, UsageError
from remask.progress import Progress
from remask.tasks.answer_files import check_name, write_rows
from remask.tasks.kinds import StoredTask

if TYPE_CHECKING:
    from remask.answer.stream import Asker
    from remask.tasks.tables import Cells

CHUNK_CHARACTERS = 8_000_000
SCORES = "scores"


class PredictRun(Config):
    """One file to answer."""

    model: str = setting("", "a fine-tuned model")
    file: str = setting("", "the rows to answer")
    task: str | None = setting(None, "of a model with several tasks: which one")
    text: str | None = setting(None, "column with the text; null: the one the model was trained on")
    text2: str | None = setting(None, "column with the second text; null: the one the model was trained on")
    scores: bool = setting(False, "also the score of every class")
    prefix: str = setting("", "put before the names of the answer's columns, where the file has such already")
    bad_rows: Literal["aside", "error"] = setting(
        "aside", "rows that cannot be answered: set them aside, or stop there"
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto", "number format; auto: bf16 where it is made for"
    )
    device: str = setting("auto", "auto, cpu, cuda, cuda:N or mps")
    batch_tokens: int = setting(4096, "most padded tokens in one forward pass", ge=16)
    chunk_rows: int = setting(
        1024, "rows that are sorted by length and kept together; a kill loses one such piece", ge=1
    )


# ---------------------------------------------------------------------------------------------------------- the run


def main(run: PredictRun, out: Path, *, progress: Progress) -> dict[str, Any]:
    """Answer every row of the file."""
    check_name(out)
    if not Path(run.file).exists():
        raise MissingInputError(f"{run.file}: no such file")
    keep_freed_memory()
    return predict_file(open_ready(run), run, out, progress=progress)


@dataclass(frozen=True)
class Ready:
    """A model that only waits for rows, and what tells it from others."""

    asker: Asker
    facts: Mapping[str, Any]  # kind, labels, precision: part of the result
    identity: Mapping[str, Any]

    @property
    def task(self) -> StoredTask:
        return self.asker.model.reader.task


def open_ready(run: PredictRun) -> Ready:
    """Open everything that does not depend on the file."""
    from remask.answer.model import Model
    from remask.answer.reader import open_reader
    from remask.answer.stream import Asker
    from remask.precision import choose_device, choose_precision

    reader = open_reader(Path(run.model), run.task)
    task = reader.task
    device = choose_device(run.device)
    precision, _ = choose_precision(run.precision, device)
    model = Model(reader, device=device, batch_tokens=run.batch_tokens, precision=precision)
    files = sorted(p for p in model.folder.iterdir() if p.suffix in (".safetensors", ".bin", ".json"))
    sums = [[p.name, artifacts.sha256_of(p)] for p in files if p.name != artifacts.MANIFEST]
    identity = {"model": fingerprint(sums), "precision": precision, "device": str(device)}
    facts = {"kind": task.kind.name, "labels": list(task.labels), "precision": precision}
    return Ready(Asker.of(model, run.text, run.text2), facts, identity)


def predict_file(ready: Ready, run: PredictRun, out: Path, *, progress: Progress) -> dict[str, Any]:
    """Answer every row of the run's file."""
    work = out.with_name(f".{out.name}.work")
    with artifacts.lock(work):
        done = _begin(_identity(ready, run), out, work)
        if done is None:
            job = _Job(run, ready, work)
            job.answer(progress)
            done = job.publish(out, ready.facts)
        shutil.rmtree(work)
    return done


def _begin(identity: Mapping[str, Any], out: Path, work: Path) -> dict[str, Any] | None:
    """Whose work this is: ours from before, or a fresh start. The result, where only the cleaning up was missing."""
    before = work / "identity.json"
    if before.is_file():
        changed = differences(json.loads(before.read_bytes()), json.loads(json.dumps(identity)))
        if changed and any(work.glob("part-*")):  # without answers there is nothing to lose: a mistake put right
            lines = "\n".join(f"  {key}: {json.dumps(old)} -> {json.dumps(new)}" for key, old, new in changed)
            raise ConfigError(
                f"{out}: another command began this file; choose another --out or remove {work}:\n{lines}"
            )
        if out.exists() and (work / "result.json").is_file():
            return json.loads((work / "result.json").read_bytes())
    if out.exists():
        if not before.is_file():
            shutil.rmtree(work)
        raise OutputError(f"{out}: exists already; choose another --out or remove it")
    artifacts.write_json(before, identity)
    return None


def _identity(ready: Ready, run: PredictRun) -> dict[str, Any]:
    """What makes two commands the same one."""
    facts = os.stat(run.file)
    return {
        **ready.identity,
        "run": dump(run) | {"model": None, "file": None, "precision": None, "device": None},
        "file": {"path": str(Path(run.file).resolve()), "bytes": facts.st_size, "changed": facts.st_mtime_ns},
    }


# -------------------------------------------------------------------------------------------------- pieces of a file


class _Job:
    """One file on its way: WORK/part-N has the answers to the N-th piece, line by line, after a line with counts."""

    def __init__(self, run: PredictRun, ready: Ready, work: Path) -> None:
        self._run, self._asker, self._task, self._work = run, ready.asker, ready.task, work
        self._path = Path(run.file)
        self._columns: dict[str, None] = {}  # of the file, in the order in which they are first seen

    def answer(self, progress: Progress) -> None:
        """Every piece that is not there yet. The file is read from its start: that is cheap beside answering."""
        unreadable = self._work / "unreadable.jsonl"
        with progress.stage("predict", _num_rows(self._path), "rows") as stage, unreadable.open("wb") as aside:

            def on_bad(number: int, reason: str) -> None:
                if self._run.bad_rows == "error":
                    raise DataError(f"{self._path}:{number}: {reason}")
                aside.write(orjson.dumps({"line": number, "reason": reason}) + b"\n")

            from remask.answer.stream import chunks

            rows = self._task.kind.file_rows(self._path, self._task.table, on_bad)
            done = 0
            for number, piece in enumerate(chunks(rows, self._run.chunk_rows, CHUNK_CHARACTERS)):
                self._see(piece, first=number == 0)
                done += len(piece)
                if self._part(number).is_file():
                    stage.resume_at(done)
                    continue
                self._answer_piece(number, piece)
                stage.update(done)
                signals.check()

    def _part(self, number: int) -> Path:
        return self._work / f"part-{number:06d}"

    def _see(self, piece: Sequence[Cells], *, first: bool) -> None:
        """Columns that are there, and that the ones asked about are among them."""
        if first:
            self._asker.check_columns(piece[0])
        for row in piece:
            for name in row.values:
                self._columns.setdefault(name)

    def _answer_piece(self, number: int, piece: Sequence[Cells]) -> None:
        said, num_cut = self._asker.answer(piece)
        for row, one in zip(piece, said, strict=True):
            if "bad" in one and self._run.bad_rows == "error":
                raise DataError(f"{row.place}: {one['bad']}")
            if not self._run.scores:
                one.pop(SCORES, None)
            if taken := [name for name in one if self._run.prefix + name in row.values]:
                raise UsageError(
                    f"{row.place}: has a column {self._run.prefix + taken[0]!r} already; --prefix WORD is put before "
                    "the names of the answer's columns"
                )
        lines = [orjson.dumps({"cut": num_cut, "rows": len(said)}), *(orjson.dumps(one) for one in said)]
        artifacts.write_bytes(self._part(number), b"\n".join(lines) + b"\n")

    # ------------------------------------------------------------------------------------------------- the result

    def publish(self, out: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
        """All pieces as one file, and beside it the rows that have no answer; counts, and the `facts` given."""
        columns: dict[str, None] = dict(self._columns)
        counts = {"rows": 0, "bad": 0, "cut": 0}
        for part in self._parts():
            first, *said = [orjson.loads(line) for line in part.read_bytes().splitlines()]
            counts["cut"] += first["cut"]
            for one in said:
                counts["bad" if "bad" in one else "rows"] += 1
                for name in one if "bad" not in one else ():
                    columns.setdefault(self._run.prefix + name)
        with (self._work / "unreadable.jsonl").open("rb") as file:
            counts["bad"] += sum(1 for _ in file)
        if not counts["rows"]:
            raise DataError(f"{self._path}: no usable rows ({counts['bad']:,} cannot be answered)")
        with artifacts.output_errors(out):
            whole, bad = self._work / "whole", self._work / "bad.jsonl"
            scores = self._run.prefix + SCORES if self._run.prefix + SCORES in columns and self._run.scores else None
            write_rows(whole, out, self._answered, list(columns), scores=scores, source=self._path)
            bad_out = out.with_name(f"{out.name}.bad.jsonl")
            result = {**counts, **facts, "out": str(out), "bad_file": str(bad_out) if counts["bad"] else None}
            artifacts.write_json(self._work / "result.json", result)
            if counts["bad"]:
                bad.write_bytes(b"")
                with bad.open("ab") as file:
                    for one in self._bad():
                        file.write(orjson.dumps(one) + b"\n")
                artifacts.sync_file(bad)
                bad.rename(bad_out)
            artifacts.sync_file(whole)
            whole.rename(out)
        return result

    def _parts(self) -> list[Path]:
        return sorted(self._work.glob("part-*"))

    def _pairs(self) -> Iterator[tuple[Cells, dict[str, Any]]]:
        """Every row that could be read, with what was said about it."""
        rows = self._task.kind.file_rows(self._path, self._task.table, lambda number, reason: None)
        for part in self._parts():
            for line in part.read_bytes().splitlines()[1:]:
                yield next(rows), orjson.loads(line)

    def _answered(self) -> Iterator[dict[str, Any]]:
        prefix = self._run.prefix
        for row, said in self._pairs():
            if "bad" not in said:
                yield {**row.values, **{prefix + name: value for name, value in said.items()}}

    def _bad(self) -> Iterator[dict[str, Any]]:
        """By line: what could not be read, and what could not be answered."""
        with (self._work / "unreadable.jsonl").open("rb") as file:
            unreadable = (orjson.loads(line) for line in file)
            unanswered = ({"line": row.number, "reason": said["bad"]} for row, said in self._pairs() if "bad" in said)
            yield from heapq.merge(unreadable, unanswered, key=lambda one: one["line"])


def _num_rows(path: Path) -> int | None:
    """About how many rows, where that is quick to know."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        try:
            return pyarrow.parquet.read_metadata(path).num_rows
        except (pyarrow.ArrowException, OSError):
            return None  # the reader says what is wrong with it
    if suffix not in (".csv", ".tsv", ".jsonl", ".ndjson"):
        return None
    with path.open("rb") as file:
        lines = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    return max(1, lines - (suffix in (".csv", ".tsv")))
