"""`remask index MODEL DOCS… --out INDEX`: texts -> passages with vectors and words to search. Not here: making them."""

from __future__ import annotations

from pathlib import Path

import click

from remask import api
from remask.commands import Common, common_options, run_file
from remask.errors import MissingInputError, UsageError
from remask.finding.settings import IndexRun


@click.command()
@click.argument("words", nargs=-1, metavar="[RUN.yaml | MODEL] DOCS…")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The index folder to make or to change.")
@click.option("--text", "text_columns", multiple=True, help="Of a table: the column with the text (several: joined).")
@click.option("--id", "id", help="Of a table: the column with the id (`id` where there is one).")
@click.option("--field", "fields", multiple=True, help="Of a table: a column to keep beside the text; repeat it.")
@click.option("--length", "passages__length", type=int, help="Tokens of a passage at most (256).")
@click.option("--first-pass", "vectors__first_pass", type=click.Choice(["none", "int8"]), help="A rough pass first.")
@click.option("--approximate", "approximate__kind", type=click.Choice(["none", "hnsw", "ivfpq"]), help="With FAISS.")
@click.option("--to", help="Also to postgres://… (pgvector), or parquet: a file in the folder for any other engine.")
@click.option("--table", "table", help="Of PostgreSQL: the table (remask_passages).")
@click.option("--add", is_flag=True, help="Add the documents to the index that is there.")
@click.option("--remove", multiple=True, metavar="ID", help="Remove this document from the index; repeat it.")
@click.option("--remove-file", type=click.Path(path_type=Path), help="Remove the documents of a file, an id a line.")
@click.option("--precision", type=click.Choice(["auto", "fp32", "bf16"]), help="Of matrix products (fp32).")
@click.option("--workers", type=int, help="Processes; each has the model in memory.")
@click.option("--engine", type=click.Choice(["local", "ray"]), help="ray: on the machines of a Ray cluster.")
@common_options
def command(
    words: tuple[str, ...],
    out: Path,
    text_columns: tuple[str, ...],
    fields: tuple[str, ...],
    add: bool,
    remove: tuple[str, ...],
    remove_file: Path | None,
    common: Common,
    **options: object,
) -> None:
    """Cut DOCS (any text or table that prepare reads) into passages, encode them with MODEL, and index them.

    Killed, the same command goes on. `remask search INDEX "query"` searches it, `remask serve INDEX` serves it.
    """
    file, model, docs = run_file(words)
    built = common.build(
        IndexRun, file, model=model, docs__paths=list(docs) or None, docs__text_columns=list(text_columns) or None,
        fields=list(fields) or None, **options,
    )  # fmt: skip
    gone = [*remove, *(_ids(remove_file) if remove_file else ())]
    if gone and (add or model):
        raise UsageError("--remove stands alone: remask index --remove ID --out INDEX")
    if common.dry_run:
        return
    result = api.index(built.run, out=out, add=add, remove=gone, progress=common.progress)
    shown = f"{out}: {result['passages']:,} passages of {result['documents']:,} documents"
    common.result(result, shown)


def _ids(path: Path) -> list[str]:
    if not path.is_file():
        raise MissingInputError(f"{path}: no such file")
    return [line.strip() for line in path.read_text().splitlines() if line.strip()]
