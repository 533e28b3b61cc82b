"""What a user can say about a file of rows, and what its readers give: records, and what is wrong with the others.

`TableForm` holds for delimited files (and its encoding for JSON too); whatever it leaves open goes by the file's name
and first rows. Not here: reading (reader, delimited, json_rows, columnar).
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import BeforeValidator, field_validator

from remask.config import Config, setting
from remask.schema import Json
from remask.streams import UTF8

TABLE_KINDS = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json",
    ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow",
}  # fmt: skip
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
MAX_LINE_BYTES = 32_000_000
MAX_EXPANSION = 200.0  # how many times a compressed file may grow
NO_COLUMN, NOT_UTF8, RAGGED, HEADER = "no such column", "invalid UTF-8", "malformed row", "malformed header"
RAGGED_ENDING = "columns"  # of what is said about a row with too many or too few cells


# Without a header columns are called 1, 2, …, which YAML and --set read as numbers.
ColumnName = Annotated[str, BeforeValidator(lambda name: str(name) if type(name) is int else name)]

FormT = TypeVar("FormT", bound="TableForm")


class TableForm(Config):
    """How a file of rows is written, where its name does not tell."""

    encoding: str = setting(UTF8, "of CSV, TSV and JSON files; UTF-16 and UTF-32 are known by their byte order mark")
    delimiter: str | None = setting(None, "between cells, or `tab`; null: by the name and the first rows, and said")
    header: bool = setting(True, "whether the first line names the columns; without one they are called 1, 2, …")
    quoted: bool | None = setting(None, "whether quotes delimit cells; null: they do in .csv and not in .tsv")

    @field_validator("encoding")
    @classmethod
    def _is_known(cls, value: str) -> str:
        try:
            name = codecs.lookup(value).name
            "".encode(name)  # codecs from bytes to bytes have names too
        except (LookupError, ValueError):
            raise ValueError("is no encoding that Python knows, such as utf-8, cp1252, latin-1, gb18030") from None
        if name.startswith(("utf-16", "utf-32")):
            raise ValueError("files in UTF-16 and UTF-32 are known by their byte order mark: leave it out")
        return UTF8 if name in ("utf-8", "utf-8-sig", "ascii") else name

    @field_validator("delimiter")
    @classmethod
    def _is_one(cls, value: str | None) -> str | None:
        value = {"tab": "\t", "\\t": "\t"}.get(value or "", value)
        if value is not None and (len(value) != 1 or value in '"\r\n'):
            raise ValueError("must be one character (or `tab`), and no quote or line end")
        return value


class OtherForm(Config):
    """Where a file is written otherwise than the one that a model was trained on; null: as said."""

    encoding: str | None = setting(None, "of CSV, TSV and JSON files; null: utf-8")
    delimiter: str | None = setting(None, "between cells, or `tab`; null: by the name and the first rows, and said")
    header: bool | None = setting(None, "whether the first line names the columns; null: as in training")
    quoted: bool | None = setting(None, "whether quotes delimit cells; null: as in training")

    def over(self, form: FormT) -> FormT:
        """The form of the training file with what is said here. Its encoding and delimiter belong to that file alone:
        this one shows its own."""
        given = self.model_dump(exclude_none=True)
        kind: type[FormT] = form.__class__
        return kind.model_validate(form.model_dump() | {"encoding": UTF8, "delimiter": None} | given)


@dataclass(frozen=True, slots=True)
class Record:
    """One row. Bytes that are no text stand in its values as lone surrogates, and `undecodable` says so."""

    values: Json
    number: int  # its first line, or its row in a file without lines; from 1
    offset: int = 0  # its first byte, in what the file unpacks to
    undecodable: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """A row that cannot be read: a reason to count by, and what exactly is wrong. `fatal`: nor can the rest be."""

    reason: str
    detail: str
    number: int
    offset: int = 0
    fatal: bool = False


def lacking_columns(wanted: Sequence[str], there: Sequence[object]) -> str:
    """Empty, or which of the wanted columns are not there, and what is."""
    missing = [name for name in wanted if name not in there]
    if not missing:
        return ""
    return f"has no column {', '.join(missing)}; there are: {', '.join(map(str, there[:40])) or 'none'}"
