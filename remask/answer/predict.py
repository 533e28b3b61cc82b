"""`remask predict`: what a model says about every row of a file, however long.

In: MODEL with a task's head (or a masked-LM head and a prompt), and a file like the one it was trained on (labels may
be missing). Out: a file with the same rows in the same order and the answer's columns beside them; rows that cannot be
answered go to OUT.bad.jsonl with their line and the reason. Rows are read, sorted by length and answered in pieces,
each kept on disk as soon as it is done: killed at any moment, the same command goes on and ends with the same bytes.
Not here: scores (evaluate).
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import orjson

from remask import artifacts, signals
from remask.allocator import keep_freed_memory
from remask.answer.settings import PRECISION_HELP, AnswerPrecision, Int8Settings
from remask.config import Config, dump, setting
from remask.errors import DataError, MissingInputError, OutputError, UsageError
from remask.progress import Progress, counted
from remask.schema import Json, Values
from remask.tables import Cells, OtherForm, about_rows
from remask.tasks.answer_files import check_name, write_rows
from remask.tasks.kinds import StoredTask
from remask.tasks.settings import DecodeChanges, PromptSettings

if TYPE_CHECKING:
    from remask.answer.reader import Reader
    from remask.answer.stream import Asker

CHUNK_CHARACTERS = 8_000_000
SCORES = "scores"


class PredictRun(Config):
    """One file to answer, or texts."""

    model: str = setting("", "a fine-tuned model")
    file: str = setting("", "the rows to answer")
    task: str | None = setting(None, "of a model with several tasks: which one")
    prompt: PromptSettings = setting(PromptSettings(), "ask the masked-LM head instead, without fine-tuning")
    table: OtherForm = setting(OtherForm(), "how the file is written, where its name does not tell")
    text: str | None = setting(None, "column with the text; null: the one the model was trained on")
    text2: str | None = setting(None, "column with the second text; null: the one the model was trained on")
    scores: bool = setting(False, "also the score of every class")
    prefix: str = setting("", "put before the names of the answer's columns, where the file has such already")
    escape_formulas: bool = setting(
        False, "put ' before cells of CSV and TSV that a spreadsheet would take for a formula (= + - @)"
    )
    bad_rows: Literal["aside", "error"] = setting(
        "aside", "rows that cannot be answered: set them aside, or stop there"
    )
    precision: AnswerPrecision = setting("auto", PRECISION_HELP)
    int8: Int8Settings = setting(Int8Settings(), "precision int8: what it may cost")
    device: str = setting("auto", "auto, cpu, cuda, cuda:N or mps")
    decode: DecodeChanges = setting(DecodeChanges(), "a model that writes: how, where it is not as it was scored")
    batch_tokens: int = setting(4096, "most padded tokens in one forward pass", ge=16)
    chunk_rows: int = setting(
        1024, "rows that are sorted by length and kept together; a kill loses one such piece", ge=1
    )


# ---------------------------------------------------------------------------------------------------------- the run


def main(run: PredictRun, out: Path, *, progress: Progress) -> Json:
    """Answer every row of the file."""
    check_name(out)
    if not Path(run.file).exists():
        raise MissingInputError(f"{run.file}: no such file")
    check_bad_file(bad_file(out))
    keep_freed_memory()
    return predict_file(open_ready(run), run, out, progress=progress)


@dataclass(frozen=True)
class Ready:
    """A model that only waits for rows, and what tells it from others."""

    asker: Asker
    facts: Values  # kind, labels, precision: part of the result
    identity: Values

    @property
    def task(self) -> StoredTask:
        return self.asker.model.reader.task


def open_ready(run: PredictRun) -> Ready:
    """Open everything that does not depend on the file."""
    from remask.answer.model import Model
    from remask.answer.stream import Asker
    from remask.model.store import model_fingerprint
    from remask.precision import choose_device, choose_precision

    reader = open_asked(run)
    task = reader.task
    if task.kind.writes:
        task = replace(task, decode=run.decode.over(task.decode))
        reader = replace(reader, stored=task)
    elif run.decode != DecodeChanges():
        raise UsageError(f"decode is for a model that writes; this one answers a task of the kind {task.kind.name}")
    device = choose_device(run.device)
    precision, _ = choose_precision(run.precision, device)
    model = Model(reader, device=device, batch_tokens=run.batch_tokens, precision=precision, int8=run.int8)
    identity = {"model": model_fingerprint(model.folder), "precision": precision, "device": str(device)}
    facts: Json = {"kind": task.kind.name, "labels": list(task.labels), "precision": precision}
    if model.int8_report is not None:
        facts["int8"] = model.int8_report
    return Ready(Asker.of(model, run.text, run.text2), facts, identity)


def open_asked(run: PredictRun) -> Reader:
    """The model with its own task, or with the one that a pattern and words make."""
    from remask.answer.prompting import prompted
    from remask.answer.reader import open_reader

    reader = open_reader(Path(run.model), run.task)
    if run.prompt.patterns or run.prompt.words:
        return prompted(reader, run.prompt, run.text, run.text2)
    return reader


def answer_texts(run: PredictRun, texts: Sequence[Sequence[str]], places: Sequence[str]) -> Json:
    """What the model says about some texts at once, without a file; each has as many parts as its task asks for."""
    ready = open_ready(run)
    asker = ready.asker
    fewest = len(ready.task.kind.required(asker.columns))
    rows = []
    for parts, place in zip(texts, places, strict=True):
        if not fewest <= len(parts) <= len(asker.columns):
            wanted = ", ".join(asker.columns)
            raise UsageError(f"{place}: {counted(len(parts), 'text')}, but this model is asked about {wanted}")
        rows.append(Cells(dict(zip(asker.columns, parts, strict=False)), place))
    answers, num_cut = asker.answer(rows)
    for row, answer in zip(rows, answers, strict=True):
        if "bad" in answer:
            raise DataError(f"{row.place}: {answer['bad']}")
        if not run.scores:
            answer.pop(SCORES, None)
    return {"answers": answers, "cut": num_cut, **ready.facts}


def predict_file(ready: Ready, run: PredictRun, out: Path, *, progress: Progress) -> Json:
    """Answer every row of the run's file."""
    with artifacts.work_on(out, _key(ready, run)) as work:
        if work.result is None:
            job = _Job(run, ready, work)
            job.answer(progress)
            job.publish(ready.facts)
        assert work.result is not None
        return work.result


