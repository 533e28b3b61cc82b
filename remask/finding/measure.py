"""How well an index finds: queries with their right documents -> nDCG@10, Recall@k, MRR with intervals, each way.

In: a table or lines of queries, and qrels (TREC's four columns, or a table such as BEIR's). A document stands where its
best passage does. Out: a value a query and measure for vectors, words, both and (with a model) reranked, differences to
words, a page with a picture, and the rankings as TREC run files. Not here: the measures (tasks/ranking_scores).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remask.errors import ConfigError, DataError, MissingInputError
from remask.finding.index import Hit, Seeker
from remask.finding.settings import By, SearchRun
from remask.progress import Progress
from remask.reports.charts import DotRow, dot_chart
from remask.reports.page import Page
from remask.schema import Json, Values
from remask.streams import split_name
from remask.tables import TABLE_KINDS, read_cells, read_lines
from remask.tasks.ranking_scores import difference_interval, mean_interval, ranking_values

MEASURES = ("ndcg@10", "recall@1", "recall@5", "recall@10", "recall@100", "mrr@10")
DEPTH = 100  # documents of a ranking
_BATCH = 64
_QUERY = ("query-id", "query_id", "query", "qid")
_DOCUMENT = ("corpus-id", "document", "document_id", "doc_id", "docid", "id")
_GAIN = ("score", "relevance", "label", "gain")


@dataclass(frozen=True)
class Query:
    """A query with its id."""

    id: str
    text: str


def read_queries(run: SearchRun) -> list[Query]:
    """The queries of a file; ids that come twice and empty texts are refused."""
    assert run.queries is not None
    found: list[Query] = []
    seen: dict[str, str] = {}
    for name, text, place in _raw_queries(run, run.queries):
        if not text.strip():
            raise DataError(f"{place}: the query is empty")
        if name in seen:
            raise DataError(f"{place}: the query id {name!r} is there twice, before at {seen[name]}")
        seen[name] = place
        found.append(Query(name, text))
    if not found:
        raise DataError(f"{run.queries}: has no queries")
    return found


def _raw_queries(run: SearchRun, path: Path) -> Iterator[tuple[str, str, str]]:
    if not path.exists():
        raise MissingInputError(f"{path}: no such file")
    if split_name(path.name)[0] not in TABLE_KINDS:
        for number, line in read_lines(path):
            yield str(number), line, f"{path}:{number}"
        return
    for row in read_cells(path):
        names = [run.query_text] if run.query_text else ["text", "query", "question"]
        column = next((name for name in names if name in row.values), None)
        if column is None:
            raise ConfigError(f"{row.place}: no column {names[0]!r} with the query; there are {', '.join(row.values)}")
        id_column = run.query_id or next((name for name in ("id", "_id", "query-id") if name in row.values), None)
        value = row.number if id_column is None else row.values.get(id_column)
        yield str(value), str(row.values[column] or ""), row.place


def read_qrels(path: Path) -> dict[str, dict[str, float]]:
    """Gains by query and document. TREC: `query 0 document gain` a line; a table has columns for the three."""
    if not path.exists():
        raise MissingInputError(f"{path}: no such file")
    found: dict[str, dict[str, float]] = {}
    rows = _table_qrels(path) if split_name(path.name)[0] in TABLE_KINDS else _trec_qrels(path)
    for query, document, gain, place in rows:
        try:
            value = float(gain)
        except (TypeError, ValueError):
            raise DataError(f"{place}: {gain!r} is no number") from None
        found.setdefault(query, {})[document] = value
    if not any(gain > 0 for row in found.values() for gain in row.values()):
        raise DataError(f"{path}: names no right document for any query")
    return found


def _trec_qrels(path: Path) -> Iterator[tuple[str, str, str, str]]:
    for number, line in read_lines(path):
        words = line.split()
        if words and len(words) != 4:
            raise DataError(f"{path}:{number}: {len(words)} words; a line of qrels has 4: query 0 document gain")
        if words:
            yield words[0], words[2], words[3], f"{path}:{number}"


def _table_qrels(path: Path) -> Iterator[tuple[str, str, Any, str]]:
    for row in read_cells(path):
        columns = [next((name for name in names if name in row.values), None) for names in (_QUERY, _DOCUMENT, _GAIN)]
        if columns[0] is None or columns[1] is None:
            raise ConfigError(
                f"{row.place}: qrels need a column for the query ({', '.join(_QUERY)}) and one for the document "
                f"({', '.join(_DOCUMENT)}); there are {', '.join(row.values)}"
            )
        gain = 1 if columns[2] is None else row.values[columns[2]]
        yield str(row.values[columns[0]]), str(row.values[columns[1]]), gain, row.place


# ---------------------------------------------------------------------------------------------------- rankings

Ranking = list[tuple[str, float]]  # documents with their scores, best first


def documents_of(hits: Sequence[Hit], depth: int) -> Ranking:
    """Each document once, where its best passage stands."""
    found: dict[str, float] = {}
    for hit in hits:
        found.setdefault(hit.id, hit.score)
    return list(found.items())[:depth]


def rank_all(
    seeker: Seeker, queries: Sequence[Query], ways: Sequence[By], depth: int, progress: Progress
) -> dict[str, list[Ranking]]:
    """{way: a Ranking for each query}; with a model that reranks, `reranked` too (of the last way)."""
    plain = Seeker(seeker.index, seeker.model, seeker.prompt)
    rankings: dict[str, list[Ranking]] = {way: [] for way in ways}
    if seeker.reranker is not None:
        rankings["reranked"] = []
    with progress.stage("search", len(queries), "queries") as stage:
        for begin in range(0, len(queries), _BATCH):
            texts = [query.text for query in queries[begin : begin + _BATCH]]
            vectors = None if tuple(ways) == ("words",) else plain.vectors(texts)
            for way in ways:
                given = None if way == "words" else vectors
                # Several passages may be of one document: look deeper than the documents that are wanted.
                for hits in plain.found(texts, given, way, 3 * depth):
                    rankings[way].append(documents_of(hits, depth))
            if seeker.reranker is not None:
                given = None if ways[-1] == "words" else vectors
                for hits in seeker.found(texts, given, ways[-1], seeker.rerank_top):
                    rankings["reranked"].append(documents_of(hits, depth))
            stage.advance(len(texts))
    return rankings


def write_trec(path: Path, queries: Sequence[Query], rankings: Sequence[Ranking], way: str) -> None:
    """`query Q0 document rank score tag` a line."""
    from remask.artifacts import write_bytes

    lines = [
        f"{query.id} Q0 {document} {rank} {score:.6f} remask-{way}"
        for query, ranking in zip(queries, rankings, strict=True)
        for rank, (document, score) in enumerate(ranking, start=1)
    ]
    write_bytes(path, ("\n".join(lines) + "\n").encode())


# ----------------------------------------------------------------------------------------------------- measures


def measured(
    queries: Sequence[Query], rankings: Mapping[str, Sequence[Ranking]], qrels: Mapping[str, Mapping[str, float]],
    progress: Progress, seed: int,
) -> Json:  # fmt: skip
    """Means with intervals of each way, and how far each is from words; queries without a right document are left out
    and counted."""
    judged = [i for i, query in enumerate(queries) if any(gain > 0 for gain in qrels.get(query.id, {}).values())]
    if not judged:
        raise DataError(f"none of {_queries(len(queries))} has a right document in the qrels: ids do not match")
    if len(judged) < len(queries):
        left = len(queries) - len(judged)
        progress.warn(f"{_queries(left)} without a right document: left out of the scores")
    relevant = [[gain for gain in qrels[queries[i].id].values() if gain > 0] for i in judged]
    values = {}
    for way, ranked in rankings.items():
        gains = [[max(0.0, qrels[queries[i].id].get(name, 0.0)) for name, _ in ranked[i]] for i in judged]
        values[way] = ranking_values(gains, relevant, MEASURES)
    names = ("mean", "low", "high")
    metrics = {
        way: {m: dict(zip(names, mean_interval(v, seed), strict=True)) for m, v in found.items()}
        for way, found in values.items()
    }
    result: Json = {"queries": len(judged), "left_out": len(queries) - len(judged), "metrics": metrics}
    if "words" in values:
        result["against_words"] = {
            way: {
                m: dict(zip(names, difference_interval(found[m], values["words"][m], seed), strict=True))
                for m in MEASURES
            }
            for way, found in values.items()
            if way != "words"
        }
    return result


def render(result: Values) -> str:
    """The table for a terminal: a line a way, each value with its interval, in percent."""
    ways = result["metrics"]
    lines = [f"{'':10s}" + "".join(f"{name:>22s}" for name in MEASURES)]
    for way, found in ways.items():
        cells = (f"{100 * v['mean']:.1f} [{100 * v['low']:.1f}, {100 * v['high']:.1f}]" for v in found.values())
        lines.append(f"{way:10s}" + "".join(f"{cell:>22s}" for cell in cells))
    return "\n".join(lines)


def report(result: Values, title: str) -> str:
    """One page: the table, and a picture of each measure over the ways."""
    page = Page("How well this index finds", title)
    page.text(
        f"{_queries(result['queries'])} with at least one right document; values in percent with 95 % "
        "intervals over the queries. A document stands where its best passage does."
    )
    metrics = result["metrics"]
    rows = [[way, *(_cell(found[name]) for name in MEASURES)] for way, found in metrics.items()]
    page.table(["by", *MEASURES], rows)
    for name in ("ndcg@10", "recall@5", "recall@100"):
        dots = []
        for way, found in metrics.items():
            middle, low, high = (100 * found[name][key] for key in ("mean", "low", "high"))
            dots.append(DotRow(way, (), middle, low, high, f"{middle:.1f}"))
        page.figure(dot_chart(dots, label=f"{name} by way"), f"{name} in percent")
    if against := result.get("against_words"):
        page.heading("Against words (BM25), query by query")
        rows = [[way, *(_signed(found[name]) for name in MEASURES)] for way, found in against.items()]
        page.table(["by", *MEASURES], rows)
        page.text("An interval that leaves out 0 is a difference beyond chance.")
    return page.html()


def _cell(value: Mapping[str, float]) -> str:
    return f"{100 * value['mean']:.1f} [{100 * value['low']:.1f}, {100 * value['high']:.1f}]"


def _signed(value: Mapping[str, float]) -> str:
    return f"{100 * value['mean']:+.1f} [{100 * value['low']:+.1f}, {100 * value['high']:+.1f}]"


def _queries(count: int) -> str:
    return f"{count:,} quer{'y' if count == 1 else 'ies'}"
