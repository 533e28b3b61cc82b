"""An index in PostgreSQL: passages and vectors (pgvector) in one table, sent whole or not at all, and searched there.

Rows go into a table beside the old one, some thousands a transaction. When all are there, one transaction gives it the
old one's name: readers see the old table or the new one, never half of one. A connection that breaks leaves the rows
that were committed; the same command finds them by the index's fingerprint and goes on behind them. `by words` is
PostgreSQL's own full-text search here, not BM25. Needs the extra `postgres`. Not here: making passages and vectors.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from remask.config import dump
from remask.errors import DataError, MissingInputError, UnavailableError, UsageError, needs_extra
from remask.finding.index import Hit, Index
from remask.finding.settings import IndexRun
from remask.finding.vectors import Best
from remask.finding.words import words_of
from remask.progress import Progress

_BATCH_ROWS = 2_000
_MAX_GRAPH_SIZE = 2_000  # numbers of a vector that pgvector's graph takes
_LANGUAGE = {"english": "english", "none": "simple"}


def _hidden(address: str) -> str:
    """An address as a message may show it: without its password."""
    return re.sub(r"(?<=//)([^:/@]*):[^@/]*@", r"\1:***@", address)


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """A connection with pgvector's types; what the server says becomes one line."""
    with needs_extra("postgres", "postgres:// needs the postgres extra"):
        import psycopg
        from pgvector.psycopg import register_vector
    try:
        with psycopg.connect(address, autocommit=True, connect_timeout=20) as link:
            with contextlib.suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
                link.execute("CREATE EXTENSION IF NOT EXISTS vector")
            register_vector(link)
            yield link
    except psycopg.OperationalError as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "the connection broke"
        raise UnavailableError(
            f"{_hidden(address)}: {reason}; nothing of this index is visible there yet, and the same command goes on"
        ) from None
    except psycopg.Error as error:
        raise DataError(f"{_hidden(address)}: {str(error).strip().splitlines()[0]}") from None


# ------------------------------------------------------------------------------------------------------ sending


def send(index: Index, address: str, table: str, progress: Progress) -> None:
    """Put an index into a table of this name, in place of what it holds."""
    from remask.finding.search import is_database

    if not is_database(address):
        raise UsageError(f"--to {_hidden(address)}: must be postgres://… or parquet")
    kind = index.run.approximate.kind
    if kind == "ivfpq" or (kind == "hnsw" and index.size > _MAX_GRAPH_SIZE):
        raise UsageError(f"approximate.kind = {kind}: PostgreSQL has hnsw up to {_MAX_GRAPH_SIZE:,} numbers a vector")
    with connected(address) as link:
        if _mark_of(link, table) == index.artifact.fingerprint:
            progress.say(f"{_hidden(address)}: {table} holds this index already")
            return
        _prepare(link, index, table)
        _copy(link, index, table, progress)
        _show(link, index, table)


def _mark_of(link: Any, table: str) -> str | None:
    """The fingerprint of the index that a table holds; None: there is no such table, or it is not ours."""
    if link.execute("SELECT to_regclass(%s)", [f"{table}_index"]).fetchone()[0] is None:
        return None
    found = link.execute(f"SELECT fingerprint FROM {table}_index").fetchone()
    return found[0] if found else None


def _prepare(link: Any, index: Index, table: str) -> None:
    """The table that is filled, unless an attempt for this very index began it."""
    aside = f"{table}_new"
    if link.execute("SELECT to_regclass(%s)", [table]).fetchone()[0] is not None and _mark_of(link, table) is None:
        raise DataError(f"the table {table} is there already and was not made by remask; choose another (--table)")
    if _mark_of(link, aside) == index.artifact.fingerprint:
        return
    language = _LANGUAGE[index.run.words.stop_words]
    facts = json.dumps({"run": dump(index.run), "size": index.size})
    with link.transaction():
        link.execute(f"DROP TABLE IF EXISTS {aside}, {aside}_index")
        link.execute(
            f"CREATE TABLE {aside} (row_number bigint PRIMARY KEY, id text NOT NULL, passage integer NOT NULL, "
            "start_character bigint NOT NULL, place text NOT NULL, fields jsonb NOT NULL, text text NOT NULL, "
            f"vector vector({index.size}) NOT NULL, "
            f"words tsvector GENERATED ALWAYS AS (to_tsvector('{language}', text)) STORED)"
        )
        link.execute(
            f"CREATE TABLE {aside}_index (fingerprint text NOT NULL, model text NOT NULL, model_path text NOT NULL, "
            "facts jsonb NOT NULL)"
        )
        link.execute(
            f"INSERT INTO {aside}_index VALUES (%s, %s, %s, %s)",
            [index.artifact.fingerprint, index.model_fingerprint, str(index.model_path), facts],
        )