def _key(ready: Ready, run: PredictRun) -> Json:
    """What makes two commands the same one."""
    from remask.answer.stream import file_key

    settings = dump(run) | {"model": None, "file": None, "precision": None, "device": None}
    return {**ready.identity, "run": settings, "file": file_key(Path(run.file))}


# -------------------------------------------------------------------------------------------------- pieces of a file


class _Job:
    """One file on its way. A piece has a line with counts and the fingerprints of its rows, then the answers line by
    line. The rows themselves stay in the file, which is read again at the end: each must be what it was."""

    def __init__(self, run: PredictRun, ready: Ready, work: artifacts.Work) -> None:
        self._run, self._asker, self._task, self._work = run, ready.asker, ready.task, work
        self._path = Path(run.file)
        self._table = run.table.over(self._task.table)
        self._columns: dict[str, None] = {}  # of the file, in the order in which they are first seen

    def answer(self, progress: Progress) -> None:
        """Every piece that is not there yet. The file is read from its start: that is cheap beside answering."""
        unreadable = self._work.path("unreadable.jsonl")
        with progress.stage("predict", about_rows(self._path), "rows") as stage, unreadable.open("wb") as aside:

            def on_bad(number: int, reason: str) -> None:
                if self._run.bad_rows == "error":
                    raise DataError(f"{self._path}:{number}: {reason}")
                aside.write(orjson.dumps({"line": number, "reason": reason}) + b"\n")

            from remask.answer.stream import check_kept, chunks

            rows = self._task.kind.file_rows(self._path, self._table, on_bad, progress.say)
            done = 0
            for number, piece in enumerate(chunks(rows, self._run.chunk_rows, CHUNK_CHARACTERS)):
                self._see(piece, first=number == 0)
                done += len(piece)
                if self._work.piece(number).is_file():
                    check_kept(piece, _read_piece(self._work.piece(number))[0]["fingerprints"], self._work.folder)
                    stage.resume_at(done)
                    continue
                self._answer_piece(number, piece)
                stage.update(done)
                signals.check()

    def _see(self, piece: Sequence[Cells], *, first: bool) -> None:
        """Columns that are there, and that the ones asked about are among them."""
        if first:
            self._asker.check_columns(piece[0])
        for row in piece:
            for name in row.values:
                self._columns.setdefault(name)

    def _answer_piece(self, number: int, piece: Sequence[Cells]) -> None:
        answers, num_cut = self._asker.answer(piece)
        for row, answer in zip(piece, answers, strict=True):
            if "bad" in answer and self._run.bad_rows == "error":
                raise DataError(f"{row.place}: {answer['bad']}")
            if not self._run.scores:
                answer.pop(SCORES, None)
            if taken := [name for name in answer if self._run.prefix + name in row.values]:
                raise UsageError(
                    f"{row.place}: has a column {self._run.prefix + taken[0]!r} already; --prefix WORD is put before "
                    "the names of the answer's columns"
                )
        head = {"cut": num_cut, "fingerprints": [row.fingerprint() for row in piece]}
        self._work.keep(number, b"\n".join(orjson.dumps(answer) for answer in (head, *answers)) + b"\n")

    # ------------------------------------------------------------------------------------------------- the result

    def publish(self, facts: Values) -> None:
        """All pieces as one file, and beside it the rows that have no answer; counts, and the `facts` given."""
        out, work = self._work.out, self._work
        columns: dict[str, None] = dict(self._columns)
        counts = {"rows": 0, "bad": 0, "cut": 0}
        for piece in work.pieces():
            first, *answers = _read_piece(piece)
            counts["cut"] += first["cut"]
            for answer in answers:
                counts["bad" if "bad" in answer else "rows"] += 1
                for name in answer if "bad" not in answer else ():
                    columns.setdefault(self._run.prefix + name)
        with work.path("unreadable.jsonl").open("rb") as file:
            counts["bad"] += sum(1 for _ in file)
        if not counts["rows"]:
            reason = next((f"; line {bad['line']}: {bad['reason']}" for bad in self._bad()), "")
            raise DataError(f"{self._path}: no usable rows ({counts['bad']:,} cannot be answered){reason}")
        bad_out = bad_file(out)
        with artifacts.output_errors(out):
            whole, bad = work.path("whole"), work.path("bad.jsonl")
            scores = self._run.prefix + SCORES if self._run.prefix + SCORES in columns and self._run.scores else None
            write_rows(
                whole, out, self._answered, list(columns), scores=scores, source=self._path,
                escape_formulas=self._run.escape_formulas,
            )  # fmt: skip
            with bad.open("wb") as file:
                for answer in self._bad() if counts["bad"] else ():
                    file.write(orjson.dumps(answer) + b"\n")
            check_bad_file(bad_out)  # once more: somebody may have put something there meanwhile
            if not counts["bad"]:
                bad_out.unlink(missing_ok=True)
        result = {**counts, **facts, "out": str(out), "bad_file": str(bad_out) if counts["bad"] else None}
        work.finish(whole, result, {bad: bad_out} if counts["bad"] else None)

    def _pairs(self) -> Iterator[tuple[Cells, Json]]:
        """Every row that could be read, with what was said about it."""
        from remask.answer.stream import same_rows

        heads = (_read_piece(piece)[0]["fingerprints"] for piece in self._work.pieces())
        rows = self._task.kind.file_rows(self._path, self._table, lambda number, reason: None)
        answers = (answer for piece in self._work.pieces() for answer in _read_piece(piece)[1:])
        yield from zip(same_rows(rows, chain.from_iterable(heads), self._path), answers, strict=True)

    def _answered(self) -> Iterator[Json]:
        prefix = self._run.prefix
        for row, answer in self._pairs():
            if "bad" not in answer:
                yield {**row.values, **{prefix + name: value for name, value in answer.items()}}

    def _bad(self) -> Iterator[Json]:
        """By line: what could not be read, and what could not be answered."""
        with self._work.path("unreadable.jsonl").open("rb") as file:
            unreadable = (orjson.loads(line) for line in file)
            unanswered = (
                {"line": row.number, "reason": answer["bad"]} for row, answer in self._pairs() if "bad" in answer
            )
            yield from heapq.merge(unreadable, unanswered, key=lambda bad: bad["line"])


def _read_piece(piece: Path) -> list[Json]:
    """The line about a piece, then its answers."""
    return [orjson.loads(line) for line in piece.read_bytes().splitlines()]


def bad_file(out: Path) -> Path:
    """Where the rows go that have no answer."""
    return out.with_name(f"{out.name}.bad.jsonl")


def check_bad_file(path: Path) -> None:
    """An old list of rows without an answer is replaced or removed with its answers; anything else stays."""
    if not path.exists() and not path.is_symlink():
        return
    with contextlib.suppress(OSError, orjson.JSONDecodeError), path.open("rb") as file:
        first = file.readline(1 << 20)
        if not first or set(orjson.loads(first)) == {"line", "reason"}:
            return
    raise OutputError(f"{path}: exists already and is no list of rows without an answer; choose another --out")
