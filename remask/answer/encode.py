"""`remask encode MODEL FILE --out FILE`: token ids and last hidden states of every line, in one file.

OUT is .safetensors: `ids` (all texts laid end to end, int32), `states` (tokens x width, fp32) and `offsets`
(texts + 1, int64), so text i is ids[offsets[i]:offsets[i+1]]; with --pooled only `vectors` (texts x width). Or .jsonl:
one object a line. Texts are read, answered and written in pieces; the file appears whole or not at all.
"""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
from collections.abc import Iterator
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Literal

from remask import signals
from remask.artifacts import output_errors
from remask.config import Config, setting
from remask.errors import DataError, MissingInputError
from remask.model.settings import Pooling
from remask.progress import Progress

ENDINGS = (".safetensors", ".jsonl")
PIECE = 1_024


class EncodeRun(Config):
    """What is encoded, and how."""

    model: Path = setting(..., "a run, checkpoint, model or Hugging Face folder")
    file: Path = setting(..., "texts: one a line, or .jsonl with the column `text`")
    column: str = setting("text", "the column of a .jsonl file")
    pooled: bool = setting(False, "one vector a text (of length 1) instead of one state a token")
    pooling: Pooling | None = setting(None, "of a vector: the first token's state or the mean; None: as the model has")
    long_texts: Literal["error", "cut"] = setting("error", "a text beyond the model's length: stop there, or cut it")
    device: str = setting("cpu", "cpu, cuda, ...")


def main(run: EncodeRun, out: Path, progress: Progress) -> dict[str, Any]:
    """Encode all texts; how many there were."""
    from remask.answer.model import load

    texts = read_texts(run.file, run.column)
    model = load(run.model, device=run.device)
    offsets = [0]
    with output_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as name:
            work = Path(name)
            with progress.stage("encode", unit="texts") as stage:
                while piece := list(islice(texts, PIECE)):
                    found = _encode(model, piece, run)
                    offsets += accumulate(map(len, found["ids"][1:]), initial=offsets[-1] + len(found["ids"][0]))
                    _append(work, out.suffix, found)
                    stage.update(len(offsets) - 1)
                    signals.check()
            if len(offsets) == 1:
                raise DataError(f"{run.file}: has no texts")
            whole = work / "lines"
            if out.suffix == ".safetensors":
                whole = _assemble(work, offsets, model.settings.hidden_size, run.pooled)
            whole.replace(out)
    return {"texts": len(offsets) - 1, "tokens": offsets[-1], "width": model.settings.hidden_size, "out": str(out)}


def read_texts(path: Path, column: str) -> Iterator[str]:
    """The texts of a file, one by one; empty lines are texts too, so that line i stays text i."""
    if not path.is_file():
        raise MissingInputError(f"{path}: no such file")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            place = f"{path}:{number}"
            try:
                text = line.decode("utf-8").rstrip("\r\n")
                if path.suffix != ".jsonl":
                    yield text
                    continue
                value = json.loads(text)
                if not isinstance(value, dict) or not isinstance(value.get(column), str):
                    raise DataError(f"{place}: has no text in the column {column!r}")
                yield value[column]
            except ValueError as error:
                raise DataError(f"{place}: {str(error)[:100]}") from error


def _encode(model: Any, texts: list[str], run: EncodeRun) -> dict[str, list[Any]]:
    """ids, and vectors or states, of some texts."""
    if run.pooled:
        vectors = model.embed(texts, pooling=run.pooling, long_texts=run.long_texts)
        return {"ids": [tokens.ids for tokens in model.tokenize(texts)], "vectors": list(vectors)}
    encoded = model.encode(texts, long_texts=run.long_texts)
    return {"ids": [one.ids for one in encoded], "states": [one.states for one in encoded]}


def _append(work: Path, ending: str, found: dict[str, list[Any]]) -> None:
    """Some texts more: as lines, or as raw arrays that _assemble puts together."""
    kind = "vectors" if "vectors" in found else "states"
    if ending == ".jsonl":
        with (work / "lines").open("a", encoding="utf-8") as file:
            for ids, values in zip(found["ids"], found[kind], strict=True):
                said = (
                    {"vector": values.tolist()} if kind == "vectors" else {"ids": ids.tolist(), kind: values.tolist()}
                )
                file.write(json.dumps(said) + "\n")
        return
    for name in ("vectors",) if kind == "vectors" else ("ids", "states"):
        with (work / name).open("ab") as file:
            for values in found[name]:
                file.write(values.tobytes())


def _assemble(work: Path, offsets: list[int], width: int, pooled: bool) -> Path:
    """The raw arrays as one safetensors file, without having them in memory."""
    (work / "offsets").write_bytes(struct.pack(f"<{len(offsets)}q", *offsets))
    arrays: dict[str, tuple[str, list[int]]] = {"vectors": ("F32", [len(offsets) - 1, width])}
    if not pooled:
        arrays = {
            "offsets": ("I64", [len(offsets)]),
            "ids": ("I32", [offsets[-1]]),
            "states": ("F32", [offsets[-1], width]),
        }
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in arrays.items():
        size = (work / name).stat().st_size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (work / "whole").open("wb") as whole:
        whole.write(struct.pack("<Q", len(text)) + text)
        for name in arrays:
            with (work / name).open("rb") as part:
                shutil.copyfileobj(part, whole)
    return work / "whole"
