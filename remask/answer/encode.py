"""`remask encode MODEL FILE --out FILE`: token ids and last hidden states of every text, in one file.

In: a table, whose text column is read, or any other file, whose lines are. OUT is .safetensors: `ids` (all texts laid
end to end, int32), `states` (tokens x width, fp32) and `offsets` (texts + 1, int64), so text i is
ids[offsets[i]:offsets[i+1]]; with --pooled only `vectors` (texts x width). Or .jsonl: one object a line. Texts are
answered in pieces that are kept: killed at any moment, the same command goes on and ends with the same bytes.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson

from remask import artifacts, signals
from remask.answer.settings import PRECISION_HELP, AnswerPrecision, Int8Settings
from remask.config import Config, dump, setting
from remask.errors import DataError, MissingInputError
from remask.model.settings import Pooling
from remask.progress import Progress
from remask.schema import Json
from remask.streams import split_name
from remask.tables import TABLE_KINDS, Cells, OnNote, OtherForm, TableForm, read_cells, read_lines, require_columns

if TYPE_CHECKING:
    from remask.answer.model import Model

ENDINGS = (".safetensors", ".jsonl")
PIECE, PIECE_CHARACTERS = 1_024, 2_000_000
TEXT = "text"


class EncodeRun(Config):
    """What is encoded, and how."""

    model: Path = setting(..., "a run, checkpoint, model or Hugging Face folder")
    file: Path = setting(..., "a table, or a file with one text a line")
    column: str | None = setting(None, "of a table: the column with the text; null: the model's own, else `text`")
    table: OtherForm = setting(OtherForm(), "how the file is written, where its name does not tell")
    pooled: bool = setting(False, "one vector a text (of length 1) instead of one state a token")
    pooling: Pooling | None = setting(None, "of a vector: the first token's state or the mean; None: as the model has")
    prompt: str | None = setting(None, "of a vector: which of the model's prompts stands before a text; None: none")
    long_texts: Literal["error", "cut"] = setting("error", "a text beyond the model's length: stop there, or cut it")
    precision: AnswerPrecision = setting("fp32", PRECISION_HELP)
    int8: Int8Settings = setting(Int8Settings(), "precision int8: what it may cost")
    device: str = setting("cpu", "cpu, cuda, ...")


def main(run: EncodeRun, out: Path, progress: Progress) -> Json:
    """Encode all texts; how many there were."""
    from remask.answer.model import load
    from remask.answer.stream import file_key
    from remask.model.store import model_fingerprint
    from remask.precision import choose_precision

    if not run.file.exists():
        raise MissingInputError(f"{run.file}: no such file")
    precision, _ = choose_precision(run.precision, run.device)
    model = load(run.model, device=run.device, precision=precision, int8=run.int8)
    settings = dump(run) | {"model": None, "file": None, "precision": precision}
    key = {"model": model_fingerprint(model.folder), "run": settings, "file": file_key(run.file)}
    with artifacts.work_on(out, key) as work:
        if work.result is None:
            _Job(run, model, work).run(progress)
        assert work.result is not None
        return work.result


def read_texts(run: EncodeRun, stored: TableForm | None, on_note: OnNote | None = None) -> Iterator[Cells]:
    """The texts of a file as rows with one cell; empty lines are texts too, so that line i stays text i."""
    if run.file.is_file() and split_name(run.file.name)[0] not in TABLE_KINDS:
        for number, line in read_lines(run.file, encoding=run.table.encoding or TableForm().encoding):
            yield Cells({TEXT: line}, f"{run.file}:{number}", number)
        return
    column = run.column or getattr(stored, "text", TEXT)
    for count, row in enumerate(read_cells(run.file, run.table.over(stored or TableForm()), on_note=on_note)):
        if count == 0:
            require_columns(row, [column])
        value = row.values.get(column)
        if not isinstance(value, str):
            raise DataError(f"{row.place}: has no text in the column {column!r}")
        yield Cells({TEXT: value}, row.place, row.number)


class _Job:
    """One file on its way. A piece has a line about its texts, then what is to be written of them."""

    def __init__(self, run: EncodeRun, model: Model, work: artifacts.Work) -> None:
        self._run, self._model, self._work = run, model, work
        stored = model.reader.stored
        self._stored = stored.table if stored is not None else None

    def run(self, progress: Progress) -> None:
        from remask.answer.questions import TooLongError
        from remask.answer.stream import check_kept, chunks, same_rows

        with artifacts.output_errors(self._work.out), progress.stage("encode", unit="texts") as stage:
            rows = read_texts(self._run, self._stored, progress.say)
            done = 0
            for number, piece in enumerate(chunks(rows, PIECE, PIECE_CHARACTERS)):
                done += len(piece)
                if self._work.piece(number).is_file():
                    check_kept(piece, _head(self._work.piece(number))["fingerprints"], self._work.folder)
                    stage.resume_at(done)
                    continue
                try:
                    self._work.keep(number, self._encoded(piece))
                except TooLongError:
                    self._say_where(piece)
                    raise
                stage.update(done)
                signals.check()
            heads = [_head(piece) for piece in self._work.pieces()]
            if not heads:
                raise DataError(f"{self._run.file}: has no texts")
            # Read once more: what was encoded before a stop, or while somebody wrote, must be what stands there.
            fingerprints = (fingerprint for head in heads for fingerprint in head["fingerprints"])
            for _ in same_rows(read_texts(self._run, self._stored), fingerprints, self._run.file):
                pass
            self._publish(heads)

    def _say_where(self, piece: Sequence[Cells]) -> None:
        """The same refusal with the line of the file; a model that answers knows texts, not places."""
        from remask.answer.questions import TooLongError

        for row in piece:
            try:
                self._model.questions.row(row.values[TEXT], self._run.long_texts)
            except TooLongError as error:
                raise TooLongError(f"{row.place}: {error}") from None

    def _encoded(self, piece: Sequence[Cells]) -> bytes:
        """Ids, and vectors or states, of some texts."""
        texts, run = [row.values[TEXT] for row in piece], self._run
        if run.pooled:
            values: Any = self._model.embed(texts, prompt=run.prompt, pooling=run.pooling, long_texts=run.long_texts)
            ids: list[Any] = [tokens.ids for tokens in self._model.tokenize(texts)]
        else:
            encoded = self._model.encode(texts, long_texts=run.long_texts)
            ids, values = [text.ids for text in encoded], [text.states for text in encoded]
        head = {"fingerprints": [row.fingerprint() for row in piece], "lengths": [len(text) for text in ids]}
        if self._work.out.suffix == ".jsonl":
            return orjson.dumps(head) + b"\n" + b"".join(self._line(*pair) for pair in zip(ids, values, strict=True))
        arrays = [] if run.pooled else [b"".join(text.tobytes() for text in ids)]
        arrays.append(b"".join(text.tobytes() for text in values))
        return orjson.dumps(head | {"sizes": [len(array) for array in arrays]}) + b"\n" + b"".join(arrays)

    def _line(self, ids: Any, values: Any) -> bytes:
        answer = {"vector": values} if self._run.pooled else {"ids": ids, "states": values}
        return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"

    def _publish(self, heads: Sequence[Json]) -> None:
        offsets = list(accumulate((length for head in heads for length in head["lengths"]), initial=0))
        width = self._model.settings.hidden_size
        whole = self._work.path("whole")
        if self._work.out.suffix == ".jsonl":
            with whole.open("wb") as file:
                for piece in self._work.pieces():
                    with piece.open("rb") as part:
                        part.readline()
                        shutil.copyfileobj(part, file)
        else:
            self._assemble(whole, heads, offsets, width)
        result: Json = {
            "texts": len(offsets) - 1,
            "tokens": offsets[-1],
            "width": width,
            "out": str(self._work.out),
        }
        if self._model.int8_report is not None:
            result["int8"] = self._model.int8_report
        self._work.finish(whole, result)

    def _assemble(self, whole: Path, heads: Sequence[Json], offsets: list[int], width: int) -> None:
        """The raw arrays of all pieces as one safetensors file, without having them in memory."""
        arrays: dict[str, tuple[str, list[int]]] = {"vectors": ("F32", [len(offsets) - 1, width])}
        if not self._run.pooled:
            arrays = {"ids": ("I32", [offsets[-1]]), "states": ("F32", [offsets[-1], width])}
        sizes = [sum(head["sizes"][place] for head in heads) for place in range(len(arrays))]
        header: Json = {}
        end = 0
        if not self._run.pooled:
            end = 8 * len(offsets)
            header["offsets"] = {"dtype": "I64", "shape": [len(offsets)], "data_offsets": [0, end]}
        for (name, (dtype, shape)), size in zip(arrays.items(), sizes, strict=True):
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
            end += size
        text = orjson.dumps(header)
        text += b" " * (-len(text) % 8)
        with whole.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            if not self._run.pooled:
                file.write(struct.pack(f"<{len(offsets)}q", *offsets))
            for place in range(len(arrays)):
                for piece, head in zip(self._work.pieces(), heads, strict=True):
                    with piece.open("rb") as part:
                        part.readline()
                        part.seek(sum(head["sizes"][:place]), 1)
                        file.write(part.read(head["sizes"][place]))


def _head(piece: Path) -> Json:
    with piece.open("rb") as file:
        return orjson.loads(file.readline())
