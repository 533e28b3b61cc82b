"""What an index is made of, and how it is searched. No torch here.

`IndexRun` is `remask index`, `SearchRun` is `remask search`. What decides the bytes of an
index is in `IndexRun`, but for the fields of `OWN`; the manifest keeps it, and adding to an index goes by it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from remask.config import Config, setting, switch
from remask.tables.form import ColumnName
from remask.text.settings import SentenceSettings, SourceSettings

By = Literal["vectors", "words", "both"]


class PassageSettings(Config):
    """Where a document is cut."""

    length: int = switch(256, "tokens of a passage at most; whole sentences fill it", effect="data", samples=[32], ge=8)
    overlap: int = switch(
        0, "sentences at the end of a passage that the next one begins with", effect="data", samples=[1], ge=0
    )
    sentences: SentenceSettings = SentenceSettings()


class VectorSettings(Config):
    """How vectors are searched."""

    first_pass: Literal["none", "int8"] = switch(
        "none", "none: every vector in full precision; int8: a rough pass first, the best of it in full", effect="data"
    )
    rescore: int = setting(20, "with int8: candidates that are looked at in full, for each passage wanted", ge=1)


class ApproximateSettings(Config):
    """A graph or a coarse grid beside the vectors (FAISS): for collections beyond a million passages."""

    kind: Literal["none", "hnsw", "ivfpq"] = switch(
        "none", "hnsw: a graph of neighbours; ivfpq: cells with short codes; none: exact search", effect="data"
    )
    neighbours: int = setting(32, "hnsw: links of a node", ge=4, le=256)
    width: int = setting(128, "hnsw: candidates held while a query walks the graph", ge=8)
    lists: int = setting(0, "ivfpq: cells of the grid; 0: four times the root of the number of passages", ge=0)
    probes: int = setting(16, "ivfpq: cells that a query looks into", ge=1)
    code_bytes: int = setting(0, "ivfpq: bytes of a vector; 0: a sixteenth of its numbers", ge=0)


class WordSettings(Config):
    """The BM25 index beside the vectors."""

    stop_words: Literal["none", "english"] = switch("english", "words that are not looked for", effect="data")
    k1: float = setting(1.5, "how fast further occurrences of a word stop counting", ge=0)
    b: float = setting(0.75, "how much a long passage is held against it", ge=0, le=1)


class DocsSettings(SourceSettings):
    """The texts of an index, as a source of `prepare` has them."""

    paths: tuple[str, ...] = setting((), "files, folders, globs, - (stdin), hf:NAME")


class IndexRun(Config):
    """What is indexed, and how."""

    model: Path | None = setting(None, "a run, checkpoint, model or Hugging Face folder that makes vectors")
    docs: DocsSettings = setting(DocsSettings(), "the texts: files, folders, globs, as `prepare` takes them")
    id: ColumnName | None = setting(None, "of a table: the column with the id; null: `id` where there is one")
    fields: tuple[ColumnName, ...] = setting((), "of a table: columns that are kept beside the text")
    passages: PassageSettings = PassageSettings()
    prompt: str | None = setting(None, "name of what the model reads before a passage; null: `document` if it has it")
    query_prompt: str | None = setting(None, "the same before a query; null: `query` if it has it")
    vectors: VectorSettings = VectorSettings()
    approximate: ApproximateSettings = ApproximateSettings()
    words: WordSettings = WordSettings()
    to: str | None = setting(None, "beside the folder: postgres://… or parquet; null: the folder alone")
    table: str = setting("remask_passages", "of PostgreSQL: the table", pattern=r"^[a-z_][a-z0-9_]{0,47}$")
    precision: Literal["auto", "fp32", "bf16"] = setting(
        "fp32", "of matrix products; auto: bf16 where the machine has it"
    )
    device: str = setting("cpu", "cpu, cuda, ...")
    workers: int = setting(1, "processes that cut and encode; each has the model in memory", ge=1)
    engine: Literal["local", "ray"] = setting("local", "ray: on the machines of a Ray cluster (RAY_ADDRESS)")
    seed: int = setting(0, "of the map and of FAISS")


# What belongs to one command rather than to the index that it makes.
OWN = ("model", "docs", "to", "table", "device", "workers", "engine")


class SearchRun(Config):
    """What is looked for, and where."""

    index: str = setting(..., "an index folder, or postgres://… that `index` wrote to")
    query: str | None = setting(None, "what is looked for")
    queries: Path | None = setting(None, "a table or a file with one query a line")
    query_id: ColumnName | None = setting(None, "of a table of queries: the column with the id; null: `id`, or the row")
    query_text: ColumnName | None = setting(None, "of a table of queries: the column with the text; null: `text`")
    qrels: Path | None = setting(None, "which documents are right for which query, as TREC writes it or as a table")
    by: By | None = setting(None, "vectors, words (BM25) or both; null: both (with qrels: each of them)")
    top: int = setting(10, "how many are wanted", ge=1, le=10_000)
    rerank: Path | None = setting(None, "a model of pairs that puts the best in a new order")
    rerank_top: int = setting(50, "how many of them", ge=1)
    rerank_label: str | None = setting(None, "of a classifier of pairs: the class that means that a passage fits")
    model: Path | None = setting(None, "where the index's model is now, if it was moved")
    table: str = setting("remask_passages", "of PostgreSQL: the table", pattern=r"^[a-z_][a-z0-9_]{0,47}$")
    device: str = setting("cpu", "cpu, cuda, ...")
    seed: int = setting(0, "of the intervals' draws")
