"""What a monitor knows, in one SQLite file: every batch is one transaction, so a kill leaves all of it or none.

In one transaction come together: the mark behind the rows read, the texts seen, the counts of their windows, windows
that closed with what the detectors then knew, and alarms. So no text is counted twice, none is lost, and no alarm comes
twice. Not here: what any of it means (run, detector).
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from remask.errors import DataError
from remask.schema import Json, Values

FILE = "state.sqlite"
_TABLES = """
CREATE TABLE IF NOT EXISTS facts(name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS seen(digest BLOB PRIMARY KEY, start INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS seen_start ON seen(start);
CREATE TABLE IF NOT EXISTS windows(grp TEXT, start INTEGER, counts TEXT NOT NULL, judged TEXT,
    PRIMARY KEY(grp, start)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS texts(grp TEXT, start INTEGER, class TEXT, score REAL, row TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS texts_key ON texts(grp, start, class, score);
CREATE TABLE IF NOT EXISTS detectors(grp TEXT PRIMARY KEY, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS alarms(number INTEGER PRIMARY KEY, alarm TEXT NOT NULL, handed_over INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS aside(kind TEXT, row TEXT NOT NULL);
"""


class Store:
    """The open file. Reading is free; everything that changes it happens inside `transaction`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        try:
            self._db = sqlite3.connect(self.path, isolation_level=None)
            self._db.executescript(_TABLES)
        except sqlite3.DatabaseError as error:
            raise DataError(f"{self.path}: damaged: {error}") from error

    def close(self) -> None:
        self._db.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def clear(self) -> None:
        for table in ("facts", "seen", "windows", "texts", "detectors", "alarms", "aside"):
            self._db.execute(f"DELETE FROM {table}")

    # ------------------------------------------------------------------------------------------------- facts

    def fact(self, name: str, default: Any = None) -> Any:
        found = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return default if found is None else json.loads(found[0])

    def set_fact(self, name: str, value: object) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))

    def count(self, name: str, more: int) -> None:
        """Add to one of the totals."""
        if more:
            self.set_fact(name, self.fact(name, 0) + more)

    # ------------------------------------------------------------------------------------------------- texts

    def is_seen(self, digest: bytes) -> bool:
        return self._db.execute("SELECT 1 FROM seen WHERE digest = ?", (digest,)).fetchone() is not None

    def see(self, digest: bytes, start: int) -> None:
        self._db.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (digest, start))

    def forget_before(self, start: int) -> None:
        """Texts of windows long closed: a repeat of one is then late, and set aside for that."""
        self._db.execute("DELETE FROM seen WHERE start < ?", (start,))
        self._db.execute("DELETE FROM texts WHERE start < ?", (start,))

    def keep_text(self, group: str, start: int, name: str, score: float, row: Values, most: int) -> None:
        """Of a window's texts of a class the surest ones."""
        key = (group, start, name)
        self._db.execute("INSERT INTO texts VALUES (?, ?, ?, ?, ?)", (*key, score, json.dumps(row)))
        self._db.execute(
            "DELETE FROM texts WHERE rowid IN (SELECT rowid FROM texts WHERE grp = ? AND start = ? AND class = ? "
            "ORDER BY score DESC, rowid LIMIT -1 OFFSET ?)",
            (*key, most),
        )

    def texts(self, group: str, since: int, until: int, name: str) -> list[Json]:
        """From the windows since .. until, surest first."""
        rows = self._db.execute(
            "SELECT row, score FROM texts WHERE grp = ? AND start BETWEEN ? AND ? AND class = ? "
            "ORDER BY score DESC, rowid",
            (group, since, until, name),
        )
        return [{**json.loads(row), "score": round(score, 4)} for row, score in rows]

    def put_aside(self, kind: str, row: Values) -> None:
        self._db.execute("INSERT INTO aside VALUES (?, ?)", (kind, json.dumps(row, ensure_ascii=False)))

    def aside(self, kind: str) -> list[str]:
        return [row for (row,) in self._db.execute("SELECT row FROM aside WHERE kind = ? ORDER BY rowid", (kind,))]

    # ----------------------------------------------------------------------------------------------- windows

    def add_counts(self, group: str, start: int, counts: Sequence[int]) -> None:
        found = self._db.execute("SELECT counts FROM windows WHERE grp = ? AND start = ?", (group, start)).fetchone()
        before = [0] * len(counts) if found is None else json.loads(found[0])
        total = json.dumps([a + b for a, b in zip(before, counts, strict=True)])
        self._db.execute(
            "INSERT INTO windows VALUES (?, ?, ?, NULL) ON CONFLICT(grp, start) DO UPDATE SET counts = excluded.counts",
            (group, start, total),
        )

    def open_windows(self, ending_by: int | None = None) -> list[tuple[str, int, list[int]]]:
        """Windows that were not judged yet, in order of time; those that start by `ending_by`."""
        rows = self._db.execute(
            "SELECT grp, start, counts FROM windows WHERE judged IS NULL AND (? IS NULL OR start <= ?) "
            "ORDER BY start, grp",
            (ending_by, ending_by),
        )
        return [(group, start, json.loads(counts)) for group, start, counts in rows]

    def judge(self, group: str, start: int, judged: Values) -> None:
        text = json.dumps(judged, ensure_ascii=False)
        self._db.execute("UPDATE windows SET judged = ? WHERE grp = ? AND start = ?", (text, group, start))

    def judged(self, group: str | None = None, last: int = -1) -> list[Json]:
        """Windows that closed, in order of time: all, or the last ones of a group."""
        where, words = ("AND grp = ?", (group,)) if group is not None else ("", ())
        rows = self._db.execute(
            f"SELECT judged FROM windows WHERE judged IS NOT NULL {where} ORDER BY start DESC, grp DESC LIMIT ?",
            (*words, last),
        )
        return [json.loads(row) for (row,) in rows][::-1]

    def num_judged(self) -> int:
        return self._db.execute("SELECT count(*) FROM windows WHERE judged IS NOT NULL").fetchone()[0]

    def groups(self) -> list[str]:
        return [group for (group,) in self._db.execute("SELECT DISTINCT grp FROM windows ORDER BY grp")]

    # ------------------------------------------------------------------------------------- detectors and alarms

    def detector(self, group: str) -> Json | None:
        found = self._db.execute("SELECT state FROM detectors WHERE grp = ?", (group,)).fetchone()
        return None if found is None else json.loads(found[0])

    def set_detector(self, group: str, state: Values) -> None:
        self._db.execute("INSERT OR REPLACE INTO detectors VALUES (?, ?)", (group, json.dumps(state)))

    def add_alarm(self, alarm: Values) -> Json:
        """The alarm with its number."""
        (last,) = self._db.execute("SELECT coalesce(max(number), 0) FROM alarms").fetchone()
        numbered = {"event": "alarm", "number": last + 1, **alarm}
        text = json.dumps(numbered, ensure_ascii=False)
        self._db.execute("INSERT INTO alarms VALUES (?, ?, 0)", (last + 1, text))
        return numbered

    def alarms(self, *, waiting: bool = False) -> list[Json]:
        """All, or those that the command was not started for yet."""
        where = "WHERE handed_over = 0" if waiting else ""
        return [json.loads(alarm) for (alarm,) in self._db.execute(f"SELECT alarm FROM alarms {where} ORDER BY number")]

    def hand_over(self, number: int) -> None:
        self._db.execute("UPDATE alarms SET handed_over = 1 WHERE number = ?", (number,))