def _copy(link: Any, index: Index, table: str, progress: Progress) -> None:
    """The rows that are not there yet, a transaction for some thousands of them."""
    aside = f"{table}_new"
    rows = np.arange(index.num_rows)
    if index.removed is not None:
        rows = rows[~index.removed]
    last, done = link.execute(f"SELECT coalesce(max(row_number), -1), count(*) FROM {aside}").fetchone()
    with progress.stage("send to PostgreSQL", len(rows), "passages") as stage:
        stage.resume_at(done)
        rows = rows[rows > last]
        for begin in range(0, len(rows), _BATCH_ROWS):
            some = rows[begin : begin + _BATCH_ROWS]
            columns = "row_number, id, passage, start_character, place, fields, text, vector"
            with link.transaction(), link.cursor().copy(f"COPY {aside} ({columns}) FROM STDIN") as copy:
                for row in some.tolist():
                    hit = index.hit(row, 0.0)
                    fields = orjson.dumps(hit.fields).decode()
                    vector = "[" + ",".join(map(str, index.vector(row).tolist())) + "]"
                    cells = (row, hit.id, hit.passage, hit.start, hit.place, fields, hit.text, vector)
                    # PostgreSQL's texts hold no zero byte.
                    copy.write_row([cell.replace("\0", "\ufffd") if isinstance(cell, str) else cell for cell in cells])
            stage.advance(len(some))


def _show(link: Any, index: Index, table: str) -> None:
    """Indices, then the name: from here on readers see the new rows."""
    aside = f"{table}_new"
    link.execute(f"CREATE INDEX IF NOT EXISTS {aside}_words ON {aside} USING gin (words)")
    link.execute(f"CREATE INDEX IF NOT EXISTS {aside}_id ON {aside} (id)")
    if index.run.approximate.kind == "hnsw":
        links = min(100, index.run.approximate.neighbours)
        link.execute(
            f"CREATE INDEX IF NOT EXISTS {aside}_vector ON {aside} USING hnsw (vector vector_ip_ops) "
            f"WITH (m = {links}, ef_construction = {max(64, 2 * links)})"
        )
    with link.transaction():
        link.execute(f"DROP TABLE IF EXISTS {table}, {table}_index")
        link.execute(f"ALTER TABLE {aside} RENAME TO {table}")
        link.execute(f"ALTER TABLE {aside}_index RENAME TO {table}_index")
        for name in ("words", "id", "vector", "pkey"):
            link.execute(f"ALTER INDEX IF EXISTS {aside}_{name} RENAME TO {table}_{name}")


# ---------------------------------------------------------------------------------------------------- searching


@dataclass(frozen=True)
class DatabaseTable:
    """An index in a database, opened. Every search is a connection of its own."""

    address: str
    table: str
    run: IndexRun
    size: int
    model_path: Path
    model_fingerprint: str

    def by_vectors(self, vectors: np.ndarray, top: int) -> list[Best]:
        found = []
        with connected(self.address) as link:
            if self.run.approximate.kind == "hnsw":
                link.execute(f"SET hnsw.ef_search = {max(self.run.approximate.width, min(1_000, top))}")
            for vector in vectors:
                rows = link.execute(
                    f"SELECT -(vector <#> %s), row_number FROM {self.table} ORDER BY vector <#> %s, row_number LIMIT %s"
                    if self.run.approximate.kind == "none"
                    else f"SELECT -(vector <#> %s), row_number FROM {self.table} ORDER BY vector <#> %s LIMIT %s",
                    [vector, vector, top],
                ).fetchall()
                found.append(_best(rows))
        return found

    def by_words(self, query: str, top: int) -> Best:
        asked = " | ".join(dict.fromkeys(words_of(query)))
        if not asked:
            return _best([])
        language = _LANGUAGE[self.run.words.stop_words]
        with connected(self.address) as link:
            rows = link.execute(
                f"SELECT ts_rank_cd(words, wanted, 1) AS score, row_number FROM {self.table}, "
                f"to_tsquery('{language}', %s) wanted WHERE words @@ wanted ORDER BY score DESC, row_number LIMIT %s",
                [asked, top],
            ).fetchall()
        return _best(rows)

    def hits(self, rows: Sequence[int], scores: Sequence[float]) -> list[Hit]:
        with connected(self.address) as link:
            found = link.execute(
                "SELECT row_number, id, passage, text, start_character, place, fields "
                f"FROM {self.table} WHERE row_number = ANY(%s)",
                [[int(row) for row in rows]],
            ).fetchall()
        hits = {
            row: Hit(id, passage, 0.0, text, start, place, fields, row)
            for row, id, passage, text, start, place, fields in found
        }
        # The table may have been replaced meanwhile.
        return [replace(hits[row], score=float(score)) for row, score in zip(rows, scores, strict=True) if row in hits]


def _best(rows: Sequence[tuple[float, int]]) -> Best:
    return np.array([row[0] for row in rows], np.float32), np.array([row[1] for row in rows], np.int64)


def open_table(address: str, table: str) -> DatabaseTable:
    """The index that a database holds under this name."""
    with connected(address) as link:
        if _mark_of(link, table) is None:
            raise MissingInputError(f"{_hidden(address)}: has no index {table}; remask index … --to makes one")
        _, model, path, facts = link.execute(f"SELECT * FROM {table}_index").fetchone()
    run = IndexRun.model_validate_json(json.dumps(facts["run"]))
    return DatabaseTable(address, table, run, facts["size"], Path(path), model)
