"""`remask search INDEX "query"` or `--queries FILE [--qrels FILE]`. Not here: finding and scoring (remask/finding)."""

from __future__ import annotations

from pathlib import Path

import click

from remask import api
from remask.commands import Common, common_options, run_file
from remask.errors import UsageError
from remask.finding.settings import SearchRun


@click.command()
@click.argument("words", nargs=-1, required=True, metavar='[RUN.yaml | INDEX] ["QUERY"]')
@click.option("--queries", type=click.Path(path_type=Path), help="A table of queries, or a file with one a line.")
@click.option("--qrels", type=click.Path(path_type=Path), help="Which documents are right: TREC's format or a table.")
@click.option("--query-id", help="Of a table of queries: the column with the id.")
@click.option("--query-text", help="Of a table of queries: the column with the text.")
@click.option("--by", type=click.Choice(["vectors", "words", "both"]), help="both: reciprocal rank fusion.")
@click.option("--top", type=int, help="How many are wanted (10).")
@click.option("--rerank", help="A model of pairs that puts the best in a new order.")
@click.option("--rerank-label", help="Of a classifier of pairs: the class that means a match.")
@click.option("--model", help="Where the index's model is now, if it was moved.")
@click.option("--table", help="Of PostgreSQL: the table (remask_passages).")
@click.option("--out", type=click.Path(path_type=Path), help="With --queries: the folder for runs, scores, a page.")
@common_options
def command(words: tuple[str, ...], out: Path | None, common: Common, **options: object) -> None:
    """Search INDEX (a folder, or postgres://…) for a QUERY, or for every query of a file.

    With --qrels all ways are scored side by side: nDCG@10, Recall@k and MRR with their intervals.
    """
    file, index, rest = run_file(words)
    if len(rest) > 1:
        raise UsageError(f'search takes one INDEX and one QUERY: quote it, "{" ".join(rest)}"')
    query = rest[0] if rest else None
    paths = {name: str(options.pop(name)) if options[name] else options.pop(name) for name in ("queries", "qrels")}
    built = common.build(SearchRun, file, index=index, query=query, **paths, **options)
    if common.dry_run:
        return
    from remask.finding.measure import render
    from remask.finding.search import render_hits

    result = api.search(built.run, out=out, progress=common.progress)
    shown = render_hits(result["hits"]) if "hits" in result else ""
    if "metrics" in result:
        shown = render(result)
    common.result(result, shown or f"{out}: {', '.join(result.get('files', ()))}")
