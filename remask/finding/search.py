"""`remask search`: one query, a file of queries, or queries with their right answers.

In: an index folder or a database that `remask index` wrote to. Out: hits as plain values; for a file of queries a
folder with TREC run files, hits.jsonl and, with qrels, results.json and a page. Not here: how anything is found (index,
postgres) or scored (measure).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import orjson

from remask import artifacts
from remask.errors import UsageError
from remask.finding import measure
from remask.finding.encode import QUERY, prompt_name
from remask.finding.index import Hit, Seeker, open_index, open_model, open_reranker
from remask.finding.settings import By, SearchRun
from remask.progress import Progress
from remask.schema import Json

WAYS: tuple[By, ...] = ("vectors", "words", "both")
_MARK = "hits.jsonl"


def is_database(word: str) -> bool:
    return word.startswith(("postgres://", "postgresql://"))


def open_seeker(run: SearchRun) -> Seeker:
    """What is searched, with the models that it takes."""
    reranker = None if run.rerank is None else open_reranker(run.rerank, run.rerank_label, run.device)
    if is_database(run.index):
        from remask.finding.postgres import open_table

        found: Any = open_table(run.index, run.table)
    else:
        found = open_index(run.index)
    if run.by == "words":  # no vector is needed, so neither is the model
        return Seeker(found, None, None, reranker, run.rerank_top, run.rerank_label)
    model = open_model(found.model_path, found.model_fingerprint, moved_to=run.model, device=run.device)
    prompt = prompt_name(model.prompts, found.run.query_prompt, QUERY, model.folder)
    return Seeker(found, model, prompt, reranker, run.rerank_top, run.rerank_label)


def search(run: SearchRun, out: Path | None, *, progress: Progress) -> Json:
    """Hits of a query; or rankings, and with qrels scores, of a file of queries."""
    if (run.query is None) == (run.queries is None):
        raise UsageError('search takes a "QUERY" or --queries FILE, one of them')
    if run.query is not None:
        if run.qrels is not None:
            raise UsageError("--qrels belongs to --queries FILE")
        if not run.query.strip():
            raise UsageError("the query is empty; say what to look for")
        (hits,) = open_seeker(run).find([run.query], run.by or "both", run.top)
        return {"query": run.query, "by": run.by or "both", "hits": [hit.to_json() for hit in hits]}
    queries = measure.read_queries(run)
    qrels = None if run.qrels is None else measure.read_qrels(run.qrels)
    if qrels is None and out is None:
        raise UsageError("--queries without --qrels needs --out DIR for what is found")
    if out is not None:
        artifacts.claim(out, _MARK)
    seeker = open_seeker(run)
    ways = cast("tuple[By, ...]", (run.by,) if run.by is not None else WAYS if qrels is not None else ("both",))
    depth = run.top if qrels is None else max(run.top, measure.DEPTH)
    rankings = measure.rank_all(seeker, queries, ways, depth, progress)
    result: Json = {"index": run.index, "queries": len(queries)}
    if qrels is not None:
        result |= measure.measured(queries, rankings, qrels, progress, run.seed)
    if out is not None:
        result["files"] = _write(out, run, queries, rankings, result if qrels is not None else None)
    return result


def _write(out: Path, run: SearchRun, queries: Any, rankings: Any, result: Json | None) -> list[str]:
    with artifacts.output_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    lines = [
        orjson.dumps({"query": query.id, "text": query.text, **{way: ranked[i] for way, ranked in rankings.items()}})
        for i, query in enumerate(queries)
    ]
    artifacts.write_bytes(out / _MARK, b"\n".join(lines) + b"\n")
    files = [_MARK]
    for way, ranked in rankings.items():
        measure.write_trec(out / f"run-{way}.trec", queries, ranked, way)
        files.append(f"run-{way}.trec")
    if result is not None:
        artifacts.write_json(out / "results.json", result)
        artifacts.write_page(out / "report.html", measure.report(result, run.index))
        files += ["results.json", "report.html"]
    return files


def render_hits(hits: list[Json] | list[Hit]) -> str:
    """Hits for a terminal: rank, score, id and the first words."""
    lines = []
    for rank, hit in enumerate(hits, start=1):
        facts = hit if isinstance(hit, dict) else hit.to_json()
        text = " ".join(facts["text"].split())
        shown = text if len(text) <= 160 else text[:157] + "..."
        lines.append(f"{rank:3d}. {facts['score']:.4f}  {facts['id']} (passage {facts['passage'] + 1})\n     {shown}")
    return "\n".join(lines) if lines else "nothing found"
